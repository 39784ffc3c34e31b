from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_agents.errors import InvalidValueError
from concur_agents.simulator.blocks import StreamKeys
from concur_agents.simulator.costs import CostModel, Profile
from concur_agents.simulator.engine import Engine, Request
from concur_agents.simulator.virtual import VirtualClock, VirtualEngine
from tests.simulator.driver import Workload, run

COSTS = CostModel(overhead=1.0, token=0.01, attention=0.0, sequence=0.1, kv_read=0.0)


def profile(**changes):
    base = Profile("test", "test", COSTS, 4, 17, 16, 8, 64)
    return dataclasses.replace(base, **changes)


def request(name, prompt, output, stream=None):
    return Request(name, prompt, output, StreamKeys(sum(map(ord, name)) if stream is None else stream))


def drain(engine, now=0.0):
    """Iterate to the end, one iteration a step."""
    iterations = []
    while (iteration := engine.step(now, now)) is not None:
        iterations.append(iteration)
        now = iteration.ended_at
    return iterations


def test_one_request_by_hand():
    engine = Engine(profile())
    engine.submit(request("a", 10, 3), 0.0)
    iterations = drain(engine)
    # One iteration computes the prompt and yields the first token, two more decode.
    assert [i.prompt_tokens for i in iterations] == [10, 0, 0]
    assert [i.generated_tokens for i in iterations] == [1, 1, 1]
    assert [i.duration for i in iterations] == pytest.approx([1.1, 1.1, 1.1])
    (finished,) = iterations[-1].finished
    assert finished.first_token_at == pytest.approx(1.1)
    assert finished.finished_at == pytest.approx(3.3)
    assert finished.cached_tokens == 0


def test_long_prompt_is_computed_in_chunks_of_the_budget():
    engine = Engine(profile())
    engine.submit(request("a", 40, 1), 0.0)
    assert [i.prompt_tokens for i in drain(engine)] == [16, 16, 8]


def test_decode_comes_before_chunks_and_chunks_before_admission():
    engine = Engine(profile())
    for name, prompt in (("a", 4), ("b", 20), ("c", 4)):
        engine.submit(request(name, prompt, 4), 0.0)
    iterations = drain(engine)
    # 1: a whole, b's first 12. 2: a decodes (1), b's other 8, c whole.
    assert [i.prompt_tokens for i in iterations[:2]] == [16, 12]
    assert [[r.request_id for r in i.first_tokens] for i in iterations[:2]] == [["a"], ["b", "c"]]
    assert iterations[1].generated_tokens == 3


def test_sequence_limit_holds_the_rest_back():
    engine = Engine(profile(max_num_seqs=1))
    engine.submit(request("a", 4, 2), 0.0)
    engine.submit(request("b", 4, 2), 0.0)
    engine.step(0.0, 0.0)
    assert (engine.stats.running, engine.stats.waiting) == (1, 1)


def test_only_whole_inputs_are_admitted():
    """The head of the queue needs 10 blocks, 8 are left: it waits, and so does the small one behind it."""
    engine = Engine(profile(max_num_batched_tokens=64))
    engine.submit(request("big", 32, 3), 0.0)
    engine.submit(request("head", 40, 1), 0.0)
    engine.submit(request("small", 4, 1), 0.0)
    first = engine.step(0.0, 0.0)
    assert [r.request_id for r in first.first_tokens] == ["big"]
    assert engine.stats.waiting == 2
    order = [f.request.request_id for i in drain(engine, first.ended_at) for f in i.finished]
    assert order == ["big", "head", "small"]


def test_hits_stop_short_of_the_last_token():
    engine = Engine(profile())
    for name in ("a", "b"):
        engine.submit(request(name, 16, 1, stream=7), 0.0)
        drain(engine)
    # 16 tokens are 4 blocks, but the last token is always computed: 3 blocks hit.
    assert engine.stats.query_tokens == 32
    assert engine.stats.hit_tokens == engine.stats.cached_tokens == 12
    assert engine.stats.computed_tokens == 20


def test_generated_tokens_are_hit_by_the_next_prompt():
    engine = Engine(profile())
    engine.submit(request("a", 10, 6, stream=7), 0.0)
    drain(engine)
    engine.submit(request("b", 20, 1, stream=7), 0.0)
    (finished,) = drain(engine)[-1].finished
    assert finished.cached_tokens == 16


def test_newest_is_preempted_when_blocks_run_out_and_counted_once():
    engine = Engine(profile(num_blocks=9, max_model_len=32))
    engine.submit(request("old", 12, 12), 0.0)
    engine.submit(request("new", 12, 12), 0.0)
    finished = {f.request.request_id: f for i in drain(engine) for f in i.finished}
    assert finished["old"].preemptions == 0
    assert finished["new"].preemptions == 1
    assert finished["new"].finished_at > finished["old"].finished_at
    assert engine.stats.preemptions == 1
    assert engine.stats.query_tokens == 24
    assert engine.stats.prompt_tokens == 24
    assert engine.stats.generation_tokens == 24


def test_no_one_is_admitted_in_an_iteration_that_preempts():
    engine = Engine(profile(num_blocks=9, max_model_len=32))
    engine.submit(request("old", 12, 12), 0.0)
    engine.submit(request("new", 12, 12), 0.0)
    now = 0.0
    while engine.stats.preemptions == 0:
        now = engine.step(now, now).ended_at
    assert (engine.stats.running, engine.stats.waiting) == (1, 1)


@pytest.mark.parametrize("steps_before", [0, 1, 3])
def test_abort_frees_everything(steps_before):
    engine = Engine(profile())
    engine.submit(request("a", 40, 5), 0.0)
    for step in range(steps_before):
        engine.step(float(step), float(step))
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    assert engine.pool.usage == engine.stats.usage == 0.0
    assert engine.stats.aborted == 1
    engine.submit(request("b", 40, 5), 0.0)
    assert len(drain(engine)[-1].finished) == 1


def test_generated_counts_through_preemption():
    engine = Engine(profile(num_blocks=9, max_model_len=32))
    for name in ("old", "new"):
        engine.submit(request(name, 12, 12), 0.0)
    seen, now = [], 0.0
    while engine.has_work:
        now = engine.step(now, now).ended_at
        seen.append(engine.generated("new"))
    growing = [n for n in seen if n]
    assert growing == sorted(growing)
    assert growing[-1] in (11, 12)


def test_reset_prefix_cache_forgets_content_and_keeps_counters():
    engine = Engine(profile())
    engine.submit(request("a", 16, 1, stream=7), 0.0)
    engine.step(0.0, 0.0)
    assert engine.reset_prefix_cache()
    engine.submit(request("b", 16, 2, stream=7), 0.0)
    engine.step(0.0, 0.0)
    assert not engine.reset_prefix_cache()
    assert engine.stats.hit_tokens == 0
    assert engine.stats.query_tokens == 32


def test_refuses_what_cannot_run():
    engine = Engine(profile())
    with pytest.raises(InvalidValueError, match="exceed the model's context of 64 tokens"):
        engine.submit(request("a", 60, 5), 0.0)
    with pytest.raises(InvalidValueError, match="max_tokens=0"):
        engine.submit(request("a", 5, 0), 0.0)
    engine.submit(request("a", 5, 5), 0.0)
    with pytest.raises(InvalidValueError, match="already in the engine"):
        engine.submit(request("a", 5, 5), 0.0)
    assert len(drain(engine)[-1].finished) == 1


def test_profiles_refuse_a_model_that_does_not_fit():
    with pytest.raises(InvalidValueError, match="max_model_len=65 does not fit"):
        profile(max_model_len=65)
    with pytest.raises(InvalidValueError, match="max_num_batched_tokens=4"):
        profile(max_num_batched_tokens=4)
    smaller = profile().with_kv_tokens(40)
    assert (smaller.num_blocks, smaller.max_model_len) == (10, 36)


WORKLOADS = st.builds(
    Workload,
    agents=st.integers(1, 8),
    steps=st.integers(1, 5),
    new_tokens=st.integers(1, 9),
    generate=st.integers(1, 7),
    tool=st.tuples(st.floats(0, 2), st.floats(2, 9)),
)


@settings(max_examples=60, deadline=None)
@given(WORKLOADS, st.integers(17, 40), st.integers(0, 99))
def test_leaping_changes_nothing(workload, num_blocks, seed):
    """Same requests finish at the same moments with the same hits, whether or not iterations are merged."""
    sizes = profile(
        num_blocks=num_blocks + 8, max_model_len=96, costs=CostModel(0.3, 0.01, 0.001, 0.02, 0.0007, 0.01)
    )
    leaping, plain = (run(workload, sizes, seed=seed, leap=leap) for leap in (True, False))
    assert leaping.finished == plain.finished
    assert leaping.stats == plain.stats
    assert leaping.seconds == plain.seconds


@settings(max_examples=60, deadline=None)
@given(WORKLOADS, st.integers(0, 99))
def test_everything_submitted_ends_and_the_books_balance(workload, seed):
    outcome = run(workload, profile(num_blocks=25, max_model_len=96), seed=seed)
    requests = workload.agents * workload.steps
    stats = outcome.stats
    assert stats.finished == requests == len(outcome.finished)
    assert stats.generation_tokens == requests * workload.generate
    assert stats.prompt_tokens == stats.query_tokens == sum(f.request.prompt_tokens for f in outcome.finished)
    assert stats.hit_tokens == sum(f.cached_tokens for f in outcome.finished)
    assert (stats.usage, stats.running, stats.waiting) == (0.0, 0, 0)
    assert outcome.engine.pool.free == outcome.engine.pool.usable
    for f in outcome.finished:
        assert f.arrived_at <= f.scheduled_at < f.first_token_at <= f.finished_at
        assert f.cached_tokens < f.request.prompt_tokens


def test_virtual_requests_at_one_moment_share_the_first_iteration():
    clock = VirtualClock()
    seen = []
    virtual = VirtualEngine(Engine(profile()), clock, on_iteration=seen.append)
    for name in ("a", "b"):
        clock.call_at(1.0, lambda name=name: virtual.generate(request(name, 4, 1), lambda _: None))
    clock.run()
    assert [len(i.first_tokens) for i in seen] == [2]
    assert clock.now == pytest.approx(1.0 + 1.08)


def test_virtual_stats_show_the_last_iterations_end():
    clock = VirtualClock()
    virtual = VirtualEngine(Engine(profile()), clock)
    clock.call_at(0.0, lambda: virtual.generate(request("a", 8, 3), lambda _: None))
    seen = []
    for at in (0.5, 1.5, 2.5, 3.5):
        clock.call_at(at, lambda: seen.append((virtual.stats.running, virtual.stats.query_tokens)))
    clock.run()
    assert seen == [(0, 0), (1, 8), (1, 8), (0, 8)]


def test_virtual_abort_and_restart_never_call_back():
    clock = VirtualClock()
    virtual = VirtualEngine(Engine(profile()), clock)
    done = []
    for name in "abc":
        clock.call_at(0.0, lambda name=name: virtual.generate(request(name, 8, 5), done.append))
    clock.call_at(1.2, lambda: virtual.abort("a"))
    fresh = Engine(profile(), epoch=1)
    lost = []
    clock.call_at(2.0, lambda: lost.extend(virtual.restart(fresh)))
    clock.call_at(3.0, lambda: virtual.generate(request("d", 8, 5), done.append))
    clock.run()
    assert lost == ["b", "c"]
    assert [f.request.request_id for f in done] == ["d"]
    assert virtual.stats.epoch == 1
    assert virtual.stats.finished == 1


def test_virtual_clock_runs_in_order_and_stops_where_told():
    clock, seen = VirtualClock(), []
    clock.call_at(2.0, lambda: seen.append("b"))
    clock.call_at(1.0, lambda: (seen.append("a"), clock.call_later(0.5, lambda: seen.append("a2"))))
    clock.call_at(2.0, lambda: seen.append("c"))
    clock.run(until=1.6)
    assert (seen, clock.now, clock.next_at) == (["a", "a2"], 1.6, 2.0)
    clock.run()
    assert (seen, clock.next_at) == (["a", "a2", "b", "c"], math.inf)
    with pytest.raises(InvalidValueError, match="delay=-1"):
        clock.call_later(-1, lambda: None)
