"""The enforcing surface: a callback handler that sees every model call and every ending.

It waits for admission before a model call, makes the time from its end to the next one a boundary, and gives
the place back when the root run ends, in whatever way: END, exception, recursion limit, cancellation,
time-out, interrupt, closed or dropped stream. LangChain sends no `on_llm_error` for a cancelled `ainvoke`,
so a call is also over when any run above it is.

Only admission itself may raise; a failure in the bookkeeping is logged and never hides the graph's own error.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar, overload
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import Runnable
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel

from concur_agents.controller import Controller
from concur_agents.lifecycle import Outcome
from concur_langgraph.runs import Runs
from concur_langgraph.usage import usage_of

logger = logging.getLogger("concur_agents.langgraph")

P = ParamSpec("P")
Input = TypeVar("Input")
Output = TypeVar("Output")

Graph = TypeVar("Graph", bound=Pregel[Any, Any, Any, Any])

_RUNS: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()
"""Runs by the controller's id (which they keep alive, not the reverse): handlers of one controller must agree
on who belongs to whom."""
_RUNS_LOCK = threading.Lock()


def runs_of(controller: Controller) -> Runs:
    """The live runs that `controller` admits."""
    with _RUNS_LOCK:
        return _RUNS.setdefault(id(controller), Runs(controller))


def _quietly(method: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Coroutine[Any, Any, None]]:
    """An error in here is ours: log it, and let the graph's own result or error through."""

    @functools.wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await method(*args, **kwargs)
        except Exception:
            logger.exception("bookkeeping failed in %s; the graph is not affected", method.__name__)

    return wrapper


class ConcurCallbackHandler(AsyncCallbackHandler):
    """Gates the model calls of every graph, agent or Runnable it is attached to. See the module.

    All handlers of one controller are equal and share their bookkeeping; copies are the same object.

    Args:
        controller: Who admits.
    """

    # Inline and first: tracers start their clocks after the wait. Raising: else a refused call goes ahead.
    run_inline = True
    raise_error = True

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.runs = runs_of(controller)
        self._warned_usage = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConcurCallbackHandler) and other.controller is self.controller

    def __hash__(self) -> int:
        return hash((ConcurCallbackHandler, id(self.controller)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ConcurCallbackHandler:
        return self

    # ---- model calls ----------------------------------------------------------------------------

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Wait for admission."""
        await self._admit(run_id, parent_run_id, metadata)

    async def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Wait for admission."""
        await self._admit(run_id, parent_run_id, metadata)

    async def _admit(self, run_id: UUID, parent_run_id: UUID | None, metadata: dict[str, Any] | None) -> None:
        run = self.runs.start(run_id, parent_run_id, metadata)
        try:
            context = self.runs.enter(run)
            ticket = self.runs.take(run) or await self.controller.acquire(context)
        except BaseException as error:
            self.runs.end(run_id, _outcome(error))
            raise
        self.runs.hold(run, ticket)
        if run.parent is None:
            self._end_with_task(run_id)

    def _end_with_task(self, run_id: UUID) -> None:
        """A model called outside any chain: of a cancelled call no event tells, only the task ends."""
        task = asyncio.current_task()
        top = None if task is None else task.get_coro()
        if task is None or getattr(top, "__name__", "") in ("on_chat_model_start", "on_llm_start"):
            return  # a sync call: the task is this event's own and ends before the call does
        runs = self.runs
        task.add_done_callback(lambda _: runs.end(run_id, Outcome.CANCELLED))

    @_quietly
    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The call is over: a boundary."""
        run = self.runs.find(run_id)
        if run is None:
            return
        usage = usage_of(response)
        if usage is None and not self._warned_usage:
            self._warned_usage = True
            logger.warning(
                "a model call reported no token usage, so its context is not in the ledger; "
                "with ChatOpenAI use stream_usage=True"
            )
        self.runs.leave(run, usage)
        self.runs.end(run_id, Outcome.COMPLETED)

    @_quietly
    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The call failed: a boundary all the same."""
        self.runs.end(run_id, _outcome(error))

    # ---- everything round them ------------------------------------------------------------------

    @_quietly
    async def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Remember who is whose child."""
        self.runs.start(run_id, parent_run_id, metadata)

    @_quietly
    async def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The run is over, and so is everything under it."""
        self.runs.end(run_id, Outcome.COMPLETED)

    @_quietly
    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """As `on_chain_end`; the only sign of a cancelled model call."""
        self.runs.end(run_id, _outcome(error))

    @_quietly
    async def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """A boundary goes on; model calls inside the tool belong to the same trajectory."""
        self.runs.start(run_id, parent_run_id, metadata, tool=True)

    @_quietly
    async def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The tool is over."""
        self.runs.end(run_id, Outcome.COMPLETED)

    @_quietly
    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The tool failed."""
        self.runs.end(run_id, _outcome(error))

    @_quietly
    async def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """As a tool."""
        self.runs.start(run_id, parent_run_id, metadata)

    @_quietly
    async def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """As a tool."""
        self.runs.end(run_id, Outcome.COMPLETED)

    @_quietly
    async def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """As a tool."""
        self.runs.end(run_id, _outcome(error))


def _outcome(error: BaseException) -> Outcome:
    """LangGraph reports an interrupt of a subgraph and a closed stream as errors; neither is a failure."""
    if isinstance(error, GraphBubbleUp):
        return Outcome.COMPLETED
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return Outcome.CANCELLED
    return Outcome.FAILED


@overload
def gated(graph: Graph, controller: Controller) -> Graph: ...
@overload
def gated(graph: Runnable[Input, Output], controller: Controller) -> Runnable[Input, Output]: ...
def gated(graph: Runnable[Any, Any], controller: Controller) -> Runnable[Any, Any]:
    """`graph` with every model call in it admitted by `controller`, and its place given back at every end.

    Works for compiled graphs, agents and any other Runnable; the result is used like the original. One
    trajectory is one invocation. `config["metadata"]["concur_agent_id"]` names it (default: its run id); two
    at once under one name are refused with `DuplicateAgentError`, but inside
    `async with controller.agent("x")` all that are named "x" are that agent.
    """
    return graph.with_config({"callbacks": [ConcurCallbackHandler(controller)]})
