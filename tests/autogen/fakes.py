"""A model client that answers from a script, counts what is in flight, and can be held or made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    AssistantMessage,
    ChatCompletionClient,
    CreateResult,
    LLMMessage,
    ModelFamily,
    ModelInfo,
    RequestUsage,
)

Answer = Callable[[Sequence[LLMMessage]], CreateResult]


def say(text: str, prompt: int = 10, completion: int = 2) -> CreateResult:
    return CreateResult(
        finish_reason="stop", content=text, usage=RequestUsage(prompt, completion), cached=False
    )


def call(tool: str, n: int = 1, arguments: str = "{}") -> CreateResult:
    calls = [FunctionCall(id=f"call-{i}", name=tool, arguments=arguments) for i in range(n)]
    return CreateResult(
        finish_reason="function_calls", content=calls, usage=RequestUsage(10, 2), cached=False
    )


def tools_then_end(tool: str, steps: int, arguments: str = "{}") -> Answer:
    """Call `tool` until the conversation has `steps - 1` answers, then end."""

    def answer(messages: Sequence[LLMMessage]) -> CreateResult:
        turns = sum(isinstance(m, AssistantMessage) for m in messages)
        return call(tool, arguments=arguments) if turns < steps - 1 else say("done")

    return answer


class FakeClient(ChatCompletionClient):
    component_type = "model"

    """Calls without tools (a selector's, an orchestrator's) are answered by `director`, if there is one."""

    def __init__(
        self, answer: Answer | str = "ok", seconds: float = 1.0, director: Answer | None = None
    ) -> None:
        self.answer: Answer = answer if callable(answer) else lambda _: say(answer)
        self.director = director
        self.seconds = seconds
        self.in_flight = self.peak = self.calls = self.closed = 0
        self.seen: list[tuple[Sequence[LLMMessage], dict[str, Any]]] = []

    def _enter(self, messages: Sequence[LLMMessage], options: dict[str, Any]) -> None:
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self.calls += 1
        self.seen.append((messages, options))

    def _reply(self, messages: Sequence[LLMMessage], options: dict[str, Any]) -> CreateResult:
        if self.director is not None and not options.get("tools"):
            return self.director(messages)
        return self.answer(messages)

    async def _think(self, token: CancellationToken | None) -> None:
        thought = asyncio.ensure_future(asyncio.sleep(self.seconds))
        if token is not None:
            token.link_future(thought)
        await thought

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        cancellation_token: CancellationToken | None = None,
        **options: Any,
    ) -> CreateResult:
        self._enter(messages, options)
        try:
            await self._think(cancellation_token)
            return self._reply(messages, options)
        finally:
            self.in_flight -= 1

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        cancellation_token: CancellationToken | None = None,
        **options: Any,
    ) -> AsyncGenerator[str | CreateResult, None]:
        self._enter(messages, options)
        try:
            result = self._reply(messages, options)
            for word in result.content.split() if isinstance(result.content, str) else []:
                await self._think(cancellation_token)
                yield word
            await self._think(cancellation_token)
            yield result
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        self.closed += 1

    def actual_usage(self) -> RequestUsage:
        return RequestUsage(0, 0)

    def total_usage(self) -> RequestUsage:
        return RequestUsage(0, 0)

    def count_tokens(self, messages: Sequence[LLMMessage], **_: Any) -> int:
        raise AssertionError("count_tokens may load a tokenizer")

    def remaining_tokens(self, messages: Sequence[LLMMessage], **_: Any) -> int:
        raise AssertionError("remaining_tokens raises for unknown models")

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=True,
            family=ModelFamily.UNKNOWN,
            structured_output=True,
            multiple_system_messages=True,
        )
