"""One trajectory of every kind that AutoGen has, all of its models on one client."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent
from autogen_agentchat.base import TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage

from tests.autogen.fakes import say

MakeRunner = Callable[..., Any]


def director(names: Sequence[str], turns: int = 3) -> Callable[[Sequence[LLMMessage]], CreateResult]:
    """Answers a selector with each name in turn, and an orchestrator so that it ends after `turns`."""
    order = itertools.cycle(names)
    asked = itertools.count(1)

    def answer(messages: Sequence[LLMMessage]) -> CreateResult:
        asks = str(messages[-1].content)
        if "select the next role" in asks:
            return say(next(order))
        if "pure JSON" in asks:
            ledger: dict[str, Any] = {
                "is_request_satisfied": next(asked) > turns,
                "is_in_loop": False,
                "is_progress_being_made": True,
                "next_speaker": next(order),
                "instruction_or_question": "go on",
            }
            return say(json.dumps({k: {"reason": "so", "answer": v} for k, v in ledger.items()}))
        return say("fine")

    return answer


def agent(
    name: str, client: ChatCompletionClient, tools: Sequence[Any] = (), **options: Any
) -> AssistantAgent:
    options = {"max_tool_iterations": 5, "system_message": f"You are {name}.", **options}
    return AssistantAgent(name, client, tools=list(tools), description=f"{name} works", **options)


def solo(client: ChatCompletionClient, tools: Sequence[Any] = (), **options: Any) -> AssistantAgent:
    options.pop("runtime", None)
    options.pop("termination_condition", None)
    return agent("solo", client, tools, **options)


def _several(
    client: ChatCompletionClient, tools: Sequence[Any], **agent_options: Any
) -> list[AssistantAgent]:
    return [agent(name, client, tools, **agent_options) for name in ("ann", "bob")]


def _ends(given: TerminationCondition | None) -> TerminationCondition:
    return given if given is not None else MaxMessageTermination(4)


def round_robin(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> RoundRobinGroupChat:
    members = _several(client, tools, model_client_stream=model_client_stream)
    return RoundRobinGroupChat(
        members,
        termination_condition=_ends(termination_condition),
        **options,  # type: ignore[arg-type]
    )


def selector(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> SelectorGroupChat:
    members = _several(client, tools, model_client_stream=model_client_stream)
    return SelectorGroupChat(
        members,  # type: ignore[arg-type]
        client,
        termination_condition=_ends(termination_condition),
        model_client_streaming=model_client_stream,
        **options,
    )


def swarm(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> Swarm:
    members = [
        agent(name, client, tools, handoffs=[other], model_client_stream=model_client_stream)
        for name, other in (("ann", "bob"), ("bob", "ann"))
    ]
    return Swarm(members, termination_condition=_ends(termination_condition), **options)  # type: ignore[arg-type]


def graph_flow(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> GraphFlow:
    """One agent, two at the same time, one again."""
    first, left, right, last = (
        agent(name, client, tools, model_client_stream=model_client_stream)
        for name in ("first", "left", "right", "last")
    )
    builder = DiGraphBuilder()
    for member in (first, left, right, last):
        builder.add_node(member)
    for middle in (left, right):
        builder.add_edge(first, middle)
        builder.add_edge(middle, last)
    return GraphFlow(
        builder.get_participants(),
        graph=builder.build(),
        termination_condition=termination_condition,
        **options,
    )


def magentic_one(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> MagenticOneGroupChat:
    members = _several(client, tools, model_client_stream=model_client_stream)
    return MagenticOneGroupChat(
        members,
        client,
        termination_condition=termination_condition,
        **options,  # type: ignore[arg-type]
    )


def society(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> RoundRobinGroupChat:
    """A team with a team behind one of its members."""
    inner = round_robin(client, tools, model_client_stream=model_client_stream)
    minds = SocietyOfMindAgent("minds", inner, client)
    outer = agent("outer", client, tools, model_client_stream=model_client_stream)
    return RoundRobinGroupChat([outer, minds], termination_condition=_ends(termination_condition), **options)


def nested(
    client: ChatCompletionClient,
    tools: Sequence[Any] = (),
    *,
    termination_condition: TerminationCondition | None = None,
    model_client_stream: bool = False,
    **options: Any,
) -> RoundRobinGroupChat:
    """A team that is a member of a team."""
    inner = round_robin(client, tools, model_client_stream=model_client_stream)
    outer = agent("outer", client, tools, model_client_stream=model_client_stream)
    return RoundRobinGroupChat([outer, inner], termination_condition=_ends(termination_condition), **options)


RUNNERS: dict[str, MakeRunner] = {
    make.__name__: make
    for make in (solo, round_robin, selector, swarm, graph_flow, magentic_one, society, nested)
}
TEAMS = {name: make for name, make in RUNNERS.items() if name != "solo"}
NAMES = ("ann", "bob")
