"""The tool calls of a trajectory that run, so that each is told of once.

Up to three see one: the hooks of a tool and of its workbench, where it runs, and `run`, from the messages
about it, which in a team may come before it begins or after it ended. Plain data; no locks, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class ToolCalls:
    """By the ids that the model gave the calls."""

    _asked: dict[str, float] = field(default_factory=dict)
    """When those were asked for that a message told of first."""
    _hooked: dict[str, bool] = field(default_factory=dict)
    """Whether those still run that a hook told of."""

    def asked(self, call_id: str, now: float) -> bool:
        """A message says that it begins; whether that is news."""
        if call_id in self._asked or call_id in self._hooked:
            return False
        self._asked[call_id] = now
        return True

    def answered(self, call_id: str) -> float | None:
        """A message says that it ended: since when it was asked for, or None if a hook tells of its end."""
        hooked = self._hooked.pop(call_id, None) is not None
        began = self._asked.pop(call_id, None)
        return None if hooked else began

    def inside(self, call_id: str) -> bool:
        """Whether a hook is telling of it already: the workbench's, of which it is the tool's turn."""
        return self._hooked.get(call_id, False)

    def began(self, call_id: str) -> bool:
        """A hook sees it begin; whether that is news."""
        self._hooked[call_id] = True
        return call_id not in self._asked

    def ended(self, call_id: str) -> None:
        """A hook sees it end. That is always news, unless another hook is round it."""
        self._hooked[call_id] = False
