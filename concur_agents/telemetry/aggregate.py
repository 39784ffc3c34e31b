"""From what the engines behind an endpoint say, scrape by scrape, to one `Reading`. No I/O, no clock.

Decides: how engines are added up, what a counter that went down means, what is known when nothing answers.

- U is the largest of the engines' gauges: agents on the fullest one thrash first. An engine with nothing
  running and nothing waiting is at 0 whatever its gauge says, because a gauge that is set once per engine
  step holds its last value when no steps follow (seen on vLLM after an abort, on SGLang for 30 s).
- A gauge outside [0, 1], or NaN, is unknown, and the reading is unreliable.
- Deltas are summed over the engines present, with hits and queries, in this scrape and an earlier one; after
  failed scrapes they cover the gap, so tokens are neither lost nor counted twice.
- A counter that went down, another process start time, or an engine that vanished is a restart: the epoch
  goes up and this reading has no deltas, as its caches are gone and half of the sum would be missing. A new
  engine is no restart: it is counted from its second scrape on.
- A process start time that goes back tells that several servers answer by turns (a load balancer): their
  counters cannot be compared, so there are no deltas and the readings stay unreliable.
- Nothing answers: the last gauges, marked stale. Nothing ever did, or no engine is in the answer: absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from concur_agents.signals import EngineReading, Quality, Reading

_Number = TypeVar("_Number", int, float)

_ROUNDING = 0.01
"""SGLang rounds `token_usage` to two digits; that much beyond [0, 1] is rounding, not nonsense."""

_BY_TURNS = "several servers answer by turns at this address: give the address of one engine"


@dataclass(frozen=True, slots=True)
class Observation:
    """One successful scrape.

    `source` names the counters the hits come from: another source is another baseline. `started` is the
    process's start, seconds since 1970, where it is told. `doubts` say why a value misleads and make the
    reading unreliable, `notes` what is not known; `missing` explains an observation without engines.
    """

    engines: tuple[EngineReading, ...]
    source: str = ""
    started: float | None = None
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Counters:
    """An engine's counters as last seen."""

    tokens: tuple[float, float] | None
    """(hits, queries)"""
    preemptions: float | None


class Aggregator:
    """Keeps what a `Reading` needs from the scrapes before: counters, epoch, the last gauges."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counters] = {}
        self._source = ""
        self._started: float | None = None
        self._by_turns = False
        self._epoch = 0
        self._last: Reading | None = None

    def observed(self, now: float, seen: Observation) -> Reading:
        """The reading of a scrape that succeeded at `now`."""
        engines, doubts = _checked(seen.engines)
        before, after = self._counters, {engine.engine: _counters(engine) for engine in engines}
        if not engines:
            self._epoch += bool(before)
            self._counters, self._started, self._last = {}, None, None
            return Reading(now, Quality.ABSENT, self._epoch, reason=seen.missing)
        self._by_turns = self._by_turns or _earlier(seen.started, self._started)
        if self._by_turns:
            before, doubts = {}, [_BY_TURNS, *doubts]
        elif self._has_restarted(seen, after):
            self._epoch += 1
            before = {}
        elif seen.source and self._source and seen.source != self._source:
            before = {name: replace(counters, tokens=None) for name, counters in before.items()}
        self._counters = {name: _merged(before.get(name), counters) for name, counters in after.items()}
        self._source, self._started = seen.source or self._source, seen.started
        reasons = (*seen.doubts, *doubts)
        self._last = _aggregate(
            Reading(
                now,
                Quality.UNRELIABLE if reasons else Quality.OK,
                self._epoch,
                engines=engines,
                reason="; ".join((*reasons, *seen.notes)),
            ),
            before,
            after,
        )
        return self._last

    def failed(self, now: float, reason: str) -> Reading:
        """The reading of a scrape that failed at `now`."""
        if self._last is None:
            return Reading(now, Quality.ABSENT, self._epoch, reason=reason)
        return replace(
            self._last,
            at=now,
            quality=Quality.STALE,
            hit_tokens_delta=None,
            query_tokens_delta=None,
            preemptions_delta=None,
            reason=f"{reason} (last answer {now - self._last.at:.0f} s ago)",
        )

    def _has_restarted(self, seen: Observation, after: dict[str, _Counters]) -> bool:
        if self._started is not None and seen.started is not None and self._started != seen.started:
            return True
        same_source = seen.source == self._source
        return any(
            name not in after or _went_down(before, after[name], same_source)
            for name, before in self._counters.items()
        )


def _checked(engines: Iterable[EngineReading]) -> tuple[tuple[EngineReading, ...], list[str]]:
    """The engines with believable gauges only, and what was not believed."""
    checked, doubts = [], []
    for engine in engines:
        usage = engine.usage
        if engine.running == 0 and engine.waiting == 0:
            usage = 0.0
        elif usage is not None and -_ROUNDING <= usage <= 1 + _ROUNDING:
            usage = min(1.0, max(0.0, usage))
        elif usage is not None:
            doubts.append(f"engine {engine.engine} says its usage is {usage:g}, outside [0, 1]")
            usage = None
        checked.append(replace(engine, usage=usage))
    return tuple(checked), doubts


def _counters(engine: EngineReading) -> _Counters:
    hits, queries = engine.hit_tokens, engine.query_tokens
    return _Counters(None if hits is None or queries is None else (hits, queries), engine.preemptions)


def _merged(before: _Counters | None, after: _Counters) -> _Counters:
    """What is missing from this scrape keeps its older baseline."""
    if before is None:
        return after
    return _Counters(
        before.tokens if after.tokens is None else after.tokens,
        before.preemptions if after.preemptions is None else after.preemptions,
    )


def _went_down(before: _Counters, after: _Counters, same_source: bool) -> bool:
    pairs = [(before.preemptions, after.preemptions)]
    if same_source and before.tokens and after.tokens:
        pairs += zip(before.tokens, after.tokens, strict=True)
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _aggregate(reading: Reading, before: dict[str, _Counters], after: dict[str, _Counters]) -> Reading:
    pairs = [(before[name], counters) for name, counters in after.items() if name in before]
    tokens = [(old.tokens, new.tokens) for old, new in pairs if old.tokens and new.tokens]
    preemptions = [
        new.preemptions - old.preemptions
        for old, new in pairs
        if old.preemptions is not None and new.preemptions is not None
    ]
    engines = reading.engines
    return replace(
        reading,
        usage=_known((e.usage for e in engines), max),
        hit_tokens_delta=sum(new[0] - old[0] for old, new in tokens) if tokens else None,
        query_tokens_delta=sum(new[1] - old[1] for old, new in tokens) if tokens else None,
        preemptions_delta=sum(preemptions) if preemptions else None,
        running=_known((e.running for e in engines), sum),
        waiting=_known((e.waiting for e in engines), sum),
        # Part of the capacity would look like congestion: all of it or nothing.
        capacity_tokens=_all((e.capacity_tokens for e in engines), sum),
        block_size=_known((e.block_size for e in engines), max),
    )


def _known(values: Iterable[_Number | None], combine: Callable[[list[_Number]], _Number]) -> _Number | None:
    numbers = [value for value in values if value is not None]
    return combine(numbers) if numbers else None


def _all(values: Iterable[_Number | None], combine: Callable[[list[_Number]], _Number]) -> _Number | None:
    numbers = list(values)
    return None if None in numbers else _known(numbers, combine)


def _earlier(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one < other
