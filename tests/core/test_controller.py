"""The asyncio shell: scopes, cancellation at every await, telemetry that fails, start and stop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from concur_agents.controller import Controller
from concur_agents.errors import (
    AgentFinishedError,
    ControllerClosedError,
    DuplicateAgentError,
    InvalidValueError,
    UnknownAgentError,
)
from concur_agents.events import Event, Finished, PolicyFailed, Tick, ToolEnded, ToolStarted
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.policies import Static
from concur_agents.signals import Quality, Reading, Window
from tests.virtual import clock, run


class Scripted:
    """A telemetry that answers what it is told to."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.closed = 0

    async def read(self, now: float) -> Reading:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if answer == "hang":
            await asyncio.Event().wait()
        return answer(now) if callable(answer) else answer

    async def close(self) -> None:
        self.closed += 1


def ok(now: float, **values) -> Reading:
    return Reading(now, Quality.OK, **values)


def controller(agents: int = 1, telemetry=None, **options) -> Controller:
    return Controller(telemetry, policy=Static(agents), clock=clock, **options)


async def agent(concur: Controller, name: str, log: list[str], steps: int = 2) -> None:
    async with concur.agent(name) as me:
        for _ in range(steps):
            async with me.step() as step:
                log.append(f"{name}+")
                await asyncio.sleep(1)
                step.record({"prompt_tokens": 10, "completion_tokens": 1})
                log.append(f"{name}-")
            await asyncio.sleep(0.5)


def test_agents_take_turns_and_keep_their_place_across_boundaries() -> None:
    async def main() -> None:
        log: list[str] = []
        async with controller(1) as concur:
            await asyncio.gather(*(agent(concur, name, log) for name in "ab"))
            snapshot = concur.snapshot()
        assert log == ["a+", "a-", "a+", "a-", "b+", "b-", "b+", "b-"]
        assert (snapshot.completed, snapshot.active, snapshot.waiting) == (2, 0, 0)

    run(main())


def _count_awaits() -> int:
    """How many times a two-agent run suspends the second agent's task."""
    seen = 0

    class Counting:
        def __init__(self, coroutine):
            self.coroutine = coroutine

        def __await__(self):
            nonlocal seen
            inner = self.coroutine.__await__()
            while True:
                try:
                    future = next(inner)
                except StopIteration:
                    return
                seen += 1
                yield future

    async def main() -> None:
        async with controller(1) as concur:
            first = asyncio.create_task(agent(concur, "a", []))

            async def second() -> None:
                await Counting(agent(concur, "b", []))

            await asyncio.gather(first, asyncio.create_task(second()))

    run(main())
    return seen


@pytest.mark.parametrize("at", range(_count_awaits()))
def test_cancellation_at_any_await_gives_the_place_back(at: int) -> None:
    """Whatever `b` waits for when it is cancelled (admission, generation, tool), `c` then runs to its end."""

    async def main() -> None:
        log: list[str] = []
        async with controller(1) as concur:
            first = asyncio.create_task(agent(concur, "a", log))
            suspensions = 0

            class CancelAt:
                def __init__(self, coroutine):
                    self.coroutine = coroutine

                def __await__(self):
                    nonlocal suspensions
                    inner = self.coroutine.__await__()
                    value, send = None, inner.send
                    while True:
                        try:
                            future = send(value)
                        except StopIteration:
                            return
                        if suspensions == at:
                            asyncio.get_running_loop().call_soon(victim.cancel)
                        suspensions += 1
                        try:
                            yield future
                            send, value = inner.send, None
                        except BaseException as error:
                            send, value = inner.throw, error

            async def doomed() -> None:
                await CancelAt(agent(concur, "b", log))

            victim = asyncio.create_task(doomed())
            await asyncio.gather(first, victim, return_exceptions=True)
            assert victim.cancelled()
            await agent(concur, "c", log)
            snapshot = concur.snapshot()
            assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
            assert snapshot.admitted == snapshot.completed + snapshot.cancelled
            assert not concur.gate._waiters
        assert log[-4:] == ["c+", "c-", "c+", "c-"]

    run(main())


def test_a_grant_that_meets_a_cancellation_is_handed_on() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            for name in "abc":
                concur.open(name)
            held = await concur.acquire("a")
            b = asyncio.create_task(concur.acquire("b"))
            c = asyncio.create_task(concur.acquire("c"))
            await asyncio.sleep(0)
            concur.finish("a")  # b is granted now ...
            b.cancel()  # ... and is cancelled before it can run
            with pytest.raises(asyncio.CancelledError):
                await b
            concur.finish("b", Outcome.CANCELLED)
            await asyncio.wait_for(c, 1)
            concur.release(held)
            assert concur.snapshot().active == 1

    run(main())


def test_an_exception_in_a_step_reaches_the_caller_and_frees_the_place() -> None:
    async def main() -> None:
        outcomes: list[Outcome] = []
        async with controller(1) as concur:
            concur.subscribe(lambda e: outcomes.append(e.outcome) if isinstance(e, Finished) else None)
            with pytest.raises(ZeroDivisionError):
                async with concur.agent("a") as me, me.step():
                    1 / 0  # noqa: B018
            await agent(concur, "b", [])
        assert outcomes == [Outcome.FAILED, Outcome.COMPLETED]

    run(main())


def test_finish_wakes_a_waiting_call_with_an_error() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            for name in "ab":
                concur.open(name)
            await concur.acquire("a")
            waiting = asyncio.create_task(concur.acquire("b"))
            await asyncio.sleep(0)
            concur.finish("b")
            with pytest.raises(AgentFinishedError, match="'b' was finished while it waited"):
                await waiting
            with pytest.raises(AgentFinishedError):
                await concur.acquire("b")

    run(main())


def test_stopping_wakes_everyone_who_waits_and_it_can_start_again() -> None:
    async def main() -> None:
        telemetry = Scripted(ok)
        concur = controller(1, telemetry)
        async with concur:
            for name in "ab":
                concur.open(name)
            held = await concur.acquire("a")
            waiting = asyncio.create_task(concur.acquire("b"))
            await asyncio.sleep(0)
        with pytest.raises(ControllerClosedError):
            await waiting
        with pytest.raises(ControllerClosedError):
            await concur.acquire("b")
        assert telemetry.closed == 1
        concur.release(held)
        concur.finish("a")
        concur.finish("b")
        async with concur:
            await agent(concur, "c", [])
            with pytest.raises(InvalidValueError, match="running already"):
                await concur.__aenter__()
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_primitives_are_idempotent() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            await concur.admit("a")
            await concur.admit("a")
            concur.boundary("a", Usage(10))
            concur.boundary("a")
            assert concur.snapshot().active == 1
            other = asyncio.create_task(concur.admit("b"))
            await asyncio.sleep(1)
            assert not other.done()
            concur.pause("a")
            concur.pause("a")
            await other
            waiting = asyncio.create_task(concur.admit("a"))
            concur.finish("b")
            concur.finish("b")
            await asyncio.sleep(100)
            assert not waiting.done()  # only a manual resume ends a manual pause
            concur.resume("a")
            concur.resume("a")
            await waiting
            concur.finish("a")
            with pytest.raises(AgentFinishedError):
                await concur.admit("a")
            for verb in (concur.pause, concur.resume, concur.finish):
                with pytest.raises(UnknownAgentError, match="'never'"):
                    verb("never")

    run(main())


def test_two_trajectories_under_one_id_at_once_are_refused_and_the_first_goes_on() -> None:
    async def main() -> None:
        async with controller(2) as concur, concur.agent("a") as me:
            with pytest.raises(DuplicateAgentError, match="'a' is running already"):
                async with concur.agent("a"):
                    pass
            async with me.step():
                assert concur.snapshot().generating == 1

    run(main())


def test_bad_usage_is_an_error_that_names_the_field_and_the_step_ends_well() -> None:
    async def main() -> None:
        async with controller(1) as concur, concur.agent("a") as me:
            async with me.step() as step:
                with pytest.raises(InvalidValueError, match="prompt_tokens=-5"):
                    step.record({"prompt_tokens": -5})
                with pytest.raises(InvalidValueError, match="no prompt_tokens"):
                    step.record({"tokens": 5})
                step.record({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}})
            assert concur.snapshot().demand_tokens == 16

    run(main())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"interval_seconds": 0}, "interval_seconds"),
        ({"capacity_tokens": 0}, "capacity_tokens"),
        ({"block_size": -1}, "block_size"),
        ({"max_wait_seconds": float("nan")}, "max_wait_seconds"),
        ({"stale_after_seconds": -1}, "stale_after_seconds"),
        ({"telemetry": "http://localhost:8000"}, "telemetry"),
    ],
)
def test_bad_options_name_the_field(options: dict, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        Controller(options.pop("telemetry", None), policy=Static(1), **options)


class GrowIfAllowed:
    """Grows by one a tick unless growth is frozen; remembers what it saw."""

    name = "grow"

    def __init__(self) -> None:
        self.seen = []

    def initial(self) -> Window:
        return Window(agents=1)

    def update(self, signals) -> Window:
        self.seen.append(signals)
        return signals.window if signals.frozen else Window(agents=signals.window.agents + 1)


@pytest.mark.parametrize("failure", [ConnectionError("refused"), "hang"])
def test_telemetry_that_dies_is_one_warning_and_agents_go_on(failure, caplog) -> None:
    async def main() -> None:
        policy = GrowIfAllowed()
        telemetry = Scripted(ok, failure)
        async with Controller(telemetry, policy=policy, clock=clock, read_timeout_seconds=2) as concur:
            await asyncio.sleep(60)
            grown = concur.snapshot().window.agents
            await asyncio.sleep(600)
            assert concur.snapshot().window.agents == grown  # frozen
            await agent(concur, "a", [])
            assert concur.snapshot().quality is Quality.STALE
            telemetry.answers = [ok]
            await asyncio.sleep(10)
            assert concur.snapshot().window.agents > grown  # and it recovers

    with caplog.at_level(logging.INFO, logger="concur_agents"):
        run(main())
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "telemetry is stale" in warnings[0].getMessage()
    assert sum("telemetry is back" in r.getMessage() for r in caplog.records) == 1


class Broken:
    name = "broken"

    def __init__(self, answer) -> None:
        self.answer = answer

    def initial(self) -> Window:
        return Window(agents=3)

    def update(self, signals) -> Window:
        if isinstance(self.answer, Exception):
            raise self.answer
        return Window(agents=self.answer) if isinstance(self.answer, float) else self.answer


@pytest.mark.parametrize("answer", [float("nan"), 2.5, 0.0, None, 7, RuntimeError("boom")])
def test_a_policy_that_fails_leaves_the_window_and_is_reported_once(answer, caplog) -> None:
    async def main() -> list[Event]:
        events: list[Event] = []
        async with Controller(None, policy=Broken(answer), clock=clock) as concur:
            concur.subscribe(events.append)
            work = asyncio.create_task(agent(concur, "a", [], steps=5))
            await asyncio.sleep(10)
            await work
            assert concur.snapshot().window.agents == 3
        return events

    events = run(main())
    assert sum(isinstance(event, PolicyFailed) for event in events) == 1
    assert sum(isinstance(event, Tick) for event in events) >= 9
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "policy broken failed" in errors[0]


def test_a_subscriber_that_raises_is_dropped_and_one_may_call_back(caplog) -> None:
    async def main() -> None:
        seen: list[Event] = []
        async with controller(1) as concur:

            def bad(event: Event) -> None:
                raise ValueError("no")

            concur.subscribe(bad)
            unsubscribe = concur.subscribe(lambda e: (seen.append(e), concur.snapshot()))
            await agent(concur, "a", [])
            count = len(seen)
            unsubscribe()
            await agent(concur, "b", [])
            assert count > 0
            assert len(seen) == count

    run(main())
    assert sum("subscriber" in r.getMessage() for r in caplog.records) == 1


def test_an_unstarted_controller_says_so_once(caplog) -> None:
    async def main() -> None:
        concur = controller(1, Scripted(ok))
        await agent(concur, "a", [])

    run(main())
    assert sum("not started" in r.getMessage() for r in caplog.records) == 1


def test_an_abandoned_generator_gives_the_place_back() -> None:
    async def main() -> None:
        async with controller(1) as concur:

            async def stream():
                async with concur.agent("a") as me, me.step():
                    for n in range(3):
                        yield n

            reading = stream()
            assert await anext(reading) == 0
            assert concur.snapshot().active == 1
            await reading.aclose()
            assert concur.snapshot().active == 0

    run(main())


def test_an_agent_that_dawdles_at_a_boundary_loses_its_place_to_one_that_waits() -> None:
    async def main() -> None:
        log: list[str] = []
        async with controller(1, grace_seconds=30) as concur, concur.agent("slow") as slow:
            async with slow.step():
                pass
            quick = asyncio.create_task(agent(concur, "quick", log))
            await asyncio.sleep(29)
            assert log == []
            await asyncio.sleep(10)
            assert log == ["quick+", "quick-", "quick+", "quick-"]
            await quick
            async with slow.step():  # and comes back
                assert concur.snapshot().generating == 1

    run(main())


def test_nobody_loses_a_place_that_nobody_wants() -> None:
    async def main() -> None:
        async with controller(1, grace_seconds=30) as concur, concur.agent("slow") as slow:
            async with slow.step():
                pass
            await asyncio.sleep(3600)
            assert concur.snapshot().active == 1

    run(main())


@pytest.mark.parametrize(
    "values",
    [
        {"block_size": 0},
        {"block_size": "16"},
        {"capacity_tokens": 1.5},
        {"capacity_tokens": float("inf")},
        {"hit_tokens_delta": float("nan")},
        {"query_tokens_delta": -1.0},
        {"usage": float("nan")},
        None,
    ],
)
def test_a_telemetry_that_answers_nonsense_is_a_failed_look_and_the_monitor_goes_on(values, caplog) -> None:
    async def main() -> None:
        policy = GrowIfAllowed()
        telemetry = Scripted(ok, (lambda now: ok(now, **values)) if values else (lambda now: "a Reading"))
        async with Controller(telemetry, policy=policy, clock=clock) as concur:
            await agent(concur, "a", [])
            await asyncio.sleep(5)
            assert concur.snapshot().quality is Quality.STALE
            assert concur.snapshot().active == 0
            ticks = len(policy.seen)
            telemetry.answers = [ok]
            await asyncio.sleep(5)
            assert len(policy.seen) > ticks
            assert concur.snapshot().quality is Quality.OK

    run(main())
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


def test_a_policy_may_look_at_the_controller_it_serves() -> None:
    class Curious(GrowIfAllowed):
        def update(self, signals) -> Window:
            assert concur.snapshot().active == signals.active
            return signals.window

    concur = Controller(None, policy=Curious(), clock=clock)

    async def main() -> None:
        async with concur:
            await agent(concur, "a", [])
            assert concur.snapshot().completed == 1

    run(main())


@pytest.mark.parametrize("count", [float("inf"), float("nan"), 1.5, -1, "7", True])
def test_a_count_that_is_none_is_refused_and_spoils_nothing(count) -> None:
    async def main() -> None:
        async with controller(1) as concur:
            with pytest.raises(InvalidValueError, match="context_tokens"):
                async with concur.agent("a", context_tokens=count):
                    pass
            async with concur.agent("b") as b, b.step() as step:
                with pytest.raises(InvalidValueError, match="prompt_tokens"):
                    step.record({"prompt_tokens": count})
                step.record({"prompt_tokens": 100})
            async with concur.agent("c", context_tokens=50) as c, c.step():
                assert concur.snapshot().demand_tokens == 64

    run(main())


def test_an_old_scope_leaves_a_new_trajectory_of_the_same_id_alone() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            old = concur.agent("x")
            await old.__aenter__()
            concur.finish("x")
            async with concur.agent("x") as new:
                await old.__aexit__(None, None, None)
                async with new.step():
                    assert concur.snapshot().active == 1
            assert concur.snapshot().open == 0

    run(main())


def test_nameless_agents_do_not_collide_with_named_ones() -> None:
    async def main() -> None:
        async with controller(4) as concur, concur.agent("agent-1"), concur.agent() as a, concur.agent() as b:
            assert len({"agent-1", a.agent_id, b.agent_id}) == 3
        for bad in ("", 0, []):
            with pytest.raises(InvalidValueError, match="agent_id"):
                async with concur.agent(bad):
                    pass

    run(main())


def test_subscriptions_are_one_by_one_and_plain_functions_only() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            seen: list[Event] = []
            first, _ = concur.subscribe(seen.append), concur.subscribe(seen.append)
            await agent(concur, "a", [], steps=1)
            twice = len(seen)
            first()
            await agent(concur, "b", [], steps=1)
            assert len(seen) == twice * 3 // 2

            async def later(event: Event) -> None: ...

            with pytest.raises(InvalidValueError, match="plain function"):
                concur.subscribe(later)

    run(main())


@pytest.mark.parametrize("policy", ["aimd", Static, object(), Broken(None)])
def test_something_that_is_no_policy_is_refused(policy) -> None:
    if isinstance(policy, Broken):
        policy.initial = lambda: None
    with pytest.raises(InvalidValueError, match="policy"):
        Controller(None, policy=policy)


def test_a_controller_whose_loop_died_can_be_started_again() -> None:
    concur = Controller(None, policy=Static(1))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(concur.__aenter__())
    concur._monitor._log_destroy_pending = False
    loop.close()  # without __aexit__
    assert not concur.running

    async def main() -> None:
        async with concur:
            await agent(concur, "a", [], steps=1)

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_queue_though_its_agent_stays_open() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            for name in "abc":
                concur.open(name)
            held = await concur.acquire("a")
            waiting = asyncio.create_task(concur.acquire("b"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert concur.snapshot().waiting == 0
            granted = asyncio.create_task(concur.acquire("b"))
            await asyncio.sleep(0)
            concur.finish("a")
            granted.cancel()  # between grant and wake-up
            await asyncio.gather(granted, return_exceptions=True)
            assert concur.snapshot().generating == 0
            concur.release(held)
            concur.pause("b")
            await asyncio.wait_for(concur.acquire("c"), 1)

    run(main())


def test_a_place_given_back_goes_to_who_waits_and_its_agent_comes_back_before_new_ones() -> None:
    async def main() -> None:
        log: list[str] = []
        async with controller(1) as concur, concur.agent("human") as human:
            async with human.step():
                concur.give_back("human")  # in the middle of a step nothing happens
                other = asyncio.create_task(agent(concur, "other", log))
                await asyncio.sleep(1)
                assert log == []
            await asyncio.sleep(1)
            assert log == [], "its place is kept at a boundary"
            concur.give_back("human")
            concur.give_back("human")
            assert concur.snapshot().active == 1
            late = asyncio.create_task(agent(concur, "late", log))
            async with human.step():
                assert log == ["other+", "other-", "other+", "other-"]
            concur.finish("human")
            await asyncio.gather(other, late)
            for name, error in (("human", AgentFinishedError), ("never", UnknownAgentError)):
                with pytest.raises(error, match=f"'{name}'"):
                    concur.give_back(name)

    run(main())


def test_a_place_given_back_that_nobody_wants_is_free() -> None:
    async def main() -> None:
        async with controller(1) as concur, concur.agent("human") as human:
            async with human.step():
                pass
            concur.give_back("human")
            assert (concur.snapshot().active, concur.snapshot().paused) == (0, 1)
            async with human.step():
                assert concur.snapshot().generating == 1

    run(main())


class Linked:
    """A framework's cancellation token: it knows the future that is waited on."""

    def __init__(self) -> None:
        self.waiting: asyncio.Future[None] | None = None

    def link(self, waiting: asyncio.Future[None]) -> None:
        assert self.waiting is None, "linked twice"
        self.waiting = waiting


def test_a_linked_wait_ends_with_its_future_and_leaves_the_queue() -> None:
    async def main() -> None:
        token, unused = Linked(), Linked()
        async with controller(1) as concur:
            concur.open("a")
            concur.open("b")
            held = await concur.acquire("a", link=unused.link)
            assert unused.waiting is None, "there was nothing to wait for"
            waiting = asyncio.create_task(concur.acquire("b", link=token.link))
            await asyncio.sleep(1)
            token.waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert concur.snapshot().waiting == 0
            assert not concur.gate._waiters
            concur.release(held)

    run(main())


@pytest.mark.parametrize("first", ["grant", "cancel"])
def test_a_linked_wait_that_is_cancelled_as_it_is_granted_loses_no_place(first: str) -> None:
    """Granted first: the cancellation comes too late, and the caller has the ticket. Else it is handed on."""

    async def main() -> None:
        token = Linked()
        async with controller(1) as concur:
            for name in "abc":
                concur.open(name)
            await concur.acquire("a")
            b = asyncio.create_task(concur.acquire("b", link=token.link))
            c = asyncio.create_task(concur.acquire("c"))
            await asyncio.sleep(0)
            if first == "grant":
                concur.finish("a")
                assert not token.waiting.cancel()
                concur.release(await b)
                concur.finish("b")
            else:
                token.waiting.cancel()
                concur.finish("a")
                with pytest.raises(asyncio.CancelledError):
                    await b
                concur.finish("b")
            concur.release(await asyncio.wait_for(c, 1))
            concur.finish("c")
            assert (concur.snapshot().active, concur.snapshot().waiting) == (0, 0)

    run(main())


def test_a_link_that_raises_leaves_nothing_in_the_queue() -> None:
    async def main() -> None:
        def link(_: object) -> None:
            raise ZeroDivisionError

        async with controller(1) as concur:
            concur.open("a")
            concur.open("b")
            await concur.acquire("a")
            with pytest.raises(ZeroDivisionError):
                await concur.acquire("b", link=link)
            assert (concur.snapshot().waiting, len(concur.gate._waiters)) == (0, 0)

    run(main())


def test_the_default_grace_is_a_minute() -> None:
    async def main() -> None:
        async with controller(1) as concur:
            assert concur.snapshot().window.grace_seconds == 60

    run(main())


def test_tools_are_told_to_the_subscribers_and_decide_nothing() -> None:
    async def main() -> None:
        seen: list[Event] = []
        async with controller(1) as concur:
            await agent(concur, "a", [], steps=1)
            before = concur.snapshot()
            concur.subscribe(seen.append)
            concur.tool_started("a", "search")
            await asyncio.sleep(0.5)
            concur.tool_ended("a", "search", 0.5, failed=True)
            assert concur.snapshot() == before
        assert [e for e in seen if not isinstance(e, Tick)] == [
            ToolStarted(1.5, "a", "search"),
            ToolEnded(2.0, "a", "search", 0.5, failed=True),
        ]

    run(main())
