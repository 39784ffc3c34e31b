"""What the middleware adds: tags, announcements, and a refusal to stand alone."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import httpx2
import pytest
from concur_langgraph import SESSION_ID, ConcurMiddleware, concur_scope, gated
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from concur_agents import Controller, InvalidValueError, Static
from tests.langgraph.fakes import FakeModel, say, tools_then_end
from tests.langgraph.virtual import clock, run

TASK = {"messages": [("user", "go")]}


@tool
async def work() -> str:
    """Work."""
    await asyncio.sleep(1)
    return "ok"


@tool
def work_now() -> str:
    """Work."""
    return "ok"


def agent(controller: Controller, model: Any, used: Any = work, before: tuple = ()) -> Any:
    return create_agent(model, [used], middleware=[*before, ConcurMiddleware(controller)])


async def heard(graph: Any, config: dict | None = None) -> list[tuple[str, str]]:
    return [
        (event["concur"], event["agent_id"])
        async for event in graph.astream(TASK, config, stream_mode="custom")
    ]


def test_who_waits_and_who_is_admitted_is_on_the_custom_stream() -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller:
            graph = gated(agent(controller, FakeModel(answer=tools_then_end("work", 2))), controller)
            first, second = await asyncio.gather(
                heard(graph, {"metadata": {"concur_agent_id": "a"}}),
                heard(graph, {"metadata": {"concur_agent_id": "b"}}),
            )
            steps = ["admitted", "boundary", "admitted"]
            assert first == [(what, "a") for what in steps]
            assert second == [(what, "b") for what in ["queued", *steps]]

    run(main())


def test_synchronous_runs_announce_the_same() -> None:
    controller = Controller(policy=Static(1))
    graph = gated(agent(controller, FakeModel(answer=tools_then_end("work_now", 2)), work_now), controller)
    assert [event["concur"] for event in graph.stream(TASK, stream_mode="custom")] == [
        "admitted",
        "boundary",
        "admitted",
    ]


def test_a_thread_that_waits_says_so() -> None:
    controller = Controller(policy=Static(1))
    graph = gated(agent(controller, FakeModel(answer=lambda _: say("x")), work_now), controller)
    controller.open("holder")
    ticket = asyncio.run(controller.acquire("holder"))
    told = []
    for event in graph.stream(TASK, stream_mode="custom"):
        told.append(event["concur"])
        controller.release(ticket)
        controller.finish("holder")
    assert told == ["queued", "admitted"]


def test_each_attempt_of_a_retry_is_announced() -> None:
    async def main() -> None:
        attempts = []

        def flaky(_: Any) -> Any:
            attempts.append(1)
            if len(attempts) < 3:
                raise ConnectionError
            return say("x")

        async with Controller(policy=Static(1), clock=clock) as controller:
            again = ModelRetryMiddleware(max_retries=2, jitter=False)
            graph = gated(agent(controller, FakeModel(answer=flaky), before=(again,)), controller)
            assert [what for what, _ in await heard(graph)] == ["admitted"] * 3

    run(main())


@pytest.mark.parametrize("attached", [False, True], ids=["no handler", "another controller's"])
def test_without_the_handler_it_says_what_to_do(attached: bool) -> None:
    async def main() -> None:
        async with Controller(policy=Static(1), clock=clock) as controller, Controller() as other:
            graph = agent(controller, FakeModel(answer=lambda _: say("x")))
            graph = gated(graph, other) if attached else graph
            with pytest.raises(InvalidValueError, match=r"ConcurMiddleware is not in a gated graph.*gated\("):
                await graph.ainvoke(TASK)
            assert controller.snapshot().open == other.snapshot().open == 0

    run(main())


class Server:
    """Answers chat completions and keeps the headers; for the httpx of whichever openai is installed."""

    def __init__(self, http: Any) -> None:
        self.sessions: list[str | None] = []
        transport = http.MockTransport(lambda request: self._answer(http, request))
        self.clients = {
            "http_client": http.Client(transport=transport),
            "http_async_client": http.AsyncClient(transport=transport),
        }

    def _answer(self, http: Any, request: Any) -> Any:
        self.sessions.append(request.headers.get("x-session-id"))
        message = {"role": "assistant", "content": "x"}
        return http.Response(
            200,
            json={
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
            },
        )

    def model(self) -> ChatOpenAI:
        return ChatOpenAI(model="m", base_url="http://engine/v1", api_key="k", max_retries=0, **self.clients)


def server() -> Server:
    import openai

    return Server(httpx2 if int(openai.__version__.partition(".")[0]) >= 3 else httpx)


@pytest.mark.parametrize(
    ("config", "session"),
    [
        ({"metadata": {"concur_agent_id": "swe-7"}}, "swe-7"),
        ({"configurable": {"thread_id": "t1"}, "metadata": {"concur_agent_id": "swe-7"}}, "t1"),
        ({"configurable": {"thread_id": "t1"}, "metadata": {SESSION_ID: "mine"}}, "mine"),
        ({"metadata": {SESSION_ID: "größe 1\n"}}, "gr%C3%B6%C3%9Fe 1%0A"),
    ],
)
def test_requests_carry_their_session(config: dict, session: str) -> None:
    async def main() -> None:
        there = server()
        async with Controller(policy=Static(1)) as controller:
            with concur_scope(controller):
                await agent(controller, there.model()).ainvoke(TASK, config)
        assert there.sessions == [session]

    asyncio.run(main())


def test_a_session_of_the_users_own_is_left_alone_and_the_tag_can_be_off() -> None:
    there, controller = server(), Controller(policy=Static(1))

    class Own(ConcurMiddleware):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            mine = {"extra_headers": {"X-Session-ID": "own"}}
            return super().wrap_model_call(request.override(model_settings=mine), handler)

    for middleware in (Own(controller), ConcurMiddleware(controller, session_header=False)):
        gated(create_agent(there.model(), [], middleware=[middleware]), controller).invoke(TASK)
    assert there.sessions == ["own", None]


def test_a_model_that_is_not_openai_compatible_gets_no_header() -> None:
    seen = []

    class Strict(FakeModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(kwargs.get("extra_headers"))
            return super()._generate(*args)

    controller = Controller(policy=Static(1))
    gated(agent(controller, Strict(answer=lambda _: say("x"))), controller).invoke(TASK)
    assert seen == [None]
