"""How fast new agents start: a token bucket that rounds fill.

A batch that starts all at once grows in step: its contexts reach their full length at the same time, so the
cache is half empty on average and overfull at the end. Started one after the other they are at all stages of
their lives, and the cache holds nearly twice as many.
"""

from __future__ import annotations

from concur_agents.signals import Pace


class Pacer:
    """Starts that are allowed now. It is empty at first: the law's first window lets the first ones in."""

    def __init__(self) -> None:
        self._starts = 0.0

    def stepped(self, pace: Pace | None, active: int) -> None:
        """One of `active` agents has taken a step: that is 1 / active of a round."""
        if pace is not None:
            self._starts = min(pace.burst, self._starts + pace.per_round / max(1, active))

    def started(self) -> None:
        """A new agent has started, allowed by this or by something else."""
        self._starts = max(0.0, self._starts - 1)

    def allows(self, pace: Pace | None) -> bool:
        """Whether one may start now."""
        return pace is None or self._starts >= 1
