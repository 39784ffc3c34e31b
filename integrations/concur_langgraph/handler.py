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
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import Runnable
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel

from concur_agents.controller import Controller
from concur_agents.lifecycle import Outcome
from concur_langgraph.caller import ByCaller, on_loop_thread
from concur_langgraph.runs import Run, Runs
from concur_langgraph.usage import Meter, context_tokens
from concur_langgraph.waiting import admitted, admitted_blocking, would_deadlock

logger = logging.getLogger("concur_agents.langgraph")

Input = TypeVar("Input")
Output = TypeVar("Output")
Graph = TypeVar("Graph", bound=Pregel[Any, Any, Any, Any])
Metadata = dict[str, Any] | None

_RUNS: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()
"""Runs by the controller's id (which they keep alive, not the reverse): handlers of one controller must agree
on who belongs to whom."""
_RUNS_LOCK = threading.Lock()


def runs_of(controller: Controller) -> Runs:
    """The live runs that `controller` admits."""
    with _RUNS_LOCK:
        return _RUNS.setdefault(id(controller), Runs(controller))


def _quietly(method: Callable[..., None]) -> Any:  # noqa: ANN401
    """An error in here is ours: log it, and let the graph's own result or error through."""

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        try:
            method(*args, **kwargs)
        except Exception:
            logger.exception("bookkeeping failed in %s; the graph is not affected", method.__name__)

    return wrapper


class ConcurCallbackHandler(BaseCallbackHandler):
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

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConcurCallbackHandler) and other.controller is self.controller

    def __hash__(self) -> int:
        return hash((ConcurCallbackHandler, id(self.controller)))

    def __deepcopy__(self, memo: dict[int, Any]) -> ConcurCallbackHandler:
        return self

    # ---- model calls ----------------------------------------------------------------------------

    async def _wait(
        self,
        serialized: object,
        prompts: list[list[BaseMessage]] | list[str],
        /,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Metadata = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Wait for admission of a model call."""
        run = self.runs.start(run_id, parent_run_id, metadata)
        try:
            context = self._enter(run, prompts)
            ticket = self.runs.take(run) or await admitted(self.controller, context)
        except BaseException as error:
            self.runs.end(run_id, _outcome(error))
            raise
        self.runs.hold(run, ticket)
        if run.parent is None:
            self._end_with_task(run_id)

    def _block(
        self,
        serialized: object,
        prompts: list[list[BaseMessage]] | list[str],
        /,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Metadata = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Wait for admission of a model call on this thread."""
        run = self.runs.start(run_id, parent_run_id, metadata)
        try:
            if on_loop_thread() or any(above.blocks_loop for above in run.lineage()):
                raise would_deadlock()
            context = self._enter(run, prompts)
            pooled = any(above.of_loop for above in run.lineage())
            on_wait = self._warn_of_pool if pooled and not self.runs.warned_pool else None
            ticket = self.runs.take(run) or admitted_blocking(self.controller, context, on_wait)
        except BaseException as error:
            self.runs.end(run_id, _outcome(error))
            raise
        self.runs.hold(run, ticket)

    on_chat_model_start = ByCaller(from_async=_wait, from_sync=_block)
    on_llm_start = ByCaller(from_async=_wait, from_sync=_block)

    def _enter(self, run: Run, prompts: list[list[BaseMessage]] | list[str]) -> str:
        """Ask with which id? A prompt that has answers in it continues a conversation of known length."""
        first = prompts[0] if prompts else []
        messages: Sequence[BaseMessage] = [HumanMessage(first)] if isinstance(first, str) else first
        run.meter = Meter(messages)
        return self.runs.enter(run, context_tokens(messages))

    def _end_with_task(self, run_id: UUID) -> None:
        """A model called outside any chain: of a cancelled call no event tells, only the task ends."""
        task, runs = asyncio.current_task(), self.runs
        if task is not None:
            task.add_done_callback(lambda _: runs.end(run_id, Outcome.CANCELLED))

    @_quietly
    def on_llm_new_token(self, token: object, *, chunk: object = None, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """Each chunk may carry usage."""
        run = self.runs.find(run_id)
        if run is not None and run.meter is not None:
            run.meter.chunk(chunk)

    @_quietly
    def on_stream_event(self, event: object, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """As `on_llm_new_token`, in the v3 protocol."""
        run = self.runs.find(run_id)
        if run is not None and run.meter is not None:
            run.meter.event(event)

    @_quietly
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The call is over: a boundary."""
        run = self.runs.find(run_id)
        if run is None or run.meter is None:
            return
        try:
            usage = run.meter.reported(response)
            if usage is None:
                usage = run.meter.estimated(response)
                self._warn_of_estimate()
            self.runs.leave(run, usage)
        finally:
            self.runs.end(run_id, Outcome.COMPLETED)

    def _warn_of_estimate(self) -> None:
        if not self.runs.warned_usage:
            self.runs.warned_usage = True
            logger.warning(
                "a model call reported no token usage, so its context is estimated from its length; "
                "with ChatOpenAI use stream_usage=True"
            )

    def _warn_of_pool(self) -> None:
        self.runs.warned_pool = True
        logger.warning(
            "a synchronous node (`def`) of an asynchronous graph waits for admission on a thread of asyncio's"
            " pool; when all its threads wait, nothing moves until a place is reclaimed. Make the node "
            "`async def`, or give the loop a thread for each agent: asyncio.get_running_loop()"
            ".set_default_executor(ThreadPoolExecutor(max_workers=...)) (said once)"
        )

    @_quietly
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The call failed: a boundary all the same."""
        self.runs.end(run_id, _outcome(error))

    # ---- everything round them ------------------------------------------------------------------

    @_quietly
    def _begin(
        self,
        serialized: object,
        inputs: object,
        /,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Metadata = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Remember who is whose child."""
        self.runs.start(run_id, parent_run_id, metadata).of_loop = True

    @_quietly
    def _begin_sync(
        self,
        serialized: object,
        inputs: object,
        /,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Metadata = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """As `_begin`; its nodes may run on other threads, which cannot see that this one has a loop."""
        self.runs.start(run_id, parent_run_id, metadata).blocks_loop = on_loop_thread()

    @_quietly
    def _begin_tool(
        self,
        serialized: Metadata,
        inputs: object,
        /,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Metadata = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """A boundary goes on; model calls inside the tool belong to the same trajectory."""
        run = self.runs.start(run_id, parent_run_id, metadata, tool=True)
        run.told = str((serialized or {}).get("name") or "tool"), self.controller.gate.now()
        self.controller.tool_started(run.trajectory.agent_id, run.told[0])

    @_quietly
    def _end(self, result: object, /, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """The run is over, and so is everything under it."""
        self._over(run_id, Outcome.COMPLETED)

    @_quietly
    def _fail(self, error: BaseException, /, *, run_id: UUID, **kwargs: Any) -> None:  # noqa: ANN401
        """As `_end`; the only sign of a cancelled model call."""
        self._over(run_id, _outcome(error))

    def _over(self, run_id: UUID, outcome: Outcome) -> None:
        run = self.runs.find(run_id)
        if run is not None and run.told is not None:
            (name, began), failed = run.told, outcome is Outcome.FAILED
            seconds = self.controller.gate.now() - began
            self.controller.tool_ended(run.trajectory.agent_id, name, seconds, failed=failed)
        self.runs.end(run_id, outcome)

    on_chain_start = ByCaller(from_async=_begin, from_sync=_begin_sync)
    on_chain_end, on_chain_error = _end, _fail
    on_tool_start, on_tool_end, on_tool_error = _begin_tool, _end, _fail
    on_retriever_start, on_retriever_end, on_retriever_error = _begin, _end, _fail


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

    A model call in a synchronous run on a thread that runs an event loop raises `WouldDeadlockError`.
    """
    return graph.with_config({"callbacks": [ConcurCallbackHandler(controller)]})
