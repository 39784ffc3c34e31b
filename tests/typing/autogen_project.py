"""What users of AutoGen write, for the type checker: as `users_project`.

Nothing here runs.
"""

from __future__ import annotations

from typing import assert_type

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, TextMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken, ComponentModel
from autogen_core.models import ChatCompletionClient, CreateResult, UserMessage
from autogen_core.tools import FunctionTool, Workbench
from concur_autogen import (
    BatchResult,
    ConcurChatCompletionClient,
    register,
    registered,
    run,
    run_batch,
    run_stream,
    with_boundaries,
)

from concur_agents import Controller, Static
from concur_agents.telemetry import VLLM


async def search(query: str) -> str:
    """Search."""
    return query


def a_team(client: ConcurChatCompletionClient) -> RoundRobinGroupChat:
    tool = FunctionTool(search, description="Searches.")
    with_boundaries(tool, gives_back=True)
    agent = AssistantAgent("writer", client, tools=[tool])
    return RoundRobinGroupChat([agent], termination_condition=MaxMessageTermination(4))


async def runs(inner: ChatCompletionClient) -> TaskResult:
    async with Controller(VLLM("http://localhost:8000"), policy=Static(8)) as controller:
        client = ConcurChatCompletionClient(inner, controller)
        team, token = a_team(client), CancellationToken()
        result = await run(
            controller, team, task="go", agent_id="t", timeout_seconds=60, cancellation_token=token
        )
        assert_type(result, TaskResult)
        await run(controller, team, task=TextMessage(content="go", source="user"), priority=1)
        async for item in run_stream(controller, team, task="go"):
            assert_type(item, BaseAgentEvent | BaseChatMessage | TaskResult)
        async with controller.agent("u"):
            await team.run(task="go")
        return await run(controller, team)


async def calls(client: ConcurChatCompletionClient) -> str | None:
    named = client.for_agent("swe-17")
    assert_type(named, ConcurChatCompletionClient)
    plain: ChatCompletionClient = named
    result = await plain.create([UserMessage(content="go", source="user")])
    async for item in named.create_stream([UserMessage(content="go", source="user")]):
        assert_type(item, str | CreateResult)
    await named.close()
    return result.content if isinstance(result.content, str) else None


def configurations(client: ConcurChatCompletionClient, workbench: Workbench) -> Workbench:
    assert_type(register(client.controller, "batch"), Controller)
    assert_type(registered("batch"), Controller)
    dumped: ComponentModel = client.dump_component()
    assert_type(ConcurChatCompletionClient.load_component(dumped), ConcurChatCompletionClient)
    assert_type(ChatCompletionClient.load_component(dumped), ChatCompletionClient)
    return with_boundaries(workbench)


async def batches(controller: Controller, client: ConcurChatCompletionClient) -> list[BatchResult]:
    def report(result: BatchResult) -> None:
        print(result.id, result.ok, result.usage.prompt_tokens)

    await run_batch(lambda: a_team(client), ["a", "b"], controller, on_result=report)
    return await run_batch(lambda: a_team(client), {"one": "a", "two": None}, controller, output="out.jsonl")


async def mistakes_are_found(controller: Controller, client: ConcurChatCompletionClient) -> None:
    ConcurChatCompletionClient("model", controller)  # type: ignore[arg-type]
    ConcurChatCompletionClient(client)  # type: ignore[call-arg]
    await run(controller, client, task="go")  # type: ignore[arg-type]
    await run(a_team(client), task="go")  # type: ignore[call-arg, arg-type]
    await run(controller, a_team(client), timeout=3)  # type: ignore[call-arg]
    await run_stream(controller, a_team(client))  # type: ignore[misc]
    with_boundaries(search)  # type: ignore[type-var]
    register("batch")  # type: ignore[arg-type]
