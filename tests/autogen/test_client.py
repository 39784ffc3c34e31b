"""The wrapped client keeps the whole contract of a model client, and waits where it should."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, SystemMessage, UserMessage
from concur_autogen import ConcurChatCompletionClient
from concur_autogen.trajectories import trajectories_of

from concur_agents import AgentFinishedError, Controller, ControllerClosedError, InvalidValueError, Static
from concur_agents.events import Admitted, Granted
from tests import virtual
from tests.autogen.fakes import FakeClient, say

HELLO = [UserMessage(content="hello", source="user")]


class World:
    def __init__(self, places: int = 1, answer="two words", seconds: float = 1.0) -> None:
        self.controller = Controller(policy=Static(places), clock=virtual.clock)
        self.fake = FakeClient(answer, seconds)
        self.client = ConcurChatCompletionClient(self.fake, self.controller)

    def state(self) -> tuple[int, int, int]:
        snapshot = self.controller.snapshot()
        return snapshot.active, snapshot.waiting, snapshot.open

    def assert_empty(self) -> None:
        assert self.state() == (0, 0, 0)
        assert self.fake.in_flight == 0
        assert len(trajectories_of(self.controller)) == 0


@contextlib.asynccontextmanager
async def held(world: World, seconds: float = 100.0):
    """Somebody else has the only place."""

    async def hold() -> None:
        async with world.controller.agent("holder") as agent, agent.step():
            await asyncio.sleep(seconds)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_arguments_and_results_pass_through():
    async def main() -> None:
        world = World()
        options = {"tools": [], "tool_choice": "none", "json_output": True, "extra_create_args": {"a": 1}}
        result = await world.client.create(messages=HELLO, **options)
        messages, given = world.fake.seen[0]
        assert messages is HELLO
        assert given == options
        assert result.content == "two words"
        assert world.client.model_info == world.fake.model_info
        assert world.client.capabilities == world.fake.capabilities
        await world.client.close()
        assert world.fake.closed == 1
        world.assert_empty()

    virtual.run(main())


def test_a_stream_is_handed_on_as_it_comes_and_its_step_is_over_before_the_result():
    async def main() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        arrivals = []
        async with world.controller.agent("t"):
            async for item in world.client.create_stream(HELLO):
                generating = world.controller.snapshot().generating
                arrivals.append((item if isinstance(item, str) else "result", loop.time(), generating))
        assert arrivals == [("two", 1.0, 1), ("words", 2.0, 1), ("result", 3.0, 0)]
        world.assert_empty()

    virtual.run(main())


@pytest.mark.parametrize("how", ["closed", "dropped", "raises", "cancelled"])
def test_a_stream_that_ends_early_ends_its_step(how):
    async def main() -> None:
        world = World()

        async def read() -> None:
            stream = world.client.create_stream(HELLO)
            async for _ in stream:
                if how == "raises":
                    raise KeyError
                if how == "cancelled":
                    await asyncio.sleep(100)
                break
            if how == "closed":
                await stream.aclose()

        async with world.controller.agent("t"):
            reading = asyncio.create_task(read())
            await asyncio.sleep(2)
            if how == "cancelled":
                reading.cancel()
            await asyncio.wait([reading])
            if how == "raises":
                assert isinstance(reading.exception(), KeyError)
            del reading
            await asyncio.sleep(1)
            assert world.controller.snapshot().generating == 0
        world.assert_empty()

    virtual.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("by", ["token", "token of another thread", "task"])
def test_cancelled_while_queued(by, streamed):
    async def main() -> None:
        world = World()
        token = CancellationToken()

        async def ask() -> None:
            if not streamed:
                await world.client.create(HELLO, cancellation_token=token)
                return
            async for _ in world.client.create_stream(HELLO, cancellation_token=token):
                pass

        async with held(world):
            asking = asyncio.create_task(ask())
            await asyncio.sleep(1)
            assert world.state()[1] == 1
            if by == "task":
                asking.cancel()
            elif by == "token":
                token.cancel()
            else:
                thread = threading.Thread(target=token.cancel)
                thread.start()
                thread.join()
            await asyncio.wait([asking], timeout=5)
            assert asking.cancelled()
            assert world.state()[1] == 0
        assert world.fake.calls == 0
        await asyncio.sleep(0)
        world.assert_empty()

    virtual.run(main())


def test_a_token_cancelled_in_the_moment_of_the_grant_gives_it_back():
    async def main() -> None:
        world = World()
        token = CancellationToken()
        world.controller.subscribe(
            lambda e: token.cancel() if isinstance(e, Admitted) and e.agent_id != "holder" else None
        )
        async with held(world, seconds=5):
            asking = asyncio.create_task(world.client.create(HELLO, cancellation_token=token))
            await asyncio.sleep(10)
        assert asking.cancelled()
        assert world.fake.calls == 0
        await asyncio.sleep(0)
        world.assert_empty()

    virtual.run(main())


def test_a_cancelled_token_asks_for_nothing():
    async def main() -> None:
        world = World()
        token = CancellationToken()
        token.cancel()
        events = []
        world.controller.subscribe(events.append)
        with pytest.raises(asyncio.CancelledError):
            await world.client.create(HELLO, cancellation_token=token)
        assert not events
        world.assert_empty()

    virtual.run(main())


def test_a_finished_trajectory_is_refused_and_a_stopped_controller_says_so():
    async def main() -> None:
        world = World()
        async with world.controller.agent("t"):
            late = asyncio.create_task(call_later(world))
        with pytest.raises(AgentFinishedError, match="'t' is finished"):
            await late
        async with world.controller:
            pass
        with pytest.raises(ControllerClosedError):
            await world.client.create(HELLO)
        await asyncio.sleep(0)
        assert world.state()[:2] == (0, 0)

    async def call_later(world: World) -> None:
        await asyncio.sleep(1)
        await world.client.create(HELLO)

    virtual.run(main())


def test_calls_of_one_trajectory_at_once_are_branches_of_it():
    async def main() -> None:
        world = World()
        async with world.controller.agent("t"):
            await asyncio.gather(*(world.client.create(HELLO) for _ in range(3)))
        assert world.fake.peak == 3
        assert asyncio.get_running_loop().time() == 1.0
        world.assert_empty()

    virtual.run(main())


def test_for_agent_names_the_trajectory_and_after_its_scope_it_is_refused():
    async def main() -> None:
        world = World()
        seen = []
        world.controller.subscribe(lambda e: seen.append(e.agent_id) if isinstance(e, Granted) else None)
        client = world.client.for_agent("task-7")
        async with world.controller.agent("task-7"):
            await client.create(HELLO)
        with pytest.raises(AgentFinishedError):
            await client.create(HELLO)
        assert seen == ["task-7"]
        world.assert_empty()
        free = world.client.for_agent("task-8")
        await free.create(HELLO)
        await free.close()
        world.assert_empty()

    virtual.run(main())


def test_unscoped_calls_of_a_task_end_with_it():
    async def main() -> None:
        world = World(places=2)
        await asyncio.gather(*(asyncio.create_task(world.client.create(HELLO)) for _ in range(6)))
        assert world.fake.peak == 2
        await asyncio.sleep(0)
        world.assert_empty()

    virtual.run(main())


class TestUsage:
    def test_the_ledger_has_what_the_client_reports(self):
        async def main() -> None:
            world = World(answer=lambda messages: say("ok", prompt=100 * len(messages), completion=7))
            async with world.controller.agent("t"):
                await world.client.create(HELLO)
                assert world.controller.snapshot().demand_tokens == 112  # 107 in blocks of 16
                async for _ in world.client.create_stream(HELLO * 2):
                    pass
                assert world.controller.snapshot().demand_tokens == 208

        virtual.run(main())

    def test_without_usage_it_is_estimated_and_said_once(self, caplog):
        async def main() -> None:
            world = World(answer=lambda messages: say("x" * 400, prompt=0, completion=0))
            async with world.controller.agent("t"):
                for _ in range(3):
                    await world.client.create([UserMessage(content="y" * 400, source="user")])
                assert world.controller.snapshot().demand_tokens == 208  # (400 + 400) / 4, in blocks

        virtual.run(main())
        assert len([r for r in caplog.records if "reports no usage" in r.message]) == 1

    @pytest.mark.parametrize(
        ("prompt", "tokens"),
        [(200, 208), (100, 112), (10, 64), (4000, 400)],
        ids=["2 characters a token", "4", "more than any text has", "an image"],
    )
    def test_estimates_learn_from_what_is_reported(self, prompt, tokens):
        async def main() -> None:
            world = World(answer=lambda messages: say("", prompt if len(messages) == 1 else 0, 0))
            text = UserMessage(content="y" * 400, source="user")
            async with world.controller.agent("before"):
                await world.client.create([text])
            async with world.controller.agent("t"):
                await world.client.create([SystemMessage(content=""), text])
                assert world.controller.snapshot().demand_tokens == tokens  # in blocks of 16

        virtual.run(main())

    def test_a_cached_result_is_no_step_of_the_engine(self):
        async def main() -> None:
            world = World(answer=lambda messages: say("ok").model_copy(update={"cached": True}))
            async with world.controller.agent("t"):
                await world.client.create(HELLO)
                assert world.controller.snapshot().demand_tokens == 0

        virtual.run(main())


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("client", lambda c: ConcurChatCompletionClient("no", c)),
        ("controller", lambda c: ConcurChatCompletionClient(FakeClient(), "no")),
        ("agent_id", lambda c: ConcurChatCompletionClient(FakeClient(), c, agent_id="")),
    ],
)
def test_bad_arguments_name_the_field(field, make):
    with pytest.raises(InvalidValueError, match=f"^{field}="):
        make(Controller())


def test_the_last_item_of_a_stream_is_the_result():
    async def main() -> None:
        world = World()
        items = [item async for item in world.client.create_stream(HELLO)]
        assert [isinstance(item, CreateResult) for item in items] == [False, False, True]

    virtual.run(main())
