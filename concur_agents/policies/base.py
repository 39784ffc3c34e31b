"""The seam between the signals and the window."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from concur_agents.signals import Signals, Window


@runtime_checkable
class Policy(Protocol):
    """A control law: signals in, window out. Deterministic, no clock and no I/O of its own."""

    name: str
    """Short name for tables and logs."""

    def initial(self) -> Window:
        """The window before the first tick; also resets the law's own memory."""
        ...

    def update(self, signals: Signals) -> Window:
        """The window from now on. Called once a tick."""
        ...
