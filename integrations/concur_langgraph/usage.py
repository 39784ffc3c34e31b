"""Token usage of a finished LangChain model call."""

from __future__ import annotations

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from concur_agents.lifecycle import Usage


def usage_of(response: LLMResult) -> Usage | None:
    """Usage from the answer's `usage_metadata`; None when the model did not say.

    A streaming `ChatOpenAI` with a `base_url` of its own says only with `stream_usage=True`.
    """
    generation = response.generations[0][0] if response.generations and response.generations[0] else None
    if not isinstance(generation, ChatGeneration) or not isinstance(generation.message, AIMessage):
        return None
    record = generation.message.usage_metadata
    if record is None:
        return None
    prompt = record["input_tokens"]
    cached = record.get("input_token_details", {}).get("cache_read")
    # An engine that reports more hits than prompt tokens is wrong about the hits, not about the prompt.
    return Usage(prompt, record["output_tokens"], None if cached is None else min(cached, prompt))
