"""Where live arms run: an engine started in this process, or a server that somebody else runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

import aiohttp

from concur_agents.errors import ConcurError, check_range
from concur_agents.simulator.costs import Profile
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.telemetry import VLLM, Telemetry, detect

logger = logging.getLogger("concur_agents")


class EngineUnusableError(ConcurError, RuntimeError):
    """The engine does not answer, or not as an OpenAI-compatible server."""


class Engine(Protocol):
    """Where the arms run."""

    name: str
    profile: str | None
    speed: float

    def arm(self) -> contextlib.AbstractAsyncContextManager[Server]:
        """A server with an empty cache, for one arm."""
        ...

    async def facts(self, server: Server) -> dict[str, Any]:
        """What it is, for reports: version, model, KV tokens and block size, each None where unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Server:
    """One server. `telemetry` is the controller's, `meter` the report's: each has its own deltas."""

    base_url: str
    model: str
    telemetry: Telemetry
    meter: Telemetry


class Embedded:
    """The simulated engine, started in this process for each arm.

    Args:
        profile: Which one.
        speed: Engine seconds per wall-clock second, > 0.
    """

    name = "embedded"

    def __init__(self, profile: Profile, speed: float = 1.0) -> None:
        check_range("speed", speed, 0, open_low=True)
        self.profile: str | None = profile.name
        self.speed = speed
        self._profile = profile

    @contextlib.asynccontextmanager
    async def arm(self) -> AsyncIterator[Server]:
        """See `Engine.arm`."""
        async with EmbeddedServer(self._profile, speed=self.speed) as server:
            yield Server(server.url, server.model, VLLM(server.url), VLLM(server.url))

    async def facts(self, server: Server) -> dict[str, Any]:
        """See `Engine.facts`."""
        return await _facts(server, metadata.version("concur-agents"))


class Remote:
    """A server that somebody else runs: vLLM, SGLang, or `concur engine`.

    Its cache is emptied between arms where it allows that (vLLM: VLLM_SERVER_DEV_MODE=1).

    Args:
        url: Its root, such as http://localhost:8000.
        model: Name of the model; None for the first one that it serves.
    """

    profile: str | None = None
    speed = 1.0

    def __init__(self, url: str, model: str | None = None) -> None:
        self.name = url.rstrip("/").removesuffix("/v1")
        self._model = model

    @contextlib.asynccontextmanager
    async def arm(self) -> AsyncIterator[Server]:
        """See `Engine.arm`."""
        model = await self.model()
        await self._reset_cache()
        yield Server(self.name, model, await detect(self.name), await detect(self.name))

    async def facts(self, server: Server) -> dict[str, Any]:
        """See `Engine.facts`."""
        return await _facts(server, await self._version())

    async def _version(self) -> str | None:
        """The way of vLLM, then that of SGLang."""
        for path in ("/version", "/server_info"):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, KeyError, TypeError, ValueError):
                async with _session() as session, session.get(f"{self.name}{path}") as response:
                    response.raise_for_status()
                    return str((await response.json())["version"])
        return None

    async def model(self) -> str:
        """Name of the model given, else of the first one served.

        Raises:
            EngineUnusableError: The server does not answer, or not with a model.
        """
        served = await self._first_model()  # also with a model given: is this an engine at all?
        return self._model or served

    async def _first_model(self) -> str:
        url = f"{self.name}/v1/models"
        try:
            async with _session() as session, session.get(url) as response:
                response.raise_for_status()
                return str((await response.json())["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, KeyError, IndexError, TypeError, ValueError) as error:
            msg = f"no OpenAI-compatible server answers at {url}: {str(error) or type(error).__name__}"
            raise EngineUnusableError(msg) from error

    async def _reset_cache(self) -> None:
        """Try vLLM's way, then SGLang's; agents of different arms share no text, so failing does no harm."""
        for path in ("/reset_prefix_cache", "/flush_cache"):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with _session() as session, session.post(f"{self.name}{path}") as response:
                    if response.ok:
                        return
        logger.info("%s does not empty its cache on request; the arms' prompts differ anyway", self.name)


async def _facts(server: Server, version: str | None) -> dict[str, Any]:
    reading = await server.meter.read(time.monotonic())
    return {
        "engine_version": version,
        "model": server.model,
        "kv_tokens": reading.capacity_tokens,
        "block_size": reading.block_size,
    }


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
