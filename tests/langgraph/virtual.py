"""Virtual time for graphs, whose synchronous edges and tools run on threads, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tests import virtual
from tests.virtual import clock

__all__ = ["clock", "run"]

T = TypeVar("T")


class _AtOnce(ThreadPoolExecutor):
    """Runs what it is given before it returns, so that no timer overtakes it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """See `tests.virtual.run`."""

    async def whole() -> T:
        asyncio.get_running_loop().set_default_executor(_AtOnce())
        return await main

    return virtual.run(whole())
