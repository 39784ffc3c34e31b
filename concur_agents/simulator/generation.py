"""One generation call over HTTP, in plain ASGI.

The client's disconnect is watched from the first moment on, before any byte is sent too; a Starlette response
would notice it only once it streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

from concur_agents.errors import InvalidValueError
from concur_agents.simulator import openai_api as api

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Receive, Scope, Send

    from concur_agents.simulator.faults import FaultInjector
    from concur_agents.simulator.realtime import Generation, RealtimeEngine

MAX_BODY = 64 * 2**20
"""Bytes; a longer body is refused."""


class GenerationEndpoint:
    """An ASGI application for one path.

    Args:
        engine: What generates.
        plan: Makes a call of a request body, or raises `ApiError`.
        faults: Decide each call's fate.
        cut: Cuts the connection that a scope belongs to; None leaves dropped answers incomplete.
    """

    def __init__(
        self,
        engine: RealtimeEngine,
        plan: Callable[[bytes], api.Call],
        faults: FaultInjector,
        cut: Callable[[Scope], None] | None,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._faults = faults
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        fate = self._faults.draw()
        try:
            data = await _read_body(receive)
            if data is None:
                return
            call = self._plan(data)
        except api.ApiError as error:
            await _send_json(send, error.status, error.body)
            return
        exchange = _Exchange(self._engine, call, send, lambda: self._drop(scope))
        work = asyncio.ensure_future(exchange.run(fate.delay, error=fate.error, drop=fate.drop))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            work.cancel()
            gone.cancel()
            self._engine.abort(call.request.request_id)

    def _drop(self, scope: Scope) -> bool:
        if self._cut is None:
            return False
        self._cut(scope)
        return True


class _Exchange:
    """One call, from the plan to the last byte."""

    def __init__(self, engine: RealtimeEngine, call: api.Call, send: Send, cut: Callable[[], bool]) -> None:
        self._engine = engine
        self._call = call
        self._send = send
        self._cut = cut

    async def run(self, delay: float, *, error: bool, drop: bool) -> None:
        if delay:
            await asyncio.sleep(delay)
        if error:
            failure = api.ApiError(500, "Injected fault: internal error.", None, "InternalServerError")
            await _send_json(self._send, failure.status, failure.body)
            return
        call = self._call
        if drop and not call.stream:
            await self._drop(started=False)
            return
        try:
            generation = self._engine.submit(call.request, stream=call.stream)
        except InvalidValueError as refused:
            param = "messages" if call.chat else "prompt"
            await _send_json(self._send, 400, api.ApiError(400, str(refused), param).body)
            return
        if call.stream:
            await self._stream(generation, drop_at=call.request.max_tokens // 2 if drop else None)
        else:
            await self._whole(generation)

    async def _whole(self, generation: Generation) -> None:
        while not generation.ended:
            await generation.progress()
        if generation.finished is None:
            await self._drop(started=False)
            return
        await _send_json(self._send, 200, api.full_response(self._call, generation.finished.cached_tokens))

    async def _stream(self, generation: Generation, drop_at: int | None) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        sent = 0
        while not generation.ended or sent < generation.tokens:
            tokens = await generation.progress()
            if generation.lost or (drop_at is not None and tokens > drop_at):
                await self._drop(started=True)
                return
            body = (api.opening_chunks(self._call) if not sent else b"") + api.token_chunks(
                self._call, sent, tokens
            )
            sent = tokens
            if generation.finished is not None:
                body += api.closing_chunks(self._call, generation.finished.cached_tokens)
            await self._send({"type": "http.response.body", "body": body, "more_body": not generation.ended})

    async def _drop(self, *, started: bool) -> None:
        """Cut the connection; if the server gives no way to, leave the answer incomplete."""
        if not self._cut() and not started:
            headers = [(b"content-length", b"1")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None if the client left before it was complete."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise api.ApiError(413, f"The body is longer than {MAX_BODY} bytes.", None)
        if not message.get("more_body", False):
            return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_json(send: Send, status: int, content: object) -> None:
    body = json.dumps(content, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
