"""The two scopes a user writes `async with` for: a trajectory, and one step of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self

from concur_agents.errors import InvalidValueError
from concur_agents.events import Ticket
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.usage import as_usage


class Admitter(Protocol):
    """What a scope needs of a controller, local or remote. See `Controller` for each."""

    def open(
        self, agent_id: str, *, parent: str | None = None, priority: int = 0, context_tokens: int = 0
    ) -> int:
        """Start a trajectory; the answer is a serial for `finish`."""
        ...

    def finish(self, agent_id: str, outcome: Outcome = Outcome.COMPLETED, serial: int | None = None) -> None:
        """End a trajectory."""
        ...

    async def acquire(self, agent_id: str) -> Ticket:
        """Wait for admission of one call."""
        ...

    def release(self, ticket: Ticket, usage: Usage | None = None) -> None:
        """End a call."""
        ...


def outcome_of(error: BaseException | None) -> Outcome:
    """How a trajectory ended, by the exception that left its scope."""
    if error is None:
        return Outcome.COMPLETED
    if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
        return Outcome.CANCELLED
    return Outcome.FAILED


_current: ContextVar[AgentScope | None] = ContextVar("concur_agent", default=None)


def current_scope(controller: Admitter | None = None) -> AgentScope | None:
    """The innermost scope of `controller` (None: of any) that this code runs in, as far as that can be known.

    It is known to tasks and `asyncio.to_thread` started inside; not other threads, and not what was started
    before. The scope may be over meanwhile: see `AgentScope.over`.
    """
    scope = _current.get()
    while controller is not None and scope is not None and scope.controller is not controller:
        scope = scope._outer
    return scope


class AgentScope:
    """One trajectory. Made by `Controller.agent`; leaving it gives its place back, however it is left."""

    __slots__ = ("_children", "_options", "_outer", "_reset", "_serial", "agent_id", "controller", "over")

    def __init__(
        self, controller: Admitter, agent_id: str, parent: str | None, priority: int, context_tokens: int
    ) -> None:
        self.controller = controller
        self.agent_id = agent_id
        self._options = (parent, priority, context_tokens)
        self._children = itertools.count(1)
        self._serial: int | None = None
        self._outer: AgentScope | None = None
        self._reset: Token[AgentScope | None] | None = None
        self.over = False
        """Whether it was left or finished; it takes no more steps then."""

    async def __aenter__(self) -> Self:
        parent, priority, tokens = self._options
        self._serial = self.controller.open(
            self.agent_id, parent=parent, priority=priority, context_tokens=tokens
        )
        self.over, self._outer = False, _current.get()
        self._reset = _current.set(self)
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.finish(outcome_of(error))
        reset, self._reset = self._reset, None
        if reset is not None:
            with contextlib.suppress(ValueError):  # left by a generator that another task closes
                _current.reset(reset)

    def finish(self, outcome: Outcome = Outcome.COMPLETED) -> None:
        """End the trajectory before its scope is left: see `Controller.finish`. Idempotent."""
        if self._serial is not None and not self.over:
            self.over = True
            self.controller.finish(self.agent_id, outcome, self._serial)

    def step(self) -> StepScope:
        """One generation call: entering it waits for admission, leaving it is a boundary."""
        return StepScope(self.controller, self.agent_id)

    def child(self, agent_id: str | None = None, *, context_tokens: int = 0) -> AgentScope:
        """A sub-agent or branch with a context of its own that shares this agent's place."""
        name = agent_id or f"{self.agent_id}/{next(self._children)}"
        return AgentScope(self.controller, name, self.agent_id, 0, context_tokens)


class StepScope:
    """One generation call of an agent. Made by `AgentScope.step`; used once."""

    __slots__ = ("_agent_id", "_controller", "_ticket", "_usage")

    def __init__(self, controller: Admitter, agent_id: str) -> None:
        self._controller = controller
        self._agent_id = agent_id
        self._ticket: Ticket | None = None
        self._usage: Usage | None = None

    async def __aenter__(self) -> Self:
        if self._ticket is not None:
            msg = "a step is used once: call agent.step() again for the next one"
            raise InvalidValueError(msg)
        self._ticket = await self._controller.acquire(self._agent_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticket is not None:
            self._controller.release(self._ticket, self._usage)

    def record(self, usage: Any) -> None:  # noqa: ANN401
        """Tell what the call used: a `Usage`, an OpenAI usage object or mapping, or None.

        The last record counts (engines that repeat usage on each chunk of a stream are fine).

        Raises:
            InvalidValueError: no prompt tokens in it, or a count out of range; the step goes on.
        """
        self._usage = as_usage(usage)
