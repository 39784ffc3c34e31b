"""Agents for `concur bench --agents autogen`: an `AssistantAgent`, its OpenAI client wrapped, over HTTP.

The model's side is scripted by the request (see `concur_agents.simulator.script`), so every agent calls its
tool as often as its trajectory has steps, and its conversation grows by what tool and model say.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import AssistantMessage, CreateResult, LLMMessage, ModelFamily, ModelInfo
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import DefaultAsyncHttpxClient

from concur_agents import Controller, InvalidValueError
from concur_agents.bench.workloads import Step, Trajectory, Workload
from concur_agents.simulator.tokens import filler
from concur_autogen.client import ConcurChatCompletionClient
from concur_autogen.running import run

_SEARCH = "search"
_MODEL = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=False,
    multiple_system_messages=True,
)


class _ScriptedClient(OpenAIChatCompletionClient):
    """Tells the simulated model what to answer: a tool call at each step but the last."""

    def __init__(self, steps: Sequence[Step], **options: Any) -> None:  # noqa: ANN401
        super().__init__(**options)
        self._steps = steps

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        extra_create_args: Mapping[str, Any] = {},
        **options: Any,  # noqa: ANN401
    ) -> CreateResult:
        """One step."""
        done = sum(isinstance(message, AssistantMessage) for message in messages)
        script = {"steps": len(self._steps), "tool": _SEARCH, "generate": self._steps[done].generate}
        body = {**extra_create_args.get("extra_body", {}), "concur": script}
        return await super().create(
            messages, extra_create_args={**extra_create_args, "extra_body": body}, **options
        )


class AutoGenAgents:
    """Runs trajectories of a workload, each as an `AssistantAgent` of its own.

    Args:
        base_url: Root of an OpenAI-compatible server that understands scripts (`concur engine`).
        model: Its model.
        controller: Who admits.
        workload: What the trajectories were drawn from.
        speed: Engine seconds per wall-clock second; tools are as much faster.

    Raises:
        InvalidValueError: the workload has sub-agents.
    """

    def __init__(
        self, base_url: str, model: str, controller: Controller, workload: Workload, speed: float = 1.0
    ) -> None:
        if workload.sub_agents.high:
            msg = f"workload={workload.name!r} has sub-agents, which these agents do not start: take openai"
            raise InvalidValueError(msg)
        self._base_url, self._model = base_url, model
        self._controller = controller
        self._workload = workload
        self._speed = speed
        # One pool for all. No time-out: a thrashing engine may take minutes to the first byte.
        self._http = DefaultAsyncHttpxClient(timeout=None)

    async def run(self, trajectory: Trajectory) -> None:
        """Run one agent to its end."""
        steps = trajectory.steps
        client = _ScriptedClient(
            steps,
            model=self._model,
            base_url=f"{self._base_url}/v1",
            api_key="unused",
            model_info=_MODEL,
            max_retries=0,
            http_client=self._http,
        )
        agent = AssistantAgent(
            "worker",
            ConcurChatCompletionClient(client, self._controller),
            tools=[self._tool(steps)],
            system_message=filler(max(1, self._workload.shared_tokens)),
            max_tool_iterations=len(steps),
        )
        task = f"{trajectory.agent_id}: " + filler(max(1, steps[0].new_tokens - 5), trajectory.index)
        await run(self._controller, agent, task=task, agent_id=trajectory.agent_id)

    def _tool(self, steps: Sequence[Step]) -> FunctionTool:
        # What the tool says after step k is what step k + 1 appends.
        observations = enumerate(itertools.pairwise(steps))

        async def search(query: str) -> str:
            number, (before, after) = next(observations)
            await asyncio.sleep(before.tool_seconds / self._speed)
            return filler(after.new_tokens, number)

        return FunctionTool(search, name=_SEARCH, description="Search the repository.")

    async def close(self) -> None:
        """Give back sockets."""
        await self._http.aclose()
