"""The headroom law against traces computed by hand."""

from __future__ import annotations

import pytest

from concur_agents import Controller
from concur_agents.errors import InvalidValueError
from concur_agents.policies import Headroom, parse
from concur_agents.signals import Pace, Signals, StepsAhead, Window

BLIND = Window()


def seen(**facts) -> Signals:
    known = {"capacity_tokens": 1000, "growth_tokens": 10.0, "waiting": 5, **facts}
    return Signals(at=0.0, window=BLIND, **known)


def test_starts_with_a_few_agents_until_growth_is_known():
    law = Headroom(w_initial=3)
    first = Window(agents=3, idle_grace_seconds=2.0)
    assert law.initial() == first
    assert law.update(seen(growth_tokens=None)) == first


def test_then_counts_tokens_with_room_for_steps_and_paces_new_agents():
    law = Headroom(fill=0.9, start=6, resume=4, pace_fill=0.5, steps_expected=4)
    window = law.update(seen())
    # Little's law: 0.5 x 900 tokens over 10 x 4 x 4 / 2 tokens x rounds of a trajectory of 4 steps.
    assert window == Window(
        tokens=900, ahead=StepsAhead(6, 4, 1), idle_grace_seconds=2.0, pace=Pace(450 / 80)
    )


def test_the_pace_follows_what_trajectories_turned_out_to_take():
    law = Headroom(fill=1.0, pace_fill=1.0, steps_expected=4)
    assert law.update(seen(residency_tokens=200.0, ended=1)).pace == Pace(1000 / 140)  # 80 expected, 200 seen
    assert law.update(seen(residency_tokens=200.0, ended=255)).pace.per_round == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize(
    ("load", "paced", "order"), [(0.35, True, None), (0.34, False, None), (0.24, False, "smallest")]
)
def test_an_engine_with_room_is_not_paced(load, paced, order):
    window = Headroom().update(seen(load=load))
    assert (window.pace is not None, window.resume) == (paced, order)
    assert window.ahead.idle == (None if paced else 1.0)


def test_a_cache_that_is_recomputed_within_a_round_is_not_protected():
    law = Headroom(fill=0.9)
    window = law.update(seen(recompute_tokens=2500.0, hit_rate=0.0))
    assert (window.tokens, window.pace) == (2500, None)
    assert law.update(seen(recompute_tokens=899.0)).tokens == 900, "misses were no congestion"
    assert law.update(seen(recompute_tokens=950.0, hit_rate=0.0)).tokens == 950


def test_a_low_hit_rate_cuts_the_share_once_per_drain():
    law = Headroom(fill=1.0, beta=0.5, alpha=0.1)
    low = {"hit_rate": 0.1, "demand_tokens": 900}
    assert law.update(seen(**low)).tokens == 500
    assert law.update(seen(**low)).tokens == 500  # it has not drained: 900 > 500
    assert law.update(seen(hit_rate=0.1, demand_tokens=500)).tokens == 250
    assert law.update(seen(hit_rate=0.1, demand_tokens=200)).tokens == 200  # the floor


def test_the_share_comes_back_step_by_step_while_somebody_waits():
    law = Headroom(fill=1.0, beta=0.5, alpha=0.25)
    law.update(seen(hit_rate=0.0))
    good = {"hit_rate": 0.9}
    assert law.update(seen(**good, waiting=0)).tokens == 500
    assert law.update(seen(**good, frozen=True)).tokens == 500
    assert law.update(seen(hit_rate=None)).tokens == 500
    assert [law.update(seen(**good)).tokens for _ in range(3)] == [750, 1000, 1000]


def test_without_a_capacity_it_is_aimd():
    law = Headroom()
    window = law.update(seen(capacity_tokens=None, usage=None, hit_rate=0.1))
    assert window == Window(agents=8)


def test_initial_forgets():
    law = Headroom(fill=1.0)
    law.update(seen(hit_rate=0.0))
    law.initial()
    assert law.update(seen()).tokens == 1000


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("start", {"start": -1.0}),
        ("resume", {"resume": -0.5}),
        ("idle", {"idle": -1.0}),
        ("pace_fill", {"pace_fill": 0.0}),
        ("steps_expected", {"steps_expected": 0.5}),
        ("load_paced", {"load_paced": 1.5}),
        ("load_in_order", {"load_in_order": -0.1}),
        ("fill", {"fill": 1.5}),
        ("tau_hit", {"tau_hit": -0.1}),
        ("alpha", {"alpha": 2.0}),
        ("beta", {"beta": 1.0}),
        ("floor", {"floor": 0.0}),
        ("w_initial", {"w_initial": 0}),
        ("idle_grace_seconds", {"idle_grace_seconds": -1.0}),
    ],
)
def test_bad_arguments_name_the_field(field, options):
    with pytest.raises(InvalidValueError) as error:
        Headroom(**options)
    assert str(error.value).startswith(f"{field}=")


def test_has_a_name_for_tables():
    assert parse("headroom").name == "headroom"


def test_is_the_default():
    assert isinstance(Controller().policy, Headroom)
