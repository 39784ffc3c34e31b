"""One arm in virtual time: exact where it can be worked out, ranked as measured where it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concur_agents.bench.distributions import Uniform, always
from concur_agents.bench.library import DEMO, LOCKSTEP_A, SCALE_10K
from concur_agents.bench.session import check_arms, default_policy, run_simulated
from concur_agents.bench.simulate import Simulation, StatsReader
from concur_agents.errors import InvalidValueError
from concur_agents.policies import AIMD, Static, Unlimited, parse
from concur_agents.signals import Quality
from concur_agents.simulator.profiles import CPU_TINY, profile_named
from concur_agents.simulator.records import EngineStats

SMALL = replace(LOCKSTEP_A, name="small", agents=3, steps=always(4), tool_seconds=always(1.0))


def simulate(workload, policy, *, seed=0, profile=CPU_TINY, **options):
    return Simulation(workload, workload.trajectories(seed), profile, policy, **options).run()


class TestByHand:
    def test_one_agent_alone(self):
        """Contexts of 400, 816, 1,232, 1,648: what is found again ends on a block of 128."""
        result = simulate(replace(SMALL, agents=1), Unlimited())
        prompts = [400, 816, 1232, 1648]
        found = [0, 384, 768, 1152]  # of 415, 831 and 1,247 tokens with KV
        assert result.prompt_tokens_computed == sum(prompts) - sum(found)
        assert result.hit_rate == pytest.approx(sum(found) / sum(prompts))
        assert result.revisit_hit_rate == 1.0
        assert result.steps == 4
        assert result.agents_completed == 1
        assert result.longest_wait_seconds == 0.0
        assert result.seconds > 3.0  # three tools of a second each

    def test_a_cap_of_one_agent_makes_them_take_turns(self):
        alone = simulate(replace(SMALL, agents=1), Unlimited())
        result = simulate(SMALL, Static(1))
        assert result.seconds == pytest.approx(3 * alone.seconds)
        assert result.longest_wait_seconds == pytest.approx(2 * alone.seconds)
        assert result.pauses == 0

    def test_late_arrivals_start_late(self):
        late = replace(SMALL, agents=1, arrivals=always(100.0))
        prompt = simulate(replace(SMALL, agents=1), Unlimited())
        assert simulate(late, Unlimited()).seconds == pytest.approx(100.0 + prompt.seconds)

    def test_a_shared_prefix_is_found_by_later_agents(self):
        shared = replace(SMALL, shared_tokens=256, steps=always(1))
        apart = replace(SMALL, first_tokens=always(656), steps=always(1))
        one_by_one = simulate(shared, Static(1))
        assert (
            one_by_one.prompt_tokens_computed == simulate(apart, Static(1)).prompt_tokens_computed - 2 * 256
        )


def test_the_same_again():
    assert simulate(DEMO, AIMD()) == simulate(DEMO, AIMD())
    assert simulate(DEMO, AIMD()) != simulate(DEMO, AIMD(), seed=1)


def test_every_agent_takes_every_step_whatever_the_policy():
    for arm in (*DEMO.arms, "static:1", "requests:1", "aimd-seed", "aimd-paper"):
        result = simulate(DEMO, parse(arm))
        assert (result.agents_completed, result.agents_failed) == (24, 0)
        assert result.steps == 24 * 16


def test_the_product():
    """Request caps change nothing; agent-level control does, without being told the number."""
    result = run_simulated(DEMO, CPU_TINY, ("none", "requests:6", "aimd"))
    none, capped, aimd = result.arms
    assert 0.9 < result.speedup(capped) < 1.1
    assert result.speedup(aimd) > 2.5
    assert aimd.hit_rate > 0.7 > 0.2 > none.hit_rate
    assert aimd.prompt_tokens_computed < none.prompt_tokens_computed / 3


def test_ten_thousand_agents_of_which_a_few_here():
    """The whole of `scale-10k` is a command; the same with 500 agents shows that it runs."""
    few = replace(SCALE_10K, agents=500)
    result = simulate(few, AIMD(), profile=profile_named(few.profile))
    assert result.agents_completed == 500
    assert result.steps == 500 * 20


class TestInterruption:
    def interrupted_after(self, ticks):
        def on_tick(recorder):
            if len(recorder.samples) == ticks:
                raise KeyboardInterrupt

        return on_tick

    def test_leaves_what_there_is(self):
        result = simulate(DEMO, Unlimited(), on_tick=self.interrupted_after(30))
        assert result.partial
        assert 0 < result.steps < 24 * 16
        assert result.seconds == pytest.approx(29.0, abs=1.0)
        assert result.hit_rate is not None

    def test_ends_the_run(self):
        begun = []

        class Watcher:
            def begins(self, arm, steps):
                begun.append(arm)

            ticks = staticmethod(self.interrupted_after(30))

            def ends(self, result):
                pass

        result = run_simulated(DEMO, CPU_TINY, ("none", "aimd"), watcher=Watcher())
        assert [arm.arm for arm in result.arms] == ["none"]
        assert result.partial
        assert begun == ["none"]


class TestReader:
    def test_reads_as_a_scrape_would(self):
        reader = StatsReader(CPU_TINY)
        first = reader.read(EngineStats(usage=0.3, running=2, prompt_tokens=1000, cached_tokens=100), 1.0)
        assert first.quality is Quality.OK
        assert (first.usage, first.hit_rate, first.query_tokens_delta) == (0.3, None, None)
        assert (first.capacity_tokens, first.block_size) == (32_768, 128)
        second = reader.read(
            EngineStats(usage=0.4, waiting=1, prompt_tokens=3000, cached_tokens=1600, preemptions=2), 2.0
        )
        assert (second.query_tokens_delta, second.hit_tokens_delta) == (2000, 1500)
        assert second.hit_rate == 0.75
        assert second.preemptions_delta == 2

    def test_an_idle_engine_uses_nothing_whatever_its_gauge_says(self):
        assert StatsReader(CPU_TINY).read(EngineStats(usage=0.3), 1.0).usage == 0.0

    def test_a_restart_has_no_deltas(self):
        reader = StatsReader(CPU_TINY)
        reader.read(EngineStats(prompt_tokens=1000), 1.0)
        reading = reader.read(EngineStats(prompt_tokens=10, epoch=1), 2.0)
        assert reading.query_tokens_delta is None
        assert reading.epoch == 1


class TestArguments:
    def test_arms(self):
        assert check_arms(["none", "static:4"]) == ("none", "static:4")
        for arms, message in (([], "empty"), (["none", "none"], "twice"), (["best"], "unknown")):
            with pytest.raises(InvalidValueError, match=message):
                check_arms(arms)

    def test_interval(self):
        with pytest.raises(InvalidValueError, match="interval_seconds=0"):
            simulate(SMALL, Unlimited(), interval_seconds=0)

    def test_a_workload_that_does_not_fit_the_engine_says_so(self):
        huge = replace(SMALL, first_tokens=Uniform(9000, 9000))
        with pytest.raises(InvalidValueError, match="exceed the model's context"):
            run_simulated(huge, CPU_TINY, ("none",))

    def test_default_policy(self):
        assert default_policy() == "headroom"


class TestSubAgents:
    FAN_OUT = replace(
        LOCKSTEP_A,
        name="fan",
        agents=2,
        steps=always(3),
        tool_seconds=always(1.0),
        sub_agents=always(2),
        sub_steps=always(2),
    )

    def test_every_step_but_the_last_starts_them(self):
        steps = self.FAN_OUT.trajectory(1, 0).steps
        assert [len(step.sub_agents) for step in steps] == [2, 2, 0]
        ids = [sub.agent_id for step in steps for sub in step.sub_agents]
        assert ids == [
            "agent-00001/0/sub-0",
            "agent-00001/0/sub-1",
            "agent-00001/1/sub-0",
            "agent-00001/1/sub-1",
        ]

    def test_they_share_the_place_of_their_agent_and_all_calls_are_made(self):
        sim = Simulation(self.FAN_OUT, self.FAN_OUT.trajectories(0), profile_named("cpu-tiny"), Static(1))
        sim.run()
        assert sim.engine.stats.finished == 2 * (3 + 2 * 2 * 2)
        after = sim.regulator.snapshot()
        assert (after.open, after.active, after.completed) == (0, 0, 2)

    def test_a_step_waits_for_its_sub_agents(self):
        slow = replace(self.FAN_OUT, agents=1, sub_steps=always(9))
        quick = replace(slow, sub_steps=always(1))
        seconds = [
            Simulation(w, w.trajectories(0), profile_named("cpu-tiny"), Static(1)).run().seconds
            for w in (quick, slow)
        ]
        assert seconds[1] > seconds[0] + 2 * 8 * 1.0
