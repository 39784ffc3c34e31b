"""Over HTTP, from AutoGen's real OpenAI client to the engine: every request is admitted and says whose it is.

A recording proxy stands before the embedded engine. It asks the controller at each request whose call it is
and who may have one in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import EVENT_LOGGER_NAME
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import ModelFamily, ModelInfo, SystemMessage, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from concur_autogen import ConcurChatCompletionClient, run
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from concur_agents.events import Granted, StepEnded
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import profile_named
from tests.autogen.teams import RUNNERS, agent, round_robin

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
    multiple_system_messages=True,
)


@dataclass
class Proxy:
    """Records requests on their way to the engine, and may spoil them."""

    engine: str
    seen: list[dict[str, Any]] = field(default_factory=list)
    flying: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)
    together: int = 0
    usage: list[dict[str, Any]] = field(default_factory=list)
    spoil: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        who = str(body.get("session_id"))
        self.seen.append(body)
        self.flying[who] += 1
        self.peak[who] = max(self.peak[who], self.flying[who])
        self.together = max(self.together, sum(1 for n in self.flying.values() if n))
        try:
            if self.spoil == "drop":
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError
            if self.spoil:
                return web.json_response({"error": {"message": "spoilt"}}, status=int(self.spoil))
            if "select the next role" in str(body["messages"][-1]["content"]):
                # The selector's answer is a name; the engine's is filler.
                return self.answer(body, ("ann", "bob")[len(self.seen) % 2])
            return await self.forward(request, body)
        finally:
            self.flying[who] -= 1

    def answer(self, body: dict[str, Any], text: str) -> web.Response:
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
            }
        )

    async def forward(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.engine + request.path, json=body) as answer,
        ):
            if not body.get("stream"):
                found = await answer.json()
                self.usage.append(found.get("usage"))
                return web.json_response(found, status=answer.status)
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for line in answer.content:
                if line.startswith(b"data: {") and (usage := json.loads(line[6:]).get("usage")):
                    self.usage.append(usage)
                await response.write(line)
            return response


@contextlib.asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, str]]:
    async with EmbeddedServer(profile_named("cpu-tiny"), speed=2000.0) as engine:
        proxy = Proxy(engine.url)
        app = web.Application()
        app.router.add_post("/v1/chat/completions", proxy.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield proxy, f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def openai(url: str, **options: Any) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model="tiny", base_url=f"{url}/v1", api_key="x", model_info=INFO, max_retries=0, **options
    )


class World:
    def __init__(self, url: str, places: int = 2) -> None:
        self.controller = Controller(policy=Static(places), block_size=128)  # as the engine
        self.client = ConcurChatCompletionClient(openai(url), self.controller)
        self.granted: list[str] = []
        self.lengths: dict[str, int] = {}
        self.controller.subscribe(self.see)

    def see(self, event: object) -> None:
        if isinstance(event, Granted):
            self.granted.append(event.agent_id)
        elif isinstance(event, StepEnded):
            self.lengths[event.agent_id] = event.tokens

    def assert_empty(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
        assert len(trajectories_of(self.controller)) == 0


async def work(text: str = "") -> str:
    """Work."""
    return "worked"


SCRIPT = "You are {}. [[concur steps=3 tool=work generate=8]]"


def with_agent_tool(client, tools, **options):
    helper = AgentTool(agent("helper", client, system_message=SCRIPT.format("helper")))
    prompt = "You are parent. [[concur steps=3 tool=helper generate=8]]"
    return agent("parent", client, [helper], system_message=prompt, **options)


def with_team_tool(client, tools, **options):
    tool = TeamTool(round_robin(client, tools), name="helpers", description="They help.")
    prompt = "You are parent. [[concur steps=3 tool=helpers generate=8]]"
    return agent("parent", client, [tool], system_message=prompt, **options)


# A Magentic-One orchestrator wants JSON, which the simulated model does not write.
KINDS = {
    **{name: make for name, make in RUNNERS.items() if name != "magentic_one"},
    "agent_tool": with_agent_tool,
    "team_tool": with_team_tool,
}


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_request_is_admitted_and_says_whose_it_is(kind, stream):
    if kind == "selector" and stream:
        pytest.skip("the selector's answers come from the proxy, which does not stream")
    async with proxied() as (proxy, url):
        world = World(url)
        await asyncio.gather(
            *(
                run(
                    world.controller,
                    KINDS[kind](world.client, [work], model_client_stream=stream),
                    task="Go on. [[concur steps=3 tool=work generate=8]]",
                    agent_id=f"t{n}",
                )
                for n in range(4)
            )
        )
        assert {body["session_id"] for body in proxy.seen} == {"t0", "t1", "t2", "t3"}
        assert len(proxy.seen) == len(world.granted)
        assert {name.partition("/")[0] for name in world.granted} == {"t0", "t1", "t2", "t3"}
        assert proxy.together <= 2
        assert max(proxy.peak.values()) == (2 if kind == "graph_flow" else 1)
        assert any(body.get("stream") for body in proxy.seen) == stream
        world.assert_empty()


@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
async def test_the_ledger_counts_what_the_engine_counts(stream):
    async with proxied() as (proxy, url):
        world = World(url)
        solo = agent(
            "solo", world.client, [work], system_message=SCRIPT.format("solo"), model_client_stream=stream
        )
        await run(world.controller, solo, task="Go.", agent_id="t")
        assert len(proxy.usage) == 3
        last = proxy.usage[-1]
        assert world.lengths == {"t": last["prompt_tokens"] + last["completion_tokens"]}


async def test_the_ledger_counts_each_side_of_a_hand_over():
    async with proxied() as (proxy, url):
        world = World(url)
        ann = agent(
            "ann",
            world.client,
            handoffs=["bob"],
            system_message="You are ann. [[concur steps=2 tool=transfer_to_bob generate=8]]",
        )
        bob = agent("bob", world.client, [work], system_message=SCRIPT.format("bob"))
        from autogen_agentchat.conditions import MaxMessageTermination
        from autogen_agentchat.teams import Swarm

        swarm = Swarm([ann, bob], termination_condition=MaxMessageTermination(6))
        await run(world.controller, swarm, task="Go.", agent_id="t")
        assert len(world.lengths) == 2
        engine = {u["prompt_tokens"] + u["completion_tokens"] for u in proxy.usage}
        assert set(world.lengths.values()) <= engine


async def test_a_truncated_context_is_no_congestion():
    async with proxied() as (_, url):
        world = World(url)
        context = BufferedChatCompletionContext(buffer_size=3)
        solo = agent("solo", world.client, [work], model_context=context, system_message="You are solo.")
        async with world.controller.agent("t"):
            for number in range(8):
                await solo.run(task=f"Say something about the number {number}, at some length, please.")
            revisits = world.controller.snapshot().revisits
            assert len(world.lengths) == 1, "it stays one context"
        # Only what was appended to could be found again; all the rest was rewritten.
        assert revisits.rate in (None, 1.0)


async def test_cached_tokens_reach_the_ledger():
    async with proxied() as (_, url):
        world = World(url)
        solo = agent("solo", world.client, [work], system_message=SCRIPT.format("solo " * 400))
        await run(world.controller, solo, task="Go.", agent_id="t")
        revisits = world.controller.snapshot().revisits
        assert revisits.rate == 1.0


@pytest.mark.parametrize("spoil", ["400", "500", "drop"])
@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
async def test_an_error_gives_the_place_back_and_keeps_its_type(spoil, stream):
    import openai as sdk

    expected = {"400": sdk.BadRequestError, "500": sdk.InternalServerError, "drop": sdk.APIConnectionError}
    async with proxied() as (proxy, url):
        world = World(url, places=1)
        proxy.spoil = spoil
        for make in (RUNNERS["solo"], RUNNERS["round_robin"]):
            with pytest.raises(expected[spoil]):
                await run(
                    world.controller, make(world.client, [work], model_client_stream=stream), task="Go."
                )
            world.assert_empty()
        proxy.spoil = ""
        await run(world.controller, RUNNERS["solo"](world.client, [work]), task="Go.")


async def test_waiting_for_a_place_does_not_use_up_the_http_time_out():
    async with proxied() as (_, url):
        world = World(url, places=1)
        client = ConcurChatCompletionClient(openai(url, timeout=0.4), world.controller)
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


async def test_no_field_where_none_is_wanted():
    async with proxied() as (proxy, url):
        world = World(url)
        client = ConcurChatCompletionClient(openai(url), world.controller, session_field=None)
        await client.create([UserMessage(content="Hello.", source="user")])
        await client.close()
        assert "session_id" not in proxy.seen[0]


async def test_what_the_user_passes_is_kept():
    async with proxied() as (proxy, url):
        world = World(url)
        extra = {"extra_body": {"concur": {"generate": 3}, "top_k": 5}, "stream_options": {"x": 1}}
        messages = [SystemMessage(content="Be brief."), UserMessage(content="Hello.", source="user")]
        async with world.controller.agent("t"):
            async for _ in world.client.create_stream(messages, extra_create_args=extra):
                pass
        assert proxy.seen[0]["top_k"] == 5
        assert proxy.seen[0]["stream_options"] == {"x": 1, "include_usage": True}
        assert proxy.seen[0]["session_id"] == "t"


class TestLogging:
    """Reading AutoGen's event log shows nobody more, and nobody less."""

    async def calls(self) -> None:
        async with proxied() as (_, url):
            world = World(url)
            solo = agent("solo", world.client, [work], system_message=SCRIPT.format("solo"))
            await run(world.controller, solo, task="Go.")

    async def test_nothing_more_is_shown(self, caplog):
        with caplog.at_level(logging.WARNING):
            await self.calls()
        assert [r for r in caplog.records if r.name == EVENT_LOGGER_NAME] == []

    async def test_who_asks_for_events_gets_them(self):
        seen: list[logging.LogRecord] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                seen.append(record)

        handler, log = Keep(), logging.getLogger(EVENT_LOGGER_NAME)
        log.addHandler(handler)
        try:
            await self.calls()
        finally:
            log.removeHandler(handler)
        assert sum(type(r.msg).__name__ == "LLMCallEvent" for r in seen) == 3
