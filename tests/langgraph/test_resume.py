"""A human takes his time: the place goes to others, and the context is remembered when he answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from concur_langgraph import AGENT_ID
from concur_langgraph.handler import runs_of
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from concur_agents import Controller, Static
from concur_agents.events import Admitted, Granted
from tests.langgraph.fakes import FakeModel, call, say
from tests.langgraph.surfaces import SURFACES, around
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}
THREAD = {"configurable": {"thread_id": "t"}, "metadata": {AGENT_ID: "patient"}}


@tool
async def ask_human() -> str:
    """Ask."""
    return str(interrupt("well?"))


def answer(messages: list) -> Any:
    """Asks first (512 tokens so far), then says what the human said."""
    if len(messages) > 1:
        return say(str(messages[-1].content), prompt=600)
    message = call("ask_human")
    message.usage_metadata = {"input_tokens": 500, "output_tokens": 12, "total_tokens": 512}
    return message


@pytest.mark.parametrize("surface", SURFACES)
def test_the_place_is_given_back_and_taken_again_with_the_context(surface: str) -> None:
    saver = InMemorySaver()

    def agent(controller: Controller) -> Any:
        model = FakeModel(answer=answer)
        return SURFACES[surface](controller, model, ask_human, checkpointer=saver)

    async def until_the_question() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            with around(surface, controller):
                assert "__interrupt__" in await agent(controller).ainvoke(TASK, THREAD)
            assert (controller.snapshot().active, controller.snapshot().open) == (0, 0)
            async with controller.agent("other") as other, other.step():
                pass  # while the human thinks

    async def from_the_answer_on() -> None:
        """Another process: nothing is left but the checkpoint."""
        async with Controller(policy=Static(1), clock=clock) as controller:
            demand = []
            controller.subscribe(
                lambda e: (
                    demand.append(controller.snapshot().demand_tokens) if isinstance(e, Admitted) else None
                )
            )
            async with controller.agent("other") as other, other.step():
                with around(surface, controller):
                    queued = asyncio.create_task(agent(controller).ainvoke(Command(resume="yes"), THREAD))
                    await asyncio.sleep(1)
                assert controller.snapshot().waiting == 1
            assert (await queued)["messages"][-1].content == "yes"
            assert demand == [0, 512]
            assert (controller.snapshot().active, runs_of(controller).idle) == (0, True)

    run(until_the_question())
    run(from_the_answer_on())


def test_the_same_process_may_resume_as_often_as_it_likes() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            grants: list[int] = []
            controller.subscribe(lambda e: grants.append(e.ticket) if isinstance(e, Granted) else None)
            graph = SURFACES["gated"](
                controller, FakeModel(answer=answer), ask_human, checkpointer=InMemorySaver()
            )
            for turn in range(3):
                config = {"configurable": {"thread_id": f"t{turn}"}, "metadata": {AGENT_ID: "patient"}}
                await graph.ainvoke(TASK, config)
                await graph.ainvoke(Command(resume="yes"), config)
            assert len(grants) == 6
            assert controller.snapshot().completed == 6

    run(main())
