"""Waiting for admission inside a LangGraph node: with a pulse, and with a word to whoever listens.

A node's `idle_timeout` would take a queued call for a hung one, so while it waits it gives the node's
heartbeat (a `run_timeout` cannot be refreshed and does count the wait).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langgraph.runtime import Runtime, get_runtime

from concur_agents.blocking import BlockingController
from concur_agents.controller import Controller
from concur_agents.errors import WouldDeadlockError
from concur_agents.events import Ticket

_PULSE_SECONDS = 0.1
"""Well under any `idle_timeout` that a model call could meet."""

_NO_RUNTIME: Runtime[None] = Runtime()

Announce = Callable[[str], None]
_announce: ContextVar[Announce | None] = ContextVar("concur_announce", default=None)


@contextmanager
def announced(announce: Announce) -> Iterator[None]:
    """Call `announce` with "queued" (where it has to wait) and "admitted" for each call in this block."""
    token = _announce.set(announce)
    try:
        yield
    finally:
        _announce.reset(token)


async def admitted(controller: Controller, agent_id: str) -> Ticket:
    """`Controller.acquire`, from within a node."""
    announce = _announce.get()
    # A call that is admitted at once never yields to the loop, and so is never announced as queued.
    word = asyncio.get_running_loop().call_soon(announce, "queued") if announce else None
    pulse = _Pulse.of_this_node()
    try:
        ticket = await controller.acquire(agent_id)
    finally:
        if word is not None:
            word.cancel()
        if pulse is not None:
            pulse.stop()
    if announce:
        announce("admitted")
    return ticket


def admitted_blocking(
    controller: Controller, agent_id: str, on_wait: Callable[[], None] | None = None
) -> Ticket:
    """As `admitted`, on a thread; `on_wait` is called if it has to wait.

    Raises:
        WouldDeadlockError: the thread runs an event loop.
    """
    blocking, announce = BlockingController(controller), _announce.get()
    if announce is None and on_wait is None:
        return blocking.acquire(agent_id)
    try:
        ticket = blocking.acquire(agent_id, timeout_seconds=0)
    except TimeoutError:
        if on_wait is not None:
            on_wait()
        if announce is not None:
            announce("queued")
        ticket = blocking.acquire(agent_id)
    if announce is not None:
        announce("admitted")
    return ticket


def would_deadlock() -> WouldDeadlockError:
    """The error for a synchronous run on a thread that runs an event loop."""
    return WouldDeadlockError(
        "invoke(), batch() or stream() on a thread that runs an event loop: waiting for admission would stop"
        " every agent of that loop, those that hold a place too. Use ainvoke(), abatch() or astream() there,"
        " or move the call to a thread (asyncio.to_thread)"
    )


class _Pulse:
    """Beats until it is stopped."""

    __slots__ = ("_beat", "_handle", "_loop")

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(_PULSE_SECONDS, self._again)

    @classmethod
    def of_this_node(cls) -> _Pulse | None:
        """None outside a node that has an `idle_timeout`."""
        try:
            runtime: Runtime[None] | None = get_runtime()
        except (RuntimeError, KeyError):  # no Runnable round this call, or one that is no graph
            return None
        if runtime is None or runtime.heartbeat is _NO_RUNTIME.heartbeat:
            return None
        return cls(runtime.heartbeat)

    def _again(self) -> None:
        self._beat()
        self._handle = self._loop.call_later(_PULSE_SECONDS, self._again)

    def stop(self) -> None:
        self._handle.cancel()
