"""The named workloads: what is measured, and where each number comes from."""

from __future__ import annotations

from concur_agents.bench.distributions import LogNormal, OneOf, Uniform, always
from concur_agents.bench.sampled import sampled
from concur_agents.bench.workloads import Workload
from concur_agents.errors import InvalidValueError
from concur_agents.simulator.costs import Profile
from concur_agents.simulator.profiles import profile_named

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
    arms=("none", "requests:6", "static:6", "headroom", "aimd", "aimd-seed", "aimd-paper"),
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
    arms=("none", "requests:6", "static:4", "headroom", "aimd", "aimd-seed", "aimd-paper"),
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
    arms=("none", "requests:6", "headroom"),
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
    arms=("none", "requests:64", "static:64", "static:128", "headroom", "aimd", "aimd-seed", "aimd-paper"),
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
    arms=("none", "requests:16", "static:12", "static:16", "headroom", "aimd", "aimd-seed", "aimd-paper"),
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
    arms=("none", "headroom"),
    source="a load test of the control plane; sizes of the tutorial's sample agent",
)

_STUDY_SOURCE = "a variation of lockstep-b, on the same engine: "
_STUDY_ARMS = ("none", "static:5", "static:8", "headroom", "aimd", "aimd-seed", "aimd-paper")

JITTERED = Workload(
    name="jittered",
    agents=24,
    steps=Uniform(8, 20),
    first_tokens=LogNormal(300, 0.5, 32, 2000),
    new_tokens=LogNormal(200, 0.8, 16, 2000),
    generate=LogNormal(16, 0.5, 4, 64),
    tool_seconds=LogNormal(0.5, 1.0, 0.05, 20),
    max_context=8000,
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "lengths and tool times heavy-tailed, as those of coding agents are",
)

SHARED_PREFIX = Workload(
    name="shared-prefix",
    agents=24,
    steps=always(12),
    first_tokens=always(250),
    new_tokens=always(250),
    generate=always(16),
    tool_seconds=Uniform(0.25, 0.75),
    shared_tokens=2048,
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "a system prompt and tool definitions of 2k tokens that all agents share",
)

MIXED = Workload(
    name="mixed",
    agents=24,
    steps=OneOf((always(6), always(20))),
    first_tokens=always(200),
    new_tokens=Uniform(150, 350),
    generate=always(16),
    tool_seconds=Uniform(0.25, 1.25),
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "short and long agents in one batch",
)

BURST = Workload(
    name="burst",
    agents=24,
    steps=always(12),
    first_tokens=always(300),
    new_tokens=always(300),
    generate=always(16),
    tool_seconds=Uniform(0.25, 0.75),
    arrivals=OneOf((always(0), always(45))),
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "half of the agents come when the others are half-way",
)

LONG_TOOLS = Workload(
    name="long-tools",
    agents=24,
    steps=always(10),
    first_tokens=always(400),
    new_tokens=always(400),
    generate=always(16),
    tool_seconds=Uniform(5, 25),
    profile="cpu-tiny",
    arms=("none", "static:8", "static:24", "headroom", "aimd", "aimd-seed", "aimd-paper"),
    source=_STUDY_SOURCE + "tools take some thirty times as long as a step, so that the engine stands idle",
)

LONG_HORIZON = Workload(
    name="long-horizon",
    agents=24,
    steps=always(40),
    first_tokens=always(200),
    new_tokens=always(150),
    generate=always(16),
    tool_seconds=Uniform(0.25, 0.75),
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "twice the steps, each half as long",
)

FAN_OUT = Workload(
    name="fan-out",
    agents=16,
    steps=always(6),
    first_tokens=always(300),
    new_tokens=always(300),
    generate=always(16),
    tool_seconds=Uniform(0.25, 0.75),
    sub_agents=Uniform(0, 3),
    sub_steps=Uniform(2, 5),
    profile="cpu-tiny",
    arms=_STUDY_ARMS,
    source=_STUDY_SOURCE + "each step starts up to three sub-agents with contexts of their own",
)


def workloads() -> dict[str, Workload]:
    """All named workloads."""
    named = (
        LOCKSTEP_A,
        LOCKSTEP_B,
        JITTERED,
        SHARED_PREFIX,
        MIXED,
        BURST,
        LONG_TOOLS,
        LONG_HORIZON,
        FAN_OUT,
        DEMO,
        QWEN3_32B_256,
        DEEPSEEK_V3_40,
        SCALE_10K,
    )
    return {workload.name: workload for workload in named}


def workload_named(name: str) -> Workload:
    """The workload called `name`; "sampled:N" is one drawn at random, a number N its own.

    Raises:
        InvalidValueError: There is none; the message lists those there are.
    """
    known = workloads()
    kind, _, number = name.partition(":")
    if kind == "sampled" and number.isdecimal():
        return sampled(int(number))
    if name not in known:
        msg = f"workload={name!r} is unknown: choose one of {', '.join(known)}, or sampled:N"
        raise InvalidValueError(msg)
    return known[name]


def profile_for(workload: Workload) -> Profile:
    """The simulated engine that `workload` was made for."""
    profile = profile_named(workload.profile)
    return profile if workload.kv_tokens is None else profile.with_kv_tokens(workload.kv_tokens)
