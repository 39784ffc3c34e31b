"""Token usage of LangChain model calls, and the length of a conversation that is already there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, LLMResult

from concur_agents.errors import InvalidValueError
from concur_agents.lifecycle import Usage
from concur_agents.usage import as_usage


class Meter:
    """What one model call used.

    Args:
        prompt: The conversation it was called with.
    """

    __slots__ = ("_deltas", "_last", "_prompt", "_reports")

    def __init__(self, prompt: Sequence[BaseMessage]) -> None:
        self._prompt = prompt
        self._reports = 0
        self._deltas = 0
        self._last: UsageMetadata | None = None

    def chunk(self, chunk: object) -> None:
        """Take in one chunk of a streamed answer."""
        record = _usage_metadata(getattr(chunk, "message", None))
        if record is not None and record["input_tokens"]:
            self._reports += 1
            self._last = record

    def event(self, event: object) -> None:
        """Take in one event of the v3 protocol, which shows what was said and hides the chunks' usage."""
        self._deltas += isinstance(event, Mapping) and event.get("event") == "content-block-delta"

    def reported(self, response: LLMResult) -> Usage | None:
        """What the engine says of the finished call; None when it does not say.

        A streaming `ChatOpenAI` with a `base_url` of its own says only with `stream_usage=True`. LangChain
        adds up the usage of the chunks. That is right where each chunk reports a part, and wrong where each
        reports all so far (vLLM with `--enable-force-include-usage`); there the last one counts.
        """
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        message = generation.message if isinstance(generation, ChatGeneration) else None
        record = self._last if self._reports > 1 else _usage_metadata(message)
        if record is not None:
            return self._repeated(record) or _usage(record)
        try:
            return as_usage((response.llm_output or {}).get("token_usage") or None)
        except InvalidValueError:
            return None

    def _repeated(self, record: UsageMetadata) -> Usage | None:
        """What is left of usage that LangChain added up out of sight: a prompt of so many chunks' length.

        A few chunks may say nothing (the first, the last), so the number of times is found by trying.
        """
        total, about = record["input_tokens"], count_tokens_approximately(self._prompt)
        if self._reports or self._deltas < 2 or total <= 2 * about:
            return None
        times = (self._deltas + silent for silent in range(3))
        prompt = next(
            (total // n for n in times if not total % n and about <= 2 * total // n <= 4 * about), None
        )
        return None if prompt is None else Usage(prompt, min(self._deltas, record["output_tokens"]))

    def estimated(self, response: LLMResult) -> Usage:
        """A guess from the number of characters, for an engine that does not say."""
        generation = response.generations[0][0] if response.generations and response.generations[0] else None
        if isinstance(generation, ChatGeneration):
            answer = count_tokens_approximately([generation.message])
        else:
            answer = count_tokens_approximately([AIMessage(generation.text)]) if generation else 0
        return Usage(count_tokens_approximately(self._prompt), answer)


def context_tokens(messages: Iterable[Any]) -> int:
    """Length in tokens of the conversation that `messages` continue, as its last answer reported it.

    0 when none did. This is how a trajectory that comes back from a checkpoint, in whatever process, counts
    in the ledger before its first call.
    """
    records = (_usage_metadata(message) for message in reversed(list(messages)))
    return next((record["total_tokens"] for record in records if record), 0)


def _usage_metadata(message: object) -> UsageMetadata | None:
    return message.usage_metadata if isinstance(message, AIMessage) else None


def _usage(record: UsageMetadata) -> Usage:
    prompt = record["input_tokens"]
    cached = record.get("input_token_details", {}).get("cache_read")
    # An engine that reports more hits than prompt tokens is wrong about the hits, not about the prompt.
    return Usage(prompt, record["output_tokens"], None if cached is None else min(cached, prompt))
