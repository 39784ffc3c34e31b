"""Workloads drawn at random, for laws to be tried on that were not chosen by them.

Each number is drawn from what agents and engines may plausibly be: 16 to 64 agents of 4 to 60 steps, tools of
a third of a second to eight, a cache that holds at least four of the longest contexts and at most two thirds
of them all together. So some thrash and some do not; some are bound by the cache, some by the engine, and
some by their tools.
"""

from __future__ import annotations

import random

from concur_agents.bench.distributions import Distribution, LogNormal, OneOf, Uniform, always
from concur_agents.bench.workloads import Workload
from concur_agents.simulator.costs import Profile
from concur_agents.simulator.profiles import profile_named

_PROFILES = ("cpu-tiny", "cpu-tiny", "h100-qwen3-32b-tp8", "h100-deepseek-v3-tp16")
"""A tiny model on a CPU is as likely as a large one on GPUs."""


def sampled(number: int) -> Workload:
    """The workload number `number` >= 0; always the same one for a number."""
    rng = random.Random(f"sampled/{number}")
    profile = profile_named(rng.choice(_PROFILES))
    small = profile.name == "cpu-tiny"
    steps = rng.choice((8, 12, 16, 20, 30, 40))
    grow = rng.choice((100, 200, 300, 500) if small else (300, 600, 1000))
    generate = rng.choice((8, 16, 32) if small else (60, 120, 250))
    tool = rng.choice((0.3, 1.0, 3.0, 8.0))
    agents = rng.choice((16, 24, 32, 48, 64))
    longest = min((grow + generate) * steps, int(0.9 * profile.max_model_len))
    kv_tokens = max(4 * longest, agents * longest // rng.choice((2, 3, 4, 6)))
    return Workload(
        name=f"sampled:{number}",
        agents=agents,
        steps=rng.choice(_lengths(steps)),
        first_tokens=always(grow),
        new_tokens=rng.choice(_spread(grow)),
        generate=Uniform(generate // 2, generate + generate // 2),
        tool_seconds=rng.choice((Uniform(tool / 2, 1.5 * tool), LogNormal(tool, 0.8, tool / 10, 10 * tool))),
        arrivals=rng.choice((always(0), always(0), Uniform(0, 30))),
        shared_tokens=rng.choice((0, 0, 4 * grow)),
        max_context=_max_context(profile, kv_tokens),
        kv_tokens=kv_tokens,
        profile=profile.name,
        arms=("none", "headroom", "aimd"),
        source="drawn at random",
    )


def _lengths(steps: int) -> tuple[Distribution, ...]:
    short = max(2, steps // 3)
    return always(steps), Uniform(steps // 2, steps + steps // 2), OneOf((always(short), always(steps)))


def _spread(tokens: int) -> tuple[Distribution, ...]:
    even = Uniform(tokens // 2, tokens + tokens // 2)
    return always(tokens), even, LogNormal(tokens, 0.6, 16, 6 * tokens)


def _max_context(profile: Profile, kv_tokens: int) -> int:
    """So that neither the model nor the cache ends a trajectory."""
    return int(0.9 * profile.with_kv_tokens(kv_tokens).max_model_len)
