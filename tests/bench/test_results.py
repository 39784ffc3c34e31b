"""Counting from events, and the shape of the result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from concur_agents.bench.recorder import Life, Recorder, jain, percentile
from concur_agents.bench.results import BenchResult, EngineTotals, arm_result, median_arms
from concur_agents.bench.tables import agents_table, results_table, seconds, tokens
from concur_agents.events import Finished, Granted, Paused, Queued, Refused, StepEnded, Tick
from concur_agents.ledger import Revisits
from concur_agents.lifecycle import Outcome, PauseReason
from concur_agents.policies import Unlimited
from concur_agents.regulator import Regulator
from concur_agents.signals import Signals, Window
from tests.bench.rendering import rendered

TOTALS = EngineTotals(hit_tokens=750.0, query_tokens=1000.0, preemptions=2.0)


SEEN = replace(
    Regulator(Unlimited()).snapshot(), revisits=Revisits(hit_tokens=640, tokens=800), shared_prefix_tokens=0
)


def recorded(*events, started_at=0.0):
    recorder = Recorder(started_at)
    for event in events:
        recorder(event)
    return recorder


class TestRecorder:
    def test_a_step_lasts_from_the_ask_to_the_answer(self):
        recorder = recorded(
            Queued(10.0, "a", 1), Granted(14.0, "a", 1, waited=4.0), StepEnded(20.0, "a", tokens=100)
        )
        assert recorder.step_seconds == [10.0]
        assert recorder.waits() == [4.0]
        assert recorder.steps == 1

    def test_an_agent_lasts_from_its_first_ask_to_its_end(self):
        recorder = recorded(
            Granted(5.0, "a", 1, waited=3.0),
            StepEnded(6.0, "a", tokens=10),
            Granted(8.0, "a", 2, waited=0.0),
            StepEnded(9.0, "a", tokens=20),
            Finished(9.5, "a", Outcome.COMPLETED),
            started_at=1.0,
        )
        assert recorder.agent_seconds == [7.5]
        assert recorder.finished_at == 9.5

    def test_those_who_still_wait_count_too(self):
        recorder = recorded(
            Queued(1.0, "a", 1),
            Queued(2.0, "b", 2),
            Queued(3.0, "c", 3),
            Granted(4.0, "a", 1, waited=3.0),
            Refused(5.0, "c", 3),
            Paused(12.0, "d", PauseReason.SHRINK),
        )
        assert sorted(recorder.waits()) == [3.0, 10.0]

    def test_only_shrinks_are_pauses(self):
        recorder = recorded(*(Paused(1.0, "a", reason) for reason in PauseReason))
        assert recorder.pauses == 1

    def test_failed_agents_have_no_duration(self):
        recorder = recorded(
            Granted(1.0, "a", 1, waited=0.0),
            Finished(2.0, "a", Outcome.FAILED),
            Finished(3.0, "b", Outcome.CANCELLED),
        )
        assert recorder.agent_seconds == []
        assert (recorder.ended[Outcome.FAILED], recorder.ended[Outcome.CANCELLED]) == (1, 1)

    def test_sub_agents_are_no_agents_but_their_calls_count(self):
        recorder = recorded(
            Granted(1.0, "agent-1", 1, waited=0.0),
            StepEnded(2.0, "agent-1", tokens=10),
            Granted(2.0, "agent-1/0/sub-0", 2, waited=0.0),
            StepEnded(5.0, "agent-1/0/sub-0", tokens=10),
            Finished(5.0, "agent-1/0/sub-0", Outcome.COMPLETED),
            Finished(6.0, "agent-1", Outcome.COMPLETED),
        )
        assert recorder.ended[Outcome.COMPLETED] == 1
        assert list(recorder.agents) == ["agent-1"]
        assert (recorder.contexts, recorder.steps) == (2, 2)

    def test_the_engine_is_idle_while_no_call_is_in_flight(self):
        recorder = recorded(
            Granted(2.0, "a", 1, waited=1.0),
            Granted(3.0, "b", 2, waited=1.0),
            StepEnded(4.0, "a", tokens=10),
            Finished(6.0, "b", Outcome.FAILED),  # its call failed: no step ended
            Granted(9.0, "a", 3, waited=0.0),
        )
        assert recorder.idle_seconds(9.0) == 2.0 + 3.0

    def test_fairness_is_about_waiting_alike(self):
        alike = recorded(
            *(Granted(5.0, name, ticket, waited=5.0) for ticket, name in enumerate("abcd")),
            *(Finished(10.0, name, Outcome.COMPLETED) for name in "abcd"),
        )
        assert jain([life.free for life in alike.agents.values()]) == pytest.approx(1.0)
        assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
        assert jain([]) is None
        assert Life(0.0).free == 0.0

    def test_samples_are_relative_to_the_start(self):
        signals = Signals(at=107.0, window=Window(agents=8), usage=0.5, active=7, paused=2, waiting=3)
        (sample,) = recorded(Tick(107.0, signals, Window(agents=4)), started_at=100.0).samples
        assert (sample.at, sample.window, sample.usage, sample.hit_rate) == (7.0, 4, 0.5, None)
        assert (sample.active, sample.paused, sample.waiting) == (7, 2, 3)


def test_percentiles():
    assert percentile([], 99) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([float(n) for n in range(101)], 99) == pytest.approx(99.0)


def test_totals():
    assert TOTALS.hit_rate == 0.75
    assert TOTALS.computed_tokens == 250
    assert EngineTotals().hit_rate is None
    assert EngineTotals().computed_tokens is None
    assert EngineTotals(0.0, 0.0).hit_rate is None


def arm(name, ended_at, *, partial=False):
    recorder = recorded(
        Granted(1.0, "a", 1, waited=1.0),
        StepEnded(2.0, "a", tokens=10),
        Finished(ended_at, "a", Outcome.COMPLETED),
        Tick(ended_at + 5, Signals(at=ended_at + 5, window=Window()), Window()),
    )
    return arm_result(name, recorder, TOTALS, SEEN, partial=partial)


class TestResult:
    def bench(self, *arms, **more):
        return BenchResult("sim", "lockstep-a", "aimd", 0, arms, "cpu-tiny", **more)

    def test_time_ends_with_the_last_agent_not_with_the_last_tick(self):
        assert arm("aimd", 50.0).seconds == 50.0
        assert arm("aimd", 50.0, partial=True).seconds == 55.0

    def test_speedup_is_over_no_control(self):
        result = self.bench(arm("none", 100.0), arm("aimd", 40.0))
        assert [result.speedup(a) for a in result.arms] == [1.0, 2.5]

    def test_no_speedup_without_a_complete_pair(self):
        assert self.bench(arm("aimd", 40.0)).speedup(arm("aimd", 40.0)) is None
        cut = self.bench(arm("none", 100.0), arm("aimd", 40.0, partial=True))
        assert cut.speedup(cut.arms[1]) is None
        assert cut.partial
        base_cut = self.bench(arm("none", 100.0, partial=True), arm("aimd", 40.0))
        assert base_cut.speedup(base_cut.arms[1]) is None

    def test_interrupted_between_arms_is_partial(self):
        assert self.bench(arm("none", 100.0), interrupted=True).partial
        assert not self.bench(arm("none", 100.0)).partial

    def test_json_has_the_promised_shape(self):
        result = json.loads(json.dumps(self.bench(arm("none", 100.0), arm("aimd", 40.0)).as_json()))
        assert result["engine"] == "sim"
        assert result["workload"] == "lockstep-a"
        assert result["default_policy"] == "aimd"
        assert result["partial"] is False
        promised = {
            "arm": "aimd",
            "seconds": 40.0,
            "speedup": 2.5,
            "hit_rate": 0.75,
            "revisit_hit_rate": 0.8,
            "prompt_tokens_computed": 250,
            "prompt_tokens_ideal": 200,
            "fairness": 1.0,
            "idle_share": 0.975,
            "agent_ends": {"a": 40.0},
            "pauses": 0,
            "wait_p99_seconds": 1.0,
        }
        row = result["arms"][1]
        assert {key: row[key] for key in promised} == promised
        assert "samples" not in row

    def test_repetitions_show_medians_and_ranges(self):
        reps = tuple((arm("none", slow), arm("law", fast)) for slow, fast in ((100, 40), (90, 30), (110, 50)))
        result = self.bench(*median_arms(reps), reps=reps)
        assert [a.seconds for a in result.arms] == [100, 40]
        assert result.speedup(result.arms[1]) == 2.5
        row = json.loads(json.dumps(result.as_json()))
        assert row["arms"][1]["seconds_range"] == [30, 50]
        assert row["arms"][1]["speedup_range"] == [2.2, 3.0]
        assert [[one["seconds"] for one in rep] for rep in row["reps"]] == [[100, 40], [90, 30], [110, 50]]
        text = rendered(results_table(result))
        assert "30-50" in text
        assert "2.20-3.00" in text

    def test_what_was_cut_short_is_in_no_median(self):
        reps = ((arm("none", 100.0), arm("law", 40.0)), (arm("none", 90.0), arm("law", 5.0, partial=True)))
        result = self.bench(*median_arms(reps), reps=reps)
        assert result.partial
        assert result.arm("law").seconds == 40.0
        assert result.speedups("law") == [2.5]

    def test_agents_are_shown_too(self):
        text = rendered(agents_table(self.bench(arm("none", 100.0), arm("law", 40.0))), width=80)
        assert "…" not in text
        assert "fair-" in text

    def test_the_table_says_what_is_partial_or_failed(self):
        text = rendered(results_table(self.bench(arm("none", 100.0), arm("aimd", 40.0, partial=True))))
        assert "aimd was cut short after 1 steps" in text
        assert "PARTIAL" in text
        whole = rendered(results_table(self.bench(arm("none", 100.0), arm("aimd", 40.0))))
        assert "2.50x" in whole
        assert "PARTIAL" not in whole
        assert "virtual seconds" in whole

    def test_the_table_fits_a_terminal_of_80_columns(self):
        result = self.bench(arm("none", 9_999.0), arm("requests:64", 9_999.0), arm("aimd-paper", 40.0))
        text = rendered(results_table(result), width=80)
        assert "…" not in text
        assert "requests:64" in text


def test_numbers_for_people():
    assert [seconds(x) for x in (None, 3.14159, 1480.4)] == ["—", "3.1 s", "1,480 s"]
    assert [tokens(x) for x in (None, 999, 129_024, 60_686_475)] == ["—", "999", "129 k", "60.7 M"]
