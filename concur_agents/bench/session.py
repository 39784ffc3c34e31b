"""Arms one after the other, in virtual time; what an interruption leaves is a result too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from concur_agents.bench.recorder import Recorder
from concur_agents.bench.results import ArmResult, BenchResult, median_arms
from concur_agents.bench.routers import is_via, policy_of
from concur_agents.bench.simulate import Simulation
from concur_agents.bench.workloads import Workload
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError, check_whole
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
        msg = "arms= is empty: name at least one policy, such as none,headroom"
        raise InvalidValueError(msg)
    for arm in arms:
        parse(policy_of(arm))
        if list(arms).count(arm) > 1:
            msg = f"arms={arm!r} is given twice"
            raise InvalidValueError(msg)
    return tuple(arms)


def default_policy() -> str:
    """Name of the law that a `Controller` follows when it is not told."""
    return Controller().policy.name


def schedule(arms: Sequence[str], reps: int) -> Iterator[tuple[int, str, str]]:
    """Which arm comes next: its repetition, its name, and how it is called while it runs.

    Each repetition starts with another arm, so that a machine that gets slower does so for all alike.
    """
    check_whole("reps", reps, 1)
    for rep in range(reps):
        turn = rep % len(arms)
        for arm in (*arms[turn:], *arms[:turn]):
            yield rep, arm, arm if reps == 1 else f"{arm} {rep + 1}/{reps}"


def all_arms(runs: Sequence[tuple[int, ArmResult]], reps: int) -> dict[str, Any]:
    """`BenchResult`'s arms and repetitions of what was run."""
    if reps == 1:
        return {"arms": tuple(result for _, result in runs)}
    found = tuple(tuple(result for rep, result in runs if rep == number) for number in range(reps))
    return {"arms": median_arms(found), "reps": tuple(rep for rep in found if rep)}


def facts_of(workload: Workload) -> dict[str, Any]:
    """The workload's numbers, for reports."""
    numbers = asdict(workload)
    for name in ("name", "arms", "source"):
        del numbers[name]
    return {"workload_numbers": numbers}


def run_simulated(
    workload: Workload,
    profile: Profile,
    arms: Sequence[str],
    *,
    seed: int = 0,
    reps: int = 1,
    interval_seconds: float = 1.0,
    watcher: Watcher | None = None,
) -> BenchResult:
    """Run `arms` on one workload in virtual time; a KeyboardInterrupt ends it with a partial result.

    Args:
        workload: What the agents do.
        profile: The engine.
        arms: Policies, see `policies.parse`.
        seed: Of the trajectories; all arms see the same.
        reps: How often, >= 1. Nothing varies in virtual time, so each repetition has the next seed.
        interval_seconds: Between two looks of the controller at the engine, > 0.
        watcher: Looks on.

    Raises:
        InvalidValueError: An argument is out of range, or the workload does not fit the engine.
    """
    watcher = watcher or Nobody()
    arms = check_arms(arms)
    if routed := [arm for arm in arms if is_via(arm)]:
        msg = f"arms={routed[0]!r} needs a router in front of a real engine: give --engine URL --via URL"
        raise InvalidValueError(msg)
    runs: list[tuple[int, ArmResult]] = []
    interrupted = False
    try:
        for rep, arm, title in schedule(arms, reps):
            trajectories = workload.trajectories(seed + rep)
            watcher.begins(title, sum(trajectory.calls for trajectory in trajectories))
            simulation = Simulation(
                workload,
                trajectories,
                profile,
                parse(arm),
                interval_seconds=interval_seconds,
                on_tick=watcher.ticks,
            )
            runs.append((rep, simulation.run()))
            watcher.ends(runs[-1][1])
            if runs[-1][1].partial:
                break
    except KeyboardInterrupt:  # outside a simulation
        interrupted = True
    return BenchResult(
        engine="sim",
        workload=workload.name,
        default_policy=default_policy(),
        seed=seed,
        profile=profile.name,
        interrupted=interrupted,
        facts=facts_of(workload),
        **all_arms(runs, reps),
    )
