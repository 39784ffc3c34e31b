"""What SGLang says, by version and flags, and what is made of it."""

from __future__ import annotations

import json

import pytest

from concur_agents.signals import Quality
from concur_agents.telemetry.aggregate import Aggregator
from concur_agents.telemetry.endpoint import ScrapeError
from concur_agents.telemetry.prometheus import parse
from concur_agents.telemetry.sglang import NAMES, SGLang, observe, parse_loads
from tests.telemetry.fake import SGLANG_0523, SGLANG_LOADS, FakeEngine


def look(metrics: str = "", loads: str | None = None, no_loads: str = "no loads"):
    series = parse(metrics, NAMES)
    return observe(parse_loads(loads), series) if loads else observe({}, series, no_loads)


def reading(*scrapes):
    aggregator = Aggregator()
    return [aggregator.observed(float(at), look(*scrape)) for at, scrape in enumerate(scrapes)][-1]


def series(name: str, value, **labels) -> str:
    inner = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"sglang:{name}{{{inner}}} {value}\n"


def loads(*ranks, **common) -> str:
    entries = [{"dp_rank": rank, "num_running_reqs": 1, "num_waiting_reqs": 0} | common for rank in ranks]
    return json.dumps({"loads": entries})


def effective(input_, hit, **labels) -> str:
    name = "prefill_effective_tokens_total"
    return series(name, input_, mode="input", **labels) + series(name, hit, mode="device_hit", **labels)


def test_the_real_dump_of_0_5_23() -> None:
    seen = reading((SGLANG_0523, SGLANG_LOADS))
    assert (seen.quality, seen.reason) == (Quality.OK, "")
    # 3840 tokens are cached and evictable: the engine's gauge does not count them.
    assert (seen.usage, seen.running, seen.waiting) == (0, 0, 0)
    assert (seen.capacity_tokens, seen.block_size) == (4096, 16)
    [engine] = seen.engines
    assert (engine.hit_tokens, engine.query_tokens, engine.preemptions) == (128, 4898, 0)


def test_the_real_dump_without_v1_loads() -> None:
    seen = reading((SGLANG_0523, None, "/v1/loads answered 404"))
    assert (seen.usage, seen.capacity_tokens, seen.engines[0].query_tokens) == (0, 4096, 4898)
    assert seen.quality is Quality.OK
    assert "/v1/loads answered 404; the gauges of /metrics are used" in seen.reason


def test_with_metrics_off_all_but_the_hit_rate_is_known() -> None:
    one = loads(0, token_usage=0.7312, num_used_tokens=10, max_total_num_tokens=4096, num_waiting_reqs=3)
    seen = reading(("", one), ("", one))
    assert (seen.usage, seen.running, seen.waiting, seen.capacity_tokens) == (0.7312, 1, 3, 4096)
    assert (seen.hit_rate, seen.preemptions_delta) == (None, None)
    assert seen.quality is Quality.OK
    assert "--enable-metrics" in seen.reason


def test_usage_from_the_tokens_when_no_fraction_is_told() -> None:
    assert reading(("", loads(0, num_used_tokens=1024, max_total_num_tokens=4096))).usage == 0.25


def test_data_parallel_ranks_are_engines() -> None:
    ranks = json.dumps(
        {
            "loads": [
                {"dp_rank": 0, "token_usage": 0.2, "max_total_num_tokens": 100, "num_running_reqs": 1},
                {"dp_rank": 1, "token_usage": 0.8, "max_total_num_tokens": 100, "num_running_reqs": 2},
            ]
        }
    )
    before = effective(10, 0, dp_rank="0") + effective(20, 0, dp_rank="1")
    after = effective(20, 30, dp_rank="0") + effective(40, 60, dp_rank="1")
    seen = reading((before, ranks), (after, ranks))
    assert (seen.usage, seen.running, seen.capacity_tokens) == (0.8, 3, 200)
    assert (seen.hit_tokens_delta, seen.query_tokens_delta) == (90, 120)


def test_tensor_parallel_ranks_repeat_and_count_once() -> None:
    def scrape(input_, hit):
        return "".join(
            effective(input_, hit, tp_rank=rank, moe_ep_rank=rank)
            + series("num_running_reqs", 3, tp_rank=rank)
            for rank in range(4)
        )

    seen = reading((scrape(100, 10), None), (scrape(150, 60), None))
    assert (seen.hit_tokens_delta, seen.query_tokens_delta, seen.running) == (50, 100, 3)


def test_all_tiers_are_hits() -> None:
    text = effective(10, 20) + series("prefill_effective_tokens_total", 30, mode="host_hit")
    [engine] = look(text, loads(0)).engines
    assert (engine.hit_tokens, engine.query_tokens) == (50, 60)


def realtime(compute, cache) -> str:
    name = "realtime_tokens_total"
    text = series(name, compute, mode="prefill_compute") + series(name, 999, mode="decode")
    return text + (series(name, cache, mode="prefill_cache") if cache else "")


def test_which_counters_are_used() -> None:
    finished = series("prompt_tokens_total", 50, is_streaming="true") + series(
        "prompt_tokens_total", 30, is_streaming="x"
    )
    cached = series("cached_tokens_total", 7, cache_source="device")
    for text, expected in (
        (effective(1, 2) + realtime(10, 20) + finished + cached, (2, 3)),
        (realtime(10, 20) + finished + cached, (20, 30)),
        (realtime(10, 0), (0, 10)),
        (finished + cached, (7, 80)),
        (finished, (0, 80)),
        (series("cache_hit_rate", 0.99), (None, None)),
        (series("num_running_reqs", 0), (None, None)),
    ):
        [engine] = look(text, loads(0)).engines
        assert (engine.hit_tokens, engine.query_tokens) == expected


def test_a_switch_of_counters_is_a_new_baseline_and_no_restart() -> None:
    late = series("prompt_tokens_total", 10)
    texts = [late, late + realtime(1, 1), late + realtime(2, 3)]
    second, third = (reading(*((text, loads(0)) for text in texts[:n])) for n in (2, 3))
    assert (second.epoch, second.query_tokens_delta) == (0, None)
    assert (third.epoch, third.query_tokens_delta, third.hit_tokens_delta) == (0, 3, 2)


def test_the_first_retraction_counts() -> None:
    retracted = series("num_retracted_requests_total", 1, tp_rank="0")
    seen = reading((effective(1, 1), loads(0)), (effective(2, 2) + retracted, loads(0)))
    assert seen.preemptions_delta == 1


def test_priorities_are_not_added_to_their_total() -> None:
    text = "".join(series("num_queue_reqs", n, priority=p) for p, n in (("", 5), ("1", 2), ("2", 3)))
    assert reading((text + series("num_running_reqs", 1), None)).waiting == 5
    each = "".join(effective(n, n, priority=p) for p, n in (("", 30), ("1", 10), ("2", 20)))
    assert look(each, loads(0)).engines[0].query_tokens == 60


def test_an_idle_engine_with_a_stuck_gauge_is_at_zero() -> None:
    stuck = series("token_usage", 0.04) + series("num_running_reqs", 0) + series("num_queue_reqs", 0)
    assert reading((stuck, None)).usage == 0


def test_rounding_beyond_one_is_one_and_nonsense_is_unknown() -> None:
    assert reading(("", loads(0, token_usage=1.004))).usage == 1
    seen = reading(("", loads(0, token_usage=9.75)))
    assert (seen.quality, seen.usage) == (Quality.UNRELIABLE, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "[]",
        "{}",
        '{"loads": 3}',
        '{"loads": [3]}',
        '{"loads": []}',
        "[" * 100_000,
        '{"loads": null}',
    ],
)
def test_what_is_not_sglangs_is_refused(text) -> None:
    with pytest.raises(ScrapeError, match="/v1/loads"):
        parse_loads(text)


@pytest.mark.parametrize("value", ["much", None, True, [1], float("nan")])
def test_a_field_that_is_no_number_is_unknown(value) -> None:
    seen = reading(("", loads(0, token_usage=value, num_waiting_reqs=value, max_total_num_tokens=value)))
    assert (seen.usage, seen.waiting, seen.capacity_tokens) == (None, None, None)
    assert seen.running == 1


async def test_it_reads_a_real_server_and_gives_the_filter_up_in_multiprocess_mode() -> None:
    async with FakeEngine(SGLANG_0523, SGLANG_LOADS, filtering="empty") as engine:
        telemetry = SGLang(engine.url)
        readings = [await telemetry.read(float(at)) for at in range(3)]
    one_look = ["/v1/loads", "/metrics"]
    assert engine.seen == [*one_look, "/v1/loads", "/metrics/", "/metrics", *one_look]
    assert [(r.capacity_tokens, r.query_tokens_delta) for r in readings] == [
        (4096, None),
        (4096, 0),
        (4096, 0),
    ]


async def test_metrics_off_and_loads_missing_over_http() -> None:
    async with FakeEngine(404, SGLANG_LOADS) as engine:
        assert (await SGLang(engine.url).read(0.0)).capacity_tokens == 4096
    async with FakeEngine(SGLANG_0523, 404) as engine:
        seen = await SGLang(engine.url).read(0.0)
        assert (seen.quality, seen.capacity_tokens) == (Quality.OK, 4096)
        assert "404" in seen.reason
    async with FakeEngine(404, 404) as engine:
        seen = await SGLang(engine.url).read(0.0)
        assert (seen.quality, seen.reason.count("404")) == (Quality.ABSENT, 2)
    async with FakeEngine("python_info 1\n", 404) as engine:
        seen = await SGLang(engine.url).read(0.0)
        assert seen.quality is Quality.ABSENT
        assert "--enable-metrics" in seen.reason


async def test_a_look_whose_metrics_fail_keeps_its_baseline() -> None:
    async with FakeEngine(effective(10, 10), SGLANG_LOADS, filtering="empty") as engine:
        telemetry = SGLang(engine.url)
        await telemetry.read(0.0)
        engine.metrics = 500
        gap = await telemetry.read(1.0)
        engine.metrics = effective(15, 25)
        seen = await telemetry.read(2.0)
    assert (gap.quality, gap.capacity_tokens, gap.query_tokens_delta) == (Quality.OK, 4096, None)
    assert (seen.hit_tokens_delta, seen.query_tokens_delta, seen.epoch) == (15, 20, 0)
