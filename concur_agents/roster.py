"""The orders and sums over open agents that `admission` decides by.

Two groups: the active (with their load, and who of them sits at a boundary, generates, or is to leave)
and the waiting. An active agent is out of the books while anything about it changes: `take_out`,
change, `put_in`. Everything is O(log n) amortised.
"""

from __future__ import annotations

from concur_agents.ledger import Load
from concur_agents.lifecycle import Agent, AgentStatus
from concur_agents.ranking import Ranking
from concur_agents.selection import Selection


class Roster:
    """Who is active and who waits, each in the orders that `selection` names."""

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        self.active = Load()
        self.leaving = Load()
        """The part of the active that is paused at its next boundary."""
        self.at_boundary: Ranking[Agent] = Ranking()
        self.generating: Ranking[Agent] = Ranking()
        """Active agents with a call in flight that are to stay; first is whom a shrink marks next."""
        self.marked: Ranking[Agent] = Ranking()
        """Those a shrink has marked; first is whom to keep if room appears."""
        self.waiting: Ranking[Agent] = Ranking()
        # Insertion order is time order, so the first entry is the oldest.
        self._idle_since: dict[Agent, float] = {}
        self._arrivals: dict[Agent, float] = {}

    def take_out(self, agent: Agent) -> bool:
        """Take an active agent out of the sums and orders; False when it is not active."""
        if not agent.status.is_active:
            return False
        self.active.add(agent, -1)
        if agent.draining:
            self.leaving.add(agent, -1)
        if agent.status is AgentStatus.TOOL_EXECUTION:
            self.at_boundary.discard(agent)
            del self._idle_since[agent]
        elif agent.leaving:
            self.marked.discard(agent)
        else:
            self.generating.discard(agent)
        return True

    def put_in(self, agent: Agent, now: float) -> None:
        """Count an agent as active, by what it does now."""
        self.active.add(agent)
        if agent.draining:
            self.leaving.add(agent)
        key = self.selection.pause_key(agent)
        if not agent.calls_in_flight:
            agent.status = AgentStatus.TOOL_EXECUTION
            self.at_boundary.add(agent, key)
            self._idle_since[agent] = now
            return
        agent.status = AgentStatus.GENERATING
        if agent.leaving:
            self.marked.add(agent, tuple(-part for part in key))
        elif not agent.manual:
            self.generating.add(agent, key)

    def idle_for(self, now: float) -> tuple[Agent, float] | None:
        """The agent that has been at a boundary longest, and for how many seconds."""
        agent = next(iter(self._idle_since), None)
        return None if agent is None else (agent, now - self._idle_since[agent])

    def enqueue(self, agent: Agent, now: float, *, one_queue: bool) -> None:
        """Let an inactive agent compete for a place, if it asks for one and is not paused by hand."""
        if agent.manual or not agent.calls_waiting or agent in self.waiting:
            return
        agent.waiting_since = now
        self._arrivals[agent] = now
        self.waiting.add(agent, self.selection.resume_key(agent, one_queue=one_queue))

    def dequeue(self, agent: Agent) -> None:
        """Take an agent out of the competition."""
        self.waiting.discard(agent)
        self._arrivals.pop(agent, None)

    def reorder_waiting(self, *, one_queue: bool) -> None:
        """Rank all waiters anew. O(n log n), when the kind of window changes."""
        for agent in list(self.waiting):
            self.waiting.add(agent, self.selection.resume_key(agent, one_queue=one_queue))

    def next_waiter(self, now: float, max_wait_seconds: float) -> Agent | None:
        """Who comes next: the oldest if it is overdue, else the first by the order in force."""
        oldest = next(iter(self._arrivals), None)
        if oldest is not None and now - self._arrivals[oldest] >= max_wait_seconds:
            return oldest
        return self.waiting.first()
