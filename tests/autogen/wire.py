"""A recording proxy before an engine, and a world whose controller the proxy asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from autogen_core.models import ModelFamily, ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from concur_autogen import ConcurChatCompletionClient
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from concur_agents.events import Event, Granted, StepEnded
from tests.autogen.teams import NAMES, director

INFO = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
    multiple_system_messages=True,
)
DONE = b"data: [DONE]"
HEADERS = {"Content-Type": "text/event-stream"}


@dataclass
class Proxy:
    """Records requests on their way to the engine, and may spoil them."""

    engine: str
    url: str = ""
    admitted: Mapping[str, int] | None = None
    """Calls of each trajectory that the controller let go ahead and that are not over."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    flying: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    peak: Counter[str] = field(default_factory=Counter)
    together: int = 0
    """Most trajectories with a request in flight."""
    gate_crashers: list[str] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    spoil: str = ""
    """A status, `drop` (no answer), `cut` (half an answer), `hang`, or `strict` (no unknown fields)."""
    clients: list[OpenAIChatCompletionClient] = field(default_factory=list)
    directors: defaultdict[str, Callable[..., Any]] = field(
        default_factory=lambda: defaultdict(lambda: director(NAMES))
    )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        who, number = str(body.get("session_id")), len(self.seen)
        self.seen.append(body)
        self.flying[who].add(number)
        self.peak[who] = max(self.peak[who], len(self.flying[who]))
        self.together = max(self.together, sum(1 for flying in self.flying.values() if flying))
        if self.admitted is not None and len(self.flying[who]) > self.admitted[who]:
            self.gate_crashers.append(who)
        try:
            return await self.answer(request, body, lambda: self.flying[who].discard(number))
        finally:
            self.flying[who].discard(number)

    async def answer(
        self, request: web.Request, body: dict[str, Any], landed: Callable[[], None]
    ) -> web.StreamResponse:
        if self.spoil == "hang":
            await asyncio.sleep(30)  # longer than any client's patience here
        if self.spoil == "drop":
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        if self.spoil == "strict" and "session_id" in body:
            message = "Unrecognized request argument supplied: session_id"
            return web.json_response({"error": {"message": message}}, status=400)
        if self.spoil.isdigit():
            return web.json_response({"error": {"message": "spoilt"}}, status=int(self.spoil))
        asks = str(body["messages"][-1]["content"])
        if "select the next role" in asks or "pure JSON" in asks:
            # Those want a name, or JSON; the engine's answers are filler.
            said = self.directors[str(body.get("session_id"))]([UserMessage(content=asks, source="-")])
            return await self.say(request, body, said.content, landed)
        return await self.forward(request, body, landed)

    async def say(
        self, request: web.Request, body: dict[str, Any], text: str, landed: Callable[[], None]
    ) -> web.StreamResponse:
        """An answer that the engine has no part in."""
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        self.usage.append(usage)
        said = {"role": "assistant", "content": text}
        head = {"id": "x", "created": 0, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        response = web.StreamResponse(headers=HEADERS)
        await response.prepare(request)
        head["object"] = "chat.completion.chunk"
        choice = {"index": 0, "delta": said, "finish_reason": "stop"}
        for chunk in ({"choices": [choice]}, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n")
        landed()
        await response.write(DONE + b"\n\n")
        return response

    async def forward(
        self, request: web.Request, body: dict[str, Any], landed: Callable[[], None]
    ) -> web.StreamResponse:
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.engine + request.path, json=body) as answer,
        ):
            if not body.get("stream"):
                found = await answer.json()
                self.usage.append(found.get("usage"))
                return web.json_response(found, status=answer.status)
            response = web.StreamResponse(headers=HEADERS)
            await response.prepare(request)
            async for line in answer.content:
                chunk = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                if chunk.get("usage"):
                    self.usage.append(chunk["usage"])
                if line.startswith(DONE):
                    landed()  # the client has it, and may call again, before this handler is through
                await response.write(line)
                if self.spoil == "cut" and any(c["delta"].get("content") for c in chunk.get("choices", ())):
                    assert request.transport is not None
                    await response.write(b"\n")  # ends the event
                    request.transport.close()  # what was written is sent
                    raise ConnectionResetError
            return response

    def client(self, **options: Any) -> OpenAIChatCompletionClient:
        """AutoGen's own, closed at the end."""
        client = OpenAIChatCompletionClient(
            model="tiny", base_url=f"{self.url}/v1", api_key="x", model_info=INFO, max_retries=0, **options
        )
        self.clients.append(client)
        return client

    def lengths(self) -> list[int]:
        """Of the contexts after each call, as the engine counts."""
        return sorted(usage["prompt_tokens"] + usage["completion_tokens"] for usage in self.usage)


@contextlib.asynccontextmanager
async def proxied(engine: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(engine)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", proxy.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        for client in proxy.clients:
            await client.close()
        await runner.cleanup()


class World:
    """A controller, a client under it, and what it says happened."""

    def __init__(self, proxy: Proxy, places: int = 2, **options: Any) -> None:
        self.controller = Controller(policy=Static(places), block_size=128)  # as the engine
        self.client = ConcurChatCompletionClient(proxy.client(**options), self.controller)
        self.granted: list[str] = []
        self.lengths: list[tuple[str, int]] = []
        """Each context's after each call."""
        self.in_flight: Counter[str] = Counter()
        self.controller.subscribe(self.see)
        proxy.admitted = self.in_flight

    def see(self, event: Event) -> None:
        root = getattr(event, "agent_id", "").partition("/")[0]
        if isinstance(event, Granted):
            self.granted.append(event.agent_id)
            self.in_flight[root] += 1
        elif isinstance(event, StepEnded):  # a failed call tells nothing, and stays counted
            self.lengths.append((event.agent_id, event.tokens))
            self.in_flight[root] -= 1

    def assert_empty(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
        assert len(trajectories_of(self.controller)) == 0
