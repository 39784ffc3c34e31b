"""Everything together over HTTP: LangGraph and plain agents, telemetry, the embedded engine."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import aiohttp
import openai
import pytest
from concur_langgraph.bench_agents import LangGraphAgents
from concur_langgraph.handler import runs_of

from concur_agents import Controller, Quality, Static
from concur_agents.bench.distributions import always
from concur_agents.bench.library import workload_named
from concur_agents.events import StepEnded
from concur_agents.simulator.faults import Faults
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import profile_named
from concur_agents.telemetry import VLLM

PROFILE = profile_named("cpu-tiny")
SPEED = 200.0
SMALL = replace(workload_named("demo"), agents=6, steps=always(4), tool_seconds=always(0.5))


async def run_agents(server: EmbeddedServer, controller: Controller) -> list[BaseException | None]:
    agents = LangGraphAgents(server.url, server.model, controller, SMALL, SPEED)
    try:
        return await asyncio.gather(
            *(agents.run(trajectory) for trajectory in SMALL.trajectories(0)), return_exceptions=True
        )
    finally:
        await agents.close()


async def test_langgraph_agents_over_http_are_gated_and_the_ledger_agrees_with_the_engine() -> None:
    async with EmbeddedServer(PROFILE, speed=SPEED) as server:
        async with Controller(VLLM(server.url), policy=Static(2), interval_seconds=0.02) as controller:
            most, lengths = 0, []

            def see(event: object) -> None:
                nonlocal most
                most = max(most, controller.snapshot().generating)
                if isinstance(event, StepEnded):
                    lengths.append(event.tokens)

            controller.subscribe(see)
            assert await run_agents(server, controller) == [None] * 6
            await asyncio.sleep(0.1)
            snapshot = controller.snapshot()
            assert (snapshot.completed, snapshot.active, snapshot.open) == (6, 0, 0)
            assert runs_of(controller).idle
            assert snapshot.quality is Quality.OK
            assert snapshot.capacity_tokens == PROFILE.kv_tokens
            assert snapshot.revisits.rate == 1.0  # two agents fit: nothing is ever computed twice
            assert most <= 2
        async with aiohttp.ClientSession() as client, client.get(f"{server.url}/metrics") as response:
            metrics = await response.text()
    prompts, generated = (
        sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))
        for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    )
    assert len(lengths) == 6 * 4
    assert sum(lengths) == prompts + generated


@pytest.mark.parametrize(
    "faults", [Faults(error_rate=0.3, seed=1), Faults(drop_rate=0.3, seed=1)], ids=["500s", "drops"]
)
async def test_agents_that_die_of_the_engine_give_their_places_back(faults: Faults) -> None:
    async with (
        EmbeddedServer(PROFILE, speed=SPEED, faults=faults) as server,
        Controller(VLLM(server.url), policy=Static(1), interval_seconds=0.02) as controller,
    ):
        results = await run_agents(server, controller)
        assert any(isinstance(result, openai.APIError) for result in results)
        snapshot = controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
        assert snapshot.admitted == snapshot.completed + snapshot.failed == 6
        assert runs_of(controller).idle


@pytest.mark.parametrize("metrics", ["off", "hang", "missing"])
async def test_an_engine_without_usable_metrics_is_one_warning_and_agents_go_on(metrics: str, caplog) -> None:
    caplog.set_level(logging.WARNING, logger="concur_agents")
    faults = Faults(metrics=metrics)
    async with EmbeddedServer(PROFILE, speed=SPEED, faults=faults) as server:
        telemetry = VLLM(server.url, timeout_seconds=0.05)
        async with Controller(telemetry, interval_seconds=0.02, stale_after_seconds=0.1) as controller:
            assert await run_agents(server, controller) == [None] * 6
            assert controller.snapshot().quality is not Quality.OK
            assert controller.snapshot().window.agents == 16  # it never grew
    warnings = [r for r in caplog.records if r.name == "concur_agents" and "telemetry" in r.getMessage()]
    assert len(warnings) == 1


async def test_a_plain_client_cancelled_in_a_stream_frees_its_place_and_the_engine() -> None:
    async with EmbeddedServer(PROFILE, speed=1.0) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
        async with client, Controller(VLLM(server.url), policy=Static(1)) as controller:
            started = asyncio.Event()

            async def reader() -> None:
                async with controller.agent("a") as agent, agent.step():
                    stream = await client.chat.completions.create(
                        model=server.model,
                        messages=[{"role": "user", "content": "hi"}],
                        max_tokens=5000,
                        stream=True,
                        extra_body={"ignore_eos": True},
                    )
                    async for _ in stream:
                        started.set()

            task = asyncio.create_task(reader())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert controller.snapshot().active == 0
            async with asyncio.timeout(10):
                while (await VLLM(server.url).read(0.0)).running:
                    pass
