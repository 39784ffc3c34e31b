"""A chat model that answers from a script, counts what is in flight, and can be held or made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool
from pydantic import ConfigDict, PrivateAttr

Answer = Callable[[list[BaseMessage]], AIMessage]


def say(text: str, prompt: int = 10, cached: int | None = None) -> AIMessage:
    details = {} if cached is None else {"cache_read": cached}
    return AIMessage(
        text,
        usage_metadata={
            "input_tokens": prompt,
            "output_tokens": 2,
            "total_tokens": prompt + 2,
            "input_token_details": details,
        },
    )


def call(tool: str, n: int = 1, **arguments: Any) -> AIMessage:
    message = say("")
    message.tool_calls = [
        {"name": tool, "args": arguments, "id": f"call-{i}", "type": "tool_call"} for i in range(n)
    ]
    return message


def tools_then_end(tool: str, steps: int) -> Answer:
    """Call `tool` until the conversation has `steps - 1` answers, then end."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        turns = sum(isinstance(m, AIMessage) for m in messages)
        return call(tool) if turns < steps - 1 else say("done")

    return answer


class FakeModel(BaseChatModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    answer: Any
    seconds: float = 1.0
    _flight: list[int] = PrivateAttr(default_factory=lambda: [0, 0, 0])

    @property
    def _llm_type(self) -> str:
        return "fake"

    @property
    def peak(self) -> int:
        return self._flight[1]

    @property
    def calls(self) -> int:
        return self._flight[2]

    def bind_tools(self, tools: list[BaseTool], **kwargs: Any) -> Any:
        return self

    def _enter(self) -> None:
        self._flight[0] += 1
        self._flight[1] = max(self._flight[:2])
        self._flight[2] += 1

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ):
        self._enter()
        try:
            return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])
        finally:
            self._flight[0] -= 1

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        self._enter()
        try:
            await asyncio.sleep(self.seconds)
            return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])
        finally:
            self._flight[0] -= 1

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self._enter()
        try:
            message = self.answer(messages)
            for part in ("", str(message.content)):
                await asyncio.sleep(self.seconds / 2)
                yield ChatGenerationChunk(message=AIMessageChunk(part))
            yield ChatGenerationChunk(
                message=AIMessageChunk(
                    "",
                    tool_call_chunks=[
                        {
                            "name": c["name"],
                            "args": "{}",
                            "id": c["id"],
                            "index": i,
                            "type": "tool_call_chunk",
                        }
                        for i, c in enumerate(message.tool_calls)
                    ],
                    usage_metadata=message.usage_metadata,
                )
            )
        finally:
            self._flight[0] -= 1
