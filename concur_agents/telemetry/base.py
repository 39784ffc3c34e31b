"""The seam between an engine's metrics endpoint and the controller."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from concur_agents.signals import Reading


@runtime_checkable
class Telemetry(Protocol):
    """An engine's metrics, read as a `Reading`. Never raises for a failing engine: says so in the reading."""

    async def read(self, now: float) -> Reading:
        """Look once. `now` is seconds on the controller's clock and becomes `Reading.at`."""
        ...

    async def close(self) -> None:
        """Give back sockets. Idempotent."""
        ...
