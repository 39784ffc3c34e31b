"""What a benchmark found, as data and as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields, replace
from typing import Any

from concur_agents.bench.recorder import Recorder, Sample, jain, percentile
from concur_agents.lifecycle import Outcome
from concur_agents.regulator import Snapshot

BASELINE = "none"
"""The arm that the others are compared with."""
NOTHING_TO_GAIN = 0.85
"""Hit rate without control from which no control can gain much: nearly everything is found again anyway."""
_LISTED = 1000
"""Agents that are listed one by one; more of them say nothing to anyone."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """What the engine counted during one arm. None: it does not say."""

    hit_tokens: float | None = None
    query_tokens: float | None = None
    preemptions: float | None = None

    @property
    def hit_rate(self) -> float | None:
        """Of all prompt tokens, in [0, 1]; None when there were none."""
        if self.hit_tokens is None or not self.query_tokens:
            return None
        return self.hit_tokens / self.query_tokens

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that were not found in the cache; recomputation after preemptions is not counted."""
        if self.hit_tokens is None or self.query_tokens is None:
            return None
        return round(self.query_tokens - self.hit_tokens)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One policy on one workload. Times are in the engine's seconds, rates in [0, 1].

    `pauses` are agents that lost their place to a shrink; waits are for admission and over all steps;
    `step_*` are from asking for a step to its answer, waiting included; `agent_*` from an agent's first
    ask to its end. None: unknown.
    """

    arm: str
    seconds: float
    hit_rate: float | None
    revisit_hit_rate: float | None
    prompt_tokens_computed: int | None
    prompt_tokens_ideal: int | None
    """What had to be computed with a cache without end: each token once, and at each step the part of the
    context that did not fill its last block."""
    pauses: int
    wait_p50_seconds: float | None
    wait_p99_seconds: float | None
    longest_wait_seconds: float | None
    steps: int
    step_p50_seconds: float | None
    step_p99_seconds: float | None
    agents_completed: int
    agents_failed: int
    agent_p50_seconds: float | None
    agent_max_seconds: float | None
    fairness: float | None
    """Jain's index of the part of its time that each agent did not wait for admission: 1 when all were held
    back alike, 1/n when all but one of n never got anywhere."""
    idle_share: float | None
    """Part of the time during which no call was in flight at the engine, as seen by the agents."""
    preemptions: int | None = None
    partial: bool = False
    """It was interrupted: the numbers are those until then."""
    error: str | None = None
    """The first thing that made an agent fail, or what else makes the numbers another workload's."""
    agent_ends: dict[str, float] = field(default_factory=dict, repr=False)
    """When each agent completed, in seconds after the start; empty for more than a thousand agents."""
    samples: tuple[Sample, ...] = field(default=(), repr=False)


def arm_result(
    arm: str,
    recorder: Recorder,
    totals: EngineTotals,
    seen: Snapshot | None,
    *,
    partial: bool = False,
    error: str | None = None,
) -> ArmResult:
    """Sum up an arm; `seen` is the controller's last state.

    Its time ends with its last trajectory, an interrupted one's with the last event.
    """
    waits = recorder.waits()
    ended_at = recorder.now if partial else recorder.finished_at
    lasted = ended_at - recorder.started_at
    ends = {agent: life.ended_at for agent, life in recorder.agents.items() if life.ended_at is not None}
    return ArmResult(
        arm=arm,
        seconds=lasted,
        hit_rate=totals.hit_rate,
        revisit_hit_rate=seen.revisits.rate if seen else None,
        prompt_tokens_computed=totals.computed_tokens,
        prompt_tokens_ideal=_ideal(recorder, totals, seen),
        pauses=recorder.pauses,
        wait_p50_seconds=percentile(waits, 50),
        wait_p99_seconds=percentile(waits, 99),
        longest_wait_seconds=max(waits, default=None),
        steps=recorder.steps,
        step_p50_seconds=percentile(recorder.step_seconds, 50),
        step_p99_seconds=percentile(recorder.step_seconds, 99),
        agents_completed=recorder.ended[Outcome.COMPLETED],
        agents_failed=recorder.ended[Outcome.FAILED],
        agent_p50_seconds=percentile(recorder.agent_seconds, 50),
        agent_max_seconds=max(recorder.agent_seconds, default=None),
        fairness=jain([life.free for life in recorder.agents.values()]),
        idle_share=recorder.idle_seconds(ended_at) / lasted if lasted > 0 else None,
        preemptions=None if totals.preemptions is None else round(totals.preemptions),
        partial=partial,
        error=error,
        agent_ends=ends if len(ends) <= _LISTED else {},
        samples=tuple(recorder.samples),
    )


def _ideal(recorder: Recorder, totals: EngineTotals, seen: Snapshot | None) -> int | None:
    """All prompt tokens, less what was in the agent's own context before or is shared by all."""
    if seen is None or totals.query_tokens is None or not seen.revisits.tokens:
        return None
    shared = seen.shared_prefix_tokens * max(0, recorder.contexts - 1)
    return round(totals.query_tokens - seen.revisits.tokens - shared)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All arms of one run."""

    engine: str
    workload: str
    default_policy: str
    seed: int
    arms: tuple[ArmResult, ...]
    """Of several repetitions, those of median time."""
    profile: str | None = None
    """The simulated engine's; None for a real one."""
    speed: float = 1.0
    """Engine seconds per second reported; times are wall-clock where the engine runs in real time."""
    interrupted: bool = False
    """It ended before all arms had begun."""
    reps: tuple[tuple[ArmResult, ...], ...] = ()
    """Every repetition's arms, where there is more than one."""
    refused: str | None = None
    """Why the workload cannot show anything; then the other arms were not run."""
    facts: dict[str, Any] = field(default_factory=dict)
    """The engine's version, capacity and block size, the agents' kind, and the workload's numbers."""

    @property
    def partial(self) -> bool:
        """Whether it was interrupted."""
        return self.interrupted or any(arm.partial for rep in self._reps for arm in rep)

    @property
    def _reps(self) -> tuple[tuple[ArmResult, ...], ...]:
        return self.reps or (self.arms,)

    def arm(self, name: str) -> ArmResult | None:
        """The arm called `name`, if it was run."""
        return next((arm for arm in self.arms if arm.arm == name), None)

    def times(self, name: str) -> list[float]:
        """Seconds of an arm in each repetition that it completed."""
        return [arm.seconds for rep in self._reps for arm in rep if arm.arm == name and not arm.partial]

    def speedups(self, name: str) -> list[float]:
        """How many times faster than no control, in each repetition in which both ran to their end."""
        found = []
        for rep in self._reps:
            whole = {arm.arm: arm.seconds for arm in rep if not arm.partial and arm.seconds}
            if BASELINE in whole and name in whole:
                found.append(whole[BASELINE] / whole[name])
        return found

    def speedup(self, arm: ArmResult) -> float | None:
        """Median of `speedups`."""
        found = self.speedups(arm.arm)
        return statistics.median(found) if found else None

    def as_json(self) -> dict[str, Any]:
        """For `json.dump`."""
        row = {
            "engine": self.engine,
            "workload": self.workload,
            "default_policy": self.default_policy,
            "profile": self.profile,
            "seed": self.seed,
            "speed": self.speed,
            "partial": self.partial,
            "refused": self.refused,
            **self.facts,
            "arms": [self._arm_json(arm) for arm in self.arms],
        }
        if self.reps:
            row["reps"] = [[_rounded(arm) for arm in rep] for rep in self.reps]
        return row

    def _arm_json(self, arm: ArmResult) -> dict[str, Any]:
        row = {"arm": arm.arm, "seconds": arm.seconds, "speedup": self.speedup(arm)}
        if self.reps:
            row["seconds_range"] = _range(self.times(arm.arm))
            row["speedup_range"] = _range(self.speedups(arm.arm))
        return {name: _round(value) for name, value in row.items()} | _rounded(arm)


def median_arms(reps: tuple[tuple[ArmResult, ...], ...]) -> tuple[ArmResult, ...]:
    """Of each arm the repetition of median time (the slower of two), in the order of the first one."""
    found = []
    for name in dict.fromkeys(arm.arm for rep in reps for arm in rep):
        runs = sorted((arm for rep in reps for arm in rep if arm.arm == name), key=lambda arm: arm.seconds)
        whole = [run for run in runs if not run.partial] or runs
        error = next((run.error for run in runs if run.error), None)
        found.append(replace(whole[len(whole) // 2], error=error))
    return tuple(found)


def _range(values: list[float]) -> list[float] | None:
    return [min(values), max(values)] if values else None


def _rounded(arm: ArmResult) -> dict[str, Any]:
    row = {item.name: getattr(arm, item.name) for item in fields(arm) if item.name != "samples"}
    return {name: _round(value) for name, value in row.items()}


def _round(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, list):
        return [round(one, 6) for one in value]
    if isinstance(value, dict):
        return {name: round(one, 3) for name, one in value.items()}
    return value
