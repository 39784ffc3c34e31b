"""Whatever way a run ends: no place held, no bookkeeping left, and with W = 1 a second agent runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from concur_langgraph import gated
from concur_langgraph.handler import runs_of
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.types import interrupt

from concur_agents import Controller, Static
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.virtual import clock, run


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


def agent(controller: Controller, used=work, steps: int = 3, **options):
    model = FakeModel(answer=options.pop("answer", tools_then_end(used.name, steps)))
    return gated(create_agent(model, [used], **options), controller)


TASK = {"messages": [("user", "go")]}


async def to_the_end(controller: Controller) -> None:
    await agent(controller).ainvoke(TASK)


async def tool_raises(controller: Controller) -> None:
    with pytest.raises(BoomError):
        await agent(controller, explode).ainvoke(TASK)


async def model_raises(controller: Controller) -> None:
    with pytest.raises(BoomError):
        await agent(controller, answer=boom).ainvoke(TASK)


async def recursion_limit(controller: Controller) -> None:
    with pytest.raises(GraphRecursionError):
        await agent(controller, steps=99).ainvoke(TASK, {"recursion_limit": 6})


def cancelled_after(seconds: float, *, stream: bool = False):
    async def ending(controller: Controller) -> None:
        async def go() -> None:
            if stream:
                async for _ in agent(controller).astream(TASK, stream_mode="messages"):
                    pass
            else:
                await agent(controller).ainvoke(TASK)

        task = asyncio.create_task(go())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    return ending


async def timed_out(controller: Controller) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await agent(controller).ainvoke(TASK)


async def cancelled_while_queued(controller: Controller) -> None:
    async with controller.agent("holder") as holder, holder.step():
        task = asyncio.create_task(agent(controller).ainvoke(TASK))
        await asyncio.sleep(1)
        assert controller.snapshot().waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def stream_closed(controller: Controller) -> None:
    stream = agent(controller).astream(TASK)
    await anext(stream)
    assert controller.snapshot().active == 1
    await stream.aclose()


async def stream_dropped(controller: Controller) -> None:
    stream = agent(controller).astream(TASK)
    await anext(stream)
    del stream
    gc.collect()
    await asyncio.sleep(0.1)


async def interrupted(controller: Controller) -> None:
    graph = agent(controller, ask_human, checkpointer=InMemorySaver())
    result = await graph.ainvoke(TASK, {"configurable": {"thread_id": "t"}})
    assert "__interrupt__" in result


async def interrupted_before(controller: Controller) -> None:
    graph = agent(controller, checkpointer=InMemorySaver(), interrupt_before=["tools"])
    await graph.ainvoke(TASK, {"configurable": {"thread_id": "t"}})


async def bare_model(controller: Controller) -> None:
    await gated(FakeModel(answer=lambda _: say("hi")), controller).ainvoke("hi")


async def bare_model_cancelled(controller: Controller) -> None:
    """No chain above it and no `on_llm_error`: the one ending LangChain reports to nobody."""
    model = gated(FakeModel(answer=lambda _: say("hi")) | (lambda m: m), controller)
    task = asyncio.create_task(model.ainvoke("hi"))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


ENDINGS: dict[str, Callable[[Controller], Awaitable[None]]] = {
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


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_place_is_given_back(ending: str) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            await ENDINGS[ending](controller)
            snapshot = controller.snapshot()
            assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
            assert runs_of(controller).idle
            await asyncio.wait_for(to_the_end(controller), 60)

    run(main())


def test_a_failing_hook_does_not_hide_the_graphs_own_error(monkeypatch, caplog) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = agent(controller, explode)

            def broken(*args):
                raise RuntimeError("bookkeeping")

            monkeypatch.setattr(runs_of(controller), "end", broken)
            with pytest.raises(BoomError):
                await graph.ainvoke(TASK)

    run(main())
    assert "bookkeeping failed" in caplog.text
