"""What the benchmark commands do: run, show, write files, and say with which status to exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from concur_agents.bench.library import profile_for, workload_named
from concur_agents.bench.machine import machine
from concur_agents.bench.progress import LiveProgress
from concur_agents.bench.results import BASELINE, BenchResult
from concur_agents.bench.routers import VIA, Router, is_via
from concur_agents.bench.session import check_arms, run_simulated
from concur_agents.bench.tables import agents_table, results_table
from concur_agents.bench.workloads import Workload
from concur_agents.errors import InvalidValueError, MissingExtraError
from concur_agents.simulator.costs import Profile
from concur_agents.simulator.profiles import profile_named

OK, FAILED, INTERRUPTED = 0, 1, 130
"""Exit status; 130 is what a shell reports for Ctrl-C."""

_AGENTS = {
    "openai": "concur_agents.bench.openai_agents:OpenAIAgents",
    "langgraph": "concur_langgraph.bench_agents:LangGraphAgents",
    "autogen": "concur_autogen.bench_agents:AutoGenAgents",
}
_PACKAGES = {"autogen": "'concur-agents[bench,autogen]' 'autogen-ext[openai]'"}
"""What to install for some of them; the others need no more than the benchmarks do."""
_BENCH = "'concur-agents[bench]'"

_out = Console()
_aside = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Options:
    """Of the command line; None: the default of workload or profile."""

    workload: str
    arms: str | None
    profile: str | None
    kv_tokens: int | None
    model: str | None
    agents: str
    speed: float
    interval: float
    seed: int
    json_file: Path | None
    plot_file: Path | None
    reps: int = 1
    router: Router | None = None
    force: bool = False

    def chosen_workload(self) -> Workload:
        """The workload, or an error that lists them."""
        return workload_named(self.workload)

    def chosen_profile(self) -> Profile:
        """The profile, its cache resized if wanted."""
        profile = profile_named(self.profile) if self.profile else profile_for(self.chosen_workload())
        return profile.with_kv_tokens(self.kv_tokens) if self.kv_tokens is not None else profile

    def chosen_arms(self) -> tuple[str, ...]:
        """The arms, each a policy that exists."""
        arms: Sequence[str] = self.chosen_workload().arms
        if self.arms is not None:
            arms = check_arms([arm.strip() for arm in self.arms.split(",") if arm.strip()])
        if self.router is not None and not any(is_via(arm) for arm in arms):
            arms = (*arms, VIA)
        return tuple(arms)


def compare(engine: str, options: Options) -> int:
    """`concur bench`: every arm on one engine."""
    check_files(options.json_file, options.plot_file)
    if engine == "sim":
        with LiveProgress(_aside) as progress:
            result = run_simulated(
                options.chosen_workload(),
                options.chosen_profile(),
                options.chosen_arms(),
                seed=options.seed,
                reps=options.reps,
                interval_seconds=options.interval,
                watcher=progress,
            )
    elif engine == "embedded" or engine.startswith(("http://", "https://")):
        result = _live(engine, options)
    else:
        msg = f"engine={engine!r} is unknown: expected sim, embedded, or a URL such as http://localhost:8000"
        raise InvalidValueError(msg)
    return _report(result, options)


def demo(options: Options) -> int:
    """`concur demo`: agents of a framework on the embedded engine."""
    check_files(options.json_file, options.plot_file)
    _out.print(
        f"{options.chosen_workload().agents} {options.agents} agents with growing contexts share one engine "
        f"of {options.chosen_profile().kv_tokens:,} KV tokens.",
        highlight=False,
    )
    return _report(_live("embedded", options), options)


def _live(engine: str, options: Options) -> BenchResult:
    with needs():
        from concur_agents.bench.engines import Embedded, Remote
        from concur_agents.bench.live import MakeAgents, run_live
        from concur_agents.bench.openai_agents import OpenAIAgents, Prose
    with needs(_PACKAGES.get(options.agents, _BENCH)):
        make_agents: MakeAgents = _named_agents(options.agents)
    where: Embedded | Remote = Remote(engine, options.model)
    if engine == "embedded":
        where = Embedded(options.chosen_profile(), options.speed)
    workload, arms = options.chosen_workload(), options.chosen_arms()
    if options.router is not None and options.agents != "openai":
        msg = f"agents={options.agents!r} cannot tell a router who they are: --via goes with --agents openai"
        raise InvalidValueError(msg)

    async def run(make_agents: MakeAgents) -> BenchResult:
        if isinstance(where, Remote) and make_agents is OpenAIAgents:
            prose = await Prose.measured(where.name, await where.model())
            make_agents = partial(OpenAIAgents, prose=prose)
        return await run_live(
            workload,
            where,
            arms,
            make_agents,
            seed=options.seed,
            reps=options.reps,
            interval_seconds=options.interval,
            router=options.router,
            force=options.force,
            watcher=progress,
        )

    with LiveProgress(_aside) as progress:
        return asyncio.run(run(make_agents))


def _named_agents(name: str) -> Any:  # noqa: ANN401
    """The class that runs the agents: one of `_AGENTS`, or any other by its dotted name.

    By name, so that nothing here depends on a framework.
    """
    path = _AGENTS.get(name, name)
    try:
        found = pkgutil.resolve_name(path)
    except (AttributeError, ValueError, ModuleNotFoundError) as error:
        if name in _AGENTS:
            raise
        msg = f"agents={name!r} is unknown ({error}): expected {', '.join(_AGENTS)} or package.module:Class"
        raise InvalidValueError(msg) from error
    if not callable(found):
        msg = f"agents={name!r} is no class: expected package.module:Class"
        raise InvalidValueError(msg)
    return found


def _report(result: BenchResult, options: Options) -> int:
    """Table, files, and the status."""
    if result.arms:
        _out.print(results_table(result), agents_table(result))
    write(options.json_file, result.as_json())
    if options.plot_file is not None and result.arms:
        from concur_agents.bench.plot import save_plot

        save_plot(result, options.plot_file)
    if result.refused:
        return FAILED
    if BASELINE not in {arm.arm for arm in result.arms}:
        _aside.print("no arm without control (none): how much it gains is not known")
    if result.partial:
        _aside.print("interrupted: this result is partial")
        return INTERRUPTED
    return FAILED if any(arm.agents_failed or arm.error for arm in result.arms) else OK


def check_files(json_file: Path | None, plot_file: Path | None = None) -> None:
    """Before minutes of work: can the files be written?"""
    if plot_file is not None:
        with needs():
            from matplotlib.backend_bases import FigureCanvasBase
        known = sorted(FigureCanvasBase.get_supported_filetypes())
        if plot_file.suffix.lstrip(".").lower() not in known:
            msg = f"plot={plot_file}: expected a name that ends in one of {', '.join(known)}"
            raise InvalidValueError(msg)
    for option, path in (("json", json_file), ("plot", plot_file)):
        if path is None:
            continue
        if not path.resolve().parent.is_dir():
            msg = f"{option}={path}: there is no directory {path.resolve().parent}"
            raise InvalidValueError(msg)
        try:
            path.open("ab").close()
        except OSError as error:
            msg = f"{option}={path} cannot be written: {error.strerror}"
            raise InvalidValueError(msg) from error


def write(json_file: Path | None, content: dict[str, Any]) -> None:
    """Write a result with the machine it is of, if it is to be written."""
    if json_file is not None:
        content = {**content, "machine": machine()}
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def needs(packages: str = _BENCH) -> Iterator[None]:
    """Turn a missing package into advice."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("concur_"):
            raise
        msg = f"the package {error.name!r} is not installed: pip install {packages}"
        raise MissingExtraError(msg) from error
