"""Faults on purpose: what can go wrong between a client and an engine, reproducible by seed.

Settable at start, and at run time through `POST /faults` with any subset of the fields of `Faults`.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from concur_agents.errors import InvalidValueError, check_range

if TYPE_CHECKING:
    from collections.abc import Mapping

MetricsFault = Literal["ok", "missing", "off", "error", "hang"]


@dataclass(frozen=True, slots=True)
class Faults:
    """How often and how things fail; the default is never.

    Attributes:
        latency: Seconds added before each generation is submitted, >= 0. Wall-clock time.
        latency_jitter: Up to so many seconds more, uniform, >= 0.
        error_rate: Fraction of generation calls answered with status 500, in [0, 1].
        drop_rate: Fraction of generation calls whose connection is cut, in [0, 1]: streams in the middle,
            others before the first byte.
        metrics: "ok"; "missing": 200 without any `vllm:` series (as with --disable-log-stats); "off": 404;
            "error": 500; "hang": accepts the scrape and never answers.
        seed: Of the draws; setting it starts them anew.
    """

    latency: float = 0.0
    latency_jitter: float = 0.0
    error_rate: float = 0.0
    drop_rate: float = 0.0
    metrics: MetricsFault = "ok"
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("faults.latency", self.latency, 0)
        check_range("faults.latency_jitter", self.latency_jitter, 0)
        check_range("faults.error_rate", self.error_rate, 0, 1)
        check_range("faults.drop_rate", self.drop_rate, 0, 1)
        if self.metrics not in get_args(MetricsFault):
            msg = f"faults.metrics={self.metrics!r} must be one of {', '.join(get_args(MetricsFault))}"
            raise InvalidValueError(msg)
        if not isinstance(self.seed, int):
            msg = f"faults.seed={self.seed!r} must be a whole number"
            raise InvalidValueError(msg)


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one generation call."""

    delay: float
    error: bool
    drop: bool


class FaultInjector:
    """Draws the fate of each call. The n-th call after seeding always gets the same draws."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self._random = random.Random(self.faults.seed)

    def change(self, values: Mapping[str, Any]) -> Faults:
        """Set the given fields, keep the others.

        Raises:
            InvalidValueError: A field is unknown or out of range; nothing was changed.
        """
        known = {item.name for item in fields(Faults)}
        unknown = sorted(set(values) - known)
        if unknown:
            msg = f"faults.{unknown[0]} is unknown: choose among {', '.join(sorted(known))}"
            raise InvalidValueError(msg)
        self.faults = replace(self.faults, **values)
        if "seed" in values:
            self._random = random.Random(self.faults.seed)
        return self.faults

    def draw(self) -> Fate:
        """The fate of the next call."""
        jitter, error, drop = (self._random.random() for _ in range(3))
        f = self.faults
        return Fate(f.latency + f.latency_jitter * jitter, error < f.error_rate, drop < f.drop_rate)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self.faults)
