"""Admission once more, as slowly and plainly as it can be said: lists, sorted anew at every question.

It states the rules for agents without sub-agents; the fast machine must agree with it exactly.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from concur_agents.lifecycle import AgentStatus, Usage
from concur_agents.signals import Window


@dataclass(eq=False)
class Plain:
    name: str
    priority: int
    status: AgentStatus = AgentStatus.QUEUED
    tokens: int = 0
    order: int = -1
    asked_at: float = 0.0
    arrival: int = 0
    grouped_as_returning: bool = False
    boundary: int = 0
    boundary_at: float = 0.0
    manual: bool = False
    leaving: bool = False
    in_flight: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)

    @property
    def active(self) -> bool:
        return self.status.is_active


class NaiveAdmission:
    def __init__(self, window: Window, block_size: int, max_wait: float) -> None:
        self.window, self.block, self.max_wait = window, block_size, max_wait
        self.agents: dict[str, Plain] = {}
        self.tickets: dict[int, Plain] = {}
        self.count = itertools.count(1)
        self.orders = itertools.count()
        self.sequence = itertools.count(1)
        self.granted: set[int] = set()

    # questions
    def actives(self) -> list[Plain]:
        return [a for a in self.agents.values() if a.active]

    def staying(self) -> list[Plain]:
        return [a for a in self.actives() if not (a.leaving or a.manual)]

    def need(self, agents: list[Plain]) -> int:
        return sum(-(-a.tokens // self.block) * self.block for a in agents)

    def waiters(self) -> list[Plain]:
        return [a for a in self.agents.values() if a.waiting and not a.active and not a.manual]

    def overfull(self) -> bool:
        stay = self.staying()
        if len(stay) <= 1:
            return False
        w = self.window
        return (w.agents is not None and len(stay) > w.agents) or (
            w.tokens is not None and self.need(stay) > w.tokens
        )

    def fits(self, agent: Plain) -> bool:
        act = self.actives()
        if not act:
            return True
        w = self.window
        if w.agents is not None and len(act) >= w.agents:
            return False
        return w.tokens is None or self.need([*act, agent]) <= w.tokens

    def pause_key(self, a: Plain) -> tuple[float, ...]:
        return (a.priority, -a.order)

    def wait_key(self, a: Plain) -> tuple[float, ...]:
        if self.window.is_request_limit:
            return (0, -a.priority, a.asked_at, a.arrival)
        if a.order < 0:
            return (1, -a.priority, a.asked_at, a.arrival)
        return (0, -a.priority, a.order, a.arrival)

    # facts
    def open(self, name: str, priority: int) -> None:
        self.agents[name] = Plain(name, priority)

    def request(self, name: str, now: float) -> int:
        a, ticket = self.agents[name], next(self.count)
        self.tickets[ticket] = a
        if a.active and (not (a.leaving or a.manual) or a.in_flight):
            a.in_flight.add(ticket)
            self.granted.add(ticket)
            a.status = AgentStatus.GENERATING
            return ticket
        a.waiting.append(ticket)
        if not a.active and len(a.waiting) == 1 and not a.manual:
            self.arrive(a, now)
        self.pump(now)
        return ticket

    def arrive(self, a: Plain, now: float) -> None:
        a.asked_at, a.arrival = now, next(self.sequence)
        a.grouped_as_returning = a.order >= 0 and not self.window.is_request_limit

    def end(self, ticket: int, now: float, usage: Usage | None) -> None:
        a = self.tickets.pop(ticket, None)
        if a is None:
            return
        if ticket in a.waiting:
            a.waiting.remove(ticket)
            self.pump(now)
            return
        a.in_flight.discard(ticket)
        if usage is not None:
            a.tokens = usage.context_tokens
        self.settle(a, now)

    def pause(self, name: str, now: float) -> None:
        a = self.agents[name]
        if a.manual:
            return
        a.manual, a.leaving = True, False
        if not a.active:
            a.status = AgentStatus.PAUSED
        self.settle(a, now)

    def resume(self, name: str, now: float) -> None:
        a = self.agents[name]
        if not a.manual:
            return
        a.manual = False
        if a.active:
            self.start(a)
        else:
            a.status = AgentStatus.PAUSED if a.order >= 0 else AgentStatus.QUEUED
            if a.waiting:
                self.arrive(a, now)
        self.settle(a, now)

    def give_back(self, name: str, now: float) -> None:
        a = self.agents[name]
        if a.active and not a.in_flight:
            self.drop(a, now)
            self.settle(a, now)

    def finish(self, name: str, now: float) -> None:
        a = self.agents.pop(name)
        for ticket in [*a.waiting, *a.in_flight]:
            del self.tickets[ticket]
        a.status = AgentStatus.COMPLETED
        self.settle(a, now)

    def set_window(self, window: Window, now: float) -> None:
        if window == self.window:
            return
        self.window = window
        self.unmark(now)
        self.shrink(now)
        self.pump(now)

    # consequences
    def settle(self, a: Plain, now: float) -> None:
        if a.active and not a.in_flight:
            if a.status is AgentStatus.GENERATING:
                a.status = AgentStatus.TOOL_EXECUTION
                a.boundary, a.boundary_at = next(self.sequence), now
            if a.manual or a.leaving or self.window.is_request_limit:
                self.drop(a, now)
        self.unmark(now)
        self.shrink(now)
        self.pump(now)

    def drop(self, a: Plain, now: float) -> None:
        a.status, a.leaving = AgentStatus.PAUSED, False
        if a.waiting and not a.manual:
            self.arrive(a, now)

    def unmark(self, now: float) -> None:
        while marked := [a for a in self.actives() if a.leaving]:
            keep = max(marked, key=self.pause_key)
            keep.leaving = False
            if self.overfull():
                keep.leaving = True
                return
            self.start(keep)

    def start(self, a: Plain) -> None:
        for ticket in a.waiting:
            a.in_flight.add(ticket)
            self.granted.add(ticket)
        a.waiting.clear()

    def shrink(self, now: float) -> None:
        while self.overfull():
            idle = [a for a in self.staying() if not a.in_flight]
            busy = [a for a in self.staying() if a.in_flight]
            if idle:
                self.drop(min(idle, key=self.pause_key), now)
            else:
                min(busy, key=self.pause_key).leaving = True

    def pump(self, now: float) -> None:
        while waiters := self.waiters():
            first = min(waiters, key=self.wait_key)
            group = [w for w in waiters if w.grouped_as_returning == first.grouped_as_returning]
            overdue = [w for w in group if now - w.asked_at >= self.max_wait]
            a = min(overdue, key=lambda w: w.arrival) if overdue else first
            if not self.fits(a):
                idle = [b for b in self.actives() if not b.in_flight]
                grace = self.window.grace_seconds
                oldest = min(idle, key=lambda b: b.boundary, default=None)
                if oldest is None or grace is None or now - oldest.boundary_at < grace:
                    return
                self.drop(oldest, now)
                continue
            if a.order < 0:
                a.order = next(self.orders)
            a.status = AgentStatus.GENERATING
            self.start(a)
