"""The agents of the demo: a real LangGraph graph, `ChatOpenAI` over HTTP, a tool that takes its time.

START -> gate -> llm -> search -> gate -> ... until the model answers without a tool call. The model's side
is scripted by the request (see `concur_agents.simulator.script`), so every agent calls its tool as often
as its trajectory has steps, and its conversation grows by what tool and model say.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr

from concur_agents.bench.workloads import Step, Trajectory, Workload
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError
from concur_agents.simulator.tokens import filler
from concur_langgraph.gate_node import insert_gate
from concur_langgraph.handler import gated
from concur_langgraph.runs import AGENT_ID


@tool
async def search(query: str, config: RunnableConfig) -> str:
    """Search the repository."""
    observations: Iterator[tuple[float, str]] = config["configurable"]["observations"]
    seconds, text = next(observations)
    await asyncio.sleep(seconds)
    return text


class LangGraphAgents:
    """Runs trajectories of a workload as LangGraph agents, all on one compiled graph.

    Args:
        base_url: Root of an OpenAI-compatible server that understands scripts (`concur engine`).
        model: Its model.
        controller: Who admits.
        workload: What the trajectories were drawn from.
        speed: Engine seconds per wall-clock second; tools are as much faster.
    """

    def __init__(
        self, base_url: str, model: str, controller: Controller, workload: Workload, speed: float = 1.0
    ) -> None:
        if workload.sub_agents.high:
            msg = f"workload={workload.name!r} has sub-agents, which these agents do not start: take openai"
            raise InvalidValueError(msg)
        self._workload = workload
        self._speed = speed
        # One client for all: a pool for each agent would cost more than the calls.
        # No time-out: a thrashing engine may take minutes to the first byte.
        self._http = DefaultAsyncHttpxClient(timeout=None)
        self._model = ChatOpenAI(
            model=model,
            base_url=f"{base_url}/v1",
            api_key=SecretStr("unused"),
            http_async_client=self._http,
            stream_usage=True,
            max_retries=0,
        )
        self._graph = gated(self._build(controller), controller)
        self.plain = self._build(None)
        """The same graph with nothing of this package in it."""

    def _build(self, controller: Controller | None) -> Runnable[Any, Any]:
        model = self._model.bind_tools([search])

        async def llm(state: MessagesState, config: RunnableConfig) -> dict[str, list[Any]]:
            done = sum(isinstance(message, AIMessage) for message in state["messages"])
            steps: tuple[Step, ...] = config["configurable"]["steps"]
            script = {"steps": len(steps), "tool": search.name, "generate": steps[done].generate}
            return {"messages": [await model.ainvoke(state["messages"], extra_body={"concur": script})]}

        builder = StateGraph(MessagesState)
        builder.add_node("llm", llm)
        builder.add_node("tools", ToolNode([search]))
        builder.add_edge(START, "llm")
        builder.add_conditional_edges("llm", tools_condition)
        builder.add_edge("tools", "llm")
        if controller is not None:
            insert_gate(builder, controller, before="llm")
        return builder.compile()

    async def run(self, trajectory: Trajectory) -> None:
        """Run one agent to its end."""
        await self._graph.ainvoke(*self.invocation(trajectory))

    def invocation(self, trajectory: Trajectory) -> tuple[dict[str, Any], RunnableConfig]:
        """Input and config of one agent; for one invocation."""
        steps = trajectory.steps
        # What the tool says after step k is what step k + 1 appends.
        observations = (
            (before.tool_seconds / self._speed, filler(after.new_tokens, number))
            for number, (before, after) in enumerate(itertools.pairwise(steps))
        )
        task = f"{trajectory.agent_id}: " + filler(max(1, steps[0].new_tokens - 5), trajectory.index)
        messages = [SystemMessage(filler(max(1, self._workload.shared_tokens))), HumanMessage(task)]
        return {"messages": messages}, {
            "metadata": {AGENT_ID: trajectory.agent_id},
            "configurable": {"steps": steps, "observations": observations},
            "recursion_limit": 3 * len(steps) + 10,
        }

    async def close(self) -> None:
        """Give back sockets."""
        await self._http.aclose()
