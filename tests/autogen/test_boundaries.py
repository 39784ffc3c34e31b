"""Tools are seen once each, long ones give the place back, and so do humans."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap

import pytest
from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import HandoffTermination, MaxMessageTermination, TextMentionTermination
from autogen_agentchat.messages import HandoffMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core.models import SystemMessage, UserMessage
from autogen_core.tools import FunctionTool, StaticStreamWorkbench, StaticWorkbench, StreamTool
from concur_autogen import ConcurChatCompletionClient, run, with_boundaries
from concur_autogen.tool_calls import ToolCalls

from concur_agents import Controller, InvalidValueError, Static
from concur_agents.events import Finished, Paused, StepEnded, ToolEnded, ToolStarted
from concur_agents.lifecycle import PauseReason
from tests.autogen.fakes import FakeClient, call, say, tools_then_end
from tests.autogen.teams import agent, round_robin
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually


async def work() -> str:
    """Work."""
    await asyncio.sleep(3)
    return "worked"


async def explode() -> str:
    """Explode."""
    await asyncio.sleep(1)
    raise KeyError("gone")


def tool(function=work) -> FunctionTool:
    return FunctionTool(function, description="A tool.")


class World:
    def __init__(self, answer, places: int = 1) -> None:
        self.controller = Controller(policy=Static(places), clock=clock)
        self.fake = FakeClient(answer)
        self.client = ConcurChatCompletionClient(self.fake, self.controller)
        self.events: list = []
        self.controller.subscribe(self.events.append)

    def tools(self) -> list[tuple[str, str, float, bool]]:
        """What was told of tools; each began when it did."""
        ended = [e for e in self.events if isinstance(e, ToolEnded)]
        started = [(e.agent_id, e.tool, e.at) for e in self.events if isinstance(e, ToolStarted)]
        assert started == [(e.agent_id, e.tool, e.at - e.seconds) for e in ended]
        return [(e.agent_id, e.tool, e.seconds, e.failed) for e in ended]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("team", [False, True])
def test_run_tells_of_each_tool_once_hooked_or_not(hooked, team):
    async def main() -> None:
        world = World(tools_then_end("work", 3))
        used = with_boundaries(tool()) if hooked else tool()
        runner = round_robin(world.client, [used]) if team else agent("solo", world.client, [used])
        await run(world.controller, runner, task="go", agent_id="t")
        assert set(world.tools()) == {("t", "work", 3.0, False)}
        assert len(world.tools()) == (4 if team else 2)

    virtually(main())


@pytest.mark.parametrize("hooked", [False, True])
def test_failures_are_told_as_such(hooked):
    async def main() -> None:
        world = World(tools_then_end("explode", 2))
        used = with_boundaries(tool(explode)) if hooked else tool(explode)
        await run(world.controller, agent("solo", world.client, [used]), task="go", agent_id="t")
        assert world.tools() == [("t", "explode", 1.0, True)]

    virtually(main())


@pytest.mark.parametrize("bench", [StaticWorkbench, StaticStreamWorkbench])
def test_a_workbench_names_the_tool_that_ran(bench):
    async def main() -> None:
        world = World(tools_then_end("work", 2))
        used = with_boundaries(bench([tool()]))
        assert isinstance(used, bench)
        assert used.dump_component().provider.endswith(bench.__name__)
        solo = agent("solo", world.client, workbench=used)
        async with world.controller.agent("t"):
            await solo.run(task="go")
        assert world.tools() == [("t", "work", 3.0, False)]

    virtually(main())


@pytest.mark.parametrize("bench", [StaticWorkbench, StaticStreamWorkbench])
@pytest.mark.parametrize("scoped", [False, True])
def test_a_hooked_tool_in_a_hooked_workbench_is_told_of_once(bench, scoped):
    async def main() -> None:
        world = World(tools_then_end("work", 3))
        solo = agent("solo", world.client, workbench=with_boundaries(bench([with_boundaries(tool())])))
        if scoped:
            async with world.controller.agent("t"):
                await solo.run(task="go")
        else:
            await run(world.controller, solo, task="go", agent_id="t")
        assert world.tools() == [("t", "work", 3.0, False)] * 2

    virtually(main())


def test_several_calls_of_one_answer_are_told_of_one_by_one():
    async def main() -> None:
        def answer(messages):
            return say("done") if any("worked" in str(m.content) for m in messages) else call("work", 3)

        world = World(answer)
        await run(world.controller, agent("solo", world.client, [tool()]), task="go", agent_id="t")
        assert world.tools() == [("t", "work", 3.0, False)] * 3

    virtually(main())


def test_messages_about_a_call_may_come_before_its_hook_or_after():
    early, late = ToolCalls(), ToolCalls()
    assert early.asked("x", 1.0)
    assert not early.began("x")
    assert late.began("x")
    assert late.inside("x")
    early.ended("x")
    late.ended("x")
    assert not late.asked("x", 1.0)
    assert early.answered("x") is late.answered("x") is None
    assert early.asked("x", 2.0)  # some servers count their calls from 0 at each answer
    assert early.answered("x") == 2.0


def test_a_tool_that_is_cut_off_ends_with_its_agent():
    async def main() -> None:
        world = World(tools_then_end("work", 2))
        used = [agent("solo", world.client, [tool()]), agent("solo", world.client, [with_boundaries(tool())])]
        for solo in used:
            with pytest.raises(TimeoutError):
                await run(world.controller, solo, task="go", agent_id="t", timeout_seconds=2)
            told = [e for e in world.events if isinstance(e, ToolStarted | Finished)]
            assert [type(e) for e in told[-2:]] == [ToolStarted, Finished]

    virtually(main())


def test_a_hooked_tool_is_what_it_was():
    used = tool()
    before = used.dump_component(), used.schema, type(used)
    assert with_boundaries(with_boundaries(used)) is used
    assert (used.dump_component(), used.schema, type(used)) == before


def test_streaming_tools_stay_streaming():
    async def main() -> None:
        world = World(tools_then_end("helper", 2, '{"task": "help"}'))
        helper = with_boundaries(AgentTool(agent("helper", world.client, system_message="help")))
        assert isinstance(helper, StreamTool)
        world.fake.director = lambda _: say("helped")
        await run(world.controller, agent("parent", world.client, [helper]), task="go", agent_id="t")
        assert world.tools() == [("t", "helper", 1.0, False)]

    virtually(main())


def test_outside_a_trajectory_nothing_happens():
    async def main() -> None:
        from autogen_core import CancellationToken

        world = World("ok")
        assert await with_boundaries(tool()).run_json({}, CancellationToken()) == "worked"
        assert world.events == []

    virtually(main())


def test_what_is_no_tool_is_refused():
    with pytest.raises(InvalidValueError, match="used="):
        with_boundaries(work)  # type: ignore[type-var]


def test_a_tool_that_gives_back_lets_others_run_meanwhile():
    async def main() -> None:
        world = World(tools_then_end("work", 2))
        slow = with_boundaries(tool(), gives_back=True)
        first = asyncio.create_task(
            run(world.controller, agent("a", world.client, [slow]), task="go", agent_id="a")
        )
        await asyncio.sleep(1.5)
        world.fake.answer = lambda messages: say("done")
        await run(world.controller, agent("b", world.client), task="go", agent_id="b")
        assert asyncio.get_running_loop().time() == 2.5
        await first
        assert [(e.agent_id, e.reason) for e in world.events if isinstance(e, Paused)] == [
            ("a", PauseReason.GIVEN_BACK)
        ]

    virtually(main())


def test_a_human_in_a_team_gives_the_place_back_at_once():
    async def main() -> None:
        world = World("ok")

        async def ask(prompt: str, token=None) -> str:
            await asyncio.sleep(1000)
            return "go on"

        team = RoundRobinGroupChat(
            [agent("ann", world.client), UserProxyAgent("human", input_func=ask)],
            termination_condition=MaxMessageTermination(4),
        )
        first = asyncio.create_task(run(world.controller, team, task="go", agent_id="asks"))
        await asyncio.sleep(10)
        assert world.controller.snapshot().active == 0
        await run(world.controller, agent("bob", world.client), task="go")
        assert asyncio.get_running_loop().time() == 11
        result = await first
        assert [m.source for m in result.messages if m.source != "user"][-1] == "ann"

    virtually(main())


def test_a_hand_over_to_a_human_ends_the_run_and_the_next_one_continues():
    async def main() -> None:
        def answer(messages):
            handed = any(getattr(m, "source", "") == "human" for m in messages)
            return say("done", prompt=40) if handed else call("transfer_to_human")

        world = World(answer)
        ann = agent("ann", world.client, handoffs=[Handoff(target="human")])
        team = RoundRobinGroupChat(
            [ann],
            termination_condition=HandoffTermination("human") | TextMentionTermination("done"),
        )
        first = await run(world.controller, team, task="go", agent_id="t")
        assert "Handoff" in first.stop_reason
        assert world.controller.snapshot().open == 0
        answered = HandoffMessage(source="human", target="ann", content="42")
        second = await run(world.controller, team, task=answered, agent_id="t")
        assert second.messages[-1].content == "done"
        assert world.controller.snapshot().completed == 2

    virtually(main())


PROMPT, WORDS = 0, "some words that were said before and are on record "


def honest(messages):
    """Counts a token for every four characters, as the embedded engine's tokenizer about does."""
    said = sum(len(str(m.content)) for m in messages)
    return say(WORDS * 4, prompt=said // 4, completion=len(WORDS))


def demand_before_first_call(world: World) -> list[int]:
    """The ledger's demand while the first call of a trajectory is in flight."""
    seen: list[int] = []

    async def watch() -> None:
        await asyncio.sleep(0.5)
        seen.append(world.controller.snapshot().demand_tokens)

    world.watching = asyncio.create_task(watch())  # type: ignore[attr-defined]
    return seen


def test_a_team_that_goes_on_counts_its_contexts_before_its_first_call():
    async def main() -> None:
        world = World(honest)
        team = RoundRobinGroupChat([agent("ann", world.client)], max_turns=1)
        for _ in range(5):
            await run(world.controller, team, task=WORDS * 5, agent_id="t")
        lengths = [e.tokens for e in world.events if isinstance(e, StepEnded)]
        seen = demand_before_first_call(world)
        await run(world.controller, team, task="go on", agent_id="t")
        assert seen[0] == pytest.approx(lengths[-1], rel=0.05)
        await team.reset()
        seen = demand_before_first_call(world)
        await run(world.controller, team, task="anew", agent_id="t")
        assert seen[0] == 0

    virtually(main())


def test_a_loaded_team_counts_its_contexts_in_another_process(tmp_path):
    async def save() -> None:
        world = World(honest)
        team = RoundRobinGroupChat([agent("ann", world.client)], max_turns=1)
        for _ in range(5):
            await run(world.controller, team, task=WORDS * 5, agent_id="t")
        lengths = [e.tokens for e in world.events if isinstance(e, StepEnded)]
        state = {"state": await team.save_state(), "length": lengths[-1]}
        (tmp_path / "state.json").write_text(json.dumps(state))

    virtually(save())
    script = textwrap.dedent(
        """
        import asyncio, json, sys
        from tests.autogen.test_boundaries import *

        async def load():
            saved = json.loads(open(sys.argv[1]).read())
            world = World(honest)
            team = RoundRobinGroupChat([agent("ann", world.client)], max_turns=1)
            await team.load_state(saved["state"])
            seen = demand_before_first_call(world)
            await run(world.controller, team, task="go on", agent_id="t")
            print(json.dumps([seen[0], saved["length"]]))

        virtually(load())
        """
    )
    told = [sys.executable, "-c", script, str(tmp_path / "state.json")]
    out = subprocess.run(told, capture_output=True, text=True, check=True)
    counted, length = json.loads(out.stdout.splitlines()[-1])
    assert counted == pytest.approx(length, rel=0.05)


def test_system_prompts_alone_are_no_conversation_to_continue():
    from concur_autogen.usage import Meter

    fresh = [SystemMessage(content="x" * 400), UserMessage(content="y" * 400, source="user")]
    assert Meter().length(fresh) == 0
