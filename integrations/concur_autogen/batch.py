"""A batch of tasks, each with a team of its own: what a batch user writes by hand ten times.

Failures are collected, results come as they end, a bar shows how far it is, and a file lets a half-done batch
go on where it stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autogen_agentchat.base import TaskResult, TaskRunner
from autogen_agentchat.messages import BaseChatMessage
from autogen_core.models import RequestUsage

from concur_agents import Controller, InvalidValueError
from concur_agents.batch import Schedule, Started, bar_on_stderr, checked_names
from concur_agents.batch.schedule import outcome_of
from concur_agents.errors import check_range
from concur_agents.events import Event, ToolEnded
from concur_autogen.batch_file import COMPLETED, FAILED, BatchFile, MessageType
from concur_autogen.running import TaskInput, run

MakeRunner = Callable[..., TaskRunner]
Tasks = Mapping[str, TaskInput] | Iterable[TaskInput]


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How one task ended."""

    index: int
    """Its position among the tasks."""
    id: str
    """Its agent's id on the controller."""
    result: TaskResult | None = None
    """Messages and stop reason; None if it failed, or with `keep_results=False`."""
    error: BaseException | None = None
    """Why it failed."""
    usage: RequestUsage = field(default_factory=lambda: RequestUsage(0, 0))
    """Tokens of all its messages."""
    waited_seconds: float = 0.0
    """How long it waited for a place in the window, all its steps together."""
    seconds: float = 0.0
    """From its start to its end, waiting included."""
    tool_seconds: float = 0.0
    """Time of its tools, added up."""
    restored: bool = False
    """The file had it: nothing was run."""

    @property
    def ok(self) -> bool:
        """Whether it did not fail."""
        return self.error is None


async def run_batch(
    make_runner: MakeRunner,
    tasks: Tasks,
    controller: Controller,
    *,
    on_result: Callable[[BatchResult], object] | None = None,
    output: str | Path | None = None,
    custom_message_types: Sequence[MessageType] = (),
    timeout_seconds: float | None = None,
    progress: bool = True,
    keep_results: bool = True,
    lookahead: int = 64,
) -> list[BatchResult]:
    """Run every task as one agent under `controller`, and return how each ended, in the order of `tasks`.

        results = await run_batch(make_team, tasks, controller, output="results.jsonl")
        failed = [result for result in results if not result.ok]

    A task that fails is a result with an `error`; the others go on. Cancelling the call (Ctrl-C, a time-out)
    cancels all runs, gives all places back, and raises when the last one has ended.

    With `output`, each result is a line of that file as soon as it is there. The same call again goes on
    where it stopped: what is completed in the file is not run, what failed or is missing is.

    Args:
        make_runner: Makes a fresh agent or team for each task: called with the task if it takes an argument.
            Its model client is a `ConcurChatCompletionClient` of this controller.
        tasks: As for `run`; a mapping names them, and the names are the agents' ids.
        controller: Who admits; should be running.
        on_result: Called, and awaited if it is a coroutine function, with each result as it comes, one at a
            time. If it raises, the batch is cancelled and raises that.
        output: A file of JSON lines (`id`, `outcome`, `stop_reason`, `messages`, `usage`, `seconds`, ...).
            Ids have to be the same each time: give a mapping, or tasks in the same order.
        custom_message_types: Types of messages that the file may hold and AutoGen cannot know, such as
            `StructuredMessage[Answer]` of agents with an `output_content_type`.
        timeout_seconds: > 0; of each task, waiting for a place included. None: no limit.
        progress: Show a bar on stderr, if that is a terminal and `rich` is installed.
        keep_results: Whether the list that is returned has the messages; `on_result` and the file get them
            always. False for batches that do not fit into memory.
        lookahead: >= 1; how many tasks may be started that were not admitted yet.

    Raises:
        InvalidValueError: an argument is out of range, or the file is of no use.
        ControllerClosedError: the controller was stopped; what is left was cancelled.
    """
    check_range("lookahead", lookahead, 1)
    if timeout_seconds is not None:
        check_range("timeout_seconds", timeout_seconds, 0, open_low=True)
    inputs, names = _named(tasks, fixed=output is not None)
    file = None if output is None else BatchFile(Path(output), custom_message_types)
    batch = _Batch(make_runner, inputs, controller, timeout_seconds, file)
    with bar_on_stderr(len(names), shown=progress) as bar:
        keep = _whole if keep_results else _without_result
        schedule: Schedule[BatchResult] = Schedule(
            controller, lookahead=lookahead, bar=bar, on_result=on_result, keep=keep
        )
        unsubscribe = controller.subscribe(batch.see)
        try:
            return await schedule.run(names, batch.one)
        finally:
            unsubscribe()


class _Batch:
    """One call of `run_batch`."""

    def __init__(
        self,
        make_runner: MakeRunner,
        inputs: Sequence[TaskInput],
        controller: Controller,
        timeout_seconds: float | None,
        file: BatchFile | None,
    ) -> None:
        self._make = make_runner
        self._takes_task = _takes_an_argument(make_runner)
        self._inputs = inputs
        self._controller = controller
        self._timeout = timeout_seconds
        self._file = file
        self._done = file.completed() if file is not None else {}
        self._tools: dict[str, float] = {}

    async def one(self, started: Started) -> BatchResult:
        """Run one task to its end, unless the file has it."""
        done = self._done.pop(started.id, None)
        if done is not None:
            return BatchResult(started.index, started.id, done, usage=_usage(done), restored=True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._tools[started.id] = 0.0
        result, error = await outcome_of(self._run(started))
        ended = BatchResult(
            index=started.index,
            id=started.id,
            result=result,
            error=error,
            usage=_usage(result),
            waited_seconds=started.waited,
            seconds=loop.time() - began,
            tool_seconds=self._tools.pop(started.id),
        )
        if self._file is not None:
            self._file.write(_record(ended))
        return ended

    async def _run(self, started: Started) -> TaskResult:
        task = self._inputs[started.index]
        runner = self._make(task) if self._takes_task else self._make()
        return await run(
            self._controller, runner, task=task, agent_id=started.id, timeout_seconds=self._timeout
        )

    def see(self, event: Event) -> None:
        """A subscriber, on any thread."""
        if type(event) is ToolEnded and event.agent_id in self._tools:
            self._tools[event.agent_id] += event.seconds


def _named(tasks: Tasks, *, fixed: bool) -> tuple[list[TaskInput], list[str]]:
    """The tasks and their ids; with `fixed`, ids are the same every time."""
    if isinstance(tasks, str | BaseChatMessage):
        msg = f"tasks={tasks!r} is one task: expected several, or a mapping of ids to tasks"
        raise InvalidValueError(msg)
    if isinstance(tasks, Mapping):
        return list(tasks.values()), checked_names(tasks, len(tasks))
    inputs = list(tasks)
    ids = [f"task-{index:05d}" for index in range(len(inputs))] if fixed else None
    return inputs, checked_names(ids, len(inputs))


def _takes_an_argument(make_runner: MakeRunner) -> bool:
    try:
        inspect.signature(make_runner).bind(None)
    except TypeError:
        return False
    return True


def _usage(result: TaskResult | None) -> RequestUsage:
    used = [message.models_usage for message in result.messages if message.models_usage] if result else []
    return RequestUsage(sum(u.prompt_tokens for u in used), sum(u.completion_tokens for u in used))


def _record(ended: BatchResult) -> dict[str, Any]:
    """A line of the file."""
    result = ended.result
    return {
        "id": ended.id,
        "outcome": COMPLETED if ended.ok else FAILED,
        "stop_reason": result.stop_reason if result else None,
        "error": None
        if ended.error is None
        else "".join(traceback.format_exception_only(ended.error)).strip(),
        "usage": {
            "prompt_tokens": ended.usage.prompt_tokens,
            "completion_tokens": ended.usage.completion_tokens,
        },
        "seconds": round(ended.seconds, 3),
        "waited_seconds": round(ended.waited_seconds, 3),
        "tool_seconds": round(ended.tool_seconds, 3),
        "messages": [message.dump() for message in result.messages] if result else [],
    }


def _whole(result: BatchResult) -> BatchResult:
    return result


def _without_result(result: BatchResult) -> BatchResult:
    if result.error is not None:
        traceback.clear_frames(result.error.__traceback__)  # they hold the team's state
    return replace(result, result=None)
