"""A closed loop of agents for tests: each sends its growing context, waits for a tool, and comes again."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from concur_agents.simulator.blocks import StreamKeys
from concur_agents.simulator.engine import Engine, Request
from concur_agents.simulator.virtual import VirtualClock, VirtualEngine


@dataclass(frozen=True)
class Workload:
    agents: int
    steps: int
    new_tokens: int
    generate: int
    tool: tuple[float, float]


LOCKSTEP_A = Workload(24, 12, 400, 16, (0.5, 1.5))
LOCKSTEP_B = Workload(24, 20, 300, 16, (0.25, 0.75))


@dataclass(frozen=True)
class Outcome:
    seconds: float
    hit_rate: float
    computed_tokens: int
    stats: object
    finished: list
    engine: Engine


def run(workload, profile, *, static=None, requests=None, seed=0, leap=True):
    """`static`: at most so many agents started, FIFO; `requests`: at most so many calls in flight."""
    clock, rng, finished = VirtualClock(), random.Random(seed), []
    virtual = VirtualEngine(Engine(profile, leap=leap), clock)
    to_start, waiting = deque(range(workload.agents)), deque()
    in_flight = 0

    def start():
        ask(to_start.popleft(), 0, workload.new_tokens)

    def ask(agent, step, length):
        waiting.append((agent, step, length))
        pump()

    def pump():
        nonlocal in_flight
        while waiting and (requests is None or in_flight < requests):
            agent, step, length = waiting.popleft()
            in_flight += 1
            request = Request(f"{agent}-{step}", length, workload.generate, StreamKeys(agent))
            virtual.generate(request, lambda f, a=agent, s=step, n=length: done(f, a, s, n))

    def done(result, agent, step, length):
        nonlocal in_flight
        in_flight -= 1
        finished.append(result)
        pump()
        if step + 1 < workload.steps:
            longer = length + workload.generate + workload.new_tokens
            clock.call_later(rng.uniform(*workload.tool), lambda: ask(agent, step + 1, longer))
        elif to_start:
            start()

    for _ in range(min(static or workload.agents, workload.agents)):
        clock.call_at(0.0, start)
    clock.run()
    stats = virtual.stats
    return Outcome(
        clock.now,
        stats.hit_tokens / stats.query_tokens,
        stats.computed_tokens,
        stats,
        finished,
        virtual.engine,
    )
