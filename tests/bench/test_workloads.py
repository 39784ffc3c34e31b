"""Trajectories are the same for every arm, differ between agents, and stay within what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concur_agents.bench.distributions import Uniform
from concur_agents.bench.library import (
    DEEPSEEK_V3_40,
    DEMO,
    LOCKSTEP_A,
    QWEN3_32B_256,
    workload_named,
    workloads,
)
from concur_agents.errors import InvalidValueError
from concur_agents.policies import parse
from concur_agents.simulator.profiles import profile_named


@pytest.mark.parametrize("workload", workloads().values(), ids=lambda w: w.name)
class TestEveryWorkload:
    def test_is_drawn_from_seed_and_index_only(self, workload):
        some = [workload.trajectory(index, 3) for index in (7, 0, 7)]
        assert some[0] == some[2]
        assert some[0].steps != some[1].steps
        assert some[0] != workload.trajectory(7, 4)

    def test_fits_its_engine(self, workload):
        longest = profile_named(workload.profile).max_model_len
        for index in range(min(workload.agents, 100)):
            steps = workload.trajectory(index, 0).steps
            total = workload.shared_tokens + sum(step.new_tokens + step.generate for step in steps)
            assert total <= longest

    def test_its_arms_exist_and_start_with_no_control(self, workload):
        assert [parse(arm).name for arm in workload.arms] == list(workload.arms)
        assert workload.arms[0] == "none"

    def test_says_where_its_numbers_come_from(self, workload):
        assert len(workload.source) > 20


def test_lockstep_a_is_the_measured_one():
    trajectories = LOCKSTEP_A.trajectories(0)
    assert len(trajectories) == 24
    for trajectory in trajectories:
        assert [(step.new_tokens, step.generate) for step in trajectory.steps] == [(400, 16)] * 12
        assert all(0.5 <= step.tool_seconds <= 1.5 for step in trajectory.steps)


@pytest.mark.parametrize(
    ("workload", "tokens"),
    [
        (QWEN3_32B_256, 1.5e9 / 262_144),  # 1.5 GB of KV, 256 KiB a token
        (DEEPSEEK_V3_40, 17e9 / (6.67e9 / 4096)),
    ],
)
def test_the_context_at_step_10_is_the_papers(workload, tokens):
    """The prompt of step 10 holds the first prompt and nine growths."""
    contexts = []
    for seed in range(20):
        for trajectory in workload.trajectories(seed):
            first, *rest = trajectory.steps[:10]
            contexts.append(first.new_tokens + first.generate + sum(s.new_tokens + s.generate for s in rest))
    # Nine tool outputs and ten answers are in it after the step; the tenth answer is not in the prompt.
    mean = sum(contexts) / len(contexts) - (workload.generate.low + workload.generate.high) / 2
    assert mean == pytest.approx(tokens, rel=0.02)


def test_a_trajectory_ends_before_its_context_overflows():
    tight = replace(DEMO, max_context=1000)
    for trajectory in tight.trajectories(0):
        total = tight.shared_tokens + sum(step.new_tokens + step.generate for step in trajectory.steps)
        assert total <= 1000
        assert 1 <= len(trajectory.steps) < 16


def test_arrivals_are_spread_when_asked():
    spread = replace(LOCKSTEP_A, arrivals=Uniform(0, 60))
    times = [trajectory.arrives_at for trajectory in spread.trajectories(0)]
    assert max(times) > 40
    assert min(times) < 20
    assert all(trajectory.arrives_at == 0 for trajectory in LOCKSTEP_A.trajectories(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": 0}, "agents=0"),
        ({"shared_tokens": -1}, "shared_tokens=-1"),
        ({"generate": Uniform(0, 1)}, r"generate.low=0"),
        ({"max_context": 1}, "max_context=1"),
    ],
)
def test_nonsense_is_refused(change, message):
    with pytest.raises(InvalidValueError, match=message):
        replace(LOCKSTEP_A, **change)


def test_a_range_has_its_ends_in_order():
    with pytest.raises(InvalidValueError, match="high=1"):
        Uniform(2, 1)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(InvalidValueError, match=r"'x' is unknown.*lockstep-a.*scale-10k"):
        workload_named("x")
