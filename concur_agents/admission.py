"""The state machine: who is active, who is queued, who is paused.

Plain synchronous code. Each call takes facts (and the time they happened, in seconds on any monotonic
clock) and returns the events that follow; the shells round it wake waiters and count. It does no I/O,
reads no clock, and every operation is O(log n) amortised in the number of agents.

It decides who may take a step, given a window. How large the window should be is a policy's business.

Rules (the numbers are those of the invariants in the documentation):

1. Active agents and their demand stay within the window, except while a shrink waits for boundaries, and
   except that one agent may always run.
2. A call in flight is never interrupted: an agent chosen by a shrink leaves at its next boundary.
3. If anyone waits and nobody is active, someone is admitted. Who has started comes back before new ones
   start. Within either group, waiters older than `max_wait_seconds` go first, oldest first, whatever
   their priority.
4. A trajectory, its branches and its sub-agents hold one place together, so none of them waits for a
   place that another one holds.
5. `end`, `abandon` and `finish` give back what was held, in whatever state the call or the agent is.
6. admitted = completed + failed + cancelled + inside.
"""

from __future__ import annotations

import itertools

from concur_agents.census import Census
from concur_agents.errors import check_range, check_whole
from concur_agents.events import (
    Admitted,
    Event,
    Finished,
    Granted,
    Paused,
    Queued,
    Refused,
    StepEnded,
    Ticket,
    WindowChanged,
)
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import Agent, AgentStatus, Context, Outcome, PauseReason, Usage
from concur_agents.pacing import Pacer
from concur_agents.roster import Roster
from concur_agents.selection import Selection
from concur_agents.signals import Window
from concur_agents.timing import Timing


class Admission:
    """Admission of agents into a window.

    Args:
        window: The window to start with; `Window()` has no limit.
        ledger: Where context lengths are kept.
        selection: Whom a shrink pauses and who comes back first.
        max_wait_seconds: > 0; a waiter older than this goes before others of its group (see rule 3).
    """

    def __init__(
        self,
        window: Window | None = None,
        *,
        ledger: Ledger | None = None,
        selection: Selection | None = None,
        max_wait_seconds: float = 1800.0,
    ) -> None:
        check_range("max_wait_seconds", max_wait_seconds, 0, open_low=True)
        self.window = window or Window()
        self.ledger = ledger or Ledger()
        self.max_wait_seconds = max_wait_seconds
        self.census = Census()
        self.timing = Timing()
        self._pacer = Pacer()
        self._called_at = 0.0
        """When a call last started or ended."""
        self._roster = Roster(selection or Selection())
        self._calls: dict[Ticket, tuple[Agent, Context]] = {}
        self._tickets = itertools.count(1)
        self._admissions = itertools.count()

    # ---- facts from outside ---------------------------------------------------------------------

    def open(
        self,
        agent_id: str,
        now: float,
        *,
        parent: str | None = None,
        priority: int = 0,
        context_tokens: int = 0,
    ) -> int:
        """Make an agent known; it asks for its place with `request`. The answer is a serial for `finish`.

        `parent` names an open agent whose place this one shares (a sub-agent or branch). `context_tokens`
        (>= 0) is the length of a context that exists already, for a trajectory resumed from a checkpoint.

        Raises:
            DuplicateAgentError: the id is open already.
            UnknownAgentError: the parent is not open.
        """
        check_whole("context_tokens", context_tokens, 0)
        agent, context = self.census.enter(agent_id, parent, priority)
        self._roster.recount(agent, lambda: self.ledger.open(agent, context, context_tokens))
        return context.serial

    def request(self, agent_id: str, now: float) -> tuple[Ticket, list[Event]]:
        """Ask for one generation call. `Granted` with the ticket is among the events if it may start now.

        Raises:
            UnknownAgentError: the id was never opened.
            AgentFinishedError: the agent is over.
        """
        agent, context = self.census.find(agent_id)
        ticket = next(self._tickets)
        self._calls[ticket] = (agent, context)
        events: list[Event] = []
        if agent.status.is_active and self._may_join(agent, context):
            self._roster.take_out(agent)
            self._start(agent, context, ticket, now, now, events)
            self._roster.put_in(agent, now)
            return ticket, events
        context.waiting[ticket] = now
        agent.calls_waiting += 1
        if not agent.status.is_active:
            self._enqueue(agent, now)
        self._pump(now, events)
        if ticket in context.waiting:
            events.append(Queued(now, agent_id, ticket))
        return ticket, events

    def end(self, ticket: Ticket, now: float, usage: Usage | None = None) -> list[Event]:
        """The call of `ticket` is over; `usage` is None when it failed or the engine did not say.

        A ticket that is over already (its agent was finished) is ignored, so every exit may call this.
        """
        call = self._calls.pop(ticket, None)
        if call is None:
            return []
        agent, context = call
        events: list[Event] = []
        if ticket in context.waiting:
            del context.waiting[ticket]
            agent.calls_waiting -= 1
            if not agent.calls_waiting:
                self._roster.dequeue(agent)
            self._pump(now, events)
            return events
        self._roster.take_out(agent)
        context.in_flight.discard(ticket)
        agent.calls_in_flight -= 1
        self._called_at = now
        self.timing.ended(ticket, now, usage, self.generating + 1)
        if usage is not None:
            self.ledger.record(agent, context, usage)
            if context.parent is None:
                self._pacer.stepped(self.window.pace, self._roster.active.agents + 1)
            events.append(StepEnded(now, context.context_id, context.tokens))
        self._roster.put_in(agent, now)
        self._settle(agent, now, events)
        return events

    def abandon(self, ticket: Ticket, now: float) -> list[Event]:
        """The caller is gone, queued or granted; a grant is handed on. The same as `end` without usage."""
        return self.end(ticket, now)

    def pause(self, agent_id: str, now: float) -> list[Event]:
        """Pause by hand at the next boundary, until `resume`. Idempotent.

        Raises:
            UnknownAgentError: the id is not open.
        """
        agent, _ = self.census.find(agent_id)
        events: list[Event] = []
        if agent.manual:
            return events
        if self._roster.take_out(agent):
            agent.manual, agent.leaving = True, False
            self._roster.put_in(agent, now)
        else:
            agent.manual = True
            self._roster.dequeue(agent)
            agent.status = AgentStatus.PAUSED
            events.append(Paused(now, agent.agent_id, PauseReason.MANUAL))
        self._settle(agent, now, events)
        return events

    def resume(self, agent_id: str, now: float) -> list[Event]:
        """End a pause by hand; the agent competes for a place again. Idempotent, as `pause`."""
        agent, _ = self.census.find(agent_id)
        events: list[Event] = []
        if not agent.manual:
            return events
        active = self._roster.take_out(agent)
        agent.manual = False
        if active:
            self._start_waiting(agent, now, events)
            self._roster.put_in(agent, now)
        else:
            agent.status = AgentStatus.PAUSED if agent.started else AgentStatus.QUEUED
            self._enqueue(agent, now)
        self._settle(agent, now, events)
        return events

    def give_back(self, agent_id: str, now: float) -> list[Event]:
        """An agent at a boundary gives its place back now; it queues again at its next call.

        Nothing happens while one of its calls is in flight, or when it holds no place.

        Raises:
            UnknownAgentError, AgentFinishedError: the id is not open.
        """
        agent, _ = self.census.find(agent_id)
        events: list[Event] = []
        if agent.status is AgentStatus.TOOL_EXECUTION:
            self._pause(agent, now, PauseReason.GIVEN_BACK, events)
            self._settle(agent, now, events)
        return events

    def finish(
        self, agent_id: str, now: float, outcome: Outcome = Outcome.COMPLETED, serial: int | None = None
    ) -> list[Event]:
        """The agent is over: its waiting calls are refused, everything it holds is given back.

        Finishing a trajectory finishes its branches and sub-agents. Finishing one twice is harmless; with
        the `serial` that `open` gave, a later trajectory of the same id is left alone.

        Raises:
            UnknownAgentError: the id was never opened.
        """
        found = self.census.find_or_finished(agent_id)
        if found is None or (serial is not None and found[1].serial != serial):
            return []
        agent, context = found
        events: list[Event] = []
        members = self.census.leave(agent, context, outcome)

        def close() -> None:
            for member in members:
                self._close(agent, member, now, events)
                events.append(Finished(now, member.context_id, outcome))

        if len(members) < len(agent.contexts) and not any(member.in_flight for member in members):
            self._roster.recount(agent, close)  # a branch at rest: the agent stays where it is
        else:
            active = self._roster.take_out(agent)
            close()
            if not agent.contexts:
                agent.status = AgentStatus.COMPLETED
            elif active:
                self._roster.put_in(agent, now)
        if not agent.calls_waiting:
            self._roster.dequeue(agent)
        self._settle(agent, now, events)
        return events

    def set_window(self, window: Window, now: float) -> list[Event]:
        """Put another window in force: admits into room that appeared, shrinks what is too much."""
        events: list[Event] = []
        if window == self.window:
            return events
        events.append(WindowChanged(now, self.window, window))
        before, self.window = self.window, window
        if window.is_request_limit != before.is_request_limit or window.resume != before.resume:
            self._roster.reorder_waiting(window)
        self._unmark(now, events)
        self._shrink(now, events)
        self._pump(now, events)
        return events

    def set_block_size(self, block_size: int, now: float) -> None:
        """The engine's block size became known. O(n), once per engine start."""
        if block_size == self.ledger.block_size:
            return
        active = [agent for agent in self.census.agents() if self._roster.take_out(agent)]
        self.ledger.set_block_size(block_size, self.census.agents())
        for agent in active:
            self._roster.put_in(agent, now)

    def cooled(self) -> None:
        """The engine's cache was emptied: nobody's context is resident any more. O(n)."""
        self.ledger.flushed()
        for agent in self.census.agents():
            self.ledger.cooled(agent)

    def advance(self, now: float) -> list[Event]:
        """Time went by: reclaim places whose grace is over, for those who wait."""
        events: list[Event] = []
        self._pump(now, events)
        return events

    # ---- eyes -----------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Agents that hold a place."""
        return self._roster.active.agents

    @property
    def demand_tokens(self) -> int:
        """D: KV tokens that the active set needs resident."""
        return self.ledger.demand(self._roster.active)

    @property
    def waiting(self) -> int:
        """Agents, queued or paused, that ask for a place now."""
        return len(self._roster.waiting)

    @property
    def paused(self) -> int:
        """Agents that were admitted once and hold no place now."""
        return self.census.inside - self.active

    @property
    def generating(self) -> int:
        """Active agents with a call in flight."""
        return self._roster.active.agents - len(self._roster.at_boundary)

    # ---- what a place is worth ------------------------------------------------------------------

    def _may_join(self, agent: Agent, context: Context) -> bool:
        """Whether another call of an active agent may start at once.

        An agent that is to leave starts no more calls, else it might never come to a boundary; but a call
        that runs inside an open step of its own lineage must, or the step could never end.
        """
        return not agent.draining or any(node.in_flight for node in context.lineage())

    def _fits(self, agent: Agent, now: float) -> bool:
        """Whether `agent` may take a place now."""
        if not self._roster.active.agents:
            return True
        if not (agent.started or self._pacer.allows(self.window.pace) or self._idle(now)):
            return False
        if self.window.agents is not None and self._roster.active.agents >= self.window.agents:
            return False
        if self.window.tokens is None:
            return True
        need: float = self.ledger.demand(self._roster.active, plus=agent)
        if (ahead := self.window.ahead) is not None:
            steps = ahead.resume if agent.started else ahead.start
            if ahead.idle is not None and not self.generating:
                steps = min(steps, ahead.idle)
            need += self.ledger.ahead(self._roster.active, steps, plus=agent)
        return need <= self.window.tokens

    def _idle(self, now: float) -> bool:
        """Whether the engine has had nothing to do for as long as the window puts up with."""
        grace = self.window.idle_grace_seconds
        return grace is not None and not self.generating and now - self._called_at >= grace

    def _overfull(self) -> bool:
        """Whether those who stay are still too much, leaving one at least."""
        staying = self._roster.active.agents - self._roster.leaving.agents
        if staying <= 1:
            return False
        if self.window.agents is not None and staying > self.window.agents:
            return True
        if self.window.tokens is None:
            return False
        need: float = self.ledger.demand(self._roster.active, less=self._roster.leaving)
        if (ahead := self.window.ahead) is not None:
            need += self.ledger.ahead(self._roster.active, ahead.stay, less=self._roster.leaving)
        return need > self.window.tokens

    # ---- moves ----------------------------------------------------------------------------------

    def _settle(self, agent: Agent, now: float, events: list[Event]) -> None:
        """After a fact about `agent`: pause it if it is due, then restore the rules for everyone."""
        if agent.status is AgentStatus.TOOL_EXECUTION:
            if agent.manual:
                self._pause(agent, now, PauseReason.MANUAL, events)
            elif agent.leaving:
                self._pause(agent, now, PauseReason.SHRINK, events)
            elif self.window.is_request_limit:
                self._pause(agent, now, PauseReason.RECLAIM, events)
        self._unmark(now, events)
        self._shrink(now, events)
        self._pump(now, events)

    def _shrink(self, now: float, events: list[Event]) -> None:
        """Pause at boundaries, mark the rest to leave at theirs, until those who stay fit."""
        while self._overfull():
            if (idle := self._roster.at_boundary.first()) is not None:
                self._pause(idle, now, PauseReason.SHRINK, events)
            elif (busy := self._roster.generating.first()) is not None:
                self._roster.take_out(busy)
                busy.leaving = True
                self._roster.put_in(busy, now)
            else:
                return

    def _unmark(self, now: float, events: list[Event]) -> None:
        """Room appeared: whoever was to leave last may stay after all."""
        while (agent := self._roster.marked.first()) is not None:
            self._roster.take_out(agent)
            agent.leaving = False
            self._roster.put_in(agent, now)
            if self._overfull():
                self._roster.take_out(agent)
                agent.leaving = True
                self._roster.put_in(agent, now)
                return
            self._start_waiting(agent, now, events)

    def _pump(self, now: float, events: list[Event]) -> None:
        """Admit waiters, oldest overdue first, as long as they fit or a place can be reclaimed."""
        while (agent := self._roster.next_waiter(now, self.max_wait_seconds)) is not None:
            if not self._fits(agent, now) and not self._reclaim(now, events):
                return
            if agent in self._roster.waiting and self._fits(agent, now):
                self._admit(agent, now, events)

    def _reclaim(self, now: float, events: list[Event]) -> bool:
        """Take back the place that has been idle longest, if its grace is over."""
        grace, idle = self.window.grace_seconds, self._roster.idle_for(now)
        idle_grace = self.window.idle_grace_seconds
        if idle_grace is not None and not self.generating:
            grace = idle_grace if grace is None else min(grace, idle_grace)
        if grace is None or idle is None or idle[1] < grace:
            return False
        self._pause(idle[0], now, PauseReason.RECLAIM, events)
        return True

    def _admit(self, agent: Agent, now: float, events: list[Event]) -> None:
        """Give `agent` a place and start all its waiting calls."""
        self._roster.dequeue(agent)
        first = not agent.started
        if first:
            agent.admitted_order = next(self._admissions)
            self.census.admitted += 1
            self._pacer.started()
        events.append(Admitted(now, agent.agent_id, now - agent.waiting_since, first))
        self._start_waiting(agent, now, events)
        self._roster.put_in(agent, now)

    def _start_waiting(self, agent: Agent, now: float, events: list[Event]) -> None:
        """Start the calls that waited for the agent's place."""
        if not agent.calls_waiting:
            return
        for context in agent.contexts.values():
            for ticket, since in context.waiting.items():
                self._start(agent, context, ticket, since, now, events)
            context.waiting.clear()
        agent.calls_waiting = 0

    def _start(
        self, agent: Agent, context: Context, ticket: Ticket, since: float, now: float, events: list[Event]
    ) -> None:
        context.in_flight.add(ticket)
        agent.calls_in_flight += 1
        self._called_at = now
        self.timing.started(ticket, context, now, now - since, self.generating + 1)
        events.append(Granted(now, context.context_id, ticket, now - since))

    def _pause(self, agent: Agent, now: float, reason: PauseReason, events: list[Event]) -> None:
        """Take the place of an agent at a boundary; calls that wait meanwhile queue for the next one."""
        self._roster.take_out(agent)
        agent.leaving = False
        agent.status = AgentStatus.PAUSED
        self.ledger.cooled(agent)
        events.append(Paused(now, agent.agent_id, reason))
        self._enqueue(agent, now)

    def _enqueue(self, agent: Agent, now: float) -> None:
        self._roster.enqueue(agent, now, self.window)

    def _close(self, agent: Agent, context: Context, now: float, events: list[Event]) -> None:
        """End everything that `context` has open and forget it."""
        events += [Refused(now, context.context_id, ticket) for ticket in context.waiting]
        for ticket in (*context.waiting, *context.in_flight):
            del self._calls[ticket]
            self.timing.forget(ticket)
        agent.calls_waiting -= len(context.waiting)
        agent.calls_in_flight -= len(context.in_flight)
        self.ledger.close(agent, context)
