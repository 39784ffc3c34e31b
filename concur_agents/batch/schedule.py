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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from concur_agents.batch.bar import Bar
from concur_agents.controller import Controller
from concur_agents.errors import ControllerClosedError
from concur_agents.events import Admitted, Event


class Ended(Protocol):
    """How one input ended."""

    @property
    def ok(self) -> bool:
        """Whether it did not fail."""
        ...


Result = TypeVar("Result", bound=Ended)
Value = TypeVar("Value")


@dataclass(eq=False, slots=True)
class Started:
    """One input that has been started. `waited` is in seconds, for a place, all its steps together."""

    index: int
    id: str
    admitted: bool = False
    waited: float = 0.0


class Schedule(Generic[Result]):
    """One call of a batch runner.

    Args:
        controller: Who admits.
        lookahead: >= 1; see the module.
        bar: Shows how far it is.
        on_result: Called, and awaited if it is a coroutine function, with each result as it comes, one at a
            time; if it raises, the batch is cancelled and raises that.
        keep: What to keep of a delivered result for the list at the end.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        lookahead: int,
        bar: Bar,
        on_result: Callable[[Result], object] | None = None,
        keep: Callable[[Result], Result] = lambda result: result,
    ) -> None:
        self._controller = controller
        self._on_result = on_result
        self._keep = keep
        self._lookahead = lookahead
        self._bar = bar
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Started] = {}
        self._ahead = 0
        """Runs that were not admitted yet, or ended and were not delivered yet."""
        self._room = asyncio.Event()
        self._delivery = asyncio.Lock()
        self._results: list[Result | None] = []

    async def run(self, ids: Sequence[str], work: Callable[[Started], Awaitable[Result]]) -> list[Result]:
        """Run `work` for each of `ids`, which are the agents' on the controller; results in their order.

        `work` turns failures into results; what it raises ends the batch.
        """
        self._results = [None] * len(ids)
        unsubscribe = self._controller.subscribe(self._see)
        try:
            async with asyncio.TaskGroup() as group:
                for index, name in enumerate(ids):
                    while self._ahead >= self._lookahead:
                        self._room.clear()
                        await self._room.wait()
                    run = self._runs[name] = Started(index, name)
                    self._ahead += 1
                    group.create_task(self._one(run, work), name=f"batch {name}")
        except BaseExceptionGroup as errors:
            # One at a time is delivered, and a controller stops once: the first says it all.
            raise errors.exceptions[0] from None
        finally:
            unsubscribe()
        return [result for result in self._results if result is not None]

    async def _one(self, run: Started, work: Callable[[Started], Awaitable[Result]]) -> None:
        result = await work(run)
        if run.admitted:
            self._ahead += 1
        await self._deliver(result)
        self._results[run.index] = self._keep(result)
        del self._runs[run.id]
        self._make_room()
        self._bar.ended(failed=not result.ok, was_in=run.admitted)

    async def _deliver(self, result: Result) -> None:
        """Call `on_result`, unless it has raised: then the batch is about to be cancelled."""
        async with self._delivery:
            on_result, self._on_result = self._on_result, None
            if on_result is None:
                return
            answer = on_result(result)
            if inspect.isawaitable(answer):
                await answer
            self._on_result = on_result

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


async def outcome_of(work: Awaitable[Value]) -> tuple[Value | None, BaseException | None]:
    """The value of `work`, or why it failed. A stopped controller and the batch's own cancellation pass."""
    try:
        return await work, None
    except ControllerClosedError:
        raise
    except asyncio.CancelledError as cancelled:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return None, cancelled  # of something inside, not of the batch
    except Exception as failed:
        return None, failed
