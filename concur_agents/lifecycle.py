"""One trajectory: its states, its contexts, and the usage of one step.

Plain data. Who may run is decided in `admission`, how much KV cache it needs in `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from concur_agents.errors import check_whole


class AgentStatus(Enum):
    """Where a trajectory stands. GENERATING and TOOL_EXECUTION are the active set."""

    QUEUED = "QUEUED"
    """Not started yet, or waiting for its first place."""
    GENERATING = "GENERATING"
    """At least one generation call is in flight."""
    TOOL_EXECUTION = "TOOL_EXECUTION"
    """Between two steps (a boundary), holding its place in the window."""
    PAUSED = "PAUSED"
    """Started, and holds no place: paused by a shrink, by hand, or reclaimed at a boundary."""
    COMPLETED = "COMPLETED"
    """Over; holds nothing."""

    @property
    def is_active(self) -> bool:
        """True for the two states that hold admission."""
        return self in (AgentStatus.GENERATING, AgentStatus.TOOL_EXECUTION)


class Outcome(Enum):
    """How a trajectory ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PauseReason(Enum):
    """Why an agent lost its place at a boundary."""

    SHRINK = "shrink"
    """The window became smaller than the active set."""
    MANUAL = "manual"
    """Somebody called `pause`; only `resume` ends it."""
    RECLAIM = "reclaim"
    """It sat at a boundary longer than the window's grace while others waited."""
    GIVEN_BACK = "given back"
    """It gave its place back for a wait of unknown length, such as for a human."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one finished generation call, as the engine reports them.

    `prompt_tokens` and `completion_tokens` are >= 0; `cached_tokens` is the part of the prompt found
    in the prefix cache (0..prompt_tokens), or None when the engine does not report it (vLLM needs
    `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`). `rewritten` says that the prompt did
    not begin with the context as it was before (trimmed, compacted, edited): that it was not found in the
    cache is then no sign of congestion.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int | None = None
    rewritten: bool = False

    def __post_init__(self) -> None:
        check_whole("prompt_tokens", self.prompt_tokens, 0)
        check_whole("completion_tokens", self.completion_tokens, 0)
        if self.cached_tokens is not None:
            check_whole("cached_tokens", self.cached_tokens, 0, self.prompt_tokens)

    @property
    def context_tokens(self) -> int:
        """Length of the context after the call, in tokens."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True, eq=False)
class Context:
    """One growing context in the engine: a branch or sub-agent of a trajectory.

    `tokens` is its length after the last recorded call (or the length it was opened with), `shared`
    whether it starts with the prefix that all agents share, `warm` whether its blocks should still be
    resident (false until the first call, and after its agent was paused).
    """

    context_id: str
    parent: Context | None = None
    serial: int = 0
    """Tells two contexts apart that had the same id one after the other."""
    tokens: int = 0
    calls: int = 0
    shared: bool = False
    warm: bool = False
    called_at: float | None = None
    """When its last call started."""
    in_flight: set[int] = field(default_factory=set)
    waiting: dict[int, float] = field(default_factory=dict)
    """Tickets not granted yet, each with the time it was asked for."""

    def lineage(self) -> Iterator[Context]:
        """This context, its parent, and so on up to the trajectory's own."""
        node: Context | None = self
        while node is not None:
            yield node
            node = node.parent


@dataclass(slots=True, eq=False)
class Agent:
    """One trajectory: one place in the window, one context per branch in the ledger.

    Mutable, owned by `Admission`; everything outside sees snapshots and events.
    """

    agent_id: str
    priority: int = 0
    status: AgentStatus = AgentStatus.QUEUED
    contexts: dict[str, Context] = field(default_factory=dict)
    blocks: int = 0
    """KV blocks of all its contexts together, each rounded up."""
    shared_contexts: int = 0
    calls: int = 0
    """Calls recorded so far, in all its contexts."""
    steps: int = 0
    """Of these, the trajectory's own."""
    held_tokens: int = 0
    """What its contexts took of the cache together, summed up over these calls."""
    calls_in_flight: int = 0
    calls_waiting: int = 0
    admitted_order: int = -1
    """Rank of its first admission; -1 before it. Smaller is older."""
    waiting_since: float = 0.0
    manual: bool = False
    """Paused by hand (or to be, at its next boundary); only `resume` clears it."""
    leaving: bool = False
    """A shrink has chosen it: it is paused at its next boundary."""

    @property
    def started(self) -> bool:
        """True once it has been admitted."""
        return self.admitted_order >= 0

    @property
    def draining(self) -> bool:
        """True when it will be paused at its next boundary."""
        return self.leaving or self.manual
