"""vLLM's /metrics as a `Reading`, under all the names it had.

Where the hit rate comes from, best first:

1. `prompt_tokens_cached` over `prompt_tokens`: counted once a request, when its first token comes out, local
   and external cache together. vLLM 0.26 and later.
2. `prefix_cache_hits` over `prefix_cache_queries` (before 0.11 `gpu_prefix_cache_*`): up to 0.26 a request
   stuck at the head of the queue was counted again at every step (vllm-project/vllm#43736), exactly when
   there is congestion. An engine that lacks 1 is older than the cure, so its deltas are marked unreliable;
   the names tell the version, no second request is needed.
3. V0's gauge `gpu_prefix_cache_hit_rate` is an average since the start and says nothing of now: unknown.

`kv_cache_usage_perc` (before 0.11 `gpu_cache_usage_perc`) is a fraction in spite of its name and counts
running requests only. Data-parallel ranks differ in the label `engine`. Ray Serve exports the same series as
`ray_vllm_...` on its own metrics agent, one engine a replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from concur_agents.signals import EngineReading, Reading
from concur_agents.telemetry.aggregate import Aggregator, Observation
from concur_agents.telemetry.endpoint import DEFAULT_TIMEOUT_SECONDS, Endpoint, Visit, take_reading
from concur_agents.telemetry.prometheus import Scraper, Series, by_engine, count, whole

_USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")
_RETRY_SAFE = ("prompt_tokens_cached_total", "prompt_tokens_total")
_HITS_AND_QUERIES = (
    _RETRY_SAFE,
    ("prefix_cache_hits_total", "prefix_cache_queries_total"),
    ("gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total"),
)
_V0_HIT_RATE = "gpu_prefix_cache_hit_rate"
_RUNNING = "num_requests_running"
_WAITING = ("num_requests_waiting", "num_requests_swapped")
"""V0 swapped requests out instead of preempting them; they wait too."""
_PREEMPTIONS = "num_preemptions_total"
_CONFIG = "cache_config_info"
_STARTED = "process_start_time_seconds"

_NAMES = frozenset(
    (
        *(*_USAGE, _RUNNING, *_WAITING, _PREEMPTIONS, _CONFIG, _V0_HIT_RATE),
        *(name for pair in _HITS_AND_QUERIES for name in pair),
    )
)
# Ray's exporter may leave `_total` off.
_RAY_NAMES = _NAMES | {name.removesuffix("_total") for name in _NAMES}
DIALECTS = (
    frozenset(f"vllm:{name}" for name in _NAMES),
    *(frozenset(prefix + name for name in _RAY_NAMES) for prefix in ("ray_vllm_", "vllm_")),
)
"""Every name looked for, by who exports it."""
COMMON = frozenset((_STARTED,))
"""Looked for beside them."""

_MISSING = (
    "{url} answers but has no vLLM series: start vLLM without --disable-log-stats"
    " (behind Ray Serve, give the address of Ray's metrics agent)"
)


class VLLM:
    """Telemetry of a vLLM server.

    Args:
        base_url: `http://host:port` of the server (a trailing `/v1` is taken off).
        timeout_seconds: > 0; for one look.
        headers: Sent along, for servers whose /metrics are behind a key.

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
        self._scraper = Scraper(*DIALECTS, common=COMMON)
        self._aggregator = Aggregator()

    def __repr__(self) -> str:
        return f"VLLM({self._endpoint.url!r})"

    async def read(self, now: float) -> Reading:
        """Look once; a failure is a reading that says so. `now`: seconds on the caller's clock."""
        return await take_reading(self._endpoint, self._look, self._aggregator, now)

    async def close(self) -> None:
        """Nothing is held between looks; may be used again."""

    async def _look(self, visit: Visit) -> Observation:
        return observe(await self._scraper.scrape(visit), self._endpoint.url)


def observe(series: Series, url: str = "the endpoint") -> Observation:
    """What one scrape says, engine by engine. `url` is for the text of the reason."""
    table = _Table(series)
    usage, running = table.first(*_USAGE), table.first(_RUNNING)
    waiting = [table.first(name) for name in _WAITING]
    engines = {engine for values in (usage, running, *waiting) for engine in values}
    if not engines:
        return Observation((), missing=_MISSING.format(url=url))
    source, doubts, notes = _judge(table)
    hits, queries = (table.first(name) for name in source) if source else ({}, {})
    preemptions = table.first(_PREEMPTIONS)
    return Observation(
        tuple(
            EngineReading(
                engine=engine,
                usage=usage.get(engine),
                hit_tokens=count(hits.get(engine)),
                query_tokens=count(queries.get(engine)),
                running=whole(running.get(engine)),
                waiting=_sum(whole(values.get(engine)) for values in waiting),
                preemptions=count(preemptions.get(engine)),
                capacity_tokens=_capacity(table.config(engine)),
                block_size=_size(table.config(engine), "block_size"),
            )
            for engine in sorted(engines)
        ),
        source="/".join(source),
        started=_started(series),
        doubts=doubts,
        notes=(*notes, *(() if usage else (f"{url} does not say its KV-cache usage",))),
    )


def _judge(table: _Table) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The hit counters to use, doubts about them, and notes."""
    source = next((pair for pair in _HITS_AND_QUERIES if all(map(table.first, pair))), ())
    if table.caches_prefixes is False:
        note = "prefix caching is off, so there is no hit rate: start vLLM with --enable-prefix-caching"
        return (), (), (note,)
    if source and source != _RETRY_SAFE:
        doubt = (
            "this vLLM is older than 0.26 and counts a prompt's cache lookups again while it queues, so its"
            " hit rate misleads under load: upgrade to 0.27.1 or later"
        )
        return source, (doubt,), ()
    if source:
        return source, (), ()
    averaged = "only as an average since the start" if table.first(_V0_HIT_RATE) else "not at all"
    return (), (), (f"the hit rate is unknown: this vLLM tells it {averaged}; upgrade to 0.27.1 or later",)


class _Table:
    """The series under their bare names, by engine."""

    def __init__(self, series: Series) -> None:
        self._values: dict[str, dict[str, float]] = {}
        self._configs: dict[str, list[Mapping[str, str]]] = {}
        for prefix in ("vllm:", "ray_vllm_", "vllm_"):
            for name, samples in series.items():
                if name == prefix + _CONFIG:
                    for sample in samples:
                        self._configs.setdefault(_engine(sample.labels), []).append(sample.labels)
                elif name.startswith(prefix):
                    # Several API servers gave each gauge once a process (`pid`) until 0.12.
                    values = by_engine(samples, _engine, duplicates=_PER_PROCESS, combine=max)
                    self._values.setdefault(name.removeprefix(prefix), values)

    def first(self, *names: str) -> Mapping[str, float]:
        """Values by engine under the first of `names` that is there."""
        for name in names:
            for spelling in (name, name.removesuffix("_total")):
                if spelling in self._values:
                    return self._values[spelling]
        return {}

    def config(self, engine: str) -> list[Mapping[str, str]]:
        """Labels of the engine's cache configuration; one without the engine's label is everybody's."""
        unnamed = list(self._configs.values())
        return self._configs.get(engine, unnamed[0] if len(unnamed) == 1 else [])

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether prefix caching is on; None when it is not told."""
        told = {c.get("enable_prefix_caching") for configs in self._configs.values() for c in configs}
        return None if not told & {"True", "False"} else "True" in told


_PER_PROCESS = frozenset(("pid",))


def _engine(labels: Mapping[str, str]) -> str:
    rank, replica = labels.get("engine") or "0", labels.get("ReplicaId")
    return f"{replica}/{rank}" if replica else rank


def _capacity(configs: list[Mapping[str, str]]) -> int | None:
    """KV tokens: told since 0.26, right for hybrid models too; before, blocks times their size."""
    size = _size(configs, "kv_cache_size_tokens")
    if size is not None:
        return size
    blocks, block_size = _size(configs, "num_gpu_blocks"), _size(configs, "block_size")
    return None if blocks is None or block_size is None else blocks * block_size


def _size(configs: list[Mapping[str, str]], label: str) -> int | None:
    """The label as a size > 0; "None" (not known yet), other text and repeats without it are passed over."""
    sizes = [int(text) for config in configs if (text := config.get(label, "")).isdecimal()]
    return max(sizes, default=0) or None


def _sum(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _started(series: Series) -> float | None:
    """Start of the one process behind the endpoint; an exporter of several labels them."""
    samples = series.get(_STARTED, ())
    return count(float(samples[0].value)) if len(samples) == 1 and not samples[0].labels else None
