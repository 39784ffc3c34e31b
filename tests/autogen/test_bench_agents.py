"""`concur bench --agents autogen`, and the overhead it is measured by."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from concur_autogen.bench_agents import AutoGenAgents
from concur_autogen.overhead import compared, measure

from concur_agents import Controller, InvalidValueError
from concur_agents.bench.distributions import always
from concur_agents.bench.engines import Embedded
from concur_agents.bench.library import DEMO, workloads
from concur_agents.bench.live import run_live
from concur_agents.bench.openai_agents import OpenAIAgents
from concur_agents.simulator.profiles import CPU_TINY

SMALL = replace(DEMO, name="small", agents=6, steps=always(4), tool_seconds=always(0.2))


async def test_autogen_agents_do_the_work_of_plain_ones():
    arms = []
    for make in (OpenAIAgents, AutoGenAgents):
        result = await run_live(SMALL, Embedded(CPU_TINY, 20.0), ("static:6",), make)
        arms.append(result.arms[0])
    plain, autogen = arms
    for arm in arms:
        assert (arm.error, arm.agents_completed, arm.steps) == (None, 6, 24)
    assert autogen.prompt_tokens_computed == pytest.approx(plain.prompt_tokens_computed, rel=0.1)


def test_sub_agents_are_refused():
    workload = next(workload for workload in workloads().values() if workload.sub_agents.high)
    with pytest.raises(InvalidValueError, match="has sub-agents"):
        AutoGenAgents("http://127.0.0.1:9", "tiny", Controller(), workload)


def test_a_missing_package_is_named(monkeypatch, capsys):
    from concur_agents.cli import main

    monkeypatch.delitem(sys.modules, "concur_autogen.bench_agents")
    monkeypatch.setitem(sys.modules, "autogen_ext.models.openai", None)
    monkeypatch.setattr(sys, "argv", ["concur", "bench", "--engine", "embedded", "--agents", "autogen"])
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 1
    assert "pip install 'concur-agents[bench,autogen]' 'autogen-ext[openai]'" in capsys.readouterr().err


async def test_overhead_compares_like_with_like():
    taken = await measure(agents=2, steps=3, repeats=2)
    assert all(len(times) == 2 and min(times) > 0 for times in taken.values())
    added = compared(taken)
    assert added.keys() == {"wrapped", "wrapped, run()", "team wrapped, run()"}
    for more in added.values():
        assert more.least <= more.most
