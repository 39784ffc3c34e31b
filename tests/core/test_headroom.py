"""Token windows with room for steps; what the ledger knows of growth; grace while the engine is idle."""

from __future__ import annotations

import pytest

from concur_agents.admission import Admission
from concur_agents.errors import InvalidValueError
from concur_agents.events import Admitted, Granted, Paused
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import PauseReason, Usage
from concur_agents.signals import StepsAhead, Window


class Bench:
    """An admission with a block size of 1, told by tokens."""

    def __init__(self, window: Window) -> None:
        self.admission = Admission(window, ledger=Ledger(block_size=1))
        self.tickets: dict[str, int] = {}
        self.events: list = []

    def ask(self, name: str, now: float = 0.0) -> bool:
        """Whether it may go ahead at once."""
        if name not in self.admission.census:
            self.admission.open(name, now)
        ticket, events = self.admission.request(name, now)
        self.tickets[name] = ticket
        self.events += events
        return any(isinstance(e, Granted) and e.ticket == ticket for e in events)

    def answer(self, name: str, context: int, now: float = 0.0, **usage) -> list:
        events = self.admission.end(self.tickets.pop(name), now, Usage(context - 1, 1, **usage))
        self.events += events
        return events

    def tokens(self, tokens: int, **options) -> list:
        return self.admission.set_window(Window(tokens=tokens, **options), 0.0)


def admitted(events: list) -> list[str]:
    return [e.agent_id for e in events if isinstance(e, Admitted)]


def paused(events: list) -> list[str]:
    return [e.agent_id for e in events if isinstance(e, Paused)]


def grown(names: str, first: int, step: int, **options) -> Bench:
    """Agents that have made two calls: they hold first + step tokens each, and grow by `step`."""
    bench = Bench(Window(**options))
    for name in names:
        assert bench.ask(name)
        bench.answer(name, first)
        assert bench.ask(name)
        bench.answer(name, first + step)
    return bench


def test_growth_is_that_of_later_steps_and_of_first_ones_before_any():
    ledger = Bench(Window()).admission.ledger
    assert ledger.growth_tokens is None
    bench = Bench(Window())
    bench.ask("a")
    bench.answer("a", 100)
    assert bench.admission.ledger.growth_tokens == 100
    for length in (110, 130):
        bench.ask("a")
        bench.answer("a", length)
    assert bench.admission.ledger.growth_tokens == 15


def test_what_was_trimmed_or_rewritten_is_no_growth():
    bench = grown("a", 100, 10)
    for length, rewritten in ((60, False), (200, True)):
        bench.ask("a")
        bench.answer("a", length, rewritten=rewritten)
    assert bench.admission.ledger.growth_tokens == 10


def test_residency_is_what_a_trajectory_held_summed_up_over_its_steps():
    bench = grown("ab", 100, 10)
    assert bench.admission.ledger.residency_tokens is None
    bench.admission.finish("a", 0.0)
    assert (bench.admission.ledger.residency_tokens, bench.admission.ledger.ended) == (210, 1)


def test_residency_counts_sub_agents_while_they_live_and_not_the_shared_prefix():
    bench = Bench(Window())
    bench.admission.ledger.shared_prefix_tokens = 50
    bench.ask("a")
    bench.answer("a", 100)  # 50 of its own
    bench.admission.open("sub", 0.0, parent="a")
    bench.ask("sub")
    bench.answer("sub", 90)  # 40 more
    bench.admission.finish("sub", 0.0)
    bench.ask("a")
    bench.answer("a", 150)  # 100 of its own
    bench.admission.finish("a", 0.0)
    # 50, 90 and 100 at its three calls, 80 on average, for two steps of its own.
    assert bench.admission.ledger.residency_tokens == 160


@pytest.mark.parametrize(("tokens", "starts"), [(110 + 100 + 2 * 3 * 10 - 1, False), (270, True)])
def test_a_new_agent_needs_room_for_everyones_next_steps(tokens, starts):
    # 110 held, 100 for a first answer like those seen, 3 steps of 10 for each of the two.
    bench = grown("a", 100, 10)
    bench.tokens(tokens, ahead=StepsAhead(start=3))
    assert bench.ask("b") is starts


@pytest.mark.parametrize(("tokens", "comes"), [(259, False), (260, True)])
def test_one_that_was_paused_needs_its_own(tokens, comes):
    # 2 x 110 held, 2 steps of 10 for each of the two.
    bench = grown("ab", 100, 10)
    bench.tokens(200)
    bench.tokens(tokens, ahead=StepsAhead(start=9, resume=2))
    assert bench.ask("b") is comes


def test_less_room_will_do_while_the_engine_has_nothing_to_do():
    bench = grown("ab", 100, 10)  # both at a boundary, 110 tokens each
    ahead = StepsAhead(start=9, idle=1)
    bench.tokens(220 + 100 + 3 * 10 - 1, ahead=ahead)
    assert not bench.ask("c"), "one step of 10 each does not fit"
    assert admitted(bench.tokens(220 + 100 + 3 * 10, ahead=ahead)) == ["c"]
    bench.tokens(220 + 200 + 4 * 90 - 1, ahead=ahead)
    assert not bench.ask("d"), "now c is in flight, and nine steps of four do not fit"


def test_shrinks_when_the_next_steps_do_not_fit_newest_first():
    bench = grown("abc", 100, 10)
    assert paused(bench.tokens(3 * 110 + 30, ahead=StepsAhead(stay=1))) == []
    assert paused(bench.tokens(3 * 110 + 29, ahead=StepsAhead(stay=1))) == ["c"]
    assert paused(bench.tokens(1, ahead=StepsAhead(stay=1))) == ["b"]  # one may always run


def test_those_whose_length_is_not_known_yet_count_as_much_as_the_others_did():
    bench = grown("a", 100, 10)
    bench.tokens(310, ahead=StepsAhead())
    assert [bench.ask(name) for name in "bcd"] == [True, True, False]  # 110 held, 100 each for b and c


def test_without_steps_ahead_nothing_changes_for_known_agents():
    bench = grown("ab", 100, 10)
    assert paused(bench.tokens(220)) == []


def test_a_place_is_reclaimed_early_only_while_nothing_is_in_flight():
    window = Window(agents=2, idle_grace_seconds=5.0)
    bench = Bench(window)
    for name in "ab":
        bench.ask(name)
    bench.answer("a", 10, now=0.0)
    assert not bench.ask("c", now=1.0)
    assert not bench.admission.advance(10.0), "b is still in flight"
    events = bench.answer("b", 10, now=20.0)
    assert [(e.agent_id, e.reason) for e in events if isinstance(e, Paused)] == [("a", PauseReason.RECLAIM)]
    assert admitted(events) == ["c"]


def test_the_shorter_grace_counts_while_idle():
    for grace, idle, seconds in ((30.0, 5.0, 5.0), (3.0, 5.0, 3.0)):
        bench = Bench(Window(agents=1, grace_seconds=grace, idle_grace_seconds=idle))
        bench.ask("a")
        bench.answer("a", 10, now=0.0)
        bench.ask("b", now=0.0)
        assert not admitted(bench.admission.advance(seconds - 0.1))
        assert admitted(bench.admission.advance(seconds)) == ["b"]


@pytest.mark.parametrize("field", ["start", "resume", "stay", "idle"])
def test_bad_steps_are_refused(field):
    with pytest.raises(InvalidValueError, match=f"ahead.{field}="):
        StepsAhead(**{field: -1})


def test_bad_idle_grace_is_refused():
    with pytest.raises(InvalidValueError, match="idle_grace_seconds"):
        Window(idle_grace_seconds=-1)
