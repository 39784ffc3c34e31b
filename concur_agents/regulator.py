"""The control loop without the loop: admission, ledger and policy, fed with readings and the time.

`tick` turns one reading of the engine and the ledger's own sums into `Signals`, asks the policy, and
puts its window in force. The asyncio controller, the virtual-time simulator and every other shell run
this same code; none of them decides anything itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from concur_agents.admission import Admission
from concur_agents.errors import InvalidValueError, check_range
from concur_agents.events import Event, PolicyFailed, TelemetryChanged, Tick, Ticket
from concur_agents.ledger import Ledger, Revisits
from concur_agents.lifecycle import Outcome, Usage
from concur_agents.policies.base import Policy
from concur_agents.selection import Selection
from concur_agents.signals import Quality, Reading, Signals, Window


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is going on, for eyes. Counts are agents, tokens are KV tokens, rates are in [0, 1]."""

    window: Window
    active: int
    generating: int
    paused: int
    waiting: int
    open: int
    admitted: int
    inside: int
    completed: int
    failed: int
    cancelled: int
    demand_tokens: int
    capacity_tokens: int | None
    usage: float | None
    hit_rate: float | None
    """H_t on revisits as last seen by the policy."""
    revisits: Revisits
    """All revisits so far."""
    shared_prefix_tokens: int
    """What all contexts start with, as far as seen."""
    quality: Quality | None
    reason: str


class Regulator:
    """Admission under a policy.

    Args:
        policy: The control law.
        capacity_tokens: KV cache in tokens, >= 1, when telemetry cannot say; telemetry's word wins.
        block_size: KV block in tokens, >= 1; telemetry's word wins.
        max_wait_seconds: > 0; a waiter older than this goes before others, whatever their priority.
        stale_after_seconds: > 0; telemetry silent for longer freezes growth (shrinking goes on).
        grace_seconds: >= 0; how long an agent may sit at a boundary before somebody who waits may have its
            place, where the policy's window does not say; None: for ever.
        selection: Whom a shrink pauses and who comes back first.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        capacity_tokens: int | None = None,
        block_size: int = 16,
        max_wait_seconds: float = 1800.0,
        stale_after_seconds: float = 10.0,
        grace_seconds: float | None = None,
        selection: Selection | None = None,
    ) -> None:
        check_range("stale_after_seconds", stale_after_seconds, 0, open_low=True)
        if grace_seconds is not None:
            check_range("grace_seconds", grace_seconds, 0)
        window = policy.initial()
        if not isinstance(window, Window):
            msg = f"policy.initial() answered {window!r}, expected a Window"
            raise InvalidValueError(msg)
        self.policy = policy
        self._grace = grace_seconds
        self.ledger = Ledger(block_size=block_size, capacity_tokens=capacity_tokens)
        self.admission = Admission(
            self._with_grace(window),
            ledger=self.ledger,
            selection=selection,
            max_wait_seconds=max_wait_seconds,
        )
        self.stale_after_seconds = stale_after_seconds
        self._signals: Signals | None = None
        self._quality: Quality | None = None
        self._reason = ""
        self._epoch = 0
        self._heard_at: float | None = None
        self._policy_errors: set[type[Exception]] = set()
        # The machine's own verbs: a shell calls them here and forgets where they live.
        self.open = self.admission.open
        self.abandon = self.admission.abandon
        self.pause = self.admission.pause
        self.resume = self.admission.resume
        self.give_back = self.admission.give_back

    def request(self, agent_id: str, now: float) -> tuple[Ticket, list[Event]]:
        """See `Admission.request`."""
        return self.admission.request(agent_id, now)

    def end(self, ticket: Ticket, now: float, usage: Usage | None = None) -> list[Event]:
        """See `Admission.end`."""
        return self.admission.end(ticket, now, usage)

    def finish(
        self, agent_id: str, now: float, outcome: Outcome = Outcome.COMPLETED, serial: int | None = None
    ) -> list[Event]:
        """See `Admission.finish`."""
        return self.admission.finish(agent_id, now, outcome, serial)

    def tick(self, reading: Reading | None, now: float) -> list[Event]:
        """Ask the policy once. `reading` is None where no telemetry is configured."""
        events: list[Event] = []
        if reading is not None:
            self._take_in(reading, now, events)
        signals = self._signals = self._sense(reading, now)
        window = self._ask(signals, events)
        events += self.admission.set_window(window, now)
        events += self.admission.advance(now)
        events.append(Tick(now, signals, window))
        return events

    def snapshot(self) -> Snapshot:
        """The state now."""
        admission, census, seen = self.admission, self.admission.census, self._signals
        return Snapshot(
            window=admission.window,
            active=admission.active,
            generating=admission.generating,
            paused=admission.paused,
            waiting=admission.waiting,
            open=census.open_agents,
            admitted=census.admitted,
            inside=census.inside,
            completed=census.ended[Outcome.COMPLETED],
            failed=census.ended[Outcome.FAILED],
            cancelled=census.ended[Outcome.CANCELLED],
            demand_tokens=admission.demand_tokens,
            capacity_tokens=self.ledger.capacity_tokens,
            usage=seen.usage if seen else None,
            hit_rate=seen.hit_rate if seen else None,
            revisits=self.ledger.total,
            shared_prefix_tokens=self.ledger.shared_prefix_tokens,
            quality=self._quality,
            reason=self._reason,
        )

    def _take_in(self, reading: Reading, now: float, events: list[Event]) -> None:
        """Learn what the engine says about itself."""
        if reading.quality is not self._quality:
            events.append(TelemetryChanged(now, self._quality, reading.quality, reading.reason))
        self._quality, self._reason = reading.quality, reading.reason
        if self._heard_at is None or reading.quality in (Quality.OK, Quality.UNRELIABLE):
            self._heard_at = now
        if reading.capacity_tokens is not None:
            self.ledger.capacity_tokens = reading.capacity_tokens
        if reading.block_size is not None:
            self.admission.set_block_size(reading.block_size, now)
        if reading.epoch != self._epoch:
            self._epoch = reading.epoch
            self.admission.cooled()

    def _sense(self, reading: Reading | None, now: float) -> Signals:
        """Everything the policy may look at."""
        admission, capacity = self.admission, self.ledger.capacity_tokens
        current = reading is not None and reading.quality in (Quality.OK, Quality.UNRELIABLE)
        # A gauge from before an outage says nothing about now; demand over capacity still does.
        demand, gauge = admission.demand_tokens, reading.usage if reading and current else None
        known = [u for u in (gauge, demand / capacity if capacity else None) if u is not None]
        hits = reading.hit_tokens_delta if reading and reading.quality is Quality.OK else None
        heard = self._heard_at
        return Signals(
            at=now,
            window=admission.window,
            quality=reading.quality if reading else Quality.ABSENT,
            usage=max(known, default=None),
            hit_rate=self.ledger.take_hit_rate(hits),
            engine_usage=gauge,
            engine_hit_rate=reading.hit_rate if reading else None,
            demand_tokens=demand,
            capacity_tokens=capacity,
            growth_tokens=self.ledger.growth_tokens,
            residency_tokens=self.ledger.residency_tokens,
            ended=self.ledger.ended,
            load=admission.timing.load,
            recompute_tokens=admission.timing.recompute_tokens,
            active=admission.active,
            waiting=admission.waiting,
            paused=admission.paused,
            preemptions_delta=reading.preemptions_delta if reading else None,
            frozen=heard is not None and now - heard > self.stale_after_seconds,
        )

    def _ask(self, signals: Signals, events: list[Event]) -> Window:
        """The policy's answer, or the window in force when it fails: a bad law must not lose an agent."""
        try:
            window = self.policy.update(signals)
            if not isinstance(window, Window):
                msg = f"answered {window!r}, expected a Window"
                raise TypeError(msg)
        except Exception as error:
            if type(error) not in self._policy_errors:
                name = getattr(self.policy, "name", "?")
                text = f"policy {name} failed: {error!r}; the window stays as it is (said once)"
                events.append(PolicyFailed(signals.at, text))
                self._policy_errors.add(type(error))
            return self.admission.window
        return self._with_grace(window)

    def _with_grace(self, window: Window) -> Window:
        if self._grace is None or window.grace_seconds is not None:
            return window
        return replace(window, grace_seconds=self._grace)
