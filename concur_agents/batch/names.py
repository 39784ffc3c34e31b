"""Ids of the agents of a batch."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

from concur_agents.errors import InvalidValueError


def checked_names(ids: Iterable[str] | None, count: int) -> list[str]:
    """One id for each of `count` inputs, checked.

    A batch has fresh ones unless told, so that two batches on one controller never meet.

    Raises:
        InvalidValueError: ids are missing, empty or given twice.
    """
    if ids is None:
        batch = uuid.uuid4().hex[:8]
        return [f"batch-{batch}-{index:05d}" for index in range(count)]
    if isinstance(ids, str):
        msg = f"ids={ids!r} is one string: expected one id for each input"
        raise InvalidValueError(msg)
    names = list(ids)
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            msg = f"ids[{index}]={name!r}: expected a string that is not empty"
            raise InvalidValueError(msg)
    if len(names) != count:
        msg = f"{len(names)} ids for {count} inputs: give one id for each input"
        raise InvalidValueError(msg)
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        more = f" and {len(twice) - 3} more" if len(twice) > 3 else ""
        msg = (
            f"ids has {', '.join(map(repr, twice[:3]))}{more} more than once: an id names one agent and one "
            "thread, so every input needs its own"
        )
        raise InvalidValueError(msg)
    return names
