"""However a run ends, on each surface: no place held, nothing remembered, and with W = 1 another runs."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import pytest
from concur_langgraph import gated
from concur_langgraph.handler import runs_of
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.types import interrupt

from concur_agents import Controller, Static
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.surfaces import SURFACES, Patient, around
from tests.langgraph.virtual import clock, run


class BoomError(Exception):
    pass


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(1)
    return "ok"


@tool
async def explode() -> str:
    """Explode."""
    raise BoomError


@tool
async def ask_human() -> str:
    """Ask."""
    return str(interrupt("well?"))


def boom(messages):
    raise BoomError


class Agents:
    """Makes agents on one surface."""

    def __init__(self, surface: str, controller: Controller) -> None:
        self.surface = surface
        self.controller = controller

    def make(self, used=work, steps: int = 3, answer=None, **options):
        model = FakeModel(answer=answer or tools_then_end(used.name, steps))
        return SURFACES[self.surface](self.controller, model, used, **options)


TASK = {"messages": [("user", "go")]}


async def to_the_end(agents: Agents) -> None:
    await agents.make().ainvoke(TASK)


async def tool_raises(agents: Agents) -> None:
    with pytest.raises(BoomError):
        await agents.make(explode).ainvoke(TASK)


async def model_raises(agents: Agents) -> None:
    with pytest.raises(BoomError):
        await agents.make(answer=boom).ainvoke(TASK)


async def recursion_limit(agents: Agents) -> None:
    with pytest.raises(GraphRecursionError):
        await agents.make(steps=99).ainvoke(TASK, {"recursion_limit": 6})


def cancelled_after(seconds: float, *, stream: bool = False):
    async def ending(agents: Agents) -> None:
        async def go() -> None:
            if stream:
                async for _ in agents.make().astream(TASK, stream_mode="messages"):
                    pass
            else:
                await agents.make().ainvoke(TASK)

        task = asyncio.create_task(go())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    return ending


async def timed_out(agents: Agents) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await agents.make().ainvoke(TASK)


async def cancelled_while_queued(agents: Agents) -> None:
    async with agents.controller.agent("holder") as holder, holder.step():
        task = asyncio.create_task(agents.make().ainvoke(TASK))
        await asyncio.sleep(1)
        assert agents.controller.snapshot().waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def stream_closed(agents: Agents) -> None:
    stream = agents.make().astream(TASK)
    await anext(stream)
    assert agents.controller.snapshot().active == 1
    await stream.aclose()


async def stream_dropped(agents: Agents) -> None:
    stream = agents.make().astream(TASK)
    await anext(stream)
    del stream
    gc.collect()
    await asyncio.sleep(0.1)


async def interrupted(agents: Agents) -> None:
    graph = agents.make(ask_human, checkpointer=InMemorySaver())
    result = await graph.ainvoke(TASK, {"configurable": {"thread_id": "t"}})
    assert "__interrupt__" in result


async def interrupted_before(agents: Agents) -> None:
    graph = agents.make(checkpointer=InMemorySaver(), interrupt_before=["tools"])
    await graph.ainvoke(TASK, {"configurable": {"thread_id": "t"}})


async def bare_model(agents: Agents) -> None:
    await gated(FakeModel(answer=lambda _: say("hi")), agents.controller).ainvoke("hi")


async def bare_model_cancelled(agents: Agents) -> None:
    """No chain above it and no `on_llm_error`: the one ending LangChain reports to nobody."""
    model = gated(FakeModel(answer=lambda _: say("hi")) | (lambda m: m), agents.controller)
    task = asyncio.create_task(model.ainvoke("hi"))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


ENDINGS: dict[str, Callable[[Agents], Awaitable[None]]] = {
    "end": to_the_end,
    "tool raises": tool_raises,
    "model raises": model_raises,
    "recursion limit": recursion_limit,
    "cancelled in the model": cancelled_after(0.5),
    "cancelled in a tool": cancelled_after(1.5),
    "cancelled in a streamed model": cancelled_after(0.5, stream=True),
    "timed out": timed_out,
    "cancelled while queued": cancelled_while_queued,
    "stream closed": stream_closed,
    "stream dropped": stream_dropped,
    "interrupt in a tool": interrupted,
    "interrupt before a node": interrupted_before,
    "a model alone": bare_model,
    "a chain cancelled": bare_model_cancelled,
}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_place_is_given_back(ending: str, surface: str) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            agents = Agents(surface, controller)
            with around(surface, controller):
                await ENDINGS[ending](agents)
                snapshot = controller.snapshot()
                assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
                assert runs_of(controller).idle
                assert snapshot.admitted == (1 if "queued" in ending else snapshot.completed or 1)
                await asyncio.wait_for(to_the_end(agents), 60)
                assert controller.snapshot().admitted == snapshot.admitted + 1

    run(main())


@pytest.mark.parametrize("surface", SURFACES)
def test_a_reader_that_stalls_holds_nobody_up(surface: str) -> None:
    async def main() -> None:
        async with Controller(policy=Patient(1, grace=5), clock=clock) as controller:
            agents = Agents(surface, controller)
            with around(surface, controller):
                stream = agents.make().astream(TASK)
                await anext(stream)
                assert controller.snapshot().active == 1
                await asyncio.wait_for(
                    to_the_end(agents), 60
                )  # the consumer of one stream starts another run
                rest = [update async for update in stream]
                assert len(rest) >= 3
                assert controller.snapshot().completed == 2
                assert (controller.snapshot().active, runs_of(controller).idle) == (0, True)

    run(main())


# ---- synchronous runs ---------------------------------------------------------------------------


@tool
def work_now() -> str:
    """Work."""
    return "ok"


@tool
def explode_now() -> str:
    """Explode."""
    raise BoomError


@tool
def press_control_c() -> str:
    """Interrupt from the keyboard."""
    raise KeyboardInterrupt


@tool
def dawdle() -> str:
    """Take too long."""
    time.sleep(0.3)
    return "ok"


@tool
def ask_now() -> str:
    """Ask."""
    return str(interrupt("well?"))


def sync_to_the_end(agents: Agents) -> None:
    agents.make(work_now).invoke(TASK)


def raises(error: type[BaseException], config: dict | None = None, **options):
    def ending(agents: Agents) -> None:
        with pytest.raises(error):
            agents.make(**{"used": work_now, **options}).invoke(TASK, config)

    return ending


def sync_stream(*, drop: bool):
    def ending(agents: Agents) -> None:
        stream = agents.make(work_now).stream(TASK)
        next(stream)
        assert agents.controller.snapshot().active == 1
        if drop:
            del stream
            gc.collect()
        else:
            stream.close()

    return ending


def sync_timed_out(agents: Agents) -> None:
    graph = agents.make(dawdle)
    graph.step_timeout = 0.1
    with pytest.raises(TimeoutError):
        graph.invoke(TASK)


def sync_interrupted(agents: Agents) -> None:
    graph = agents.make(ask_now, checkpointer=InMemorySaver())
    assert "__interrupt__" in graph.invoke(TASK, {"configurable": {"thread_id": "t"}})


def sync_interrupted_before(agents: Agents) -> None:
    graph = agents.make(work_now, checkpointer=InMemorySaver(), interrupt_before=["tools"])
    graph.invoke(TASK, {"configurable": {"thread_id": "t"}})


def sync_bare_model(agents: Agents) -> None:
    seen = []

    def answer(_):
        seen.append(agents.controller.snapshot().active)
        return say("hi")

    gated(FakeModel(answer=answer), agents.controller).invoke("hi")
    assert seen == [1]


SYNC_ENDINGS: dict[str, Callable[[Agents], None]] = {
    "end": sync_to_the_end,
    "tool raises": raises(BoomError, used=explode_now),
    "model raises": raises(BoomError, answer=boom),
    "control-C": raises(KeyboardInterrupt, used=press_control_c),
    "recursion limit": raises(GraphRecursionError, {"recursion_limit": 6}, steps=99),
    "timed out": sync_timed_out,
    "stream closed": sync_stream(drop=False),
    "stream dropped": sync_stream(drop=True),
    "interrupt in a tool": sync_interrupted,
    "interrupt before a node": sync_interrupted_before,
    "a model alone": sync_bare_model,
}


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("ending", SYNC_ENDINGS)
def test_a_synchronous_run_gives_the_place_back(ending: str, surface: str) -> None:
    controller = Controller(policy=Static(1))
    agents = Agents(surface, controller)
    with around(surface, controller):
        SYNC_ENDINGS[ending](agents)
        snapshot = controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open, snapshot.admitted) == (0, 0, 0, 1)
        assert runs_of(controller).idle
        sync_to_the_end(agents)
        assert controller.snapshot().admitted == 2


def test_a_failing_hook_does_not_hide_the_graphs_own_error(monkeypatch, caplog) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = Agents("gated", controller).make(explode)

            def broken(*args):
                raise RuntimeError("bookkeeping")

            monkeypatch.setattr(runs_of(controller), "end", broken)
            with pytest.raises(BoomError):
                await graph.ainvoke(TASK)

    run(main())
    assert "bookkeeping failed" in caplog.text
