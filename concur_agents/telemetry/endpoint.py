"""Going to an engine's HTTP endpoint and coming back, whatever happens, with text or a described failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from concur_agents.errors import ConcurError, InvalidValueError, check_range
from concur_agents.signals import Reading
from concur_agents.telemetry.aggregate import Aggregator, Observation

DEFAULT_TIMEOUT_SECONDS = 4.0
"""Below the controller's own limit for a look (5 s), so that the failure is described by who saw it."""

BODY_LIMIT_BYTES = 16 * 2**20
"""vLLM's /metrics has 53 KB, SGLang's 81 KB, a busy Ray metrics agent a few MB; more is something else."""


class ScrapeError(ConcurError):
    """A look at the endpoint failed; the text says how."""


class StatusError(ScrapeError):
    """The endpoint answered with another status than 200."""

    def __init__(self, url: str, status: int, phrase: str) -> None:
        hint = ""
        if status in (401, 403):
            hint = "; it asks for a key: pass headers={'Authorization': 'Bearer ...'}"
        super().__init__(f"{url} answered {status} {phrase}{hint}")
        self.status = status


class Endpoint:
    """Where an engine answers.

    Args:
        base_url: `http://host:port` of the engine; a trailing `/v1` or `/metrics` is taken off.
        timeout_seconds: > 0; for one whole look, however many requests it takes.
        headers: Sent with each request, for engines behind a key.

    Raises:
        InvalidValueError: the URL is not http(s) with a host, or the timeout is out of range.
    """

    def __init__(self, base_url: str, timeout_seconds: float, headers: Mapping[str, str] | None) -> None:
        check_range("timeout_seconds", timeout_seconds, 0, open_low=True)
        url = base_url.strip().rstrip("/").removesuffix("/v1").removesuffix("/metrics").rstrip("/")
        if not _is_http(url):
            msg = f"base_url={base_url!r} is no engine's address: expected http://host:port or https://host:port"
            raise InvalidValueError(msg)
        self.url = url
        self.timeout_seconds = timeout_seconds
        self._headers = dict(headers or {})

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Visit]:
        """A few requests on one connection, all within the timeout.

        Raises:
            ScrapeError: for every way in which it can fail, cancellation excepted.
        """
        # A session a visit: looks are a second apart and vLLM drops idle connections after 5 s, so there
        # is nothing to keep, nothing bound to one event loop, and nothing left open when a loop ends.
        unlimited = aiohttp.ClientTimeout(total=None)
        try:
            async with (
                asyncio.timeout(self.timeout_seconds),
                aiohttp.ClientSession(headers=self._headers, timeout=unlimited) as session,
            ):
                yield Visit(self.url, session)
        except TimeoutError as error:
            msg = f"{self.url} did not answer within {self.timeout_seconds:g} s"
            raise ScrapeError(msg) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            msg = f"{self.url} cannot be read: {str(error) or type(error).__name__}"
            raise ScrapeError(msg) from error


class Visit:
    """An open session at one endpoint."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def get(self, path: str, query: Iterable[tuple[str, str]] = ()) -> str:
        """The body at `path` as text.

        Raises:
            StatusError: another status than 200.
            ScrapeError: the body is too long.
        """
        url = self.url + path
        async with self._session.get(url, params=list(query)) as response:
            if response.status != 200:
                raise StatusError(url, response.status, response.reason or "")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    msg = f"{url} sends more than {BODY_LIMIT_BYTES >> 20} MiB: not an engine's metrics"
                    raise ScrapeError(msg)
        return body.decode("utf-8", errors="replace")


async def take_reading(
    endpoint: Endpoint,
    look: Callable[[Visit], Awaitable[Observation]],
    aggregator: Aggregator,
    now: float,
) -> Reading:
    """One look as a `Reading`; any failure becomes a reading that says so."""
    try:
        async with endpoint.visit() as visit:
            seen = await look(visit)
    except ScrapeError as error:
        return aggregator.failed(now, str(error))
    except Exception as error:  # an answer nobody foresaw must not end the caller's monitor
        return aggregator.failed(now, f"{endpoint.url} gave an answer that cannot be read: {error!r}")
    return aggregator.observed(now, seen)


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
