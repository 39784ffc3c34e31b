"""Branches and sub-agents: one place in the window, one context each in the ledger."""

from __future__ import annotations

import pytest

from concur_agents.admission import Admission
from concur_agents.errors import AgentFinishedError, DuplicateAgentError, UnknownAgentError
from concur_agents.events import Event, Finished, Granted, Paused, Refused
from concur_agents.ledger import Ledger
from concur_agents.lifecycle import AgentStatus, Outcome, Usage
from concur_agents.selection import Selection
from concur_agents.signals import Window


def machine(**window) -> Admission:
    return Admission(Window(**window), ledger=Ledger(block_size=1))


def granted(events: list[Event]) -> list[int]:
    return [event.ticket for event in events if isinstance(event, Granted)]


def ask(gate: Admission, name: str, now: float = 0.0) -> tuple[int, bool]:
    ticket, events = gate.request(name, now)
    return ticket, ticket in granted(events)


def test_a_sub_agent_runs_on_its_parents_place() -> None:
    gate = machine(agents=1)
    for name in ("parent", "other"):
        gate.open(name, 0)
    assert ask(gate, "parent")[1]
    gate.open("child", 0, parent="parent")
    gate.open("grandchild", 0, parent="child")
    assert not ask(gate, "other")[1]
    assert ask(gate, "child")[1]
    assert ask(gate, "grandchild")[1]
    assert gate.active == 1


def test_four_parents_with_two_children_each_get_through_a_window_of_one() -> None:
    gate = machine(agents=1)
    waiting: dict[int, str] = {}
    for p in range(4):
        gate.open(f"p{p}", 0)
        ticket, now_running = ask(gate, f"p{p}")
        if not now_running:
            waiting[ticket] = f"p{p}"
    finished = []
    running = "p0"
    while True:
        parent_step = next(iter(gate.census.find(running)[1].in_flight))
        gate.end(parent_step, 1, Usage(10))
        for c in range(2):  # the tool calls two sub-agents while the parent is at its boundary
            gate.open(f"{running}/{c}", 1, parent=running)
            ticket, immediate = ask(gate, f"{running}/{c}", 1)
            assert immediate
            gate.end(ticket, 2, Usage(5))
            gate.finish(f"{running}/{c}", 2)
        events = gate.finish(running, 3)
        finished.append(running)
        woken = granted(events)
        if not woken:
            break
        running = waiting[woken[0]]
    assert finished == ["p0", "p1", "p2", "p3"]
    assert gate.active == 0


def test_a_fan_out_is_one_agent_in_the_window_and_eight_contexts_in_the_ledger() -> None:
    gate = machine(agents=1)
    gate.open("root", 0)
    for n in range(8):
        gate.open(f"root/{n}", 0, parent="root")
        ticket, immediate = ask(gate, f"root/{n}")
        assert immediate
        gate.end(ticket, 1, Usage(100))
    assert gate.active == 1
    assert gate.demand_tokens == 800
    gate.finish("root/0", 2)
    assert gate.demand_tokens == 700


def test_an_agent_is_at_a_boundary_only_when_no_branch_has_a_call_in_flight() -> None:
    gate = machine(agents=2)
    gate.open("old", 0)
    ask(gate, "old")
    gate.open("new", 0)
    first, _ = ask(gate, "new")
    gate.open("branch", 0, parent="new")
    second, _ = ask(gate, "branch")
    gate.set_window(Window(agents=1), 1)
    agent, _ = gate.census.find("new")
    assert agent.leaving
    gate.end(first, 2)
    assert agent.status is AgentStatus.GENERATING
    events = gate.end(second, 3)
    assert [event.agent_id for event in events if isinstance(event, Paused)] == ["new"]


def test_one_grant_wakes_all_waiting_branches() -> None:
    gate = machine(agents=1)
    gate.open("holder", 0)
    ask(gate, "holder")
    gate.open("fan", 0)
    tickets = []
    for n in range(3):
        gate.open(f"fan/{n}", 0, parent="fan")
        tickets.append(ask(gate, f"fan/{n}")[0])
    assert gate.waiting == 1
    assert sorted(granted(gate.finish("holder", 1))) == tickets


def leaving_agent_with_a_branch(gate: Admission) -> tuple[int, int]:
    """An agent marked to leave, its own call over, one branch still generating."""
    for name in ("old", "new"):
        gate.open(name, 0)
    ask(gate, "old")
    own, _ = ask(gate, "new")
    gate.open("branch", 0, parent="new")
    branch, _ = ask(gate, "branch")
    gate.set_window(Window(agents=1), 1)
    return own, branch


def test_a_leaving_agent_starts_no_more_calls_beside_those_in_flight() -> None:
    gate = machine(agents=2)
    own, branch = leaving_agent_with_a_branch(gate)
    gate.end(own, 1)
    again, immediate = ask(gate, "new", 2)  # its branch's call ends by itself: waiting is safe
    assert not immediate
    assert not granted(gate.end(branch, 3))  # boundary: paused, and the waiting call queues
    assert again in granted(gate.finish("old", 4))


def test_a_call_inside_an_open_step_of_its_lineage_never_waits() -> None:
    gate = machine(agents=2)
    own, _ = leaving_agent_with_a_branch(gate)
    gate.open("inner", 1, parent="branch")
    assert ask(gate, "inner", 2)[1]  # the branch's open step may be waiting for it
    gate.end(own, 2)


def test_room_lets_a_leaving_agent_stay_and_starts_its_waiting_calls() -> None:
    gate = machine(agents=2)
    own, _ = leaving_agent_with_a_branch(gate)
    gate.end(own, 1)
    again, _ = ask(gate, "new", 2)
    assert again in granted(gate.finish("old", 3))


def test_resume_before_the_boundary_starts_the_waiting_calls() -> None:
    gate = machine(agents=2)
    gate.open("a", 0)
    own, _ = ask(gate, "a")
    gate.open("branch", 0, parent="a")
    ask(gate, "branch")
    gate.pause("a", 1)
    gate.end(own, 2)
    again, immediate = ask(gate, "a", 3)
    assert not immediate
    assert again in granted(gate.resume("a", 4))


def test_finishing_a_trajectory_finishes_its_family() -> None:
    gate = machine(agents=1)
    gate.open("other", 0)
    ask(gate, "other")
    gate.open("root", 0)
    gate.open("kid", 0, parent="root")
    ticket, _ = ask(gate, "kid")
    events = gate.finish("root", 1, Outcome.FAILED)
    assert [event.ticket for event in events if isinstance(event, Refused)] == [ticket]
    assert {event.agent_id for event in events if isinstance(event, Finished)} == {"root", "kid"}
    with pytest.raises(AgentFinishedError, match="kid"):
        gate.request("kid", 2)
    assert gate.end(ticket, 2) == []
    assert gate.waiting == 0


def test_a_finished_branch_frees_its_tokens_and_not_the_place() -> None:
    gate = machine(agents=1)
    gate.open("root", 0)
    step, _ = ask(gate, "root")
    gate.open("kid", 0, parent="root")
    kid, _ = ask(gate, "kid")
    gate.end(kid, 1, Usage(50))
    assert gate.demand_tokens == 50
    gate.finish("kid", 1)
    assert (gate.demand_tokens, gate.active) == (0, 1)
    gate.end(step, 2)
    assert gate.census.find("root")[0].status is AgentStatus.TOOL_EXECUTION


def test_errors_name_what_is_wrong() -> None:
    gate = machine()
    with pytest.raises(UnknownAgentError, match="agent_id='ghost' is unknown"):
        gate.finish("ghost", 0)
    with pytest.raises(UnknownAgentError, match="ghost"):
        gate.request("ghost", 0)
    with pytest.raises(UnknownAgentError, match="ghost"):
        gate.open("x", 0, parent="ghost")
    gate.open("a", 0)
    with pytest.raises(DuplicateAgentError, match="'a' is running already"):
        gate.open("a", 0)
    gate.finish("a", 0)
    gate.open("a", 1)  # one after the other is fine
    for bad in ("", None, 3):
        with pytest.raises(ValueError, match="agent_id"):
            gate.open(bad, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="context_tokens=-1"):
        gate.open("b", 0, context_tokens=-1)
    assert len(gate.census) == 1  # the refused ones left nothing behind


def test_a_child_that_comes_and_goes_does_not_restart_its_parents_grace() -> None:
    gate = machine(agents=1, grace_seconds=60)
    gate.open("root", 0)
    step, _ = ask(gate, "root")
    gate.end(step, 0)
    gate.open("other", 1)
    for n in range(1, 6):
        gate.open(f"kid{n}", n * 10, parent="root")
        gate.finish(f"kid{n}", n * 10 + 1)
    ticket, immediate = ask(gate, "other", 59)
    assert not immediate
    assert ticket in granted(gate.advance(60))


def test_who_started_comes_back_before_new_ones_however_long_these_have_waited() -> None:
    gate = Admission(Window(agents=2), ledger=Ledger(block_size=1), max_wait_seconds=10)
    gate.open("a", 0)
    gate.open("b", 0)
    ask(gate, "a")
    b, _ = ask(gate, "b")
    for n in range(5):
        gate.open(f"new{n}", 0)
        ask(gate, f"new{n}")
    gate.set_window(Window(agents=1), 1)
    gate.end(b, 2)
    again, immediate = ask(gate, "b", 1000)
    assert not immediate
    assert again in granted(gate.finish("a", 2000))


def test_a_low_priority_that_waits_too_long_goes_before_a_high_one() -> None:
    gate = Admission(Window(agents=1), ledger=Ledger(block_size=1), max_wait_seconds=10)
    gate.open("holder", 0)
    ask(gate, "holder")
    gate.open("low", 0)
    gate.open("high", 0, priority=5)
    low, _ = ask(gate, "low", 0)
    high, _ = ask(gate, "high", 5)
    assert low in granted(gate.finish("holder", 11))
    assert high in granted(gate.finish("low", 11))


@pytest.mark.parametrize(
    ("order", "paused"),
    [("newest", "c"), ("oldest", "a"), ("largest", "b"), ("smallest", "a")],
)
def test_named_orders_choose_whom_a_shrink_pauses(order: str, paused: str) -> None:
    gate = Admission(Window(), ledger=Ledger(block_size=1), selection=Selection(pause=order))
    for name, tokens in (("a", 10), ("b", 30), ("c", 20)):
        gate.open(name, 0)
        ticket, _ = ask(gate, name)
        gate.end(ticket, 0, Usage(tokens))
    events = gate.set_window(Window(agents=2), 1)
    assert [event.agent_id for event in events if isinstance(event, Paused)] == [paused]


@pytest.mark.parametrize(
    ("order", "first"),
    [("oldest", "a"), ("fifo", "c"), ("largest", "b"), ("smallest", "a")],
)
def test_named_orders_choose_who_comes_back(order: str, first: str) -> None:
    gate = Admission(Window(), ledger=Ledger(block_size=1), selection=Selection(resume=order))
    gate.open("holder", 0)
    ask(gate, "holder")
    for name, tokens in (("a", 10), ("b", 30), ("c", 20)):
        gate.open(name, 0)
        ticket, _ = ask(gate, name)
        gate.end(ticket, 0, Usage(tokens))
    gate.set_window(Window(agents=1), 1)
    tickets = {name: ask(gate, name, 2 + at)[0] for at, name in enumerate("cba")}
    assert granted(gate.finish("holder", 9)) == [tickets[first]]
    with pytest.raises(ValueError, match=r"selection\.resume"):
        Selection(resume="random")
