"""Against the embedded engine: the readings say what its requests did, through faults and a restart."""

from __future__ import annotations

import aiohttp
import pytest

from concur_agents.signals import Quality
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import CPU_TINY
from concur_agents.telemetry import VLLM, detect


async def test_a_life_with_an_engine() -> None:
    with EmbeddedServer(CPU_TINY, speed=100.0) as server:
        telemetry = await detect(server.url, timeout_seconds=2)
        assert isinstance(telemetry, VLLM)
        async with aiohttp.ClientSession(server.url) as http:

            async def complete(tokens: int) -> None:
                body = {"model": CPU_TINY.model, "prompt": list(range(tokens)), "max_tokens": 1}
                async with http.post("/v1/completions", json=body) as response:
                    assert response.status == 200, await response.text()

            async def fault(metrics: str) -> None:
                async with http.post("/faults", json={"metrics": metrics}) as response:
                    assert response.status == 200

            first = await telemetry.read(0.0)
            assert (first.quality, first.capacity_tokens, first.usage) == (Quality.OK, CPU_TINY.kv_tokens, 0)
            await complete(1000)
            await complete(1000)
            seen = await telemetry.read(1.0)
            block = seen.block_size
            assert seen.query_tokens_delta == 2000
            assert seen.hit_tokens_delta == 999 // block * block
            assert seen.usage == 0  # nothing runs: the cached blocks read as free

            for metrics, quality in (
                ("off", "stale"),
                ("error", "stale"),
                ("ok", "ok"),
                ("missing", "absent"),
            ):
                await fault(metrics)
                assert (await telemetry.read(2.0)).quality is Quality(quality)
            await fault("ok")
            seen = await telemetry.read(3.0)
            assert (seen.quality, seen.epoch, seen.query_tokens_delta) == (Quality.OK, 1, None)

            async with http.post("/restart") as response:
                assert response.status == 200
            seen = await telemetry.read(4.0)
            assert (seen.epoch, seen.query_tokens_delta) == (2, None)
            await complete(300)
            assert (await telemetry.read(5.0)).query_tokens_delta == pytest.approx(300)
