"""AutoGen's teams on a real engine: admitted, counted as the engine counts, and aborted when cancelled."""

from __future__ import annotations

import asyncio

import pytest
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from concur_autogen import ConcurChatCompletionClient, run
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from concur_agents.events import StepEnded
from concur_agents.telemetry import VLLM
from tests.autogen.teams import RUNNERS
from tests.engine.live import Engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

KINDS = [name for name in RUNNERS if name != "magentic_one"]  # its orchestrator wants JSON of the model
INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
    multiple_system_messages=True,
)


def wrapped(engine: Engine, controller: Controller, **options) -> ConcurChatCompletionClient:
    client = OpenAIChatCompletionClient(
        model=engine.model,
        base_url=f"{engine.url}/v1",
        api_key="unused",
        model_info=INFO,
        max_retries=0,
        **{"max_tokens": 16, **options},
    )
    return ConcurChatCompletionClient(client, controller)


def empty(controller: Controller) -> bool:
    snapshot = controller.snapshot()
    return (snapshot.active, snapshot.waiting, snapshot.open, len(trajectories_of(controller))) == (
        0,
        0,
        0,
        0,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_teams_are_admitted_and_counted_as_the_engine_counts(engine: Engine, kind: str, stream: bool):
    lengths: list[int] = []
    async with Controller(VLLM(engine.url), policy=Static(2), interval_seconds=0.1) as controller:
        controller.subscribe(lambda e: lengths.append(e.tokens) if isinstance(e, StepEnded) else None)
        client = wrapped(engine, controller)
        results = await asyncio.gather(
            *(
                run(controller, RUNNERS[kind](client, model_client_stream=stream), task=f"task {n}")
                for n in range(4)
            )
        )
        assert empty(controller)
    used = [m.models_usage for result in results for m in result.messages if m.models_usage]
    told = {usage.prompt_tokens + usage.completion_tokens for usage in used}
    assert told
    assert told <= set(lengths)
    await engine.until_idle()


@pytest.mark.parametrize("kind", ["solo", "round_robin", "graph_flow", "society"])
async def test_a_cancelled_run_is_aborted_on_the_engine(engine: Engine, kind: str):
    async with Controller(VLLM(engine.url), policy=Static(1), interval_seconds=0.1) as controller:
        client = wrapped(engine, controller, max_tokens=3000)
        going = asyncio.create_task(run(controller, RUNNERS[kind](client), task="go on"))
        await engine.until(lambda seen: bool(seen.running))
        going.cancel()
        await asyncio.wait([going])
        await engine.until_idle()
        assert empty(controller)


async def test_cached_tokens_of_a_growing_conversation_are_revisits(engine: Engine):
    async with Controller(VLLM(engine.url), policy=Static(1), interval_seconds=0.1) as controller:
        client = wrapped(engine, controller)
        team = RUNNERS["solo"](client, system_message="You go on and on. " * 60)
        async with controller.agent("t"):
            for number in range(4):
                await team.run(task=f"Part {number}. " + "and so on " * 40)
            revisits = controller.snapshot().revisits
    assert revisits.tokens > 0
    assert revisits.rate > 0.9  # noise may be read back as other tokens than it was written in
