"""The engine in real time: one asyncio task iterates, sleeps for as long as the iteration takes, and tells.

Belongs to one event loop. Engine time runs `speed` times as fast as the wall clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from concur_agents.errors import check_range
from concur_agents.simulator.engine import Engine, EngineStats, Finished, Iteration, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from concur_agents.simulator.costs import Profile

_LEAP = 0.005  # wall seconds: decode iterations within it are one wake-up; arrivals wait no longer than this
_PATIENCE = 0.0005  # wall seconds: shorter sleeps cost more than they wait


@dataclass(eq=False, slots=True)
class Generation:
    """One request in flight. `tokens` generated so far; `finished` or `lost` once it has ended."""

    request: Request
    stream: bool
    tokens: int = 0
    finished: Finished | None = None
    lost: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finished is not None or self.lost

    async def progress(self) -> int:
        """Wait for more tokens (not streaming: for all of them) or the end; returns how many there are."""
        await self._changed.wait()
        self._changed.clear()
        return self.tokens

    def _tell(self, tokens: int, finished: Finished | None = None, *, lost: bool = False) -> None:
        if tokens > self.tokens or finished or lost:
            self.tokens, self.finished, self.lost = tokens, finished, lost
            self._changed.set()


class RealtimeEngine:
    """An `Engine` driven by the running event loop.

    Args:
        profile: Of the engine.
        speed: Engine seconds per wall-clock second, > 0.
    """

    def __init__(self, profile: Profile, *, speed: float = 1.0) -> None:
        check_range("speed", speed, 0, open_low=True)
        self.profile = profile
        self.speed = speed
        self.engine = Engine(profile)
        self.stats: EngineStats = self.engine.stats
        """What a scrape shows: the state at the last iteration's end."""
        self.on_iteration: Callable[[Iteration], None] | None = None
        """Sees each iteration at its end."""
        self._generations: dict[str, Generation] = {}
        self._streams: dict[str, Generation] = {}
        self._wake = asyncio.Event()

    def submit(self, request: Request, *, stream: bool = False) -> Generation:
        """Queue a request; raises `InvalidValueError` as `Engine.submit` does."""
        self.engine.submit(request, self._now())
        generation = Generation(request, stream)
        self._generations[request.request_id] = generation
        if stream:
            self._streams[request.request_id] = generation
        self._wake.set()
        return generation

    def abort(self, request_id: str) -> None:
        """Drop a request. Idempotent; does nothing once it has ended."""
        generation = self._generations.pop(request_id, None)
        self._streams.pop(request_id, None)
        if generation is not None:
            self.engine.abort(request_id)
            generation._tell(generation.tokens, lost=True)
            self._wake.set()

    def restart(self) -> None:
        """Crash and come back empty: requests in flight are lost, counters start from zero."""
        self.engine = Engine(self.profile, epoch=self.engine.epoch + 1)
        self.stats = self.engine.stats
        lost = list(self._generations.values())
        self._generations.clear()
        self._streams.clear()
        for generation in lost:
            generation._tell(generation.tokens, lost=True)

    def reset_prefix_cache(self) -> bool:
        """See `Engine.reset_prefix_cache`."""
        return self.engine.reset_prefix_cache()

    async def run(self) -> None:
        """Iterate until cancelled."""
        start: float | None = None
        while True:
            engine, now = self.engine, self._now()
            # After a late wake-up the next iteration starts when the last one ended: lateness never adds up.
            start = now if start is None else max(start, now - 0.2 * self.speed)
            iteration = engine.step(start, start + _LEAP * self.speed)
            if iteration is None:
                self.stats = engine.stats
                self._wake.clear()
                await self._wake.wait()
                start = None
                continue
            await self._sleep_until(iteration.ended_at)
            start = iteration.ended_at
            if engine is self.engine:
                self._deliver(engine, iteration)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() * self.speed

    async def _sleep_until(self, moment: float) -> None:
        delay = (moment - self._now()) / self.speed
        await asyncio.sleep(delay if delay > _PATIENCE else 0)

    def _deliver(self, engine: Engine, iteration: Iteration) -> None:
        self.stats = engine.stats
        if self.on_iteration is not None:
            self.on_iteration(iteration)
        for finished in iteration.finished:
            request_id = finished.request.request_id
            self._streams.pop(request_id, None)
            generation = self._generations.pop(request_id, None)
            if generation is not None:
                generation._tell(finished.request.max_tokens, finished)
        for request_id, generation in self._streams.items():
            generation._tell(engine.generated(request_id))
