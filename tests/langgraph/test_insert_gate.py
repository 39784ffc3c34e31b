"""A gate put into a builder that is there already."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from concur_langgraph import gated, insert_gate
from concur_langgraph.handler import runs_of
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, TimeoutPolicy

from concur_agents import Controller, InvalidValueError, Static
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.surfaces import graph_of
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    return "ok"


class Count(TypedDict):
    n: Annotated[int, operator.add]


async def one(_: Any) -> dict:
    return {"n": 1}


async def visits(graph: Any, given: Any) -> list[str]:
    return [name async for update in graph.astream(given, stream_mode="updates") for name in update]


def test_it_stands_before_every_visit() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            builder = graph_of(FakeModel(answer=tools_then_end("work", 3)), work)
            insert_gate(builder, before="model")
            graph = gated(builder.compile(), controller)
            once = ["gate", "model", "tools"]
            assert await visits(graph, TASK) == [*once, *once, "gate", "model"]

    run(main())


@pytest.mark.parametrize("mapped", [True, False], ids=["path map", "no path map"])
@pytest.mark.parametrize("answer", ["agent", ["agent", "other"]], ids=["one", "several"])
def test_conditional_edges_and_joins_are_turned(mapped: bool, answer: Any) -> None:
    async def main() -> None:
        builder = StateGraph(Count)
        for name in ("a", "b", "agent", "other"):
            builder.add_node(name, one)
        builder.add_conditional_edges(START, lambda _: ["a", "b"], ["a", "b"])
        builder.add_edge(["a", "b"], "agent")
        ends = {"agent": "agent", "other": "other", END: END}
        builder.add_conditional_edges(
            "agent", lambda state: answer if state["n"] < 5 else END, ends if mapped else None
        )
        insert_gate(builder, before="agent", name="barrier")
        async with Controller(policy=Static(1), clock=clock) as controller:
            seen = await visits(gated(builder.compile(), controller), {"n": 0})
            assert seen.count("barrier") == seen.count("agent") >= 2
            assert all(seen[i - 1] in ("barrier", "other") for i, name in enumerate(seen) if name == "agent")

    run(main())


def test_sends_and_commands_go_to_the_node_and_are_admitted_there() -> None:
    async def main() -> None:
        model = FakeModel(answer=lambda _: say("x"))

        async def agent(state: dict) -> dict:
            await model.ainvoke(state["text"])
            return {"n": 1}

        async def jump(_: Any) -> Command:
            return Command(goto="plan")

        builder = StateGraph(Count)
        builder.add_node("jump", jump)
        builder.add_node("plan", one)
        builder.add_node("agent", agent)
        builder.add_edge(START, "jump")
        builder.add_edge("plan", "agent")
        builder.add_conditional_edges("plan", lambda _: [Send("agent", {"text": str(n)}) for n in range(3)])
        builder.edges.discard(("plan", "agent"))
        builder.add_conditional_edges("agent", lambda state: "plan" if state["n"] < 4 else END)
        insert_gate(builder, before="plan")
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = gated(builder.compile(), controller)
            await asyncio.wait_for(asyncio.gather(*(graph.ainvoke({"n": 0}) for _ in range(2))), 100)
            assert model.peak == 3  # one agent's three workers; never those of two agents
            assert (controller.snapshot().admitted, runs_of(controller).idle) == (2, True)

    run(main())


def test_what_cannot_work_is_refused() -> None:
    builder = graph_of(FakeModel(answer=lambda _: say("x")), work)
    with pytest.raises(InvalidValueError, match=r"before='agent' is not a node.*'model', 'tools'"):
        insert_gate(builder, before="agent")
    with pytest.raises(InvalidValueError, match="name='tools' is a node already"):
        insert_gate(builder, before="model", name="tools")
    alone = StateGraph(Count)
    alone.add_node("agent", one)
    with pytest.raises(InvalidValueError, match="no edge leads to before='agent'"):
        insert_gate(alone, before="agent")
    assert "gate" not in builder.nodes


def test_a_run_resumed_behind_the_gate_is_admitted_all_the_same() -> None:
    async def main() -> None:
        fail = [True]

        def answer(messages: Any) -> Any:
            if fail.pop() if fail else False:
                raise ConnectionError
            return say("x")

        async with Controller(policy=Static(1), clock=clock) as controller:
            model = FakeModel(answer=answer)
            builder = graph_of(model, work)
            insert_gate(builder, before="model")
            saver, config = InMemorySaver(), {"configurable": {"thread_id": "t"}}
            graph = gated(builder.compile(checkpointer=saver), controller)
            with pytest.raises(ConnectionError):
                await graph.ainvoke(TASK, config)
            assert [n async for u in graph.astream(None, config) for n in u] == ["model"]  # gate skipped
            assert (controller.snapshot().admitted, controller.snapshot().active) == (2, 0)
            assert runs_of(controller).idle

    run(main())


def test_a_retried_node_and_a_queued_gate_get_along() -> None:
    async def main() -> None:
        attempts = []

        def answer(_: Any) -> Any:
            attempts.append(1)
            if len(attempts) % 2:
                raise ConnectionError
            return say("x")

        model = FakeModel(answer=answer)

        async def llm(state: MessagesState) -> dict:
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder = StateGraph(MessagesState)
        builder.add_node("llm", llm, retry_policy=RetryPolicy(max_attempts=2, jitter=False))
        builder.add_edge(START, "llm")
        insert_gate(builder, before="llm")
        async with Controller(policy=Static(1), clock=clock) as controller:
            await asyncio.wait_for(gated(builder.compile(), controller).abatch([TASK] * 3), 100)
            assert (len(attempts), model.peak, controller.snapshot().admitted) == (6, 1, 3)

    run(main())


@pytest.mark.parametrize("with_gate", [True, False], ids=["gate", "no gate"])
def test_a_queued_node_is_not_taken_for_a_hung_one(with_gate: bool) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1)) as controller:
            model = FakeModel(answer=lambda _: say("x"), seconds=0)

            async def llm(state: MessagesState) -> dict:
                return {"messages": [await model.ainvoke(state["messages"])]}

            builder = StateGraph(MessagesState)
            limit = TimeoutPolicy(idle_timeout=0.25)
            builder.add_node("llm", llm, timeout=limit)
            builder.add_edge(START, "llm")
            if with_gate:
                insert_gate(builder, before="llm")
                builder.set_node_defaults(timeout=limit)
            async with controller.agent("holder") as holder, holder.step():
                queued = asyncio.create_task(gated(builder.compile(), controller).ainvoke(TASK))
                await asyncio.sleep(0.6)
                assert controller.snapshot().waiting == 1
            assert (await queued)["messages"][-1].content == "x"

    asyncio.run(main())
