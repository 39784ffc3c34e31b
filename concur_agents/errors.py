"""Errors a person reads: what was wrong, which field, what range, what to do."""

from __future__ import annotations

import math


class ConcurError(Exception):
    """Base of every error raised on purpose by this package."""


class InvalidValueError(ConcurError, ValueError):
    """A field is outside its range; nothing was changed."""


class UnknownAgentError(ConcurError, KeyError):
    """The agent id is not open on this controller."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DuplicateAgentError(ConcurError, ValueError):
    """Two trajectories were opened under one id at the same time."""


class AgentFinishedError(ConcurError, RuntimeError):
    """The agent was finished while, or before, it asked for a step."""


class ControllerClosedError(ConcurError, RuntimeError):
    """The controller was stopped while the agent waited."""


class WouldDeadlockError(ConcurError, RuntimeError):
    """A blocking wait was asked for on a thread that runs an event loop."""


class MissingExtraError(ConcurError, ImportError):
    """An optional dependency is not installed."""


def check_range(
    field: str,
    value: float,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Raise `InvalidValueError` naming `field` and its range unless low <= value <= high.

    `open_low` and `open_high` exclude the end. NaN, infinity and non-numbers are always refused.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    above = number and (value > low if open_low else value >= low)
    below = number and (value < high if open_high else value <= high)
    if not (above and below):
        left, right = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        msg = f"{field}={value!r} is out of range: expected a number in {left}{low}, {high}{right}"
        raise InvalidValueError(msg)


def check_whole(field: str, value: int, low: int, high: float = math.inf) -> None:
    """As `check_range`, for a count: a whole number."""
    check_range(field, value, low, high)
    if not isinstance(value, int):
        msg = f"{field}={value!r} must be a whole number >= {low}"
        raise InvalidValueError(msg)
