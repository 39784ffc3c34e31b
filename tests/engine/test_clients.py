"""Through the clients people use, streaming and not: calls are admitted, their usage reaches the ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from concur_langgraph import gated
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import DefaultAsyncHttpxClient

from concur_agents import Controller
from concur_agents.events import StepEnded
from concur_agents.telemetry import VLLM
from tests.engine.live import SETTINGS, Engine, soon

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

FIRST, MORE = "see the log and fix the bug " * 90, "add a new key to the map " * 60
"""About 800 and 400 tokens."""
Agent = Callable[[Engine, Controller, bool], Awaitable[None]]
"""Makes two calls as one agent, the second with the first one's text before it; True: streaming."""


@asynccontextmanager
async def watched(engine: Engine) -> AsyncIterator[tuple[Controller, list[int]]]:
    """A controller that knows the engine, and the context's length after each step."""
    lengths: list[int] = []
    async with Controller(VLLM(engine.url), interval_seconds=0.05) as controller:
        controller.subscribe(lambda event: isinstance(event, StepEnded) and lengths.append(event.tokens))
        await soon(lambda: controller.snapshot().capacity_tokens == SETTINGS.kv_tokens)
        yield controller, lengths


async def openai_chat(engine: Engine, controller: Controller, streaming: bool) -> None:
    async with controller.agent() as agent, engine.client() as client:
        for text in (FIRST, FIRST + MORE):
            async with agent.step() as step:
                reply = await client.chat.completions.create(
                    messages=[{"role": "user", "content": text}], **plain(engine, streaming)
                )
                async for part in parts(reply, streaming):
                    step.record(part.usage)


async def openai_text(engine: Engine, controller: Controller, streaming: bool) -> None:
    async with controller.agent() as agent, engine.client() as client:
        for text in (FIRST, FIRST + MORE):
            async with agent.step() as step:
                reply = await client.completions.create(prompt=text, **plain(engine, streaming))
                async for part in parts(reply, streaming):
                    step.record(part.usage)


def plain(engine: Engine, streaming: bool) -> dict:
    stream = {"stream": True, "stream_options": {"include_usage": True}} if streaming else {}
    return {"model": engine.model, "max_tokens": 8, "extra_body": {"ignore_eos": True}, **stream}


async def parts(reply, streaming: bool) -> AsyncIterator:
    if not streaming:
        yield reply
        return
    async for chunk in reply:
        yield chunk


async def langchain_chat(engine: Engine, controller: Controller, streaming: bool) -> None:
    await ask_twice(ChatOpenAI(**langchain(engine), stream_usage=True), controller, streaming)


async def langchain_text(engine: Engine, controller: Controller, streaming: bool) -> None:
    await ask_twice(OpenAI(**langchain(engine)), controller, streaming)


def langchain(engine: Engine) -> dict:
    return {
        "base_url": f"{engine.url}/v1",
        "model": engine.model,
        "api_key": "unused",
        "max_tokens": 8,
        "http_async_client": DefaultAsyncHttpxClient(),  # the default one is shared by all event loops
        "extra_body": {"ignore_eos": True},
    }


async def ask_twice(model: ChatOpenAI | OpenAI, controller: Controller, streaming: bool) -> None:
    async def ask(_: None) -> None:
        for text in (FIRST, FIRST + MORE):
            if streaming:
                assert [chunk async for chunk in model.astream(text)]
            else:
                await model.ainvoke(text)

    await gated(RunnableLambda(ask), controller).ainvoke(None)


either_way = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])


@either_way
@pytest.mark.parametrize("agent", [openai_chat, openai_text, langchain_chat])
async def test_usage_and_cached_tokens_reach_the_ledger(
    engine: Engine, agent: Agent, streaming: bool
) -> None:
    async with watched(engine) as (controller, lengths):
        await agent(engine, controller, streaming)
        snapshot = controller.snapshot()
    first, second = lengths
    assert 500 < first < second - 200
    assert (snapshot.completed, snapshot.open) == (1, 0)
    assert snapshot.revisits.tokens > 500
    assert snapshot.revisits.rate > 0.8  # the answer may begin another block, which the next prompt lacks


@either_way
async def test_text_completions_of_langchain_tell_no_cached_tokens(engine: Engine, streaming: bool) -> None:
    async with watched(engine) as (controller, lengths):
        await langchain_text(engine, controller, streaming)
        snapshot = controller.snapshot()
    assert len(lengths) == 2
    assert 500 < lengths[0] < lengths[1] - 200  # streaming, they are estimates
    assert (snapshot.completed, snapshot.open) == (1, 0)
    assert snapshot.revisits.tokens == 0  # unknown, neither found nor missed


@tool
async def look(where: Literal["here", "there"]) -> str:
    """Look."""
    return f"a new key {where} " * 40


async def test_a_graph_that_calls_tools(engine: Engine) -> None:
    model = ChatOpenAI(**langchain(engine) | {"max_tokens": 200, "extra_body": {}})

    async def llm(state: MessagesState) -> dict:
        turns = sum(isinstance(message, AIMessage) for message in state["messages"])
        bound = model.bind_tools([look], tool_choice="look" if turns < 3 else "none")
        return {"messages": [await bound.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("llm", llm)
    builder.add_node("tools", ToolNode([look]))
    builder.add_edge(START, "llm")
    builder.add_conditional_edges("llm", tools_condition)
    builder.add_edge("tools", "llm")
    async with watched(engine) as (controller, lengths):
        reply = await gated(builder.compile(), controller).ainvoke({"messages": [("user", FIRST)]})
        snapshot = controller.snapshot()
    kinds = [message.type for message in reply["messages"]]
    assert kinds == ["human", *["ai", "tool"] * 3, "ai"]
    assert len(lengths) == 4
    assert (snapshot.completed, snapshot.open) == (1, 0)
    assert snapshot.revisits.tokens > 3 * 500
    assert snapshot.revisits.rate > 0.8
