"""The controller for threads.

    with BlockingController(VLLM("http://localhost:8000")) as concur:
        with concur.agent("swe-0017") as agent, agent.step() as step:
            reply = client.chat.completions.create(...)
            step.record(reply.usage)

Give it a running `Controller` instead of telemetry to share that one between threads and coroutines.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Self

from concur_agents.controller import Controller
from concur_agents.errors import InvalidValueError, WouldDeadlockError, check_range
from concur_agents.events import Ticket
from concur_agents.gate import ThreadWaiter
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.regulator import Snapshot
from concur_agents.scopes import outcome_of
from concur_agents.telemetry.base import Telemetry
from concur_agents.usage import as_usage


class BlockingController:
    """`Controller` for threads; every wait blocks the calling thread.

    Args:
        controller: A `Controller` to share (it is not started or stopped here unless it is not running),
            or a `Telemetry`, or None, for one of its own.
        options: Arguments of `Controller`, when it makes one of its own.
    """

    def __init__(self, controller: Controller | Telemetry | None = None, **options: Any) -> None:  # noqa: ANN401
        if isinstance(controller, Controller):
            if options:
                msg = f"options {sorted(options)} do not apply to a controller that exists already"
                raise InvalidValueError(msg)
            self.controller = controller
        else:
            self.controller = Controller(controller, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._entering = threading.Lock()
        self._entered = 0

    def __enter__(self) -> Self:
        """Start the monitor, unless it runs. Threads may enter together; the last one out stops it."""
        with self._entering:
            self._entered += 1
            if not self.controller.running:
                self._start()
        return self

    def _start(self) -> None:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, ready), name="concur-monitor", daemon=True
        )
        self._thread.start()
        ready.wait()
        asyncio.run_coroutine_threadsafe(self.controller.__aenter__(), self._loop).result()

    def __exit__(self, *_: object) -> None:
        with self._entering:
            self._entered -= 1
            if not self._entered:
                self._stop()

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(self.controller.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        loop.call_soon(ready.set)
        loop.run_forever()

    def agent(
        self,
        agent_id: str | None = None,
        *,
        parent: str | None = None,
        priority: int = 0,
        context_tokens: int = 0,
    ) -> BlockingAgent:
        """One trajectory as a context; arguments and errors as `Controller.agent`."""
        scope = self.controller.agent(agent_id, parent=parent, priority=priority)
        return BlockingAgent(self, scope.agent_id, parent, priority, context_tokens)

    def acquire(self, agent_id: str, timeout_seconds: float | None = None) -> Ticket:
        """Wait until the agent may make one call; `release` must end it.

        Raises:
            TimeoutError: not admitted within `timeout_seconds` (>= 0); it is out of the queue then.
            WouldDeadlockError: this thread runs an event loop, whose agents would stand still meanwhile.
            UnknownAgentError, AgentFinishedError, ControllerClosedError: as `Controller.acquire`.
        """
        _refuse_on_loop()
        if timeout_seconds is not None:
            check_range("timeout_seconds", timeout_seconds, 0)
        gate = self.controller.gate
        ticket, waiter = gate.request(agent_id, ThreadWaiter)
        if isinstance(waiter, ThreadWaiter):
            try:
                waiter.future.result(timeout_seconds)
            except BaseException:
                gate.release(ticket)
                raise
        return ticket

    def release(self, ticket: Ticket, usage: Usage | None = None) -> None:
        """See `Controller.release`."""
        self.controller.release(ticket, usage)

    def finish(self, agent_id: str, outcome: Outcome = Outcome.COMPLETED) -> None:
        """See `Controller.finish`."""
        self.controller.finish(agent_id, outcome)

    def pause(self, agent_id: str) -> None:
        """See `Controller.pause`."""
        self.controller.pause(agent_id)

    def resume(self, agent_id: str) -> None:
        """See `Controller.resume`."""
        self.controller.resume(agent_id)

    def give_back(self, agent_id: str) -> None:
        """See `Controller.give_back`."""
        self.controller.give_back(agent_id)

    def snapshot(self) -> Snapshot:
        """See `Controller.snapshot`."""
        return self.controller.snapshot()


class BlockingAgent:
    """One trajectory on a thread. Made by `BlockingController.agent`."""

    def __init__(
        self,
        blocking: BlockingController,
        agent_id: str,
        parent: str | None,
        priority: int,
        context_tokens: int,
    ) -> None:
        self._blocking = blocking
        self.agent_id = agent_id
        self._options = (parent, priority, context_tokens)
        self._serial: int | None = None

    def __enter__(self) -> Self:
        parent, priority, tokens = self._options
        self._serial = self._blocking.controller.open(
            self.agent_id, parent=parent, priority=priority, context_tokens=tokens
        )
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._blocking.controller.finish(self.agent_id, outcome_of(error), self._serial)

    def step(self, timeout_seconds: float | None = None) -> BlockingStep:
        """One generation call; entering it waits for admission. Errors as `BlockingController.acquire`."""
        return BlockingStep(self._blocking, self.agent_id, timeout_seconds)


class BlockingStep:
    """One generation call on a thread. Made by `BlockingAgent.step`; used once."""

    def __init__(self, blocking: BlockingController, agent_id: str, timeout_seconds: float | None) -> None:
        self._blocking = blocking
        self._agent_id = agent_id
        self._timeout = timeout_seconds
        self._ticket: Ticket | None = None
        self._usage: Usage | None = None

    def __enter__(self) -> Self:
        if self._ticket is not None:
            msg = "a step is used once: call agent.step() again for the next one"
            raise InvalidValueError(msg)
        self._ticket = self._blocking.acquire(self._agent_id, self._timeout)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticket is not None:
            self._blocking.release(self._ticket, self._usage)

    def record(self, usage: Any) -> None:  # noqa: ANN401
        """See `StepScope.record`."""
        self._usage = as_usage(usage)


def _refuse_on_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    msg = (
        "a blocking wait on a thread that runs an event loop would stop every agent of that loop;"
        " use `async with agent.step()` there, or move the call to a thread (asyncio.to_thread)"
    )
    raise WouldDeadlockError(msg)
