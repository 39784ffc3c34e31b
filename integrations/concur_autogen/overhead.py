"""What admission costs AutoGen: `python -m concur_autogen.overhead`.

First the CPU time of agents whose model answers at once and whose window is never full, so that nothing is
left but AutoGen's own work and ours; all surfaces in one process, interleaved, in an order that turns from
repeat to repeat. Then the wall-clock time of a bench workload on the embedded engine, through AutoGen and
through a plain OpenAI client, under the same static cap.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
)
from rich.console import Console
from rich.table import Table

from concur_agents import Controller, Static
from concur_agents.bench.engines import Embedded
from concur_agents.bench.library import workload_named
from concur_agents.bench.live import MakeAgents, run_live
from concur_agents.bench.machine import machine
from concur_agents.bench.openai_agents import OpenAIAgents
from concur_agents.simulator.profiles import profile_named
from concur_autogen.bench_agents import AutoGenAgents
from concur_autogen.client import ConcurChatCompletionClient
from concur_autogen.running import run

TEAM_TURNS = 4
_BENCH, _CAP, _SPEED = "demo", "static:6", 4.0
_out = Console()


async def work() -> str:
    """Work."""
    return "ok"


class InstantClient(ChatCompletionClient):
    """Calls its tool until the conversation has `steps - 1` answers, then ends; takes no time."""

    component_type = "model"

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.calls = 0

    async def create(self, messages: Sequence[LLMMessage], **_: Any) -> CreateResult:  # noqa: ANN401
        """One answer."""
        self.calls += 1
        done = sum(isinstance(message, AssistantMessage) for message in messages)
        usage = RequestUsage(50 * len(messages), 2)
        if done < self._steps - 1:
            call = FunctionCall(id=f"call-{done}", name="work", arguments="{}")
            return CreateResult(finish_reason="function_calls", content=[call], usage=usage, cached=False)
        return CreateResult(finish_reason="stop", content="ok", usage=usage, cached=False)

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        **options: Any,  # noqa: ANN401
    ) -> AsyncGenerator[str | CreateResult, None]:
        """One answer."""
        yield await self.create(messages, **options)

    async def close(self) -> None:
        """Nothing to close."""

    def actual_usage(self) -> RequestUsage:
        """Not counted."""
        return RequestUsage(0, 0)

    total_usage = actual_usage

    def count_tokens(self, messages: Sequence[LLMMessage], **_: Any) -> int:  # noqa: ANN401
        """Not counted."""
        return 0

    remaining_tokens = count_tokens

    @property
    def capabilities(self) -> Any:  # noqa: ANN401
        """As `model_info`."""
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        """A model that calls functions."""
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=False,
            family=ModelFamily.UNKNOWN,
            structured_output=False,
        )


Arm = tuple[str, Callable[[], Awaitable[Any]]]


def arms(plain: InstantClient, controller: Controller, steps: int) -> dict[str, Arm]:
    """What to time: its baseline, and one trajectory of it."""
    wrapped = ConcurChatCompletionClient(plain, controller)

    def agent(client: ChatCompletionClient, name: str = "solo") -> AssistantAgent:
        return AssistantAgent(name, client, tools=[work], max_tool_iterations=steps)

    def team(client: ChatCompletionClient) -> RoundRobinGroupChat:
        members: list[Any] = [agent(client, name) for name in ("ann", "bob")]
        return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(TEAM_TURNS))

    return {
        "AssistantAgent": ("", lambda: agent(plain).run(task="go")),
        "wrapped": ("AssistantAgent", lambda: agent(wrapped).run(task="go")),
        "wrapped, run()": ("AssistantAgent", lambda: run(controller, agent(wrapped), task="go")),
        "RoundRobinGroupChat": ("", lambda: team(plain).run(task="go")),
        "team wrapped, run()": ("RoundRobinGroupChat", lambda: run(controller, team(wrapped), task="go")),
    }


async def measure(agents: int, steps: int, repeats: int) -> dict[str, list[float]]:
    """CPU microseconds per model call of every arm and repeat."""
    client = InstantClient(steps)
    async with Controller(policy=Static(agents)) as controller:
        made = {name: go for name, (_, go) in arms(client, controller, steps).items()}
        taken: dict[str, list[float]] = {name: [] for name in made}
        names = list(made)
        for repeat in range(repeats + 1):
            turn = repeat % len(names)
            for name in names[turn:] + names[:turn]:
                gc.collect()
                calls, start = client.calls, time.process_time()
                await asyncio.gather(*(asyncio.ensure_future(made[name]()) for _ in range(agents)))
                used = time.process_time() - start
                if repeat:  # the first one warms up
                    taken[name].append(used / (client.calls - calls) * 1e6)
        return taken


async def bench(repeats: int) -> dict[str, list[float]]:
    """Wall-clock seconds of the bench workload through each client."""
    workload = workload_named(_BENCH)
    clients: dict[str, MakeAgents] = {"openai": OpenAIAgents, "autogen": AutoGenAgents}
    taken: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(repeats):
        for name, make in clients.items():
            engine = Embedded(profile_named(workload.profile), _SPEED)
            result = await run_live(workload, engine, (_CAP,), make)
            taken[name].append(result.arms[0].seconds)
    return taken


@dataclass(frozen=True, slots=True)
class Added:
    """What a surface costs over its baseline; pairs of the same repeat saw the same machine."""

    microseconds: float
    """Per step, median of the pairs."""
    share: float
    """Of the baseline's time."""
    least: float
    most: float
    """Of the shares of all pairs."""

    @classmethod
    def over(cls, base: Sequence[float], times: Sequence[float]) -> Added:
        """Compare repeat by repeat."""
        shares = [mine / theirs - 1 for theirs, mine in zip(base, times, strict=True)]
        more = statistics.median(mine - theirs for theirs, mine in zip(base, times, strict=True))
        return cls(more, more / statistics.median(base), min(shares), max(shares))


def compared(taken: dict[str, list[float]]) -> dict[str, Added]:
    """Every surface that has a baseline."""
    known = arms(InstantClient(1), Controller(policy=Static(1)), 1)
    baselines = {name: base for name, (base, _) in known.items() if base}
    return {name: Added.over(taken[base], taken[name]) for name, base in baselines.items()}


def as_table(title: str, taken: dict[str, list[float]], added: dict[str, Added]) -> Table:
    """For people."""
    table = Table("surface", title=title)
    for heading in ("µs per step", "least", "added µs", "added", "range"):
        table.add_column(heading, justify="right")
    for name, times in taken.items():
        row = [f"{statistics.median(times):,.0f}", f"{min(times):,.0f}"]
        if name in added:
            more = added[name]
            row += [f"{more.microseconds:+,.0f}", f"{more.share:+.0%}"]
            row += [f"{more.least:+.0%} .. {more.most:+.0%}"]
        table.add_row(name, *row)
    return table


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m concur_autogen.overhead", description=__doc__)
    parser.add_argument("--agents", type=int, default=100, help="concurrent agents (default: 100)")
    parser.add_argument("--steps", type=int, default=5, help="model calls of each (default: 5)")
    parser.add_argument("--repeats", type=int, default=7, help="of each surface (default: 7)")
    parser.add_argument("--bench-repeats", type=int, default=2, help="of the workload (default: 2)")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    taken = asyncio.run(measure(options.agents, options.steps, options.repeats))
    added = compared(taken)
    _out.print(as_table(f"CPU time, {options.agents} agents, medians of {options.repeats}", taken, added))
    found: dict[str, Any] = {
        "agents": options.agents,
        "added": {name: more.share for name, more in added.items()},
        "added_range": {name: [more.least, more.most] for name, more in added.items()},
        "microseconds_per_step": taken,
    }
    if options.bench_repeats:
        with _out.status(f"{_BENCH} on the embedded engine, {_CAP}, through each client in turn"):
            times_of = asyncio.run(bench(options.bench_repeats))
        ratio = statistics.median(times_of["autogen"]) / statistics.median(times_of["openai"])
        said = ", ".join(
            f"{name} {'/'.join(f'{s:.1f}' for s in seconds)} s" for name, seconds in times_of.items()
        )
        _out.print(f"{_BENCH}, {_CAP}: {said}; autogen takes {ratio:.2f} of the plain client's time")
        found |= {"workload": _BENCH, "arm": _CAP, "seconds": times_of, "bench_ratio": ratio}
    if options.json is not None:
        found["machine"] = machine()
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
