"""The machine against the naive reference, and the invariants after every move."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from concur_agents.admission import Admission
from concur_agents.events import Admitted, Event, Finished, Granted, Paused, Refused
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import AgentStatus, Outcome, PauseReason, Usage
from concur_agents.signals import Window
from tests.core.reference import NaiveAdmission

BLOCK, MAX_WAIT = 16, 50.0
windows = st.builds(
    Window,
    agents=st.none() | st.integers(1, 5),
    tokens=st.none() | st.integers(1, 400),
    grace_seconds=st.sampled_from([None, None, 0.0, 5.0]),
)
usages = st.none() | st.builds(Usage, prompt_tokens=st.integers(0, 150), completion_tokens=st.integers(0, 20))


class AgainstReference(RuleBasedStateMachine):
    """Every call is made on both; statuses and grants must be the same afterwards."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        window = Window(agents=2)
        self.fast = Admission(window, ledger=Ledger(block_size=BLOCK), max_wait_seconds=MAX_WAIT)
        self.slow = NaiveAdmission(window, BLOCK, MAX_WAIT)
        self.granted: set[int] = set()
        self.opened = 0
        self.counted = dict.fromkeys(("admitted", "finished", "never"), 0)
        self.first_admissions: set[str] = set()
        self.in_flight: set[int] = set()

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Granted):
                assert event.ticket not in self.granted, "granted twice"
                self.granted.add(event.ticket)
                self.in_flight.add(event.ticket)
            elif isinstance(event, Admitted) and event.first:
                self.first_admissions.add(event.agent_id)
            elif isinstance(event, Paused):
                # Invariant 2: whoever is paused has no call in flight.
                agent, _ = self.fast.census.find(event.agent_id)
                assert agent.calls_in_flight == 0

    def names(self) -> list[str]:
        return list(self.slow.agents)

    @rule(target=tickets, priorities=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def start(self, priorities: list[int]):
        """New agents, each asking for its first step."""
        return multiple(*[self.ask(self.open(priority)) for priority in priorities])

    def open(self, priority: int) -> str:
        name = f"a{self.opened}"
        self.opened += 1
        self.fast.open(name, self.now, priority=priority)
        self.slow.open(name, priority)
        return name

    def ask(self, name: str) -> int:
        ticket, events = self.fast.request(name, self.now)
        self.take(events)
        assert self.slow.request(name, self.now) == ticket
        return ticket

    @precondition(lambda self: self.slow.agents)
    @rule(target=tickets, data=st.data())
    def request(self, data: st.DataObject):
        return self.ask(data.draw(st.sampled_from(self.names())))

    @precondition(lambda self: self.in_flight)
    @rule(target=tickets, data=st.data(), usage=usages)
    def step(self, data: st.DataObject, usage: Usage | None):
        """A call ends, and its agent asks for the next one."""
        ticket = data.draw(st.sampled_from(sorted(self.in_flight)))
        name = self.slow.tickets[ticket].name
        self.over(ticket, usage)
        return self.ask(name)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), usage=usages)
    def boundary(self, data: st.DataObject, usage: Usage | None):
        self.over(data.draw(st.sampled_from(sorted(self.in_flight))), usage)

    @rule(ticket=consumes(tickets), usage=usages)
    def end(self, ticket: int, usage: Usage | None) -> None:
        """Any ticket, waiting, in flight or over."""
        self.over(ticket, usage)

    def over(self, ticket: int, usage: Usage | None) -> None:
        self.in_flight.discard(ticket)
        self.take(self.fast.end(ticket, self.now, usage))
        self.slow.end(ticket, self.now, usage)
        assert self.fast.end(ticket, self.now, usage) == []  # over is over

    @precondition(lambda self: len(self.slow.agents) > 3)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def finish(self, data: st.DataObject, outcome: Outcome) -> None:
        name = data.draw(st.sampled_from(self.names()))
        agent = self.slow.agents[name]
        self.in_flight -= agent.in_flight
        waiting = set(agent.waiting)
        events = self.fast.finish(name, self.now, outcome)
        assert {e.ticket for e in events if isinstance(e, Refused)} == waiting
        assert [e.outcome for e in events if isinstance(e, Finished)] == [outcome]
        self.take(events)
        self.slow.finish(name, self.now)
        assert self.fast.finish(name, self.now, outcome) == []  # idempotent

    @precondition(lambda self: len(self.slow.agents) > 1)
    @rule(data=st.data(), on=st.booleans())
    def pause_or_resume(self, data: st.DataObject, on: bool) -> None:
        name = data.draw(st.sampled_from(self.names()))
        self.take((self.fast.pause if on else self.fast.resume)(name, self.now))
        (self.slow.pause if on else self.slow.resume)(name, self.now)

    @precondition(lambda self: self.slow.agents)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """Anyone, at a boundary or not; those at one go at once."""
        self.leave_place(data.draw(st.sampled_from(self.names())))

    def leave_place(self, name: str) -> None:
        busy, active = bool(self.slow.agents[name].in_flight), self.slow.agents[name].active
        events = self.fast.give_back(name, self.now)
        reasons = [e.reason for e in events if isinstance(e, Paused) and e.agent_id == name]
        assert reasons == ([PauseReason.GIVEN_BACK] if active and not busy else [])
        if not reasons:
            assert events == [], "a call in flight, or no place to give"
        self.take(events)
        self.slow.give_back(name, self.now)

    @rule(window=windows)
    def set_window(self, window: Window) -> None:
        self.take(self.fast.set_window(window, self.now))
        self.slow.set_window(window, self.now)

    @rule(seconds=st.floats(0.5, 60))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.fast.advance(self.now))
        self.slow.pump(self.now)

    @invariant()
    def agrees_with_the_reference(self) -> None:
        assert {a.agent_id: a.status for a in self.fast.census.agents()} == {
            a.name: a.status for a in self.slow.agents.values()
        }
        assert self.granted == self.slow.granted
        assert self.fast.demand_tokens == self.slow.need(self.slow.actives())
        assert self.fast.waiting == len(self.slow.waiters())

    @invariant()
    def fits_the_window_or_drains(self) -> None:
        window = self.fast.window
        staying = self.slow.staying()
        if len(staying) > 1:
            assert window.agents is None or len(staying) <= window.agents
            assert window.tokens is None or self.slow.need(staying) <= window.tokens
        # Whoever does not stay has a call in flight: the shrink waits for boundaries only.
        for agent in self.slow.actives():
            if agent not in staying:
                assert agent.in_flight

    @invariant()
    def somebody_runs_if_anyone_waits(self) -> None:
        if self.fast.waiting:
            assert self.fast.active > 0

    @invariant()
    def no_place_without_an_agent(self) -> None:
        assert self.fast.active == sum(a.status.is_active for a in self.fast.census.agents())
        assert self.fast.generating == sum(
            a.status is AgentStatus.GENERATING for a in self.fast.census.agents()
        )

    @invariant()
    def counters_conserve(self) -> None:
        census = self.fast.census
        assert census.admitted == len(self.first_admissions)
        assert census.admitted == sum(census.ended.values()) + census.inside
        assert census.inside == sum(a.started for a in census.agents())

    def teardown(self) -> None:
        """Everything that was opened can be finished, and nothing is left."""
        for name in self.names():
            self.finish_quietly(name)
        assert self.fast.active == self.fast.waiting == self.fast.demand_tokens == 0
        assert len(self.fast.census) == 0
        assert not self.fast._calls
        self.counters_conserve()

    def finish_quietly(self, name: str) -> None:
        self.in_flight -= self.slow.agents[name].in_flight
        self.take(self.fast.finish(name, self.now))
        self.slow.finish(name, self.now)
        self.agrees_with_the_reference()


AgainstReference.TestCase.settings = settings(max_examples=150, stateful_step_count=80, deadline=None)
TestAgainstReference = AgainstReference.TestCase


@pytest.mark.parametrize("seed", range(40))
def test_long_random_histories_agree(seed: int) -> None:
    """Weighted towards what agents really do, with several calls of one agent at once and long histories."""
    rng = random.Random(seed)
    pair = AgainstReference()

    def some_usage() -> Usage | None:
        return rng.choice([None, Usage(rng.randrange(200), rng.randrange(20))])

    def window() -> Window:
        return Window(
            agents=rng.choice([None, 1, 2, 3, 6]),
            tokens=rng.choice([None, None, 100, 300, 600]),
            grace_seconds=rng.choice([None, None, 0, 4]),
        )

    def in_flight() -> int | None:
        return rng.choice(sorted(pair.in_flight)) if pair.in_flight else None

    for _ in range(400):
        pair.now += rng.choice([0, 0.5, 3])
        move, names, ticket = rng.random(), pair.names(), in_flight()
        if move < 0.15 or not names:
            pair.ask(pair.open(rng.randrange(2)))
        elif move < 0.45 and ticket is not None:
            name = pair.slow.tickets[ticket].name
            pair.over(ticket, some_usage())
            if rng.random() < 0.8:
                pair.ask(name)
        elif move < 0.60:
            pair.ask(rng.choice(names))
        elif move < 0.66 and pair.slow.tickets:
            pair.over(rng.choice(sorted(pair.slow.tickets)), None)
        elif move < 0.70 and len(names) > 3:
            pair.finish_quietly(rng.choice(names))
        elif move < 0.74:
            pair.leave_place(rng.choice(names))
        elif move < 0.82:
            name, verb = rng.choice(names), rng.choice(["pause", "resume", "resume"])
            pair.take(getattr(pair.fast, verb)(name, pair.now))
            getattr(pair.slow, verb)(name, pair.now)
        elif move < 0.92:
            new = window()
            pair.take(pair.fast.set_window(new, pair.now))
            pair.slow.set_window(new, pair.now)
        else:
            pair.now += rng.choice([1, 10, 60])
            pair.take(pair.fast.advance(pair.now))
            pair.slow.pump(pair.now)
        pair.agrees_with_the_reference()
        pair.fits_the_window_or_drains()
        pair.somebody_runs_if_anyone_waits()
        pair.counters_conserve()
    pair.teardown()
