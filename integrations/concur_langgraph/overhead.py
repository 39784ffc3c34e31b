"""What admission costs: `python -m concur_langgraph.overhead`.

Times agents whose model answers at once and whose window is never full, so that nothing is left but the
graph's own work and ours. All surfaces run in one process, interleaved, in an order that turns from repeat to
repeat; the table shows medians of CPU time, per step (one model call, and its tool call if it makes one).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from rich.console import Console
from rich.table import Table

from concur_agents.controller import Controller
from concur_agents.policies import Static
from concur_langgraph.gate_node import insert_gate
from concur_langgraph.handler import gated
from concur_langgraph.middleware import ConcurMiddleware
from concur_langgraph.scope import concur_scope

Agent = Runnable[Any, Any]
TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    return "ok"


class InstantModel(BaseChatModel):
    """Calls its tool until the conversation has `steps - 1` answers, then ends; takes no time."""

    steps: int

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Knows its tool already."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> ChatResult:
        done = sum(isinstance(message, AIMessage) for message in messages)
        size = 50 * len(messages)
        reply = AIMessage(
            "ok", usage_metadata={"input_tokens": size, "output_tokens": 2, "total_tokens": size + 2}
        )
        if done < self.steps - 1:
            reply.tool_calls = [{"name": work.name, "args": {}, "id": f"call-{done}", "type": "tool_call"}]
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> ChatResult:
        return self._generate(messages)


def state_graph(model: BaseChatModel) -> StateGraph[Any, Any, Any, Any]:
    """Model and tools in turn, by hand."""
    builder = StateGraph(MessagesState)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder.add_node("model", call_model)
    builder.add_node("tools", ToolNode([work]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


class Inert(AgentMiddleware[Any, Any]):
    """Wraps everything, does nothing: what any middleware costs."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:  # noqa: ANN401
        """Pass on."""
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:  # noqa: ANN401
        """Pass on."""
        return await handler(request)


async def idle(_: MessagesState) -> None:
    """Do nothing."""


def arms(controller: Controller, steps: int) -> dict[str, tuple[str, Callable[[], Agent]]]:
    """What to time: its baseline, and how to make it."""
    model = InstantModel(steps=steps)

    def with_gate(gate: bool) -> Agent:
        builder = state_graph(model)
        if gate:
            insert_gate(builder, controller, before="model")
        graph: Agent = builder.compile()
        return gated(graph, controller)

    def with_idle() -> Agent:
        """What a further superstep costs, whoever adds it."""
        builder: Any = state_graph(model)
        builder.edges.clear()
        builder.add_node("idle", idle)
        builder.add_edge(START, "idle")
        builder.add_edge("idle", "model")
        builder.add_edge("tools", "idle")
        graph: Agent = builder.compile()
        return graph

    middleware = [ConcurMiddleware(controller)]
    return {
        "create_agent": ("", lambda: create_agent(model, [work])),
        "gated": ("create_agent", lambda: gated(create_agent(model, [work]), controller)),
        "concur_scope": ("create_agent", lambda: create_agent(model, [work])),
        "inert middleware": ("create_agent", lambda: create_agent(model, [work], middleware=[Inert()])),
        "gated + middleware": (
            "create_agent",
            lambda: gated(create_agent(model, [work], middleware=middleware), controller),
        ),
        "StateGraph": ("", lambda: state_graph(model).compile()),
        "gated StateGraph": ("StateGraph", lambda: with_gate(False)),
        "StateGraph + idle node": ("StateGraph", with_idle),
        "gated + gate node": ("StateGraph", lambda: with_gate(True)),
    }


async def seconds(agent: Agent, agents: int) -> float:
    """CPU seconds, all threads. Nothing waits here, and other processes on the machine do not count."""
    gc.collect()
    start = time.process_time()
    await asyncio.gather(*(agent.ainvoke(TASK) for _ in range(agents)))
    return time.process_time() - start


async def measure(agents: int, steps: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds per step of every arm and repeat."""
    async with Controller(policy=Static(agents)) as controller:
        made = {name: make() for name, (_, make) in arms(controller, steps).items()}
        taken: dict[str, list[float]] = {name: [] for name in made}
        names = list(made)
        for repeat in range(repeats + 1):
            turn = repeat % len(names)
            for name in names[turn:] + names[:turn]:
                if name == "concur_scope":
                    with concur_scope(controller):
                        used = await seconds(made[name], agents)
                else:
                    used = await seconds(made[name], agents)
                if repeat:  # the first one warms up
                    taken[name].append(used / agents / steps * 1e6)
        return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m concur_langgraph.overhead", description=__doc__)
    parser.add_argument("--agents", type=int, default=100, help="concurrent agents (default: 100)")
    parser.add_argument("--steps", type=int, default=5, help="model calls of each (default: 5)")
    parser.add_argument("--repeats", type=int, default=7, help="of each surface (default: 7)")
    options = parser.parse_args()
    taken = asyncio.run(measure(options.agents, options.steps, options.repeats))
    baselines = {name: base for name, (base, _) in arms(Controller(policy=Static(1)), 1).items()}
    table = Table(title=f"{options.agents} agents x {options.steps} steps, medians of {options.repeats}")
    table.add_column("surface")
    for heading in ("CPU µs per step", "least", "added µs", "added"):
        table.add_column(heading, justify="right")
    for name, times in taken.items():
        median, base = statistics.median(times), baselines[name]
        # Pairs of the same repeat see the same machine.
        pairs = zip(times, taken[base], strict=True) if base else ()
        added = statistics.median(mine - theirs for mine, theirs in pairs) if base else None
        share = "" if added is None else f"{added / statistics.median(taken[base]):+.0%}"
        table.add_row(
            name, f"{median:,.0f}", f"{min(times):,.0f}", "" if added is None else f"{added:+,.0f}", share
        )
    Console().print(table)


if __name__ == "__main__":
    main()
