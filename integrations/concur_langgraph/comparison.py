"""A window that follows the engine against LangChain's own knob: `python -m concur_langgraph.comparison`.

The demo's agents on the embedded engine, run by `graph.abatch(inputs, {"max_concurrency": n})` for several n,
and by `gated(graph, controller).abatch(inputs)` without a limit under each policy. `max_concurrency` limits
whole trajectories, so the best n, found by trying them all, is the best static cap. Every arm has an engine
with an empty cache; all run in one process, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from rich import box
from rich.console import Console
from rich.table import Table

from concur_agents.bench.engines import Embedded, Server
from concur_agents.bench.library import workload_named
from concur_agents.bench.live import totals
from concur_agents.bench.machine import machine
from concur_agents.bench.workloads import Workload
from concur_agents.controller import Controller
from concur_agents.policies import Unlimited, parse
from concur_agents.simulator.profiles import profile_named
from concur_langgraph.bench_agents import LangGraphAgents
from concur_langgraph.handler import gated

CAPS = (2, 3, 4, 5, 6, 8, 10, 12, 24)
POLICIES = ("aimd", "headroom")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the batch. `seconds` are wall-clock, the engine being `speed` times as fast."""

    name: str
    seconds: float
    hit_rate: float | None
    prompt_tokens_computed: int | None


async def abatch(workload: Workload, server: Server, speed: float, n: int) -> None:
    """LangChain alone."""
    agents = LangGraphAgents(server.base_url, server.model, Controller(policy=Unlimited()), workload, speed)
    try:
        inputs, configs = _invocations(agents, workload)
        await agents.plain.abatch(inputs, [{**config, "max_concurrency": n} for config in configs])
    finally:
        await agents.close()


async def gated_abatch(workload: Workload, server: Server, speed: float, policy: str) -> None:
    """The same graph, gated; no limit but the controller's."""
    controller = Controller(server.telemetry, policy=parse(policy), interval_seconds=1 / speed)
    agents = LangGraphAgents(server.base_url, server.model, controller, workload, speed)
    try:
        inputs, configs = _invocations(agents, workload)
        async with controller:
            await gated(agents.plain, controller).abatch(inputs, configs)
    finally:
        await agents.close()


def _invocations(agents: LangGraphAgents, workload: Workload) -> tuple[list[Any], list[RunnableConfig]]:
    inputs, configs = zip(*map(agents.invocation, workload.trajectories(0)), strict=True)
    return list(inputs), list(configs)


async def measure(caps: Sequence[int], speed: float, console: Console) -> list[Arm]:
    """All arms."""
    workload = workload_named("demo")
    engine = Embedded(profile_named(workload.profile), speed)
    arms: list[Arm] = []
    with console.status("") as status:
        ways: tuple[int | str, ...] = (*sorted(caps, reverse=True), *POLICIES)
        for given in ways:
            name = f"max_concurrency={given}" if isinstance(given, int) else f"gated, {given}"
            status.update(name)
            async with engine.arm() as server:
                before, began = await server.meter.read(time.monotonic()), time.monotonic()
                if isinstance(given, int):
                    await abatch(workload, server, speed, given)
                else:
                    await gated_abatch(workload, server, speed, given)
                seconds = time.monotonic() - began
                counted = totals(before, await server.meter.read(time.monotonic()))
                await server.meter.close()
            arms.append(Arm(name, seconds, counted.hit_rate, counted.computed_tokens))
            console.print(f"{name}: {seconds:.1f} s", highlight=False)
    return arms


def as_json(arms: Sequence[Arm], speed: float) -> dict[str, Any]:
    """For the file."""
    capped = [arm for arm in arms if arm.name.startswith("max")]
    best = min(capped, key=lambda arm: arm.seconds)
    return {
        "workload": "demo",
        "speed": speed,
        "best": best.name,
        "arms": [{**asdict(arm), "over_best": arm.seconds / best.seconds} for arm in arms],
    }


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m concur_langgraph.comparison", description=__doc__)
    parser.add_argument("--caps", type=int, nargs="+", default=CAPS, help="values of max_concurrency")
    parser.add_argument("--speed", type=float, default=8.0, help="engine seconds per second (default: 8)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    found = as_json(asyncio.run(measure(options.caps, options.speed, Console(stderr=True))), options.speed)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"24 agents, engine at {options.speed:g}x speed")
    table.add_column("arm")
    for heading in ("time", "over best cap", "hit rate", "prompt tokens computed"):
        table.add_column(heading, justify="right")
    for arm in found["arms"]:
        mark = " *" if arm["name"] == found["best"] else ""
        table.add_row(
            arm["name"] + mark,
            f"{arm['seconds']:.1f} s",
            f"{arm['over_best']:.2f}",
            f"{arm['hit_rate']:.2f}",
            f"{arm['prompt_tokens_computed']:,}",
        )
    Console().print(table)
    if options.json is not None:
        content = json.dumps({**found, "machine": machine()}, indent=2)
        options.json.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
