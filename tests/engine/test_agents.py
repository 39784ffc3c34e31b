"""Agents with a real cache: what a pause keeps, what a flush or others take, what a cancelled call frees."""

from __future__ import annotations

import asyncio

import pytest
from concur_langgraph import gated
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from concur_agents import Controller, Static
from concur_agents.telemetry import VLLM
from tests.engine.live import SETTINGS, Engine, cached, fresh_tokens, soon, whole_blocks

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


async def test_cached_tokens_come_with_each_call_and_make_the_revisit_rate(engine: Engine) -> None:
    async with (
        Controller(VLLM(engine.url), interval_seconds=0.05) as controller,
        controller.agent("a") as agent,
    ):
        await soon(lambda: controller.snapshot().capacity_tokens == SETTINGS.kv_tokens)
        context = fresh_tokens(700)
        assert cached(await engine.step(agent, context)) == 0
        known = 0
        for new in (300, 10, 500):
            known += whole_blocks(len(context) - 1)  # the last token was generated, not yet read
            before = len(context)
            context += fresh_tokens(new)
            assert cached(await engine.step(agent, context)) == whole_blocks(before - 1)
        revisits = controller.snapshot().revisits
        assert revisits.hit_tokens == known
        assert revisits.rate == 1.0


@pytest.mark.parametrize("meanwhile", ["nothing", "a flush", "another agent"])
async def test_a_paused_agent_finds_its_cache_unless_something_took_it(
    engine: Engine, meanwhile: str
) -> None:
    async with (
        Controller(VLLM(engine.url), policy=Static(2), interval_seconds=0.05) as controller,
        controller.agent("paused") as agent,
    ):
        await soon(lambda: controller.snapshot().capacity_tokens is not None)
        context = fresh_tokens(2000)
        await engine.step(agent, context)
        kept = whole_blocks(len(context) - 1)
        controller.pause("paused")
        context += fresh_tokens(200)
        asked = asyncio.create_task(engine.step(agent, context))
        await soon(lambda: controller.snapshot().paused == 1)
        assert (await engine.read()).running == 0
        if meanwhile == "a flush":
            await engine.flush()
        elif meanwhile == "another agent":
            async with controller.agent("other") as other:
                for _ in range(2):  # more than the cache can hold beside it
                    await engine.step(other, fresh_tokens(3900))
        assert not asked.done()
        controller.resume("paused")
        found = cached(await asked)
        if meanwhile == "nothing":
            assert (found, controller.snapshot().revisits.rate) == (kept, 1.0)
        else:
            assert found < kept / 2
            assert controller.snapshot().revisits.rate < 0.5


def endless(engine: Engine, kind: str):
    """A call that generates 3,000 tokens, admitted under the controller given."""
    extra = {"ignore_eos": True}

    async def with_openai(controller: Controller) -> None:
        async with controller.agent("endless") as agent, agent.step(), engine.client() as client:
            reply = await client.completions.create(
                model=engine.model,
                prompt=fresh_tokens(500),
                max_tokens=3000,
                stream=kind == "stream",
                extra_body=extra,
            )
            if kind == "stream":
                async for _ in reply:
                    pass

    async def with_langchain(controller: Controller) -> None:
        model = ChatOpenAI(
            base_url=f"{engine.url}/v1", model=engine.model, api_key="-", max_tokens=3000, extra_body=extra
        )
        await gated(RunnableLambda(model.ainvoke), controller).ainvoke("go on " * 50)

    return with_langchain if kind == "langchain" else with_openai


@pytest.mark.parametrize("kind", ["whole", "stream", "langchain"])
async def test_a_cancelled_call_is_aborted_on_the_engine_and_gives_its_place_back(
    engine: Engine, kind: str
) -> None:
    async with Controller(VLLM(engine.url), policy=Static(1)) as controller:
        before = await engine.generated()
        call = asyncio.create_task(endless(engine, kind)(controller))
        await engine.until(lambda seen: seen.running == 1)

        async def next_in_line() -> int:
            async with controller.agent("next") as agent:
                return (await engine.step(agent, fresh_tokens(200))).completion_tokens

        waiting = asyncio.create_task(next_in_line())
        await soon(lambda: controller.snapshot().waiting == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await waiting == 8
        assert (await engine.until_idle()).usage == 0
        assert await engine.generated() - before < 3000
        snapshot = controller.snapshot()
        assert (snapshot.open, snapshot.active, snapshot.cancelled, snapshot.completed) == (0, 0, 1, 1)
