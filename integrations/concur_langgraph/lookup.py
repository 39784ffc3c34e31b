"""Finding the handler, and the run it knows, from inside a node."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import RunnableConfig

from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError
from concur_langgraph.handler import ConcurCallbackHandler
from concur_langgraph.runs import Run


def enclosing(
    config: RunnableConfig | None, controller: Controller | None, who: str
) -> tuple[ConcurCallbackHandler, Run]:
    """The handler that gates the graph that `config` belongs to, and the innermost run it knows there.

    Args:
        config: What LangGraph hands to a node.
        controller: Whose handler; None for whichever there is.
        who: The part of the graph that asks, for the error.

    Raises:
        InvalidValueError: no such handler is attached.
    """
    callbacks = (config or {}).get("callbacks")
    managed = isinstance(callbacks, BaseCallbackManager)
    handlers: Iterable[BaseCallbackHandler] = callbacks.handlers if managed else callbacks or []  # type: ignore[union-attr, assignment]
    for handler in handlers:
        if isinstance(handler, ConcurCallbackHandler) and controller in (None, handler.controller):
            run = handler.runs.find(callbacks.parent_run_id if managed else None)  # type: ignore[union-attr]
            if run is not None:
                return handler, run
    msg = (
        f"{who} is not in a gated graph: wrap the compiled graph, gated(builder.compile(), controller), "
        "or run it inside `with concur_scope(controller):`, with the controller that it was given. On its "
        "own it sees neither every model call nor how a run ends, and would keep the place of a cancelled one"
    )
    raise InvalidValueError(msg)
