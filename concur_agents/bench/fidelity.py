"""The simulated CPU engine against a real one: the same workloads, the same arms.

The measured side is vLLM 0.32 (CPU build) with a 4-layer dummy-weight Qwen3 on 2 cores, 256 KV blocks of 128
tokens, token-id prompts and `ignore_eos`. That machine was shared, so only ratios to the arm without
control are compared, never absolute times; hit rates hardly vary between runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from concur_agents.bench.library import LOCKSTEP_A, LOCKSTEP_B
from concur_agents.bench.results import BASELINE, BenchResult
from concur_agents.bench.session import Watcher, run_simulated
from concur_agents.bench.tables import rate
from concur_agents.bench.workloads import Workload
from concur_agents.simulator.profiles import CPU_TINY

HIT_RATE_WITHIN = 0.05
RATIO_WITHIN = 0.25


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm on the real engine."""

    workload: Workload
    arm: str
    seconds: float
    hit_rate: float
    prompt_tokens_computed: int


MEASURED = (
    Measured(LOCKSTEP_A, "none", 298.2, 0.064, 724_000),
    Measured(LOCKSTEP_A, "requests:6", 280.0, 0.066, 723_000),
    Measured(LOCKSTEP_A, "static:10", 199.4, 0.512, 378_000),
    Measured(LOCKSTEP_A, "static:6", 105.6, 0.833, 129_000),
    Measured(LOCKSTEP_B, "none", 701.1, 0.042, 1_517_632),
    Measured(LOCKSTEP_B, "static:4", 171.0, 0.890, 174_912),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm, simulated and measured. `ratio` is its time over that of no control."""

    measured: Measured
    measured_ratio: float
    ratio: float
    hit_rate: float
    prompt_tokens_computed: int

    @property
    def ratio_off(self) -> float:
        """Relative difference of the ratios."""
        return self.ratio / self.measured_ratio - 1

    @property
    def hit_rate_off(self) -> float:
        """Difference of the hit rates."""
        return self.hit_rate - self.measured.hit_rate

    @property
    def ok(self) -> bool:
        """Whether both are within the bounds."""
        return abs(self.ratio_off) <= RATIO_WITHIN and abs(self.hit_rate_off) <= HIT_RATE_WITHIN


@dataclass(frozen=True, slots=True)
class Fidelity:
    """All comparisons."""

    comparisons: tuple[Comparison, ...]
    misranked: tuple[str, ...]
    """Workloads on which the arms come in another order."""

    @property
    def ok(self) -> bool:
        """Whether everything is within its bounds."""
        return not self.misranked and all(comparison.ok for comparison in self.comparisons)

    def as_json(self) -> dict[str, object]:
        """For `json.dump`."""
        rows = [
            {
                "workload": row.measured.workload.name,
                "arm": row.measured.arm,
                "ratio": round(row.ratio, 4),
                "measured_ratio": round(row.measured_ratio, 4),
                "hit_rate": round(row.hit_rate, 4),
                "measured_hit_rate": row.measured.hit_rate,
                "ok": row.ok,
            }
            for row in self.comparisons
        ]
        return {"ok": self.ok, "misranked": list(self.misranked), "comparisons": rows}


def compare(*, seed: int = 0, watcher: Watcher | None = None) -> Fidelity:
    """Simulate every measured arm and compare."""
    rows: list[Comparison] = []
    misranked: list[str] = []
    for workload in dict.fromkeys(measured.workload for measured in MEASURED):
        reference = [measured for measured in MEASURED if measured.workload is workload]
        arms = [measured.arm for measured in reference]
        result = run_simulated(workload, CPU_TINY, arms, seed=seed, watcher=watcher)
        rows += _rows(reference, result)
        by_time = [arm.arm for arm in sorted(result.arms, key=lambda arm: arm.seconds)]
        if by_time != [measured.arm for measured in sorted(reference, key=lambda m: m.seconds)]:
            misranked.append(workload.name)
    return Fidelity(tuple(rows), tuple(misranked))


def _rows(reference: Sequence[Measured], result: BenchResult) -> list[Comparison]:
    base = next(measured for measured in reference if measured.arm == BASELINE)
    none = result.arm(BASELINE)
    rows = []
    for measured in reference:
        arm = result.arm(measured.arm)
        if arm is None or none is None or arm.hit_rate is None or arm.prompt_tokens_computed is None:
            continue  # interrupted before it
        rows.append(
            Comparison(
                measured,
                measured.seconds / base.seconds,
                arm.seconds / none.seconds,
                arm.hit_rate,
                arm.prompt_tokens_computed,
            )
        )
    return rows


def fidelity_table(fidelity: Fidelity) -> Table:
    """Simulated beside measured."""
    order = "another on " + ", ".join(fidelity.misranked) if fidelity.misranked else "the same"
    table = Table(
        title="Profile cpu-tiny (simulated) beside vLLM 0.32 (measured on 2 CPU cores)",
        caption=(
            f"bounds: hit rate within {HIT_RATE_WITHIN:g}, time ratio to none within {RATIO_WITHIN:.0%}; "
            f"order of the arms: {order}"
        ),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("\nworkload", no_wrap=True)
    table.add_column("\narm", no_wrap=True)
    for heading in ("ratio\nsim", "\nreal", "\noff", "hit rate\nsim", "\nreal", "\noff"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in fidelity.comparisons:
        style = "" if row.ok else "bold red"
        table.add_row(
            row.measured.workload.name,
            Text(row.measured.arm, style=style),
            f"{row.ratio:.2f}",
            f"{row.measured_ratio:.2f}",
            Text(f"{row.ratio_off:+.0%}", style=style),
            rate(row.hit_rate),
            rate(row.measured.hit_rate),
            Text(f"{row.hit_rate_off:+.2f}", style=style),
        )
    return table
