"""However a trajectory ends, on each surface, for each team: no place held, nothing remembered, no ghost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import ExternalTermination, TextMentionTermination
from autogen_core import CancellationToken, SingleThreadedAgentRuntime
from concur_autogen import ConcurChatCompletionClient, run, run_stream
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from tests.autogen.fakes import FakeClient, call, say, tools_then_end
from tests.autogen.teams import NAMES, RUNNERS, TEAMS, director, solo
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


# ---- every kind on every surface ends by itself ---------------------------------------------------


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("stream", [False, True], ids=["", "streamed"])
def test_to_the_end(surface: str, kind: str, stream: bool):
    if surface == "shared runtime" and kind in ("solo", "nested", "society"):
        pytest.skip("has a runtime of its own inside, or none")

    async def ending(case: Case) -> None:
        result = await case.go()
        assert result.messages
        assert case.fake.peak == (2 if kind == "graph_flow" else 1)

    check(lambda: Case(surface, kind, model_client_stream=stream), ending)


# ---- endings on each surface ----------------------------------------------------------------------


async def text_mention(case: Case) -> None:
    case.options["termination_condition"] = TextMentionTermination("done")
    assert "done" in (await case.go()).messages[-1].content


async def max_turns(case: Case) -> None:
    case.options["max_turns"] = 1
    assert (await case.go()).stop_reason


async def external_termination(case: Case) -> None:
    stop = ExternalTermination()
    case.options["termination_condition"] = stop
    going = asyncio.create_task(case.go())
    await asyncio.sleep(2)
    stop.set()
    assert "External" in (await going).stop_reason


async def model_raises(case: Case) -> None:
    case.fake.answer = boom
    # A team turns it into text; ours gives the type back.
    expected = BoomError if case.surface in OURS else RuntimeError
    with pytest.raises(expected):
        await case.go()


async def tool_raises(case: Case) -> None:
    case.tools = (explode,)
    case.fake.answer = tools_then_end("explode", 3)
    await case.go()  # AutoGen hands the error to the model


async def crashed_participant(case: Case) -> None:
    def crash(messages):
        raise KeyError("gone")

    case.fake.answer = crash
    with pytest.raises(KeyError if case.surface in OURS else RuntimeError):
        await case.go()


ENDINGS = (text_mention, max_turns, external_termination, model_raises, tool_raises, crashed_participant)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: e.__name__)
@pytest.mark.parametrize("surface", SURFACES)
def test_ends_by_itself(surface: str, ending: Ending):
    check(lambda: Case(surface), ending)


# ---- ended by somebody else -----------------------------------------------------------------------

MOMENTS = {"queued": 0.5, "generating": 100.5, "in a tool": 102.0, "between turns": 101.0}


class Held:
    """Somebody who holds the only place until t = 100."""

    def __init__(self, case: Case) -> None:
        self.case = case

    async def hold(self) -> None:
        async with self.case.controller.agent("holder") as agent, agent.step():
            await asyncio.sleep(100)


async def at_moment(
    case: Case, moment: str, end: Callable[[asyncio.Task[Any]], None]
) -> BaseException | None:
    """Run `case` behind a holder, end it at that moment, and say what came of it."""
    holder = asyncio.create_task(Held(case).hold())
    await asyncio.sleep(0)
    going = asyncio.create_task(case.go(grace_seconds=2.0) if case.surface in OURS else case.go())
    await asyncio.sleep(MOMENTS[moment])
    end(going)
    await asyncio.wait([going], timeout=20)
    assert going.done(), "it hangs"
    await holder
    return None if going.cancelled() else going.exception()


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("surface", OURS)
def test_cancelled_task(surface: str, moment: str, kind: str):
    async def ending(case: Case) -> None:
        assert await at_moment(case, moment, lambda task: task.cancel()) is None

    check(lambda: Case(surface, kind), ending)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("surface", OURS)
def test_cancelled_token(surface: str, moment: str, kind: str):
    """In a tool AutoGen 0.7.5 does not hear its token at all; `run` ends there after its grace."""

    async def ending(case: Case) -> None:
        token = CancellationToken()
        going = case.go
        case.go = lambda **options: going(token, **options)  # type: ignore[method-assign]
        assert await at_moment(case, moment, lambda task: token.cancel()) is None

    check(lambda: Case(surface, kind), ending)


@pytest.mark.parametrize("surface", ["scope", "scope stream", "unscoped", "shared runtime"])
@pytest.mark.parametrize("moment", ["queued", "generating"])
def test_cancelled_token_without_run(surface: str, moment: str):
    async def ending(case: Case) -> None:
        token = CancellationToken()
        going = case.go
        case.go = lambda **options: going(token, **options)  # type: ignore[method-assign]
        await at_moment(case, moment, lambda task: token.cancel())

    check(lambda: Case(surface), ending)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("surface", OURS)
def test_time_out(surface: str, moment: str, kind: str):
    async def ending(case: Case) -> None:
        holder = asyncio.create_task(Held(case).hold())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError, match="was not done after"):
            await case.go(timeout_seconds=MOMENTS[moment], grace_seconds=2.0)
        await holder

    check(lambda: Case(surface, kind), ending)


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("how", ["break", "dropped", "never read"])
def test_abandoned_stream(kind: str, how: str):
    async def ending(case: Case) -> None:
        stream = run_stream(
            case.controller, RUNNERS[kind](case.client, (work,)), task="go", grace_seconds=2.0
        )
        if how == "never read":
            del stream
            return
        async for _ in stream:
            break
        if how == "break":
            await stream.aclose()
        else:
            del stream
            gc.collect()
            await asyncio.sleep(10)

    check(lambda: Case("run_stream", kind), ending)


@pytest.mark.parametrize("kind", TEAMS)
def test_a_slow_reader_does_not_hold_its_agent_up(kind: str):
    async def main() -> None:
        case = Case("run_stream", kind)
        stream = run_stream(case.controller, RUNNERS[kind](case.client, (work,)), task="go")
        async for _ in stream:
            await asyncio.sleep(1000)
            break
        assert case.controller.snapshot().open == 0
        await stream.aclose()
        await case.is_clean()

    virtually(main())


def test_a_cancelled_run_that_is_cancelled_again_still_leaves_nothing():
    async def ending(case: Case) -> None:
        going = asyncio.create_task(case.go(grace_seconds=5.0))
        await asyncio.sleep(2)  # in a tool, where AutoGen takes its time
        for _ in range(3):
            going.cancel()
            await asyncio.sleep(0.5)
        await asyncio.wait([going], timeout=20)
        assert going.cancelled()

    check(lambda: Case("run"), ending)


def test_a_new_run_under_the_name_of_a_cancelled_one_is_not_disturbed():
    async def main() -> None:
        case = Case("run")
        with pytest.raises(TimeoutError):
            await case.go(agent_id="t", timeout_seconds=2, grace_seconds=0)
        result = await case.go(agent_id="t")
        assert result.messages
        await case.is_clean()

    virtually(main())


def test_calls_that_a_stream_answers_with_tools():
    async def ending(case: Case) -> None:
        case.fake.answer = lambda messages: call("work") if len(messages) < 3 else say("several words here")
        await case.go()

    check(lambda: Case("run", "solo", model_client_stream=True), ending)
