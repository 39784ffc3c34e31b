"""The live engine's metrics as readings: what it can hold, what it holds, what it found, what it gave up."""

from __future__ import annotations

import asyncio

import pytest

from concur_agents.signals import Quality
from concur_agents.telemetry import VLLM, detect
from tests.engine.live import BLOCK, SETTINGS, USABLE_BLOCKS, Engine, fresh_tokens, whole_blocks

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


async def test_it_is_recognised_and_says_what_it_can_hold(engine: Engine) -> None:
    telemetry = await detect(engine.url)
    assert isinstance(telemetry, VLLM)
    seen = await telemetry.read(0.0)
    assert (seen.quality, seen.reason, seen.epoch) == (Quality.OK, "", 0)
    assert (seen.capacity_tokens, seen.block_size) == (SETTINGS.kv_tokens, BLOCK)
    assert (seen.usage, seen.running, seen.waiting) == (0, 0, 0)
    [one] = seen.engines
    assert None not in (one.hit_tokens, one.query_tokens, one.preemptions)
    assert seen.hit_tokens_delta is None  # nothing to compare with yet


async def test_hits_and_queries_are_prompt_tokens_and_a_flush_is_no_restart(engine: Engine) -> None:
    telemetry, prompt = VLLM(engine.url), fresh_tokens(1000)
    await telemetry.read(0.0)
    for _ in range(2):
        await engine.complete(prompt)
    seen = await telemetry.read(1.0)
    assert (seen.query_tokens_delta, seen.hit_tokens_delta) == (2000, whole_blocks(999))
    assert seen.usage == 0  # cached blocks that nobody uses read as free
    await engine.flush()
    await engine.complete(prompt)
    seen = await telemetry.read(2.0)
    assert (seen.query_tokens_delta, seen.hit_tokens_delta, seen.epoch) == (1000, 0, 0)
    assert seen.quality is Quality.OK


async def test_usage_is_what_running_requests_hold(engine: Engine) -> None:
    async with engine.client() as client:
        stream = await client.completions.create(
            model=engine.model,
            prompt=fresh_tokens(8 * BLOCK),
            max_tokens=20 * BLOCK,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(stream)
        seen = await engine.until(lambda seen: seen.running == 1)
        # The gauge may be of the step before, when nothing had been generated yet.
        assert 8 / USABLE_BLOCKS <= seen.usage + 1e-9 <= 28 / USABLE_BLOCKS
        later = await engine.until(lambda later: later.usage > seen.usage)
        assert later.running == 1
        await stream.close()
    assert (await engine.until_idle()).usage == 0


async def test_a_full_cache_makes_requests_wait_and_preempts(engine: Engine) -> None:
    telemetry = VLLM(engine.url)
    await telemetry.read(0.0)
    # Two prompts fill all but three blocks and each needs two more to its end; the third one waits.
    calls = [asyncio.create_task(engine.complete(fresh_tokens(30 * BLOCK), 250)) for _ in range(3)]
    full = await engine.until(lambda seen: seen.usage > 0.9 and seen.waiting > 0)
    assert full.running >= 1
    await asyncio.gather(*calls)
    seen = await telemetry.read(1.0)
    assert seen.preemptions_delta >= 1
    assert seen.quality is Quality.OK
