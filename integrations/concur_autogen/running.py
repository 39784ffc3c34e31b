"""One trajectory from its task to its result: scope, cancellation and time-out in one place.

AutoGen needs the help. A team that is cancelled waits until its runtime is idle, and its runtime waits for
us; a token that is cancelled while a tool runs is not heard at all (autogen-agentchat 0.7.5). So whoever ends
a run early, the same happens: the trajectory is finished, which frees its place and refuses what is left of
the team; the token is cancelled; and if AutoGen has not come back after a grace, its task is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from autogen_agentchat.base import TaskResult, TaskRunner
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
    UserInputRequestedEvent,
)
from autogen_core import CancellationToken, FunctionCall

from concur_agents import Controller, InvalidValueError, Outcome
from concur_agents.errors import check_range
from concur_agents.scopes import AgentScope, current_scope
from concur_autogen.tool_calls import ToolCalls
from concur_autogen.trajectories import trajectories_of

_AFTER_CANCEL_SECONDS = 1.0
"""For what is left to do when a task is cancelled."""

_WRAPPED = "RuntimeError: "
"""How the text begins that a team makes of a RuntimeError."""

Item = BaseAgentEvent | BaseChatMessage | TaskResult
TaskInput = str | BaseChatMessage | Sequence[BaseChatMessage] | None


async def run(
    controller: Controller,
    runner: TaskRunner,
    *,
    task: TaskInput = None,
    agent_id: str | None = None,
    priority: int = 0,
    timeout_seconds: float | None = None,
    cancellation_token: CancellationToken | None = None,
    grace_seconds: float = 5.0,
) -> TaskResult:
    """Run an agent or a team as one trajectory, and give its place back however that ends.

    Inside another trajectory (in a tool, say) it is a part of that one and shares its place.

    Args:
        controller: Whose clients the agents use.
        runner: An agent or a team.
        task: As for `runner.run`; None continues where it stopped.
        agent_id: Name of the trajectory; default: a fresh one.
        priority: Higher goes first among those who wait.
        timeout_seconds: > 0; longest time for everything, waiting for a place included. None: no limit.
        cancellation_token: Ends the run early with `CancelledError`.
        grace_seconds: >= 0; how long AutoGen may take to come back after that before its task is cancelled.

    Raises:
        TimeoutError: `timeout_seconds` are over.
        DuplicateAgentError: that trajectory is running already.
        AgentFinishedError, ControllerClosedError: it could not be admitted any more.
        Exception: what the agent or team raises; an error of the model client as its own type, also where a
            team would wrap it in a `RuntimeError`.
    """
    running = _Running(controller, runner, task, agent_id, priority, cancellation_token, grace_seconds)
    results: list[TaskResult] = []

    def keep(item: Item) -> None:
        if isinstance(item, TaskResult):
            results.append(item)

    await running.to_its_end(keep, timeout_seconds)
    if not results:
        msg = f"{type(runner).__name__}.run_stream ended without a TaskResult"
        raise RuntimeError(msg)
    return results[-1]


async def run_stream(
    controller: Controller,
    runner: TaskRunner,
    *,
    task: TaskInput = None,
    agent_id: str | None = None,
    priority: int = 0,
    timeout_seconds: float | None = None,
    cancellation_token: CancellationToken | None = None,
    grace_seconds: float = 5.0,
) -> AsyncGenerator[Item, None]:
    """As `run`, message by message, the `TaskResult` last.

    The run goes on while the reader is slow, so that a stalled reader holds nobody up; a reader that closes
    or drops the stream ends the run.
    """
    running = _Running(controller, runner, task, agent_id, priority, cancellation_token, grace_seconds)
    items: asyncio.Queue[Item | None] = asyncio.Queue()

    async def produce() -> None:
        try:
            await running.to_its_end(items.put_nowait, timeout_seconds)
        finally:
            items.put_nowait(None)

    # A task of its own: no context variable may change hands across a `yield`.
    producer = asyncio.create_task(produce(), name=f"concur-run-{agent_id or 'unnamed'}")
    try:
        while (item := await items.get()) is not None:
            yield item
        await producer
    finally:
        if not producer.done():
            producer.cancel()
            await asyncio.wait([producer])
        if not producer.cancelled():
            producer.exception()  # seen: it was raised above, or nobody is left to hear it


class _Running:
    """One run."""

    def __init__(
        self,
        controller: Controller,
        runner: TaskRunner,
        task: TaskInput,
        agent_id: str | None,
        priority: int,
        token: CancellationToken | None,
        grace_seconds: float,
    ) -> None:
        if not callable(getattr(runner, "run_stream", None)):
            msg = f"runner={runner!r} is not usable: expected an AutoGen agent or team (with run_stream)"
            raise InvalidValueError(msg)
        check_range("grace_seconds", grace_seconds, 0)
        self._controller = controller
        self._runner = runner
        self._task = task
        self._options: dict[str, Any] = {"agent_id": agent_id, "priority": priority}
        self._grace = grace_seconds
        self._outer_token = token
        self._token = CancellationToken()
        self._scope: AgentScope | None = None
        self._ended_early = False
        self._tool_calls = ToolCalls()
        """Where no client knows of the trajectory: all its calls go by another name."""

    async def to_its_end(self, emit: Callable[[Item], None], timeout_seconds: float | None) -> None:
        """Run it; every item goes to `emit`. Errors as `run`."""
        if timeout_seconds is not None:
            check_range("timeout_seconds", timeout_seconds, 0, open_low=True)
        loop = asyncio.get_running_loop()
        cancelled: asyncio.Future[None] = loop.create_future()
        if self._outer_token is not None:
            if self._outer_token.is_cancelled():
                raise asyncio.CancelledError
            self._outer_token.add_callback(lambda: _tell(loop, cancelled))
        work = asyncio.create_task(self._work(emit))
        try:
            await asyncio.wait(
                [work, cancelled], timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            # Also when this task is cancelled: nothing of the run may outlive it.
            if not work.done():
                await self._end_early(work)
        if self._ended_early:
            if cancelled.done():
                raise asyncio.CancelledError
            msg = f"{self._name} was not done after {timeout_seconds:g} s (waiting for a place included)"
            raise TimeoutError(msg)
        work.result()

    @property
    def _name(self) -> str:
        return f"agent_id={self._scope.agent_id!r}" if self._scope else "the run"

    async def _work(self, emit: Callable[[Item], None]) -> None:
        outer = current_scope(self._controller)
        parent = outer.agent_id if outer is not None and not outer.over else None
        async with self._controller.agent(parent=parent, **self._options) as scope:
            self._scope = scope
            stream = self._runner.run_stream(task=self._task, cancellation_token=self._token)
            try:
                async with contextlib.aclosing(stream):
                    async for item in stream:
                        self._see(item, scope)
                        emit(item)
            except RuntimeError as error:
                cause = self._cause_of(error, scope.agent_id)
                if cause is None:
                    raise
                raise cause from error

    def _see(self, item: Item, scope: AgentScope) -> None:
        """What a message says about the boundary that the trajectory is at."""
        controller, agent_id = self._controller, scope.agent_id
        if isinstance(item, UserInputRequestedEvent) and not scope.over:
            controller.give_back(agent_id)
        elif isinstance(item, ToolCallRequestEvent | ToolCallExecutionEvent):
            trajectory = trajectories_of(controller).get(agent_id)
            calls = trajectory.tool_calls if trajectory is not None else self._tool_calls
            now = controller.gate.now()
            for part in item.content:
                if isinstance(part, FunctionCall):
                    if calls.asked(part.id, now):
                        controller.tool_started(agent_id, part.name)
                elif (began := calls.answered(part.call_id)) is not None:
                    controller.tool_ended(agent_id, part.name, now - began, failed=bool(part.is_error))

    def _cause_of(self, error: RuntimeError, agent_id: str) -> Exception | None:
        """The model client's error that a team has turned into text."""
        trajectory = trajectories_of(self._controller).get(agent_id)
        cause = trajectory.error if trajectory is not None else None
        if cause is None or cause is error:
            return None
        text = str(error)  # of a team in a team it is wrapped once more
        while text.startswith(_WRAPPED) and not text.startswith(f"{type(cause).__name__}:"):
            text = text.removeprefix(_WRAPPED)
        return cause if text.startswith(f"{type(cause).__name__}:") else None

    async def _end_early(self, work: asyncio.Task[None]) -> None:
        """End the trajectory now, and AutoGen's part of it as soon as that lets us."""
        self._ended_early = True
        turns: list[asyncio.Task[Any]] = []
        if self._scope is not None:
            trajectory = trajectories_of(self._controller).get(self._scope.agent_id)
            turns = list(trajectory.tasks) if trajectory is not None else []
            self._scope.finish(Outcome.CANCELLED)
        self._token.cancel()
        cancelled = await _settled(work, self._grace)
        # First the turns that have not heard the token, each in a task of the runtime's; then whatever waits
        # for them; and once more, since AutoGen waits for its runtime even then.
        for tasks in (turns, [work], [work]):
            if not work.done():
                for task in tasks:
                    task.cancel()
                cancelled |= await _settled(work, _AFTER_CANCEL_SECONDS)
        if work.done() and not work.cancelled():
            work.exception()  # seen
        if cancelled:
            raise asyncio.CancelledError


async def _settled(work: asyncio.Task[None], seconds: float) -> bool:
    """Wait for `work` for so long; whether this task was cancelled meanwhile, which does not end the wait."""
    deadline, cancelled = asyncio.get_running_loop().time() + seconds, False
    while not work.done() and (left := deadline - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.wait([work], timeout=left)
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


def _tell(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[Any]) -> None:
    """Called under the token's lock, on any thread."""

    def tell() -> None:
        if not waiting.done():
            waiting.set_result(None)

    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(tell)
