"""What a model call used: AutoGen's count, the engine's cached tokens, or an estimate.

AutoGen's `RequestUsage` has no cached tokens. Its event log does, for calls that are not streamed: the
engine's whole answer is in the `LLMCallEvent`, which is logged in the task that made the call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from autogen_core import EVENT_LOGGER_NAME
from autogen_core.logging import LLMCallEvent
from autogen_core.models import AssistantMessage, CreateResult, LLMMessage

from concur_agents import InvalidValueError, Usage
from concur_agents.usage import as_usage
from concur_autogen.conversations import characters

logger = logging.getLogger("concur_agents.autogen")

_CHARACTERS_PER_TOKEN = 4.0
"""English text, before the first usage tells better."""
_FEWEST, _MOST = 1.0, 8.0
"""Of any text. Outside of that the prompt had images, whose characters are none, or its usage is no count."""


class Meter:
    """Turns results into usage, and learns how many characters a token has."""

    def __init__(self) -> None:
        self._characters_per_token = _CHARACTERS_PER_TOKEN
        self._longest = 0  # of the prompts that were measured, in tokens
        self._warned = False

    def length(self, messages: Sequence[LLMMessage]) -> int:
        """Estimated length of the conversation that `messages` continue; 0 if they begin one.

        It is how a trajectory that comes back (`load_state`, a hand-over, another process) counts in the
        ledger before its first call.
        """
        if not any(isinstance(message, AssistantMessage) for message in messages):
            return 0
        return self._estimate(characters(messages))

    def usage(
        self, messages: Sequence[LLMMessage], result: CreateResult, report: Usage | None, *, rewritten: bool
    ) -> Usage | None:
        """Usage of a call with `messages`. None for a result out of a cache, which no engine has seen.

        `report` is what the engine said in the event log, if it did.
        """
        if result.cached:
            return None
        prompt, completion = result.usage.prompt_tokens, result.usage.completion_tokens
        if prompt > 0:
            self._learn(messages, prompt)
            cached = report.cached_tokens if report is not None else None
            return Usage(prompt, max(0, completion), cached, rewritten)
        if not self._warned:
            self._warned = True
            logger.warning(
                "the model client reports no usage; context lengths are estimated from the number of"
                " characters (said once). A streamed call needs stream_options={'include_usage': True},"
                " which is asked for where the client is an OpenAI one"
            )
        answer = result.content if isinstance(result.content, str) else str(result.content)
        return Usage(
            max(1, self._estimate(characters(messages))), self._estimate(len(answer)), None, rewritten
        )

    def _learn(self, messages: Sequence[LLMMessage], prompt: int) -> None:
        # Counting characters costs more than all else here, and the longest prompt knows best: roles and
        # tools are the least part of it.
        if prompt >= 2 * self._longest and (asked := characters(messages)):
            self._longest = prompt
            self._characters_per_token = min(max(asked / prompt, _FEWEST), _MOST)

    def _estimate(self, length: int) -> int:
        return round(length / self._characters_per_token)


_report: ContextVar[list[Usage] | None] = ContextVar("concur_autogen_report", default=None)


@contextmanager
def reported() -> Iterator[list[Usage]]:
    """Collect what the engine says of the calls made in this block, in this task."""
    _listen()  # each time: the user may have set up logging since
    found: list[Usage] = []
    token = _report.set(found)
    try:
        yield found
    finally:
        _report.reset(token)


_LEVEL = logging.INFO - 1
"""Ours, and nobody else's: so that a level which users set later is told from it. Lets the events through."""


class _Listener(logging.Filter):
    """Reads the events of model calls; what the user did not ask to see goes no further."""

    users_level = logging.NOTSET
    """Of the event log, before it became `_LEVEL`."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = _report.get()
        if found is not None and isinstance(record.msg, LLMCallEvent):
            usage = _usage_in(record.msg)
            if usage is not None:
                found.append(usage)
        return self.asked_for(record.levelno)

    def asked_for(self, level: int) -> bool:
        """Whether the event would be logged without this listener."""
        if _EVENTS.level != _LEVEL:
            return True  # the log has compared it with the user's already
        above = _EVENTS.parent
        if self.users_level != logging.NOTSET or above is None:
            return level >= self.users_level
        return above.isEnabledFor(level)


_EVENTS = logging.getLogger(EVENT_LOGGER_NAME)
_LISTENER = _Listener()


def _listen() -> None:
    """Read AutoGen's event log from now on. Idempotent; nothing more is shown to anyone by it."""
    if _LISTENER not in _EVENTS.filters:
        _EVENTS.addFilter(_LISTENER)
    if _EVENTS.level != _LEVEL and not _EVENTS.isEnabledFor(logging.INFO):
        _LISTENER.users_level = _EVENTS.level
        _EVENTS.setLevel(_LEVEL)


def _usage_in(event: LLMCallEvent) -> Usage | None:
    response: Any = event.kwargs.get("response")
    try:
        return as_usage(response.get("usage") or None)
    except (AttributeError, InvalidValueError):  # another client's idea of a response
        return None
