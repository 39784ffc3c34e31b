"""Trajectories with sub-agents under any sequence of moves: nobody waits for a place its own family holds."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concur_agents.admission import Admission
from concur_agents.events import Event, Finished, Granted, Paused, Refused
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import Outcome, PauseReason, Usage
from concur_agents.signals import Window

anything = st.data()


class Families(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.gate = Admission(Window(agents=1), ledger=Ledger(block_size=16), max_wait_seconds=50)
        self.opened = 0
        self.waiting: set[int] = set()
        self.in_flight: set[int] = set()
        self.owner: dict[int, str] = {}

    def take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Granted):
                self.waiting.discard(event.ticket)
                self.in_flight.add(event.ticket)
            elif isinstance(event, Refused):
                self.waiting.remove(event.ticket)
            elif isinstance(event, Finished):
                gone = {ticket for ticket, name in self.owner.items() if name == event.agent_id}
                self.in_flight -= gone
                assert not self.waiting & gone, "a waiting call was neither granted nor refused"
            elif isinstance(event, Paused):
                assert self.gate.census.find(event.agent_id)[0].calls_in_flight == 0

    def names(self) -> list[str]:
        return [name for agent in self.gate.census.agents() for name in agent.contexts]

    @rule(data=anything, child=st.booleans(), tokens=st.integers(0, 100))
    def open_and_ask(self, data: st.DataObject, child: bool, tokens: int) -> None:
        parent = data.draw(st.sampled_from(self.names())) if child and self.names() else None
        name = f"n{self.opened}"
        self.opened += 1
        self.gate.open(name, self.now, parent=parent, context_tokens=tokens)
        self.ask(name)

    def ask(self, name: str) -> None:
        ticket, events = self.gate.request(name, self.now)
        self.owner[ticket] = name
        self.waiting.add(ticket)
        self.take(events)

    @precondition(lambda self: self.names())
    @rule(data=anything)
    def another_call(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from(self.names())))

    @precondition(lambda self: self.in_flight)
    @rule(data=anything, again=st.booleans(), prompt=st.integers(0, 200))
    def a_call_ends(self, data: st.DataObject, again: bool, prompt: int) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.in_flight.remove(ticket)
        self.take(self.gate.end(ticket, self.now, Usage(prompt, 5)))
        if again:
            self.ask(self.owner[ticket])

    @precondition(lambda self: self.waiting)
    @rule(data=anything)
    def a_caller_gives_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(ticket)
        self.take(self.gate.abandon(ticket, self.now))

    @precondition(lambda self: self.names())
    @rule(data=anything)
    def one_gives_back(self, data: st.DataObject) -> None:
        """By any name of the family; what its members have in flight keeps the place."""
        name = data.draw(st.sampled_from(self.names()))
        agent, _ = self.gate.census.find(name)
        kept = agent.calls_in_flight or not agent.status.is_active
        events = self.gate.give_back(name, self.now)
        gone = [e.agent_id for e in events if isinstance(e, Paused) and e.reason is PauseReason.GIVEN_BACK]
        assert gone == ([] if kept else [agent.agent_id])
        self.take(events)

    @precondition(lambda self: len(self.names()) > 3)
    @rule(data=anything, outcome=st.sampled_from(Outcome))
    def one_finishes(self, data: st.DataObject, outcome: Outcome) -> None:
        self.take(self.gate.finish(data.draw(st.sampled_from(self.names())), self.now, outcome))

    @rule(
        agents=st.integers(1, 4), tokens=st.none() | st.integers(1, 400), grace=st.sampled_from([None, 0, 5])
    )
    def set_window(self, agents: int, tokens: int | None, grace: float | None) -> None:
        self.take(self.gate.set_window(Window(agents, tokens, grace), self.now))

    @rule(seconds=st.floats(0.5, 60))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.gate.advance(self.now))

    @invariant()
    def nobody_waits_for_a_place_its_own_lineage_uses(self) -> None:
        for agent in self.gate.census.agents():
            for context in agent.contexts.values():
                if context.waiting:
                    assert not any(above.in_flight for above in context.lineage())
                    assert not agent.status.is_active or agent.draining

    @invariant()
    def places_and_calls_are_what_they_are_said_to_be(self) -> None:
        agents = self.gate.census.agents()
        flying = {t for agent in agents for context in agent.contexts.values() for t in context.in_flight}
        queued = {t for agent in agents for context in agent.contexts.values() for t in context.waiting}
        assert (flying, queued) == (self.in_flight, self.waiting)
        assert self.gate.active == sum(agent.status.is_active for agent in agents)
        if queued:
            assert self.gate.active > 0
        for agent in agents:
            assert agent.calls_in_flight == sum(len(c.in_flight) for c in agent.contexts.values())
            assert agent.blocks == sum(-(-c.tokens // 16) for c in agent.contexts.values())

    def teardown(self) -> None:
        for agent in self.gate.census.agents():
            self.take(self.gate.finish(agent.agent_id, self.now))
        census = self.gate.census
        assert (self.gate.active, self.gate.waiting, self.gate.demand_tokens, len(census)) == (0, 0, 0, 0)
        assert not self.waiting
        assert not self.in_flight
        assert census.admitted == sum(census.ended.values())


Families.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestFamilies = Families.TestCase
