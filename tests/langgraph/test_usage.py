"""What a call used, from engines that say it once, in parts, again and again, or never."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from concur_langgraph import gated
from concur_langgraph.usage import Meter, context_tokens
from langchain.agents import create_agent
from langchain_core.language_models import FakeListLLM
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, Generation, LLMResult

from concur_agents import Controller, Static
from concur_agents.events import StepEnded
from tests.langgraph.fakes import FakeModel, say
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "x" * 400)]}


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"input_tokens": prompt, "output_tokens": completion, "total_tokens": prompt + completion}


class Streamer(FakeModel):
    """Streams one chunk for each of `reports`."""

    reports: list[dict[str, int] | None]

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for report in self.reports:
            yield ChatGenerationChunk(message=AIMessageChunk("word", usage_metadata=report))


async def values(graph: Any) -> None:
    await graph.ainvoke(TASK)


async def messages(graph: Any) -> None:
    async for _ in graph.astream(TASK, stream_mode="messages"):
        pass


async def events_v2(graph: Any) -> None:
    async for _ in graph.astream_events(TASK, version="v2"):
        pass


async def events_v3(graph: Any) -> None:
    async for _ in await graph.astream_events(TASK, version="v3"):
        pass


STREAMS = [messages, events_v2, events_v3]


def recorded(model: Any, read: Any) -> list[int]:
    """Context lengths that reach the ledger."""
    tokens: list[int] = []

    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            controller.subscribe(lambda e: tokens.append(e.tokens) if isinstance(e, StepEnded) else None)
            graph = gated(create_agent(model, []), controller)
            await read(graph)

    run(main())
    return tokens


@pytest.mark.parametrize(
    ("reports", "total"),
    [
        ([None, None, usage(100, 3)], 103),  # stream_options.include_usage
        ([usage(100, 1), usage(100, 2), usage(100, 3), usage(100, 3)], 103),  # on every chunk, so far
        ([usage(100, 1), usage(0, 1), usage(0, 1)], 103),  # in parts
        ([usage(100, 0), None, usage(0, 3)], 103),
    ],
    ids=["once", "repeated", "in parts", "prompt first"],
)
@pytest.mark.parametrize("read", STREAMS, ids=lambda read: read.__name__)
def test_streamed_usage_counts_once(read: Any, reports: list, total: int) -> None:
    (tokens,) = recorded(Streamer(answer=None, reports=reports), read)
    # The v3 protocol hides what each chunk says: there the length of the answer is that of its parts.
    assert tokens == pytest.approx(total, abs=1 if read is events_v3 else 0)


@pytest.mark.parametrize("read", [values, *STREAMS], ids=lambda read: read.__name__)
def test_without_usage_the_length_is_estimated(read: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Streamer(answer=lambda _: AIMessage("word" * 3), reports=[None, None, None])
    (tokens,) = recorded(model, read)
    # 400 + 12 characters at about four a token, and a few for the roles
    assert 103 <= tokens <= 125
    assert sum("stream_usage=True" in r.getMessage() for r in caplog.records) == 1


def test_the_warning_comes_once_for_a_controller(caplog: pytest.LogCaptureFixture) -> None:
    controller = Controller(policy=Static(1))
    for model in [gated(FakeModel(answer=lambda _: AIMessage("x")), controller) for _ in range(3)]:
        model.invoke("go")
    assert sum("stream_usage=True" in r.getMessage() for r in caplog.records) == 1


def test_a_text_model_is_metered_too() -> None:
    tokens: list[int] = []
    controller = Controller(policy=Static(1))
    controller.subscribe(lambda e: tokens.append(e.tokens) if isinstance(e, StepEnded) else None)
    gated(FakeListLLM(responses=["y" * 40]), controller).invoke("x" * 400)
    assert 110 <= tokens[0] <= 125
    said = LLMResult(
        generations=[[Generation(text="y")]],
        llm_output={"token_usage": {"prompt_tokens": 9, "completion_tokens": 2}},
    )
    reported = Meter([]).reported(said)
    assert reported is not None
    assert reported.context_tokens == 11


def test_the_length_of_a_conversation_is_what_its_last_answer_said() -> None:
    assert context_tokens([]) == context_tokens([HumanMessage("x"), AIMessage("y")]) == 0
    history = [HumanMessage("a"), say("b", prompt=10), HumanMessage("c"), say("d", prompt=20)]
    assert context_tokens(history) == context_tokens([*history, HumanMessage("e")]) == 22
