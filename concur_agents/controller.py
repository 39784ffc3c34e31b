"""The object that agents ask: admission under a policy, with asyncio round it.

    async with Controller(VLLM("http://localhost:8000")) as concur:
        async with concur.agent("swe-0017") as agent:       # one trajectory; leaving it frees its place
            async with agent.step() as step:                # waits for admission
                reply = await client.chat.completions.create(...)
                step.record(reply.usage)
            run_tool(...)                                   # a boundary: may be paused here

It decides nothing: `admission` does, within the window that `policies` choose from what `telemetry` says.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, Self

from concur_agents.errors import InvalidValueError, UnknownAgentError, check_range
from concur_agents.events import Subscriber, Ticket, ToolEnded, ToolStarted
from concur_agents.gate import Gate, LoopWaiter
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.policies import Headroom, Policy
from concur_agents.regulator import Regulator, Snapshot
from concur_agents.scopes import AgentScope
from concur_agents.selection import Selection
from concur_agents.signals import Quality, Reading
from concur_agents.telemetry.base import Telemetry
from concur_agents.usage import as_usage

logger = logging.getLogger("concur_agents")


class Controller:
    """Admits, pauses and resumes agents at step boundaries.

    Usable from any event loop and any thread at the same time (threads: `concur_agents.blocking`).
    `async with` runs the monitor, which reads telemetry and asks the policy once per interval, on the
    loop that entered it; it may be entered again after it was left. Without it the policy's first window
    stays in force.

    Args:
        telemetry: The engine's metrics; None to work from the responses' usage alone.
        policy: The control law; default `Headroom()`.
        interval_seconds: > 0; time between two looks at the engine.
        capacity_tokens: KV cache of the engine in tokens, >= 1, when telemetry cannot say.
        block_size: KV block in tokens, >= 1, when telemetry cannot say.
        max_wait_seconds: > 0; a waiter older than this goes before others, whatever their priority.
        stale_after_seconds: > 0; telemetry silent for longer freezes growth.
        grace_seconds: >= 0; how long an agent may sit at a boundary (a long tool, a human, a stalled
            reader) before somebody who waits may have its place; it then queues again. None: for ever. The
            default is far above what recomputing even a long context takes.
        read_timeout_seconds: > 0; a look that takes longer counts as failed.
        selection: Whom a shrink pauses and who comes back first.
        clock: Seconds, monotonic.

    Raises:
        InvalidValueError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        telemetry: Telemetry | None = None,
        *,
        policy: Policy | None = None,
        interval_seconds: float = 1.0,
        capacity_tokens: int | None = None,
        block_size: int = 16,
        max_wait_seconds: float = 1800.0,
        stale_after_seconds: float = 10.0,
        grace_seconds: float | None = 60.0,
        read_timeout_seconds: float = 5.0,
        selection: Selection | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_range("interval_seconds", interval_seconds, 0, open_low=True)
        check_range("read_timeout_seconds", read_timeout_seconds, 0, open_low=True)
        if telemetry is not None and not isinstance(telemetry, Telemetry):
            msg = (
                f"telemetry={telemetry!r} has no read() and close(): expected a Telemetry such as"
                ' concur_agents.telemetry.VLLM("http://localhost:8000"), or None'
            )
            raise InvalidValueError(msg)
        self.policy = policy if policy is not None else Headroom()
        if not isinstance(self.policy, Policy):
            msg = f"policy={policy!r} is no policy: expected an object such as Headroom() or Static(8)"
            raise InvalidValueError(msg)
        self._telemetry = telemetry
        self._interval = interval_seconds
        self._read_timeout = read_timeout_seconds
        self._clock = clock
        self.gate = Gate(
            Regulator(
                self.policy,
                capacity_tokens=capacity_tokens,
                block_size=block_size,
                max_wait_seconds=max_wait_seconds,
                stale_after_seconds=stale_after_seconds,
                grace_seconds=grace_seconds,
                selection=selection,
            ),
            clock,
        )
        """The thread-safe state, for shells such as `blocking`; everything else has a method here."""
        self._monitor: asyncio.Task[None] | None = None
        self._names = itertools.count(1)
        self._admitted: dict[str, list[Ticket]] = {}
        self._unmonitored_warned = False

    # ---- start and stop -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.running:
            msg = "this controller is running already: enter it once and share the object"
            raise InvalidValueError(msg)
        self.gate.set_closed(False)
        self._monitor = asyncio.create_task(self._watch(), name="concur-monitor")
        return self

    async def __aexit__(self, *_: object) -> None:
        monitor, self._monitor = self._monitor, None
        self.gate.set_closed(True)
        try:
            if monitor is not None and monitor.get_loop() is asyncio.get_running_loop():
                monitor.cancel()
                await asyncio.gather(monitor, return_exceptions=True)
            elif monitor is not None and not monitor.get_loop().is_closed():
                monitor.get_loop().call_soon_threadsafe(monitor.cancel)
        finally:
            if self._telemetry is not None:
                await self._telemetry.close()

    async def _watch(self) -> None:
        while True:
            self.gate.tick(await self._read())
            await asyncio.sleep(self._interval)

    async def _read(self) -> Reading | None:
        """One look; a telemetry that breaks its promise and raises or hangs is a failed look."""
        if self._telemetry is None:
            return None
        now = self._clock()
        try:
            async with asyncio.timeout(self._read_timeout):
                reading = await self._telemetry.read(now)
            if not isinstance(reading, Reading):
                msg = f"it answered {reading!r}, expected a Reading"
                raise InvalidValueError(msg)
            return reading
        except TimeoutError:
            return Reading(now, Quality.STALE, reason=f"no answer within {self._read_timeout:g} s")
        except Exception as error:
            return Reading(now, Quality.STALE, reason=f"reading it failed: {error!r}")

    @property
    def running(self) -> bool:
        """Whether the monitor runs."""
        return self._monitor is not None and not self._monitor.get_loop().is_closed()

    # ---- trajectories ---------------------------------------------------------------------------

    def agent(
        self,
        agent_id: str | None = None,
        *,
        parent: str | None = None,
        priority: int = 0,
        context_tokens: int = 0,
    ) -> AgentScope:
        """One trajectory as an async context; leaving it, however, gives its place back.

        Args:
            agent_id: Its name; default: a fresh one.
            parent: Id of an open agent whose place this sub-agent or branch shares.
            priority: Higher goes first among those who wait, and is paused last.
            context_tokens: >= 0; length of the context it brings along (a resumed trajectory).

        Raises (on entering):
            DuplicateAgentError: the id is running already.
            UnknownAgentError: the parent is not open.
        """
        name = f"unnamed-{next(self._names)}" if agent_id is None else agent_id
        return AgentScope(self, name, parent, priority, context_tokens)

    def open(
        self,
        agent_id: str,
        *,
        parent: str | None = None,
        priority: int = 0,
        context_tokens: int = 0,
    ) -> int:
        """Start a trajectory without a scope; `finish` must end it. For adapters. Arguments as `agent`.

        The answer is a serial for `finish`.
        """
        return self.gate.open(agent_id, parent=parent, priority=priority, context_tokens=context_tokens)

    def finish(self, agent_id: str, outcome: Outcome = Outcome.COMPLETED, serial: int | None = None) -> None:
        """End a trajectory and all its branches: waiting calls are refused, its place is given back.

        Idempotent, never blocks. With the `serial` that `open` gave, a later trajectory of the same id is
        left alone.

        Raises:
            UnknownAgentError: the id was never opened.
        """
        self._admitted.pop(agent_id, None)
        self.gate.finish(agent_id, outcome, serial)

    async def acquire(
        self, agent_id: str, *, link: Callable[[asyncio.Future[None]], object] | None = None
    ) -> Ticket:
        """Wait until the agent may make one generation call; `release` must end it. For adapters.

        If it has to wait, `link` is called with the future it waits on: whoever cancels that, on this loop,
        ends the wait with `CancelledError` (a framework's cancellation token).

        Raises:
            UnknownAgentError, AgentFinishedError, ControllerClosedError
        """
        if self._monitor is None and self._telemetry is not None and not self._unmonitored_warned:
            self._unmonitored_warned = True
            logger.warning("the controller is not started: use `async with controller`, else W never changes")
        ticket, waiter = self.gate.request(agent_id, LoopWaiter)
        if isinstance(waiter, LoopWaiter):
            try:
                if link is not None:
                    link(waiter.future)
                await waiter.future
            except BaseException:
                self.gate.release(ticket)  # queued: leave the queue; granted meanwhile: hand it on
                raise
        return ticket

    def release(self, ticket: Ticket, usage: Usage | None = None) -> None:
        """End a call. Idempotent, never blocks, never raises; callable on any thread."""
        self.gate.release(ticket, usage)

    # ---- primitives -----------------------------------------------------------------------------

    async def admit(self, agent_id: str) -> None:
        """Wait until the agent may take its next step; opens it if it is new. Idempotent.

        The step lasts until the next `admit`, `boundary` or `finish`; each of them is a boundary.

        Raises:
            AgentFinishedError: the agent is over.
        """
        self.boundary(agent_id)
        try:
            ticket = await self.acquire(agent_id)
        except UnknownAgentError:
            self.open(agent_id)
            ticket = await self.acquire(agent_id)
        self._admitted.setdefault(agent_id, []).append(ticket)

    def boundary(self, agent_id: str, usage: Any = None) -> None:  # noqa: ANN401
        """The step that `admit` began is over; `usage` as for `StepScope.record`. Idempotent."""
        record = as_usage(usage)
        for ticket in self._admitted.pop(agent_id, []):
            self.gate.release(ticket, record)

    def pause(self, agent_id: str) -> None:
        """Pause at the next boundary, until `resume` and nothing else ends it. Idempotent.

        Raises:
            UnknownAgentError: the id is not open.
        """
        self.gate.pause(agent_id)

    def resume(self, agent_id: str) -> None:
        """End a `pause`; the agent competes for a place again. Idempotent; errors as `pause`."""
        self.gate.resume(agent_id)

    def give_back(self, agent_id: str) -> None:
        """The agent will be at this boundary for an unknown time (a human, a job): others may have its place.

        It queues again at its next step, before those who have not started. Idempotent; nothing happens
        while one of its calls is in flight.

        Raises:
            UnknownAgentError, AgentFinishedError: the id is not open.
        """
        self.gate.give_back(agent_id)

    def tool_started(self, agent_id: str, tool: str) -> None:
        """Tell the subscribers that a tool begins at a boundary. For adapters; decides nothing."""
        self.gate.tell(ToolStarted(self.gate.now(), agent_id, tool))

    def tool_ended(self, agent_id: str, tool: str, seconds: float, *, failed: bool = False) -> None:
        """Tell the subscribers that a tool ran for `seconds` at a boundary. For adapters; decides nothing."""
        self.gate.tell(ToolEnded(self.gate.now(), agent_id, tool, seconds, failed))

    # ---- eyes -----------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The state now."""
        return self.gate.snapshot()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event; the result unsubscribes.

        It runs on the thread where the event happens and must be quick; one that raises is logged and
        dropped.
        """
        return self.gate.subscribe(subscriber)
