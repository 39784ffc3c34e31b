"""What the calls' times tell about the engine: is it busy, and what does computing a context again cost?

`Admission` tells when each call starts and ends. Nothing here needs the engine's telemetry, so it is known
for any engine. Times are seconds, lengths tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from concur_agents.estimators import Mean, PlaneFit, Slope
from concur_agents.lifecycle import Context, Usage

_LIKE_SATURATED = 2.0
"""Weight, in calls of unit spread, of the assumption that twice the agents make a call take twice as long. It
stands until calls of different concurrency have shown otherwise."""
_CALLS_MIN = 4
"""Calls before a slope is read at all."""
_COST_CALLS_MIN = 12
"""Calls before the cost of a prompt token is read: two unknowns, and first prompts are no good samples."""
_DOUBT = 2.0
"""Standard errors that the cost of a prompt token is taken higher than its estimate: believing that computing
again is cheap gives the cache away, so it has to be sure."""
_ROUNDS = 32
"""Calls and rounds that their mean times are taken over: a few per agent on small engines."""


@dataclass(slots=True)
class _Call:
    context: Context
    started_at: float
    generating: int
    again: bool


class Timing:
    """Learns from every call that ends. O(1) each."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._slope = Slope()
        self._cost = PlaneFit()
        self._call = Mean(_ROUNDS)
        self._round = Mean(_ROUNDS)

    def started(self, ticket: int, context: Context, now: float, waited: float, generating: int) -> None:
        """A call starts, with `generating` agents then at it, its own included."""
        if context.called_at is not None and not waited:
            self._round.add(now - context.called_at)  # from call to call: answer, tool, back at once
        context.called_at = now
        self._calls[ticket] = _Call(context, now, generating, again=context.calls > 0)

    def ended(self, ticket: int, now: float, usage: Usage | None, generating: int) -> None:
        """The call is over, with `generating` agents at it until now; without `usage` it teaches nothing."""
        call = self._calls.pop(ticket, None)
        if call is None or usage is None or now <= call.started_at:
            return
        seconds = now - call.started_at
        if usage.cached_tokens is not None:
            computed = max(1, usage.prompt_tokens - usage.cached_tokens)
            self._cost.add(computed, usage.completion_tokens, seconds)
        self._call.add(seconds)
        if call.again:  # first prompts are of another length than those that follow
            self._slope.add(math.log((call.generating + generating) / 2), math.log(seconds))

    def forget(self, ticket: int) -> None:
        """The call's agent is gone."""
        self._calls.pop(ticket, None)

    @property
    def load(self) -> float:
        """By which part of a percent a round gets longer with one percent more active agents, in [0, 1].

        The slope of a call's time over the number of agents that generate, both as logarithms, times the
        part of a round that an agent generates (tools take as long however many run).
        """
        slope = 1.0
        if self._slope.count >= _CALLS_MIN:
            slope = min(1.0, max(0.0, self._slope.value(towards=1.0, weight=_LIKE_SATURATED)))
        part = self._call.value / self._round.value if self._round and self._round.value else 1.0
        return slope * min(1.0, part)

    @property
    def recompute_tokens(self) -> float | None:
        """Prompt tokens that can be computed in the mean time of a round, cautiously; None: not known yet.

        Bandwidth x delay, as for a TCP window. A call's time is taken as proportional to the prompt tokens
        that were not cached and to the tokens generated; where the two cannot be told apart (all calls are
        alike), all of it counts as the prompt's, which is the most that it may cost.
        """
        if self._cost.count < _COST_CALLS_MIN or not self._round:
            return None
        seconds = self._cost.first_coefficient(errors=_DOUBT)
        return self._round.value / seconds if seconds and seconds > 0 else None
