"""The file of a batch: one line of JSON for each task that ended, and what of it is not to be run again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage, MessageFactory, SelectorEvent

from concur_agents import InvalidValueError

COMPLETED, FAILED = "completed", "failed"

MessageType = type[BaseAgentEvent | BaseChatMessage]

_BEGIN = b'{"id": '
"""How each line begins."""


class BatchFile:
    """Appends results as they come, and reads those that are there.

    Args:
        path: Made if there is none; its directory must exist.
        custom_message_types: Types of messages that AutoGen cannot know, such as `StructuredMessage[Answer]`.

    Raises:
        InvalidValueError: it cannot be written.
    """

    def __init__(self, path: Path, custom_message_types: Sequence[MessageType] = ()) -> None:
        self._path = path
        self._messages = MessageFactory()
        for kind in (SelectorEvent, *custom_message_types):
            if not self._messages.is_registered(kind):
                self._messages.register(kind)
        try:
            path.open("ab").close()
        except OSError as error:
            msg = f"output={str(path)!r} cannot be used: {error.strerror}"
            raise InvalidValueError(msg) from error

    def completed(self) -> dict[str, TaskResult]:
        """Results by id of the tasks that need not be run again; half a line at the end is cut off.

        Raises:
            InvalidValueError: a line is not this module's, or has a message of an unknown type.
        """
        found: dict[str, TaskResult] = {}
        whole, line = 0, b"\n"  # bytes that are good
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                record = _json(line)
                if record is None and _is_torn(line, number):
                    break
                if not isinstance(record, dict) or "id" not in record or "outcome" not in record:
                    msg = f"{self._named(number)} is not the result of a batch: give another file"
                    raise InvalidValueError(msg)
                whole += len(line)
                if record["outcome"] == COMPLETED:
                    found[record["id"]] = self._result(record, number)
        if not line.endswith(b"\n"):
            self._mend(whole)
        return found

    def _result(self, record: dict[str, Any], number: int) -> TaskResult:
        try:
            messages = [self._messages.create(message) for message in record["messages"]]
            return TaskResult(messages=messages, stop_reason=record["stop_reason"])
        except (KeyError, ValueError) as error:
            msg = (
                f"{self._named(number)} (id {record['id']!r}) cannot be read: {error}. Name types of your"
                " own, custom_message_types=[StructuredMessage[Answer]], or give another file"
            )
            raise InvalidValueError(msg) from error

    def _named(self, number: int) -> str:
        return f"output={str(self._path)!r}, line {number}"

    def _mend(self, whole: int) -> None:
        """The process died while it wrote the last line; `whole` bytes are results."""
        if whole == self._path.stat().st_size:
            with self._path.open("ab") as file:
                file.write(b"\n")
        else:
            os.truncate(self._path, whole)

    def write(self, record: dict[str, Any]) -> None:
        """Append one result; it is in the file when this returns."""
        # Half a surrogate pair, which no UTF-8 has, becomes what JSON writes for it as well.
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _is_torn(line: bytes, number: int) -> bool:
    """Whether it is the beginning of a line. A file that has nothing else may be somebody else's."""
    return not line.endswith(b"\n") and (number > 1 or line[: len(_BEGIN)] == _BEGIN[: len(line)])


def _json(line: bytes) -> Any:  # noqa: ANN401
    try:
        return json.loads(line)
    except ValueError:
        return None
