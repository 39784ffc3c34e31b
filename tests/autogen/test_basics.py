from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from concur_autogen import ConcurChatCompletionClient, run
from concur_autogen.trajectories import trajectories_of

from concur_agents import Controller, Static
from tests import virtual
from tests.autogen.fakes import FakeClient, tools_then_end


def clean(controller: Controller) -> None:
    snapshot = controller.snapshot()
    assert (snapshot.active, snapshot.waiting, snapshot.open) == (0, 0, 0)
    assert len(trajectories_of(controller)) == 0


async def weather() -> str:
    await asyncio.sleep(3)
    return "sunny"


def test_a_batch_of_solo_agents_stays_within_the_window():
    async def main():
        loop = asyncio.get_running_loop()
        controller = Controller(policy=Static(3), clock=virtual.clock)
        fake = FakeClient(tools_then_end("weather", 4))
        client = ConcurChatCompletionClient(fake, controller)
        agents = [AssistantAgent(f"a{i}", client, tools=[weather], max_tool_iterations=5) for i in range(12)]
        results = await asyncio.gather(*(run(controller, a, task="go") for a in agents))
        assert all(r.messages[-1].content == "done" for r in results)
        assert fake.peak <= 3
        assert fake.calls == 48
        assert loop.time() == pytest.approx(4 * (4 + 9), abs=0.1)
        clean(controller)

    virtual.run(main())


def test_unscoped_too():
    async def main():
        loop = asyncio.get_running_loop()
        controller = Controller(policy=Static(3), clock=virtual.clock)
        fake = FakeClient(tools_then_end("weather", 4))
        client = ConcurChatCompletionClient(fake, controller)
        agents = [AssistantAgent(f"a{i}", client, tools=[weather], max_tool_iterations=5) for i in range(12)]
        await asyncio.gather(*(a.run(task="go") for a in agents))
        assert fake.peak <= 3
        assert loop.time() == pytest.approx(4 * (4 + 9), abs=0.1)
        await asyncio.sleep(0)
        clean(controller)

    virtual.run(main())


@pytest.mark.parametrize("scoped", [True, False])
def test_teams(scoped):
    async def main():
        loop = asyncio.get_running_loop()
        controller = Controller(policy=Static(1), clock=virtual.clock)
        fake = FakeClient("ok")
        client = ConcurChatCompletionClient(fake, controller)

        def team():
            names = "abc"
            return RoundRobinGroupChat(
                [AssistantAgent(n, client, system_message=f"You are {n}.") for n in names],
                termination_condition=MaxMessageTermination(7),
            )

        runs = [run(controller, team(), task="go") if scoped else team().run(task="go") for _ in range(4)]
        results = await asyncio.gather(*runs)
        assert all(len(r.messages) == 7 for r in results)
        assert fake.peak == 1
        print(scoped, loop.time())
        await client.close()
        clean(controller)

    virtual.run(main())


@pytest.mark.parametrize("scoped", [True, False])
def test_agent_as_tool_at_one(scoped):
    async def main():
        loop = asyncio.get_running_loop()
        controller = Controller(policy=Static(1), clock=virtual.clock)
        inner = ConcurChatCompletionClient(FakeClient("inner says"), controller)
        outer = ConcurChatCompletionClient(
            FakeClient(tools_then_end("helper", 3, '{"task": "help"}')), controller
        )

        def parent():
            helper = AgentTool(AssistantAgent("helper", inner, description="helps"))
            return AssistantAgent("parent", outer, tools=[helper], max_tool_iterations=5)

        await asyncio.gather(
            *(run(controller, parent(), task="go") if scoped else parent().run(task="go") for _ in range(4))
        )
        print(scoped, loop.time())
        await asyncio.sleep(0)
        clean(controller)

    virtual.run(main())


def test_cancel_while_queued_returns_and_leaves_no_ghost():
    async def main():
        loop = asyncio.get_running_loop()
        controller = Controller(policy=Static(1), clock=virtual.clock)
        fake = FakeClient("ok", seconds=100)
        client = ConcurChatCompletionClient(fake, controller)
        first = asyncio.create_task(run(controller, AssistantAgent("a", client), task="go"))
        await asyncio.sleep(1)
        team = RoundRobinGroupChat(
            [AssistantAgent("b", client)], termination_condition=MaxMessageTermination(5)
        )
        with pytest.raises(TimeoutError):
            await run(controller, team, task="go", timeout_seconds=5)
        assert loop.time() < 8
        await first
        await asyncio.sleep(50)
        assert fake.calls == 1
        clean(controller)

    virtual.run(main())
