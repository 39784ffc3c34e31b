"""Arms one after the other, in virtual time; what an interruption leaves is a result too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from concur_agents.bench.recorder import Recorder
from concur_agents.bench.results import ArmResult, BenchResult
from concur_agents.bench.simulate import Simulation
from concur_agents.bench.workloads import Workload
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError
from concur_agents.policies import parse
from concur_agents.simulator.costs import Profile


class Watcher(Protocol):
    """Somebody who looks on while a benchmark runs."""

    def begins(self, arm: str, steps: int) -> None:
        """An arm starts; `steps` generation calls are to be made."""
        ...

    def ticks(self, recorder: Recorder) -> None:
        """The arm's controller looked at the engine once more."""
        ...

    def ends(self, result: ArmResult) -> None:
        """The arm is over, or interrupted."""
        ...


class Nobody:
    """A watcher that does nothing."""

    def begins(self, arm: str, steps: int) -> None:
        """See `Watcher`."""

    def ticks(self, recorder: Recorder) -> None:
        """See `Watcher`."""

    def ends(self, result: ArmResult) -> None:
        """See `Watcher`."""


def check_arms(arms: Sequence[str]) -> tuple[str, ...]:
    """The arms as they are.

    Raises:
        InvalidValueError: None at all, one twice, or one that no policy is called.
    """
    if not arms:
        msg = "arms= is empty: name at least one policy, such as none,aimd"
        raise InvalidValueError(msg)
    for arm in arms:
        parse(arm)
        if list(arms).count(arm) > 1:
            msg = f"arms={arm!r} is given twice"
            raise InvalidValueError(msg)
    return tuple(arms)


def default_policy() -> str:
    """Name of the law that a `Controller` follows when it is not told."""
    return Controller().policy.name


def run_simulated(
    workload: Workload,
    profile: Profile,
    arms: Sequence[str],
    *,
    seed: int = 0,
    interval_seconds: float = 1.0,
    watcher: Watcher | None = None,
) -> BenchResult:
    """Run `arms` on one workload in virtual time; a KeyboardInterrupt ends it with a partial result.

    Args:
        workload: What the agents do.
        profile: The engine.
        arms: Policies, see `policies.parse`.
        seed: Of the trajectories; all arms see the same.
        interval_seconds: Between two looks of the controller at the engine, > 0.
        watcher: Looks on.

    Raises:
        InvalidValueError: An argument is out of range, or the workload does not fit the engine.
    """
    watcher = watcher or Nobody()
    arms = check_arms(arms)
    results: list[ArmResult] = []
    interrupted = False
    try:
        trajectories = workload.trajectories(seed)
        steps = sum(trajectory.calls for trajectory in trajectories)
        for arm in arms:
            watcher.begins(arm, steps)
            simulation = Simulation(
                workload,
                trajectories,
                profile,
                parse(arm),
                interval_seconds=interval_seconds,
                on_tick=watcher.ticks,
            )
            results.append(simulation.run())
            watcher.ends(results[-1])
            if results[-1].partial:
                break
    except KeyboardInterrupt:  # outside a simulation
        interrupted = True
    return BenchResult(
        engine="sim",
        workload=workload.name,
        default_policy=default_policy(),
        seed=seed,
        arms=tuple(results),
        profile=profile.name,
        interrupted=interrupted,
    )
