"""One picture of a benchmark: a column an arm; window, utilisation, hit rate and agents over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from concur_agents.bench.recorder import Sample
from concur_agents.bench.results import ArmResult, BenchResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _GREY, _ORANGE, _RED, _GREEN = "#1f5fa8", "#9aa3ab", "#d9822b", "#b8322a", "#2e8b57"


def save_plot(result: BenchResult, path: Path) -> None:
    """Write the picture; the file's ending says in which format (png, pdf, svg).

    All arms share the axis of time, so a faster arm is a shorter curve.
    """
    figure = draw(result)
    figure.savefig(path, dpi=130)


def draw(result: BenchResult) -> Figure:
    """The picture as a matplotlib figure."""
    arms = result.arms
    figure = Figure(figsize=(max(4.2, 3.1 * len(arms)), 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(4, len(arms), sharex=True, sharey="row", squeeze=False)
    for column, arm in enumerate(arms):
        for axes, panel in zip(grid[:, column], (_window, _usage, _hits, _agents), strict=True):
            panel(axes, arm)
            axes.grid(visible=True, color="#e6e8ea", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0)
        grid[0, column].set_title(_heading(result, arm), fontsize=10)
        grid[3, column].set_xlabel("seconds")
    for row, name in zip(grid, ("window W, agents", "utilisation U", "hit rate H", "agents"), strict=True):
        row[0].set_ylabel(name)
        row[-1].legend(loc="upper right", fontsize=7, frameon=True, framealpha=0.85, edgecolor="none")
    grid[0, 0].set_ylim(bottom=0)
    grid[2, 0].set_ylim(-0.03, 1.05)
    for axes in grid[1]:
        axes.axhline(1.0, color=_RED, linewidth=0.8, linestyle=":")
    grid[1, 0].set_ylim(0, _usage_top(arms))
    partial = " (partial: interrupted)" if result.partial else ""
    figure.suptitle(f"{result.workload} on {result.engine}{partial}", fontsize=12)
    return figure


def _heading(result: BenchResult, arm: ArmResult) -> str:
    speedup = result.speedup(arm)
    ratio = "" if speedup is None else f", {speedup:.2f}x"
    return f"{arm.arm}\n{arm.seconds:,.0f} s{ratio}"


def _usage_top(arms: Sequence[ArmResult]) -> float:
    """Demand may be many times the capacity without control; show up to three times."""
    seen = [sample.usage for arm in arms for sample in arm.samples if sample.usage is not None]
    return min(3.0, max([1.05, *(1.05 * usage for usage in seen)]))


def _line(
    axes: Axes, samples: Sequence[Sample], value: Callable[[Sample], float | None], **style: object
) -> None:
    """A curve through the samples where the value is known."""
    known = [(sample.at, y) for sample in samples if (y := value(sample)) is not None]
    axes.plot([x for x, _ in known], [y for _, y in known], **style)  # type: ignore[arg-type]


def _window(axes: Axes, arm: ArmResult) -> None:
    if any(sample.window is not None for sample in arm.samples):
        _line(
            axes,
            arm.samples,
            lambda s: s.window,
            color=_BLUE,
            linewidth=1.4,
            drawstyle="steps-post",
            label="W",
        )
    if any(sample.window_tokens is not None for sample in arm.samples):
        _token_window(axes, arm)
    elif all(sample.window is None for sample in arm.samples):
        axes.text(0.5, 0.85, "no limit", transform=axes.transAxes, ha="center", color=_GREY)
    _line(axes, arm.samples, lambda s: s.active, color=_GREEN, linewidth=0.8, alpha=0.8, label="active")


def _token_window(axes: Axes, arm: ArmResult) -> None:
    """On an axis of its own, in thousands of KV tokens."""
    right = axes.twinx()
    _line(
        right,
        arm.samples,
        lambda s: None if s.window_tokens is None else s.window_tokens / 1000,
        color=_ORANGE,
        linewidth=1.2,
        drawstyle="steps-post",
        label="W, k tokens",
    )
    right.set_ylim(bottom=0)
    right.tick_params(axis="y", labelsize=7, colors=_ORANGE)
    right.spines["top"].set_visible(False)
    right.legend(loc="lower right", fontsize=7, frameon=True, framealpha=0.85, edgecolor="none")


def _usage(axes: Axes, arm: ArmResult) -> None:
    _line(
        axes,
        arm.samples,
        lambda s: s.engine_usage,
        color=_GREY,
        linewidth=0.8,
        label="engine's gauge",
        zorder=1,
    )
    _line(axes, arm.samples, lambda s: s.usage, color=_BLUE, linewidth=1.4, label="demand / capacity")


def _hits(axes: Axes, arm: ArmResult) -> None:
    _line(
        axes,
        arm.samples,
        lambda s: s.engine_hit_rate,
        color=_GREY,
        linewidth=0.8,
        label="all prompts",
        zorder=1,
    )
    _line(axes, arm.samples, lambda s: s.hit_rate, color=_BLUE, linewidth=1.4, label="revisits")


def _agents(axes: Axes, arm: ArmResult) -> None:
    _line(axes, arm.samples, lambda s: s.active, color=_GREEN, linewidth=1.4, label="active")
    _line(axes, arm.samples, lambda s: s.paused, color=_RED, linewidth=1.0, label="paused")
    _line(
        axes, arm.samples, lambda s: s.waiting, color=_ORANGE, linewidth=1.0, linestyle="--", label="waiting"
    )
