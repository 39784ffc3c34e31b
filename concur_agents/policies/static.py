"""A fixed cap of agents: the best one found by hand is what a law has to match."""

from __future__ import annotations

from concur_agents.signals import Signals, Window


class Static:
    """At most `agents` (>= 1) active agents, whatever happens."""

    def __init__(self, agents: int) -> None:
        self._window = Window(agents=agents)
        self.name = f"static:{agents}"

    def initial(self) -> Window:
        """The cap."""
        return self._window

    def update(self, signals: Signals) -> Window:
        """The cap."""
        return self._window
