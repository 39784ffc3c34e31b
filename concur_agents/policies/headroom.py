"""Room for everyone's next steps: a window in KV tokens that needs no tuning.

Contexts only grow, so what fits now will not fit a few steps later. With D the demand, n the active agents
and g the mean growth of a context in a step, all from the ledger, and C' the part of the engine's capacity
that may be counted on,

    a new agent starts         while  D + s g n <= C'
    a paused one comes back    while  D + r g n <= C'
    the newest are paused      while  D +   g n >  C'

that is: nobody is paused whose next step still fits, and nobody is let in who would have to leave again
after a few. How far to look for a new agent, s, is a third of the steps that a trajectory takes, learnt from
those that have ended: when agents are at all stages of their lives, half of each growth is still to come on
average, and those who finish meanwhile make room for a part of it.

C' follows the hit rate as W does in the published law (additive increase, multiplicative decrease), because
the cache may hold less than the engine says: others use it too, or several engines share the agents
unevenly.

    H_t < tau_hit     share <- max(floor, beta * share)     once per drain
    otherwise         share <- min(1, share + alpha)        while somebody waits
    C' = fill * share * C

The window is work-conserving: while no call at all is in flight and somebody waits, an agent that has been
at a boundary for `idle_grace_seconds` gives its place up. Keeping its cache costs more than computing it
again when nothing else is computed meanwhile (long tools).

Until the first answer has told how long a context is, `w_initial` agents run. Where the engine's capacity is
not known there is nothing to count: then this is plain `AIMD`.
"""

from __future__ import annotations

from concur_agents.errors import check_range, check_whole
from concur_agents.policies.aimd import AIMD
from concur_agents.signals import Signals, StepsAhead, Window


class Headroom:
    """The law above. Windows are in KV tokens.

    The defaults are the middle of a plateau: on the workloads of `concur bench`, doubling or halving one of
    them costs a few percent.

    Args:
        start: s before any trajectory has ended, in steps, within `start_range`.
        start_part: s as a part of a trajectory's mean steps, in (0, 1], once some have ended.
        start_range: Least and most that s may be: a step or two are no outlook, and too many leave the engine
            empty when trajectories are long.
        resume: r in steps, >= 1.
        fill: Part of the capacity that is planned with, in (0, 1]: some blocks are half full.
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
        start: float = 6.0,
        start_part: float = 1 / 3,
        start_range: tuple[float, float] = (3.0, 12.0),
        resume: float = 4.0,
        fill: float = 0.95,
        tau_hit: float = 0.70,
        alpha: float = 0.01,
        beta: float = 0.8,
        floor: float = 0.2,
        w_initial: int = 6,
        idle_grace_seconds: float | None = 1.0,
        name: str = "headroom",
    ) -> None:
        check_range("start_range[0]", start_range[0], 1)
        check_range("start_range[1]", start_range[1], start_range[0])
        check_range("start", start, *start_range)
        check_range("start_part", start_part, 0, 1, open_low=True)
        check_range("resume", resume, 1)
        check_range("fill", fill, 0, 1, open_low=True)
        check_range("tau_hit", tau_hit, 0, 1)
        check_range("alpha", alpha, 0, 1)
        check_range("beta", beta, 0, 1, open_low=True, open_high=True)
        check_range("floor", floor, 0, 1, open_low=True)
        check_whole("w_initial", w_initial, 1)
        if idle_grace_seconds is not None:
            check_range("idle_grace_seconds", idle_grace_seconds, 0)
        self.start, self.start_part, self.start_range = start, start_part, start_range
        self.resume, self.fill = resume, fill
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
        if signals.growth_tokens is None:
            return Window(agents=self.w_initial, idle_grace_seconds=self.idle_grace_seconds)
        self._follow_hits(signals)
        return Window(
            tokens=self._usable(signals.capacity_tokens),
            ahead=StepsAhead(self._start(signals.steps_per_agent), self.resume, 1.0),
            idle_grace_seconds=self.idle_grace_seconds,
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

    def _start(self, steps_per_agent: float | None) -> float:
        if steps_per_agent is None:
            return self.start
        low, high = self.start_range
        return min(high, max(low, self.start_part * steps_per_agent))
