"""What the simulated model answers: filler text, or the tool calls that the request asks for.

A directive in a system or user message makes an agent's loop real:

    [[concur steps=12 tool=search generate=16 new_tokens=400]]

`steps` (>= 1) is the number of generations of the whole trajectory. While the conversation has fewer than
steps - 1 assistant messages the answer is a call of `tool` (default: the first one offered), then it is a
final text. `generate` (>= 1) is the length of each answer in tokens; a tool call is never cut, so it may be
longer. Any other key gives the tool's parameter of that name its value. The request's extra body field
`concur` ({"steps": 12, ...}) says the same and wins.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concur_agents.errors import InvalidValueError, check_range
from concur_agents.simulator.tokens import BYTES_PER_TOKEN, canonical_json, content_text, encode_call, filler

_DIRECTIVE = re.compile(r"\[\[concur\b([^\]]*)\]\]")
DEFAULT_TOKENS = 64
"""Length of an answer when neither the request nor a directive says."""


@dataclass(frozen=True, slots=True)
class Script:
    """A parsed directive; None: not said."""

    steps: int | None = None
    tool: str | None = None
    generate: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Script:
        """Read the fields from a mapping of strings or numbers.

        Raises:
            InvalidValueError: `steps` or `generate` is not a whole number >= 1.
        """
        rest = dict(values)
        steps, generate = (_whole(name, rest.pop(name, None)) for name in ("steps", "generate"))
        tool = rest.pop("tool", None)
        return cls(steps, None if tool is None else str(tool), generate, rest)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is canonical JSON text, `tokens` its length as generated."""

    name: str
    arguments: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of exactly `tokens` tokens: text, then perhaps a tool call."""

    content: str
    call: ToolCall | None
    finish_reason: str

    @property
    def content_tokens(self) -> int:
        """Tokens of the text part."""
        return len(self.content) // BYTES_PER_TOKEN

    @property
    def tokens(self) -> int:
        """Tokens of the whole answer."""
        return self.content_tokens + (self.call.tokens if self.call else 0)


def find_script(messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> Script:
    """The request's directive: its `concur` field, else the first one in a system or user message."""
    if extra is not None:
        return Script.of(extra)
    for message in messages:
        if message.get("role") in ("system", "developer", "user"):
            match = _DIRECTIVE.search(content_text(message.get("content")))
            if match:
                pairs = (word.partition("=") for word in shlex.split(match[1]))
                return Script.of({key: value for key, _, value in pairs})
    return Script()


def plan_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tool_choice: object,
    script: Script,
    limit: int | None,
    *,
    ignore_eos: bool = False,
) -> Reply:
    """Decide the answer. `limit` is the request's max_tokens; with `ignore_eos` the text has that length."""
    turn = sum(1 for message in messages if message.get("role") == "assistant")
    forced = limit if ignore_eos else None
    name = _tool_to_call(tools, tool_choice, script, turn)
    if name is None:
        length, reason = text_length(script.generate or DEFAULT_TOKENS, limit, ignore_eos=ignore_eos)
        return Reply(filler(length, turn), None, reason)
    arguments = canonical_json(json.dumps(_arguments(name, tools, script, turn)))
    call = ToolCall(name, arguments, len(encode_call(name, arguments)))
    wanted = script.generate or forced or DEFAULT_TOKENS
    return Reply(filler(max(0, min(wanted, limit or wanted) - call.tokens), turn), call, "tool_calls")


def text_length(wanted: int, limit: int | None, *, ignore_eos: bool) -> tuple[int, str]:
    """Length and finish reason of a text that would stop after `wanted` tokens."""
    if limit is not None and (ignore_eos or limit < wanted):
        return limit, "length"
    return wanted, "stop"


def _tool_to_call(
    tools: Sequence[Mapping[str, Any]], tool_choice: object, script: Script, turn: int
) -> str | None:
    offered = [str(tool["function"]["name"]) for tool in tools]
    if isinstance(tool_choice, dict):
        chosen = tool_choice.get("function") or {}
        return _offered(str(chosen.get("name", "")), offered, "tool_choice")
    if not offered and tool_choice == "required":
        msg = "tool_choice='required' needs at least one tool in `tools`"
        raise InvalidValueError(msg)
    if not offered or tool_choice == "none":
        return None
    wanted = script.tool or offered[0]
    if tool_choice == "required":
        return _offered(wanted, offered, "tool")
    if script.steps is not None and turn < script.steps - 1:
        return _offered(wanted, offered, "tool")
    return None


def _offered(name: str, offered: Sequence[str], field_name: str) -> str:
    if name not in offered:
        msg = f"{field_name}={name!r} is not among the tools offered: {', '.join(offered) or 'none'}"
        raise InvalidValueError(msg)
    return name


def _arguments(name: str, tools: Sequence[Mapping[str, Any]], script: Script, turn: int) -> dict[str, Any]:
    """Arguments that fit the tool's JSON schema: the script's values, else something of the right type."""
    schema = next(t["function"].get("parameters") or {} for t in tools if t["function"]["name"] == name)
    required = schema.get("required") or ()
    arguments: dict[str, Any] = {}
    for key, described in (schema.get("properties") or {}).items():
        kind = described.get("type") if isinstance(described, dict) else None
        if key in script.arguments:
            arguments[key] = _typed(key, kind, script.arguments[key])
        elif key in required:
            choices = described.get("enum") if isinstance(described, dict) else None
            arguments[key] = choices[0] if choices else _DEFAULTS.get(str(kind), f"{name} {turn + 1}")
    return arguments


_DEFAULTS: dict[str, Any] = {
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def _typed(key: str, kind: str | None, value: object) -> object:
    if not isinstance(value, str) or kind == "string":
        return value
    try:
        return json.loads(value)
    except ValueError:
        if kind in (None, "array", "object"):
            return value
        msg = f"{key}={value!r} in the directive does not fit the tool's parameter of type {kind}"
        raise InvalidValueError(msg) from None


def _whole(name: str, value: object) -> int | None:
    if value is None:
        return None
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        msg = f"concur.{name}={value!r} must be a whole number >= 1"
        raise InvalidValueError(msg) from None
    check_range(f"concur.{name}", number, 1)
    return int(number)
