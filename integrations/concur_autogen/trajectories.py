"""Which trajectory a model call belongs to, and when that ends.

AutoGen says neither. In order: the id that `for_agent` gave; the surrounding `controller.agent(...)` or
`run(...)`, which also ends it; the team whose runtime handles a message; the asyncio task. The last two are
called unscoped: nothing says when such a trajectory is between two steps and when it is over. A task's ends
with the task. Its place, and a team's, may be taken after `UNSCOPED_GRACE_SECONDS` at a boundary if somebody
waits, and what was not used for `FORGOTTEN_AFTER_SECONDS` is over.

Bookkeeping only; nothing in here waits. Callable from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autogen_core import MessageHandlerContext
from autogen_core.models import LLMMessage

from concur_agents import (
    AgentFinishedError,
    Controller,
    DuplicateAgentError,
    Outcome,
    UnknownAgentError,
    Usage,
)
from concur_agents.events import Event, Finished, Ticket
from concur_agents.scopes import current_scope
from concur_autogen.conversations import Conversation, Conversations, caller_of, is_one_shot
from concur_autogen.tool_calls import ToolCalls

UNSCOPED_GRACE_SECONDS = 5.0
"""Long enough for most tools, short enough that an agent used as a tool, or a team that is over, holds nobody
up for long."""
FORGOTTEN_AFTER_SECONDS = 600.0
"""A team that made no call for so long is over, or will find little of its context anyway."""

_REMEMBERED = 65_536
"""Ended ids that are still refused; a bounded memory."""

Task = asyncio.Task[object]


@dataclass(eq=False, slots=True)
class Trajectory:
    """One agent of the controller."""

    agent_id: str
    serial: int | None
    """Of the agent that was opened here and has to be finished here; None: a scope ends it."""
    conversations: Conversations = field(default_factory=Conversations)
    names: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    root_used: bool = False
    calls: int = 0
    """Waiting or in flight."""
    used: int = 0
    """Calls so far."""
    error: Exception | None = None
    """What its last failed call raised."""
    tool_calls: ToolCalls = field(default_factory=ToolCalls)
    tasks: weakref.WeakKeyDictionary[Task, str] = field(default_factory=weakref.WeakKeyDictionary)
    """Those that made its calls, the turns of its agents; each with the runtime's key of its team (or "")."""
    left_behind: frozenset[str] = frozenset()
    """Keys of teams that went on when an earlier trajectory of this id was over."""

    def going_on(self) -> frozenset[str]:
        """Keys of the teams, of this trajectory and of earlier ones, that are not done with a turn."""
        return self.left_behind | {team for task, team in self.tasks.items() if team and not task.done()}


@dataclass(eq=False, slots=True)
class Call:
    """One model call: it waits, is in flight, or is over."""

    trajectory: Trajectory
    conversation: Conversation
    ticket: Ticket | None = None
    over: bool = False


_ALL: weakref.WeakValueDictionary[int, Trajectories] = weakref.WeakValueDictionary()
"""By the controller's id, which keeps them alive: clients of one controller must agree on who calls."""
_ALL_LOCK = threading.Lock()


def trajectories_of(controller: Controller) -> Trajectories:
    """The open trajectories whose calls `controller` admits."""
    with _ALL_LOCK:
        found = _ALL.get(id(controller))
        if found is None:
            found = _ALL[id(controller)] = Trajectories(controller)
        return found


class Trajectories:
    """All open trajectories of one controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._open: dict[str, Trajectory] = {}
        self._names = itertools.count(1)
        self._ended: OrderedDict[str, frozenset[str]] = OrderedDict()
        """Ids whose scope is over: whoever still calls under one of them is a part that was left behind. With
        the teams that went on, which have no part in a later trajectory of that id either."""
        self._by_task: weakref.WeakKeyDictionary[Task, str] = weakref.WeakKeyDictionary()
        # Re-entrant: the controller calls `_forget` from within.
        self._lock = threading.RLock()
        controller.subscribe(self._forget)

    def __len__(self) -> int:
        """Open trajectories that made a call."""
        return len(self._open)

    def get(self, agent_id: str) -> Trajectory | None:
        """An open trajectory that made a call."""
        return self._open.get(agent_id)

    def enter(
        self,
        explicit: str | None,
        messages: Sequence[LLMMessage],
        length: Callable[[Sequence[LLMMessage]], int],
    ) -> Call:
        """A call with `messages` is about to ask for admission.

        `length` tells how long the conversation is that they continue, in case it is not known here.

        Raises:
            AgentFinishedError: its scope was left.
        """
        task, handler = asyncio.current_task(), _handler()
        with self._lock:
            trajectory = self._find(explicit, handler, task, lambda: length(messages))
            caller = caller_of(handler[0], messages)
            one_shot = is_one_shot(handler[0])
            conversation = None if one_shot else trajectory.conversations.find(caller, messages, task)
            if conversation is None:
                context_id, serial = self._context(
                    trajectory, handler[0], one_shot, 0 if one_shot else length(messages)
                )
                conversation = Conversation(context_id, caller, one_shot, serial)
            trajectory.conversations.begin(conversation, messages, task)
            trajectory.calls += 1
            trajectory.used += 1
            if task is not None:
                trajectory.tasks[task] = handler[1]
            return Call(trajectory, conversation)

    def leave(self, call: Call, usage: Usage | None = None) -> None:
        """The call is over, or was never admitted. Idempotent, never raises."""
        with self._lock:
            if call.over:
                return
            call.over = True
            call.conversation.busy = False
            call.trajectory.calls -= 1
        if call.ticket is not None:
            self._controller.release(call.ticket, usage)
        if call.conversation.one_shot:
            self._finish(call.conversation.context_id, call.conversation.serial)
        trajectory = call.trajectory
        if trajectory.serial is not None and not trajectory.calls:
            # Without a loop it is closed: then nobody can wait on it either.
            with contextlib.suppress(RuntimeError):
                self._watch(trajectory, trajectory.used, 0.0)

    def finish_unscoped(self) -> None:
        """End all trajectories that no scope ends and that have no call in flight."""
        for trajectory in list(self._open.values()):
            if trajectory.serial is not None and not trajectory.calls:
                self._finish(trajectory.agent_id, trajectory.serial)

    # ---- who calls ------------------------------------------------------------------------------

    def _find(
        self, explicit: str | None, handler: tuple[str, str], task: Task | None, length: Callable[[], int]
    ) -> Trajectory:
        scope = current_scope(self._controller)
        if explicit is not None:
            # In a runtime the scope may be that of whoever started it; elsewhere it is the caller's own.
            if not handler[1] and scope is not None and scope.over and scope.agent_id == explicit:
                raise _over(explicit)
            named = self._open.get(explicit) or self._opened(explicit, length())
            if handler[1] in named.left_behind:
                raise _over(explicit)
            return named
        if scope is not None:
            if scope.over:
                raise _over(scope.agent_id)
            return self._open.get(scope.agent_id) or self._add(scope.agent_id, None)
        if handler[1]:
            team = f"autogen-{handler[1]}"
            return self._open.get(team) or self._opened(team, length())
        known = self._open.get(self._by_task.get(task, "")) if task is not None else None
        if known is None:
            known = self._opened(f"autogen-{next(self._names)}", length())
            if task is not None:
                self._by_task[task] = known.agent_id
                ended = known
                task.add_done_callback(lambda _: self._finish(ended.agent_id, ended.serial))
        return known

    def _add(self, agent_id: str, serial: int | None) -> Trajectory:
        trajectory = self._open[agent_id] = Trajectory(
            agent_id, serial, left_behind=self._ended.pop(agent_id, frozenset())
        )
        return trajectory

    def _opened(self, agent_id: str, context_tokens: int) -> Trajectory:
        """Open it at the controller, unless a scope elsewhere has done so already."""
        try:
            serial = self._controller.open(agent_id, context_tokens=context_tokens)
        except DuplicateAgentError:
            return self._add(agent_id, None)
        if agent_id in self._ended:
            self._finish(agent_id, serial)
            raise _over(agent_id)
        return self._add(agent_id, serial)

    def _context(
        self, trajectory: Trajectory, handler: str, one_shot: bool, context_tokens: int
    ) -> tuple[str, int | None]:
        """Id and serial of a new context. The first one is the trajectory's own, if its length is right."""
        fits = not context_tokens or trajectory.serial is not None
        if not trajectory.root_used and not one_shot and fits:
            trajectory.root_used = True
            return trajectory.agent_id, trajectory.serial
        name = handler.rpartition("_")[0] or handler or "context"
        context_id = f"{trajectory.agent_id}/{name}#{next(trajectory.names)}"
        serial = self._controller.open(context_id, parent=trajectory.agent_id, context_tokens=context_tokens)
        return context_id, serial

    # ---- when it ends ---------------------------------------------------------------------------

    def _watch(self, trajectory: Trajectory, used: int, idle: float) -> None:
        """Look after an unscoped trajectory at a boundary, until its next call."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            current = self._open.get(trajectory.agent_id) is trajectory
            if not current or trajectory.calls or trajectory.used != used:
                return
            waited = idle + UNSCOPED_GRACE_SECONDS
            if waited >= FORGOTTEN_AFTER_SECONDS:
                self._finish(trajectory.agent_id, trajectory.serial)
                return
            if self._controller.snapshot().waiting:
                self._controller.give_back(trajectory.agent_id)
            self._watch(trajectory, used, waited)

        loop.call_later(UNSCOPED_GRACE_SECONDS, look)

    def _finish(self, agent_id: str, serial: int | None) -> None:
        with contextlib.suppress(UnknownAgentError):
            self._controller.finish(agent_id, Outcome.COMPLETED, serial)

    def _forget(self, event: Event) -> None:
        """Somebody ended an agent; it may be one of these."""
        if type(event) is Finished:
            with self._lock:
                ended = self._open.pop(event.agent_id, None)
                if ended is not None and ended.serial is None:
                    self._ended[event.agent_id] = ended.going_on()
                    if len(self._ended) > _REMEMBERED:
                        self._ended.popitem(last=False)


def _over(agent_id: str) -> AgentFinishedError:
    return AgentFinishedError(
        f"agent_id={agent_id!r} is finished, and this call belongs to it: the run was cancelled or its"
        " `async with` left, while a part of its team went on"
    )


def _handler() -> tuple[str, str]:
    """Type and key of the runtime's agent whose message is being handled; empty outside."""
    try:
        agent = MessageHandlerContext.agent_id()
    except RuntimeError:
        return "", ""
    return agent.type, agent.key
