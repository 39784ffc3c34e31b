"""What is left of a run that was ended is never admitted again, and joins nobody else's trajectory.

AutoGen does not end a team whose task is cancelled: its participants go on in their runtime. Here they are
left behind on purpose, without `run`, which would cancel them.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from autogen_core import SingleThreadedAgentRuntime
from autogen_core.models import AssistantMessage, UserMessage
from concur_autogen import ConcurChatCompletionClient, run
from concur_autogen.trajectories import trajectories_of

from concur_agents import AgentFinishedError, Controller, Static
from concur_agents.events import Granted
from tests.autogen.fakes import FakeClient, call, say, tools_then_end
from tests.autogen.teams import NAMES, director, round_robin, selector, solo
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually


async def work() -> str:
    """Work."""
    await asyncio.sleep(3)
    return "worked"


class World:
    """A runtime that is shared by several teams, and a trajectory named `t` in it."""

    def __init__(self, places: int = 1) -> None:
        self.controller = Controller(policy=Static(places), clock=clock)
        self.runtime = SingleThreadedAgentRuntime()
        self.fakes: dict[str, FakeClient] = {}

    def client(self, name: str, answer: Any) -> ConcurChatCompletionClient:
        self.fakes[name] = FakeClient(answer, director=director(NAMES))
        return ConcurChatCompletionClient(self.fakes[name], self.controller)

    def team(self, name: str, answer: Any = None, make: Any = round_robin, **options: Any) -> Any:
        """A team whose clients name the trajectory."""
        client = self.client(name, answer or tools_then_end("work", 3)).for_agent("t")
        return make(client, (work,), runtime=self.runtime, **options)

    @contextlib.asynccontextmanager
    async def is_clean_afterwards(self):
        self.runtime.start()
        yield
        await asyncio.sleep(100)
        calls = {name: fake.calls for name, fake in self.fakes.items()}
        await asyncio.sleep(1000)
        assert {name: fake.calls for name, fake in self.fakes.items()} == calls
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
        assert len(trajectories_of(self.controller)) == 0
        with contextlib.suppress(AgentFinishedError):  # the runtime reports what its handlers raised
            await self.runtime.stop()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel, until AutoGen lets go of it."""
    for _ in range(4):
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
    assert task.done()


async def scoped(world: World, team: Any) -> Any:
    async with world.controller.agent("t"):
        return await team.run(task="go")


MOMENTS = {"generating": 0.5, "in a tool": 2.0, "in its second call": 4.5, "in a second turn": 9.5}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("make", [round_robin, selector], ids=lambda m: m.__name__)
def test_a_team_that_was_left_behind_makes_no_more_calls(make, moment):
    async def main() -> None:
        world = World()
        async with world.is_clean_afterwards():
            going = asyncio.create_task(scoped(world, world.team("ghost", make=make)))
            await asyncio.sleep(MOMENTS[moment])
            await ended(going)
            assert world.controller.snapshot().open == 0
            calls = world.fakes["ghost"].calls
            await asyncio.sleep(100)
            assert world.fakes["ghost"].calls == calls

    virtually(main())


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("make", [round_robin, selector], ids=lambda m: m.__name__)
def test_a_team_that_was_left_behind_does_not_join_a_new_run_of_its_name(make, moment):
    async def main() -> None:
        world = World()
        granted: list[str] = []
        world.controller.subscribe(lambda e: granted.append(e.agent_id) if isinstance(e, Granted) else None)
        async with world.is_clean_afterwards():
            going = asyncio.create_task(scoped(world, world.team("ghost", make=make)))
            await asyncio.sleep(MOMENTS[moment])
            await ended(going)
            calls = world.fakes["ghost"].calls
            granted.clear()
            result = await scoped(world, world.team("new"))
            assert "Maximum number of messages" in result.stop_reason
            assert world.fakes["ghost"].calls == calls, "a ghost got in under its old name"
            assert len(granted) == world.fakes["new"].calls

    virtually(main())


def test_the_same_team_runs_again_and_again_under_one_name():
    async def main() -> None:
        world = World()
        turns: list[Any] = []  # done and still referred to, as after an error

        def answer(messages: Any) -> Any:
            turns.append(asyncio.current_task())
            return say("ok")

        async with world.is_clean_afterwards():
            team = world.team("team", answer)
            for _ in range(3):
                assert (await scoped(world, team)).messages
            assert world.fakes["team"].calls >= 6

    virtually(main())


def test_a_name_may_be_tried_again_after_an_error():
    """With a new team: AutoGen does not run one again that has failed."""

    async def main() -> None:
        world = World()

        def boom(messages: Any) -> Any:
            raise ConnectionError("engine")

        async with world.is_clean_afterwards():
            with pytest.raises(RuntimeError, match="engine"):
                await scoped(world, world.team("first", boom))
            assert (await scoped(world, world.team("second"))).messages

    virtually(main())


@pytest.mark.parametrize("moment", [0.5, 2.0, 4.5])
def test_a_new_run_of_a_name_may_start_while_the_old_one_is_being_ended(moment):
    """`run` frees the name at once and then waits for AutoGen; a selector's call does not hear the token."""

    async def main() -> None:
        world = World()
        async with world.is_clean_afterwards():
            old = selector(world.client("ghost", tools_then_end("work", 3)), (work,))
            going = asyncio.create_task(run(world.controller, old, task="go", agent_id="t"))
            await asyncio.sleep(moment)
            going.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            calls = world.fakes["ghost"].calls
            new = selector(world.client("new", tools_then_end("work", 3)), (work,))
            result = await run(world.controller, new, task="go", agent_id="t")
            assert "Maximum number of messages" in result.stop_reason
            await asyncio.wait([going])
            assert going.cancelled()
            assert world.fakes["ghost"].calls == calls

    virtually(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_task_that_outlives_its_scope_does_not_join_the_next_one_of_its_name(streamed):
    async def main() -> None:
        world = World()
        async with world.is_clean_afterwards():
            client = world.client("ghost", "ok").for_agent("t")

            async def late() -> None:
                await asyncio.sleep(2)
                await solo(client, model_client_stream=streamed).run(task="go")

            async with world.controller.agent("t"):
                ghost = asyncio.create_task(late())
            async with world.controller.agent("t") as new:
                async with new.step():
                    pass
                with pytest.raises(AgentFinishedError, match="'t' is finished"):
                    await ghost
                await client.create([UserMessage(content="go", source="user")])  # called in the new scope
            assert world.fakes["ghost"].calls == 1

    virtually(main())


def test_a_ghosts_selector_leaves_the_contexts_of_the_new_run_alone():
    """Both have a prompt of the same name in flight; the end of one is not the end of the other."""

    async def main() -> None:
        world = World(places=2)
        async with world.is_clean_afterwards():
            ghost = selector(world.client("ghost", "ok"))
            world.fakes["ghost"].seconds = 3
            async with world.controller.agent("t") as scope:
                left = asyncio.create_task(ghost.run(task="go"))
                await asyncio.sleep(1)
                scope.finish()
            new = selector(world.client("new", "ok"))
            world.fakes["new"].seconds = 6
            going = asyncio.create_task(run(world.controller, new, task="go", agent_id="t"))
            await asyncio.sleep(3)  # the ghost's call is over, that of the new one is not
            assert (world.fakes["ghost"].in_flight, world.fakes["new"].in_flight) == (0, 1)
            assert world.controller.snapshot().generating == 1
            assert (await going).messages
            with pytest.raises(RuntimeError, match="AgentFinishedError"):
                await left

    virtually(main())


def test_a_parent_that_is_gone_takes_its_helpers_along():
    async def main() -> None:
        from autogen_agentchat.tools import AgentTool

        from tests.autogen.teams import agent

        world = World()
        async with world.is_clean_afterwards():
            helper = agent("helper", world.client("helper", tools_then_end("work", 9)), (work,))

            def ask(messages: Any) -> Any:
                asked = any(isinstance(m, AssistantMessage) for m in messages)
                return say("done") if asked else call("helper", arguments='{"task": "help"}')

            parent = agent("parent", world.client("parent", ask), [AgentTool(helper)])
            with pytest.raises(TimeoutError):
                await run(world.controller, parent, task="go", agent_id="t", timeout_seconds=6)
            calls = world.fakes["helper"].calls
            assert calls > 0
            await asyncio.sleep(100)
            assert world.fakes["helper"].calls == calls

    virtually(main())
