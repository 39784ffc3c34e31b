"""150 agents and teams at once, cancelled, timed out and failing at random: nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, LLMMessage
from concur_autogen import ConcurChatCompletionClient, run, run_stream
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Window
from concur_agents.events import Admitted, Finished, WindowChanged
from tests.autogen.fakes import FakeClient, call, say
from tests.autogen.teams import NAMES, RUNNERS, director
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually

AGENTS = 150


class EngineError(Exception):
    pass


class Moody:
    """A policy that changes its mind at every look."""

    name = "moody"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def initial(self) -> Window:
        return Window(agents=8)

    def update(self, signals: Any) -> Window:
        return Window(agents=self._rng.randint(1, 12))


class Watch:
    """Sees who makes calls, and whether they should."""

    def __init__(self, controller: Controller) -> None:
        self.over: set[str] = set()
        self.ghosts: list[str] = []
        self.admitted = 0
        self.too_many: list[int] = []
        self._controller = controller
        controller.subscribe(self._see)

    def _see(self, event: Any) -> None:
        if isinstance(event, Finished):
            self.over.add(event.agent_id)
        elif isinstance(event, Admitted):
            self.admitted += 1
            snapshot = self._controller.snapshot()
            if snapshot.active > (snapshot.window.agents or 0):
                self.too_many.append(snapshot.active)


class Engine(FakeClient):
    """Notes calls that begin after their trajectory is over."""

    agent_id = ""
    watch: Watch

    def _enter(self, messages: Sequence[LLMMessage], options: dict[str, Any]) -> None:
        if self.agent_id in self.watch.over:
            self.watch.ghosts.append(self.agent_id)
        super()._enter(messages, options)


class Run:
    """One trajectory, all of whose luck is decided by its seed."""

    def __init__(self, number: int, seed: int, controller: Controller, watch: Watch) -> None:
        self.rng = random.Random(f"{seed}-{number}")
        self.agent_id = f"t{number}"
        self.controller = controller
        self.fake = Engine(self._answer, self.rng.uniform(0.1, 2), director=director(NAMES))
        self.fake.agent_id, self.fake.watch = self.agent_id, watch
        self.client = ConcurChatCompletionClient(self.fake, controller)

    def _answer(self, messages: Sequence[LLMMessage]) -> CreateResult:
        luck = self.rng.random()
        if luck < 0.03:
            raise EngineError
        return call("work", n=self.rng.choice([1, 1, 2])) if luck < 0.6 else say("a few words")

    async def work(self) -> str:
        """Work."""
        luck = self.rng.random()
        if luck < 0.1:
            raise EngineError
        await asyncio.sleep(self.rng.choice([0, 0.1, 1, 5, 30]))
        return "worked"

    async def go(self) -> str:
        """Answers how it ended."""
        token, rng = CancellationToken(), self.rng
        await asyncio.sleep(rng.uniform(0, 20))
        kind, streamed = rng.choice(sorted(RUNNERS)), rng.random() < 0.4
        runner = RUNNERS[kind](self.client, (self.work,), model_client_stream=streamed)
        limit = rng.uniform(1, 120) if rng.random() < 0.3 else None
        options: dict[str, Any] = {
            "task": "go",
            "agent_id": self.agent_id,
            "cancellation_token": token,
            "timeout_seconds": limit,
            "grace_seconds": rng.choice([0, 1, 5]),
            "priority": rng.randrange(2),
        }
        going = asyncio.create_task(self._read(runner, options, rng.random() < 0.5))
        enemy = asyncio.create_task(self._enemy(going, token))
        await asyncio.wait([going])
        enemy.cancel()
        if going.cancelled():
            return "cancelled"
        error = going.exception()
        return type(error).__name__ if error is not None else going.result()

    async def _read(self, runner: Any, options: dict[str, Any], as_stream: bool) -> str:
        if not as_stream:
            await run(self.controller, runner, **options)
            return "result"
        stop_after = self.rng.choice([None, None, 1, 3])
        stream = run_stream(self.controller, runner, **options)
        async with contextlib.aclosing(stream) if self.rng.random() < 0.5 else contextlib.nullcontext():
            count = 0
            async for _ in stream:
                await asyncio.sleep(self.rng.choice([0, 0, 0.5]))
                count += 1
                if count == stop_after:
                    return "left"
        return "result"

    async def _enemy(self, going: asyncio.Task[str], token: CancellationToken) -> None:
        """Perhaps somebody ends it early, perhaps twice."""
        means = self.rng.choice([None, None, token.cancel, going.cancel, "both"])
        await asyncio.sleep(self.rng.uniform(0, 150))
        for end in (token.cancel, going.cancel) if means == "both" else (means,):
            if callable(end):
                end()
                await asyncio.sleep(self.rng.choice([0, 0.5]))


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules(seed: int):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        policy = Moody(random.Random(seed))
        async with Controller(policy=policy, interval_seconds=2, clock=clock) as controller:
            watch = Watch(controller)
            windows: list[Any] = []
            controller.subscribe(lambda e: windows.append(e) if isinstance(e, WindowChanged) else None)
            runs = [Run(number, seed, controller, watch) for number in range(AGENTS)]
            ends = await asyncio.gather(*(one.go() for one in runs))
            finished_at = loop.time()
            await asyncio.sleep(50)  # what was dropped is closed, and what is late comes
            calls = sum(one.fake.calls for one in runs)
            await asyncio.sleep(2000)
            assert sum(one.fake.calls for one in runs) == calls
            snapshot = controller.snapshot()
            assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
            assert snapshot.admitted == snapshot.completed + snapshot.failed + snapshot.cancelled
            assert len(trajectories_of(controller)) == 0
            assert not controller.gate._waiters
            assert sum(one.fake.in_flight for one in runs) == 0
            assert watch.ghosts == []
            assert watch.too_many == [], "admitted beyond the window"
            # It was what it is said to be.
            assert set(ends) == {"result", "left", "cancelled", "TimeoutError", "EngineError"}
            assert len(windows) > 20
            assert finished_at < 20_000

    virtually(main())
