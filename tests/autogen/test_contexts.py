"""What counts as a context in the ledger, with AutoGen's own teams, memories and states."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core import EVENT_LOGGER_NAME
from autogen_core.logging import LLMCallEvent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import AssistantMessage, CreateResult, LLMMessage, RequestUsage
from concur_autogen import ConcurChatCompletionClient, run

from concur_agents import Controller, Static
from concur_agents.events import Admitted, StepEnded
from tests.autogen.fakes import FakeClient, call, say, tools_then_end
from tests.autogen.teams import NAMES, RUNNERS, agent, director, round_robin
from tests.langgraph.virtual import clock
from tests.langgraph.virtual import run as virtually

TOKENS = 16
"""Each message has so many: one block."""


class CachingEngine(FakeClient):
    """Has a prefix cache without end, and reports what it found in it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prompts: list[list[LLMMessage]] = []

    def _reply(self, messages: Sequence[LLMMessage], options: dict[str, Any]) -> CreateResult:
        cached = max((_common(messages, known) for known in self.prompts), default=0) * TOKENS
        prompt = len(messages) * TOKENS
        self.prompts.append(list(messages))
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": prompt, "completion_tokens": 1, **details}
        logging.getLogger(EVENT_LOGGER_NAME).info(
            LLMCallEvent(messages=[], response={"usage": usage}, prompt_tokens=prompt, completion_tokens=1)
        )
        return super()._reply(messages, options).model_copy(update={"usage": RequestUsage(prompt, 1)})


def _common(a: Sequence[LLMMessage], b: Sequence[LLMMessage]) -> int:
    for n, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return n
    return min(len(a), len(b))


class World:
    """A controller with one place; which contexts there are, how long they are, and who has had the place."""

    def __init__(self) -> None:
        self.controller = Controller(policy=Static(1), clock=clock)
        self.contexts: dict[str, int] = {}
        self.places: list[str] = []
        self.open_at_once = 0
        self.controller.subscribe(self._see)

    def _see(self, event: object) -> None:
        self.open_at_once = max(self.open_at_once, len(self.controller.gate._regulator.admission.census))
        if isinstance(event, StepEnded):
            self.contexts[event.agent_id] = event.tokens
        elif isinstance(event, Admitted):
            self.places.append(event.agent_id)

    def client(self, answer: Any, **options: Any) -> ConcurChatCompletionClient:
        return ConcurChatCompletionClient(CachingEngine(answer, **options), self.controller)

    async def run(self, runner: Any, task: str = "go") -> Any:
        return await run(self.controller, runner, task=task, agent_id="t")


async def work() -> str:
    """Work."""
    return "worked"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("solo", 1),
        ("round_robin", 2),
        ("swarm", 1),  # ann alone speaks: she hands over to nobody
        ("graph_flow", 4),
        ("society", 4),  # outer, ann, bob, and what minds says of them
        ("nested", 3),
    ],
)
def test_each_participant_is_one_context_of_one_agent(kind: str, expected: int):
    async def main() -> None:
        world = World()
        await world.run(RUNNERS[kind](world.client("ok")))
        assert len(world.contexts) == expected
        assert set(world.places) == {"t"}

    virtually(main())


def test_three_participants_with_one_system_prompt_are_three_contexts():
    async def main() -> None:
        from autogen_agentchat.conditions import MaxMessageTermination
        from autogen_agentchat.teams import RoundRobinGroupChat

        world = World()
        members = [
            agent(name, world.client(tools_then_end("work", 3)), (work,), system_message="You help.")
            for name in ("ann", "bob", "cid")
        ]
        await world.run(RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(7)))
        assert len(world.contexts) == 3
        assert world.places == ["t"]

    virtually(main())


def test_a_handoff_goes_on_in_a_context_of_its_own():
    async def main() -> None:
        def answer(messages: Sequence[LLMMessage]) -> CreateResult:
            return call("transfer_to_bob") if messages[0].content == "You are ann." else say("done")

        world = World()
        await world.run(RUNNERS["swarm"](world.client(answer)))
        assert len(world.contexts) == 2

    virtually(main())


def test_a_selectors_prompts_are_not_kept():
    async def main() -> None:
        world = World()
        client = world.client("ok", director=director(NAMES))
        team = RUNNERS["selector"](client, (work,), allow_repeated_speaker=True)
        await world.run(team)
        assert len([name for name in world.contexts if "SelectorGroupChatManager" in name]) >= 3
        assert world.open_at_once <= 4  # the trajectory, two participants, and the prompt of the moment

    virtually(main())


def test_magentic_ones_orchestrator_and_participants_are_contexts_and_a_plan_is_no_new_one():
    async def main() -> None:
        world = World()
        client = world.client("ok", director=director(NAMES))
        await world.run(RUNNERS["magentic_one"](client, (work,)))
        assert world.open_at_once <= 4
        assert world.places == ["t"]

    virtually(main())


def test_an_agent_that_is_a_tool_keeps_its_context_from_one_use_to_the_next():
    async def main() -> None:
        world = World()
        helper = agent("helper", world.client("helped"))
        asks = tools_then_end("helper", 4, '{"task": "help"}')
        await world.run(agent("parent", world.client(asks), [AgentTool(helper)]))
        assert len(world.contexts) == 2
        revisits = world.controller.snapshot().revisits
        assert revisits.tokens > 0
        assert revisits.rate == 1.0

    virtually(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_agents_of_one_prompt_in_one_another_and_side_by_side_are_told_apart(streamed: bool):
    async def main() -> None:
        world = World()

        def both(messages: Sequence[LLMMessage]) -> CreateResult:
            if any(isinstance(m, AssistantMessage) for m in messages):
                return say("done")
            calls = [call(name, arguments='{"task": "help"}').content[0] for name in ("left", "right")]
            for number, one in enumerate(calls):
                one.id = f"call-{number}"
            return call("left").model_copy(update={"content": calls})

        options: dict[str, Any] = {"system_message": "You help.", "model_client_stream": streamed}
        tools = [AgentTool(agent(name, world.client("helped"), **options)) for name in ("left", "right")]
        await world.run(agent("parent", world.client(both), tools, **options))
        assert len(world.contexts) == 3

    virtually(main())


def test_a_history_that_is_cut_off_in_front_is_the_same_context_and_no_congestion():
    async def main() -> None:
        world = World()
        client = world.client(lambda messages: call("work") if len(messages) < 99 else say("done"))
        forgetful = AssistantAgent(
            "forgetful",
            client,
            tools=[work],
            max_tool_iterations=12,
            model_context=BufferedChatCompletionContext(buffer_size=4),
        )
        await world.run(forgetful)
        assert client.client.calls == 12
        assert len(world.contexts) == 1
        # What it did find was all there was to find: what was cut off counts as nobody's miss.
        assert world.controller.snapshot().revisits.rate in (None, 1.0)

    virtually(main())


def test_the_same_history_uncut_is_revisited_and_found():
    async def main() -> None:
        world = World()
        client = world.client(tools_then_end("work", 5))
        await world.run(agent("a", client, (work,)))
        assert world.controller.snapshot().revisits.rate == 1.0
        assert world.controller.snapshot().revisits.tokens > 0

    virtually(main())


def test_a_reset_makes_the_contexts_short_and_no_new_ones():
    async def main() -> None:
        world = World()
        team = round_robin(world.client(tools_then_end("work", 4)), (work,))
        async with world.controller.agent("t"):
            await team.run(task="go")
            before = dict(world.contexts)
            await team.reset()
            world.contexts.clear()
            await team.run(task="again")
            assert world.contexts.keys() == before.keys()
            revisits = world.controller.snapshot().revisits
            assert revisits.rate == 1.0, "what a reset threw away was not lost to congestion"

    virtually(main())


def test_a_loaded_state_counts_before_its_first_answer_and_is_no_first_prompt():
    async def main() -> None:
        world = World()
        first = agent("a", world.client(lambda _: say("word " * 200)))
        await world.run(first)
        state = await first.save_state()
        again = agent("a", world.client("done"))
        await again.load_state(state)
        demands: list[int] = []
        original = again._model_client.client._enter

        def enter(*args: Any) -> None:
            demands.append(world.controller.snapshot().demand_tokens)
            original(*args)

        again._model_client.client._enter = enter
        await run(world.controller, again, task="go on", agent_id="u")
        assert demands[0] >= 200, "the history that it brings along"
        ledger = world.controller.gate._regulator.admission.ledger
        assert list(ledger._first_prompts) == [], "only what is new may tell of a shared prefix"
        assert world.controller.snapshot().demand_tokens == 0

    virtually(main())
