"""What admission costs: one uncontended step beside a bare `anyio.CapacityLimiter`, and how it grows.

The population waits in the queue of a full window while one admitted agent enters and leaves steps, each of
which is granted at once. All variants are timed in turn, in the same process and event loop, again and
again; ratios are formed within each round, so that a slow moment of a shared machine hits both sides.

The limiter's `async with` gives way to the event loop once, by design; the controller's does not. So two
more figures are shown: the limiter without that (`acquire_nowait` and `release`), and the step with
`asyncio.sleep(0)` added.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import anyio
from rich import box
from rich.table import Table

from concur_agents.controller import Controller
from concur_agents.errors import check_range
from concur_agents.lifecycle import Usage
from concur_agents.policies import Static
from concur_agents.scopes import AgentScope

STEP_LIMIT = 3.0
GROWTH_LIMIT = 1.5

Loop = Callable[[int], Awaitable[None]]
"""Does its work so many times."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one operation in each round."""

    name: str
    microseconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round."""
        return min(self.microseconds)

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.microseconds)

    @property
    def spread(self) -> float:
        """Slowest less fastest round, relative to the median."""
        return (max(self.microseconds) - self.best) / self.median

    def over(self, other: Timing) -> float:
        """Median over the rounds of this one's time over the other's."""
        pairs = zip(self.microseconds, other.microseconds, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class GateResult:
    """All timings; `few` and `many` are the steps at the smallest and largest population."""

    limiter: Timing
    few: Timing
    many: Timing
    others: tuple[Timing, ...]
    populations: tuple[int, int]

    @property
    def step_over_capacity_limiter(self) -> float:
        """Step in a small population over the limiter."""
        return self.few.over(self.limiter)

    @property
    def growth(self) -> float:
        """Step in the large population over the same in the small one."""
        return self.many.over(self.few)

    @property
    def ok(self) -> bool:
        """Whether both are within their limits."""
        return self.step_over_capacity_limiter <= STEP_LIMIT and self.growth <= GROWTH_LIMIT

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Every variant."""
        return (self.limiter, self.few, self.many, *self.others)

    def as_json(self) -> dict[str, object]:
        """For `json.dump`."""
        return {
            "step_over_capacity_limiter": round(self.step_over_capacity_limiter, 4),
            "growth_10_to_100k": round(self.growth, 4),
            "populations": list(self.populations),
            "ok": self.ok,
            "timings": [
                {
                    "name": timing.name,
                    "min_us": round(timing.best, 3),
                    "median_us": round(timing.median, 3),
                    "spread": round(timing.spread, 3),
                }
                for timing in self.timings
            ],
        }


async def measure(
    *,
    populations: tuple[int, int] = (10, 100_000),
    rounds: int = 11,
    steps: int = 2000,
    on_round: Callable[[int], None] | None = None,
) -> GateResult:
    """Time everything.

    Args:
        populations: Agents waiting, small and large, each >= 1.
        rounds: How often every variant is timed, >= 1.
        steps: Operations in one timing, >= 1.
        on_round: Called after each round with its number.
    """
    check_range("populations[0]", populations[0], 1)
    check_range("populations[1]", populations[1], populations[0])
    check_range("rounds", rounds, 1)
    check_range("steps", steps, 1)
    async with _crowd(populations[0]) as few, _crowd(populations[1]) as many:
        limiter = anyio.CapacityLimiter(1)
        variants: dict[str, Loop] = {
            "anyio.CapacityLimiter": lambda n: _limiter(limiter, n),
            f"step, {populations[0]:,} agents wait": lambda n: _steps(few, n),
            f"step, {populations[1]:,} agents wait": lambda n: _steps(many, n),
            "limiter without its yield": lambda n: _nowait(limiter, n),
            "step with one yield": lambda n: _yielding(few, n),
            "step that records usage": lambda n: _recording(few, n),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds):
            gc.collect()  # it stays on while timing, as it is for a user, but each round starts clean
            for name, loop in variants.items():
                times[name].append(await _time(loop, steps))
            if on_round is not None:
                on_round(number + 1)
    limiter_timing, at_few, at_many, *others = (Timing(name, tuple(us)) for name, us in times.items())
    return GateResult(limiter_timing, at_few, at_many, tuple(others), populations)


async def _time(loop: Loop, steps: int) -> float:
    """Microseconds of one operation."""
    await loop(steps // 10)
    began = perf_counter()
    await loop(steps)
    return (perf_counter() - began) / steps * 1e6


@contextlib.asynccontextmanager
async def _crowd(population: int) -> AsyncIterator[AgentScope]:
    """An admitted agent in a full window, and `population` others that wait for their first step."""

    async def wait(controller: Controller, name: str) -> None:
        async with controller.agent(name) as agent, agent.step():
            msg = "a waiting agent was admitted into a full window"
            raise AssertionError(msg)

    async with Controller(policy=Static(1)) as controller, controller.agent("busy") as agent:
        async with agent.step():
            pass
        tasks = [asyncio.create_task(wait(controller, f"waits-{index}")) for index in range(population)]
        try:
            await asyncio.sleep(0)
            waiting = controller.snapshot().waiting
            if waiting != population:
                msg = f"{waiting} agents wait, expected {population}"
                raise AssertionError(msg)
            yield agent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _limiter(limiter: anyio.CapacityLimiter, times: int) -> None:
    for _ in range(times):
        async with limiter:
            pass


async def _nowait(limiter: anyio.CapacityLimiter, times: int) -> None:
    for _ in range(times):
        limiter.acquire_nowait()
        limiter.release()


async def _steps(agent: AgentScope, times: int) -> None:
    for _ in range(times):
        async with agent.step():
            pass


async def _yielding(agent: AgentScope, times: int) -> None:
    for _ in range(times):
        async with agent.step():
            await asyncio.sleep(0)


async def _recording(agent: AgentScope, times: int) -> None:
    usage = Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=900)
    for _ in range(times):
        async with agent.step() as step:
            step.record(usage)


def gate_table(result: GateResult) -> Table:
    """Timings and the two ratios."""
    table = Table(
        title="Cost of one uncontended step",
        caption=(
            f"step / limiter: {result.step_over_capacity_limiter:.2f} (at most {STEP_LIMIT:g});  growth from "
            f"{result.populations[0]:,} to {result.populations[1]:,} waiting agents: {result.growth:.2f} "
            f"(at most {GROWTH_LIMIT:g})"
        ),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("\nenter and leave", no_wrap=True)
    headings: Sequence[str] = ("min\nus", "median\nus", "\nspread", "over\nlimiter")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for timing in result.timings:
        table.add_row(
            timing.name,
            f"{timing.best:.2f}",
            f"{timing.median:.2f}",
            f"{timing.spread:.0%}",
            f"{timing.over(result.limiter):.2f}",
        )
    return table
