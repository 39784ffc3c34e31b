"""Named orders: whom a shrink pauses first, and who of those who wait comes next.

Each is a pure key over an agent; the smallest key goes first. `bench` measures them against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from concur_agents.errors import InvalidValueError
from concur_agents.lifecycle import Agent
from concur_agents.ranking import Key
from concur_agents.signals import ResumeOrder

PauseOrder = Literal["newest", "oldest", "largest", "smallest"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The two orders in force.

    `pause`: "newest" admitted first (default: the oldest are nearest to their end), "oldest",
    or by context, "largest" or "smallest" first; low priority goes before high in each.
    `resume`, among the paused that ask for a step: "oldest" admitted first (default), "fifo" by the time
    they asked, or by context. The paused come before the queued, the queued are first come first
    served; a higher priority goes first in either group.
    """

    pause: PauseOrder = "newest"
    resume: ResumeOrder = "oldest"

    def __post_init__(self) -> None:
        for field, value, known in (
            ("selection.pause", self.pause, get_args(PauseOrder)),
            ("selection.resume", self.resume, get_args(ResumeOrder)),
        ):
            if value not in known:
                msg = f"{field}={value!r} is unknown: expected one of {', '.join(known)}"
                raise InvalidValueError(msg)

    def pause_key(self, agent: Agent) -> Key:
        """Key of an active agent: the smallest is paused first."""
        by = {
            "newest": -agent.admitted_order,
            "oldest": agent.admitted_order,
            "largest": -agent.blocks,
            "smallest": agent.blocks,
        }
        return (agent.priority, by[self.pause], -agent.admitted_order)

    def resume_key(self, agent: Agent, *, one_queue: bool, order: ResumeOrder | None = None) -> Key:
        """Key of a waiting agent: the smallest is admitted first. `order` overrides `resume`.

        `one_queue` serves started and new agents alike in the order they asked, which is what a request
        limit does.
        """
        if one_queue or not agent.started:
            return (not one_queue, -agent.priority, agent.waiting_since)
        by = {
            "oldest": agent.admitted_order,
            "fifo": agent.waiting_since,
            "largest": -agent.blocks,
            "smallest": agent.blocks,
        }
        return (0, -agent.priority, by[order or self.resume])
