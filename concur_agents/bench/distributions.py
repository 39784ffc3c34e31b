"""What a workload draws its numbers from. Each draw takes the caller's random numbers and nothing else."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

from concur_agents.errors import InvalidValueError, check_range


class Distribution(Protocol):
    """Numbers >= 0 between `low` and `high`, both included."""

    @property
    def low(self) -> float:
        """Smallest number it draws."""
        ...

    @property
    def high(self) -> float:
        """Largest number it draws."""
        ...

    def draw(self, rng: random.Random) -> float:
        """A number."""
        ...

    def draw_whole(self, rng: random.Random) -> int:
        """A whole number."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Evenly distributed between `low` and `high`, both >= 0 and included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_range("low", self.low, 0)
        check_range("high", self.high, self.low)

    def draw(self, rng: random.Random) -> float:
        """See `Distribution.draw`."""
        return rng.uniform(self.low, self.high)

    def draw_whole(self, rng: random.Random) -> int:
        """See `Distribution.draw_whole`."""
        return rng.randint(int(self.low), int(self.high))


def always(value: float) -> Uniform:
    """No spread at all."""
    return Uniform(value, value)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Heavy-tailed: half above `median` > 0, with `sigma` >= 0 of the logarithm, cut off at both ends.

    68 % lie within a factor of e^sigma of the median: 0.5 is a factor of 1.6, 1.0 one of 2.7.
    """

    median: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        check_range("low", self.low, 0)
        check_range("high", self.high, self.low)
        check_range("median", self.median, self.low, self.high)
        check_range("sigma", self.sigma, 0)

    def draw(self, rng: random.Random) -> float:
        """See `Distribution.draw`."""
        drawn = self.median * math.exp(rng.gauss(0.0, self.sigma))
        return min(self.high, max(self.low, drawn))

    def draw_whole(self, rng: random.Random) -> int:
        """See `Distribution.draw_whole`."""
        return round(self.draw(rng))


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several kinds, each as likely as the others."""

    kinds: tuple[Distribution, ...]

    def __post_init__(self) -> None:
        if not self.kinds:
            msg = "kinds=() is empty: expected at least one distribution"
            raise InvalidValueError(msg)

    @property
    def low(self) -> float:
        """See `Distribution.low`."""
        return min(kind.low for kind in self.kinds)

    @property
    def high(self) -> float:
        """See `Distribution.high`."""
        return max(kind.high for kind in self.kinds)

    def draw(self, rng: random.Random) -> float:
        """See `Distribution.draw`."""
        return rng.choice(self.kinds).draw(rng)

    def draw_whole(self, rng: random.Random) -> int:
        """See `Distribution.draw_whole`."""
        return rng.choice(self.kinds).draw_whole(rng)
