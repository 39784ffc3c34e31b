"""Cancellation at every await and in every order: by task, by token, from other threads, more than once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.models import UserMessage
from concur_autogen import ConcurChatCompletionClient, run, run_stream
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from concur_agents.events import Admitted, Queued
from tests.autogen.fakes import FakeClient, tools_then_end
from tests.autogen.teams import round_robin, solo
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually

HELLO = [UserMessage(content="hello", source="user")]


async def work() -> str:
    """Work."""
    await asyncio.sleep(3)
    return "worked"


class World:
    """One place, and somebody who has it for the first two seconds."""

    def __init__(self) -> None:
        self.controller = Controller(policy=Static(1), clock=clock)
        self.fake = FakeClient(tools_then_end("work", 3))
        self.client = ConcurChatCompletionClient(self.fake, self.controller)
        self.token = CancellationToken()

    async def hold(self) -> None:
        async with self.controller.agent("holder") as agent, agent.step():
            await asyncio.sleep(2)

    async def assert_empty(self) -> None:
        """Now, and after everything that might come late; then somebody else runs."""
        await self.client.close()
        for seconds in (0.01, 100):  # a stream that was dropped is closed a few ticks later
            await asyncio.sleep(seconds)
            snapshot = self.controller.snapshot()
            assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
            assert (self.fake.in_flight, len(self.controller.gate._waiters)) == (0, 0)
            assert len(trajectories_of(self.controller)) == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with self.controller.agent("next") as agent:
            await asyncio.wait_for(agent.step().__aenter__(), 1)


Way = Callable[[World], Coroutine[Any, Any, None]]


async def create(world: World) -> None:
    for _ in range(2):
        await world.client.create(HELLO, cancellation_token=world.token)


async def create_stream(world: World) -> None:
    for _ in range(2):
        async for _ in world.client.create_stream(HELLO, cancellation_token=world.token):
            pass


async def create_by_name(world: World) -> None:
    """Nothing but `close` ends this trajectory."""
    client = world.client.for_agent("named")
    for _ in range(2):
        await client.create(HELLO, cancellation_token=world.token)


async def run_solo(world: World) -> None:
    runner = solo(world.client, (work,))
    await run(world.controller, runner, task="go", cancellation_token=world.token, grace_seconds=2)


async def run_team(world: World) -> None:
    runner = round_robin(world.client, (work,))
    await run(world.controller, runner, task="go", cancellation_token=world.token, grace_seconds=2)


async def stream_team(world: World) -> None:
    runner = round_robin(world.client, (work,), model_client_stream=True)
    async for _ in run_stream(
        world.controller, runner, task="go", cancellation_token=world.token, grace_seconds=2
    ):
        await asyncio.sleep(0)


WAYS: list[Way] = [create, create_stream, create_by_name, run_solo, run_team, stream_team]


class Watched:
    """An awaitable that calls `at_await` with a count whenever the coroutine inside suspends."""

    def __init__(self, inner: Awaitable[None], at_await: Callable[[int], None]) -> None:
        self._inner, self._at_await = inner, at_await

    def __await__(self) -> Generator[Any, Any, None]:
        inner, count = self._inner.__await__(), 0
        thrown: BaseException | None = None
        while True:
            try:
                future = next(inner) if thrown is None else inner.throw(thrown)
            except StopIteration:
                return
            self._at_await(count)
            count, thrown = count + 1, None
            try:
                yield future
            except BaseException as error:
                thrown = error


def awaits_of(way: Way) -> int:
    """How often it suspends, from its start to its end."""
    seen: list[int] = []

    async def main() -> None:
        world = World()
        holder = asyncio.create_task(world.hold())
        await asyncio.sleep(0)
        await Watched(way(world), seen.append)
        await holder

    virtually(main())
    return len(seen)


CASES = [pytest.param(way, n, id=f"{way.__name__}-{n}") for way in WAYS for n in range(awaits_of(way))]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize(("way", "at"), CASES)
def test_a_task_cancelled_at_any_await_holds_nothing(way: Way, at: int, again: bool):
    async def main() -> None:
        world = World()
        loop = asyncio.get_running_loop()

        def cancel(count: int) -> None:
            if count == at or (again and count == at + 1):
                loop.call_soon(victim.cancel)

        async def doomed() -> None:
            await Watched(way(world), cancel)

        holder = asyncio.create_task(world.hold())
        await asyncio.sleep(0)
        victim = asyncio.create_task(doomed())
        await asyncio.wait([victim], timeout=50)
        assert victim.cancelled()
        await holder
        await world.assert_empty()

    virtually(main())


@pytest.mark.parametrize(("way", "at"), CASES)
def test_a_token_cancelled_at_any_await_ends_the_call(way: Way, at: int):
    async def main() -> None:
        world = World()

        async def doomed() -> None:
            await Watched(way(world), lambda count: world.token.cancel() if count == at else None)

        holder = asyncio.create_task(world.hold())
        await asyncio.sleep(0)
        victim = asyncio.create_task(doomed())
        await asyncio.wait([victim], timeout=50)
        # In its last await a run may have its result already.
        assert victim.cancelled() or (victim.done() and victim.exception() is None)
        await holder
        await world.assert_empty()

    virtually(main())


class StrictToken(CancellationToken):
    """Objects to what would block for ever: its callbacks are called under its lock, and must not ask it."""

    def is_cancelled(self) -> bool:
        assert not self._lock.locked(), "asked by a callback"
        return super().is_cancelled()

    def add_callback(self, callback: Callable[[], None]) -> None:
        assert not self._lock.locked(), "called by a callback"
        super().add_callback(callback)


@pytest.mark.parametrize("seconds", [1.0, 2.5, 4.0], ids=["queued", "generating", "in a tool"])
@pytest.mark.parametrize("from_thread", [False, True], ids=["same thread", "another thread"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_callbacks_of_a_token_do_nothing_but_leave_word(way: Way, from_thread: bool, seconds: float):
    async def main() -> None:
        world = World()
        world.token = StrictToken()
        # Whoever hears that a wait is over may ask the token.
        world.controller.subscribe(lambda event: world.token.is_cancelled())
        holder = asyncio.create_task(world.hold())
        await asyncio.sleep(0)
        victim = asyncio.create_task(way(world))
        await asyncio.sleep(seconds)
        if from_thread:
            # Makes the loop object to calls of other threads; AutoGen itself makes some in a call or a tool.
            asyncio.get_running_loop().set_debug(seconds == 1.0)
            failed: list[BaseException] = []
            thread = threading.Thread(target=lambda: _collect(world.token.cancel, failed))
            thread.start()
            thread.join()
            assert not failed
        else:
            world.token.cancel()
        await asyncio.wait([victim], timeout=50)
        assert victim.cancelled()
        await holder
        await world.assert_empty()

    virtually(main())


def _collect(call: Callable[[], None], failed: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        failed.append(error)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("event", [Queued, Admitted])
def test_a_token_cancelled_in_the_moment_of_the_grant_or_of_queueing(way: Way, event: type):
    async def main() -> None:
        world = World()
        world.controller.subscribe(
            lambda e: world.token.cancel() if isinstance(e, event) and e.agent_id != "holder" else None
        )
        holder = asyncio.create_task(world.hold())
        await asyncio.sleep(0)
        victim = asyncio.create_task(way(world))
        await asyncio.wait([victim], timeout=50)
        assert victim.cancelled()
        if way not in (run_solo, run_team, stream_team):
            assert world.fake.calls == 0
        # A run has a token of its own, which hears of it a tick later: a call may have begun, and is over.
        await holder
        await world.assert_empty()

    virtually(main())


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_token_and_a_task_cancelled_together(way: Way):
    async def main() -> None:
        for order in (0, 1):
            world = World()
            holder = asyncio.create_task(world.hold())
            await asyncio.sleep(0)
            victim = asyncio.create_task(way(world))
            await asyncio.sleep(1)
            ends: list[Callable[[], object]] = [world.token.cancel, victim.cancel]
            ends[order]()
            ends[1 - order]()
            await asyncio.wait([victim], timeout=50)
            assert victim.cancelled()
            await holder
            await world.assert_empty()

    virtually(main())
