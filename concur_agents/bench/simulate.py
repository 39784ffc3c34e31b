"""One arm in virtual time: the admission code of every other shell, on the simulated engine, no sleeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial

from concur_agents.bench.recorder import Recorder
from concur_agents.bench.results import ArmResult, EngineTotals, arm_result
from concur_agents.bench.workloads import Trajectory, Workload
from concur_agents.errors import check_range
from concur_agents.events import Event, Granted, Ticket
from concur_agents.lifecycle import Usage
from concur_agents.policies import Policy
from concur_agents.regulator import Regulator
from concur_agents.signals import EngineReading, Quality, Reading
from concur_agents.simulator.blocks import StreamKeys
from concur_agents.simulator.costs import Profile
from concur_agents.simulator.engine import Engine
from concur_agents.simulator.records import EngineStats, Finished, Request
from concur_agents.simulator.virtual import VirtualClock, VirtualEngine


class StatsReader:
    """The engine's statistics as a `Reading`, as a scrape of vLLM's /metrics would give it.

    Hits and queries are those counted when a request's first token comes out, as telemetry prefers them.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._before: EngineStats | None = None

    def read(self, stats: EngineStats, now: float) -> Reading:
        """Look once; deltas are since the look before."""
        before, self._before = self._before, stats
        if before is not None and before.epoch != stats.epoch:
            before = None
        busy = stats.running or stats.waiting
        engine = EngineReading(
            usage=stats.usage,
            hit_tokens=stats.cached_tokens,
            query_tokens=stats.prompt_tokens,
            running=stats.running,
            waiting=stats.waiting,
            preemptions=stats.preemptions,
            capacity_tokens=self._profile.kv_tokens,
            block_size=self._profile.block_size,
        )
        return Reading(
            at=now,
            quality=Quality.OK,
            epoch=stats.epoch,
            usage=stats.usage if busy else 0.0,
            hit_tokens_delta=stats.cached_tokens - before.cached_tokens if before else None,
            query_tokens_delta=stats.prompt_tokens - before.prompt_tokens if before else None,
            preemptions_delta=stats.preemptions - before.preemptions if before else None,
            running=stats.running,
            waiting=stats.waiting,
            capacity_tokens=engine.capacity_tokens,
            block_size=engine.block_size,
            engines=(engine,),
        )


class _Agent:
    """Where one trajectory stands."""

    __slots__ = ("agent_id", "busy", "context", "keys", "over", "step", "trajectory")

    def __init__(
        self, trajectory: Trajectory, keys: StreamKeys, context: int, over: Callable[[], None]
    ) -> None:
        self.trajectory = trajectory
        self.over = over
        """Called at its end."""
        self.busy = 0
        """Tools and sub-agents that its next step waits for."""
        self.agent_id = trajectory.agent_id
        self.keys = keys
        self.context = context
        self.step = 0


class Simulation:
    """One policy on one workload.

    Args:
        workload: What the agents do.
        trajectories: The agents, as `workload.trajectories` drew them.
        profile: The engine.
        policy: The control law; used from its first window on.
        interval_seconds: Between two ticks of the controller, > 0.
        on_tick: Called after each tick, for progress.
    """

    def __init__(
        self,
        workload: Workload,
        trajectories: Iterable[Trajectory],
        profile: Profile,
        policy: Policy,
        *,
        interval_seconds: float = 1.0,
        on_tick: Callable[[Recorder], None] | None = None,
    ) -> None:
        check_range("interval_seconds", interval_seconds, 0, open_low=True)
        self.recorder = Recorder()
        self.clock = VirtualClock()
        self.engine = VirtualEngine(Engine(profile), self.clock)
        self.regulator = Regulator(policy, block_size=profile.block_size)
        self._policy = policy
        self._reader = StatsReader(profile)
        self._interval = interval_seconds
        self._on_tick = on_tick
        self._granted: dict[Ticket, _Agent] = {}
        self._left = 0
        self._shared_tokens = workload.shared_tokens
        self._prefix_blocks = workload.shared_tokens // profile.block_size
        self._streams = itertools.count(workload.agents)
        """Numbers for the contexts of sub-agents."""
        for trajectory in trajectories:
            agent = self._agent(trajectory, trajectory.index, self._ended)
            self.clock.call_at(trajectory.arrives_at, partial(self._arrive, agent))
            self._left += 1

    def run(self) -> ArmResult:
        """Run to the end; a KeyboardInterrupt ends it early with a partial result."""
        self.clock.call_at(0.0, self._tick)
        interrupted = False
        try:
            self.clock.run()
        except KeyboardInterrupt:
            interrupted = True
        stats = self.engine.stats
        totals = EngineTotals(stats.cached_tokens, stats.prompt_tokens, stats.preemptions)
        seen = self.regulator.snapshot()
        return arm_result(self._policy.name, self.recorder, totals, seen, partial=interrupted)

    def _agent(self, trajectory: Trajectory, stream: int, over: Callable[[], None]) -> _Agent:
        return _Agent(trajectory, StreamKeys(stream, 0, self._prefix_blocks), self._shared_tokens, over)

    def _ended(self) -> None:
        self._left -= 1

    def _arrive(self, agent: _Agent, parent: str | None = None) -> None:
        self.regulator.open(agent.agent_id, self.clock.now, parent=parent)
        self._ask(agent)

    def _ask(self, agent: _Agent) -> None:
        ticket, events = self.regulator.request(agent.agent_id, self.clock.now)
        self._granted[ticket] = agent
        self._handle(events)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            self.recorder(event)
            if type(event) is Granted:
                self._generate(self._granted.pop(event.ticket), event.ticket)

    def _generate(self, agent: _Agent, ticket: Ticket) -> None:
        step = agent.trajectory.steps[agent.step]
        prompt = agent.context + step.new_tokens
        request = Request(f"{agent.agent_id}/{agent.step}", prompt, step.generate, agent.keys)
        self.engine.generate(request, lambda finished: self._answered(agent, ticket, finished))

    def _answered(self, agent: _Agent, ticket: Ticket, finished: Finished) -> None:
        request, now = finished.request, self.clock.now
        step = agent.trajectory.steps[agent.step]
        agent.context = request.prompt_tokens + request.max_tokens
        agent.step += 1
        usage = Usage(request.prompt_tokens, request.max_tokens, finished.cached_tokens)
        self._handle(self.regulator.end(ticket, now, usage))
        if agent.step == len(agent.trajectory.steps):
            self._handle(self.regulator.finish(agent.agent_id, now))
            agent.over()
            return
        agent.busy = 1 + len(step.sub_agents)
        proceed = partial(self._proceed, agent)
        self.clock.call_later(step.tool_seconds, proceed)
        for helper in step.sub_agents:
            self._arrive(self._agent(helper, next(self._streams), proceed), agent.agent_id)

    def _proceed(self, agent: _Agent) -> None:
        """One thing that the agent's next step waited for is over."""
        agent.busy -= 1
        if not agent.busy:
            self._ask(agent)

    def _tick(self) -> None:
        now = self.clock.now
        self._handle(self.regulator.tick(self._reader.read(self.engine.stats, now), now))
        if self._on_tick is not None:
            self._on_tick(self.recorder)
        if self._left:
            self.clock.call_later(self._interval, self._tick)
