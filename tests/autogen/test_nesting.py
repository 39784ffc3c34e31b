"""With W = 1 nothing in a trajectory waits for its own place, and no time is lost over it."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.models import AssistantMessage
from concur_autogen import ConcurChatCompletionClient, run
from concur_autogen.trajectories import UNSCOPED_GRACE_SECONDS, trajectories_of

from concur_agents import Controller, Static
from concur_agents.events import Admitted
from tests.autogen.fakes import FakeClient, call, say, tools_then_end
from tests.autogen.teams import NAMES, RUNNERS, agent, director, round_robin
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually

ASK = '{"task": "help"}'


class World:
    """A controller with one place, and clients whose calls take a second each."""

    def __init__(self) -> None:
        self.controller = Controller(policy=Static(1), clock=clock)
        self.fakes: list[FakeClient] = []

    def client(self, answer) -> ConcurChatCompletionClient:
        self.fakes.append(FakeClient(answer, director=director(NAMES)))
        return ConcurChatCompletionClient(self.fakes[-1], self.controller)

    @property
    def calls(self) -> int:
        return sum(fake.calls for fake in self.fakes)

    def assert_empty(self) -> None:
        snapshot = self.controller.snapshot()
        assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
        assert len(trajectories_of(self.controller)) == 0


def agent_tool(world: World) -> AssistantAgent:
    helper = AgentTool(agent("helper", world.client("helped")))
    return agent("parent", world.client(tools_then_end("helper", 3, ASK)), [helper])


def two_agent_tools_at_once(world: World) -> AssistantAgent:
    def both(messages):
        asked = any(isinstance(m, AssistantMessage) for m in messages)
        calls = [call(name, arguments=ASK).content[0] for name in ("left", "right")]
        for number, one in enumerate(calls):
            one.id = f"call-{number}"
        return say("done") if asked else call("left").model_copy(update={"content": calls})

    tools = [AgentTool(agent(name, world.client("helped"))) for name in ("left", "right")]
    return agent("parent", world.client(both), tools)


def team_tool(world: World) -> AssistantAgent:
    team = round_robin(world.client("helped"))
    tool = TeamTool(team, name="helpers", description="They help.")
    return agent("parent", world.client(tools_then_end("helpers", 3, ASK)), [tool])


def a_run_inside_a_tool(world: World) -> AssistantAgent:
    helper = world.client("helped")

    async def helpers() -> str:
        """Help."""
        result = await run(world.controller, round_robin(helper), task="help")
        return result.messages[-1].content

    return agent("parent", world.client(tools_then_end("helpers", 3)), [helpers])


@pytest.mark.parametrize(
    "make", [agent_tool, two_agent_tools_at_once, team_tool, a_run_inside_a_tool], ids=lambda m: m.__name__
)
def test_tools_that_call_models_lose_no_time(make):
    async def main() -> None:
        world = World()
        loop = asyncio.get_running_loop()
        places: list[str] = []
        world.controller.subscribe(lambda e: places.append(e.agent_id) if isinstance(e, Admitted) else None)
        runs = [run(world.controller, make(world), task="go") for _ in range(4)]
        await asyncio.gather(*runs)
        at_once = 2 if make is two_agent_tools_at_once else 1
        # One place: one call after the other, but for helpers of one trajectory that work side by side.
        assert loop.time() == pytest.approx(world.calls - 4 * (at_once - 1), abs=0.01)
        assert len(places) == 4
        world.assert_empty()

    virtually(main())


@pytest.mark.parametrize("kind", [kind for kind in RUNNERS if kind != "graph_flow"])
def test_four_teams_at_once_lose_no_time(kind):
    async def main() -> None:
        world = World()
        client = world.client("done")
        world.fakes[0].director = None
        if kind in ("selector", "magentic_one"):
            world.fakes[0].director = director(NAMES * 8)
        await asyncio.gather(*(run(world.controller, RUNNERS[kind](client), task="go") for _ in range(4)))
        assert asyncio.get_running_loop().time() == pytest.approx(world.calls, abs=0.01)
        world.assert_empty()

    virtually(main())


@pytest.mark.parametrize("make", [agent_tool, two_agent_tools_at_once, team_tool], ids=lambda m: m.__name__)
def test_without_a_scope_it_takes_the_grace_but_ends(make):
    async def main() -> None:
        world = World()
        parents = [make(world) for _ in range(2)]
        await asyncio.gather(*(parent.run(task="go") for parent in parents))
        longest = world.calls * (1 + UNSCOPED_GRACE_SECONDS)
        assert asyncio.get_running_loop().time() <= longest
        for parent in parents:
            await parent._model_client.close()
        await asyncio.sleep(0)
        world.assert_empty()

    virtually(main())


def test_an_unscoped_place_is_kept_while_nobody_waits_and_the_trajectory_is_forgotten_in_the_end():
    async def main() -> None:
        world = World()
        await round_robin(world.client("ok")).run(task="go")
        await asyncio.sleep(100)
        assert world.controller.snapshot().active == 1
        await asyncio.sleep(600)
        world.assert_empty()

    virtually(main())
