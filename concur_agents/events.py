"""What happened, as data. The core returns events; subscribers render them (log, metrics, plot)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from concur_agents.lifecycle import Outcome, PauseReason
from concur_agents.signals import Quality, Signals, Window

Ticket = int
"""One wish for one generation call; unique within a controller."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A call has to wait for a place."""

    at: float
    agent_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Admitted:
    """An agent took a place in the window; `first` on its first one. `waited` is in seconds."""

    at: float
    agent_id: str
    waited: float
    first: bool


@dataclass(frozen=True, slots=True)
class Granted:
    """A call may start now; the shell wakes whoever holds `ticket`."""

    at: float
    agent_id: str
    ticket: Ticket
    waited: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A waiting call will never be granted: its agent was finished meanwhile."""

    at: float
    agent_id: str
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A call is over; `tokens` is the context's length afterwards."""

    at: float
    agent_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool runs at a boundary, until its `ToolEnded`, or until its agent is `Finished` and cuts it off."""

    at: float
    agent_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool ran at a boundary, for `seconds`. Told by adapters that see it: `Controller.tool_ended`."""

    at: float
    agent_id: str
    tool: str
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class Paused:
    """An agent lost its place at a boundary."""

    at: float
    agent_id: str
    reason: PauseReason


@dataclass(frozen=True, slots=True)
class Finished:
    """A trajectory is over and holds nothing any more."""

    at: float
    agent_id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The policy answered with another window."""

    at: float
    before: Window
    after: Window


@dataclass(frozen=True, slots=True)
class Tick:
    """The policy was asked; what it saw and what is in force afterwards."""

    at: float
    signals: Signals
    window: Window


@dataclass(frozen=True, slots=True)
class TelemetryChanged:
    """The telemetry's quality changed; `reason` is for people."""

    at: float
    before: Quality | None
    after: Quality
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyFailed:
    """The policy raised or answered nonsense; the window in force stays."""

    at: float
    error: str


Event = (
    Queued
    | Admitted
    | Granted
    | Refused
    | StepEnded
    | ToolStarted
    | ToolEnded
    | Paused
    | Finished
    | WindowChanged
    | Tick
    | TelemetryChanged
    | PolicyFailed
)
Subscriber = Callable[[Event], None]
