"""An event loop whose time jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 5.0  # real seconds


class _JumpingSelector(selectors.DefaultSelector):
    """Never blocks; tells the loop how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0

    def select(self, timeout: float | None = None):
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(_PATIENCE)  # a thread may still have something to say
        if not ready and timeout is None:
            msg = "every task waits for something that no timer will bring: a deadlock"
            raise RuntimeError(msg)
        if not ready and timeout:
            self.skipped += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use with `run`; `loop.time()` is virtual seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.skipped


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time. A wait that nothing will end is an error, not a hang."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def clock() -> float:
    """The running loop's time; hand it to a controller."""
    return asyncio.get_running_loop().time()
