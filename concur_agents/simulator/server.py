"""An OpenAI-compatible server on the simulated engine, with vLLM's /metrics.

    app = create_app(profile_named("cpu-tiny"), speed=10)      # a Starlette application
    async with EmbeddedServer(profile) as server: ...          # in this process, on its own thread
    serve("127.0.0.1", 8000, profile)                          # until Ctrl-C

`/version` names the vLLM release whose metrics and scheduling are followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from concur_agents.errors import InvalidValueError
from concur_agents.simulator import openai_api as api
from concur_agents.simulator.faults import FaultInjector, Faults
from concur_agents.simulator.generation import GenerationEndpoint, disconnected
from concur_agents.simulator.metrics import EngineMetrics
from concur_agents.simulator.realtime import RealtimeEngine
from concur_agents.simulator.tokens import encode, encode_chat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.types import Scope

    from concur_agents.simulator.costs import Profile

VLLM_VERSION = "0.32.0"


def create_app(
    profile: Profile,
    *,
    speed: float = 1.0,
    faults: Faults | None = None,
    cut: Callable[[Scope], None] | None = None,
) -> Starlette:
    """The ASGI application; its engine runs from startup to shutdown (lifespan must be on).

    Args:
        profile: Of the engine; its model name is the one served.
        speed: Engine seconds per wall-clock second, > 0.
        faults: To start with.
        cut: Cuts a client's connection, for `Faults.drop_rate`; without it the answer is left incomplete.
    """
    service = _Service(profile, speed, faults)
    generate = (("/v1/chat/completions", service.chat), ("/v1/completions", service.completion))
    return Starlette(
        routes=[
            *(
                Route(path, GenerationEndpoint(service.engine, plan, service.faults, cut), methods=["POST"])
                for path, plan in generate
            ),
            Route("/v1/models", service.models),
            Route("/health", service.health),
            Route("/ping", service.health, methods=["GET", "POST"]),
            Route("/version", service.version),
            Route("/tokenize", service.tokenize, methods=["POST"]),
            Route("/metrics", service.scrape),
            Route("/metrics/", service.scrape),
            Route("/reset_prefix_cache", service.reset_prefix_cache, methods=["POST"]),
            Route("/faults", service.get_faults, methods=["GET"]),
            Route("/faults", service.set_faults, methods=["POST"]),
            Route("/restart", service.restart, methods=["POST"]),
        ],
        exception_handlers={api.ApiError: _error_response},
        lifespan=service.lifespan,
    )


async def _error_response(_request: Request, error: Exception) -> Response:
    assert isinstance(error, api.ApiError)
    return JSONResponse(error.body, error.status)


class _Service:
    """What the routes share: one engine, its metrics, its faults."""

    def __init__(self, profile: Profile, speed: float, faults: Faults | None) -> None:
        self.profile = profile
        self.faults = FaultInjector(faults)
        self.engine = RealtimeEngine(profile, speed=speed)
        self.metrics = EngineMetrics(profile, lambda: self.engine.stats, speed)
        self.engine.on_iteration = self.metrics.on_iteration
        self._ids = itertools.count()
        self._run_id = secrets.token_hex(4)

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self.engine.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def request_id(self, kind: str) -> str:
        return f"{kind}-{self._run_id}-{next(self._ids)}"

    def chat(self, data: bytes) -> api.Call:
        body = api.parse(api.ChatBody, data)
        self._check_model(body.model)
        return api.chat_call(body, self.request_id("chatcmpl"), self.profile)

    def completion(self, data: bytes) -> api.Call:
        body = api.parse(api.CompletionBody, data)
        self._check_model(body.model)
        return api.completion_call(body, self.request_id("cmpl"), self.profile)

    def _check_model(self, model: str | None) -> None:
        if model not in (None, "", self.profile.model):
            msg = f"The model `{model}` does not exist. This server has `{self.profile.model}`."
            raise api.ApiError(404, msg, "model", "NotFoundError")

    async def models(self, _request: Request) -> Response:
        model = {
            "id": self.profile.model,
            "object": "model",
            "created": 0,
            "owned_by": "concur-agents",
            "max_model_len": self.profile.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _request: Request) -> Response:
        return Response()

    async def version(self, _request: Request) -> Response:
        return JSONResponse({"version": VLLM_VERSION})

    async def tokenize(self, request: Request) -> Response:
        body = api.parse(api.TokenizeBody, await request.body())
        if body.messages is not None:
            tokens = encode_chat(body.messages, body.tools or ())
        elif body.prompt is not None:
            tokens = encode(body.prompt)
        else:
            raise api.ApiError(400, "prompt: Field required (or messages)", "prompt")
        return JSONResponse(
            {"count": len(tokens), "max_model_len": self.profile.max_model_len, "tokens": list(tokens)}
        )

    async def scrape(self, request: Request) -> Response:
        kind = self.faults.faults.metrics
        if kind == "hang":
            await disconnected(request.receive)
        if kind in ("off", "error", "hang"):
            return Response(status_code=404 if kind == "off" else 500)
        registry = self.metrics.process if kind == "missing" else self.metrics.registry
        names = request.query_params.getlist("name[]")
        encode_metrics, content_type = choose_encoder(request.headers.get("accept", ""))
        # As with vLLM, which mounts its exporter at /metrics/: without the slash the filter is ignored.
        if names and request.url.path.endswith("/"):
            return Response(encode_metrics(registry.restricted_registry(names)), media_type=content_type)
        return Response(encode_metrics(registry), media_type=content_type)

    async def reset_prefix_cache(self, _request: Request) -> Response:
        if self.engine.reset_prefix_cache():
            return JSONResponse({"success": True})
        msg = "The prefix cache cannot be reset while requests hold blocks: wait until none is running."
        raise api.ApiError(409, msg, None, "ConflictError")

    async def get_faults(self, _request: Request) -> Response:
        return JSONResponse(self.faults.as_dict())

    async def set_faults(self, request: Request) -> Response:
        try:
            values = json.loads(await request.body())
            if not isinstance(values, dict):
                raise api.ApiError(400, "faults: expected a JSON object", "faults")
            self.faults.change(values)
        except InvalidValueError as error:
            raise api.ApiError(400, str(error), str(error).partition("=")[0].split(" ")[0]) from error
        except ValueError as error:
            raise api.ApiError(400, f"faults: Invalid JSON: {error}", "faults") from error
        return JSONResponse(self.faults.as_dict())

    async def restart(self, _request: Request) -> Response:
        self.engine.restart()
        self.metrics.restart()
        return JSONResponse({"epoch": self.engine.engine.epoch})
