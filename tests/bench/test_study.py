"""The table of ratios: right by hand where it can be, and a law is compared with the best of all caps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concur_agents.bench.library import LOCKSTEP_B, QWEN3_32B_256, profile_for, workload_named
from concur_agents.bench.sampled import sampled
from concur_agents.bench.study import Mean, Row, StudyResult, caps_of, run_study, study_table
from concur_agents.errors import InvalidValueError


def row(name: str, best: float, **policies: float) -> Row:
    return Row(name, 4, Mean(best, 10.0), {p: Mean(seconds, 5.0) for p, seconds in policies.items()})


def test_ratios_are_over_the_best_cap():
    result = StudyResult(1, (row("a", 100, none=400, law=50), row("b", 10, none=10, law=20)))
    assert result.mean_ratio("law") == pytest.approx(1.0)
    assert result.mean_ratio("none") == pytest.approx(2.0)
    assert result.worst_ratio("law") == 2.0
    assert result.rows[0].wait_ratio("law") == 0.5
    assert result.worst_over_none("law") == 2.0
    assert result.worst_wait("law") == 0.5
    assert result.as_json()["policies"]["none"] == {
        "mean_ratio": pytest.approx(2.0),
        "worst_ratio": 4.0,
        "worst_over_none": 1.0,
        "worst_wait_ratio": 0.5,
    }


def test_caps_reach_from_few_to_all():
    assert caps_of(LOCKSTEP_B)[0] == 2
    assert caps_of(LOCKSTEP_B)[-1] == LOCKSTEP_B.agents
    assert caps_of(QWEN3_32B_256)[0] == 16
    assert caps_of(QWEN3_32B_256)[-1] == 256


def test_a_law_that_needs_no_tuning_matches_the_best_cap_and_no_control_does_not():
    seen = []
    result = run_study(
        names=("lockstep-b", "long-tools"),
        policies=("none", "headroom", "aimd-paper"),
        seeds=2,
        on_row=lambda r: seen.append(r.workload),
        processes=1,
    )
    assert sorted(seen) == ["lockstep-b", "long-tools"]
    lockstep, long_tools = result.rows
    assert lockstep.best_cap in (4, 5)
    assert lockstep.ratio("none") > 3 * lockstep.ratio("headroom")
    assert long_tools.best_cap == 24
    assert result.worst_ratio("headroom") < 1.05
    assert study_table(result).row_count == 2 + 4
    both = replace(
        result, sampled=run_study(names=("sampled:3",), policies=tuple(result.rows[0].policies), seeds=1)
    )
    assert study_table(both).row_count == 2 + 4 + 1 + 4


@pytest.mark.parametrize("number", range(40))
def test_sampled_workloads_run_and_stay_what_they_are(number):
    workload = sampled(number)
    assert workload == sampled(number) == workload_named(f"sampled:{number}")
    profile = profile_for(workload)
    assert profile.kv_tokens <= workload.kv_tokens
    longest = max(
        workload.shared_tokens + sum(step.new_tokens + step.generate for step in trajectory.steps)
        for trajectory in workload.trajectories(0)
    )
    assert longest < profile.max_model_len


def test_unknown_workloads_and_no_seeds_are_refused():
    with pytest.raises(InvalidValueError, match="workload='x'"):
        run_study(names=("x",))
    with pytest.raises(InvalidValueError, match="seeds=0"):
        run_study(seeds=0)
