"""No model call escapes the gate, wherever it is made and however the run is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from concur_langgraph import concur_scope, gated
from concur_langgraph.handler import runs_of
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from concur_agents import Controller, Static
from concur_agents.events import Granted
from tests.langgraph.fakes import FakeModel, call, say, tools_then_end
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go " * 50)]}


class Verdict(BaseModel):
    """A verdict."""

    guilty: bool = True


def failing(_: object) -> AIMessage:
    raise ConnectionError("engine")


def node(ainvoke: Any, invoke: Any) -> Any:
    """A graph of one node."""
    builder = StateGraph(MessagesState)

    async def anode(state: MessagesState) -> dict:
        return {"messages": [await ainvoke(state["messages"])]}

    def sync_node(state: MessagesState) -> dict:
        return {"messages": [invoke(state["messages"])]}

    builder.add_node("llm", RunnableLambda(sync_node, afunc=anode))
    builder.add_edge(START, "llm")
    return builder.compile()


class Engine:
    """Hands out models and counts over all of them."""

    def __init__(self) -> None:
        self._flight = [0, 0, 0]

    def model(self, answer: Any) -> FakeModel:
        model = FakeModel(answer=answer)
        model._flight = self._flight
        return model

    @property
    def peak(self) -> int:
        return self._flight[1]

    @property
    def calls(self) -> int:
        return self._flight[2]


@tool
def work() -> str:
    """Work."""
    return "ok " * 50


def in_a_tool(engine: Engine) -> Any:
    inner = engine.model(lambda _: say("inside"))

    @tool
    async def think() -> str:
        """Think."""
        return str((await inner.ainvoke("hm")).content)

    def think_now() -> str:
        return str(inner.invoke("hm").content)

    think.func = think_now
    return create_agent(engine.model(tools_then_end("think", 3)), [think])


def in_a_sub_agent(engine: Engine) -> Any:
    inner = create_agent(engine.model(tools_then_end("work", 2)), [work])

    @tool
    async def delegate() -> str:
        """Delegate."""
        return str((await inner.ainvoke(TASK))["messages"][-1].content)

    def delegate_now() -> str:
        return str(inner.invoke(TASK)["messages"][-1].content)

    delegate.func = delegate_now
    return create_agent(engine.model(tools_then_end("delegate", 2)), [delegate])


def in_summaries(engine: Engine) -> Any:
    summary = SummarizationMiddleware(
        engine.model(lambda _: say("short")), trigger=("messages", 4), keep=("messages", 2)
    )

    def until_summarised(messages: list) -> AIMessage:
        return say("done") if any("short" in str(m.content) for m in messages) else call("work")

    return create_agent(engine.model(until_summarised), [work], middleware=[summary])


def in_structured_output(engine: Engine) -> Any:
    model = engine.model(lambda _: call("Verdict", guilty=True))
    return create_agent(model, [work], response_format=ToolStrategy(Verdict))


def in_fallbacks(engine: Engine) -> Any:
    model = engine.model(failing).with_fallbacks([engine.model(lambda _: say("spare"))])
    return node(model.ainvoke, model.invoke)


def in_fallback_middleware(engine: Engine) -> Any:
    spare = ModelFallbackMiddleware(engine.model(lambda _: say("spare")))
    return create_agent(engine.model(failing), [work], middleware=[spare])


def in_retries(engine: Engine) -> Any:
    again = ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False, on_failure="continue")
    return create_agent(engine.model(failing), [work], middleware=[again])


def in_a_chain(engine: Engine) -> Any:
    chain = RunnableLambda(lambda m: m) | engine.model(lambda _: say("x")).bind(stop=["."])
    return node(chain.ainvoke, chain.invoke)


def in_the_functional_api(engine: Engine) -> Any:
    model = engine.model(lambda _: say("x"))

    @task
    def ask(text: str) -> str:
        return str(model.invoke(text).content)

    @task
    async def aask(text: str) -> str:
        return str((await model.ainvoke(text)).content)

    @entrypoint()
    def flow(_: Any) -> list[str]:
        return [ask(text).result() for text in ("a", "b")]

    @entrypoint()
    async def aflow(_: Any) -> list[str]:
        return [await aask(text) for text in ("a", "b")]

    return flow, aflow


PLACES: dict[str, tuple[Callable[[Engine], Any], int]] = {
    "a tool": (in_a_tool, 5),
    "a sub-agent": (in_a_sub_agent, 4),
    "summaries": (in_summaries, 4),
    "structured output": (in_structured_output, 1),
    "fallbacks": (in_fallbacks, 2),
    "fallback middleware": (in_fallback_middleware, 2),
    "retries": (in_retries, 3),
    "a chain": (in_a_chain, 1),
    "the functional API": (in_the_functional_api, 2),
}
"""Where calls are made, and how many one run makes."""


async def ainvoke(graph: Any) -> None:
    await graph.ainvoke(TASK)


async def astream(graph: Any) -> None:
    async for _ in graph.astream(TASK, stream_mode=["messages", "updates"]):
        pass


async def events_v2(graph: Any) -> None:
    async for _ in graph.astream_events(TASK, version="v2"):
        pass


async def events_v3(graph: Any) -> None:
    async for _ in await graph.astream_events(TASK, version="v3"):
        pass


READERS = {f.__name__: f for f in (ainvoke, astream, events_v2, events_v3)}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scope", [False, True], ids=["gated", "scope"])
def test_every_call_is_admitted(place: str, reader: str, scope: bool) -> None:
    async def main() -> None:
        engine, grants = Engine(), []
        build, calls = PLACES[place]
        graph = build(engine)
        graph = graph[1] if isinstance(graph, tuple) else graph
        async with Controller(policy=Static(1), clock=clock) as controller:
            controller.subscribe(lambda e: grants.append(e.ticket) if isinstance(e, Granted) else None)
            if scope:
                with concur_scope(controller):
                    await asyncio.gather(*(READERS[reader](graph) for _ in range(3)))
            else:
                gate = gated(graph, controller)
                await asyncio.gather(*(READERS[reader](gate) for _ in range(3)))
            assert (engine.calls, len(grants), engine.peak) == (3 * calls, 3 * calls, 1)
            assert controller.snapshot().admitted == 3
            assert (controller.snapshot().active, runs_of(controller).idle) == (0, True)

    run(main())


@pytest.mark.parametrize("place", PLACES)
def test_every_call_of_synchronous_runs_in_threads_is_admitted(place: str) -> None:
    engine, grants = Engine(), []
    build, calls = PLACES[place]
    graph = build(engine)
    graph = graph[0] if isinstance(graph, tuple) else graph
    controller = Controller(policy=Static(1))
    controller.subscribe(lambda e: grants.append(e.ticket) if isinstance(e, Granted) else None)
    gate = gated(graph, controller)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: gate.invoke(TASK), range(3)))
    assert (engine.calls, len(grants), engine.peak) == (3 * calls, 3 * calls, 1)
    assert controller.snapshot().admitted == 3
    assert (controller.snapshot().active, runs_of(controller).idle) == (0, True)


def test_nested_gated_graphs_get_through_a_window_of_one() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            engine = Engine()
            innermost = gated(create_agent(engine.model(tools_then_end("work", 2)), [work]), controller)

            @tool
            async def delegate() -> str:
                """Delegate."""
                await innermost.ainvoke(TASK)
                return "ok"

            inner = gated(create_agent(engine.model(tools_then_end("delegate", 2)), [delegate]), controller)
            builder = StateGraph(MessagesState)
            builder.add_node("inner", inner)  # a gated subgraph as a node
            builder.add_edge(START, "inner")
            outer = gated(builder.compile(), controller)
            with concur_scope(controller):
                await asyncio.wait_for(outer.abatch([TASK] * 4), 600)
            assert (engine.calls, engine.peak) == (4 * 4, 1)
            assert (controller.snapshot().admitted, controller.snapshot().completed) == (4, 4)
            assert runs_of(controller).idle

    run(main())
