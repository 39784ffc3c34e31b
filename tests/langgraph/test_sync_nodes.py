"""Synchronous nodes of asynchronous graphs wait on asyncio's pool: that is said, and a batch is spared."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from concur_langgraph import gated, run_batch_blocking
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from concur_agents import Controller, Static
from tests.langgraph.fakes import FakeModel, tools_then_end

AGENTS, POOL = 30, 3
TASK = {"messages": [("user", "go")]}


@tool
def work() -> str:
    """Work."""
    return "ok"


def graph_of(model: FakeModel):
    def llm(state: MessagesState) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("llm", llm)
    builder.add_node("tools", ToolNode([work]))
    builder.add_edge(START, "llm")
    builder.add_conditional_edges("llm", tools_condition)
    builder.add_edge("tools", "llm")
    return builder.compile()


def model() -> FakeModel:
    return FakeModel(answer=tools_then_end("work", 3), seconds=0.002)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum("set_default_executor" in record.getMessage() for record in caplog.records)


async def batch(controller: Controller, threads: int) -> int:
    pool = ThreadPoolExecutor(threads)
    asyncio.get_running_loop().set_default_executor(pool)
    answers = await gated(graph_of(model()), controller).abatch([TASK] * AGENTS)
    return len(answers)


def test_a_full_pool_is_said_once_and_moves_on_by_reclaim(caplog: pytest.LogCaptureFixture) -> None:
    """With all threads waiting, it takes a reclaimed place to go on, at the monitor's next look."""

    async def main() -> int:
        async with Controller(policy=Static(2), grace_seconds=0.01, interval_seconds=0.005) as controller:
            return await batch(controller, POOL)

    with caplog.at_level(logging.WARNING, "concur_agents.langgraph"):
        assert asyncio.run(main()) == AGENTS
    assert warnings(caplog) == 1


def test_with_a_thread_for_each_agent_nothing_stalls() -> None:
    async def main() -> int:
        async with Controller(policy=Static(2), grace_seconds=None) as controller:
            async with asyncio.timeout(20):
                return await batch(controller, AGENTS)

    assert asyncio.run(main()) == AGENTS


def test_a_blocking_batch_has_them() -> None:
    controller = Controller(policy=Static(2), grace_seconds=None)
    results = run_batch_blocking(graph_of(model()), [TASK] * AGENTS, controller, progress=False)
    assert all(result.ok for result in results)


def test_a_synchronous_graph_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(policy=Static(1))
    with caplog.at_level(logging.WARNING, "concur_agents.langgraph"):
        gated(graph_of(model()), controller).batch([TASK] * 4)
    assert warnings(caplog) == 0
