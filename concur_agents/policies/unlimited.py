"""No control: every agent runs whenever it wants. The baseline."""

from __future__ import annotations

from concur_agents.signals import Signals, Window


class Unlimited:
    """No limit."""

    name = "none"

    def initial(self) -> Window:
        """No limit."""
        return Window()

    def update(self, signals: Signals) -> Window:
        """No limit."""
        return Window()
