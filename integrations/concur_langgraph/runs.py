"""Which trajectory, and which of its contexts, a LangChain run belongs to.

Plain bookkeeping of run ids; nothing in here waits. A trajectory is the tree of runs under
one root run (or under the run whose metadata names another `concur_agent_id`). A context is one branch of
it: the conversation of the graph itself, of a subgraph or sub-agent, or of one of several workers that
call the model at the same time.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from concur_agents.controller import Controller
from concur_agents.errors import DuplicateAgentError, UnknownAgentError
from concur_agents.events import Ticket
from concur_agents.lifecycle import Outcome, Usage
from concur_langgraph.usage import Meter

AGENT_ID = "concur_agent_id"
"""Key of `config["metadata"]` that names the trajectory; default: the root run's id.

Under a run of another name it starts a trajectory of its own; if that run's agent has been admitted by then
and may be waiting for this one, the two share one place.
"""

SESSION_ID = "concur_session_id"
"""Key of `config["metadata"]` that names the session for the engine; default: `thread_id`, else the agent."""

_PASS_SECONDS = 1.0
"""A model's node begins right after its gate's. If it has not by then, its reader has stalled."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class Trajectory:
    """One agent of the controller, as long as its root run lives."""

    agent_id: str
    outer: Trajectory | None = None
    """The one whose run started this one under another name."""
    opened: bool = False
    """Whether it is open at the controller."""
    ours: bool = False
    """Whether it was opened here, so that it has to be finished here."""
    busy: dict[str, int] = field(default_factory=dict)
    """Calls waiting or in flight by context id."""
    passes: dict[str, Ticket] = field(default_factory=dict)
    """Calls that a gate node has been admitted for and the model has not begun, by context id."""


@dataclass(eq=False, slots=True)
class Run:
    """One node of the tree."""

    run_id: UUID
    parent: Run | None
    trajectory: Trajectory
    namespace: str
    """LangGraph's checkpoint namespace: one `node:task` for each level of graph, joined by `|`."""
    tool: bool = False
    children: dict[UUID, Run] = field(default_factory=dict)
    contexts: dict[str, str] = field(default_factory=dict)
    """Contexts that end with this run: branch key to context id."""
    told: tuple[str, float] | None = None
    """A tool's name and when it began, once its start was told."""
    ticket: Ticket | None = None
    context_id: str | None = None
    meter: Meter | None = None
    of_loop: bool = False
    """Started by an asynchronous graph: a synchronous call below it is on a thread of the loop's pool."""
    blocks_loop: bool = False
    """A synchronous call on a thread that runs an event loop, which stands still until it is over."""

    def lineage(self) -> Iterator[Run]:
        """This run and its ancestors, innermost first."""
        node: Run | None = self
        while node is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Run]:
        """This run and all runs under it."""
        yield self
        for child in list(self.children.values()):
            yield from child.below()


def _locked(method: Callable[Concatenate[Runs, P], R]) -> Callable[Concatenate[Runs, P], R]:
    @functools.wraps(method)
    def wrapper(self: Runs, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return wrapper


class Runs:
    """All live runs of one controller. Callable from any thread; nothing in here waits."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._runs: dict[UUID, Run] = {}
        self._ours: set[str] = set()
        """Ids of the trajectories opened here."""
        self.warned_usage = self.warned_pool = False
        """Whether somebody was told that usage is missing, or that a pool's threads wait."""
        # Re-entrant: the controller's subscribers are called in here, and may start or end runs.
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Live runs."""
        return len(self._runs)

    @property
    def idle(self) -> bool:
        """Whether nothing at all is remembered."""
        return not self._runs and not self._ours

    def find(self, run_id: UUID | None) -> Run | None:
        """A live run."""
        return None if run_id is None else self._runs.get(run_id)

    @_locked
    def start(
        self,
        run_id: UUID,
        parent_id: UUID | None,
        metadata: Mapping[str, Any] | None,
        *,
        tool: bool = False,
    ) -> Run:
        """A run begins. Idempotent."""
        known = self._runs.get(run_id)
        if known is not None:
            return known
        details = metadata or {}
        parent, named = self.find(parent_id), details.get(AGENT_ID)
        if parent is not None and (named is None or str(named) == parent.trajectory.agent_id):
            trajectory = parent.trajectory
        else:
            trajectory = Trajectory(
                str(named if named is not None else run_id), parent.trajectory if parent else None
            )
            parent = None
        namespace = str(details.get("langgraph_checkpoint_ns") or details.get("checkpoint_ns") or "")
        run = self._runs[run_id] = Run(run_id, parent, trajectory, namespace, tool)
        if parent is not None:
            parent.children[run_id] = run
        return run

    @_locked
    def enter(self, run: Run, context_tokens: int = 0) -> str:
        """A model call of `run` is about to ask for admission: the id to ask with.

        `context_tokens` is the length of the conversation that it continues, in case it is new here.

        Raises:
            DuplicateAgentError: another live run goes by the same name.
        """
        trajectory, branch = run.trajectory, self._branch_of(run)
        self._open(trajectory, 0 if branch else context_tokens)
        context = trajectory.agent_id
        if branch is not None:
            context = self._branch(*branch, parent=context, context_tokens=context_tokens)
        if context in trajectory.busy:
            # A call made while its context has another one in flight is a branch of its own.
            context = self._branch(run.parent or run, f"call {run.run_id}", parent=context)
        run.context_id = context
        trajectory.busy[context] = trajectory.busy.get(context, 0) + 1
        return context

    @_locked
    def hold(self, run: Run, ticket: Ticket) -> None:
        """The call of `run` was admitted. If the run is over meanwhile, so is the call."""
        if self._runs.get(run.run_id) is run:
            run.ticket = ticket
        else:
            self._controller.release(ticket)

    @_locked
    def keep(self, run: Run, ticket: Ticket) -> None:
        """A gate of `run` was admitted; the next model call of its context goes ahead on that.

        Where a place lasts, the agent has it now, and what follows is a boundary: should the call not come
        (a reader that stalls), the place can be reclaimed. Where it lasts one call, `ticket` is kept for it,
        for as long as a graph needs from one node to the next.
        """
        alive = self._runs.get(run.run_id) is run and run.context_id is not None
        if not alive or not self._controller.snapshot().window.is_request_limit:
            self._controller.release(ticket)
            return
        trajectory, context = run.trajectory, run.context_id or ""
        trajectory.passes[context] = ticket
        _later(_PASS_SECONDS, lambda: self._expire(trajectory, context, ticket))

    @_locked
    def _expire(self, trajectory: Trajectory, context: str, ticket: Ticket) -> None:
        if trajectory.passes.get(context) == ticket:
            del trajectory.passes[context]
            self._controller.release(ticket)

    @_locked
    def take(self, run: Run) -> Ticket | None:
        """The ticket that a gate has kept for the call of `run`, once."""
        return run.trajectory.passes.pop(run.context_id or "", None)

    @_locked
    def leave(self, run: Run, usage: Usage | None = None) -> None:
        """The call of `run` is over, or never started. Idempotent."""
        ticket, run.ticket = run.ticket, None
        if ticket is not None:
            self._controller.release(ticket, usage)
        context, run.context_id = run.context_id, None
        if context is not None:
            busy = run.trajectory.busy
            busy[context] -= 1
            if not busy[context]:
                del busy[context]

    @_locked
    def end(self, run_id: UUID, outcome: Outcome) -> None:
        """A run is over, with everything under it: calls, contexts and, at a root, the trajectory."""
        run = self._runs.get(run_id)
        if run is None:
            return
        for member in list(run.below()):
            self.leave(member)
            for context in member.contexts.values():
                self._finish(context, outcome)
            del self._runs[member.run_id]
        if run.parent is not None:
            run.parent.children.pop(run_id, None)
            return
        for ticket in run.trajectory.passes.values():
            self._controller.release(ticket)
        if run.trajectory.ours:
            self._ours.discard(run.trajectory.agent_id)
            self._finish(run.trajectory.agent_id, outcome)

    def _open(self, trajectory: Trajectory, context_tokens: int) -> None:
        """Open at the controller, unless a scope round the graph has done so already."""
        if trajectory.opened:
            return
        outer = trajectory.outer
        try:
            self._controller.open(
                trajectory.agent_id,
                parent=outer.agent_id if outer and outer.opened else None,
                context_tokens=context_tokens,
            )
        except DuplicateAgentError:
            if trajectory.agent_id in self._ours:
                raise
        else:
            trajectory.ours = True
            self._ours.add(trajectory.agent_id)
        trajectory.opened = True

    def _branch_of(self, run: Run) -> tuple[Run, str] | None:
        """The branch whose conversation a call of `run` continues: the run it ends with, and its key there.

        None for the graph's own calls, which share the trajectory's context. Calls in a tool, or else in a
        subgraph, share one that ends with it.
        """
        lineage, inner = list(run.lineage()), run.namespace.rpartition("|")[0]
        owner = next((r for r in lineage if r.tool), None)
        if owner is None and inner:
            owner = next((r for r in reversed(lineage) if _within(r.namespace, inner)), run)
        return None if owner is None else (owner, inner or "tool")

    def _branch(self, owner: Run, key: str, *, parent: str, context_tokens: int = 0) -> str:
        context = owner.contexts.get(key)
        if context is None:
            context = f"{owner.trajectory.agent_id}/{key}/{owner.run_id}"
            self._controller.open(context, parent=parent, context_tokens=context_tokens)
            owner.contexts[key] = context
        return context

    def _finish(self, agent_id: str, outcome: Outcome) -> None:
        try:
            self._controller.finish(agent_id, outcome)
        except UnknownAgentError:
            return  # ended with its trajectory, and long enough ago to be forgotten


def _within(namespace: str, inner: str) -> bool:
    return namespace == inner or namespace.startswith(inner + "|")


def _later(seconds: float, act: Callable[[], None]) -> None:
    """On this thread's loop, or on a thread where there is none."""
    try:
        asyncio.get_running_loop().call_later(seconds, act)
    except RuntimeError:
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()
