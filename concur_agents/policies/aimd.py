"""Additive increase, multiplicative decrease: the window of the CONCUR papers, with TCP's guards.

Once per tick, with U_t the KV utilisation and H_t the prefix-cache hit rate:

    congested   U_t >= tau_high  or  H_t < tau_hit      W <- max(w_min, floor(beta * W))
    healthy     U_t <  tau_low   and H_t >= tau_hit     W <- W + alpha
    otherwise                                           W stays

Multiplicative decrease because a thrashing engine recomputes whole contexts, whose cost is quadratic in
their length: backing off by a constant would not leave the bad region before it has done its harm.

`AIMD()` reads U_t = max(engine gauge, demand / capacity) and H_t on revisits, and keeps four rules that
TCP learnt the hard way:

* app-limited (RFC 7661): grow only when the window is full and somebody waits. An unused window says
  nothing about the room there would be if it were used.
* one cut per drain (RFC 5681: once per round trip): a cut takes effect at the agents' boundaries, so until
  the active set fits the new window the signals still show the old one. Cutting on them again would send
  the window to its floor.
* unknown H holds: no revisits in this tick is neither health nor congestion.
* slow start (RFC 5681): until the first cut, W doubles instead while U_t < tau_low / 2, where twice the
  agents still stay below tau_low. It doubles again once the demand has doubled: an agent's context is
  unknown until its first answer, so before that U_t does not show those who were admitted last. Adding
  two at a time, a large engine would stand empty for minutes.

`AIMD.seed()` and `AIMD.paper()` are the two published laws to the letter, for comparison.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from concur_agents.errors import InvalidValueError, check_range
from concur_agents.signals import Signals, Window


class AIMD:
    """The law above. Windows are in agents.

    Args:
        alpha: Agents added when healthy, >= 1.
        beta: Factor of a cut, in (0, 1).
        tau_low: U below which the window may grow, in [0, tau_high]. Between the two it holds. The default
            leaves room for one increase near the floor: five agents at U = 0.6 become seven at 0.84.
        tau_high: U from which the cache is congested, in (0, 1].
        tau_hit: H below which it thrashes, in [0, 1].
        w_min: Smallest window, >= 1.
        w_initial: First window, >= w_min.
        w_max: Largest window, >= w_initial; None for no limit.
        cut_when: Whether high U "or" low H is enough to cut, or it takes high U "and" low H. With "and",
            growth looks at U alone and U = tau_high is not yet high, as in the published law.
        app_limited: Grow only when the window is full and somebody waits.
        one_cut_per_drain: No cut before the previous one has drained.
        unknown_hit: Whether an unknown H counts as "hold" or as "healthy".
        slow_start: Double instead of adding alpha until the first cut, as long as that is safe.
        engine_signals: Read the engine's own gauge and hit rate instead of demand and revisits.
        name: For tables and logs.

    Raises:
        InvalidValueError: an argument is out of range; the message names it.
    """

    def __init__(
        self,
        *,
        alpha: int = 2,
        beta: float = 0.5,
        tau_low: float = 0.60,
        tau_high: float = 0.85,
        tau_hit: float = 0.70,
        w_min: int = 4,
        w_initial: int = 16,
        w_max: int | None = None,
        cut_when: Literal["or", "and"] = "or",
        app_limited: bool = True,
        one_cut_per_drain: bool = True,
        unknown_hit: Literal["hold", "healthy"] = "hold",
        slow_start: bool = True,
        engine_signals: bool = False,
        name: str = "aimd",
    ) -> None:
        check_range("alpha", alpha, 1)
        check_range("beta", beta, 0, 1, open_low=True, open_high=True)
        check_range("tau_high", tau_high, 0, 1, open_low=True)
        check_range("tau_low", tau_low, 0, tau_high)
        check_range("tau_hit", tau_hit, 0, 1)
        check_range("w_min", w_min, 1)
        check_range("w_initial", w_initial, w_min)
        if w_max is not None:
            check_range("w_max", w_max, w_initial)
        for field, count in (("alpha", alpha), ("w_min", w_min), ("w_initial", w_initial), ("w_max", w_max)):
            if count is not None and int(count) != count:
                msg = f"{field}={count!r} must be a whole number of agents"
                raise InvalidValueError(msg)
        for field, value, known in (
            ("cut_when", cut_when, ("or", "and")),
            ("unknown_hit", unknown_hit, ("hold", "healthy")),
        ):
            if value not in known:
                msg = f"{field}={value!r} is unknown: expected one of {', '.join(known)}"
                raise InvalidValueError(msg)
        self.alpha, self.beta = alpha, beta
        self.tau_low, self.tau_high, self.tau_hit = tau_low, tau_high, tau_hit
        self.w_min, self.w_initial, self.w_max = w_min, w_initial, w_max
        self.cut_when = cut_when
        self.app_limited = app_limited
        self.one_cut_per_drain = one_cut_per_drain
        self.unknown_hit = unknown_hit
        self.slow_start = slow_start
        self.engine_signals = engine_signals
        self.name = name
        self.initial()

    @classmethod
    def seed(cls) -> Self:
        """The tutorial's law and sample code to the letter: no dead zone, and no lookup reads as H = 1."""
        return cls(
            tau_low=0.85,
            app_limited=False,
            one_cut_per_drain=False,
            unknown_hit="healthy",
            slow_start=False,
            engine_signals=True,
            name="aimd-seed",
        )

    @classmethod
    def paper(cls) -> Self:
        """CONCUR (ICML 2026), Eq. 1 and section 5.1: +2 if U < 0.2; x 0.5 if U > 0.5 and H < 0.2; else hold.

        The paper leaves the first window and its floor open; the tutorial's 16 and 1 are taken here.
        """
        return cls(
            tau_low=0.2,
            tau_high=0.5,
            tau_hit=0.2,
            w_min=1,
            cut_when="and",
            app_limited=False,
            one_cut_per_drain=False,
            slow_start=False,
            engine_signals=True,
            name="aimd-paper",
        )

    def initial(self) -> Window:
        """W_0."""
        self._window, self._draining = self.w_initial, False
        self._starting, self._doubled_at = self.slow_start, 0
        return Window(agents=self._window)

    def update(self, signals: Signals) -> Window:
        """One tick of the law."""
        usage = signals.engine_usage if self.engine_signals else signals.usage
        hit = signals.engine_hit_rate if self.engine_signals else signals.hit_rate
        if hit is None and self.unknown_hit == "healthy":
            hit = 1.0
        if signals.active <= self._window:
            self._draining = False
        if self._congested(usage, hit):
            if not (self.one_cut_per_drain and self._draining):
                self._window = max(self.w_min, math.floor(self.beta * self._window))
                self._draining, self._starting = True, False
        elif self._healthy(usage, hit) and not signals.frozen and self._window_is_used(signals):
            grown = self._window + self._increase(usage, signals.demand_tokens)
            self._window = grown if self.w_max is None else min(self.w_max, grown)
        return Window(agents=self._window)

    def _increase(self, usage: float | None, demand_tokens: int) -> int:
        if not self._starting or usage is None or usage >= self.tau_low / 2:
            return self.alpha
        if demand_tokens < 2 * self._doubled_at:
            return 0
        self._doubled_at = demand_tokens
        return self._window

    def _congested(self, usage: float | None, hit: float | None) -> bool:
        missing = hit is not None and hit < self.tau_hit
        if self.cut_when == "and":
            return usage is not None and usage > self.tau_high and missing
        return (usage is not None and usage >= self.tau_high) or missing

    def _healthy(self, usage: float | None, hit: float | None) -> bool:
        room = usage is not None and usage < self.tau_low
        if self.cut_when == "and":
            return room
        return room and hit is not None and hit >= self.tau_hit

    def _window_is_used(self, signals: Signals) -> bool:
        if not self.app_limited:
            return True
        return signals.waiting > 0 and signals.active >= self._window
