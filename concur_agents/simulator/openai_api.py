"""The OpenAI wire format: bodies in, plans for the engine, chunks and objects out. No I/O.

Fields the simulator has no use for (temperature, stop, logprobs, ...) are accepted and ignored.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from concur_agents.errors import InvalidValueError
from concur_agents.simulator.engine import Request
from concur_agents.simulator.script import DEFAULT_TOKENS, Reply, find_script, plan_chat, text_length
from concur_agents.simulator.tokens import (
    BYTES_PER_TOKEN,
    block_keys,
    encode,
    encode_call,
    encode_chat,
    filler,
    token_array,
)

if TYPE_CHECKING:
    from concur_agents.simulator.costs import Profile


class ApiError(Exception):
    """Answered as JSON in OpenAI's shape, worded as vLLM does."""

    def __init__(
        self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class _StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    concur: dict[str, Any] | None = None


class _Function(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="allow")

    function: _Function


class ChatBody(_Body):
    """Body of /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionBody(_Body):
    """Body of /v1/completions. A list of prompts is allowed if it has one element."""

    prompt: str | list[int] | list[str] | list[list[int]]
    return_token_ids: bool = False


class TokenizeBody(BaseModel):
    """Body of /tokenize."""

    model_config = ConfigDict(extra="ignore")

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A validated generation call: what the engine gets and what the client will."""

    request: Request
    reply: Reply
    chat: bool
    model: str
    stream: bool
    include_usage: bool
    created: int
    token_ids: tuple[int, ...] | None = None
    """Ids to return with the text, if asked for."""


_B = TypeVar("_B", bound=BaseModel)


def parse(kind: type[_B], data: bytes) -> _B:
    """Read a JSON body.

    Raises:
        ApiError: 400 naming the field.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        param = str(first["loc"][0]) if first["loc"] else None
        where = f"{path}: " if path else ""
        given = "" if first["type"] in ("missing", "json_invalid") else f" (got {str(first['input'])[:80]})"
        raise ApiError(400, f"{where}{first['msg']}{given}", param) from error


def chat_call(body: ChatBody, request_id: str, profile: Profile) -> Call:
    """Plan the answer to a chat request.

    Raises:
        ApiError: It does not fit the context, or asks for something impossible.
    """
    tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
    tokens = encode_chat(body.messages, tools)
    limit = body.max_completion_tokens or body.max_tokens
    room = _room(len(tokens), limit, profile, "messages")
    try:
        script = find_script(body.messages, body.concur)
        reply = plan_chat(
            body.messages, tools, body.tool_choice, script, limit or room, ignore_eos=body.ignore_eos
        )
    except InvalidValueError as error:
        raise ApiError(400, str(error), str(error).partition("=")[0]) from error
    prompt = len(tokens)
    tokens = tokens + encode(reply.content)
    if reply.call is not None:
        tokens.extend(encode_call(reply.call.name, reply.call.arguments))
    return _call(body, request_id, profile, tokens, prompt, reply, chat=True)


def completion_call(body: CompletionBody, request_id: str, profile: Profile) -> Call:
    """Plan the answer to a text completion.

    Raises:
        ApiError: It does not fit the context, or has several prompts.
    """
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) != 1:
            raise ApiError(
                400, f"prompt: a batch of {len(prompt)} prompts is not supported: send one", "prompt"
            )
        prompt = prompt[0]
    if not prompt:
        raise ApiError(400, "prompt: must not be empty", "prompt")
    try:
        script = find_script((), body.concur)
        ids = encode(prompt) if isinstance(prompt, str) else token_array(prompt)  # type: ignore[arg-type]
    except InvalidValueError as error:
        raise ApiError(400, str(error), "prompt") from error
    room = _room(len(ids), body.max_tokens, profile, "prompt")
    limit = body.max_tokens or min(room, 16)  # 16 is the API's default
    length, reason = text_length(script.generate or DEFAULT_TOKENS, limit, ignore_eos=body.ignore_eos)
    reply = Reply(filler(length, len(ids)), None, reason)
    # A text prompt and its continuation are cut into tokens together, as they will be when sent back.
    tokens = encode(prompt + reply.content) if isinstance(prompt, str) else ids + encode(reply.content)
    return _call(body, request_id, profile, tokens, len(ids), reply, chat=False)


def _call(
    body: ChatBody | CompletionBody,
    request_id: str,
    profile: Profile,
    tokens: array[int],
    prompt_tokens: int,
    reply: Reply,
    *,
    chat: bool,
) -> Call:
    wants_ids = isinstance(body, CompletionBody) and body.return_token_ids
    return Call(
        request=Request(request_id, prompt_tokens, reply.tokens, block_keys(tokens, profile.block_size)),
        reply=reply,
        chat=chat,
        model=body.model or profile.model,
        stream=body.stream,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        created=int(time.time()),
        token_ids=tuple(tokens[prompt_tokens:]) if wants_ids else None,
    )


def _room(prompt_tokens: int, limit: int | None, profile: Profile, param: str) -> int:
    longest = profile.max_model_len
    if prompt_tokens + (limit or 1) > longest:
        wanted = f" and max_tokens={limit}" if limit else ""
        msg = (
            f"This model's maximum context length is {longest} tokens. However, the request has "
            f"{prompt_tokens} input tokens{wanted}. Shorten the {param} or lower max_tokens."
        )
        raise ApiError(400, msg, "max_tokens" if limit and prompt_tokens < longest else param)
    return longest - prompt_tokens


def usage(call: Call, cached_tokens: int) -> dict[str, Any]:
    """The `usage` object."""
    prompt, output = call.request.prompt_tokens, call.request.max_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def full_response(call: Call, cached_tokens: int) -> dict[str, Any]:
    """The answer to a call that does not stream."""
    reply = call.reply
    choice: dict[str, Any] = {"index": 0, "finish_reason": reply.finish_reason, "logprobs": None}
    if call.chat:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content or None, "tool_calls": []}
        if reply.call is not None:
            function = {"name": reply.call.name, "arguments": reply.call.arguments}
            message["tool_calls"] = [{"id": _call_id(call), "type": "function", "function": function}]
        choice["message"] = message
    else:
        choice["text"] = reply.content
        if call.token_ids is not None:
            choice["token_ids"] = list(call.token_ids)
    return _envelope(call, [choice], chunk=False) | {"usage": usage(call, cached_tokens)}


def opening_chunks(call: Call) -> bytes:
    """What a stream says with its first token."""
    return _chunk(call, {"role": "assistant", "content": ""}) if call.chat else b""


def token_chunks(call: Call, start: int, stop: int) -> bytes:
    """Server-sent events for output tokens [start, stop)."""
    reply = call.reply
    text = reply.content[start * BYTES_PER_TOKEN : stop * BYTES_PER_TOKEN]
    ids = list(call.token_ids[start:stop]) if call.token_ids is not None else None
    events = b""
    if text:
        events += _chunk(call, {"content": text} if call.chat else text, ids=ids)
    if reply.call is not None:
        for function in _call_pieces(reply, start - reply.content_tokens, stop - reply.content_tokens):
            delta: dict[str, Any] = {"index": 0, "function": function}
            if "name" in function:
                delta |= {"id": _call_id(call), "type": "function"}
            events += _chunk(call, {"tool_calls": [delta]})
    return events


def closing_chunks(call: Call, cached_tokens: int) -> bytes:
    """Finish reason, usage if asked for, and the end mark."""
    events = _chunk(call, {} if call.chat else "", call.reply.finish_reason)
    if call.include_usage:
        events += _event(_envelope(call, [], chunk=True) | {"usage": usage(call, cached_tokens)})
    return events + b"data: [DONE]\n\n"


def _call_pieces(reply: Reply, start: int, stop: int) -> list[dict[str, str]]:
    """The parts of the tool call in tokens [start, stop) of it: its name first, then its arguments."""
    assert reply.call is not None
    if stop <= 0:
        return []
    arguments = reply.call.arguments
    head = reply.call.tokens - -(-len(arguments.encode()) // BYTES_PER_TOKEN)
    pieces = [{"name": reply.call.name, "arguments": ""}] if start <= 0 else []
    text = arguments[max(0, start - head) * BYTES_PER_TOKEN : max(0, stop - head) * BYTES_PER_TOKEN]
    return [*pieces, {"arguments": text}] if text else pieces


def _call_id(call: Call) -> str:
    return f"call-{call.request.request_id}"


def _envelope(call: Call, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
    kind = ("chat.completion.chunk" if chunk else "chat.completion") if call.chat else "text_completion"
    return {
        "id": call.request.request_id,
        "object": kind,
        "created": call.created,
        "model": call.model,
        "choices": choices,
    }


def _chunk(
    call: Call, delta: Mapping[str, Any] | str, finish_reason: str | None = None, ids: list[int] | None = None
) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish_reason, "logprobs": None}
    choice["delta" if call.chat else "text"] = delta
    if ids is not None:
        choice["token_ids"] = ids
    return _event(_envelope(call, [choice], chunk=True))


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
