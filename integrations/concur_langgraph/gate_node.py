"""A visible gate in a `StateGraph`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import StateGraph

from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError
from concur_langgraph.lookup import enclosing
from concur_langgraph.usage import context_tokens
from concur_langgraph.waiting import admitted, admitted_blocking, would_deadlock


class GateNode(Runnable[Any, None]):
    """A node that lets the agent pass when it is admitted.

        builder.add_node(GateNode(controller))      # node "gate"
        builder.add_edge(START, "gate")
        builder.add_edge("gate", "llm")
        builder.add_edge("tools", "gate")
        graph = gated(builder.compile(), controller)

    It shows in the graph, its traces and its checkpoints where an agent waits, and it is where an agent with
    synchronous nodes in an asynchronous graph should wait: a node that waits holds a thread of the pool which
    the tools of the others need.

    A gate node sees the step it stands before, and nothing else: not how a run ends, not the model calls in
    tools, not a step that is resumed, retried or jumped to behind it. So it asks for the handler that `gated`
    or `concur_scope` attaches. That one admits each model call in any case, and a call behind a gate goes
    ahead on the gate's admission. Each visit is a superstep and, with a checkpointer, a checkpoint.

    Args:
        controller: Who admits; None for the one that gates the graph.
        name: Of the node.
    """

    def __init__(self, controller: Controller | None = None, *, name: str = "gate") -> None:
        self.controller = controller
        self.name = name

    async def ainvoke(
        self,
        input: Any,  # noqa: A002, ANN401
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Wait for admission. The state is left as it is.

        Raises:
            InvalidValueError: the graph is not gated by the same controller.
        """
        handler, run = enclosing(config, self.controller, f"node {self.name!r}")
        context = handler.runs.enter(run, _context_tokens(input))
        try:
            ticket = handler.runs.take(run) or await admitted(handler.controller, context)
            handler.runs.keep(run, ticket)
        finally:
            handler.runs.leave(run)

    def invoke(
        self,
        input: Any,  # noqa: A002, ANN401
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """As `ainvoke`, blocking this thread.

        Raises:
            InvalidValueError: the graph is not gated by the same controller.
            WouldDeadlockError: the thread runs an event loop.
        """
        handler, run = enclosing(config, self.controller, f"node {self.name!r}")
        if any(above.blocks_loop for above in run.lineage()):
            raise would_deadlock()
        context = handler.runs.enter(run, _context_tokens(input))
        try:
            ticket = handler.runs.take(run) or admitted_blocking(handler.controller, context)
            handler.runs.keep(run, ticket)
        finally:
            handler.runs.leave(run)


def insert_gate(
    builder: StateGraph[Any, Any, Any, Any],
    controller: Controller | None = None,
    *,
    before: str,
    name: str = "gate",
) -> GateNode:
    """Put a gate node before a node of an existing builder: what led to `before` leads to the gate.

        insert_gate(builder, before="agent")
        graph = gated(builder.compile(), controller)

    Edges, joins and conditional edges added so far are turned; add the others to the gate. A `Send` carries a
    state of its own for `before`, and a `Command(goto=before)` is only known when it is returned: both go to
    `before` directly, where the handler admits the model calls.

    Args:
        builder: Not compiled yet.
        controller: Who admits; None for the one that gates the graph.
        before: Name of the node.
        name: Of the gate.

    Raises:
        InvalidValueError: no node `before`, a node `name` already, or no edge that leads to `before`.
    """
    if before not in builder.nodes:
        msg = f"before={before!r} is not a node of this graph: expected one of {sorted(builder.nodes)}"
        raise InvalidValueError(msg)
    if name in builder.nodes:
        msg = f"name={name!r} is a node already: give the gate another name"
        raise InvalidValueError(msg)
    plain = {edge for edge in builder.edges if edge[1] == before}
    joins = {edge for edge in builder.waiting_edges if edge[1] == before}
    branches = [
        (start, label)
        for start, specs in builder.branches.items()
        for label, spec in specs.items()
        if spec.ends is None or before in spec.ends.values()
    ]
    if not (plain or joins or branches):
        msg = (
            f"no edge leads to before={before!r} yet: add the edges first, or the gate would never be visited"
        )
        raise InvalidValueError(msg)
    gate = GateNode(controller, name=name)
    builder.add_node(name, gate)
    builder.edges -= plain
    builder.edges |= {(start, name) for start, _ in plain} | {(name, before)}
    builder.waiting_edges -= joins
    builder.waiting_edges |= {(starts, name) for starts, _ in joins}
    for start, label in branches:
        spec = builder.branches[start][label]
        if spec.ends is None:
            turned = spec._replace(path=spec.path | RunnableLambda(_turn(before, name)))
        else:
            turned = spec._replace(ends={k: name if v == before else v for k, v in spec.ends.items()})
        builder.branches[start][label] = turned
    return gate


def _turn(before: str, name: str) -> Any:  # noqa: ANN401
    """What a conditional edge without a path map answers, with `before` replaced."""

    def one(target: Hashable) -> Hashable:
        return name if target == before else target

    def turn(answer: Any) -> Any:  # noqa: ANN401
        return [one(target) for target in answer] if isinstance(answer, list | tuple) else one(answer)

    return turn


def _context_tokens(state: Any) -> int:  # noqa: ANN401
    """Of the conversation in a graph's state, as far as it follows LangGraph's convention."""
    found = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", state)
    return context_tokens(found) if isinstance(found, list | tuple) else 0
