"""Text to tokens and back, so that the engine's prefix cache sees what a real one would see.

Four UTF-8 bytes are one token; its id is their value (little-endian, zero-padded). Every part of a chat
message is encoded by itself between role and end markers, so appending messages never changes the tokens of
earlier ones, and an answer sent back as an assistant message yields the tokens that were generated.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from concur_agents.errors import InvalidValueError

BYTES_PER_TOKEN = 4
_MARKERS = {"system": 1, "developer": 1, "user": 2, "assistant": 3, "tool": 4, "function": 4}
_END, _CALL, _TOOLS = 8, 9, 10
_FILLER = (
    "the run and see log for bug fix has new old key map add end try let top put get set row col sum max "
    "min now one two six ten any all few our its was are not but yet nor who how why may can did "
)
MAX_TOKEN_ID = 2**32 - 1


@lru_cache(maxsize=16384)
def encode(text: str) -> array[int]:
    """Token ids of `text`; do not change the result."""
    data = text.encode()
    padded = data + b"\0" * (-len(data) % BYTES_PER_TOKEN)
    tokens = array("I", padded)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def token_count(text: str) -> int:
    """How many tokens `text` has."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def filler(tokens: int, seed: int = 0) -> str:
    """Text of exactly `tokens` tokens; another one for another `seed`."""
    start = seed * BYTES_PER_TOKEN % len(_FILLER)
    length = tokens * BYTES_PER_TOKEN
    return (_FILLER * (-(-(start + length) // len(_FILLER))))[start : start + length]


def encode_call(name: str, arguments: str) -> array[int]:
    """Token ids of a tool call, the same however the client formats the arguments' JSON."""
    tokens = array("I", [_CALL])
    tokens.extend(encode(name))
    tokens.extend(encode(canonical_json(arguments)))
    return tokens


def canonical_json(text: str) -> str:
    """JSON text with sorted keys; text that is not JSON as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def encode_chat(messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> array[int]:
    """Token ids of a conversation up to where the assistant's answer starts.

    Tool definitions come first, as in the chat templates of real models.
    """
    tokens = array("I")
    if tools:
        tokens.append(_TOOLS)
        tokens.extend(encode(json.dumps(tools, sort_keys=True)))
        tokens.append(_END)
    for message in messages:
        tokens.append(_MARKERS.get(str(message.get("role")), 5))
        tokens.extend(encode(content_text(message.get("content"))))
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            tokens.extend(encode_call(str(function.get("name", "")), str(function.get("arguments", ""))))
        tokens.append(_END)
    tokens.append(_MARKERS["assistant"])
    return tokens


def content_text(content: object) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            str(part["text"])
            if isinstance(part, dict) and "text" in part
            else json.dumps(part, sort_keys=True)
            for part in content
        )
    return json.dumps(content, sort_keys=True)


def token_array(ids: Sequence[int], field: str = "prompt") -> array[int]:
    """Token ids as an array.

    Raises:
        InvalidValueError: An id is not a whole number in [0, 2^32).
    """
    try:
        return array("I", ids)
    except (OverflowError, TypeError) as error:
        msg = f"{field} holds something that is no token id: expected whole numbers in [0, {MAX_TOKEN_ID}]"
        raise InvalidValueError(msg) from error


def block_keys(tokens: array[int], block_size: int) -> list[int]:
    """Chained hashes of the full blocks of `tokens`, for `engine.Request.keys`."""
    data = memoryview(tokens).cast("B")
    width = block_size * tokens.itemsize
    keys = []
    previous = 0
    for start in range(0, len(data) - width + 1, width):
        previous = hash((previous, bytes(data[start : start + width])))
        keys.append(previous)
    return keys
