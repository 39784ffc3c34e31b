"""The file of a batch: one line of JSON for each task that ended, and what of it is not to be run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autogen_agentchat.base import TaskResult

from concur_agents import InvalidValueError

COMPLETED, FAILED = "completed", "failed"


class BatchFile:
    """Appends results as they come, and reads those that are there.

    Args:
        path: Made if there is none; its directory must exist.

    Raises:
        InvalidValueError: it cannot be written, or a line in it is not this module's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.open("ab").close()
            self._lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError as error:
            msg = f"output={str(path)!r} cannot be used: {error.strerror}"
            raise InvalidValueError(msg) from error

    def completed(self, load: Callable[[list[dict[str, Any]]], TaskResult]) -> dict[str, TaskResult]:
        """Results by id of the tasks that need not be run again; `load` makes one from its messages."""
        self._mend()
        found: dict[str, TaskResult] = {}
        for number, line in enumerate(self._lines, 1):
            record = _json(line)
            if not isinstance(record, dict) or "id" not in record or "outcome" not in record:
                name = str(self._path)
                msg = f"output={name!r}, line {number} is not the result of a batch: give another file"
                raise InvalidValueError(msg)
            if record["outcome"] == COMPLETED:
                result = load(record["messages"])
                result.stop_reason = record["stop_reason"]
                found[record["id"]] = result
        return found

    def _mend(self) -> None:
        """Cut off half a line at the end: the process died while it wrote."""
        if len(self._lines) < 2 or self._lines[-1].endswith("\n") or _json(self._lines[-1]) is not None:
            return
        self._lines.pop()
        self._path.write_text("".join(self._lines), encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append one result; it is in the file when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _json(line: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(line)
    except ValueError:
        return None
