"""The commands of `concur`: engine, bench, demo. What they do is elsewhere; here are their options.

Modules that only one command needs are imported by it, so that `--help` is quick.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="concur",
    help="Agent-level admission control for batches of LLM agents: benchmarks and an embedded engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_DEMO_SPEED = 8.0


class LogLevel(Enum):
    """Of the engine's server."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"


Arms = Annotated[
    str | None,
    typer.Option(
        help="Policies to compare, separated by commas: none, requests:N, static:N, headroom, aimd, "
        "aimd-seed, aimd-paper. Default: those of the workload.",
        show_default=False,
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        help="KV cache of the simulated engine in tokens. Default: the profile's.", show_default=False
    ),
]
Seed = Annotated[int, typer.Option(help="Of the trajectories; all arms see the same ones.")]
Interval = Annotated[
    float, typer.Option(help="Seconds between two looks of the controller at the engine, > 0.")
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the result to this file.", show_default=False)
]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw W, U, H and agents over time, one column an arm (.png, .svg, .pdf).",
        show_default=False,
    ),
]


@app.command()
def engine(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any free one.")] = 8000,
    profile: Annotated[str, typer.Option(help="Engine to simulate; see `concur bench --list`.")] = "cpu-tiny",
    kv_tokens: KvTokens = None,
    speed: Annotated[float, typer.Option(help="Engine seconds per wall-clock second, > 0.")] = 1.0,
    latency: Annotated[float, typer.Option(help="Fault: seconds added before each call, >= 0.")] = 0.0,
    error_rate: Annotated[float, typer.Option(help="Fault: fraction of calls answered with 500.")] = 0.0,
    drop_rate: Annotated[float, typer.Option(help="Fault: fraction of calls whose connection is cut.")] = 0.0,
    metrics: Annotated[
        str, typer.Option(help="Fault: ok, missing (no vllm: series), off (404), error (500) or hang.")
    ] = "ok",
    log_level: Annotated[LogLevel, typer.Option(help="How much it says.")] = LogLevel.INFO,
) -> None:
    """Serve the simulated engine: OpenAI chat and text completions, and vLLM's /metrics.

    Ends with Ctrl-C. Further faults can be set at run time with POST /faults.
    """
    from concur_agents.simulator.faults import FaultInjector
    from concur_agents.simulator.hosting import serve
    from concur_agents.simulator.profiles import profile_named

    faults = FaultInjector().change(
        {"latency": latency, "error_rate": error_rate, "drop_rate": drop_rate, "metrics": metrics}
    )
    serve(
        host,
        port,
        profile_named(profile),
        kv_tokens=kv_tokens,
        speed=speed,
        faults=faults,
        log_level=log_level.value,
    )


@app.command()
def bench(
    engine: Annotated[
        str,
        typer.Option(help="sim (virtual time), embedded (started for you), or the URL of a vLLM or SGLang."),
    ] = "sim",
    workload: Annotated[str, typer.Option(help="What the agents do; see --list.")] = "lockstep-a",
    arms: Arms = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Engine to simulate; see --list. Default: the workload's.", show_default=False),
    ] = None,
    kv_tokens: KvTokens = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to ask for at a URL. Default: the first one served.", show_default=False),
    ] = None,
    agents: Annotated[
        str,
        typer.Option(help="Who acts over HTTP: openai, langgraph, autogen, or a package.module:Class."),
    ] = "openai",
    speed: Annotated[
        float, typer.Option(help="Of the embedded engine: its seconds per wall-clock second, > 0.")
    ] = 1.0,
    interval: Interval = 1.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The published headline beside ours, in virtual time.")
    ] = False,
    fidelity: Annotated[
        bool,
        typer.Option(
            "--fidelity", help="The simulated engine beside a measured vLLM; status 1 if it is off."
        ),
    ] = False,
    study: Annotated[
        bool,
        typer.Option(
            "--study", help="Every policy on every workload, over the best static cap, in virtual time."
        ),
    ] = False,
    gate: Annotated[
        bool, typer.Option("--gate", help="What one step through the gate costs; status 1 if too much.")
    ] = False,
    reps: Annotated[
        int,
        typer.Option(help="Run every arm so often, in turns, and show medians and ranges, >= 1."),
    ] = 1,
    via: Annotated[
        str | None,
        typer.Option(
            help="URL of a router in front of the engine: adds an arm `via` that goes through it, "
            "and understands via:POLICY.",
            show_default=False,
        ),
    ] = None,
    via_header: Annotated[
        str, typer.Option(help="Header that tells the router the agent's id; empty: none.")
    ] = "X-Session-ID",
    via_field: Annotated[
        str, typer.Option(help="Field of the body that tells it the agent's id; empty: none.")
    ] = "session_id",
    force: Annotated[
        bool, typer.Option("--force", help="Go on where the cache holds all agents anyway.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Show workloads and profiles.")] = False,
) -> None:
    """Compare policies on one workload. Ctrl-C leaves what there is by then, marked partial."""
    from concur_agents.bench import runs, studies
    from concur_agents.bench.routers import Router

    chosen = [
        run
        for wanted, run in (
            (list_all, studies.show_lists),
            (paper, studies.paper),
            (fidelity, studies.fidelity),
            (study, studies.study),
            (gate, studies.gate),
        )
        if wanted
    ]
    if len(chosen) > 1:
        raise typer.BadParameter("--list, --paper, --fidelity, --study and --gate exclude each other")
    if chosen:
        raise typer.Exit(chosen[0](json_file))
    options = runs.Options(
        workload,
        arms,
        profile,
        kv_tokens,
        model,
        agents,
        speed,
        interval,
        seed,
        json_file,
        plot_file,
        reps,
        Router(via, via_header, via_field) if via else None,
        force,
    )
    raise typer.Exit(runs.compare(engine, options))


@app.command()
def demo(
    arms: Arms = None,
    speed: Annotated[
        float, typer.Option(help="Engine seconds per wall-clock second, > 0; tools are as much faster.")
    ] = _DEMO_SPEED,
    kv_tokens: KvTokens = None,
    interval: Interval = 1.0,
    seed: Seed = 0,
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
) -> None:
    """Run 24 LangGraph agents over HTTP against the embedded engine, under each policy in turn.

    Takes about two minutes. Ctrl-C leaves what there is by then, marked partial.
    """
    from concur_agents.bench import runs

    options = runs.Options(
        "demo", arms, None, kv_tokens, None, "langgraph", speed, interval, seed, json_file, plot_file
    )
    raise typer.Exit(runs.demo(options))
