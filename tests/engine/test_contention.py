"""Eight agents on a cache for four: admission saves the engine most of the prompts it would compute again."""

from __future__ import annotations

from functools import partial

import pytest

from concur_agents.bench.distributions import Uniform, always
from concur_agents.bench.engines import Remote
from concur_agents.bench.live import run_live
from concur_agents.bench.openai_agents import OpenAIAgents, Prose
from concur_agents.bench.workloads import Workload
from tests.engine.live import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

CROWD = Workload(
    name="crowd",
    agents=8,
    steps=always(8),
    first_tokens=always(250),
    new_tokens=always(250),
    generate=always(8),
    tool_seconds=Uniform(0.2, 0.6),
    profile="cpu-tiny",
    arms=("none", "aimd"),
    source="a final context of 2,064 tokens, so that four of them fill the cache",
)


async def test_aimd_computes_far_fewer_prompt_tokens_than_no_control(engine: Engine) -> None:
    agents = partial(OpenAIAgents, prose=await Prose.measured(engine.url, engine.model))
    found = await run_live(CROWD, Remote(engine.url), CROWD.arms, agents, interval_seconds=0.25)
    none, aimd = found.arms
    for arm in (none, aimd):
        assert (arm.agents_completed, arm.agents_failed, arm.error) == (8, 0, None)
        assert arm.steps == 64
    assert none.hit_rate < 0.5
    assert aimd.pauses > 0
    assert aimd.prompt_tokens_computed < 0.6 * none.prompt_tokens_computed
    assert aimd.revisit_hit_rate > none.revisit_hit_rate
    # Nobody pays for a prompt less than once.
    assert aimd.prompt_tokens_computed > 8 * 8 * 200
