"""Watches one arm: counts what the controller's events say and keeps the curves for the plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from concur_agents.events import Event, Finished, Granted, Paused, Queued, Refused, StepEnded, Tick
from concur_agents.lifecycle import Outcome, PauseReason


@dataclass(frozen=True, slots=True)
class Sample:
    """One tick. `at` is in seconds after the arm's start; None means unknown (for `window`: no limit)."""

    at: float
    window: int | None
    usage: float | None
    engine_usage: float | None
    hit_rate: float | None
    engine_hit_rate: float | None
    active: int
    paused: int
    waiting: int


class Recorder:
    """A subscriber of one arm's events.

    Args:
        started_at: The clock's seconds when the arm starts.
    """

    def __init__(self, started_at: float = 0.0) -> None:
        self.started_at = started_at
        self.now = started_at
        """Time of the last event."""
        self.finished_at = started_at
        """When the last trajectory so far ended."""
        self.samples: list[Sample] = []
        self.steps = 0
        self.pauses = 0
        """Places lost to a shrink; not those reclaimed at every boundary by a request cap."""
        self.ended = dict.fromkeys(Outcome, 0)
        self.step_seconds: list[float] = []
        """From asking for a step to its answer."""
        self.agent_seconds: list[float] = []
        """From the first ask of a trajectory that completed to its end."""
        self._waits: list[float] = []
        self._queued: dict[int, float] = {}
        self._asked: dict[str, float] = {}
        self._first_asked: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        self.now = event.at
        if type(event) is Granted:
            asked_at = event.at - event.waited
            self._waits.append(event.waited)
            self._queued.pop(event.ticket, None)
            self._asked[event.agent_id] = asked_at
            self._first_asked.setdefault(event.agent_id, asked_at)
        elif type(event) is StepEnded:
            self.steps += 1
            asked = self._asked.pop(event.agent_id, None)
            if asked is not None:
                self.step_seconds.append(event.at - asked)
        elif type(event) is Queued:
            self._queued[event.ticket] = event.at
        elif type(event) is Refused:
            self._queued.pop(event.ticket, None)
        elif type(event) is Paused:
            self.pauses += event.reason is PauseReason.SHRINK
        elif type(event) is Finished:
            self._end(event)
        elif type(event) is Tick:
            self._sample(event)

    @property
    def calls(self) -> int:
        """Generation calls admitted so far; those without a usage record are no steps."""
        return len(self._waits)

    def waits(self) -> list[float]:
        """Seconds every step so far waited for admission, those still waiting included."""
        return self._waits + [self.now - since for since in self._queued.values()]

    def _end(self, event: Finished) -> None:
        self.finished_at = event.at
        self.ended[event.outcome] += 1
        self._asked.pop(event.agent_id, None)
        first = self._first_asked.pop(event.agent_id, None)
        if event.outcome is Outcome.COMPLETED and first is not None:
            self.agent_seconds.append(event.at - first)

    def _sample(self, event: Tick) -> None:
        seen = event.signals
        self.samples.append(
            Sample(
                at=event.at - self.started_at,
                window=event.window.agents,
                usage=seen.usage,
                engine_usage=seen.engine_usage,
                hit_rate=seen.hit_rate,
                engine_hit_rate=seen.engine_hit_rate,
                active=seen.active,
                paused=seen.paused,
                waiting=seen.waiting,
            )
        )


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The `percent`-th percentile (1..99), None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
