"""Arms over HTTP: real clients and the real controller, on an engine started here or running elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from concur_agents.bench.engines import Engine, Server
from concur_agents.bench.recorder import Recorder
from concur_agents.bench.results import (
    BASELINE,
    NOTHING_TO_GAIN,
    ArmResult,
    BenchResult,
    EngineTotals,
    arm_result,
)
from concur_agents.bench.routers import Router, is_via, policy_of
from concur_agents.bench.session import (
    Nobody,
    Watcher,
    all_arms,
    check_arms,
    default_policy,
    facts_of,
    schedule,
)
from concur_agents.bench.workloads import Trajectory, Workload
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError, check_range
from concur_agents.events import Event, Tick
from concur_agents.policies import parse
from concur_agents.signals import Reading


class Agents(Protocol):
    """Runs trajectories against one server under one controller."""

    async def run(self, trajectory: Trajectory) -> None:
        """Run one agent to its end; `trajectory.agent_id` is its id on the controller."""
        ...

    async def close(self) -> None:
        """Give back sockets."""
        ...


class MakeAgents(Protocol):
    """Makes the agents of one arm."""

    def __call__(
        self, base_url: str, model: str, controller: Controller, workload: Workload, speed: float, /
    ) -> Agents:
        """Make them.

        `base_url` is the server's root, without /v1; `speed` is engine seconds per wall-clock second, and
        tools are as much faster.
        """
        ...


async def run_live(
    workload: Workload,
    engine: Engine,
    arms: Sequence[str],
    make_agents: MakeAgents,
    *,
    seed: int = 0,
    reps: int = 1,
    interval_seconds: float = 1.0,
    router: Router | None = None,
    force: bool = False,
    watcher: Watcher | None = None,
) -> BenchResult:
    """Run `arms` on one workload in real time; cancelling it ends it early with a partial result.

    It ends after the arm without control, and says why, when that one finds nearly everything in the cache:
    then no arm could show anything.

    Args:
        workload: What the agents do; its tool times are divided by the engine's speed.
        engine: Where.
        arms: Policies, see `policies.parse`; those that begin with "via" go through `router`.
        make_agents: Makes the agents of each arm.
        seed: Of the trajectories; all arms see the same.
        reps: How often, >= 1; each repetition starts with another arm.
        interval_seconds: Between two looks of the controller at the engine, in the engine's seconds, > 0.
        router: In front of the engine, for some of the arms. The engine's own counters are read.
        force: Go on with a workload that cannot show anything.
        watcher: Looks on.

    Raises:
        InvalidValueError: An argument is out of range.
        EngineUnusableError: The engine does not answer.
    """
    check_range("interval_seconds", interval_seconds, 0, open_low=True)
    watcher = watcher or Nobody()
    arms = check_arms(arms)
    if router is None and any(is_via(arm) for arm in arms):
        msg = f"arms={','.join(arms)!r} goes through a router, but none is given: --via URL"
        raise InvalidValueError(msg)
    trajectories = workload.trajectories(seed)
    steps = sum(trajectory.calls for trajectory in trajectories)
    runs: list[tuple[int, ArmResult]] = []
    facts, interrupted, refused = facts_of(workload), False, None
    try:
        for rep, arm, title in schedule(arms, reps):
            watcher.begins(title, steps)
            async with engine.arm() as server:
                if not runs:
                    facts |= await engine.facts(server)
                live = _Arm(arm, workload, server, engine.speed, interval_seconds, watcher)
                runs.append((rep, await live.run(trajectories, make_agents, router)))
            watcher.ends(runs[-1][1])
            refused = None if force else pointless(runs[-1][1])
            if refused or runs[-1][1].partial:
                break
    except asyncio.CancelledError:  # between two arms
        _stay()
        interrupted = True
    return BenchResult(
        engine=engine.name,
        workload=workload.name,
        default_policy=default_policy(),
        seed=seed,
        profile=engine.profile,
        speed=engine.speed,
        interrupted=interrupted,
        refused=refused,
        facts=facts,
        **all_arms(runs, reps),
    )


def pointless(result: ArmResult) -> str | None:
    """Why no control can gain anything, if `result` is that of no control and says so."""
    rate = result.hit_rate
    if result.arm != BASELINE or rate is None or rate <= NOTHING_TO_GAIN:
        return None
    return (
        f"without any control {rate:.0%} of the prompt tokens were found in the cache: it holds all agents,"
        " and there is nothing to gain. Take more agents, longer trajectories or a smaller cache, or --force"
    )


def _stay() -> None:
    """The current task was cancelled and goes on, to report what there is."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


class _Arm:
    """One arm on one server."""

    def __init__(
        self,
        name: str,
        workload: Workload,
        server: Server,
        speed: float,
        interval_seconds: float,
        watcher: Watcher,
    ) -> None:
        self._name = name
        self._workload = workload
        self._server = server
        self._speed = speed
        self._watcher = watcher
        self._recorder = Recorder()
        self._error: str | None = None
        self._controller = Controller(
            server.telemetry, policy=parse(policy_of(name)), interval_seconds=interval_seconds / speed
        )

    async def run(
        self, trajectories: Sequence[Trajectory], make_agents: MakeAgents, router: Router | None = None
    ) -> ArmResult:
        before = await self._server.meter.read(time.monotonic())
        self._recorder = Recorder(time.monotonic())
        self._controller.subscribe(self._on_event)
        url = self._server.base_url
        if router is not None and is_via(self._name):
            url, make_agents = router.url, partial(make_agents, router=router)  # type: ignore[call-arg]
        agents = make_agents(url, self._server.model, self._controller, self._workload, self._speed)
        interrupted = False
        try:
            async with self._controller:
                await self._run_all(agents, trajectories)
        except asyncio.CancelledError:
            _stay()
            interrupted = True
        finally:
            await agents.close()
        if not interrupted:
            self._check_steps(sum(trajectory.calls for trajectory in trajectories))
        after = await self._server.meter.read(time.monotonic())
        await self._server.meter.close()
        return arm_result(
            self._name,
            self._recorder,
            totals(before, after),
            self._controller.snapshot(),
            partial=interrupted,
            error=self._error,
        )

    async def _run_all(self, agents: Agents, trajectories: Sequence[Trajectory]) -> None:
        tasks = [asyncio.create_task(self._run_one(agents, trajectory)) for trajectory in trajectories]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_one(self, agents: Agents, trajectory: Trajectory) -> None:
        """One agent; its failure is reported and leaves the others alone."""
        await asyncio.sleep(trajectory.arrives_at / self._speed)
        try:
            await agents.run(trajectory)
        except Exception as error:
            if self._error is None:
                self._error = f"{trajectory.agent_id} failed: {type(error).__name__}: {error}"[:300]

    def _check_steps(self, expected: int) -> None:
        """Agents that a real model drives may end early; then the arm is another workload than it says."""
        taken = self._recorder.calls
        if self._error is None and taken < expected:
            self._error = (
                f"the agents took {taken} of {expected} steps: this model ends their loops early;"
                " --agents openai take every step on any engine"
            )

    def _on_event(self, event: Event) -> None:
        self._recorder(event)
        if type(event) is Tick:
            self._watcher.ticks(self._recorder)


def totals(before: Reading, after: Reading) -> EngineTotals:
    """What all engines behind an endpoint counted between two readings; None where one does not say."""

    def grown(field: str) -> float | None:
        counted = [
            [getattr(engine, field) for engine in reading.engines if getattr(engine, field) is not None]
            for reading in (before, after)
        ]
        if not counted[1] or before.epoch != after.epoch:
            return None
        return float(sum(counted[1]) - sum(counted[0]))

    return EngineTotals(grown("hit_tokens"), grown("query_tokens"), grown("preemptions"))
