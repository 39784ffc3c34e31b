"""The surfaces that a trajectory runs on, and what must hold when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from concur_autogen import ConcurChatCompletionClient, run, run_stream
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from tests.autogen.fakes import FakeClient, say, tools_then_end
from tests.autogen.teams import NAMES, RUNNERS, director, solo
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually


class BoomError(Exception):
    pass


async def work() -> str:
    """Work."""
    await asyncio.sleep(3)
    return "worked"


async def explode() -> str:
    """Explode."""
    raise BoomError


def boom(messages):
    raise BoomError


class Case:
    """One runner on one surface, with W = 1."""

    def __init__(self, surface: str, kind: str = "round_robin", answer=None, tools=(work,), **options: Any):
        self.surface, self.kind, self.tools, self.options = surface, kind, tools, options
        self.controller = Controller(policy=Static(1), clock=clock)
        self.fake = FakeClient(answer or tools_then_end("work", 3), director=director(NAMES))
        self.client = ConcurChatCompletionClient(self.fake, self.controller)
        self.runtime: SingleThreadedAgentRuntime | None = None

    async def go(self, token: CancellationToken | None = None, **options: Any) -> TaskResult:
        """Run it to its end, however that comes."""
        make, controller = RUNNERS[self.kind], self.controller
        if self.surface == "run":
            runner = make(self.client, self.tools, **self.options)
            return await run(controller, runner, task="go", cancellation_token=token, **options)
        if self.surface == "run_stream":
            runner = make(self.client, self.tools, **self.options)
            stream = run_stream(controller, runner, task="go", cancellation_token=token, **options)
            return [item async for item in stream][-1]
        if self.surface == "scope":
            runner = make(self.client, self.tools, **self.options)
            async with controller.agent("t"):
                return await runner.run(task="go", cancellation_token=token)
        if self.surface == "scope stream":
            runner = make(self.client, self.tools, **self.options)
            async with controller.agent("t"):
                stream = runner.run_stream(task="go", cancellation_token=token)
                return [item async for item in stream][-1]
        if self.surface == "unscoped":
            runner = make(self.client, self.tools, **self.options)
            return await runner.run(task="go", cancellation_token=token)
        assert self.surface == "shared runtime"
        self.runtime = SingleThreadedAgentRuntime()
        self.runtime.start()
        client = self.client.for_agent("t")
        runner = make(client, self.tools, runtime=self.runtime, **self.options)
        async with controller.agent("t"):
            return await runner.run(task="go", cancellation_token=token)

    async def is_clean(self) -> None:
        """Nothing is left, nothing comes later, and somebody else may run."""
        await asyncio.sleep(0)
        if self.surface == "unscoped":
            await self.client.close()
        self.is_empty()
        calls = self.fake.calls
        await asyncio.sleep(100)
        assert self.fake.calls == calls, "a ghost made a call"
        if self.surface in OURS:
            left = [str(task) for task in asyncio.all_tasks() - {asyncio.current_task()}]
            if self.kind == "magentic_one":  # its first message is cancelled, and AutoGen never sees it done
                left = [task for task in left if "RunContext._run" not in task]
            assert not left, "a part of the team hangs"
        self.is_empty()
        self.fake.answer, self.fake.director = (lambda _: say("done")), None
        other = await run(self.controller, solo(self.client), task="go", timeout_seconds=10)
        assert other.messages[-1].content == "done"
        if self.runtime is not None:
            await self.runtime.stop()
        self.is_empty()

    def is_empty_of_places(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)

    def is_empty(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open, self.fake.in_flight) == (0, 0, 0, 0)
        assert len(trajectories_of(self.controller)) == 0


Ending = Callable[[Case], Awaitable[None]]
OURS = ("run", "run_stream")
SCOPED = ("run", "run_stream", "scope", "scope stream")
SURFACES = (*SCOPED, "unscoped", "shared runtime")


def check(case: Callable[[], Case], ending: Ending) -> None:
    async def main() -> None:
        made = case()
        await ending(made)
        await made.is_clean()

    virtually(main())
