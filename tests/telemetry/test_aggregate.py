"""Engines added up over scrapes: restarts, gaps, newcomers, and nothing lost or counted twice."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from concur_agents.signals import EngineReading, Quality
from concur_agents.telemetry.aggregate import Aggregator, Observation


def engine(name="0", hits=None, queries=None, preemptions=None, usage=0.5, **rest) -> EngineReading:
    return EngineReading(
        name, usage, hits, queries, rest.pop("running", 1), rest.pop("waiting", 0), preemptions, **rest
    )


class Watch:
    """An aggregator and its clock."""

    def __init__(self) -> None:
        self.aggregator = Aggregator()
        self.at = 0.0

    def see(self, *engines: EngineReading, **facts):
        self.at += 1
        return self.aggregator.observed(self.at, Observation(engines, **facts))

    def fail(self, reason="refused"):
        self.at += 1
        return self.aggregator.failed(self.at, reason)


@pytest.mark.parametrize("field", ["hits", "queries", "preemptions"])
def test_a_counter_that_goes_down_is_a_restart(field) -> None:
    watch = Watch()
    high = {"hits": 50, "queries": 100, "preemptions": 10}
    first = watch.see(engine(**high))
    assert (first.epoch, first.query_tokens_delta) == (0, None)
    seen = watch.see(engine(**(high | {field: high[field] - 1})))
    assert seen.epoch == 1
    assert (seen.hit_tokens_delta, seen.query_tokens_delta, seen.preemptions_delta) == (None, None, None)
    assert seen.quality is Quality.OK
    seen = watch.see(engine(hits=60, queries=110, preemptions=12))
    assert seen.epoch == 1
    assert seen.query_tokens_delta == (11 if field == "queries" else 10)


def test_the_restart_of_one_engine_drops_the_look_of_all() -> None:
    watch = Watch()
    watch.see(engine("0", 5, 10), engine("1", 5, 10))
    seen = watch.see(engine("0", 8, 20), engine("1", 0, 1))
    assert (seen.epoch, seen.query_tokens_delta) == (1, None)
    assert watch.see(engine("0", 8, 25), engine("1", 2, 4)).query_tokens_delta == 8


def test_an_engine_that_vanishes_is_a_restart_and_one_that_comes_is_counted_from_its_second_look() -> None:
    watch = Watch()
    watch.see(engine("0", 0, 10), engine("1", 0, 10))
    gone = watch.see(engine("0", 0, 15))
    assert (gone.epoch, gone.query_tokens_delta) == (1, None)
    back = watch.see(engine("0", 0, 21), engine("1", 0, 500))
    assert (back.epoch, back.query_tokens_delta) == (1, 6)
    assert watch.see(engine("0", 0, 21), engine("1", 0, 503)).query_tokens_delta == 3


def test_failures_after_an_answer_are_stale_with_the_last_gauges() -> None:
    watch = Watch()
    watch.see(engine("0", 1, 10, usage=0.4, capacity_tokens=99))
    watch.see(engine("0", 2, 20, usage=0.6, capacity_tokens=99, block_size=16, running=7, waiting=2))
    watch.fail()
    stale = watch.fail("refused")
    assert (stale.quality, stale.at, stale.epoch) == (Quality.STALE, 4.0, 0)
    assert (stale.usage, stale.running, stale.waiting, stale.capacity_tokens) == (0.6, 7, 2, 99)
    assert (stale.hit_tokens_delta, stale.query_tokens_delta, stale.preemptions_delta) == (None, None, None)
    assert stale.reason == "refused (last answer 2 s ago)"
    back = watch.see(engine("0", 12, 50))
    assert (back.quality, back.reason) == (Quality.OK, "")
    assert (back.hit_tokens_delta, back.query_tokens_delta) == (10, 30)


def test_a_restart_during_an_outage_is_seen_after_it() -> None:
    watch = Watch()
    watch.see(engine("0", 10, 20))
    watch.fail()
    seen = watch.see(engine("0", 1, 2))
    assert (seen.quality, seen.epoch, seen.query_tokens_delta) == (Quality.OK, 1, None)


def test_failures_before_any_answer_are_absent() -> None:
    seen = Watch().fail("connection refused")
    assert (seen.quality, seen.usage, seen.capacity_tokens) == (Quality.ABSENT, None, None)
    assert seen.reason == "connection refused"


def test_an_answer_without_engines_is_absent_even_after_others_and_their_return_is_another_epoch() -> None:
    watch = Watch()
    watch.see(engine("0", 1, 2))
    gone = watch.see(missing="switch it on")
    assert (gone.quality, gone.reason, gone.usage, gone.epoch) == (Quality.ABSENT, "switch it on", None, 1)
    assert watch.fail().quality is Quality.ABSENT
    back = watch.see(engine("0", 5, 9))
    assert (back.quality, back.epoch, back.query_tokens_delta) == (Quality.OK, 1, None)


def test_one_impossible_gauge_leaves_the_others() -> None:
    seen = Watch().see(engine("0", usage=9.75), engine("1", usage=0.3))
    assert (seen.quality, seen.usage) == (Quality.UNRELIABLE, 0.3)
    assert "engine 0 says its usage is 9.75" in seen.reason


def test_an_idle_engine_is_at_zero_beside_a_busy_one() -> None:
    seen = Watch().see(engine("0", usage=0.9, running=0), engine("1", usage=0.3))
    assert (seen.usage, seen.engines[0].usage) == (0.3, 0.0)


def test_hits_without_queries_are_no_delta() -> None:
    watch = Watch()
    watch.see(engine("0", 5, None))
    assert watch.see(engine("0", 9, None)).hit_tokens_delta is None


# One scrape: for each engine its (hits, misses, preemptions) since the last one, a restart before them or
# not, and whether it shows. None: the scrape fails.
increments = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))
steps = st.tuples(increments, st.booleans(), st.integers(0, 9).map(bool))
scrapes = st.lists(
    st.one_of(st.none(), st.fixed_dictionaries(dict.fromkeys("abc", steps))), min_size=1, max_size=30
)


@given(scrapes, st.booleans())
def test_deltas_conserve_over_any_history(history, restarts) -> None:
    watch, true = Watch(), dict.fromkeys("abc", (0, 0, 0))
    base: dict | None = None
    epoch, spent, told = 0, 0, 0
    for scrape in history:
        for name, ((hits, misses, preempted), restarted, _) in (scrape or {}).items():
            old = (0, 0, 0) if restarted and restarts else true[name]
            true[name] = (old[0] + hits, old[1] + hits + misses, old[2] + preempted)
            spent += hits + misses
        shown = {name: true[name] for name, step in (scrape or {}).items() if step[2]}
        if scrape is None:
            seen = watch.fail()
            assert seen.quality is (Quality.STALE if base else Quality.ABSENT)
            assert seen.query_tokens_delta is None
        else:
            seen = watch.see(*(engine(name, *values) for name, values in shown.items()))
            known = base or {}
            down = any(
                name not in shown or any(n < o for n, o in zip(shown[name], old, strict=True))
                for name, old in known.items()
            )
            epoch += down
            common = [] if down else [(known[name], shown[name]) for name in shown if name in known]
            expected = [sum(new[i] - old[i] for old, new in common) if common else None for i in range(3)]
            got = [seen.hit_tokens_delta, seen.query_tokens_delta, seen.preemptions_delta]
            assert got == expected
            base = shown
        assert seen.epoch == epoch
        assert seen.hit_rate is None or 0 <= seen.hit_rate <= 1
        for delta in (seen.hit_tokens_delta, seen.query_tokens_delta, seen.preemptions_delta):
            assert delta is None or delta >= 0
        told += seen.query_tokens_delta or 0
    assert told <= spent  # no token is counted twice, whatever restarted


@given(st.lists(st.one_of(st.none(), increments), min_size=1, max_size=30))
def test_one_engine_that_never_restarts_loses_nothing_to_failed_scrapes(history) -> None:
    watch = Watch()
    watch.see(engine("0", 0, 0, 0))
    total = [0, 0, 0]
    sums = [0.0, 0.0, 0.0]
    for step in [*history, (0, 0, 0)]:
        if step is None:
            watch.fail()
            continue
        total = [total[0] + step[0], total[1] + step[0] + step[1], total[2] + step[2]]
        seen = watch.see(engine("0", *total))
        for i, delta in enumerate((seen.hit_tokens_delta, seen.query_tokens_delta, seen.preemptions_delta)):
            sums[i] += delta
    assert sums == total
