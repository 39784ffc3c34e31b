"""Results as tables for people."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from concur_agents.bench.results import ArmResult, BenchResult


def seconds(value: float | None, unit: str = " s") -> str:
    """A duration, as precise as it is worth."""
    if value is None:
        return "—"
    return f"{value:,.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"


def rate(value: float | None) -> str:
    """A fraction with two digits."""
    return "—" if value is None else f"{value:.2f}"


def tokens(value: int | None) -> str:
    """A token count, in thousands or millions when it is large."""
    if value is None:
        return "—"
    if value >= 10_000_000:
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e3:,.0f} k" if value >= 10_000 else f"{value:,}"


def results_table(result: BenchResult) -> Table:
    """One row an arm."""
    title = f"{result.workload} on {result.engine}"
    if result.profile:
        title += f" ({result.profile})"
    table = Table(
        title=title,
        caption=_caption(result),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("\narm", no_wrap=True)
    for heading in (
        "\ntime",
        "times\nnone",
        "hit\nrate",
        "revisit\nhit rate",
        "prompts\ncomputed",
        "over\nideal",
        "\npauses",
        "engine\nidle",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    best = max((result.speedup(arm) or 0.0 for arm in result.arms), default=0.0)
    for arm in result.arms:
        table.add_row(*_row(result, arm, best))
    return table


def _row(result: BenchResult, arm: ArmResult, best: float) -> list[str | Text]:
    speedup = result.speedup(arm)
    ratio = Text("—" if speedup is None else f"{speedup:.2f}x" + _range(result.speedups(arm.arm), "{:.2f}"))
    if speedup is not None and speedup == best and speedup > 1:
        ratio.stylize("bold green")
    marked = arm.partial or arm.agents_failed
    return [
        Text(f"{arm.arm} *" if marked else arm.arm, style="yellow" if marked else ""),
        seconds(arm.seconds, "") + _range(result.times(arm.arm), "{:.0f}"),
        ratio,
        rate(arm.hit_rate),
        rate(arm.revisit_hit_rate),
        tokens(arm.prompt_tokens_computed),
        _over_ideal(arm),
        str(arm.pauses),
        "—" if arm.idle_share is None else f"{arm.idle_share:.0%}",
    ]


def agents_table(result: BenchResult) -> Table:
    """What the agents had of it. One row an arm."""
    table = Table(title="for an agent", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("\narm", no_wrap=True)
    for heading in ("wait\nmedian", "\np99", "\nlongest", "its time\nmedian", "\nlongest", "fair-\nness"):
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in result.arms:
        waits = (arm.wait_p50_seconds, arm.wait_p99_seconds, arm.longest_wait_seconds)
        lives = (arm.agent_p50_seconds, arm.agent_max_seconds)
        table.add_row(arm.arm, *(seconds(value, "") for value in (*waits, *lives)), rate(arm.fairness))
    return table


def _range(values: list[float], form: str) -> str:
    """Of several repetitions."""
    if len(values) < 2:
        return ""
    return f"\n{form.format(min(values))}-{form.format(max(values))}"


def _over_ideal(arm: ArmResult) -> str:
    if arm.prompt_tokens_computed is None or not arm.prompt_tokens_ideal:
        return "—"
    return f"{arm.prompt_tokens_computed / arm.prompt_tokens_ideal:.2f}"


def _caption(result: BenchResult) -> str:
    notes = []
    if result.engine == "sim":
        notes.append("times are virtual seconds")
    elif result.speed == 1.0:
        notes.append("times are wall-clock seconds")
    else:
        notes.append(f"times are wall-clock seconds; engine and tools run at {result.speed:g}x speed")
    if result.reps:
        notes.append(f"medians and ranges of {len(result.reps)} repetitions")
    if result.refused:
        notes.append(result.refused)
    if result.partial:
        notes.append("PARTIAL: interrupted before the end")
    for arm in result.arms:
        if arm.partial:
            notes.append(
                f"* {arm.arm} was cut short after {arm.steps:,} steps; its numbers are those until then"
            )
        if arm.agents_failed:
            notes.append(
                f"* {arm.agents_failed} agents of {arm.arm} failed; {arm.error or 'no error was seen'}"
            )
        elif arm.error:
            notes.append(f"* {arm.arm}: {arm.error}")
    return "\n".join(notes)
