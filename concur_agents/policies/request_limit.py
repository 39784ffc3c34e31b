"""A cap of requests in flight, blind to whose they are: what request-level admission does."""

from __future__ import annotations

from concur_agents.signals import Signals, Window


class RequestLimit:
    """At most `requests` (>= 1) agents generating; a place lasts one call, first come first served.

    Calls that one trajectory makes at once, from branches or sub-agents, count as one.
    """

    def __init__(self, requests: int) -> None:
        self._window = Window(agents=requests, grace_seconds=0)
        self.name = f"requests:{requests}"

    def initial(self) -> Window:
        """The cap."""
        return self._window

    def update(self, signals: Signals) -> Window:
        """The cap."""
        return self._window
