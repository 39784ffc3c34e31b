"""Nothing of this package blocks an event loop: no adapter, no batch, no look at the engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx
from concur_autogen import ConcurChatCompletionClient
from concur_autogen import run as autogen_run
from concur_autogen import run_batch as autogen_batch
from concur_langgraph import ConcurMiddleware, concur_scope, gated, insert_gate, run_batch
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from concur_agents import AIMD, Controller
from concur_agents.simulator.hosting import EmbeddedServer
from concur_agents.simulator.profiles import profile_named
from concur_agents.telemetry import VLLM
from tests.autogen.fakes import FakeClient
from tests.autogen.fakes import tools_then_end as autogen_steps
from tests.autogen.teams import round_robin
from tests.langgraph.fakes import FakeModel, tools_then_end

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(0)
    return "ok"


@pytest.fixture
def buster() -> Iterator[BlockBuster]:
    with blockbuster_ctx(scanned_modules=["concur_agents", "concur_langgraph", "concur_autogen"]) as found:
        yield found


@pytest.fixture
def engine() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(profile_named("cpu-tiny"), speed=1000.0) as server:
        yield server


def controller(engine: EmbeddedServer) -> Controller:
    return Controller(VLLM(engine.url), policy=AIMD(w_initial=4), interval_seconds=0.01)


def agent(**options):
    model = FakeModel(answer=tools_then_end("work", 3), seconds=0.005)
    return create_agent(model, [work], **options)


async def test_it_would_be_found(engine: EmbeddedServer, buster: BlockBuster) -> None:
    def sleepy(_: object) -> None:
        time.sleep(0.001)

    async with controller(engine) as concur:
        found: list[BaseException] = []
        concur.gate.tick = lambda reading: found.append(_caught(sleepy, reading))  # type: ignore[method-assign]
        await asyncio.sleep(0.05)
        assert any(isinstance(error, BlockingError) for error in found)


def _caught(function, *args):
    try:
        return function(*args)
    except BlockingError as error:
        return error


@pytest.mark.parametrize("surface", ["gated", "middleware", "scope", "streamed"])
async def test_langgraph_agents(surface: str, engine: EmbeddedServer, buster: BlockBuster) -> None:
    async with controller(engine) as concur:
        middleware = [ConcurMiddleware(concur)] if surface == "middleware" else []
        graph = agent(middleware=middleware)
        if surface == "scope":
            with concur_scope(concur):
                await graph.abatch([TASK] * 8)
        elif surface == "streamed":
            async for _ in gated(graph, concur).astream(TASK, stream_mode="messages"):
                pass
        else:
            await gated(graph, concur).abatch([TASK] * 8)


async def test_a_gate_node_and_a_batch_with_a_checkpointer(
    engine: EmbeddedServer, buster: BlockBuster, tmp_path
) -> None:
    model = FakeModel(answer=tools_then_end("work", 1), seconds=0.005)

    async def llm(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async with (
        AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as saver,
        controller(engine) as concur,
    ):
        builder = StateGraph(MessagesState)
        builder.add_node("llm", llm)
        builder.add_edge(START, "llm")
        insert_gate(builder, concur, before="llm")
        graph = builder.compile(checkpointer=saver)
        results = await run_batch(graph, [TASK] * 8, concur, progress=False)
        assert all(result.ok for result in results)


async def test_autogen_teams(engine: EmbeddedServer, buster: BlockBuster) -> None:
    async def work() -> str:
        """Work."""
        return "ok"

    async with controller(engine) as concur:
        client = ConcurChatCompletionClient(FakeClient(autogen_steps("work", 2), seconds=0.005), concur)
        await asyncio.gather(*(autogen_run(concur, round_robin(client, [work]), task="go") for _ in range(8)))
        tasks = [f"task {n}" for n in range(8)]
        results = await autogen_batch(lambda: round_robin(client, [work]), tasks, concur, progress=False)
        assert all(result.ok for result in results)
