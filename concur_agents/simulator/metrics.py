"""The engine's numbers under vLLM's metric names, with vLLM's labels, help texts and meaning (0.32).

Gauges show the state at the end of the last iteration; counters are in tokens; `vllm:kv_cache_usage_perc` is
a fraction and counts running requests only. Histograms are in wall-clock seconds, as a client would measure.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from concur_agents.simulator.costs import Profile
    from concur_agents.simulator.engine import EngineStats, Finished, Iteration

_LABELS = ("model_name", "engine")
_SHORT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_LONG = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
_BATCHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class EngineMetrics:
    """One engine's /metrics.

    Args:
        profile: For the configuration labels.
        stats: Called at each scrape.
        speed: Engine seconds per wall-clock second.
    """

    def __init__(self, profile: Profile, stats: Callable[[], EngineStats], speed: float) -> None:
        self._speed = speed
        self._profile = profile
        self._stats = stats
        self._start()

    def _start(self) -> None:
        self.registry = CollectorRegistry()
        """vLLM's series."""
        self.process = CollectorRegistry()
        """What remains when the engine runs with --disable-log-stats."""
        started = time.time()
        self.process.register(_ProcessStart(started))
        self.registry.register(_ProcessStart(started))
        self.registry.register(_StatsCollector(self._profile, self._stats, started))
        labels = (self._profile.model, "0")

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=buckets)
            return made.labels(*labels)

        self._ttft = histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _SHORT
        )
        self._e2e = histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LONG
        )
        self._queue = histogram(
            "request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _LONG
        )
        self._prompt = histogram("request_prompt_tokens", "Number of prefill tokens processed.", _SIZES)
        self._output = histogram(
            "request_generation_tokens", "Number of generation tokens processed.", _SIZES
        )
        self._batch = histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", _BATCHES
        )

    def restart(self) -> None:
        """Start from zero, as a new process does."""
        self._start()

    def on_iteration(self, iteration: Iteration) -> None:
        """Count an iteration and what ended in it."""
        self._batch.observe((iteration.prompt_tokens + iteration.generated_tokens) / iteration.iterations)
        for finished in iteration.finished:
            self._on_finished(finished)

    def _on_finished(self, finished: Finished) -> None:
        arrived, speed = finished.arrived_at, self._speed
        self._ttft.observe(max(0.0, finished.first_token_at - arrived) / speed)
        self._e2e.observe(max(0.0, finished.finished_at - arrived) / speed)
        self._queue.observe(max(0.0, finished.scheduled_at - arrived) / speed)
        self._prompt.observe(finished.request.prompt_tokens)
        self._output.observe(finished.request.max_tokens)


class _ProcessStart(Collector):
    def __init__(self, started: float) -> None:
        self._started = started

    def collect(self) -> Iterator[Metric]:
        """One gauge."""
        text = "Start time of the process since unix epoch in seconds."
        yield GaugeMetricFamily("process_start_time_seconds", text, value=self._started)

    def describe(self) -> Iterator[Metric]:
        """Names, for filtered scrapes."""
        return self.collect()


class _StatsCollector(Collector):
    def __init__(self, profile: Profile, stats: Callable[[], EngineStats], started: float) -> None:
        self._profile = profile
        self._stats = stats
        self._started = started
        self._labels = [profile.model, "0"]

    def describe(self) -> Iterator[Metric]:
        """Names, for filtered scrapes."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """All series but the histograms."""
        s = self._stats()
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", s.usage)
        yield self._gauge("num_requests_running", "Number of requests in model execution batches.", s.running)
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", s.waiting)
        text = "Number of waiting requests by reason."
        yield self._gauge(
            "num_requests_waiting_by_reason", text, {"capacity": s.waiting, "deferred": 0}, "reason"
        )
        text = "Prefix cache queries, in terms of number of queried tokens."
        yield self._counter("prefix_cache_queries", text, s.query_tokens)
        text = "Prefix cache hits, in terms of number of cached tokens."
        yield self._counter("prefix_cache_hits", text, s.hit_tokens)
        text = "Cumulative number of preemption from the engine."
        yield self._counter("num_preemptions", text, s.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", s.prompt_tokens)
        sources = {
            "local_compute": s.computed_tokens,
            "local_cache_hit": s.cached_tokens,
            "external_kv_transfer": 0,
        }
        yield self._counter(
            "prompt_tokens_by_source", "Number of prompt tokens by source.", sources, "source"
        )
        text = "Number of cached prompt tokens (local + external)."
        yield self._counter("prompt_tokens_cached", text, s.cached_tokens)
        yield self._counter(
            "generation_tokens", "Number of generation tokens processed.", s.generation_tokens
        )
        reasons = {"stop": 0, "length": s.finished, "abort": s.aborted, "error": 0}
        text = "Count of successfully processed requests."
        yield self._counter("request_success", text, reasons, "finished_reason")
        yield self._cache_config()

    def _gauge(
        self, name: str, text: str, values: float | Mapping[str, float], label: str | None = None
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=[*_LABELS, label] if label else _LABELS)
        if isinstance(values, int | float):
            family.add_metric(self._labels, values)
        else:
            for key, value in values.items():
                family.add_metric([*self._labels, key], value)
        return family

    def _counter(
        self, name: str, text: str, values: float | Mapping[str, float], label: str | None = None
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=[*_LABELS, label] if label else _LABELS)
        if isinstance(values, int | float):
            family.add_metric(self._labels, values, created=self._started)
        else:
            for key, value in values.items():
                family.add_metric([*self._labels, key], value, created=self._started)
        return family

    def _cache_config(self) -> GaugeMetricFamily:
        p = self._profile
        labels = {
            "block_size": str(p.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": "0",
            "kv_cache_max_concurrency": str(p.kv_tokens / p.max_model_len),
            "kv_cache_size_tokens": str(p.kv_tokens),
            "num_gpu_blocks": str(p.num_blocks),
            "prefix_caching_hash_algo": "siphash",
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=list(labels)
        )
        family.add_metric(list(labels.values()), 1.0)
        return family
