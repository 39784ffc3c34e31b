"""What the commands for whole studies do: run, show, write files, and say with which status to exit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from concur_agents.bench.library import workloads
from concur_agents.bench.progress import LiveProgress
from concur_agents.bench.runs import FAILED, INTERRUPTED, OK, check_files, needs, write
from concur_agents.simulator.profiles import profiles

_out = Console()
_aside = Console(stderr=True)


def paper(json_file: Path | None) -> int:
    """`concur bench --paper`."""
    from concur_agents.bench.paper import HEADLINES, headline_table, run_headline

    check_files(json_file)
    found: list[dict[str, Any]] = []
    partial = False
    for headline in HEADLINES:
        with LiveProgress(_aside) as progress:
            study = run_headline(headline, watcher=progress)
        partial = study.partial
        if study.results[0].arms:
            _out.print(headline_table(study))
        found += [result.as_json() for result in study.results]
        if partial:
            break
    write(json_file, {"partial": partial, "results": found})
    return INTERRUPTED if partial else OK


def fidelity(json_file: Path | None) -> int:
    """`concur bench --fidelity`."""
    from concur_agents.bench.fidelity import compare, fidelity_table

    check_files(json_file)
    with LiveProgress(_aside) as progress:
        found = compare(watcher=progress)
    _out.print(fidelity_table(found))
    write(json_file, found.as_json())
    return OK if found.ok else FAILED


def study(json_file: Path | None) -> int:
    """`concur bench --study`."""
    from concur_agents.bench.study import (
        Row,
        run_full_study,
        study_table,
        workloads_sampled,
        workloads_studied,
    )

    check_files(json_file)
    total = len(workloads_studied()) + len(workloads_sampled())
    done: list[str] = []
    with _aside.status(f"0 of {total} workloads") as status:

        def show(row: Row) -> None:
            done.append(row.workload)
            status.update(f"{len(done)} of {total} workloads; {row.workload} is done")

        try:
            found = run_full_study(on_row=show)
        except KeyboardInterrupt:
            return INTERRUPTED
    _out.print(study_table(found))
    write(json_file, found.as_json())
    return OK


def gate(json_file: Path | None) -> int:
    """`concur bench --gate`."""
    check_files(json_file)
    with needs():
        from concur_agents.bench.gate import gate_table, measure
    with _aside.status("queueing 100,000 agents") as status:
        try:
            found = asyncio.run(measure(on_round=lambda number: status.update(f"round {number}")))
        except KeyboardInterrupt:
            return INTERRUPTED
    _out.print(gate_table(found))
    write(json_file, found.as_json())
    return OK if found.ok else FAILED


def show_lists(json_file: Path | None) -> int:
    """`concur bench --list`."""
    known = Table("workload", "agents", "source", box=box.SIMPLE_HEAD, pad_edge=False)
    for workload in workloads().values():
        known.add_row(workload.name, f"{workload.agents:,}", workload.source)
    engines = Table("profile", "KV tokens", "source", box=box.SIMPLE_HEAD, pad_edge=False)
    for profile in profiles().values():
        engines.add_row(profile.name, f"{profile.kv_tokens:,}", profile.source)
    _out.print(known, engines)
    names = {"workloads": list(workloads()), "profiles": list(profiles())}
    write(json_file, names)
    return OK
