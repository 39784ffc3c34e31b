"""Over HTTP, from AutoGen's OpenAI client to the engine: every request is admitted and says whose it is.

The embedded engine answers by the request's script, so that agents call tools and hand over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import openai as sdk
import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, Swarm
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import EVENT_LOGGER_NAME
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from concur_autogen import ConcurChatCompletionClient, run, run_stream

from concur_agents import Controller
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import profile_named
from tests.autogen.teams import RUNNERS, agent
from tests.autogen.wire import World, proxied


@pytest.fixture(scope="module")
def engine():
    with EmbeddedServer(profile_named("cpu-tiny"), speed=2000.0) as server:
        yield server.url


@pytest.fixture
async def proxy(engine):
    async with proxied(engine) as made:
        yield made


SCRIPT = "You are {}. [[concur steps=3 tool=work generate=8]]"


def with_agent_tool(client, tools, **options):
    helper = AgentTool(agent("helper", client, tools, system_message=SCRIPT.format("helper")))
    prompt = "You are parent. [[concur steps=3 tool=helper generate=8]]"
    return agent("parent", client, [helper], system_message=prompt, **options)


def with_team_tool(client, tools, **options):
    members = [agent(name, client, tools, system_message=SCRIPT.format(name)) for name in ("ann", "bob")]
    helpers = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3))
    tool = TeamTool(helpers, name="helpers", description="They help.")
    prompt = "You are parent. [[concur steps=3 tool=helpers generate=8]]"
    return agent("parent", client, [tool], system_message=prompt, **options)


KINDS = {**RUNNERS, "agent_tool": with_agent_tool, "team_tool": with_team_tool}


class Work:
    """A tool that knows how often it ran."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self, text: str = "") -> str:
        self.done += 1
        return "worked"

    @property
    def tool(self) -> FunctionTool:
        return FunctionTool(self.__call__, name="work", description="Work.")


async def work(text: str = "") -> str:
    """Work."""
    return "worked"


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_request_is_admitted_counted_and_says_whose_it_is(kind, stream, proxy):
    world, work = World(proxy), Work()
    await asyncio.gather(
        *(
            run(
                world.controller,
                KINDS[kind](world.client, [work.tool], model_client_stream=stream),
                task="Go on. [[concur steps=3 tool=work generate=8]]",
                agent_id=f"t{n}",
            )
            for n in range(4)
        )
    )
    assert work.done
    assert {body["session_id"] for body in proxy.seen} == {"t0", "t1", "t2", "t3"}
    assert any(body.get("stream") for body in proxy.seen) == stream
    assert not proxy.gate_crashers
    assert len(proxy.seen) == len(world.granted)
    assert proxy.together == 2
    assert max(proxy.peak.values()) == (2 if kind == "graph_flow" else 1)
    assert sorted(tokens for _, tokens in world.lengths) == proxy.lengths()
    world.assert_empty()


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
async def test_each_side_of_a_hand_over_is_a_context(stream, proxy):
    world = World(proxy)
    transfer = "You are ann. [[concur steps=2 tool=transfer_to_bob generate=8]]"
    options = {"model_client_stream": stream}
    swarm = Swarm(
        [
            agent("ann", world.client, handoffs=["bob"], system_message=transfer, **options),
            agent("bob", world.client, [work], system_message=SCRIPT.format("bob"), **options),
        ],
        termination_condition=MaxMessageTermination(6),
    )
    result = await run(world.controller, swarm, task="Go.", agent_id="t")
    assert any(message.type == "HandoffMessage" for message in result.messages)
    assert len(dict(world.lengths)) == 2
    assert sorted(tokens for _, tokens in world.lengths) == proxy.lengths()


async def test_a_truncated_context_is_no_congestion(proxy):
    world = World(proxy)
    context = BufferedChatCompletionContext(buffer_size=3)
    solo = agent("solo", world.client, [work], model_context=context, system_message="You are solo.")
    async with world.controller.agent("t"):
        for number in range(8):
            # Of several blocks, and longer each time: neither too little to find again, nor seen to shrink.
            await solo.run(task=f"Say something about the number {number}, please. " * (12 + 12 * number))
        assert sorted(tokens for _, tokens in world.lengths) == proxy.lengths()
        revisits = world.controller.snapshot().revisits
        assert len(dict(world.lengths)) == 1, "it stays one context"
    # Only what was appended to could be found again; all the rest was rewritten.
    assert revisits.rate == 1.0


async def test_cached_tokens_reach_the_ledger(proxy):
    world = World(proxy)
    solo = agent("solo", world.client, [work], system_message=SCRIPT.format("solo " * 400))
    await run(world.controller, solo, task="Go.", agent_id="t")
    revisits = world.controller.snapshot().revisits
    assert revisits.rate == 1.0


ERRORS = {
    "400": sdk.BadRequestError,
    "500": sdk.InternalServerError,
    "drop": sdk.APIConnectionError,
    "hang": sdk.APITimeoutError,
}


@pytest.mark.parametrize("spoil", ERRORS)
@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
async def test_an_error_gives_the_place_back_and_keeps_its_type(spoil, stream, proxy):
    world = World(proxy, places=1, timeout=0.2 if spoil == "hang" else 10.0)
    proxy.spoil = spoil
    for make in (RUNNERS["solo"], RUNNERS["round_robin"]):
        with pytest.raises(ERRORS[spoil]):
            await run(world.controller, make(world.client, [work], model_client_stream=stream), task="Go.")
        world.assert_empty()
    async with world.controller.agent("t"):
        solo = RUNNERS["solo"](world.client, model_client_stream=stream)
        with pytest.raises(ERRORS[spoil]):
            await solo.run(task="Go.")
        snapshot = world.controller.snapshot()
        assert (snapshot.active, snapshot.generating) == (1, 0), "it is at a boundary"


class Heard:
    """What a reader of a stream got before it ended or failed."""

    def __init__(self, stream: AsyncIterator[Any]) -> None:
        self.stream = stream
        self.kinds: list[str] = []

    async def out(self) -> None:
        async for item in self.stream:
            self.kinds.append(type(item).__name__)


async def test_a_stream_that_breaks_off_gives_the_place_back(proxy):
    world = World(proxy, places=1)
    proxy.spoil = "cut"
    solo = RUNNERS["solo"](world.client, model_client_stream=True)
    heard = Heard(run_stream(world.controller, solo, task="Go."))
    with pytest.raises(sdk.APIConnectionError):
        await heard.out()
    assert heard.kinds[-1] == "ModelClientStreamingChunkEvent"
    world.assert_empty()
    proxy.spoil = ""
    await run(world.controller, RUNNERS["solo"](world.client), task="Go.")


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
async def test_a_server_that_refuses_the_field_is_told_apart(stream, proxy):
    world = World(proxy)
    proxy.spoil = "strict"
    for make in (RUNNERS["solo"], RUNNERS["round_robin"]):
        with pytest.raises(sdk.BadRequestError) as refused:
            await run(world.controller, make(world.client, model_client_stream=stream), task="Go.")
        assert "session_field=None" in "".join(refused.value.__notes__)
    without = ConcurChatCompletionClient(proxy.client(), world.controller, session_field=None)
    await run(world.controller, RUNNERS["solo"](without, model_client_stream=stream), task="Go.")


async def test_waiting_for_a_place_does_not_use_up_the_http_time_out(proxy):
    world = World(proxy, places=1)
    client = ConcurChatCompletionClient(proxy.client(timeout=0.4), world.controller)
    holder = asyncio.create_task(hold(world.controller, 0.8))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(run(world.controller, RUNNERS["solo"](client), task="Go."))
    await asyncio.sleep(0.1)
    assert world.controller.snapshot().waiting == 1
    result = await waiting
    await holder
    assert result.messages[-1].source == "solo"


async def hold(controller: Controller, seconds: float) -> None:
    async with controller.agent("holder") as holder, holder.step():
        await asyncio.sleep(seconds)


async def test_no_field_where_none_is_wanted(proxy):
    world = World(proxy)
    client = ConcurChatCompletionClient(proxy.client(), world.controller, session_field=None)
    await client.create([UserMessage(content="Hello.", source="user")])
    assert "session_id" not in proxy.seen[0]


async def test_what_the_user_passes_is_kept(proxy):
    world = World(proxy)
    extra = {"extra_body": {"concur": {"generate": 3}, "top_k": 5}, "stream_options": {"x": 1}}
    messages = [SystemMessage(content="Be brief."), UserMessage(content="Hello.", source="user")]
    async with world.controller.agent("t"):
        async for _ in world.client.create_stream(messages, extra_create_args=extra):
            pass
    assert proxy.seen[0]["top_k"] == 5
    assert proxy.seen[0]["stream_options"] == {"x": 1, "include_usage": True}
    assert proxy.seen[0]["session_id"] == "t"


class Kept(logging.Handler):
    """What a user sees of AutoGen's event log."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if type(record.msg).__name__ == "LLMCallEvent":
            self.levels.append(record.levelno)


@pytest.fixture
def event_log():
    log = logging.getLogger(EVENT_LOGGER_NAME)
    level, log.level = log.level, logging.NOTSET
    log.setLevel(logging.NOTSET)
    yield log
    log.setLevel(level)


# None: a user who did not set it has what the root logger says.
@pytest.mark.parametrize("level", [None, logging.DEBUG, logging.INFO, logging.WARNING])
@pytest.mark.parametrize("late", [False, True], ids=["", "set late"])
@pytest.mark.parametrize("root", [logging.WARNING, logging.INFO])
async def test_reading_the_event_log_shows_users_what_they_asked_for(
    event_log, caplog, level, late, root, proxy
):
    kept = Kept()
    caplog.set_level(root)
    event_log.addHandler(kept)
    try:
        if not late and level is not None:
            event_log.setLevel(level)
        world = World(proxy)
        messages: list[LLMMessage] = [UserMessage(content="Hello. " * 100, source="user")]
        async with world.controller.agent("t"):
            answer = await world.client.create(messages)
            kept.levels.clear()
            if late and level is not None:
                event_log.setLevel(level)
            messages += [AssistantMessage(content=str(answer.content), source="solo"), messages[0]]
            await world.client.create(messages)
        revisits = world.controller.snapshot().revisits
    finally:
        event_log.removeHandler(kept)
    shown = (root if level is None else level) <= logging.INFO
    assert kept.levels == [logging.INFO] * shown
    assert revisits.rate == 1.0, "the ledger has it, whatever they asked for"
