"""Arm names, and the three baselines."""

from __future__ import annotations

import pytest

from concur_agents.errors import InvalidValueError
from concur_agents.policies import AIMD, KNOWN, Policy, RequestLimit, Static, Unlimited, parse
from concur_agents.regulator import Regulator
from concur_agents.signals import Signals, Window


@pytest.mark.parametrize("spec", ["none", "requests:6", "static:12", "aimd", "aimd-seed", "aimd-paper"])
def test_a_policy_is_called_what_it_is_parsed_from(spec):
    policy = parse(spec)
    assert isinstance(policy, Policy)
    assert policy.name == spec


def test_every_known_form_parses():
    for form in KNOWN:
        parse(form.replace("N", "3"))


def test_parsed_policies_share_no_memory():
    assert parse("aimd") is not parse("aimd")


def test_what_is_parsed():
    assert isinstance(parse("none"), Unlimited)
    assert isinstance(parse("aimd"), AIMD)
    assert parse("static:12").initial() == Window(agents=12)
    assert parse("requests:6").initial() == Window(agents=6, grace_seconds=0)


@pytest.mark.parametrize(
    "spec", ["", "nonsense", "static", "static:", "static:x", "static:-1", "static:2.5", "aimd:3", "none:1"]
)
def test_an_unknown_one_lists_the_known(spec):
    with pytest.raises(InvalidValueError) as caught:
        parse(spec)
    assert all(form in str(caught.value) for form in KNOWN)


@pytest.mark.parametrize("spec", ["static:0", "requests:0"])
def test_zero_is_refused(spec):
    with pytest.raises(InvalidValueError, match=r"policy=.*N a whole number >= 1"):
        parse(spec)


@pytest.mark.parametrize("policy", [Unlimited(), Static(3), RequestLimit(3)])
def test_a_baseline_never_moves(policy):
    first = policy.initial()
    congested = Signals(at=0.0, window=first, usage=1.0, hit_rate=0.0, active=3, waiting=9)
    assert policy.update(congested) == first


def test_no_control_admits_everyone():
    regulator = Regulator(Unlimited())
    for index in range(50):
        regulator.open(f"a{index}", 0.0)
        regulator.request(f"a{index}", 0.0)
    assert regulator.snapshot().generating == 50


def test_a_static_cap_keeps_an_agents_place_over_its_boundary():
    regulator = Regulator(Static(1))
    for name in ("a", "b"):
        regulator.open(name, 0.0)
    ticket, _ = regulator.request("a", 0.0)
    regulator.request("b", 0.0)
    regulator.end(ticket, 1.0)
    assert regulator.snapshot().waiting == 1


def test_a_request_cap_gives_the_place_on_at_the_boundary():
    regulator = Regulator(RequestLimit(1))
    for name in ("a", "b"):
        regulator.open(name, 0.0)
    ticket, _ = regulator.request("a", 0.0)
    regulator.request("b", 0.0)
    regulator.end(ticket, 1.0)
    assert regulator.snapshot().waiting == 0
