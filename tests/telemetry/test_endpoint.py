"""Over a real socket: every way in which an endpoint fails is a reading that says so."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from concur_agents.errors import InvalidValueError
from concur_agents.signals import Quality
from concur_agents.telemetry import VLLM, SGLang, Telemetry, detect
from concur_agents.telemetry import endpoint as endpoint_module
from tests.telemetry.fake import SGLANG_0523, SGLANG_LOADS, VLLM_032, FakeEngine, counters


def unused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (404, "404 Not Found"),
        (500, "500"),
        (401, "Bearer"),
        (204, "204"),
        (None, "did not answer within 0.2 s"),
        (b"\x80\x00\xff garbage \n\n{{{", "no vLLM series"),
        ("<html><body>nginx</body></html>", "no vLLM series"),
        ('vllm:kv_cache_usage_perc{engine="0', "not Prometheus text"),
        ("", "no vLLM series"),
    ],
)
async def test_bad_answers_are_absent_at_first_and_stale_after_a_good_one(page, words) -> None:
    async with FakeEngine(page) as engine:
        seen = await VLLM(engine.url, timeout_seconds=0.2).read(3.0)
        assert (seen.quality, seen.at, seen.usage) == (Quality.ABSENT, 3.0, None)
        assert words in seen.reason

        engine.metrics = VLLM_032
        telemetry = VLLM(engine.url, timeout_seconds=5)
        assert (await telemetry.read(4.0)).quality is Quality.OK
        engine.metrics = page
        telemetry._endpoint.timeout_seconds = 0.2
        seen = await telemetry.read(5.0)
        answered = words == "no vLLM series"
        assert seen.quality is (Quality.ABSENT if answered else Quality.STALE)
        assert words in seen.reason
        assert seen.capacity_tokens == (None if answered else 32768)

        engine.metrics = VLLM_032
        telemetry._endpoint.timeout_seconds = 5
        seen = await telemetry.read(6.0)
        assert (seen.quality, seen.capacity_tokens, seen.reason) == (Quality.OK, 32768, "")


async def test_connection_refused() -> None:
    for telemetry in (VLLM(unused_url()), SGLang(unused_url()), await detect(unused_url())):
        seen = await telemetry.read(1.0)
        assert seen.quality is Quality.ABSENT
        assert "Connect call failed" in seen.reason or "refused" in seen.reason


async def test_a_server_that_speaks_no_http_or_hangs_up() -> None:
    async def babble(_reader, writer) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        writer.close()

    async def hang_up(_reader, writer) -> None:
        writer.close()

    for handler in (babble, hang_up):
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        async with server:
            seen = await VLLM(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").read(1.0)
        assert seen.quality is Quality.ABSENT
        assert "cannot be read" in seen.reason


async def test_a_body_without_end_is_cut_off(monkeypatch) -> None:
    monkeypatch.setattr(endpoint_module, "BODY_LIMIT_BYTES", 2**20)
    async with FakeEngine("# comment\n" * 200_000) as engine:
        seen = await VLLM(engine.url).read(1.0)
    assert seen.quality is Quality.ABSENT
    assert "more than 1 MiB" in seen.reason


async def test_an_answer_nobody_foresaw_is_a_reading_too() -> None:
    loads = '{"loads": [{"token_usage": 1%s}]}' % ("0" * 400)  # a whole number beyond any float
    async with FakeEngine(404, loads) as engine:
        seen = await SGLang(engine.url).read(1.0)
    assert seen.quality is Quality.ABSENT
    assert "OverflowError" in seen.reason


async def test_cancelling_a_look_cancels_it_and_the_next_one_works() -> None:
    async with FakeEngine(None) as engine:
        telemetry = VLLM(engine.url)
        task = asyncio.create_task(telemetry.read(1.0))
        await engine.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        engine.metrics = VLLM_032
        assert (await telemetry.read(2.0)).quality is Quality.OK


@pytest.mark.parametrize("filtering", ["empty", "off"])
async def test_a_filter_that_does_not_work_is_tried_once(filtering) -> None:
    async with FakeEngine(counters(1, 10), filtering=filtering) as engine:
        telemetry = VLLM(engine.url)
        seen = [await telemetry.read(float(at)) for at in range(4)]
    assert engine.seen == ["/metrics", "/metrics/", *["/metrics"] * 3]
    assert [r.quality for r in seen] == [Quality.OK] * 4


async def test_an_engine_that_comes_back_with_other_names_is_understood_and_the_filter_kept() -> None:
    old = 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{engine="0"} 1\n'
    new = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:num_requests_running{engine="0"} 1\n'
    async with FakeEngine(old) as engine:
        telemetry = VLLM(engine.url)
        usages = [(await telemetry.read(1.0)).usage, (await telemetry.read(2.0)).usage]
        engine.metrics = new
        usages += [(await telemetry.read(3.0)).usage, (await telemetry.read(4.0)).usage]
        engine.metrics = "python_info 1\n"
        assert (await telemetry.read(5.0)).quality is Quality.ABSENT
        engine.metrics = new
        usages += [(await telemetry.read(6.0)).usage, (await telemetry.read(7.0)).usage]
    assert usages == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert engine.seen[-1] == "/metrics/"


async def test_a_restart_over_http() -> None:
    async with FakeEngine(counters(100, 1000)) as engine:
        telemetry = VLLM(engine.url)
        await telemetry.read(1.0)
        engine.metrics = counters(1, 10)
        seen = await telemetry.read(2.0)
        assert (seen.epoch, seen.query_tokens_delta) == (1, None)
        engine.metrics = counters(4, 14)
        seen = await telemetry.read(3.0)
        assert (seen.epoch, seen.hit_rate) == (1, 0.75)


@pytest.mark.filterwarnings("error")
def test_one_object_serves_several_loops_and_closing_is_harmless() -> None:
    async def look(telemetry):
        async with FakeEngine(VLLM_032) as engine:
            telemetry._endpoint.url = engine.url
            first = await telemetry.read(1.0)
            await telemetry.close()
            await telemetry.close()
            return first, await telemetry.read(2.0)

    telemetry = VLLM("http://127.0.0.1:1")
    for _ in range(3):
        for seen in asyncio.run(look(telemetry)):
            assert seen.quality is Quality.OK
    gc.collect()  # a session left open would warn here


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999", "http://[::1", "file:///x"]
)
@pytest.mark.parametrize("kind", [VLLM, SGLang])
def test_an_address_that_is_none_is_refused_at_once(url, kind) -> None:
    with pytest.raises(InvalidValueError, match="base_url"):
        kind(url)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_out_of_range_is_refused(seconds) -> None:
    with pytest.raises(InvalidValueError, match="timeout_seconds"):
        VLLM("http://localhost:8000", timeout_seconds=seconds)


@pytest.mark.parametrize(
    "url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1/metrics"]
)
def test_the_address_may_be_the_clients(url) -> None:
    assert repr(VLLM(url)) == "VLLM('http://h:1')"


@pytest.mark.parametrize(
    ("metrics", "loads", "kind"),
    [
        (VLLM_032, 404, "VLLM("),
        (SGLANG_0523, SGLANG_LOADS, "SGLang("),
        (SGLANG_0523, 404, "SGLang("),
        (404, SGLANG_LOADS, "SGLang("),
        ("", SGLANG_LOADS, "SGLang("),
        ('ray_vllm_kv_cache_usage_perc{engine="0"} 0.5\n', 404, "VLLM("),
    ],
)
async def test_detect(metrics, loads, kind) -> None:
    async with FakeEngine(metrics, loads) as engine:
        telemetry = await detect(engine.url)
        assert isinstance(telemetry, Telemetry)
        assert repr(telemetry).startswith(kind)
        assert (await telemetry.read(1.0)).quality is Quality.OK
        await telemetry.close()


async def test_what_is_not_recognised_is_absent_with_the_reasons_and_looked_at_again() -> None:
    async with FakeEngine("python_info 1\n", 404) as engine:
        telemetry = await detect(engine.url)
        assert isinstance(telemetry, Telemetry)
        seen = await telemetry.read(1.0)
        assert (seen.quality, seen.at) == (Quality.ABSENT, 1.0)
        assert "--disable-log-stats" in seen.reason
        assert "--enable-metrics" in seen.reason
        assert "404" in seen.reason
        engine.metrics = VLLM_032
        assert (await telemetry.read(2.0)).capacity_tokens == 32768
        looks = len(engine.seen)
        assert (await telemetry.read(3.0)).query_tokens_delta == 0
        assert len(engine.seen) == looks + 1
        assert repr(telemetry).startswith("VLLM(")
        await telemetry.close()
