"""What goes into the engine and what comes out: requests, results, iterations, statistics. Data only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concur_agents.simulator.blocks import BlockKeys, Lease


@dataclass(frozen=True, slots=True)
class Request:
    """One generation call.

    `prompt_tokens` >= 1 and `max_tokens` >= 1; exactly `max_tokens` are generated (as with vLLM's
    `ignore_eos`). `keys` name the blocks of prompt and output together; see `BlockKeys`.
    """

    request_id: str
    prompt_tokens: int
    max_tokens: int
    keys: BlockKeys


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that ended, with the times (seconds on the caller's clock) a client would see.

    `cached_tokens` is what the prefix cache gave when the request was first scheduled.
    """

    request: Request
    cached_tokens: int
    preemptions: int
    arrived_at: float
    scheduled_at: float
    first_token_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """What `Engine.step` did: one iteration, or several alike of pure decode."""

    started_at: float
    ended_at: float
    iterations: int
    prompt_tokens: int
    """Prompt tokens computed, recomputation included."""
    generated_tokens: int
    first_tokens: tuple[Request, ...]
    """Requests whose first token came out."""
    finished: tuple[Finished, ...]

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.ended_at - self.started_at


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What vLLM exports, as of the end of an iteration. Counters are cumulative, in tokens."""

    usage: float = 0.0
    running: int = 0
    waiting: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of requests whose first token came out."""
    cached_tokens: int = 0
    """Those of them that came from the prefix cache."""
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0
    iterations: int = 0
    epoch: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens computed, recomputation after preemptions excluded (as vLLM counts)."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True)
class Sequence:
    """A request inside the engine."""

    request: Request
    arrived_at: float
    order: int = 0
    lease: Lease | None = None
    computed: int = 0
    """Tokens with KV at the end of prefill, or so far while the prompt is computed in chunks."""
    target: int = 0
    """Tokens to compute before the next token can be sampled: prompt, and output made before a preemption."""
    generated: int = 0
    """Output tokens before the current residence."""
    prefilled_in: int = -1
    """Number of the iteration that completed the prompt; -1 while it is incomplete."""
    cached_tokens: int | None = None
    preemptions: int = 0
    scheduled_at: float = 0.0
    first_token_at: float = math.nan


@dataclass(slots=True)
class Counters:
    """What the engine counts; see `EngineStats`."""

    query_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0

    def snapshot(self, usage: float, running: int, waiting: int, iterations: int, epoch: int) -> EngineStats:
        """The counters and the given gauges as `EngineStats`."""
        return EngineStats(
            usage,
            running,
            waiting,
            self.query_tokens,
            self.hit_tokens,
            self.prompt_tokens,
            self.cached_tokens,
            self.generation_tokens,
            self.preemptions,
            self.finished,
            self.aborted,
            iterations,
            epoch,
        )
