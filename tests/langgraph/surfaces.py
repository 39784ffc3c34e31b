"""The same agent on each surface."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from concur_langgraph import ConcurMiddleware, concur_scope, gated, insert_gate
from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from concur_agents import Controller
from concur_agents.signals import Window
from tests.langgraph.fakes import FakeModel

Make = Callable[..., Any]


class Patient:
    """W agents, and a place that is idle for `grace` seconds may be reclaimed."""

    name = "patient"

    def __init__(self, agents: int, grace: float) -> None:
        self._window = Window(agents=agents, grace_seconds=grace)

    def initial(self) -> Window:
        return self._window

    def update(self, signals: object) -> Window:
        return self._window


def graph_of(model: FakeModel, tool: BaseTool) -> StateGraph:
    """START -> model -> tools -> model, as most people write it."""
    builder = StateGraph(MessagesState)

    async def amodel(state: MessagesState) -> dict:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def sync_model(state: MessagesState) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    builder.add_node("model", RunnableLambda(sync_model, afunc=amodel))
    builder.add_node("tools", ToolNode([tool]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


def by_gated(controller: Controller, model: FakeModel, tool: BaseTool, **options: Any) -> Any:
    return gated(create_agent(model, [tool], **options), controller)


def by_scope(controller: Controller, model: FakeModel, tool: BaseTool, **options: Any) -> Any:
    return create_agent(model, [tool], **options)


def by_middleware(controller: Controller, model: FakeModel, tool: BaseTool, **options: Any) -> Any:
    return gated(
        create_agent(model, [tool], middleware=[ConcurMiddleware(controller)], **options), controller
    )


def by_gate_node(controller: Controller, model: FakeModel, tool: BaseTool, **options: Any) -> Any:
    builder = graph_of(model, tool)
    insert_gate(builder, controller, before="model")
    return gated(builder.compile(**options), controller)


SURFACES: dict[str, Make] = {
    "gated": by_gated,
    "scope": by_scope,
    "middleware": by_middleware,
    "gate node": by_gate_node,
}


def around(surface: str, controller: Controller) -> AbstractContextManager[object]:
    """What has to be entered round a run."""
    return concur_scope(controller) if surface == "scope" else contextlib.nullcontext()
