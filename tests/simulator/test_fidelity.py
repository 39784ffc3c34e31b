"""Profile `cpu-tiny` against vLLM 0.32 (CPU build) on a 2-core machine: the same workloads, the same arms.

The reference times are of one machine on one day; only their ratios to the arm without control count. Hit
rates and computed tokens hardly vary between runs.
"""

from __future__ import annotations

import pytest

from concur_agents.simulator.profiles import CPU_TINY
from tests.simulator.driver import LOCKSTEP_A, LOCKSTEP_B, run

# workload, arm, seconds, hit rate, prompt tokens computed
MEASURED = {
    "A none": (LOCKSTEP_A, {}, 298.2, 0.064, 724_000),
    "A requests:6": (LOCKSTEP_A, {"requests": 6}, 280.0, 0.066, 723_000),
    "A static:10": (LOCKSTEP_A, {"static": 10}, 199.4, 0.512, 378_000),
    "A static:6": (LOCKSTEP_A, {"static": 6}, 105.6, 0.833, 129_000),
    "B none": (LOCKSTEP_B, {}, 701.1, 0.042, 1_517_632),
    "B static:4": (LOCKSTEP_B, {"static": 4}, 171.0, 0.890, 174_912),
}


@pytest.fixture(scope="module")
def simulated():
    return {name: run(workload, CPU_TINY, **arm) for name, (workload, arm, *_) in MEASURED.items()}


@pytest.mark.parametrize("name", MEASURED)
def test_hit_rate_and_time_ratio(simulated, name):
    _, _, seconds, hit_rate, _ = MEASURED[name]
    base = f"{name[0]} none"
    assert simulated[name].hit_rate == pytest.approx(hit_rate, abs=0.05)
    ratio = simulated[name].seconds / simulated[base].seconds
    assert ratio == pytest.approx(seconds / MEASURED[base][2], rel=0.1)


@pytest.mark.parametrize("name", MEASURED)
def test_prompt_tokens_computed(simulated, name):
    assert simulated[name].computed_tokens == pytest.approx(MEASURED[name][4], rel=0.08)


def test_without_eviction_the_tokens_computed_are_exact(simulated):
    """What remains is block rounding, so every block rule shows: 24 agents x 5,376, and 24 x 7,288 tokens."""
    assert simulated["A static:6"].computed_tokens == 129_024
    assert simulated["B static:4"].computed_tokens == 174_912


@pytest.mark.parametrize("workload", "AB")
def test_ranking(simulated, workload):
    arms = [name for name in MEASURED if name.startswith(workload)]
    assert sorted(arms, key=lambda n: simulated[n].seconds) == sorted(arms, key=lambda n: MEASURED[n][2])


def test_absolute_prompt_speed():
    """About 2,400 prompt tokens/s at contexts of 2-5k tokens."""
    costs = CPU_TINY.costs
    speeds = [n / costs.iteration(n, n * (n + 1) / 2, 0, 0) for n in (2000, 3500, 5000)]
    assert sum(speeds) / 3 == pytest.approx(2400, rel=0.25)
