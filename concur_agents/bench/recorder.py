"""Watches one arm: counts what the controller's events say and keeps the curves for the plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from concur_agents.events import Event, Finished, Granted, Paused, Queued, Refused, StepEnded, Tick
from concur_agents.lifecycle import Outcome, PauseReason


@dataclass(frozen=True, slots=True)
class Sample:
    """One tick. `at` is in seconds after the arm's start; None means unknown (for a window: no limit).

    `window` is in agents, `window_tokens` in KV tokens; contexts of sub-agents are no agents of their own.
    """

    at: float
    window: int | None
    window_tokens: int | None
    usage: float | None
    engine_usage: float | None
    hit_rate: float | None
    engine_hit_rate: float | None
    active: int
    paused: int
    waiting: int


SUB = "/sub-"
"""In the ids of sub-agents, see `Trajectory.agent_id`."""


@dataclass(slots=True)
class Life:
    """One agent's. Seconds after the arm's start; `waited` is for admission, over all its steps."""

    asked_at: float
    waited: float = 0.0
    ended_at: float | None = None
    """None: it did not complete."""

    @property
    def free(self) -> float:
        """Part of its time that it did not wait for admission, in [0, 1]; 0 for one that did not complete."""
        if self.ended_at is None:
            return 0.0
        lasted = self.ended_at - self.asked_at
        return 1.0 - min(1.0, self.waited / lasted) if lasted > 0 else 1.0


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
        self.agents: dict[str, Life] = {}
        """What each agent's life was like, in order of first asks; sub-agents' contexts are not in it."""
        self.contexts = 0
        """Those that made a call, sub-agents' included."""
        self._idle_seconds = 0.0
        self._quiet_since: float | None = started_at
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
            self._busy(event.at)
            self._asked[event.agent_id] = asked_at
            if event.agent_id not in self._first_asked:
                self.contexts += 1
                self._first_asked[event.agent_id] = asked_at
            if SUB not in event.agent_id:
                life = self.agents.setdefault(event.agent_id, Life(asked_at - self.started_at))
                life.waited += event.waited
        elif type(event) is StepEnded:
            self.steps += 1
            asked = self._asked.pop(event.agent_id, None)
            if asked is not None:
                self.step_seconds.append(event.at - asked)
            self._quiet(event.at)
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

    def idle_seconds(self, until: float) -> float:
        """Time before the clock's `until` during which no call was in flight, as seen from here."""
        quiet_since = until if self._quiet_since is None else self._quiet_since
        return self._idle_seconds + max(0.0, until - quiet_since)

    def _end(self, event: Finished) -> None:
        self.finished_at = event.at
        self._asked.pop(event.agent_id, None)
        self._quiet(event.at)
        first = self._first_asked.pop(event.agent_id, None)
        if SUB in event.agent_id:
            return
        self.ended[event.outcome] += 1
        if event.outcome is Outcome.COMPLETED and first is not None:
            self.agent_seconds.append(event.at - first)
            self.agents[event.agent_id].ended_at = event.at - self.started_at

    def _busy(self, now: float) -> None:
        if self._quiet_since is not None:
            self._idle_seconds += now - self._quiet_since
            self._quiet_since = None

    def _quiet(self, now: float) -> None:
        if not self._asked and self._quiet_since is None:
            self._quiet_since = now

    def _sample(self, event: Tick) -> None:
        seen = event.signals
        self.samples.append(
            Sample(
                at=event.at - self.started_at,
                window=event.window.agents,
                window_tokens=event.window.tokens,
                usage=seen.usage,
                engine_usage=seen.engine_usage,
                hit_rate=seen.hit_rate,
                engine_hit_rate=seen.engine_hit_rate,
                active=seen.active,
                paused=seen.paused,
                waiting=seen.waiting,
            )
        )


def jain(values: Sequence[float]) -> float | None:
    """How evenly something is shared out, in [1/n, 1]: 1 when all have the same (Jain, Chiu, Hawe 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The `percent`-th percentile (1..99), None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
