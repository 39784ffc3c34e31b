"""Claims that are commands: the published headline, fidelity to a real engine, the cost of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concur_agents.bench import fidelity, gate, paper
from concur_agents.bench.library import DEEPSEEK_V3_40, QWEN3_32B_256
from tests.bench.rendering import rendered


@pytest.fixture(scope="module")
def headlines():
    return {h.workload: paper.run_headline(h, arms=("none", "aimd"), seeds=(0,)) for h in paper.HEADLINES}


class TestPaper:
    def test_qwen_is_three_times_faster(self, headlines):
        study = headlines[QWEN3_32B_256]
        assert study.speedups("aimd")[0] >= 3.0

    def test_deepseeks_hit_rate(self, headlines):
        (result,) = headlines[DEEPSEEK_V3_40].results
        assert result.arm("none").hit_rate <= 0.45
        assert result.arm("aimd").hit_rate >= 0.70
        assert result.speedup(result.arm("aimd")) > 1.0

    def test_the_published_numbers_stand_beside_ours(self, headlines):
        text = rendered(paper.headline_table(headlines[QWEN3_32B_256]))
        assert "1,480 s" in text
        assert "TP8" in text
        published = {h.workload.name: h.rows for h in paper.HEADLINES}
        qwen, deepseek = published["qwen3-32b-256"], published["deepseek-v3-40"]
        assert qwen["none"].seconds / qwen["aimd-paper"].seconds == pytest.approx(4.09, abs=0.005)
        assert deepseek["none"].seconds / deepseek["aimd-paper"].seconds == pytest.approx(1.90, abs=0.005)

    def test_the_range_is_over_all_seeds(self, headlines):
        study = headlines[QWEN3_32B_256]
        first = study.results[0]
        slower = tuple(
            replace(arm, seconds=arm.seconds * (2 if arm.arm == "aimd" else 1)) for arm in first.arms
        )
        both = paper.Study(study.headline, (first, replace(first, arms=slower)))
        one, half = both.speedups("aimd")
        assert half == pytest.approx(one / 2)
        assert f"({half:.2f}-{one:.2f})" in rendered(paper.headline_table(both))


@pytest.fixture(scope="module")
def found():
    return fidelity.compare()


class TestFidelity:
    def test_is_within_its_bounds(self, found):
        assert found.ok
        assert len(found.comparisons) == len(fidelity.MEASURED)
        assert "the same" in rendered(fidelity.fidelity_table(found))

    @pytest.mark.parametrize("change", [{"hit_rate": 0.9}, {"ratio": 2.0}])
    def test_notices_when_it_is_not(self, found, change):
        off = replace(found, comparisons=(replace(found.comparisons[0], **change), *found.comparisons[1:]))
        assert not off.ok
        assert off.as_json()["comparisons"][0]["ok"] is False

    def test_notices_another_ranking(self, found):
        off = replace(found, misranked=("lockstep-a",))
        assert not off.ok
        assert "another on lockstep-a" in rendered(fidelity.fidelity_table(off))


class TestGate:
    async def test_measures_what_it_says(self):
        rounds = []
        result = await gate.measure(populations=(3, 50), rounds=3, steps=40, on_round=rounds.append)
        assert rounds == [1, 2, 3]
        assert len(result.timings) == 6
        assert all(len(t.microseconds) == 3 and t.best > 0 for t in result.timings)
        assert result.step_over_capacity_limiter == result.few.over(result.limiter)
        assert result.growth == result.many.over(result.few)
        text = rendered(gate.gate_table(result))
        assert "3 agents wait" in text
        assert "50 agents wait" in text

    def test_ratios_are_formed_within_a_round(self):
        slow_machine = gate.Timing("a", (1.0, 10.0, 2.0))
        twice = gate.Timing("b", (2.0, 20.0, 4.0))
        assert twice.over(slow_machine) == 2.0
        assert (slow_machine.best, slow_machine.median, slow_machine.spread) == (1.0, 2.0, 4.5)

    def test_json(self):
        one, two, four = (gate.Timing(str(x), (x, x)) for x in (1.0, 2.0, 4.0))
        result = gate.GateResult(one, two, four, (), (10, 100_000))
        assert result.as_json()["step_over_capacity_limiter"] == 2.0
        assert result.as_json()["growth_10_to_100k"] == 2.0
        assert not result.ok  # grows more than 1.5 times
        assert gate.GateResult(one, two, two, (), (10, 100_000)).ok

    async def test_bad_populations(self):
        with pytest.raises(ValueError, match=r"populations\[1\]=5"):
            await gate.measure(populations=(10, 5))
