"""The same arms over HTTP, on the embedded engine at many times its speed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from concur_agents.bench.distributions import Uniform, always
from concur_agents.bench.engines import Embedded, EngineUnusableError, Remote
from concur_agents.bench.library import DEMO
from concur_agents.bench.live import run_live, totals
from concur_agents.bench.openai_agents import OpenAIAgents, Prose
from concur_agents.bench.session import run_simulated
from concur_agents.bench.tables import results_table
from concur_agents.signals import EngineReading, Quality, Reading
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import CPU_TINY
from concur_agents.simulator.tokens import token_count
from tests.bench.rendering import rendered

SMALL = replace(DEMO, name="small", agents=8, steps=always(5), tool_seconds=Uniform(0.2, 0.4))


async def test_an_arm_over_http_is_the_arm_in_virtual_time():
    live = await run_live(SMALL, Embedded(CPU_TINY, 4.0), ("aimd",), OpenAIAgents)
    simulated = run_simulated(SMALL, CPU_TINY, ("aimd",))
    over_http, virtual = live.arms[0], simulated.arms[0]
    assert over_http.agents_completed == 8
    assert over_http.steps == 40
    assert over_http.error is None
    assert over_http.hit_rate == pytest.approx(virtual.hit_rate, abs=0.15)
    assert over_http.prompt_tokens_computed == pytest.approx(virtual.prompt_tokens_computed, rel=0.35)
    assert over_http.seconds * 4 == pytest.approx(virtual.seconds, rel=0.6)
    assert over_http.revisit_hit_rate is not None
    assert (live.engine, live.profile, live.speed) == ("embedded", "cpu-tiny", 4.0)
    assert over_http.samples


async def test_a_server_that_is_there_already():
    async with EmbeddedServer(CPU_TINY, speed=50.0) as server:
        remote = Remote(server.url + "/v1")
        assert await remote.model() == "tiny"
        result = await run_live(
            replace(SMALL, tool_seconds=always(0.01)), remote, ("none", "static:2"), OpenAIAgents
        )
    assert [arm.agents_completed for arm in result.arms] == [8, 8]
    # The counters go on from arm to arm; each arm has its own share.
    none, capped = result.arms
    assert none.prompt_tokens_computed + capped.prompt_tokens_computed > none.prompt_tokens_computed > 0
    assert 0 < capped.hit_rate < 1


async def test_an_address_where_nobody_is():
    with pytest.raises(EngineUnusableError, match="no OpenAI-compatible server answers at"):
        await run_live(SMALL, Remote("http://127.0.0.1:9"), ("none",), OpenAIAgents)


class Failing:
    """Agents of which the even ones fail."""

    def __init__(self, base_url, model, controller, workload, speed):
        self.controller = controller

    async def run(self, trajectory):
        async with self.controller.agent(trajectory.agent_id) as agent, agent.step():
            if trajectory.index % 2 == 0:
                msg = "the tool exploded"
                raise OSError(msg)

    async def close(self):
        pass


async def test_failing_agents_are_counted_and_leave_the_others_alone():
    result = await run_live(SMALL, Embedded(CPU_TINY, 20.0), ("static:1",), Failing)
    (arm,) = result.arms
    assert (arm.agents_completed, arm.agents_failed) == (4, 4)
    assert "agent-00000 failed: OSError: the tool exploded" in arm.error


class Brief(Failing):
    """Agents whose model ends their loop after one step."""

    async def run(self, trajectory):
        async with self.controller.agent(trajectory.agent_id) as agent, agent.step():
            pass


async def test_agents_that_end_early_are_not_passed_off_as_the_workload():
    result = await run_live(SMALL, Embedded(CPU_TINY, 20.0), ("static:8",), Brief)
    (arm,) = result.arms
    assert (arm.agents_completed, arm.agents_failed) == (8, 0)
    assert arm.error.startswith("the agents took 8 of 40 steps: this model ends their loops early; ")
    assert f"* static:8: {arm.error}" in " ".join(rendered(results_table(result)).split())


class Endless(Failing):
    async def run(self, trajectory):
        async with self.controller.agent(trajectory.agent_id) as agent, agent.step():
            await asyncio.sleep(3600)


async def test_cancelled_it_reports_what_there_is():
    task = asyncio.create_task(run_live(SMALL, Embedded(CPU_TINY), ("static:3", "aimd"), Endless))
    await asyncio.sleep(0.5)
    task.cancel()
    result = await task
    assert result.partial
    assert [arm.arm for arm in result.arms] == ["static:3"]
    assert result.arms[0].agents_completed == 0
    assert len(asyncio.all_tasks()) == 1


class TestProse:
    @pytest.mark.parametrize("tokens", [10, 57, 400])
    def test_has_the_wanted_length(self, tokens):
        text = Prose().write(tokens, "a:")
        assert token_count(text) + 2 == tokens  # two markers round a message

    def test_differs_from_its_first_block_on(self):
        assert Prose().write(50, "agent 1")[:16] != Prose().write(50, "agent 2")[:16]

    async def test_is_fitted_to_the_tokenizer_of_a_server(self):
        async with EmbeddedServer(CPU_TINY, speed=100.0) as server:
            prose = await Prose.measured(server.url, server.model)
        assert prose.tokens_per_character == pytest.approx(0.25, rel=0.01)
        assert prose.overhead == pytest.approx(3.0, abs=1.0)


class TestTotals:
    def reading(self, *engines, epoch=0):
        return Reading(0.0, Quality.OK, epoch, engines=engines)

    def test_are_the_growth_of_all_engines(self):
        before = self.reading(
            EngineReading("0", hit_tokens=10, query_tokens=100), EngineReading("1", hit_tokens=0)
        )
        after = self.reading(
            EngineReading("0", hit_tokens=40, query_tokens=200),
            EngineReading("1", hit_tokens=5, query_tokens=50),
        )
        found = totals(before, after)
        assert (found.hit_tokens, found.query_tokens, found.preemptions) == (35.0, 150.0, None)

    def test_are_unknown_over_a_restart(self):
        one = EngineReading("0", hit_tokens=10, query_tokens=100)
        assert totals(self.reading(one), self.reading(one, epoch=1)).hit_tokens is None
