"""What vLLM says, by version, and what is made of it."""

from __future__ import annotations

import pytest

from concur_agents.signals import Quality
from concur_agents.telemetry.aggregate import Aggregator
from concur_agents.telemetry.prometheus import parse
from concur_agents.telemetry.vllm import COMMON, DIALECTS, VLLM, observe
from tests.telemetry.fake import VLLM_032, FakeEngine, counters, exposition


def look(text: str):
    return observe(parse(text, COMMON.union(*DIALECTS)))


def reading(*texts: str):
    """The last reading of a series of scrapes."""
    aggregator = Aggregator()
    return [aggregator.observed(float(at), look(text)) for at, text in enumerate(texts)][-1]


def config(**labels) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"vllm:cache_config_info{{{inner}}} 1.0\n"


def test_the_real_dump_of_0_32() -> None:
    seen = reading(VLLM_032)
    assert seen.quality is Quality.OK
    assert seen.reason == ""
    assert seen.usage == pytest.approx(14 / 17)  # 210 of 255 usable blocks
    assert (seen.running, seen.waiting) == (5, 18)
    assert (seen.capacity_tokens, seen.block_size) == (32768, 128)
    [engine] = seen.engines
    assert (engine.hit_tokens, engine.query_tokens, engine.preemptions) == (5831040, 9715972, 0)
    assert seen.hit_rate is None  # the first look has nothing to compare with
    assert look(VLLM_032).started == 1796091713.31


def test_deltas_between_two_looks() -> None:
    seen = reading(counters(100, 1000), counters("1.300e+03", "2.5e+03", preemptions=2))
    assert (seen.hit_tokens_delta, seen.query_tokens_delta, seen.preemptions_delta) == (1200, 1500, 2)
    assert seen.hit_rate == pytest.approx(0.8)


def test_the_retry_safe_counters_are_preferred_and_no_created_twin_is_taken() -> None:
    [engine] = look(
        exposition(
            kv_cache_usage_perc=0.5,
            prefix_cache_hits_total=900,
            prefix_cache_queries_total=1000,
            prefix_cache_hits_created=1.79e9,
            prompt_tokens_cached_created=1.79e9,
            prompt_tokens_cached_total=30,
            prompt_tokens_total=100,
        )
    ).engines
    assert (engine.hit_tokens, engine.query_tokens) == (30, 100)


@pytest.mark.parametrize("old", ["", "gpu_"])
def test_an_engine_that_counts_retried_lookups_is_unreliable(old) -> None:
    def scrape(hits):
        names = {f"{old}prefix_cache_hits_total": hits, f"{old}prefix_cache_queries_total": 2 * hits}
        return exposition(**{f"{old or 'kv_'}cache_usage_perc": 0.4}, prompt_tokens_total=5, **names)

    seen = reading(scrape(10), scrape(30))
    assert seen.quality is Quality.UNRELIABLE
    assert "upgrade to 0.27.1" in seen.reason
    assert seen.usage == 0.4
    assert (seen.hit_tokens_delta, seen.query_tokens_delta) == (20, 40)


def test_both_names_of_a_version_in_between_count_once() -> None:
    seen = reading(exposition(kv_cache_usage_perc=0.4, gpu_cache_usage_perc=0.9, num_requests_running=3))
    assert (seen.usage, len(seen.engines)) == (0.4, 1)


def test_v0_without_engine_labels_has_usage_and_swapped_requests_but_no_hit_rate() -> None:
    seen = reading(
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.9\n'
        'vllm:num_requests_running{model_name="m"} 2\nvllm:num_requests_waiting{model_name="m"} 3\n'
        'vllm:num_requests_swapped{model_name="m"} 4\nvllm:prompt_tokens_total{model_name="m"} 4\n'
    )
    assert (seen.usage, seen.running, seen.waiting) == (0.25, 2, 7)
    assert seen.engines[0].hit_tokens is None
    assert seen.quality is Quality.OK
    assert "average since the start" in seen.reason


def test_ray_names_on_the_metrics_agent_one_engine_a_replica() -> None:
    text = "".join(
        f'ray_vllm_{name}{{ReplicaId="{replica}",WorkerId="w",engine="0"}} {value}\n'
        for replica, usage in (("a", 0.2), ("b", 0.7))
        for name, value in (
            ("kv_cache_usage_perc", usage),
            ("prompt_tokens_cached", 5),
            ("prompt_tokens", 9),
            ("num_requests_running", 1),
        )
    )
    seen = reading(text)
    assert [engine.engine for engine in seen.engines] == ["a/0", "b/0"]
    assert (seen.usage, seen.running) == (0.7, 2)
    assert [engine.query_tokens for engine in seen.engines] == [9, 9]


def test_two_engines_the_fullest_counts_and_the_rest_adds_up() -> None:
    def scrape(hits, queries):
        return (
            exposition(
                kv_cache_usage_perc={"0": 0.3, "1": 0.9},
                num_requests_running={"0": 2, "1": 3},
                num_requests_waiting={"0": 0, "1": 4},
                prompt_tokens_cached_total=hits,
                prompt_tokens_total=queries,
            )
            + config(engine="0", kv_cache_size_tokens="1000", block_size="16")
            + config(engine="1", kv_cache_size_tokens="3000", block_size="16")
        )

    seen = reading(scrape({"0": 1, "1": 5}, {"0": 10, "1": 50}), scrape({"0": 3, "1": 9}, {"0": 14, "1": 58}))
    assert (seen.usage, seen.running, seen.waiting, seen.capacity_tokens) == (0.9, 5, 4, 4000)
    assert (seen.hit_tokens_delta, seen.query_tokens_delta) == (6, 12)


def test_a_gauge_given_once_a_process_counts_once() -> None:
    text = "".join(
        f'vllm:{name}{{engine="0",pid="{pid}"}} {value}\n'
        for pid, usage in ((1, 0.0), (2, 0.6))
        for name, value in (("kv_cache_usage_perc", usage), ("num_requests_running", 4))
    )
    seen = reading(text)
    assert (seen.usage, seen.running, len(seen.engines)) == (0.6, 4, 1)


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({"kv_cache_size_tokens": "5000", "num_gpu_blocks": "7", "block_size": "16"}, 5000),
        ({"kv_cache_size_tokens": "None", "num_gpu_blocks": "256", "block_size": "128"}, 32768),
        ({"num_gpu_blocks": "256", "block_size": "16"}, 4096),
        ({"num_gpu_blocks": "None", "block_size": "16"}, None),
        ({"kv_cache_size_tokens": "None", "num_gpu_blocks": "0", "block_size": "16"}, None),
        ({}, None),
    ],
)
def test_capacity(labels, capacity) -> None:
    usage = exposition(kv_cache_usage_perc=0.5, num_requests_running=1)
    assert reading(usage + config(engine="0", **labels)).capacity_tokens == capacity
    # Older versions do not label the configuration with the engine: it is everybody's.
    two = exposition(kv_cache_usage_perc={"0": 0.5, "1": 0.5})
    expected = capacity and 2 * capacity
    assert reading(two + config(**labels)).capacity_tokens == expected


def test_a_configuration_told_before_the_blocks_were_counted_is_passed_over() -> None:
    text = exposition(kv_cache_usage_perc=0.5) + config(engine="0", num_gpu_blocks="None", block_size="16")
    seen = reading(text + config(engine="0", num_gpu_blocks="10", block_size="16"))
    assert seen.capacity_tokens == 160


def test_a_capacity_known_for_some_engines_only_is_unknown() -> None:
    text = exposition(kv_cache_usage_perc={"0": 0.5, "1": 0.5})
    both = [config(engine=e, kv_cache_size_tokens="64") for e in "01"]
    assert reading(text + both[0] + config(engine="1")).capacity_tokens is None
    assert reading(text + both[0] + both[1]).capacity_tokens == 128


def test_an_idle_engine_with_a_stuck_gauge_is_at_zero() -> None:
    assert reading(counters(0, 0, usage=0.93, running=0, waiting=0)).usage == 0
    assert reading(counters(0, 0, usage=0.93, running=0, waiting=1)).usage == 0.93


@pytest.mark.parametrize("usage", ["9.75", "-0.5", "NaN", "+Inf"])
def test_an_impossible_gauge_is_unknown_and_unreliable(usage) -> None:
    seen = reading(counters(1, 2, usage=usage), counters(3, 4, usage=usage))
    assert (seen.quality, seen.usage, seen.engines[0].usage) == (Quality.UNRELIABLE, None, None)
    assert "outside [0, 1]" in seen.reason
    assert seen.query_tokens_delta == 2


def test_a_tiny_gauge_is_tiny() -> None:
    seen = reading(counters(1, 2, usage="9.75e-06"))
    assert (seen.usage, seen.quality) == (9.75e-06, Quality.OK)


def test_nan_in_counters_is_unknown_and_the_gap_is_covered_afterwards() -> None:
    gap = reading(counters(1, 10), counters("NaN", "NaN", running="NaN"))
    assert (gap.hit_tokens_delta, gap.query_tokens_delta, gap.running) == (None, None, None)
    seen = reading(counters(1, 10), counters("NaN", "NaN"), counters(4, 30))
    assert (seen.hit_tokens_delta, seen.query_tokens_delta) == (3, 20)


def test_prefix_caching_off_is_no_hit_rate_rather_than_zero() -> None:
    off = config(engine="0", enable_prefix_caching="False")
    seen = reading(counters(0, 100) + off, counters(0, 300) + off)
    assert seen.hit_rate is None
    assert seen.quality is Quality.OK
    assert "--enable-prefix-caching" in seen.reason


def test_nothing_asked_of_the_cache_is_an_unknown_hit_rate() -> None:
    seen = reading(counters(5, 10), counters(5, 10))
    assert (seen.query_tokens_delta, seen.hit_rate) == (0, None)


def test_series_missing_with_200_is_absent_and_says_what_to_switch_on() -> None:
    seen = reading("python_info 1\nprocess_start_time_seconds 1.7e9\n")
    assert (seen.quality, seen.usage) == (Quality.ABSENT, None)
    assert "--disable-log-stats" in seen.reason


def test_no_usage_at_all_is_noted() -> None:
    seen = reading(exposition(num_requests_running=2))
    assert (seen.usage, seen.running) == (None, 2)
    assert "does not say its KV-cache usage" in seen.reason


def test_a_new_process_is_a_restart_even_if_its_counters_are_higher() -> None:
    first, second = (f"process_start_time_seconds {at}\n" for at in ("1.7e9", "1.70001e9"))
    seen = reading(counters(1, 10) + first, counters(50, 100) + second)
    assert (seen.epoch, seen.query_tokens_delta) == (1, None)


def test_servers_that_answer_by_turns_are_unreliable_and_have_no_deltas() -> None:
    one, two = (f"process_start_time_seconds {at}\n" for at in ("1.7e9", "1.70001e9"))
    texts = [counters(1, 10) + one, counters(5, 50) + two, counters(2, 20) + one, counters(6, 60) + two]
    seen = reading(*texts, texts[-1])
    assert (seen.quality, seen.query_tokens_delta) == (Quality.UNRELIABLE, None)
    assert "by turns" in seen.reason
    assert seen.epoch == reading(*texts[:3]).epoch


async def test_it_reads_a_real_server_with_the_short_answer_from_the_second_look_on() -> None:
    async with FakeEngine(VLLM_032) as engine:
        telemetry = VLLM(engine.url + "/v1/", headers={"Authorization": "Bearer x"})
        readings = [await telemetry.read(float(at)) for at in range(3)]
        await telemetry.close()
    assert engine.seen == ["/metrics", "/metrics/", "/metrics/"]
    assert {headers["Authorization"] for headers in engine.headers} == {"Bearer x"}
    assert [r.usage for r in readings] == [pytest.approx(14 / 17)] * 3
    assert [r.capacity_tokens for r in readings] == [32768] * 3
    assert [r.query_tokens_delta for r in readings] == [None, 0, 0]
    assert [r.at for r in readings] == [0, 1, 2]
