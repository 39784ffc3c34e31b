"""What users write, for the type checker: `mypy --strict` has to be content, and to know what comes out.

Nothing here runs.
"""

from __future__ import annotations

from typing import Any, TypedDict, assert_type

from concur_langgraph import (
    AGENT_ID,
    SESSION_ID,
    ConcurCallbackHandler,
    ConcurMiddleware,
    GateNode,
    concur_scope,
    gated,
    insert_gate,
)
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from concur_agents import AIMD, Controller, Snapshot, Static
from concur_agents.blocking import BlockingController
from concur_agents.telemetry import VLLM


class State(TypedDict):
    text: str


def node(state: State) -> State:
    return state


async def a_compiled_graph_stays_one(controller: Controller) -> None:
    builder = StateGraph(State)
    builder.add_node("agent", node)
    builder.add_edge(START, "agent")
    assert_type(insert_gate(builder, before="agent"), GateNode)
    insert_gate(builder, controller, before="agent", name="second")
    builder.add_node(GateNode(controller, name="third"))
    graph = gated(builder.compile(), controller)
    assert_type(graph, CompiledStateGraph[State, None, State, State])
    config: RunnableConfig = {"metadata": {AGENT_ID: "swe-17", SESSION_ID: "s"}}
    await graph.ainvoke({"text": "x"}, config)
    graph.invoke({"text": "x"}, {"callbacks": [ConcurCallbackHandler(controller)]})


async def other_runnables_keep_their_types(controller: Controller, model: BaseChatModel) -> None:
    length: RunnableLambda[str, int] = RunnableLambda(len)
    chain = gated(length, controller)
    assert_type(chain, Runnable[str, int])
    assert_type(await chain.ainvoke("x"), int)
    assert_type(await gated(model, controller).ainvoke("x"), AIMessage)


async def an_agent(model: BaseChatModel) -> Snapshot:
    async with Controller(VLLM("http://localhost:8000"), policy=AIMD()) as controller:
        agent = gated(create_agent(model, [], middleware=[ConcurMiddleware(controller)]), controller)
        messages: list[BaseMessage | dict[str, Any]] = [{"role": "user", "content": "go"}]
        await agent.ainvoke({"messages": messages})
        return controller.snapshot()


def a_scope(controller: Controller) -> None:
    builder = StateGraph(MessagesState)
    with concur_scope(controller) as same:
        assert_type(same, Controller)
        builder.compile().invoke({"messages": []})


def threads() -> None:
    concur = BlockingController(Controller(policy=Static(4)))
    with concur, concur.agent() as agent, agent.step() as step:
        step.record({"prompt_tokens": 1})


def mistakes_are_found(controller: Controller) -> None:
    gated(42, controller)  # type: ignore[call-overload]
    GateNode("controller")  # type: ignore[arg-type]
    insert_gate(StateGraph(State), controller)  # type: ignore[call-arg]
    ConcurMiddleware(header=True)  # type: ignore[call-arg]
    with concur_scope():  # type: ignore[call-arg]
        pass
