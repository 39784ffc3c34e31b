"""Whether LangChain reports an event from a synchronous run or from an asynchronous one.

It calls the same method of a handler for both, and says nowhere which. The difference matters where a handler
waits or refuses: in a synchronous run LangChain would put the coroutine on a new event loop, and log an error
in it instead of raising it, so that a refused call went ahead.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from langchain_core.callbacks.manager import handle_event


class ByCaller:
    """A method that is one function in asynchronous runs and another one in synchronous runs.

    Args:
        from_async: Called, or awaited, by `ahandle_event` and everyone else.
        from_sync: Called by `handle_event`.
    """

    __slots__ = ("_from_async", "_from_sync")

    def __init__(self, *, from_async: Callable[..., Any], from_sync: Callable[..., Any]) -> None:
        self._from_async = from_async
        self._from_sync = from_sync

    def __get__(self, handler: object, owner: type | None = None) -> Any:  # noqa: ANN401
        # The frame that looks the method up is LangChain's; nothing else that it passes tells the two apart.
        sync = sys._getframe(1).f_code is handle_event.__code__
        function = self._from_sync if sync else self._from_async
        return function if handler is None else function.__get__(handler, owner)


def on_loop_thread() -> bool:
    """Whether this thread runs an event loop, so that blocking it stops everything on that loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
