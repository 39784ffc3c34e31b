"""The README's figures, out of the files that `make results` writes.

    python -m concur_agents.bench.summary benchmarks/results README.md

puts the text between the README's two markers. Nobody types a figure by hand, and a test compares.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from concur_agents.bench.paper import HEADLINES, Headline
from concur_agents.bench.results import BASELINE

BEGIN = "<!-- figures: begin (make results) -->"
END = "<!-- figures: end -->"


def summary(folder: Path) -> str:
    """Markdown with all figures."""
    parts = (_demo, _abatch, _virtual, _study, _paper, _others)
    return "\n\n".join(part(folder) for part in parts)


def put_into(text: str, figures: str) -> str:
    """`text` with the figures between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def _read(folder: Path, name: str) -> Any:  # noqa: ANN401
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---", *["--:"] * (len(names) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _arms(result: dict[str, Any]) -> str:
    return _table(
        ("arm", "time", "times none", "hit rate", "prompt tokens computed", "pauses"),
        (
            (
                f"`{arm['arm']}`",
                f"{arm['seconds']:,.0f} s",
                f"{arm['speedup']:.2f}x",
                f"{arm['hit_rate']:.2f}",
                f"{arm['prompt_tokens_computed']:,}",
                str(arm["pauses"]),
            )
            for arm in result["arms"]
        ),
    )


def _demo(folder: Path) -> str:
    result = _read(folder, "demo")
    return (
        f"`make demo`: {result['arms'][0]['agents_completed']} LangGraph agents over HTTP, engine and tools "
        f"at {result['speed']:.0f}x speed, all arms in one run:\n\n" + _arms(result)
    )


def _abatch(folder: Path) -> str:
    result = _read(folder, "abatch")
    rows = (
        (
            f"`{arm['name']}`",
            f"{arm['seconds']:,.0f} s",
            f"{arm['over_best']:.2f}",
            f"{arm['hit_rate']:.2f}",
            f"{arm['prompt_tokens_computed']:,}",
        )
        for arm in result["arms"]
    )
    return (
        "The same agents without this package, `make abatch`: `graph.abatch` with every `max_concurrency`, "
        "and the graph gated, with nothing to set:\n\n"
        + _table(("arm", "time", "over the best", "hit rate", "prompt tokens computed"), rows)
    )


def _study(folder: Path) -> str:
    result = _read(folder, "study")
    names = list(result["policies"])
    rows = [
        (
            row["workload"],
            str(row["best_cap"]),
            *(f"{row['policies'][name]['seconds'] / row['best']['seconds']:.2f}" for name in names),
        )
        for row in result["workloads"]
    ]
    for title, field in (("geometric mean", "mean_ratio"), ("worst", "worst_ratio")):
        rows.append((title, "", *(f"{result['policies'][name][field]:.2f}" for name in names)))
    return (
        "Every policy on every workload in virtual time, `make study`: makespan over that of the best static "
        f"cap, which was found by trying them all; mean of {result['seeds']} seeds:\n\n"
        + _table(("workload", "best cap", *(f"`{name}`" for name in names)), rows)
    )


def _virtual(folder: Path) -> str:
    result, fidelity = _read(folder, "lockstep-b"), _read(folder, "fidelity")
    worst = max(abs(c["ratio"] / c["measured_ratio"] - 1) for c in fidelity["comparisons"])
    rates = max(abs(c["hit_rate"] - c["measured_hit_rate"]) for c in fidelity["comparisons"])
    return (
        'In virtual time, `make bench ARGS="--workload lockstep-b"`; the simulated engine is within '
        f"{worst:.0%} of a real vLLM's time ratios and {rates:.2f} of its hit rates (`make fidelity`):\n\n"
        + _arms(result)
    )


def _paper(folder: Path) -> str:
    results = _read(folder, "paper")["results"]
    rows = []
    for headline in HEADLINES:
        runs = [r for r in results if r["workload"] == headline.workload.name]
        for arm in (BASELINE, "headroom", "aimd", "aimd-paper"):
            ours = [next(a for a in run["arms"] if a["arm"] == arm) for run in runs]
            speedups = [a["speedup"] for a in ours]
            rows.append(
                (
                    f"{headline.workload.name} `{arm}`",
                    f"{statistics.median(speedups):.2f}x ({min(speedups):.2f}-{max(speedups):.2f})",
                    f"{statistics.median(a['hit_rate'] for a in ours):.2f}",
                    *_published(headline, arm),
                )
            )
    return (
        "The paper's two set-ups in virtual time, `make paper`, median and range over seeds, "
        "beside what the paper reports for SGLang (`aimd-paper` is its law, `aimd` our default):\n\n"
        + _table(("", "times none", "hit rate", "paper: times none", "paper: hit rate"), rows)
    )


def _published(headline: Headline, arm: str) -> tuple[str, str]:
    base, found = headline.rows[BASELINE], headline.rows.get(arm)
    if found is None:
        return "", ""
    hit = "" if found.hit_rate is None else f"{found.hit_rate:.2f}"
    return f"{base.seconds / found.seconds:.2f}x", hit


def _others(folder: Path) -> str:
    gate, scale, autogen = (_read(folder, name) for name in ("gate", "scale", "autogen"))
    more = autogen["added"]["wrapped, run()"]
    arm, cost, growth = scale["arms"][0], gate["step_over_capacity_limiter"], gate["growth_10_to_100k"]
    return (
        f"`make gate`: one step through the gate costs {cost:.2f} times an `anyio.CapacityLimiter` acquire "
        f"and release, and {growth:.2f} times as much with 100,000 agents waiting as with 10. `make scale`: "
        f"{arm['agents_completed']:,} agents, {arm['steps']:,} steps, in virtual time. AutoGen agents under "
        f"`run` take {more:.0%} more CPU time per step than alone, with a model that takes none, and "
        f"{autogen['bench_ratio']:.2f} of a plain client's time on the demo's workload "
        "(`make overhead`)."
    )


def main(folder: str, readme: str) -> None:
    """Rewrite the README's figures."""
    path = Path(readme)
    path.write_text(put_into(path.read_text(encoding="utf-8"), summary(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
