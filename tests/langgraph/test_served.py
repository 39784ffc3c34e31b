"""Behind a web server: a client that goes away gives the place back, whatever its run was doing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import anyio
import pytest
import uvicorn
from concur_langgraph import gated, insert_gate
from concur_langgraph.handler import runs_of
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from concur_agents import Controller, RequestLimit, Static
from tests.langgraph.fakes import FakeModel, tools_then_end
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(0.01)
    return "ok"


def graph_of(model: FakeModel, controller: Controller, *, gate: bool = False):
    async def llm(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("llm", llm)
    builder.add_node("tools", ToolNode([work]))
    builder.add_edge(START, "llm")
    builder.add_conditional_edges("llm", tools_condition)
    builder.add_edge("tools", "llm")
    if gate:
        insert_gate(builder, controller, before="llm")
    return gated(builder.compile(), controller)


async def until(true: Callable[[], bool]) -> None:
    """A server's thread of work has no event to wait for."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def served(graph) -> AsyncIterator[str]:
    async def stream(_: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            async for update in graph.astream(TASK, stream_mode="updates"):
                yield json.dumps(list(update)) + "\n"

        return StreamingResponse(lines(), media_type="application/jsonl")

    async def whole(_: Request) -> JSONResponse:
        result = await graph.ainvoke(TASK)
        return JSONResponse(len(result["messages"]))

    app = Starlette(routes=[Route("/stream", stream), Route("/whole", whole)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def empty(controller: Controller) -> None:
    await until(lambda: not controller.snapshot().open and runs_of(controller).idle)


@pytest.mark.parametrize("when", ["queued", "streaming"])
async def test_a_client_that_disconnects_frees_its_place(when: str) -> None:
    controller = Controller(policy=Static(1))
    model = FakeModel(answer=tools_then_end("work", 50), seconds=0.02)
    async with served(graph_of(model, controller)) as url, aiohttp.ClientSession() as session:
        if when == "queued":
            async with controller.agent("holder") as holder, holder.step():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2), session.get(f"{url}/stream") as response:
                        await response.content.readline()
                await until(lambda: controller.snapshot().open == 1)
        else:
            async with session.get(f"{url}/stream") as response:
                assert json.loads(await response.content.readline()) == ["llm"]
                assert controller.snapshot().active == 1
        await empty(controller)
        model.answer = tools_then_end("work", 2)
        async with session.get(f"{url}/whole") as response:
            assert await response.json() == 4


@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5])
def test_anyio_cancel_scopes(moment: float) -> None:
    async def main() -> None:
        controller = Controller(policy=Static(1), clock=clock)
        graph = graph_of(FakeModel(answer=tools_then_end("work", 5)), controller)
        with anyio.move_on_after(moment) as scope:
            await graph.ainvoke(TASK)
        assert scope.cancelled_caught
        await asyncio.sleep(0)
        assert controller.snapshot().open == 0
        assert runs_of(controller).idle
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(graph.ainvoke, TASK)
            await anyio.sleep(1.2)
            group.cancel_scope.cancel()
        await asyncio.sleep(0)
        assert controller.snapshot().open == 0

    run(main())


@pytest.mark.parametrize("gate", [False, True])
def test_a_stalled_reader_under_a_request_limit_lets_others_on(gate: bool) -> None:
    async def main() -> None:
        controller = Controller(policy=RequestLimit(1), grace_seconds=30, clock=clock)
        graph = graph_of(FakeModel(answer=tools_then_end("work", 5)), controller, gate=gate)
        stream = graph.astream(TASK, stream_mode="updates")
        await anext(stream)  # and reads no further
        async with asyncio.timeout(100):
            async with controller:
                await graph.ainvoke(TASK)
            await stream.aclose()
        await asyncio.sleep(0)
        assert controller.snapshot().open == 0
        assert runs_of(controller).idle

    run(main())
