"""One batch while it runs: when the next input is started, and what becomes of those that are.

Who may run is the controller's decision. In here is decided only when an input is *started*: as soon as fewer
than `lookahead` runs stand before their first admission, or after their end before their delivery. So the
window always finds somebody to let in, and ten thousand inputs cost the state of those in the window, not of
ten thousand runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel
from langgraph.types import Command

from concur_agents.controller import Controller
from concur_agents.errors import ControllerClosedError
from concur_agents.events import Admitted, Event
from concur_langgraph.batch_bar import Bar
from concur_langgraph.runs import AGENT_ID

Output = TypeVar("Output")
OutputCo = TypeVar("OutputCo", covariant=True)

_INTERRUPT = "__interrupt__"
"""Key under which LangGraph returns what a run is interrupted for."""


@dataclass(frozen=True, slots=True)
class BatchResult(Generic[OutputCo]):
    """How one input ended."""

    index: int
    """Its position among the inputs."""
    id: str
    """Its agent's id on the controller, and its thread's on the checkpointer."""
    value: OutputCo | None = None
    """What the graph returned; None if it failed, or with `keep_values=False`."""
    error: BaseException | None = None
    """Why it failed."""
    waited_seconds: float = 0.0
    """How long it waited for a place in the window, all its steps together."""
    seconds: float = 0.0
    """From its start to its end, waiting included."""
    interrupted: bool = False
    """The graph stopped to ask a human; `value["__interrupt__"]` says what."""
    restored: bool = False
    """Its thread had ended before this batch: the value is the checkpoint's, nothing was run."""

    @property
    def ok(self) -> bool:
        """Whether it did not fail."""
        return self.error is None


@dataclass(eq=False, slots=True)
class _Run:
    """One input that has been started."""

    index: int
    id: str
    admitted: bool = False
    waited: float = 0.0


class Batch(Generic[Output]):
    """One call of `run_batch`."""

    def __init__(
        self,
        graph: Runnable[Any, Output],
        controller: Controller,
        on_result: Callable[[BatchResult[Output]], object] | None,
        config: RunnableConfig | None,
        resume: bool,
        keep_values: bool,
        lookahead: int,
        bar: Bar,
    ) -> None:
        self._graph = graph
        self._controller = controller
        self._on_result = on_result
        self._config = config
        self._threads = pregel_of(graph) if resume else None
        self._keep_values = keep_values
        self._lookahead = lookahead
        self._bar = bar
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, _Run] = {}
        self._ahead = 0
        """Runs that were not admitted yet, or ended and were not delivered yet."""
        self._room = asyncio.Event()
        self._delivery = asyncio.Lock()
        self._results: list[BatchResult[Output] | None] = []

    async def run(self, inputs: Sequence[Any], ids: Sequence[str]) -> list[BatchResult[Output]]:
        """Run all inputs; arguments as `run_batch`, checked."""
        self._results = [None] * len(inputs)
        unsubscribe = self._controller.subscribe(self._see)
        try:
            async with asyncio.TaskGroup() as group:
                for index, name in enumerate(ids):
                    while self._ahead >= self._lookahead:
                        self._room.clear()
                        await self._room.wait()
                    run = self._runs[name] = _Run(index, name)
                    self._ahead += 1
                    group.create_task(self._one(run, inputs[index]), name=f"batch {name}")
        except BaseExceptionGroup as errors:
            # One at a time is delivered, and a controller stops once: the first says it all.
            raise errors.exceptions[0] from None
        finally:
            unsubscribe()
        return [result for result in self._results if result is not None]

    async def _one(self, run: _Run, given: Any) -> None:  # noqa: ANN401
        result = await self._result(run, given)
        if run.admitted:
            self._ahead += 1
        await self._deliver(result)
        self._results[run.index] = result if self._keep_values else _without_values(result)
        del self._runs[run.id]
        self._make_room()
        self._bar.ended(failed=not result.ok, was_in=run.admitted)

    async def _deliver(self, result: BatchResult[Output]) -> None:
        """Call `on_result`, unless it has raised: then the batch is about to be cancelled."""
        async with self._delivery:
            on_result, self._on_result = self._on_result, None
            if on_result is None:
                return
            answer = on_result(result)
            if inspect.isawaitable(answer):
                await answer
            self._on_result = on_result

    async def _result(self, run: _Run, given: Any) -> BatchResult[Output]:  # noqa: ANN401
        started = self._loop.time()
        value: Output | None = None
        error: BaseException | None = None
        restored = False
        try:
            value, restored = await self._value(run.id, given)
        except ControllerClosedError:
            raise
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            error = cancelled  # of something inside the graph, not of the batch
        except Exception as failed:
            error = failed
        return BatchResult(
            index=run.index,
            id=run.id,
            value=value,
            error=error,
            waited_seconds=run.waited,
            seconds=self._loop.time() - started,
            interrupted=isinstance(value, dict) and bool(value.get(_INTERRUPT)),
            restored=restored,
        )

    async def _value(self, name: str, given: Any) -> tuple[Output, bool]:  # noqa: ANN401
        """What the graph returns, and whether it had returned that before."""
        config = merge_configs(
            self._config, {"metadata": {AGENT_ID: name}, "configurable": {"thread_id": name}}
        )
        if self._threads is None:
            return await self._graph.ainvoke(given, config), False
        state = await self._threads.aget_state(config)
        if state.created_at is None:
            return await self._graph.ainvoke(given, config), False
        # Not `state.next`: it leaves out a task whose writes were saved before the process died. Without
        # any task the thread is at its end, where an input of None runs nothing and returns the value.
        restored = not state.tasks
        proceed = given if isinstance(given, Command) and not restored else None
        return await self._graph.ainvoke(proceed, config), restored

    def _see(self, event: Event) -> None:
        """A subscriber, on any thread."""
        if type(event) is not Admitted:
            return
        run = self._runs.get(event.agent_id)
        if run is None:
            return
        run.waited += event.waited
        if run.admitted:
            return
        run.admitted = True
        if asyncio._get_running_loop() is self._loop:
            self._admitted()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing to start any more
                self._loop.call_soon_threadsafe(self._admitted)

    def _admitted(self) -> None:
        self._make_room()
        self._bar.admitted()

    def _make_room(self) -> None:
        self._ahead -= 1
        self._room.set()


def _without_values(result: BatchResult[Output]) -> BatchResult[Output]:
    if result.error is not None:
        traceback.clear_frames(result.error.__traceback__)  # they hold the graph's state
    return replace(result, value=None)


def pregel_of(graph: Runnable[Any, Any]) -> Pregel[Any, Any, Any, Any] | None:
    """The graph inside the bindings that `with_config` and `bind` put round a Runnable."""
    while isinstance(graph, RunnableBindingBase):
        graph = graph.bound
    return graph if isinstance(graph, Pregel) else None
