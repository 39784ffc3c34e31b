"""What the agents of a benchmark do: how many, how far, how long.

A workload is a closed loop: each agent sends its whole context, gets an answer, runs a tool, and comes
back with the answer and the tool's output appended. Every agent draws from its own random numbers, which
depend on the seed and its index only, so all arms of a run see the same trajectories.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from concur_agents.errors import InvalidValueError, check_range


@dataclass(frozen=True, slots=True)
class Uniform:
    """Evenly distributed between `low` and `high`, both >= 0 and included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        check_range("low", self.low, 0)
        check_range("high", self.high, self.low)

    def draw(self, rng: random.Random) -> float:
        """A number."""
        return rng.uniform(self.low, self.high)

    def draw_whole(self, rng: random.Random) -> int:
        """A whole number."""
        return rng.randint(int(self.low), int(self.high))


def always(value: float) -> Uniform:
    """No spread at all."""
    return Uniform(value, value)


_AT_ONCE = always(0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """One generation call and the tool that follows.

    `new_tokens` >= 1 are appended to the context before the call, `generate` >= 1 by it; the tool runs
    for `tool_seconds` afterwards (not after the last step).
    """

    new_tokens: int
    generate: int
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything one agent will do. `arrives_at` is in seconds after the start."""

    index: int
    arrives_at: float
    steps: tuple[Step, ...]

    @property
    def agent_id(self) -> str:
        """Its name in all arms."""
        return f"agent-{self.index:05d}"


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
        max_context: A trajectory ends before its context would exceed so many tokens; None: no limit.
        profile: Engine profile that the workload was made for.
        arms: Policies worth comparing on it; see `policies.parse`.
        source: Where the numbers come from.
    """

    name: str
    agents: int
    steps: Uniform
    first_tokens: Uniform
    new_tokens: Uniform
    generate: Uniform
    tool_seconds: Uniform
    profile: str
    arms: tuple[str, ...]
    source: str
    shared_tokens: int = 0
    arrivals: Uniform = _AT_ONCE
    max_context: int | None = None

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
        steps: list[Step] = []
        context = self.shared_tokens
        for number in range(self.steps.draw_whole(rng)):
            appended = (self.new_tokens if number else self.first_tokens).draw_whole(rng)
            step = Step(appended, self.generate.draw_whole(rng), self.tool_seconds.draw(rng))
            context += step.new_tokens + step.generate
            if steps and self.max_context is not None and context > self.max_context:
                break
            steps.append(step)
        return Trajectory(index, arrives_at, tuple(steps))

    def trajectories(self, seed: int) -> tuple[Trajectory, ...]:
        """All agents, in order of index."""
        return tuple(self.trajectory(index, seed) for index in range(self.agents))


_LOCKSTEP_SOURCE = "measured on a real vLLM 0.32 (CPU build), 32,768 KV tokens; see bench/fidelity.py"

LOCKSTEP_A = Workload(
    name="lockstep-a",
    agents=24,
    steps=always(12),
    first_tokens=always(400),
    new_tokens=always(400),
    generate=always(16),
    tool_seconds=Uniform(0.5, 1.5),
    profile="cpu-tiny",
    arms=("none", "requests:6", "static:6", "aimd", "aimd-seed", "aimd-paper"),
    source=_LOCKSTEP_SOURCE,
)

LOCKSTEP_B = Workload(
    name="lockstep-b",
    agents=24,
    steps=always(20),
    first_tokens=always(300),
    new_tokens=always(300),
    generate=always(16),
    tool_seconds=Uniform(0.25, 0.75),
    profile="cpu-tiny",
    arms=("none", "requests:6", "static:4", "aimd", "aimd-seed", "aimd-paper"),
    source=_LOCKSTEP_SOURCE,
)

DEMO = Workload(
    name="demo",
    agents=24,
    steps=always(16),
    first_tokens=always(200),
    new_tokens=Uniform(250, 350),
    generate=always(24),
    tool_seconds=Uniform(0.25, 0.75),
    shared_tokens=128,
    profile="cpu-tiny",
    arms=("none", "requests:6", "aimd"),
    source="between lockstep-a and lockstep-b, with the system prompt and tools that agents share",
)

QWEN3_32B_256 = Workload(
    name="qwen3-32b-256",
    # CONCUR (arXiv 2601.22705), Table 1: batch 256.
    agents=256,
    # "10 to 50 trajectory steps" from 512 tokens (the tutorial on the paper, "Monotonic Context Growth").
    steps=Uniform(10, 50),
    first_tokens=always(512),
    # Fig. 1b: about 1.5 GB of KV per agent at step 10. Qwen3-32B has 262,144 bytes per token, so 5,722
    # tokens, (5,722 - 512) / 9 = 579 a step. The tutorial's sample agent splits a step into 128 generated
    # and 512 observed tokens; in that proportion 116 and 463, here +-50% each.
    generate=Uniform(58, 174),
    new_tokens=Uniform(232, 694),
    # "pause execution for several seconds", "a 3-second bash tool call" (same tutorial).
    tool_seconds=Uniform(1.0, 5.0),
    # "from 512 tokens to over 32,000 tokens": trajectories end at 32k.
    max_context=32_768,
    profile="h100-qwen3-32b-tp8",
    arms=("none", "requests:64", "static:64", "static:128", "aimd", "aimd-seed", "aimd-paper"),
    source="CONCUR (arXiv 2601.22705), Table 1 and Fig. 1b; steps and tools from the tutorial on it",
)

DEEPSEEK_V3_40 = Workload(
    name="deepseek-v3-40",
    # Table 1: batch 40.
    agents=40,
    steps=Uniform(10, 50),
    first_tokens=always(512),
    # Fig. 1b: about 17 GB at step 10; Fig. 1c: 6.67 GB per 4,096 tokens, so 10,440 tokens at step 10,
    # (10,440 - 512) / 9 = 1,103 a step: 221 generated and 882 observed, here +-50% each.
    generate=Uniform(110, 332),
    new_tokens=Uniform(441, 1323),
    tool_seconds=Uniform(1.0, 5.0),
    max_context=32_768,
    profile="h100-deepseek-v3-tp16",
    arms=("none", "requests:16", "static:12", "static:16", "aimd", "aimd-seed", "aimd-paper"),
    source="CONCUR (arXiv 2601.22705), Tables 1 and 2, Figs. 1b and 1c; steps and tools from the tutorial",
)

SCALE_10K = Workload(
    name="scale-10k",
    agents=10_000,
    steps=always(20),
    first_tokens=always(512),
    # The tutorial's sample agent: 128 generated and 512 observed tokens a step.
    new_tokens=always(512),
    generate=always(128),
    tool_seconds=Uniform(1.0, 5.0),
    profile="h100-qwen3-32b-tp8",
    arms=("none", "aimd"),
    source="a load test of the control plane; sizes of the tutorial's sample agent",
)


def workloads() -> dict[str, Workload]:
    """All named workloads."""
    named = (LOCKSTEP_A, LOCKSTEP_B, DEMO, QWEN3_32B_256, DEEPSEEK_V3_40, SCALE_10K)
    return {workload.name: workload for workload in named}


def workload_named(name: str) -> Workload:
    """The workload called `name`.

    Raises:
        InvalidValueError: There is none; the message lists those there are.
    """
    known = workloads()
    if name not in known:
        msg = f"workload={name!r} is unknown: choose one of {', '.join(known)}"
        raise InvalidValueError(msg)
    return known[name]
