"""From readings to windows: what the policy sees, and when growth is frozen."""

from __future__ import annotations

from concur_agents.events import TelemetryChanged, Tick
from concur_agents.lifecycle import Usage
from concur_agents.policies import AIMD
from concur_agents.regulator import Regulator
from concur_agents.signals import Quality, Reading, Signals, Window


class Recorder:
    name = "recorder"

    def __init__(self, window: Window | None = None) -> None:
        self.window = window or Window(agents=4)
        self.seen: list[Signals] = []

    def initial(self) -> Window:
        return self.window

    def update(self, signals: Signals) -> Window:
        self.seen.append(signals)
        return self.window


def reading(at: float, quality: Quality = Quality.OK, **values) -> Reading:
    return Reading(at, quality, **values)


def step(regulator: Regulator, name: str, usage: Usage, now: float = 0.0) -> None:
    if name not in regulator.admission.census:
        regulator.open(name, now)
    ticket, _ = regulator.request(name, now)
    regulator.end(ticket, now, usage)


def test_u_is_the_larger_of_the_gauge_and_the_demand() -> None:
    regulator = Regulator(policy := Recorder(), block_size=1)
    step(regulator, "a", Usage(600))
    regulator.tick(reading(1, usage=0.27, capacity_tokens=1000), 1)
    assert policy.seen[-1].usage == 0.6  # the gauge counts running requests only
    assert policy.seen[-1].engine_usage == 0.27
    regulator.tick(reading(2, usage=0.9, capacity_tokens=1000), 2)
    assert policy.seen[-1].usage == 0.9


def test_nothing_known_is_none_not_zero() -> None:
    regulator = Regulator(policy := Recorder())
    step(regulator, "a", Usage(600))
    regulator.tick(None, 1)
    seen = policy.seen[-1]
    assert (seen.usage, seen.hit_rate, seen.engine_hit_rate) == (None, None, None)
    assert not seen.frozen  # no telemetry by choice is not telemetry lost


def test_growth_is_frozen_when_telemetry_is_silent_too_long_and_thaws() -> None:
    regulator = Regulator(policy := Recorder(), stale_after_seconds=10)
    regulator.tick(reading(0), 0)
    for now in (5, 10, 11):
        regulator.tick(reading(now, Quality.STALE, reason="refused"), now)
    assert [seen.frozen for seen in policy.seen] == [False, False, False, True]
    regulator.tick(reading(12), 12)
    assert not policy.seen[-1].frozen


def test_telemetry_that_never_answered_freezes_too() -> None:
    regulator = Regulator(policy := Recorder(), stale_after_seconds=10)
    for now in (0, 11):
        regulator.tick(reading(now, Quality.ABSENT, reason="404"), now)
    assert policy.seen[-1].frozen


def test_a_change_of_quality_is_one_event() -> None:
    regulator = Regulator(Recorder())
    changes = []
    for now, quality in enumerate(
        [Quality.OK, Quality.STALE, Quality.STALE, Quality.OK, Quality.UNRELIABLE, Quality.UNRELIABLE]
    ):
        events = regulator.tick(reading(now, quality, reason=f"reason {now}"), now)
        changes += [event.after for event in events if isinstance(event, TelemetryChanged)]
    assert changes == [Quality.OK, Quality.STALE, Quality.OK, Quality.UNRELIABLE]


def test_an_engine_restart_is_no_congestion() -> None:
    regulator = Regulator(policy := Recorder(), block_size=1)
    regulator.tick(reading(0, capacity_tokens=1000), 0)
    step(regulator, "a", Usage(501, 0, 0))
    regulator.tick(reading(1, capacity_tokens=1000, epoch=1), 1)
    step(regulator, "a", Usage(601, 0, 0))  # all recomputed: the cache is gone with the old engine
    regulator.tick(reading(2, capacity_tokens=1000, epoch=1), 2)
    assert policy.seen[-1].hit_rate is None
    step(regulator, "a", Usage(701, 0, 600))
    regulator.tick(reading(3, capacity_tokens=1000, epoch=1), 3)
    assert policy.seen[-1].hit_rate == 1.0


def test_unreliable_counters_are_not_used_for_h() -> None:
    regulator = Regulator(policy := Recorder(), block_size=1, capacity_tokens=100)
    step(regulator, "a", Usage(101))
    step(regulator, "a", Usage(201))
    regulator.tick(reading(1, Quality.UNRELIABLE, hit_tokens_delta=0.0, query_tokens_delta=9e9), 1)
    assert policy.seen[-1].hit_rate is None


def test_the_engines_block_size_counts_every_context_anew() -> None:
    regulator = Regulator(Recorder(Window(agents=4, tokens=1000)), block_size=16)
    step(regulator, "a", Usage(100))
    step(regulator, "b", Usage(300))
    assert regulator.snapshot().demand_tokens == 112 + 304
    regulator.tick(reading(1, block_size=128, capacity_tokens=4096), 1)
    assert regulator.snapshot().demand_tokens == 128 + 384
    regulator.finish("a", 2)
    regulator.finish("b", 2)
    assert regulator.snapshot().demand_tokens == 0


def test_each_tick_says_what_was_seen_and_decided() -> None:
    regulator = Regulator(policy := Recorder())
    policy.window = Window(agents=2)
    tick = regulator.tick(None, 1)[-1]
    assert isinstance(tick, Tick)
    assert tick.signals.window == Window(agents=4)
    assert tick.window == regulator.snapshot().window == Window(agents=2)


def test_grace_reclaims_on_the_tick() -> None:
    regulator = Regulator(Recorder(Window(agents=1, grace_seconds=30)))
    step(regulator, "thinker", Usage(1))
    regulator.open("next", 0)
    regulator.request("next", 1)
    regulator.tick(None, 29)
    assert regulator.snapshot().waiting == 1
    regulator.tick(None, 30)
    assert (regulator.snapshot().waiting, regulator.snapshot().paused) == (0, 1)


def test_the_gauge_of_a_dead_endpoint_is_not_read_again_and_again() -> None:
    regulator = Regulator(AIMD(w_initial=32), block_size=1)
    regulator.tick(reading(0, usage=0.9, capacity_tokens=10_000), 0)
    for now in range(1, 60):
        regulator.tick(reading(now, Quality.STALE, usage=0.9, capacity_tokens=10_000), now)
    assert regulator.snapshot().window.agents == 16  # one cut, for the one look that said so
