"""Which ids are known: open trajectories, their branches and sub-agents, and those that ended lately."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from concur_agents.errors import (
    AgentFinishedError,
    DuplicateAgentError,
    InvalidValueError,
    UnknownAgentError,
)
from concur_agents.lifecycle import Agent, Context, Outcome

_REMEMBERED = 65_536
"""Ended ids that still get a precise answer; enough for any late caller, and a bounded memory."""


class Census:
    """Ids to agents and contexts, and the counters of invariant 6."""

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self._members: dict[str, tuple[Agent, Context]] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()
        self.open_agents = 0
        self.admitted = 0
        self.never_started = 0
        """Trajectories that ended before their first admission."""
        self.ended: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        """Admitted trajectories that ended, by outcome."""

    @property
    def inside(self) -> int:
        """Trajectories admitted and not ended."""
        return self.admitted - sum(self.ended.values())

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._members

    def __len__(self) -> int:
        """Open ids, branches and sub-agents included."""
        return len(self._members)

    def agents(self) -> list[Agent]:
        """Open trajectories, oldest first. O(n): for reports and restarts only."""
        return list(dict.fromkeys(agent for agent, _ in self._members.values()))

    def enter(self, agent_id: str, parent: str | None, priority: int) -> tuple[Agent, Context]:
        """Make an id known and say whose place it shares. The context is not in the ledger yet."""
        if not isinstance(agent_id, str) or not agent_id:
            msg = f"agent_id={agent_id!r} is not usable: expected a non-empty string"
            raise InvalidValueError(msg)
        if not isinstance(priority, int):
            msg = f"priority={priority!r} is not usable: expected a whole number (higher goes first)"
            raise InvalidValueError(msg)
        if agent_id in self._members:
            msg = (
                f"agent_id={agent_id!r} is running already: give each trajectory its own id,"
                " or finish the first one before the id is used again"
            )
            raise DuplicateAgentError(msg)
        if parent is None:
            agent, context = Agent(agent_id, priority), Context(agent_id, serial=next(self._serials))
            self.open_agents += 1
        else:
            agent, above = self.find(parent)
            context = Context(agent_id, above, next(self._serials))
        self._finished.pop(agent_id, None)
        self._members[agent_id] = (agent, context)
        return agent, context

    def find(self, agent_id: str) -> tuple[Agent, Context]:
        """The agent that owns `agent_id`, and its context."""
        found = self.find_or_finished(agent_id)
        if found is None:
            msg = f"agent_id={agent_id!r} is finished: it takes no more steps (open it again to start anew)"
            raise AgentFinishedError(msg)
        return found

    def find_or_finished(self, agent_id: str) -> tuple[Agent, Context] | None:
        """As `find`, with None for an id that ended lately."""
        found = self._members.get(agent_id)
        if found is None and agent_id not in self._finished:
            msg = f"agent_id={agent_id!r} is unknown: it was never opened on this controller"
            raise UnknownAgentError(msg)
        return found

    def leave(self, agent: Agent, context: Context, outcome: Outcome) -> list[Context]:
        """Forget `context` and all below it, children first; the contexts that have to be closed."""
        gone = [c for c in agent.contexts.values() if context in c.lineage()][::-1]
        for member in gone:
            del self._members[member.context_id]
            self._finished[member.context_id] = None
            if len(self._finished) > _REMEMBERED:
                self._finished.popitem(last=False)
        if context.parent is None:
            self.open_agents -= 1
            if agent.started:
                self.ended[outcome] += 1
            else:
                self.never_started += 1
        return gone
