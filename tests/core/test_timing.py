"""What the times of calls tell: load and the price of computing again, against engines made up for it."""

from __future__ import annotations

import random

import pytest

from concur_agents.lifecycle import Context, Usage
from concur_agents.timing import Timing


class MadeUp:
    """Calls that take `seconds(computed, generated, generating)`, one after the other, tools between."""

    def __init__(self, seconds, tool_seconds: float = 0.0, noise: float = 0.0) -> None:
        self.timing = Timing()
        self._seconds, self._tool, self._noise = seconds, tool_seconds, noise
        self._rng = random.Random(1)
        self._context = Context("a", calls=1)
        self._now = 0.0
        self._ticket = 0

    def call(self, computed: int, generated: int, generating: int = 1, *, waited: float = 0.0) -> None:
        self._ticket += 1
        self.timing.started(self._ticket, self._context, self._now, waited, generating)
        took = self._seconds(computed, generated, generating) * (1 + self._noise * self._rng.uniform(-1, 1))
        self._now += took
        usage = Usage(5000 + computed, generated, 5000)
        self.timing.ended(self._ticket, self._now, usage, generating)
        self._now += self._tool


def test_load_is_one_before_anything_is_known():
    assert Timing().load == 1.0
    assert Timing().recompute_tokens is None


@pytest.mark.parametrize(("power", "slope"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
def test_load_is_how_much_slower_calls_get_with_more_agents(power, slope):
    engine = MadeUp(lambda _computed, _generated, generating: generating**power)
    for generating in (1, 2, 4, 8, 16) * 10:
        engine.call(100, 10, generating)
    assert engine.timing.load == pytest.approx(slope, abs=0.05)


def test_load_stays_cautious_while_concurrency_never_changed():
    engine = MadeUp(lambda *_: 1.0)
    for _ in range(100):
        engine.call(100, 10, 4)
    assert engine.timing.load == pytest.approx(1.0)


def test_tools_make_load_small():
    engine = MadeUp(lambda _computed, _generated, generating: generating / 4, tool_seconds=8.5)
    for generating in (1, 2, 4, 8) * 10:
        engine.call(100, 10, generating)
    # A call takes 0.94 s on average, a round 9.44 s.
    assert engine.timing.load == pytest.approx(0.1, abs=0.02)


def test_recompute_tokens_are_bandwidth_times_delay():
    # 1,000 prompt tokens a second, 20 ms a generated one; 300 + 20 tokens and a tool of 4.3 s: rounds of 5 s.
    rng = random.Random(2)
    engine = MadeUp(lambda computed, generated, _: computed / 1000 + generated * 0.02, tool_seconds=4.3)
    for _ in range(40):
        engine.call(rng.randint(200, 400), rng.randint(10, 30))
    assert 4000 < engine.timing.recompute_tokens < 5000, "close to it, on the safe side"


def test_noise_makes_it_cautious():
    rng = random.Random(2)
    engine = MadeUp(lambda computed, generated, _: computed / 1000 + generated * 0.02, 4.3, noise=0.3)
    for _ in range(100):
        engine.call(rng.randint(200, 400), rng.randint(10, 30))
    assert 2500 < engine.timing.recompute_tokens < 4500


def test_when_all_calls_are_alike_all_of_it_is_the_prompts():
    engine = MadeUp(lambda computed, generated, _: computed / 1000 + generated * 0.02, tool_seconds=4.3)
    for _ in range(40):
        engine.call(300, 20)
    # 0.7 s for 300 tokens at most: 429 tokens a second, in rounds of 5 s.
    assert engine.timing.recompute_tokens == pytest.approx(300 / 0.7 * 5, rel=0.05)


def test_rounds_with_a_wait_are_no_rounds():
    engine = MadeUp(lambda computed, _generated, _: computed / 1000, tool_seconds=1.0)
    for _ in range(20):
        engine.call(1000, 1)
    before = engine.timing.recompute_tokens
    engine._now += 500.0  # it was paused
    engine.call(1000, 1, waited=500.0)
    assert engine.timing.recompute_tokens == pytest.approx(before, rel=0.01)


def test_failed_and_forgotten_calls_and_those_of_no_duration_teach_nothing():
    timing, context = Timing(), Context("a", calls=1)
    for ticket in range(20):
        timing.started(ticket, context, 0.0, 1.0, 1)
    for ticket in range(10):
        timing.ended(ticket, 5.0, None, 1)
    timing.ended(10, 0.0, Usage(10, 1, 0), 1)
    timing.forget(11)
    timing.ended(11, 5.0, Usage(10, 1, 0), 1)
    timing.ended(99, 5.0, Usage(10, 1, 0), 1)
    assert (timing.load, timing.recompute_tokens) == (1.0, None)


def test_engines_that_do_not_report_cached_tokens_have_no_price():
    timing, context = Timing(), Context("a", calls=1)
    for ticket in range(40):
        timing.started(ticket, context, float(ticket), 0.0, 1)
        timing.ended(ticket, ticket + 0.5, Usage(1000 + ticket, 10), 1)
    assert timing.recompute_tokens is None
