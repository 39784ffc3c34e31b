"""Running statistics that forget: O(1) in memory and time, no clock, no randomness."""

from __future__ import annotations

import math

_SLOPE_KEEPS = 0.995
_PLANE_KEEPS = 0.99
"""Part of its weight that a sample keeps with each later one: the last 200 or 100 samples count."""
_APART = 0.002
"""Share of the second regressor's square that is added to it: small enough to leave real differences alone,
large enough to decide between two regressors that always move together, in favour of the first."""


class Mean:
    """A mean that forgets: plain at first, then of about the last `over` values."""

    __slots__ = ("_over", "count", "value")

    def __init__(self, over: int = 256) -> None:
        self.value = 0.0
        self.count = 0
        """Values that it stands for, at most `over`."""
        self._over = over

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, value: float) -> None:
        """Take in one more value."""
        self.count = min(self._over, self.count + 1)
        self.value += (value - self.value) / self.count


class Slope:
    """Slope of y over x by least squares (ridge regression: drawn towards a slope given beforehand)."""

    __slots__ = ("_x", "_xx", "_xy", "_y", "count")

    def __init__(self) -> None:
        self.count = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        """Take in one more point."""
        keep = _SLOPE_KEEPS
        self.count = self.count * keep + 1
        self._x = self._x * keep + x
        self._y = self._y * keep + y
        self._xx = self._xx * keep + x * x
        self._xy = self._xy * keep + x * y

    def value(self, *, towards: float, weight: float) -> float:
        """The slope, if `weight` > 0 points of unit spread lay on one of slope `towards`; needs one point."""
        spread = max(0.0, self._xx - self._x * self._x / self.count)
        together = self._xy - self._x * self._y / self.count
        return (together + weight * towards) / (spread + weight)


class PlaneFit:
    """z = a x + b y by least squares, a and b >= 0, through the origin.

    Where x and y always move together, all is put down to x.
    """

    __slots__ = ("_xx", "_xy", "_xz", "_yy", "_yz", "_zz", "count")

    def __init__(self) -> None:
        self.count = self._xx = self._xy = self._yy = self._xz = self._yz = self._zz = 0.0

    def add(self, x: float, y: float, z: float) -> None:
        """Take in one more point."""
        keep = _PLANE_KEEPS
        self.count = self.count * keep + 1
        self._xx = self._xx * keep + x * x
        self._xy = self._xy * keep + x * y
        self._yy = self._yy * keep + y * y
        self._xz = self._xz * keep + x * z
        self._yz = self._yz * keep + y * z
        self._zz = self._zz * keep + z * z

    def first_coefficient(self, *, errors: float) -> float | None:
        """a, plus so many of its standard errors; None where the points do not determine it."""
        yy = self._yy * (1 + _APART)
        spread = self._xx * yy - self._xy * self._xy
        if spread <= 0:
            return None
        a = (self._xz * yy - self._yz * self._xy) / spread
        b = (self._xx * self._yz - self._xy * self._xz) / spread
        if b < 0:
            a, b = self._xz / self._xx, 0.0
        a = max(0.0, a)
        unexplained = max(0.0, self._zz - a * self._xz - b * self._yz) / max(1.0, self.count - 2)
        return a + errors * math.sqrt(unexplained * yy / spread)
