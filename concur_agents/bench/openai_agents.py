"""Plain agents: an `AsyncOpenAI` client, a growing list of messages, a tool that takes its time."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from concur_agents.bench.routers import Router
from concur_agents.bench.workloads import Step, Trajectory, Workload
from concur_agents.controller import Controller
from concur_agents.scopes import AgentScope

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

_WORDS = (
    "the run and see log for bug fix has new old key map add end try let top put get set row col sum max min "
    "now one two six ten any all few our its was are not but yet nor who how why may can did "
)
_PROBE_CHARACTERS = (2_000, 6_000)


class Prose:
    """Text of a wanted length in tokens.

    Args:
        tokens_per_character: Of the model's tokenizer on this text, > 0.
        overhead: Tokens that the chat template adds to a message, >= 0.
    """

    def __init__(self, tokens_per_character: float = 0.25, overhead: float = 2.0) -> None:
        self.tokens_per_character = tokens_per_character
        self.overhead = overhead

    def write(self, tokens: int, opening: str, turn: int = 0) -> str:
        """A message of about `tokens` tokens that starts with `opening`."""
        length = max(len(opening) + 1, round((tokens - self.overhead) / self.tokens_per_character))
        start = turn * 4 % len(_WORDS)
        return (opening + " " + _WORDS[start:] + _WORDS * (length // len(_WORDS) + 1))[:length]

    @classmethod
    async def measured(cls, base_url: str, model: str) -> Prose:
        """For the tokenizer behind a server: two prompts of known length tell its rate and its overhead."""
        lengths = []
        async with _client(base_url) as client:
            for characters in _PROBE_CHARACTERS:
                text = cls(1.0, 0.0).write(characters, secrets.token_hex(4))
                reply = await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": text}], max_tokens=1
                )
                lengths.append(reply.usage.prompt_tokens if reply.usage else characters // 4)
        short, long = _PROBE_CHARACTERS
        rate = (lengths[1] - lengths[0]) / (long - short)
        return cls(rate, max(0.0, lengths[0] - rate * short)) if rate > 0 else cls()


class OpenAIAgents:
    """Runs trajectories of a workload with chat completions.

    Answers have exactly the length drawn where the server knows `ignore_eos` (vLLM, SGLang, `concur engine`).

    Args:
        base_url: Root of the server, without /v1.
        model: Its model.
        controller: Who admits.
        workload: What the trajectories were drawn from.
        speed: Engine seconds per wall-clock second; tools are as much faster.
        prose: Writes the messages.
        router: Told with each call which agent it belongs to; None: the server needs not know.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        controller: Controller,
        workload: Workload,
        speed: float = 1.0,
        *,
        prose: Prose | None = None,
        router: Router | None = None,
    ) -> None:
        self._client = _client(base_url)
        self._model = model
        self._controller = controller
        self._speed = speed
        self._router = router
        self._prose = prose or Prose()
        # Two arms on one server must not find each other's blocks.
        self._run = secrets.token_hex(4)
        shared = workload.shared_tokens
        self._system = self._prose.write(shared, f"run {self._run}") if shared else None

    async def run(self, trajectory: Trajectory) -> None:
        """See `Agents.run`."""
        agent_id = trajectory.agent_id
        told: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
        if self._router is not None:
            told["extra_body"] |= self._router.fields(agent_id)
            told["extra_headers"] = self._router.headers(agent_id)
        await self._work(trajectory, self._controller.agent(agent_id), told)

    async def _work(self, trajectory: Trajectory, scope: AgentScope, told: dict[str, Any]) -> None:
        messages: list[ChatCompletionMessageParam] = []
        if self._system is not None:
            messages.append({"role": "system", "content": self._system})
        async with scope as agent:
            for number, step in enumerate(trajectory.steps):
                opening = f"{trajectory.agent_id} of run {self._run}, step {number}:"
                content = self._prose.write(step.new_tokens, opening, number)
                messages.append({"role": "user", "content": content})
                messages.append(
                    {"role": "assistant", "content": await self._ask(agent, messages, step, told)}
                )
                if number + 1 < len(trajectory.steps):
                    helpers = [self._work(sub, agent.child(sub.agent_id), told) for sub in step.sub_agents]
                    await asyncio.gather(asyncio.sleep(step.tool_seconds / self._speed), *helpers)

    async def _ask(
        self,
        agent: AgentScope,
        messages: list[ChatCompletionMessageParam],
        step: Step,
        told: dict[str, Any],
    ) -> str:
        async with agent.step() as call:
            reply = await self._client.chat.completions.create(
                model=self._model,
                messages=messages,
                max_tokens=step.generate,
                **told,
            )
            call.record(reply.usage)
        return reply.choices[0].message.content or ""

    async def close(self) -> None:
        """Give back sockets."""
        await self._client.close()


def _client(base_url: str) -> AsyncOpenAI:
    # No time-out and no retries: a thrashing engine may take minutes to its first byte, and asking again
    # would add to the load that is being measured.
    return AsyncOpenAI(
        base_url=f"{base_url}/v1",
        api_key="unused",
        max_retries=0,
        http_client=DefaultAsyncHttpxClient(timeout=None),
    )
