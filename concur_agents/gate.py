"""The regulator made safe to share: one lock, the waiters, the subscribers.

Agents may call from any event loop and any thread. Every call into the state machine takes the lock for
some microseconds, and whoever has to wait is woken on his own loop or thread; nothing is bridged to a
loop of the controller's, so none has to be running, and a closed one takes nobody down.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from concur_agents.errors import AgentFinishedError, ControllerClosedError, InvalidValueError
from concur_agents.events import (
    Event,
    Granted,
    PolicyFailed,
    Refused,
    Subscriber,
    TelemetryChanged,
    Ticket,
)
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.regulator import Regulator, Snapshot
from concur_agents.signals import Quality, Reading

logger = logging.getLogger("concur_agents")


class Waiter(Protocol):
    """Somebody who waits for a ticket."""

    def wake(self, error: Exception | None) -> bool:
        """Say that the ticket was granted, or why it never will be. False: nobody is there any more."""
        ...


class LoopWaiter:
    """A coroutine that waits on its own event loop."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self, error: Exception | None) -> bool:
        """See `Waiter.wake`. Callable from any thread."""
        loop = self.future.get_loop()
        if asyncio._get_running_loop() is loop:
            self._resolve(error)
            return True
        try:
            loop.call_soon_threadsafe(self._resolve, error)
        except RuntimeError:  # the loop was closed under its waiter
            return False
        return True

    def _resolve(self, error: Exception | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class ThreadWaiter:
    """A thread that waits."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def wake(self, error: Exception | None) -> bool:
        """See `Waiter.wake`."""
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)
        return True


class Gate:
    """A `Regulator` behind a lock, with waiters and subscribers.

    Args:
        regulator: The state it guards; nobody else may touch it.
        clock: Seconds, monotonic.
    """

    def __init__(self, regulator: Regulator, clock: Callable[[], float]) -> None:
        self._regulator = regulator
        self._clock = clock
        # Re-entrant, since a policy may look at the controller it serves.
        self._lock = threading.RLock()
        self._waiters: dict[Ticket, Waiter] = {}
        self._subscribers: tuple[Subscriber, ...] = ()
        self._closed = False

    def open(self, agent_id: str, *, parent: str | None, priority: int, context_tokens: int) -> int:
        """See `Admission.open`."""
        with self._lock:
            return self._regulator.open(
                agent_id, self._clock(), parent=parent, priority=priority, context_tokens=context_tokens
            )

    def request(self, agent_id: str, make_waiter: Callable[[], Waiter]) -> tuple[Ticket, Waiter | None]:
        """Ask for a call: the ticket, and whom to wait on unless it was granted at once."""
        with self._lock:
            if self._closed:
                raise _closed_error()
            ticket, events = self._regulator.request(agent_id, self._clock())
            waiter = None
            if not any(type(event) is Granted and event.ticket == ticket for event in events):
                waiter = self._waiters[ticket] = make_waiter()
            self._wake(events)
        self._publish(events)
        return ticket, waiter

    def release(self, ticket: Ticket, usage: Usage | None = None) -> None:
        """The call is over, or its caller is gone. Idempotent, never blocks, never raises."""
        with self._lock:
            self._waiters.pop(ticket, None)
            events = self._regulator.end(ticket, self._clock(), usage)
            self._wake(events)
        self._publish(events)

    def pause(self, agent_id: str) -> None:
        """See `Admission.pause`."""
        with self._lock:
            events = self._regulator.pause(agent_id, self._clock())
            self._wake(events)
        self._publish(events)

    def resume(self, agent_id: str) -> None:
        """See `Admission.resume`."""
        with self._lock:
            events = self._regulator.resume(agent_id, self._clock())
            self._wake(events)
        self._publish(events)

    def give_back(self, agent_id: str) -> None:
        """See `Admission.give_back`."""
        with self._lock:
            events = self._regulator.give_back(agent_id, self._clock())
            self._wake(events)
        self._publish(events)

    def finish(self, agent_id: str, outcome: Outcome, serial: int | None = None) -> None:
        """See `Admission.finish`."""
        with self._lock:
            events = self._regulator.finish(agent_id, self._clock(), outcome, serial)
            self._wake(events)
        self._publish(events)

    def tick(self, reading: Reading | None) -> None:
        """See `Regulator.tick`."""
        with self._lock:
            events = self._regulator.tick(reading, self._clock())
            self._wake(events)
        for event in events:
            _log(event)
        self._publish(events)

    def snapshot(self) -> Snapshot:
        """See `Regulator.snapshot`."""
        with self._lock:
            return self._regulator.snapshot()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event, on the thread it happens on; the result unsubscribes."""
        if not callable(subscriber) or inspect.iscoroutinefunction(subscriber):
            msg = f"subscriber={subscriber!r} is not usable: expected a plain function of one event"
            raise InvalidValueError(msg)
        entry = functools.partial(subscriber)  # one entry a subscription, even of the same function
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers = tuple(s for s in self._subscribers if s is not entry)

        return unsubscribe

    def set_closed(self, closed: bool) -> None:
        """Refuse new calls and wake all waiters with an error, or begin anew."""
        with self._lock:
            self._closed = closed
            waiters, self._waiters = (self._waiters, {}) if closed else ({}, self._waiters)
            for ticket, waiter in waiters.items():
                # The waiter's own exit would hand its place on; with everyone refused, nobody takes it.
                self._regulator.end(ticket, self._clock())
                waiter.wake(_closed_error())

    def _wake(self, events: list[Event]) -> None:
        """Wake whose tickets were decided; a waiter that is gone hands its grant on."""
        pending: Sequence[Event] = tuple(events)
        while pending:
            more: list[Event] = []
            for event in pending:
                if not isinstance(event, Granted | Refused):
                    continue
                waiter = self._waiters.pop(event.ticket, None)
                error = None if type(event) is Granted else _finished_error(event.agent_id)
                if waiter is not None and not waiter.wake(error):
                    more += self._regulator.abandon(event.ticket, self._clock())
            events += more
            pending = tuple(more)

    def tell(self, event: Event) -> None:
        """Let the subscribers know what somebody else saw."""
        self._publish([event])

    def now(self) -> float:
        """The clock's time in seconds."""
        return self._clock()

    def _publish(self, events: list[Event]) -> None:
        """Tell the subscribers, outside the lock, so that they may call back."""
        for subscriber in self._subscribers:
            for event in events:
                try:
                    subscriber(event)
                except Exception:
                    logger.exception(
                        "subscriber %r failed and is dropped; agents are not affected", subscriber
                    )
                    with self._lock:
                        self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)
                    break


def _closed_error() -> ControllerClosedError:
    return ControllerClosedError("the controller was stopped; no agent is admitted until it is started again")


def _finished_error(agent_id: str) -> Exception:
    return AgentFinishedError(f"agent_id={agent_id!r} was finished while it waited for a step")


def _log(event: Event) -> None:
    """What an operator must see once."""
    if isinstance(event, PolicyFailed):
        logger.error("%s", event.error)
    elif isinstance(event, TelemetryChanged):
        if event.after is Quality.OK:
            if event.before is not None:
                logger.info("telemetry is back")
        elif event.after is Quality.UNRELIABLE:
            logger.warning("telemetry cannot be fully trusted: %s", event.reason)
        else:
            logger.warning(
                "telemetry is %s: %s. Agents go on; the window does not grow until it is back.",
                event.after.value,
                event.reason,
            )
