"""A batch of inputs through one graph: what `abatch` leaves to its user.

Failures are collected, results come as they end, a bar shows how far it is, and a half-done batch goes on
where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from concur_agents.batch import Schedule, bar_on_stderr, checked_names
from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError, check_range
from concur_langgraph.batch_run import Batch, BatchResult, pregel_of, without_value
from concur_langgraph.caller import on_loop_thread
from concur_langgraph.handler import gated
from concur_langgraph.runs import AGENT_ID
from concur_langgraph.waiting import would_deadlock

Output = TypeVar("Output")

_THREADS = 4096
"""More than a batch has runs in flight; a thread is started only when one is needed."""


async def run_batch(
    graph: Runnable[Any, Output],
    inputs: Iterable[Any],
    controller: Controller,
    *,
    on_result: Callable[[BatchResult[Output]], object] | None = None,
    config: RunnableConfig | None = None,
    ids: Iterable[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    keep_values: bool = True,
    lookahead: int = 64,
) -> list[BatchResult[Output]]:
    """Run every input as one agent under `controller`, and return how each ended, in the order of `inputs`.

        async with Controller(VLLM("http://localhost:8000")) as controller:
            results = await run_batch(graph, inputs, controller, on_result=write_line)
        failed = [result for result in results if not result.ok]

    An input that fails is a result with an `error`; the others go on. Cancelling the call (Ctrl-C, a
    time-out) cancels all runs, gives all places back, and raises when the last one has ended.

    With `resume` and a checkpointer, the batch can be repeated under the same `ids` as often as it takes: a
    thread that has ended is not run again (`restored`), one that failed or was cut off continues from its
    last checkpoint, one without a checkpoint starts. A thread that waits for a human asks again, unless its
    input is a `Command(resume=...)`.

    Args:
        graph: A compiled graph, agent or other Runnable, gated by this controller or not yet.
        inputs: One for each agent.
        controller: Who admits; should be running.
        on_result: Called, and awaited if it is a coroutine function, with each result as it comes, one at a
            time. A slow one holds up the start of further inputs. If it raises, the batch is cancelled and
            raises that.
        config: For every run; its ids (`thread_id`, `run_id`, `concur_agent_id`) are set here.
        ids: One for each input, distinct, not empty: id of the agent and of the thread. Default: fresh ones.
        resume: Go on with the threads that `ids` name.
        progress: Show a bar on stderr, if that is a terminal and `rich` is installed.
        keep_values: Whether the list that is returned has the graphs' values; `on_result` gets them always.
            False for batches whose final states do not fit into memory.
        lookahead: >= 1; how many inputs may be started that were not admitted yet, or ended and are waiting
            for `on_result`. Runs cost memory from their start on, so a batch of any size costs what the
            window and these need; still the window always finds somebody to let in. An agent that works long
            before its first model call may need more.

    Raises:
        InvalidValueError: an argument is out of range, or ids are missing, repeated or given twice.
        ControllerClosedError: the controller was stopped; what is left was cancelled.
    """
    check_range("lookahead", lookahead, 1)
    all_inputs = list(inputs)
    names = checked_names(ids, len(all_inputs))
    _check_config(config)
    if resume:
        _check_resumable(graph, ids)
    with bar_on_stderr(len(names), shown=progress) as bar:
        batch = Batch(gated(graph, controller), config, all_inputs, resume)
        keep = _whole if keep_values else without_value
        schedule = Schedule(controller, lookahead=lookahead, bar=bar, on_result=on_result, keep=keep)
        return await schedule.run(names, batch.result)


def run_batch_blocking(
    graph: Runnable[Any, Output],
    inputs: Iterable[Any],
    controller: Controller,
    *,
    on_result: Callable[[BatchResult[Output]], object] | None = None,
    config: RunnableConfig | None = None,
    ids: Iterable[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    keep_values: bool = True,
    lookahead: int = 64,
) -> list[BatchResult[Output]]:
    """`run_batch` for scripts without an event loop. It runs the controller too, unless that runs already.

    Raises:
        WouldDeadlockError: this thread runs an event loop: use `await run_batch(...)`.
        InvalidValueError, ControllerClosedError: as `run_batch`.
    """
    if on_loop_thread():
        raise would_deadlock()

    async def main() -> list[BatchResult[Output]]:
        # A synchronous node waits on a thread of the pool, so everyone who may have started needs one.
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="concur-batch")
        asyncio.get_running_loop().set_default_executor(pool)
        async with contextlib.nullcontext() if controller.running else controller:
            return await run_batch(
                graph,
                inputs,
                controller,
                on_result=on_result,
                config=config,
                ids=ids,
                resume=resume,
                progress=progress,
                keep_values=keep_values,
                lookahead=lookahead,
            )

    return asyncio.run(main())


def _whole(result: BatchResult[Output]) -> BatchResult[Output]:
    return result


def _check_config(config: RunnableConfig | None) -> None:
    """One id for all runs would make them one thread or one agent."""
    given: RunnableConfig = config or {}
    fixed = [
        name
        for name, present in (
            ("run_id", given.get("run_id") is not None),
            ("configurable.thread_id", "thread_id" in given.get("configurable", {})),
            (f"metadata.{AGENT_ID}", AGENT_ID in given.get("metadata", {})),
        )
        if present
    ]
    if fixed:
        msg = (
            f"config names one {' and one '.join(fixed)} for all inputs: leave it out, and give `ids` instead"
        )
        raise InvalidValueError(msg)


def _check_resumable(graph: Runnable[Any, Any], ids: object) -> None:
    if ids is None:
        msg = "resume=True without ids: give the ids that the batch had before, they name its threads"
        raise InvalidValueError(msg)
    inner = pregel_of(graph)
    if inner is None or not isinstance(inner.checkpointer, BaseCheckpointSaver):
        msg = (
            "resume=True, but the graph has no checkpointer that could know what was done: compile it with "
            "one, builder.compile(checkpointer=...)"
        )
        raise InvalidValueError(msg)
