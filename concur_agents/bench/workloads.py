"""What the agents of a benchmark do: how many, how far, how long.

A workload is a closed loop: each agent sends its whole context, gets an answer, runs a tool, and comes
back with the answer and the tool's output appended. Every agent draws from its own random numbers, which
depend on the seed and its index only, so all arms of a run see the same trajectories.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from concur_agents.bench.distributions import Distribution, always
from concur_agents.bench.recorder import SUB
from concur_agents.errors import check_range

_AT_ONCE = _NONE = always(0.0)
_ONE = always(1.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One generation call and the tool that follows.

    `new_tokens` >= 1 are appended to the context before the call, `generate` >= 1 by it; the tool runs
    for `tool_seconds` afterwards (not after the last step), and `sub_agents` work at the same time, each on
    a context of its own: the next step begins when all of it is over.
    """

    new_tokens: int
    generate: int
    tool_seconds: float
    sub_agents: tuple[Trajectory, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything one agent will do. `arrives_at` is in seconds after the start."""

    index: int
    arrives_at: float
    steps: tuple[Step, ...]
    of: str = ""
    """Agent and step that it works for; empty for an agent of its own."""

    @property
    def agent_id(self) -> str:
        """Its name in all arms."""
        return f"{self.of}{SUB}{self.index}" if self.of else f"agent-{self.index:05d}"

    @property
    def calls(self) -> int:
        """Generation calls, those of its sub-agents included."""
        return sum(1 + sum(sub.calls for sub in step.sub_agents) for step in self.steps)


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch of agents. Token counts and seconds are those of the engine.

    Args:
        name: For the command line and reports.
        agents: How many, >= 1.
        steps: Generation calls of an agent.
        first_tokens: Its own first prompt, the shared prefix not counted.
        new_tokens: What each tool appends.
        generate: What each call generates.
        tool_seconds: How long each tool takes.
        shared_tokens: System prompt and tool definitions that all agents share, >= 0.
        arrivals: When an agent starts; all at once by default.
        sub_agents: Sub-agents that a step starts after its call (not the last one); none by default.
        sub_steps: Generation calls of a sub-agent; its prompts, answers and tools are drawn as an agent's.
        max_context: A trajectory ends before its context would exceed so many tokens; None: no limit.
        profile: Engine profile that the workload was made for.
        kv_tokens: KV cache that it was made for, where that is not the profile's own, >= 1.
        arms: Policies worth comparing on it; see `policies.parse`.
        source: Where the numbers come from.
    """

    name: str
    agents: int
    steps: Distribution
    first_tokens: Distribution
    new_tokens: Distribution
    generate: Distribution
    tool_seconds: Distribution
    profile: str
    arms: tuple[str, ...]
    source: str
    shared_tokens: int = 0
    arrivals: Distribution = _AT_ONCE
    sub_agents: Distribution = _NONE
    sub_steps: Distribution = _ONE
    max_context: int | None = None
    kv_tokens: int | None = None

    def __post_init__(self) -> None:
        check_range("agents", self.agents, 1)
        for field in ("steps", "first_tokens", "new_tokens", "generate"):
            check_range(f"{field}.low", getattr(self, field).low, 1)
        check_range("shared_tokens", self.shared_tokens, 0)
        if self.max_context is not None:
            check_range("max_context", self.max_context, self.shared_tokens + 2)

    def trajectory(self, index: int, seed: int) -> Trajectory:
        """Draw the agent number `index`."""
        rng = random.Random(f"{self.name}/{seed}/{index}")
        arrives_at = self.arrivals.draw(rng)
        steps = self._steps(self.steps.draw_whole(rng), rng)
        if self.sub_agents.high:
            name = Trajectory(index, 0.0, ()).agent_id
            last = len(steps) - 1
            steps = [
                replace(step, sub_agents=self._sub_agents(f"{name}/{number}", rng)) if number < last else step
                for number, step in enumerate(steps)
            ]
        return Trajectory(index, arrives_at, tuple(steps))

    def _steps(self, count: int, rng: random.Random) -> list[Step]:
        steps: list[Step] = []
        context = self.shared_tokens
        for number in range(count):
            appended = (self.new_tokens if number else self.first_tokens).draw_whole(rng)
            step = Step(appended, self.generate.draw_whole(rng), self.tool_seconds.draw(rng))
            context += step.new_tokens + step.generate
            if steps and self.max_context is not None and context > self.max_context:
                break
            steps.append(step)
        return steps

    def _sub_agents(self, of: str, rng: random.Random) -> tuple[Trajectory, ...]:
        return tuple(
            Trajectory(number, 0.0, tuple(self._steps(self.sub_steps.draw_whole(rng), rng)), of)
            for number in range(self.sub_agents.draw_whole(rng))
        )

    def trajectories(self, seed: int) -> tuple[Trajectory, ...]:
        """All agents, in order of index."""
        return tuple(self.trajectory(index, seed) for index in range(self.agents))
