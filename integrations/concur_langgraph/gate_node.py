"""A visible gate in a `StateGraph`."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig

from concur_agents.blocking import BlockingController
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError
from concur_langgraph.handler import ConcurCallbackHandler
from concur_langgraph.runs import Run, Runs


class GateNode(Runnable[Any, None]):
    """A node that lets the agent pass when it is admitted.

        builder.add_node(GateNode(controller))      # node "gate"
        builder.add_edge(START, "gate")
        builder.add_edge("gate", "llm")
        builder.add_edge("tools", "gate")
        graph = gated(builder.compile(), controller)

    It shows in the graph, its traces and its checkpoints where an agent waits. On its own it could neither
    see how a run ends nor be visited on resume, so it asks for the handler that `gated` attaches. That one
    admits each model call in any case; a call behind a gate goes ahead on the gate's admission.

    Args:
        controller: Who admits.
        name: Of the node.
    """

    def __init__(self, controller: Controller, *, name: str = "gate") -> None:
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
            InvalidValueError: the graph was not wrapped with `gated` for the same controller.
        """
        runs, run = self._find(config)
        context = runs.enter(run)
        try:
            runs.keep(run, runs.take(run) or await self.controller.acquire(context))
        finally:
            runs.leave(run)

    def invoke(
        self,
        input: Any,  # noqa: A002, ANN401
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """As `ainvoke`, blocking this thread.

        Raises:
            WouldDeadlockError: the thread runs an event loop.
        """
        runs, run = self._find(config)
        context = runs.enter(run)
        try:
            runs.keep(run, runs.take(run) or BlockingController(self.controller).acquire(context))
        finally:
            runs.leave(run)

    def _find(self, config: RunnableConfig | None) -> tuple[Runs, Run]:
        callbacks = (config or {}).get("callbacks")
        handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or []
        mine = ConcurCallbackHandler(self.controller)
        parent = callbacks.parent_run_id if isinstance(callbacks, BaseCallbackManager) else None
        run = mine.runs.find(parent)
        if mine not in handlers or run is None:
            msg = (
                f"node {self.name!r} is not in a gated graph: wrap the compiled graph, "
                "gated(builder.compile(), controller), with the controller that this node was given"
            )
            raise InvalidValueError(msg)
        return mine.runs, run
