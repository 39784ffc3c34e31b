"""Which context of a trajectory a model call continues.

A context is what the KV cache sees: a call continues the conversation whose messages it begins with,
whoever makes it. Nothing in AutoGen names conversations, and a trajectory has many: each participant of a
team has its own, and so has an agent that is used as a tool. Plain data; no locks, no clock.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autogen_core.models import LLMMessage, SystemMessage

Caller = tuple[str, str]
"""Who calls: the runtime's name for the participant (or ""), and the system prompt."""

_ONE_SHOT = "SelectorGroupChatManager"
"""Renders the whole history into one new prompt at each turn, so that nothing of it stays useful."""


@dataclass(eq=False, slots=True)
class Conversation:
    """One context: what was said in it, up to the last call."""

    context_id: str
    caller: Caller
    one_shot: bool = False
    """Ends with its only call."""
    serial: int | None = None
    """Tells its context from another one of that id later."""
    messages: tuple[LLMMessage, ...] = ()
    busy: bool = False
    """Whether a call of it waits or is in flight."""
    rewritten: bool = False
    """Whether the call in flight did not begin with what was said before."""
    task: weakref.ref[Any] | None = None
    """Task of the last call; done when that turn of its agent is over."""

    def continued_by(self, messages: Sequence[LLMMessage]) -> bool:
        """Whether `messages` begin with this conversation."""
        said = self.messages
        return len(said) <= len(messages) and all(
            a is b or a == b for a, b in zip(said, messages, strict=False)
        )

    def resting(self, task: object) -> bool:
        """Whether its last turn is over, or is the one that `task` carries out."""
        last = self.task() if self.task is not None else None
        return last is None or last is task or last.done()


@dataclass(eq=False, slots=True)
class Conversations:
    """All conversations of one trajectory, the one spoken to last at the end."""

    _known: dict[Caller, list[Conversation]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(found) for found in self._known.values())

    def find(self, caller: Caller, messages: Sequence[LLMMessage], task: object) -> Conversation | None:
        """The conversation that a call with `messages` in `task` continues or rewrites; None: a new one.

        A call that continues nothing has had its history trimmed or compacted, or belongs to another agent
        with the same prompt. The latter runs while the turn of the first one is not over: as its tool.
        """
        free = [c for c in reversed(self._known.get(caller, ())) if not c.busy]
        for conversation in free:
            if conversation.continued_by(messages):
                conversation.rewritten = False
                return conversation
        for conversation in free:
            if conversation.resting(task):
                conversation.rewritten = True
                return conversation
        return None

    def begin(self, conversation: Conversation, messages: Sequence[LLMMessage], task: object) -> None:
        """A call of it begins."""
        conversation.busy = True
        conversation.messages = tuple(messages)
        conversation.task = None if task is None else weakref.ref(task)
        if not conversation.one_shot:
            siblings = self._known.setdefault(conversation.caller, [])
            if conversation in siblings:
                siblings.remove(conversation)
            siblings.append(conversation)


def caller_of(handler: str, messages: Sequence[LLMMessage]) -> Caller:
    """Who makes a call with `messages`, in the message handler of the runtime's agent `handler` (or "")."""
    first = messages[0] if messages else None
    return handler, first.content if isinstance(first, SystemMessage) else ""


def is_one_shot(handler: str) -> bool:
    """Whether calls of the runtime's agent `handler` never continue one another."""
    return handler.startswith(_ONE_SHOT)


def characters(messages: Sequence[LLMMessage]) -> int:
    """Length of what is said in `messages`; images and the wording of roles are left out."""
    return sum(_characters(message.content) for message in messages)


def _characters(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(_characters(part) for part in content)
    # Function calls and their results; an image has neither.
    return sum(len(str(getattr(content, name, ""))) for name in ("name", "arguments", "content"))
