"""The comparison with `max_concurrency`: the same agents, limited by whole trajectories or by the gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from concur_langgraph.comparison import Arm, abatch, as_json, gated_abatch

from concur_agents.bench.distributions import always
from concur_agents.bench.engines import Embedded
from concur_agents.bench.library import DEMO
from concur_agents.simulator.profiles import profile_named

SMALL = replace(DEMO, agents=4, steps=always(3), tool_seconds=always(0.5))


@pytest.mark.parametrize("way", [1, 4, "aimd"])
async def test_all_calls_are_made_whoever_limits_them(way):
    async with Embedded(profile_named("cpu-tiny"), 200.0).arm() as server:
        if isinstance(way, int):
            await abatch(SMALL, server, 200.0, way)
        else:
            await gated_abatch(SMALL, server, 200.0, way)
        reading = await server.meter.read(0.0)
        await server.meter.close()
    prompts = sum(engine.query_tokens or 0 for engine in reading.engines)
    assert prompts > 4 * 3 * 128, "four agents, three calls each"


def test_the_best_cap_is_the_quickest():
    arms = [Arm("max_concurrency=2", 30.0, 0.8, 10), Arm("max_concurrency=4", 20.0, 0.8, 10)]
    found = as_json([*arms, Arm("gated, aimd", 18.0, 0.8, 10)], 8.0)
    assert found["best"] == "max_concurrency=4"
    assert [arm["over_best"] for arm in found["arms"]] == [1.5, 1.0, 0.9]
