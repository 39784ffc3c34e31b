"""One input of a batch: how it is run, and how it ended."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langgraph.pregel import Pregel
from langgraph.types import Command

from concur_agents.batch.schedule import Started, outcome_of
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


class Batch(Generic[Output]):
    """One call of `run_batch`."""

    def __init__(
        self, graph: Runnable[Any, Output], config: RunnableConfig | None, inputs: Sequence[Any], resume: bool
    ) -> None:
        self._graph = graph
        self._config = config
        self._inputs = inputs
        self._threads = pregel_of(graph) if resume else None

    async def result(self, run: Started) -> BatchResult[Output]:
        """Run one input to its end."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        found, error = await outcome_of(self._value(run.id, self._inputs[run.index]))
        value, restored = found if found is not None else (None, False)
        return BatchResult(
            index=run.index,
            id=run.id,
            value=value,
            error=error,
            waited_seconds=run.waited,
            seconds=loop.time() - started,
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


def without_value(result: BatchResult[Output]) -> BatchResult[Output]:
    """What is kept of a result when values are not."""
    if result.error is not None:
        traceback.clear_frames(result.error.__traceback__)  # they hold the graph's state
    return replace(result, value=None)


def pregel_of(graph: Runnable[Any, Any]) -> Pregel[Any, Any, Any, Any] | None:
    """The graph inside the bindings that `with_config` and `bind` put round a Runnable."""
    while isinstance(graph, RunnableBindingBase):
        graph = graph.bound
    return graph if isinstance(graph, Pregel) else None
