"""SGLang's /v1/loads and /metrics as a `Reading`.

U, the requests and the capacity come from `/v1/loads` (0.5.9 and later, on without any flag): it is renewed
at each prefill, every 15 decode steps and when the engine falls idle. The gauges of /metrics are renewed
every 40 decode steps and can be 30 s old when idle; they serve where there is no /v1/loads.

The hit rate comes from counters of /metrics (`--enable-metrics`), best first:

1. `prefill_effective_tokens_total`: hits by tier over all prompt tokens, without repeats after a
   retraction (0.5.18).
2. `realtime_tokens_total`: `prefill_cache` over that and `prefill_compute`, with the repeats (0.5.9).
3. `cached_tokens_total` over `prompt_tokens_total`, counted when a request ends.

Never from the gauge `cache_hit_rate`, which is the last prefill batch's and was set to 0 by each decode
report up to 0.5.18. Without --enable-metrics the hit rate is unknown, which misleads nobody: the
reading is OK, with a note. Tensor-parallel ranks repeat each number and are counted once; data-parallel
ranks are engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.samples import Sample

from concur_agents.signals import EngineReading, Reading
from concur_agents.telemetry.aggregate import Aggregator, Observation
from concur_agents.telemetry.endpoint import (
    DEFAULT_TIMEOUT_SECONDS,
    Endpoint,
    ScrapeError,
    Visit,
    take_reading,
)
from concur_agents.telemetry.prometheus import Scraper, Series, by_engine, count, whole

_P = "sglang:"
_USAGE = (f"{_P}full_token_usage", f"{_P}token_usage")
_RUNNING, _WAITING = f"{_P}num_running_reqs", f"{_P}num_queue_reqs"
_CAPACITY, _PAGE = f"{_P}max_total_num_tokens", f"{_P}page_size"
_RETRACTIONS = f"{_P}num_retracted_requests_total"
_EFFECTIVE, _REALTIME = f"{_P}prefill_effective_tokens_total", f"{_P}realtime_tokens_total"
_CACHED, _PROMPT = f"{_P}cached_tokens_total", f"{_P}prompt_tokens_total"
NAMES = frozenset(
    (*_USAGE, _RUNNING, _WAITING, _CAPACITY, _PAGE, _RETRACTIONS, _EFFECTIVE, _REALTIME, _CACHED, _PROMPT)
)
"""Every name looked for."""

_REPEATED = frozenset(("tp_rank", "pp_rank", "moe_ep_rank", "pid"))
"""Ranks of one engine: each reports the whole engine's numbers."""

Loads = Mapping[str, Mapping[str, Any]]
"""The entries of /v1/loads by data-parallel rank."""


class SGLang:
    """Telemetry of an SGLang server.

    Args:
        base_url: `http://host:port` of the server (a trailing `/v1` is taken off).
        timeout_seconds: > 0; for one look.
        headers: Sent along, for servers behind a key (`{"Authorization": "Bearer ..."}`).

    Raises:
        InvalidValueError: no http(s) address, or a timeout out of range.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._endpoint = Endpoint(base_url, timeout_seconds, headers)
        self._scraper = Scraper(NAMES)
        self._aggregator = Aggregator()

    def __repr__(self) -> str:
        return f"SGLang({self._endpoint.url!r})"

    async def read(self, now: float) -> Reading:
        """Look once; a failure is a reading that says so. `now`: seconds on the caller's clock."""
        return await take_reading(self._endpoint, self._look, self._aggregator, now)

    async def close(self) -> None:
        """Nothing is held between looks; may be used again."""

    async def _look(self, visit: Visit) -> Observation:
        loads, no_loads = await fetch_loads(visit)
        series: Series = {}
        try:
            series = await self._scraper.scrape(visit)
        except ScrapeError as error:
            if not loads:
                msg = f"{no_loads}; {error}"
                raise ScrapeError(msg) from error
        return observe(loads, series, no_loads)


async def fetch_loads(visit: Visit) -> tuple[Loads, str]:
    """/v1/loads by rank, or nothing and the reason."""
    try:
        return parse_loads(await visit.get("/v1/loads")), ""
    except ScrapeError as error:
        return {}, str(error)


def parse_loads(text: str) -> Loads:
    """The entries by rank.

    Raises:
        ScrapeError: this is not what SGLang answers at /v1/loads.
    """
    try:
        entries = {str(entry.get("dp_rank", 0)): entry for entry in json.loads(text)["loads"]}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        msg = f"/v1/loads is not SGLang's: {error!r}"
        raise ScrapeError(msg) from error
    if not entries:
        msg = "/v1/loads lists no engine"
        raise ScrapeError(msg)
    return entries


def observe(loads: Loads, series: Series, no_loads: str = "") -> Observation:
    """What one look says, engine by engine. `no_loads`: why `loads` is empty."""
    ranks = sorted(loads) or sorted(_ranks(series))
    if not ranks:
        missing = "SGLang's series are missing: start SGLang with --enable-metrics, or use 0.5.9 or later"
        return Observation((), missing=f"{missing} ({no_loads})" if no_loads else missing)

    def rank_of(labels: Mapping[str, str]) -> str:
        # Counters of the front end have no rank and count for all: for the sum it does not matter where.
        rank = labels.get("dp_rank") or "0"
        return rank if rank in ranks else ranks[0]

    table = _Table(series, rank_of)
    source, hits, queries = _hits(table)
    retractions = _retractions(table)
    return Observation(
        tuple(
            EngineReading(
                engine=rank,
                hit_tokens=count(hits.get(rank)),
                query_tokens=count(queries.get(rank)),
                preemptions=count(retractions.get(rank, 0.0)) if retractions is not None else None,
                block_size=whole(table.gauge(_PAGE).get(rank)) or None,
                **(_from_load(loads[rank]) if loads else _from_gauges(table, rank)),
            )
            for rank in ranks
        ),
        source=source,
        notes=tuple(_notes(loads, series, source, no_loads)),
    )


def _notes(loads: Loads, series: Series, source: str, no_loads: str) -> Iterable[str]:
    if not loads:
        yield f"{no_loads}; the gauges of /metrics are used, which can be 30 s old when SGLang is idle"
    if not series:
        yield "the hit rate is unknown: start SGLang with --enable-metrics"
    elif not source:
        yield "the hit rate is unknown: SGLang has counted no prompt yet"


def _from_load(load: Mapping[str, Any]) -> dict[str, Any]:
    capacity = whole(_number(load.get("max_total_num_tokens")))
    usage, used = _number(load.get("token_usage")), _number(load.get("num_used_tokens"))
    if usage is None and used is not None and capacity:
        usage = used / capacity
    return {
        "usage": usage,
        "running": whole(_number(load.get("num_running_reqs"))),
        "waiting": whole(_number(load.get("num_waiting_reqs"))),
        "capacity_tokens": capacity or None,
    }


def _from_gauges(table: _Table, rank: str) -> dict[str, Any]:
    # token_usage is the fullest pool's, to two digits; full_token_usage the exact one of the main pool.
    usages = [values[rank] for name in _USAGE if rank in (values := table.gauge(name))]
    return {
        "usage": max(usages, default=None),
        "running": whole(table.gauge(_RUNNING).get(rank)),
        "waiting": whole(table.gauge(_WAITING).get(rank)),
        "capacity_tokens": whole(table.gauge(_CAPACITY).get(rank)) or None,
    }


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _hits(table: _Table) -> tuple[str, Mapping[str, float], Mapping[str, float]]:
    """Name of the counters used, cumulative hits and looked-up tokens by rank."""
    queries = table.counter(_EFFECTIVE)
    if queries:
        hits = table.counter(_EFFECTIVE, lambda labels: labels.get("mode", "").endswith("_hit"))
        return _EFFECTIVE, _filled(hits, queries), queries
    modes = ("prefill_cache", "prefill_compute")
    queries = table.counter(_REALTIME, lambda labels: labels.get("mode") in modes)
    if queries:
        hits = table.counter(_REALTIME, lambda labels: labels.get("mode") == modes[0])
        return _REALTIME, _filled(hits, queries), queries
    queries = table.counter(_PROMPT)
    return (_CACHED, _filled(table.counter(_CACHED), queries), queries) if queries else ("", {}, {})


def _filled(hits: Mapping[str, float], queries: Mapping[str, float]) -> Mapping[str, float]:
    """A counter with labels does not exist before its first hit: none yet."""
    return {rank: hits.get(rank, 0.0) for rank in queries}


def _retractions(table: _Table) -> Mapping[str, float] | None:
    """Cumulative retractions by rank; a version that has the counter shows it from the first one on."""
    counted = table.counter(_RETRACTIONS)
    has_the_counter = counted or table.counter(_EFFECTIVE) or table.counter(_REALTIME)
    return counted if has_the_counter else None


class _Table:
    """The series by data-parallel rank."""

    def __init__(self, series: Series, rank_of: Callable[[Mapping[str, str]], str]) -> None:
        self._series = series
        self._rank_of = rank_of

    def gauge(self, name: str) -> Mapping[str, float]:
        """Values by rank."""
        return self._by_rank(self._series.get(name, ()), max)

    def counter(
        self, name: str, keep: Callable[[Mapping[str, str]], bool] | None = None
    ) -> Mapping[str, float]:
        """Sums by rank of the samples whose labels `keep` accepts."""
        samples = self._series.get(name, ())
        return self._by_rank([s for s in samples if keep is None or keep(s.labels)], sum)

    def _by_rank(
        self, samples: Iterable[Sample], combine: Callable[[Iterable[float]], float]
    ) -> Mapping[str, float]:
        # Under priority scheduling the total has an empty priority, beside one series a priority.
        totals = [sample for sample in samples if not sample.labels.get("priority")]
        return by_engine(totals, self._rank_of, duplicates=_REPEATED, combine=combine)


def _ranks(series: Series) -> set[str]:
    gauges = (*_USAGE, _RUNNING, _WAITING)
    return {sample.labels.get("dp_rank") or "0" for name in gauges for sample in series.get(name, ())}
