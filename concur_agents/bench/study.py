"""Every policy on every workload in virtual time, measured against the best static cap found by trying.

A static cap of agents, tuned by hand for each workload, is what a law that needs no tuning has to match. The
best one is that with the smallest mean makespan over all seeds; a policy's ratio is its own mean over that.

The named workloads are those that the laws were made with. So there are others, drawn at random, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

from rich import box
from rich.table import Table

from concur_agents.bench.library import profile_for, workload_named, workloads
from concur_agents.bench.results import BASELINE
from concur_agents.bench.session import run_simulated
from concur_agents.bench.workloads import Workload
from concur_agents.errors import InvalidValueError

POLICIES = ("none", "headroom", "aimd", "aimd-seed", "aimd-paper")
_LOAD_TESTS = ("scale-10k",)
"""Workloads that measure this package and not a policy."""
_FEW = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 32, 40)
_MANY_PARTS = 16
SAMPLED, SAMPLED_SEEDS = 32, 3
"""How many workloads drawn at random, and seeds of each."""


@dataclass(frozen=True, slots=True)
class Mean:
    """One arm over all seeds: mean makespan and mean 99th percentile of the waits, in seconds."""

    seconds: float
    wait_p99: float


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: the best static cap, and the others over it."""

    workload: str
    best_cap: int
    best: Mean
    policies: dict[str, Mean]

    def ratio(self, policy: str) -> float:
        """Makespan over the best static cap's."""
        return self.policies[policy].seconds / self.best.seconds

    def wait_ratio(self, policy: str) -> float:
        """p99 wait over the best static cap's; 1.0 where neither waits."""
        ours, best = self.policies[policy].wait_p99, self.best.wait_p99
        return ours / best if best else (1.0 if not ours else math.inf)


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The whole table."""

    seeds: int
    rows: tuple[Row, ...]
    sampled: StudyResult | None = None
    """The same of workloads drawn at random."""

    def mean_ratio(self, policy: str) -> float:
        """Geometric mean over the workloads."""
        return statistics.geometric_mean(row.ratio(policy) for row in self.rows)

    def worst_ratio(self, policy: str) -> float:
        """Over the workloads."""
        return max(row.ratio(policy) for row in self.rows)

    def worst_over_none(self, policy: str) -> float:
        """Largest makespan over no control at all: what control costs where there is nothing to gain."""
        return max(row.policies[policy].seconds / row.policies[BASELINE].seconds for row in self.rows)

    def worst_wait(self, policy: str) -> float | None:
        """Largest p99 wait over the best cap's, of the workloads on which that one makes anybody wait."""
        return max((row.wait_ratio(policy) for row in self.rows if row.best.wait_p99), default=None)

    def as_json(self) -> dict[str, object]:
        """Everything, for `--json`."""
        policies = tuple(self.rows[0].policies) if self.rows else ()
        return {
            "engine": "sim",
            "sampled": self.sampled.as_json() if self.sampled else None,
            "seeds": self.seeds,
            "policies": {
                name: {
                    "mean_ratio": self.mean_ratio(name),
                    "worst_ratio": self.worst_ratio(name),
                    "worst_over_none": self.worst_over_none(name),
                    "worst_wait_ratio": self.worst_wait(name),
                }
                for name in policies
            },
            "workloads": [asdict(row) for row in self.rows],
        }


def workloads_studied() -> tuple[str, ...]:
    """All but load tests."""
    return tuple(name for name in workloads() if name not in _LOAD_TESTS)


def workloads_sampled() -> tuple[str, ...]:
    """Those drawn at random."""
    return tuple(f"sampled:{number}" for number in range(SAMPLED))


def caps_of(workload: Workload) -> tuple[int, ...]:
    """The static caps worth trying on a workload: those up to its number of agents, finer where few."""
    if workload.agents <= _FEW[-1]:
        return (*(cap for cap in _FEW if cap < workload.agents), workload.agents)
    return tuple(round(workload.agents * part / _MANY_PARTS) for part in range(1, _MANY_PARTS + 1))


def run_study(
    *,
    names: Sequence[str] = (),
    policies: Sequence[str] = POLICIES,
    seeds: int = 10,
    on_row: Callable[[Row], None] | None = None,
    processes: int | None = None,
) -> StudyResult:
    """Run it, workloads at the same time on several processes.

    Args:
        names: Workloads; default: all but load tests.
        policies: What to compare, see `policies.parse`; must have "none" in it.
        seeds: How many, >= 1.
        on_row: Called with each workload's row as it is ready.
        processes: How many; default: one a core.

    Raises:
        InvalidValueError: an unknown workload, or no seeds.
    """
    if seeds < 1:
        msg = f"seeds={seeds!r} is out of range: expected a whole number >= 1"
        raise InvalidValueError(msg)
    chosen = [workload_named(name).name for name in names or workloads_studied()]
    rows: dict[str, Row] = {}
    for row in _rows(chosen, tuple(policies), seeds, processes):
        rows[row.workload] = row
        if on_row is not None:
            on_row(row)
    return StudyResult(seeds, tuple(rows[name] for name in chosen))


def run_full_study(on_row: Callable[[Row], None] | None = None) -> StudyResult:
    """The named workloads, and those drawn at random."""
    sampled = run_study(names=workloads_sampled(), seeds=SAMPLED_SEEDS, on_row=on_row)
    return replace(run_study(on_row=on_row), sampled=sampled)


def _rows(
    names: Sequence[str], policies: tuple[str, ...], seeds: int, processes: int | None
) -> Iterator[Row]:
    with ProcessPoolExecutor(processes) as pool:
        # The longest first, so that none is left for the end.
        by_size = sorted(names, key=lambda name: -workload_named(name).agents)
        futures = [pool.submit(_row, name, policies, seeds) for name in by_size]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(name: str, policies: tuple[str, ...], seeds: int) -> Row:
    workload = workload_named(name)
    caps = {cap: _mean(workload, f"static:{cap}", seeds) for cap in caps_of(workload)}
    best = min(caps, key=lambda cap: caps[cap].seconds)
    return Row(name, best, caps[best], {policy: _mean(workload, policy, seeds) for policy in policies})


def _mean(workload: Workload, arm: str, seeds: int) -> Mean:
    runs = [
        run_simulated(workload, profile_for(workload), (arm,), seed=seed).arms[0] for seed in range(seeds)
    ]
    return Mean(
        statistics.fmean(run.seconds for run in runs),
        statistics.fmean(run.wait_p99_seconds or 0.0 for run in runs),
    )


def study_table(result: StudyResult) -> Table:
    """Ratios to the best static cap; smaller is faster."""
    table = Table(
        title=f"makespan over that of the best static cap, mean of {result.seeds} seeds (simulated)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    policies = tuple(result.rows[0].policies) if result.rows else ()
    table.add_column("workload", no_wrap=True)
    table.add_column("best cap", justify="right")
    for name in policies:
        table.add_column(name, justify="right", no_wrap=True)
    for row in result.rows:
        cap = f"{row.best_cap} ({row.best.seconds:,.0f} s)"
        table.add_row(row.workload, cap, *(f"{row.ratio(name):.2f}" for name in policies))
    table.add_section()
    _add_sums(table, result, policies)
    if result.sampled:
        table.add_section()
        table.add_row(f"{len(result.sampled.rows)} workloads drawn at random")
        _add_sums(table, result.sampled, policies)
    return table


def _add_sums(table: Table, result: StudyResult, policies: Sequence[str]) -> None:
    table.add_row("geometric mean", "", *(f"{result.mean_ratio(name):.3f}" for name in policies))
    table.add_row("worst", "", *(f"{result.worst_ratio(name):.2f}" for name in policies))
    table.add_row("worst, over none", "", *(f"{result.worst_over_none(name):.2f}" for name in policies))
    waits = [result.worst_wait(name) for name in policies]
    table.add_row("worst p99 wait", "", *("" if wait is None else f"{wait:.2f}" for wait in waits))
