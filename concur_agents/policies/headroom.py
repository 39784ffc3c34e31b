"""The default law: a token window with room for everyone's next steps. It needs no tuning.

Contexts only grow, so what fits now will not fit a few steps later. With D the demand, n the active agents
and g the mean growth of a context in a step, all from the ledger, and C' the part of the engine's capacity
that may be counted on,

    a new agent starts         while  D + s g n <= C',  and no faster than the pace
    a paused one comes back    while  D + r g n <= C'
    the newest are paused      while  D +   g n >  C'

that is: nobody is paused whose next step still fits, and nobody is let in who would have to leave again soon.

The pace keeps agents at all stages of their lives: those that start together are all short at first and all
long at the end, and the cache is half empty on average. By Little's law (agents there = arrivals x stay)
the cache is full, and no more than full, when

    C' = starts per round x A

with A what a trajectory takes of the cache summed up over its steps, learnt from those that have ended.

Is the cache what is short? When more agents hardly make a round longer (`load` near 0: the engine decodes
large batches as fast as small ones, or tools take most of the time), waiting costs more than computing
again does: then there is no pace, and below that the least advanced come back first, so that none of them is
left for the end. When the engine computes more tokens in the time of a round than the cache holds, there is
nothing to protect: the window is then the larger of C' and that product of bandwidth and delay.

C' follows the hit rate as W does in the published law (additive increase, multiplicative decrease), because
the cache may hold less than the engine says: others use it too, or several engines share the agents
unevenly.

    H_t < tau_hit     share <- max(floor, beta * share)     once per drain
    otherwise         share <- min(1, share + alpha)        while somebody waits
    C' = fill * share * C

The window is work-conserving: while no call at all has been in flight for a moment and somebody waits, an
agent that has been at a boundary for `idle_grace_seconds` gives its place up, and a new one may start.

Until the first answer has told how long a context is, `w_initial` agents run. Where the engine's capacity is
not known there is nothing to count: then this is plain `AIMD`.
"""

from __future__ import annotations

from concur_agents.errors import check_range, check_whole
from concur_agents.policies.aimd import AIMD
from concur_agents.signals import Pace, Signals, StepsAhead, Window


class Headroom:
    """The law above. Windows are in KV tokens.

    The defaults are the middle of a plateau: on the workloads of `concur bench --study`, and on random ones
    that they were not chosen by, doubling or halving one of them costs a percent or two.

    Args:
        start: s, in steps, >= 0.
        resume: r, in steps, >= 0. More than s: those who come back have longer contexts to lose.
        idle: Steps, >= 0, that are room enough for both while no call is in flight, where new agents are not
            paced.
        fill: Part of the capacity that is planned with, in (0, 1]: some blocks are half full.
        pace_fill: Part of C' that the pace fills, in (0, 1]: starts and ends do not alternate evenly.
        steps_expected: Steps of a trajectory before any has ended, >= 1; then it counts as one of them.
            Agents of benchmarks take 10 to 50. Too few makes the first ones crowd, too many lets the engine
            wait for them.
        load_paced: Load from which new agents are paced, in [0, 1].
        load_in_order: Load from which the paused come back as the controller's selection says, in [0, 1].
        tau_hit: H below which more was admitted than the cache holds, in [0, 1].
        alpha: Added to the share per tick, in [0, 1].
        beta: Factor of a cut, in (0, 1).
        floor: Smallest share, in (0, 1].
        w_initial: Agents before anything is known, >= 1.
        idle_grace_seconds: >= 0; see above. None: a place is kept however long the tool takes.
        name: For tables and logs.

    Raises:
        InvalidValueError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        *,
        start: float = 3.0,
        resume: float = 4.0,
        idle: float = 1.0,
        fill: float = 0.95,
        pace_fill: float = 0.8,
        steps_expected: float = 16.0,
        load_paced: float = 0.35,
        load_in_order: float = 0.25,
        tau_hit: float = 0.70,
        alpha: float = 0.01,
        beta: float = 0.8,
        floor: float = 0.2,
        w_initial: int = 5,
        idle_grace_seconds: float | None = 2.0,
        name: str = "headroom",
    ) -> None:
        check_range("start", start, 0)
        check_range("resume", resume, 0)
        check_range("idle", idle, 0)
        check_range("fill", fill, 0, 1, open_low=True)
        check_range("pace_fill", pace_fill, 0, 1, open_low=True)
        check_range("steps_expected", steps_expected, 1)
        check_range("load_paced", load_paced, 0, 1)
        check_range("load_in_order", load_in_order, 0, 1)
        check_range("tau_hit", tau_hit, 0, 1)
        check_range("alpha", alpha, 0, 1)
        check_range("beta", beta, 0, 1, open_low=True, open_high=True)
        check_range("floor", floor, 0, 1, open_low=True)
        check_whole("w_initial", w_initial, 1)
        if idle_grace_seconds is not None:
            check_range("idle_grace_seconds", idle_grace_seconds, 0)
        self.ahead = StepsAhead(start, resume, 1.0)
        self.ahead_if_free = StepsAhead(start, resume, 1.0, idle)
        self.fill, self.pace_fill, self.steps_expected = fill, pace_fill, steps_expected
        self.load_paced, self.load_in_order = load_paced, load_in_order
        self.tau_hit, self.alpha, self.beta, self.floor = tau_hit, alpha, beta, floor
        self.w_initial = w_initial
        self.idle_grace_seconds = idle_grace_seconds
        self.name = name
        self.initial()

    def initial(self) -> Window:
        """A few agents, to learn from."""
        self._share, self._draining = 1.0, False
        self._blind = AIMD()
        return Window(agents=self.w_initial, idle_grace_seconds=self.idle_grace_seconds)

    def update(self, signals: Signals) -> Window:
        """One tick of the law."""
        if signals.capacity_tokens is None:
            return self._blind.update(signals)
        if not signals.growth_tokens:
            return Window(agents=self.w_initial, idle_grace_seconds=self.idle_grace_seconds)
        again = int(signals.recompute_tokens or 0)
        if again < signals.capacity_tokens:
            self._follow_hits(signals)
        usable = self._usable(signals.capacity_tokens)
        free = signals.load < self.load_paced or again > usable
        return Window(
            tokens=max(usable, again),
            ahead=self.ahead_if_free if free else self.ahead,
            idle_grace_seconds=self.idle_grace_seconds,
            pace=None if free else self._pace(usable, signals, signals.growth_tokens),
            resume="smallest" if signals.load < self.load_in_order else None,
        )

    def _follow_hits(self, signals: Signals) -> None:
        """Adapt the share of the capacity that may be counted on."""
        if signals.demand_tokens <= self._usable(signals.capacity_tokens or 0):
            self._draining = False
        if signals.hit_rate is None:
            return
        if signals.hit_rate < self.tau_hit:
            if not self._draining:
                self._share, self._draining = max(self.floor, self.beta * self._share), True
        elif signals.waiting and not signals.frozen:
            self._share = min(1.0, self._share + self.alpha)

    def _usable(self, capacity_tokens: int) -> int:
        return max(1, int(self.fill * self._share * capacity_tokens))

    def _pace(self, usable: int, signals: Signals, growth: float) -> Pace:
        """Little's law. What is expected counts as one trajectory that has ended."""
        expected = growth * self.steps_expected**2 / 2  # a triangle: from nothing, g more in each step
        known = (signals.residency_tokens or 0.0) * signals.ended
        residency = (known + expected) / (signals.ended + 1)
        return Pace(self.pace_fill * usable / residency)
