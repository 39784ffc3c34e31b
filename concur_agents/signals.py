"""What an engine says (`Reading`), what a policy sees (`Signals`), and what it answers (`Window`).

Utilisation and hit rate are fractions in [0, 1]; tokens are KV tokens; times are seconds on the
caller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from concur_agents.errors import InvalidValueError, check_range, check_whole

ResumeOrder = Literal["oldest", "fifo", "largest", "smallest"]
"""Who of the paused comes back first: see `selection.Selection`."""


class Quality(Enum):
    """How far a reading can be trusted."""

    OK = "ok"
    STALE = "stale"
    """The endpoint answered before, but not lately; the values are the last ones known."""
    ABSENT = "absent"
    """The endpoint never answered, or answers without the engine's series."""
    UNRELIABLE = "unreliable"
    """It answers, but a value is known to mislead (old engine version, impossible number)."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One engine (data-parallel rank) at one scrape. None means the engine does not say.

    `usage` is the gauge in [0, 1] and counts running requests only: idle agents' cached blocks read as
    free. `hit_tokens`, `query_tokens` and `preemptions` are cumulative since the engine's start.
    """

    engine: str = "0"
    usage: float | None = None
    hit_tokens: float | None = None
    query_tokens: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: float | None = None
    capacity_tokens: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the engines behind an endpoint, aggregated.

    `usage` is the largest of the engines' gauges (0 for an engine with nothing running or waiting);
    `capacity_tokens` their sum. `hit_tokens_delta` and `query_tokens_delta` are the sums since the
    previous reading, None on the first one and after a reset. `epoch` counts the engine restarts seen.
    `reason` is for people and says why the quality is not OK.
    """

    at: float
    quality: Quality
    epoch: int = 0
    usage: float | None = None
    hit_tokens_delta: float | None = None
    query_tokens_delta: float | None = None
    preemptions_delta: float | None = None
    running: int | None = None
    waiting: int | None = None
    capacity_tokens: int | None = None
    block_size: int | None = None
    engines: tuple[EngineReading, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        for field in ("usage", "hit_tokens_delta", "query_tokens_delta", "preemptions_delta"):
            value = getattr(self, field)
            if value is not None:
                check_range(f"reading.{field}", value, 0)
        for field in ("capacity_tokens", "block_size"):
            value = getattr(self, field)
            if value is not None:
                check_whole(f"reading.{field}", value, 1)

    @property
    def hit_rate(self) -> float | None:
        """Hit rate of all prompts since the previous reading; None when nothing was looked up."""
        if self.hit_tokens_delta is None or not self.query_tokens_delta:
            return None
        return min(1.0, self.hit_tokens_delta / self.query_tokens_delta)


@dataclass(frozen=True, slots=True)
class StepsAhead:
    """Room in a token window for what the active agents are about to append, each >= 0.

    In steps of every active agent, at the mean growth of a context in a step: how many have to fit for a
    new agent to `start`, for one that was paused to `resume`, and for all active ones to `stay`. With `idle`,
    fewer will do for both while no call at all is in flight and the engine has nothing to do.
    """

    start: float = 0.0
    resume: float = 0.0
    stay: float = 0.0
    idle: float | None = None

    def __post_init__(self) -> None:
        for field in ("start", "resume", "stay", "idle"):
            if (steps := getattr(self, field)) is not None:
                check_range(f"ahead.{field}", steps, 0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast new agents may start, as packets leave a paced TCP sender (RFC 9002, section 7.7).

    `per_round` >= 0 agents start in a round, which is a step of each active agent; what was not used is kept
    up to `burst` >= 1 starts. While no call has been in flight for the window's `idle_grace_seconds`, the
    pace holds nobody back.
    """

    per_round: float
    burst: float = 2.0

    def __post_init__(self) -> None:
        check_range("pace.per_round", self.per_round, 0)
        check_range("pace.burst", self.burst, 1)


@dataclass(frozen=True, slots=True)
class Window:
    """W(t): how much may be active at once. None means no limit of that kind.

    `agents` >= 1 limits the active set, `tokens` >= 1 its demand in KV tokens together with the
    `ahead` (one agent may always run). `grace_seconds` >= 0 is how long an agent may sit at a boundary
    before its place may be reclaimed for somebody who waits; None: never. With 0 a place lasts one call,
    which makes `agents` a request limit. `idle_grace_seconds` >= 0 is the grace while no call at all is in
    flight, when the engine stands idle. `pace` limits how fast new agents start within all that, and `resume`
    says who of the paused comes back first, where the controller's selection shall not.
    """

    agents: int | None = None
    tokens: int | None = None
    grace_seconds: float | None = None
    ahead: StepsAhead | None = None
    idle_grace_seconds: float | None = None
    pace: Pace | None = None
    resume: ResumeOrder | None = None

    def __post_init__(self) -> None:
        for field, value in (("window.agents", self.agents), ("window.tokens", self.tokens)):
            if value is not None:
                check_whole(field, value, 1)
        for field, seconds in (
            ("window.grace_seconds", self.grace_seconds),
            ("window.idle_grace_seconds", self.idle_grace_seconds),
        ):
            if seconds is not None:
                check_range(field, seconds, 0)
        if self.resume is not None and self.resume not in get_args(ResumeOrder):
            known = ", ".join(get_args(ResumeOrder))
            msg = f"window.resume={self.resume!r} is unknown: expected one of {known}, or None"
            raise InvalidValueError(msg)

    @property
    def is_request_limit(self) -> bool:
        """True when a place lasts one call only."""
        return self.grace_seconds == 0


@dataclass(frozen=True, slots=True)
class Signals:
    """Everything a policy may look at, sampled at one tick.

    `usage` is U_t = max(engine gauge, demand / capacity) and `hit_rate` is H_t on revisits only (tokens
    that were in the agent's own context before); None when unknown, which is neither healthy nor
    congested. `engine_usage` and `engine_hit_rate` are the engine's own numbers for the literal laws.
    `window` is the one in force and `active` the agents holding a place. `waiting` counts agents
    (queued or paused) that ask for a place now.
    """

    at: float
    window: Window
    quality: Quality = Quality.OK
    usage: float | None = None
    hit_rate: float | None = None
    engine_usage: float | None = None
    engine_hit_rate: float | None = None
    demand_tokens: int = 0
    capacity_tokens: int | None = None
    growth_tokens: float | None = None
    """Mean tokens that a step adds to a context; None before anything is known."""
    residency_tokens: float | None = None
    """Context of a trajectory summed up over its steps, in tokens x rounds, mean of those that have ended:
    how much of the cache it takes and for how long. None before the first."""
    ended: int = 0
    """Trajectories that this mean was taken over."""
    load: float = 1.0
    """By which part of a percent a round gets longer with one percent more active agents, in [0, 1]: near 0
    the engine (or the tools') time is free for more agents, near 1 they only wait for each other."""
    recompute_tokens: float | None = None
    """Prompt tokens that the engine can compute in the time of one round, a cautious estimate: the bandwidth
    x delay product. With a smaller cache than that, nothing is gained by protecting it. None: not known."""
    active: int = 0
    waiting: int = 0
    paused: int = 0
    preemptions_delta: float | None = None
    frozen: bool = False
    """Telemetry has been silent for longer than the stated time: shrink if you must, never grow."""
