"""New agents start at the pace of rounds; who was paused comes back in the order that the window names."""

from __future__ import annotations

import pytest

from concur_agents.admission import Admission
from concur_agents.errors import InvalidValueError
from concur_agents.events import Admitted
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import Usage
from concur_agents.signals import Pace, Window


class Bench:
    """Agents on an admission with a block size of 1."""

    def __init__(self, window: Window) -> None:
        self.admission = Admission(window, ledger=Ledger(block_size=1))
        self.tickets: dict[str, int] = {}
        self.admitted: list[str] = []

    def _see(self, events: list) -> None:
        self.admitted += [event.agent_id for event in events if isinstance(event, Admitted)]

    def ask(self, *names: str, now: float = 0.0) -> None:
        for name in names:
            if name not in self.admission.census:
                self.admission.open(name, now)
            self.tickets[name], events = self.admission.request(name, now)
            self._see(events)

    def step(self, *names: str, now: float = 0.0, tokens: int = 10) -> None:
        """The calls of `names` end, and each asks for the next one."""
        for name in names:
            self._see(self.admission.end(self.tickets.pop(name), now, Usage(tokens - 1, 1)))
            self.ask(name, now=now)

    def window(self, now: float = 0.0, **options) -> None:
        self._see(self.admission.set_window(Window(**options), now))


def started(names: str, **options) -> Bench:
    """Agents a and b run, the others of `names` wait; then the window is another one."""
    bench = Bench(Window(agents=2))
    bench.ask(*names)
    assert bench.admitted == ["a", "b"]
    bench.window(**options)
    return bench


def test_one_starts_for_each_round_and_no_sooner():
    bench = started("abcde", pace=Pace(1.0))
    bench.step("a")
    assert bench.admitted == ["a", "b"], "half a round of two agents"
    bench.step("b")
    assert bench.admitted == ["a", "b", "c"]
    bench.step("a", "b")
    assert bench.admitted == ["a", "b", "c"], "two thirds of a round of three"
    bench.step("c")
    assert bench.admitted == ["a", "b", "c", "d"]


def test_a_fast_pace_lets_several_in_at_once():
    bench = started("abcdefgh", pace=Pace(3.0, burst=3))
    bench.step("a")
    assert bench.admitted == ["a", "b", "c"], "one and a half"
    bench.step("b")
    assert bench.admitted == ["a", "b", "c", "d"], "half of it kept, and a third of three more"


def test_what_is_not_used_is_kept_up_to_the_burst_only():
    bench = started("ab", pace=Pace(1.0, burst=2))
    for _ in range(10):
        bench.step("a", "b")
    bench.ask("c", "d", "e")
    assert bench.admitted == ["a", "b", "c", "d"]


def test_a_failed_call_and_a_sub_agents_call_are_no_step():
    bench = started("abc", pace=Pace(1.0))
    bench.admission.open("sub", 0.0, parent="a")
    bench.ask("sub")
    for _ in range(5):
        bench.step("sub")
        bench.admission.end(bench.tickets.pop("b"), 0.0)
        bench.ask("b")
    assert bench.admitted == ["a", "b"]


def test_the_pace_does_not_hold_back_who_was_paused():
    bench = started("ab", agents=1)
    bench.step("a", "b")
    bench.admitted.clear()
    bench.window(pace=Pace(0.0))
    assert bench.admitted == ["b"]


def test_without_a_pace_nobody_is_held_back():
    bench = started("abcd", pace=Pace(0.0))
    bench.window()
    assert bench.admitted == list("abcd")


def test_the_pace_is_off_while_the_engine_has_nothing_to_do():
    bench = started("abcd", pace=Pace(0.0), idle_grace_seconds=2.0)
    for name in "ab":
        bench.admission.end(bench.tickets.pop(name), 1.0, Usage(9, 1))
    bench._see(bench.admission.advance(2.9))
    assert bench.admitted == ["a", "b"]
    bench._see(bench.admission.advance(3.0))
    assert bench.admitted == ["a", "b", "c"], "and then it has something to do"


def test_somebody_always_runs():
    bench = started("abc", pace=Pace(0.0))
    for name in "ab":
        bench._see(bench.admission.finish(name, 0.0))
    assert bench.admitted == ["a", "b", "c"]


@pytest.mark.parametrize(("resume", "first"), [(None, "b"), ("smallest", "c"), ("largest", "b")])
def test_the_window_may_name_who_comes_back_first(resume, first):
    bench = Bench(Window())
    bench.ask("a", "b", "c")
    for name, tokens in (("b", 60), ("c", 20)):
        bench.admission.end(bench.tickets.pop(name), 0.0, Usage(tokens - 1, 1))
    bench.window(agents=1)
    bench.ask("b", "c")
    bench.admitted.clear()
    bench.window(agents=1, resume=resume)
    bench._see(bench.admission.finish("a", 0.0))
    assert bench.admitted == [first]


@pytest.mark.parametrize(("field", "bad"), [("per_round", -1), ("burst", 0.5)])
def test_a_bad_pace_is_refused(field, bad):
    with pytest.raises(InvalidValueError, match=f"pace.{field}="):
        Pace(**{"per_round": 1.0, field: bad})


def test_an_unknown_order_is_refused():
    with pytest.raises(InvalidValueError, match=r"window\.resume='newest' is unknown: expected"):
        Window(resume="newest")
