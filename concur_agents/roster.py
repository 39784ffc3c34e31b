"""The orders and sums over open agents that `admission` decides by.

Two groups: the active (with their load, and who of them sits at a boundary, generates, or is to leave)
and the waiting. An active agent is out of the books while anything about it changes: `take_out`,
change, `put_in`. Everything is O(log n) amortised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from concur_agents.ledger import Load
from concur_agents.lifecycle import Agent, AgentStatus
from concur_agents.ranking import Ranking
from concur_agents.selection import Selection
from concur_agents.signals import Window


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
        # Ordered dicts: a plain dict scans the slots of all that left in front.
        self._idle_since: OrderedDict[Agent, float] = OrderedDict()
        self._returning: OrderedDict[Agent, float] = OrderedDict()
        self._arriving: OrderedDict[Agent, float] = OrderedDict()

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

    def recount(self, agent: Agent, change: Callable[[], None]) -> None:
        """Apply `change` to an agent's contexts without moving it: its time at a boundary goes on."""
        active = agent.status.is_active
        if active:
            self.active.add(agent, -1)
            if agent.draining:
                self.leaving.add(agent, -1)
        change()
        if active:
            self.active.add(agent)
            if agent.draining:
                self.leaving.add(agent)

    def idle_for(self, now: float) -> tuple[Agent, float] | None:
        """The agent that has been at a boundary longest, and for how many seconds."""
        agent = next(iter(self._idle_since), None)
        return None if agent is None else (agent, now - self._idle_since[agent])

    def enqueue(self, agent: Agent, now: float, window: Window) -> None:
        """Let an inactive agent compete for a place, if it asks for one and is not paused by hand."""
        if agent.manual or not agent.calls_waiting or agent in self.waiting:
            return
        agent.waiting_since = now
        group = self._returning if agent.started and not window.is_request_limit else self._arriving
        group[agent] = now
        self._rank(agent, window)

    def dequeue(self, agent: Agent) -> None:
        """Take an agent out of the competition."""
        self.waiting.discard(agent)
        self._returning.pop(agent, None)
        self._arriving.pop(agent, None)

    def reorder_waiting(self, window: Window) -> None:
        """Rank all waiters anew. O(n log n), when the kind of window or its order changes."""
        for agent in list(self.waiting):
            self._rank(agent, window)

    def _rank(self, agent: Agent, window: Window) -> None:
        key = self.selection.resume_key(agent, one_queue=window.is_request_limit, order=window.resume)
        self.waiting.add(agent, key)

    def next_waiter(self, now: float, max_wait_seconds: float) -> Agent | None:
        """Who comes next: the first by the order in force, unless an older one of its group is overdue.

        The groups are those who come back and those who are new: however long the new have waited (in a
        large batch that is most of them, most of the time), who has started comes first.
        """
        first = self.waiting.first()
        group = self._returning if first in self._returning else self._arriving
        oldest = next(iter(group), None)
        if oldest is not None and now - group[oldest] >= max_wait_seconds:
            return oldest
        return first
