"""A thousand random schedules on the real controller, in virtual time.

Agents crash in steps and tools, are cancelled at any moment, dawdle for an hour, call several branches at
once, are paused and resumed by hand, drop their streams; telemetry refuses, hangs, restarts, lies. After
each schedule: no place lost, nobody starved, counters conserve. A wait that nothing would end is an error
of the virtual loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter

import pytest

from concur_agents.controller import Controller
from concur_agents.errors import AgentFinishedError, InvalidValueError, UnknownAgentError
from concur_agents.events import Admitted, Event, Finished, Paused
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.policies import AIMD, Headroom, RequestLimit, Static
from concur_agents.scopes import AgentScope
from concur_agents.signals import Quality, Reading, Window
from tests.virtual import clock, run

SCHEDULES = int(os.environ.get("CONCUR_SOAK", "400"))
PER_TEST = 50


class CrashError(Exception):
    pass


class Erratic:
    """Telemetry at its worst."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.epoch = 0

    async def read(self, now: float) -> Reading:
        rng = self.rng
        mood = rng.random()
        if mood < 0.1:
            raise ConnectionError("refused")
        if mood < 0.15:
            await asyncio.sleep(3600)
        if mood < 0.3:
            return Reading(now, rng.choice([Quality.STALE, Quality.ABSENT, Quality.UNRELIABLE]), self.epoch)
        self.epoch += rng.random() < 0.02
        return Reading(
            now,
            Quality.OK,
            self.epoch,
            usage=rng.choice([None, rng.random()]),
            hit_tokens_delta=rng.choice([None, rng.random() * 1000]),
            query_tokens_delta=rng.choice([None, 0, 1000]),
            capacity_tokens=rng.choice([None, 20_000]),
            block_size=rng.choice([None, 16]),
        )

    async def close(self) -> None:
        return None


class Whim:
    """A law without sense: any window, and now and then nonsense."""

    name = "whim"

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def initial(self) -> Window:
        return Window(agents=self.rng.randint(1, 6))

    def update(self, signals) -> Window:
        if self.rng.random() < 0.05:
            raise InvalidValueError("no idea")
        return Window(
            agents=self.rng.choice([None, 1, 2, 5, 9]),
            tokens=self.rng.choice([None, None, 500, 5000]),
            grace_seconds=self.rng.choice([None, None, 0, 20]),
        )


class Schedule:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.policy = rng.choice(
            [AIMD(), AIMD(w_initial=2, w_min=1), Headroom(), Static(1), Static(3), RequestLimit(2), Whim(rng)]
        )
        self.counts: Counter[str] = Counter()
        self.finished: Counter[Outcome] = Counter()
        self.waits: list[float] = []

    def see(self, event: Event) -> None:
        self.counts[type(event).__name__] += 1
        if isinstance(event, Finished) and "/" not in event.agent_id:
            self.finished[event.outcome] += 1
        elif isinstance(event, Admitted):
            self.waits.append(event.waited)
            self.counts["first"] += event.first
        elif isinstance(event, Paused):
            agent, _ = self.concur.gate._regulator.admission.census.find(event.agent_id)
            assert agent.calls_in_flight == 0

    async def step(self, me: AgentScope, tokens: int) -> None:
        rng = self.rng
        async with me.step() as step:
            await asyncio.sleep(rng.expovariate(1))
            if rng.random() < 0.03:
                raise CrashError
            step.record(rng.choice([None, Usage(tokens, 20, rng.choice([None, tokens // 2]))]))

    async def agent(self, name: str) -> None:
        rng = self.rng
        async with self.concur.agent(name, priority=rng.choice([0, 0, 1])) as me:
            for n in range(rng.randint(1, 8)):
                await self.step(me, 100 * (n + 1))
                if rng.random() < 0.15:
                    await self.fan_out(me)
                await asyncio.sleep(rng.choice([0, 0.5, 3, 3600 if rng.random() < 0.1 else 1]))
                if rng.random() < 0.03:
                    raise CrashError

    async def fan_out(self, me: AgentScope) -> None:
        async def branch() -> None:
            async with me.child() as sub:
                await self.step(sub, 50)
                await self.step(sub, 80)

        await asyncio.gather(*(branch() for _ in range(self.rng.randint(1, 3))))

    async def meddle(self, names: list[str]) -> None:
        """Somebody at a console pauses agents, and always resumes them."""
        for _ in range(5):
            name = self.rng.choice(names)
            await asyncio.sleep(self.rng.random() * 5)
            for verb in (self.concur.pause, self.concur.resume):
                # Not started yet, or over: it says so and changes nothing.
                with contextlib.suppress(UnknownAgentError, AgentFinishedError):
                    verb(name)
                await asyncio.sleep(self.rng.random() * 5)

    async def main(self) -> None:
        rng = self.rng
        names = [f"a{n}" for n in range(rng.randint(2, 16))]
        async with Controller(Erratic(rng), policy=self.policy, clock=clock) as self.concur:
            self.concur.subscribe(self.see)
            tasks = [asyncio.create_task(self.agent(name)) for name in names]
            console = asyncio.create_task(self.meddle(names))
            for task in tasks:
                if rng.random() < 0.2:
                    asyncio.get_running_loop().call_later(rng.random() * 30, task.cancel)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await console
            snapshot = self.concur.snapshot()
        unexpected = [
            r for r in results if r is not None and not isinstance(r, CrashError | asyncio.CancelledError)
        ]
        assert not unexpected
        assert (snapshot.active, snapshot.waiting, snapshot.open, snapshot.demand_tokens) == (0, 0, 0, 0)
        assert not self.concur.gate._waiters
        assert not self.concur.gate._regulator.admission._calls
        ended = snapshot.completed + snapshot.failed + snapshot.cancelled
        assert snapshot.admitted == ended == self.counts["first"]
        # Cancelled before its task ever ran, an agent was never opened; else it finished exactly once.
        assert sum(self.finished.values()) <= len(names)
        assert self.finished[Outcome.COMPLETED] == sum(r is None for r in results) == snapshot.completed


@pytest.mark.parametrize("first", range(0, SCHEDULES, PER_TEST))
def test_random_schedules(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        schedule = Schedule(seed)
        run(schedule.main())
        # Nobody starved: hours-long tools happen, but they are reclaimed or end; bounded by all of them.
        assert max(schedule.waits, default=0) <= 16 * 8 * 3700
