"""Finding out which engine answers at an address."""

from __future__ import annotations

from collections.abc import Mapping

from concur_agents.signals import Quality, Reading
from concur_agents.telemetry.base import Telemetry
from concur_agents.telemetry.endpoint import DEFAULT_TIMEOUT_SECONDS, Endpoint, ScrapeError, Visit
from concur_agents.telemetry.prometheus import parse
from concur_agents.telemetry.sglang import NAMES, SGLang, fetch_loads
from concur_agents.telemetry.vllm import DIALECTS, VLLM


async def detect(
    base_url: str,
    *,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    headers: Mapping[str, str] | None = None,
) -> Telemetry:
    """The telemetry for the engine at `base_url`: told by its metric names, or by SGLang's /v1/loads.

    When neither engine can be recognised, or nothing answers yet, what comes back says so in its readings
    (quality absent, with the reason) and looks again at each `read`, so it may be handed to a controller
    before the engine is up.

    Args:
        base_url: `http://host:port` of the engine (a trailing `/v1` is taken off).
        timeout_seconds: > 0; for one look.
        headers: Sent along, for engines behind a key.

    Raises:
        InvalidValueError: no http(s) address, or a timeout out of range.
    """
    unknown = Undetected(base_url, timeout_seconds=timeout_seconds, headers=headers)
    return await unknown.look() or unknown


class Undetected:
    """Telemetry of an engine that is not known yet. Arguments as for `detect`."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._endpoint = Endpoint(base_url, timeout_seconds, headers)
        self._headers = headers
        self._found: VLLM | SGLang | None = None
        self._reason = ""

    def __repr__(self) -> str:
        return f"Undetected({self._endpoint.url!r})" if self._found is None else repr(self._found)

    async def look(self) -> VLLM | SGLang | None:
        """The engine's telemetry, or None when it cannot be told."""
        try:
            async with self._endpoint.visit() as visit:
                kind = await self._kind(visit)
        except ScrapeError as error:
            kind, self._reason = None, str(error)
        if kind is not None:
            timeout = self._endpoint.timeout_seconds
            self._found = kind(self._endpoint.url, timeout_seconds=timeout, headers=self._headers)
        return self._found

    async def read(self, now: float) -> Reading:
        """The engine's reading once it is recognised, until then an absent one with the reason."""
        telemetry = self._found or await self.look()
        if telemetry is None:
            return Reading(now, Quality.ABSENT, reason=self._reason)
        return await telemetry.read(now)

    async def close(self) -> None:
        """Nothing is held between looks; may be used again."""

    async def _kind(self, visit: Visit) -> type[VLLM] | type[SGLang] | None:
        vllm_names = frozenset[str]().union(*DIALECTS)
        no_metrics = "its /metrics have neither vLLM's nor SGLang's series"
        try:
            found = parse(await visit.get("/metrics"), vllm_names | NAMES).keys()
        except ScrapeError as error:
            found, no_metrics = {}.keys(), str(error)
        if found & vllm_names:
            return VLLM
        if found & NAMES:
            return SGLang
        loads, no_loads = await fetch_loads(visit)
        if loads:
            return SGLang
        self._reason = (
            f"no engine recognised at {self._endpoint.url}: {no_metrics}; {no_loads}. vLLM must run without"
            " --disable-log-stats, SGLang with --enable-metrics (or be 0.5.9 or later)"
        )
        return None
