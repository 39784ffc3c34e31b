"""What a benchmark found, as data and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from concur_agents.bench.recorder import Recorder, Sample, percentile
from concur_agents.lifecycle import Outcome

BASELINE = "none"
"""The arm that the others are compared with."""


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
    pauses: int
    wait_p99_seconds: float | None
    longest_wait_seconds: float | None
    steps: int
    step_p50_seconds: float | None
    step_p99_seconds: float | None
    agents_completed: int
    agents_failed: int
    agent_p50_seconds: float | None
    agent_max_seconds: float | None
    preemptions: int | None = None
    partial: bool = False
    """It was interrupted: the numbers are those until then."""
    error: str | None = None
    """The first thing that made an agent fail, or what else makes the numbers another workload's."""
    samples: tuple[Sample, ...] = field(default=(), repr=False)


def arm_result(
    arm: str,
    recorder: Recorder,
    totals: EngineTotals,
    revisit_hit_rate: float | None,
    *,
    partial: bool = False,
    error: str | None = None,
) -> ArmResult:
    """Sum up an arm. Its time ends with its last trajectory, an interrupted one's with the last event."""
    waits = recorder.waits()
    ended_at = recorder.now if partial else recorder.finished_at
    return ArmResult(
        arm=arm,
        seconds=ended_at - recorder.started_at,
        hit_rate=totals.hit_rate,
        revisit_hit_rate=revisit_hit_rate,
        prompt_tokens_computed=totals.computed_tokens,
        pauses=recorder.pauses,
        wait_p99_seconds=percentile(waits, 99),
        longest_wait_seconds=max(waits, default=None),
        steps=recorder.steps,
        step_p50_seconds=percentile(recorder.step_seconds, 50),
        step_p99_seconds=percentile(recorder.step_seconds, 99),
        agents_completed=recorder.ended[Outcome.COMPLETED],
        agents_failed=recorder.ended[Outcome.FAILED],
        agent_p50_seconds=percentile(recorder.agent_seconds, 50),
        agent_max_seconds=max(recorder.agent_seconds, default=None),
        preemptions=None if totals.preemptions is None else round(totals.preemptions),
        partial=partial,
        error=error,
        samples=tuple(recorder.samples),
    )


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All arms of one run."""

    engine: str
    workload: str
    default_policy: str
    seed: int
    arms: tuple[ArmResult, ...]
    profile: str | None = None
    """The simulated engine's; None for a real one."""
    speed: float = 1.0
    """Engine seconds per second reported; times are wall-clock where the engine runs in real time."""
    interrupted: bool = False
    """It ended before all arms had begun."""

    @property
    def partial(self) -> bool:
        """Whether it was interrupted."""
        return self.interrupted or any(arm.partial for arm in self.arms)

    def arm(self, name: str) -> ArmResult | None:
        """The arm called `name`, if it was run."""
        return next((arm for arm in self.arms if arm.arm == name), None)

    def speedup(self, arm: ArmResult) -> float | None:
        """How many times faster than no control; None unless both ran to their end."""
        base = self.arm(BASELINE)
        if base is None or base.partial or arm.partial or not arm.seconds:
            return None
        return base.seconds / arm.seconds

    def as_json(self) -> dict[str, Any]:
        """For `json.dump`."""
        return {
            "engine": self.engine,
            "workload": self.workload,
            "default_policy": self.default_policy,
            "profile": self.profile,
            "seed": self.seed,
            "speed": self.speed,
            "partial": self.partial,
            "arms": [self._arm_json(arm) for arm in self.arms],
        }

    def _arm_json(self, arm: ArmResult) -> dict[str, Any]:
        values = {field.name: getattr(arm, field.name) for field in fields(arm) if field.name != "samples"}
        row = {"arm": arm.arm, "seconds": arm.seconds, "speedup": self.speedup(arm)} | values
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
