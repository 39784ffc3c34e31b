"""The AIMD laws against traces worked out by hand, and each guard on its own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_agents.errors import InvalidValueError
from concur_agents.policies import AIMD
from concur_agents.signals import Quality, Signals, Window


def see(
    law,
    usage=None,
    hit=None,
    *,
    active=None,
    waiting=5,
    frozen=False,
    engine=(None, None),
    window=None,
    demand=0,
):
    """One tick; by default the window is full and agents wait."""
    current = law._window if window is None else window
    signals = Signals(
        at=0.0,
        window=Window(agents=current),
        usage=usage,
        hit_rate=hit,
        engine_usage=engine[0],
        engine_hit_rate=engine[1],
        demand_tokens=demand,
        active=current if active is None else active,
        waiting=waiting,
        frozen=frozen,
    )
    return law.update(signals).agents


def started(*, slow_start=False, **options):
    law = AIMD(slow_start=slow_start, **options)
    assert law.initial() == Window(agents=law.w_initial)
    return law


class TestTheLaw:
    def test_a_trace_by_hand(self):
        law = started()
        # U, H, W afterwards. 16 agents drain at once here: active is what fits the window in force.
        trace = [
            (0.30, 0.90, 18),  # room and hits: + alpha
            (0.59, 0.70, 20),  # just below tau_low, H at its threshold is healthy
            (0.60, 0.90, 20),  # tau_low itself holds
            (0.84, 0.95, 20),  # between tau_low and tau_high: hold
            (0.85, 0.95, 10),  # tau_high itself is congested
            (0.50, 0.69, 5),  # low H alone cuts
            (0.60, None, 5),  # unknown H is neither
            (0.99, 0.10, 4),  # floor(2.5) = 2 is below w_min
            (0.99, 0.10, 4),
            (0.10, 1.00, 6),
        ]
        assert [see(law, usage, hit) for usage, hit, _ in trace] == [window for *_, window in trace]

    def test_cut_rounds_down(self):
        law = started(w_initial=13)
        assert see(law, 0.9, 1.0) == 6

    def test_unknown_usage_neither_grows_nor_cuts_by_itself(self):
        law = started()
        assert see(law, None, 1.0) == 16
        assert see(law, None, 0.5) == 8

    def test_w_max_caps_growth(self):
        law = started(w_max=17)
        assert see(law, 0.1, 1.0) == 17
        assert see(law, 0.1, 1.0) == 17

    def test_initial_forgets_everything(self):
        law = started()
        see(law, 0.9, 0.1)
        assert law.initial() == Window(agents=16)
        assert see(law, 0.9, 0.1, active=30) == 8

    def test_reads_demand_and_revisits_not_the_engines_gauges(self):
        law = started()
        assert see(law, 0.3, 0.9, engine=(0.99, 0.0)) == 18


class TestGuards:
    @pytest.mark.parametrize(("active", "waiting"), [(15, 5), (16, 0), (3, 0)])
    def test_app_limited_no_growth_without_demand(self, active, waiting):
        assert see(started(), 0.1, 1.0, active=active, waiting=waiting) == 16
        assert see(started(app_limited=False), 0.1, 1.0, active=active, waiting=waiting) == 18

    def test_one_cut_per_drain(self):
        law = started(w_initial=64)
        assert see(law, 0.95, 0.3) == 32
        for still_active in (60, 48, 33):
            assert see(law, 0.95, 0.3, active=still_active) == 32
        assert see(law, 0.95, 0.3, active=32) == 16

    def test_without_it_the_window_falls_to_its_floor_within_one_drain(self):
        law = started(w_initial=64, one_cut_per_drain=False)
        assert [see(law, 0.95, 0.3, active=64) for _ in range(4)] == [32, 16, 8, 4]

    def test_growth_between_cuts_opens_no_loophole(self):
        law = started(w_initial=64)
        assert see(law, 0.95, 0.3) == 32
        assert see(law, 0.10, 0.9, active=40) == 34
        assert see(law, 0.95, 0.3, active=40) == 34

    def test_unknown_hit_holds_or_counts_as_health(self):
        assert see(started(), 0.1, None) == 16
        assert see(started(unknown_hit="healthy"), 0.1, None) == 18
        assert see(started(), 0.9, None) == 8

    def test_frozen_signals_shrink_but_never_grow(self):
        assert see(started(), 0.1, 1.0, frozen=True) == 16
        assert see(started(), 0.9, 1.0, frozen=True) == 8
        assert see(AIMD.seed(), engine=(0.1, 1.0), frozen=True) == 16


class TestSlowStart:
    def test_a_trace_by_hand(self):
        law = started(slow_start=True)
        # U, H, D, W afterwards
        trace = [
            (0.02, None, 0, 16),  # nobody came back yet
            (0.02, 1.00, 8_000, 32),
            (0.02, 1.00, 8_200, 32),  # those admitted last do not show yet
            (0.03, 1.00, 15_999, 32),
            (0.04, 1.00, 16_000, 64),
            (0.29, 1.00, 90_000, 128),
            (0.30, 1.00, 190_000, 130),  # tau_low / 2: adds alpha from here on
            (0.20, 1.00, 900_000, 260),
            (0.90, 1.00, 900_000, 130),
            (0.20, 1.00, 9_000_000, 132),  # never again after a cut
        ]
        assert [see(law, u, h, demand=d) for u, h, d, _ in trace] == [window for *_, window in trace]

    def test_doubling_needs_demand_and_hits_as_any_growth_does(self):
        for seen in ({"active": 10}, {"waiting": 0}, {"frozen": True}):
            assert see(started(slow_start=True), 0.02, 1.0, demand=8_000, **seen) == 16
        assert see(started(slow_start=True), 0.02, 0.6, demand=8_000) == 8

    def test_w_max_caps_it(self):
        assert see(started(slow_start=True, w_max=20), 0.02, 1.0, demand=8_000) == 20

    def test_a_fresh_start_doubles_again(self):
        law = started(slow_start=True)
        see(law, 0.9, 1.0, demand=8_000)
        law.initial()
        assert see(law, 0.02, 1.0, demand=8_000) == 32


class TestSeed:
    def test_a_trace_by_hand(self):
        law = AIMD.seed()
        assert law.initial() == Window(agents=16)
        trace = [
            ((0.50, None), 18),  # no lookup reads as H = 1
            ((0.84, 0.70), 20),  # no dead zone
            ((0.85, 1.00), 10),
            ((0.10, 0.69), 5),
            ((0.10, 0.00), 4),  # max(4, 2)
            ((0.10, 1.00), 6),
        ]
        assert [see(law, engine=engine) for engine, _ in trace] == [window for _, window in trace]

    def test_cuts_every_tick_and_grows_without_demand(self):
        law = AIMD.seed()
        assert [see(law, engine=(0.9, 0.9), active=99) for _ in range(3)] == [8, 4, 4]
        assert see(law, engine=(0.0, None), active=0, waiting=0) == 6

    def test_is_blind_to_demand(self):
        assert see(AIMD.seed(), usage=0.99, hit=0.0, engine=(0.2, 0.9)) == 18


class TestPaper:
    def test_a_trace_by_hand(self):
        law = AIMD.paper()
        assert law.initial() == Window(agents=16)
        trace = [
            ((0.19, 0.00), 18),  # growth looks at U alone
            ((0.20, 1.00), 18),
            ((0.50, 0.00), 18),  # U > 0.5 is strict
            ((0.51, 0.20), 18),  # so is H < 0.2
            ((0.51, 0.19), 9),
            ((0.90, None), 9),
            ((0.90, 0.90), 9),  # high usage with hits is allowed to go on
            ((0.90, 0.10), 4),
            ((0.90, 0.10), 2),
            ((0.90, 0.10), 1),
            ((0.90, 0.10), 1),
            ((0.00, None), 3),
        ]
        assert [see(law, engine=engine) for engine, _ in trace] == [window for _, window in trace]

    def test_holds_where_the_gauge_is_blind(self):
        """A thrashing vLLM was seen at U 0.27 and H 0: the literal law does nothing about it."""
        assert see(AIMD.paper(), engine=(0.27, 0.0)) == 16


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"beta": 1.5}, r"beta=1.5 .*\(0, 1\)"),
            ({"beta": 0}, r"beta=0 .*\(0, 1\)"),
            ({"beta": math.nan}, "beta=nan"),
            ({"alpha": 0}, "alpha=0"),
            ({"tau_high": 0}, "tau_high=0"),
            ({"tau_high": 1.01}, "tau_high=1.01"),
            ({"tau_low": 0.9}, r"tau_low=0.9 .*0.85"),
            ({"tau_hit": -0.1}, "tau_hit=-0.1"),
            ({"w_min": 0}, "w_min=0"),
            ({"w_initial": 3}, r"w_initial=3 .*\[4"),
            ({"w_max": 8}, r"w_max=8 .*\[16"),
            ({"cut_when": "xor"}, "cut_when='xor' .*or, and"),
            ({"unknown_hit": 1.0}, "unknown_hit=1.0 .*hold, healthy"),
            ({"alpha": 1.5}, "alpha=1.5 .*whole number"),
            ({"w_initial": 16.5}, "w_initial=16.5 .*whole number"),
        ],
    )
    def test_a_bad_one_is_named_with_its_range(self, options, field):
        with pytest.raises(InvalidValueError, match=field):
            AIMD(**options)


fraction = st.none() | st.floats(0, 1)
ticks = st.builds(
    Signals,
    at=st.floats(0, 1e6),
    window=st.builds(Window, agents=st.integers(1, 500)),
    quality=st.sampled_from(Quality),
    usage=st.none() | st.floats(0, 50),
    hit_rate=fraction,
    engine_usage=fraction,
    engine_hit_rate=fraction,
    demand_tokens=st.integers(0, 10**7),
    active=st.integers(0, 500),
    waiting=st.integers(0, 500),
    frozen=st.booleans(),
)
laws = st.builds(
    lambda w_min, head, room, alpha, beta, cut_when, app, drain, hit, engine, slow: (
        lambda: AIMD(
            alpha=alpha,
            beta=beta,
            w_min=w_min,
            w_initial=w_min + head,
            w_max=None if room is None else w_min + head + room,
            cut_when=cut_when,
            app_limited=app,
            one_cut_per_drain=drain,
            unknown_hit=hit,
            engine_signals=engine,
            slow_start=slow,
        )
    ),
    st.integers(1, 9),
    st.integers(0, 30),
    st.none() | st.integers(0, 50),
    st.integers(1, 9),
    st.floats(0.01, 0.99),
    st.sampled_from(["or", "and"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["hold", "healthy"]),
    st.booleans(),
    st.booleans(),
)


@given(st.sampled_from([AIMD, AIMD.seed, AIMD.paper]) | laws, st.lists(ticks, max_size=60))
def test_any_signals_give_a_window_within_bounds_and_the_same_one_again(make, trace):
    law, twin = make(), make()
    law.initial(), twin.initial()
    for signals in trace:
        window = law.update(signals)
        assert window == twin.update(signals)
        assert law.w_min <= window.agents <= (law.w_max or math.inf)
        assert window.tokens is None
        assert window.grace_seconds is None


@given(laws, ticks)
def test_it_never_both_grows_and_is_congested(make, signals):
    law = make()
    law.initial()
    window = law.update(signals).agents
    usage = signals.engine_usage if law.engine_signals else signals.usage
    if window > law.w_initial:
        assert usage is not None
        assert usage < law.tau_low
        assert not signals.frozen
        assert not law.app_limited or (signals.waiting and signals.active >= law.w_initial)
