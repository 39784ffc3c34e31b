"""Virtual time: a clock that jumps from event to event, and the engine running on it.

    clock = VirtualClock()
    engine = VirtualEngine(Engine(profile), clock)
    clock.call_at(0.0, lambda: engine.generate(request, on_done))
    clock.run()

Everything is single-threaded and deterministic. Callbacks at the same moment run in the order in which they
were scheduled.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import TYPE_CHECKING

from concur_agents.errors import check_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from concur_agents.simulator.engine import Engine, EngineStats, Finished, Iteration, Request


class VirtualClock:
    """A heap of callbacks. `now` is in seconds and never goes back."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def call_at(self, when: float, callback: Callable[[], object]) -> None:
        """Run `callback` at `when`; at once, in its turn, if that is past."""
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), callback))

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Run `callback` after `delay` >= 0 seconds."""
        check_range("delay", delay, 0)
        self.call_at(self.now + delay, callback)

    @property
    def next_at(self) -> float:
        """When the next callback is due; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def run(self, until: float = math.inf) -> None:
        """Run callbacks in order of time up to and including `until`, or until none is left."""
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, callback = heapq.heappop(events)
            callback()
        if until != math.inf:
            self.now = max(self.now, until)


class VirtualEngine:
    """An engine that iterates by itself on a virtual clock for as long as it has requests.

    `on_iteration`, if given, sees every iteration when it ends.
    """

    def __init__(
        self,
        engine: Engine,
        clock: VirtualClock,
        on_iteration: Callable[[Iteration], None] | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.stats: EngineStats = engine.stats
        """What a scrape of /metrics would show now: the state at the last iteration's end."""
        self._on_iteration = on_iteration
        self._on_done: dict[str, Callable[[Finished], None]] = {}
        self._busy = False

    def generate(self, request: Request, on_done: Callable[[Finished], None]) -> None:
        """Submit now; `on_done` is called when the last token is out, not if it is aborted.

        Raises:
            InvalidValueError: See `Engine.submit`.
        """
        self.engine.submit(request, self.clock.now)
        self._on_done[request.request_id] = on_done
        if not self._busy:
            self._busy = True
            # Not at once: requests submitted at this very moment share the first iteration.
            self.clock.call_at(self.clock.now, self._turn)

    def abort(self, request_id: str) -> bool:
        """Drop a request; its `on_done` is never called. False if it has already ended."""
        known = self._on_done.pop(request_id, None) is not None
        self.engine.abort(request_id)
        return known

    def restart(self, engine: Engine) -> tuple[str, ...]:
        """Put a fresh engine in the place of this one, as after a crash.

        Returns the ids of the requests lost; their `on_done` is never called.
        """
        lost = tuple(self._on_done)
        self._on_done.clear()
        self.engine, self.stats, self._busy = engine, engine.stats, False
        return lost

    def _turn(self) -> None:
        engine = self.engine
        iteration = engine.step(self.clock.now, self.clock.next_at)
        if iteration is None:
            self._busy = False
            self.stats = engine.stats
            return
        self.clock.call_at(iteration.ended_at, lambda: self._deliver(engine, iteration))

    def _deliver(self, engine: Engine, iteration: Iteration) -> None:
        if engine is not self.engine:
            return
        self.stats = engine.stats
        if self._on_iteration is not None:
            self._on_iteration(iteration)
        for finished in iteration.finished:
            on_done = self._on_done.pop(finished.request.request_id, None)
            if on_done is not None:
                on_done(finished)
        self._turn()
