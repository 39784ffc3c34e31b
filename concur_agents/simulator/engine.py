"""The engine without I/O: continuous batching with chunked prefill on a paged, prefix-cached KV pool.

The scheduler is vLLM v1's with its defaults (`vllm/v1/core/sched/scheduler.py`, FCFS):

* an iteration has a token budget; running requests come first, each decoding one token or continuing its
  prompt, then waiting requests in order of arrival for as long as budget, sequence slots and blocks last;
* a request is admitted only if its whole input fits (`scheduler_reserve_full_isl`);
* if a running request finds no block, the newest running request is preempted: it loses its blocks and
  comes back at the head of the queue to be computed again; no one is admitted in such an iteration;
* hits and queries are counted once per request, when it is first scheduled; recomputation after a
  preemption is not counted.

`Engine` decides what happens and how long it takes; `virtual.py` and `server.py` let the time pass.
Costs are per event, not per token: a decoding request is touched when it starts, fills a block or ends.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from concur_agents.errors import InvalidValueError, check_range
from concur_agents.simulator.blocks import BlockPool
from concur_agents.simulator.costs import causal_pairs
from concur_agents.simulator.records import (
    Counters,
    EngineStats,
    Finished,
    Iteration,
    Request,
    Sequence,
)

if TYPE_CHECKING:
    from concur_agents.simulator.costs import Profile

__all__ = ["Engine", "EngineStats", "Finished", "Iteration", "Request"]


@dataclass(slots=True)
class _Work:
    """One iteration under construction."""

    budget: int
    tokens: int = 0
    pairs: float = 0.0
    prefilled: list[Sequence] = field(default_factory=list)
    admitted: bool = False
    preempted: bool = False


class Engine:
    """One simulated engine. Deterministic; not thread-safe.

    Args:
        profile: Sizes and costs.
        leap: Merge iterations of pure decode into one `step` where the outcome is the same.
        epoch: How many engines came before this one: a restarted engine is a new `Engine`.
    """

    def __init__(self, profile: Profile, *, leap: bool = True, epoch: int = 0) -> None:
        self.profile = profile
        self.epoch = epoch
        self.pool = BlockPool(profile.num_blocks)
        self._leap = leap
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._running: OrderedDict[str, Sequence] = OrderedDict()
        self._partial: Sequence | None = None  # the one whose prompt is half computed: always the newest
        self._decode_context = 0
        self._iteration = 0
        self._order = 0
        self._ends: list[tuple[int, int, Sequence]] = []
        self._fills: list[tuple[int, int, Sequence]] = []
        self._counters = Counters()
        self.stats = EngineStats(epoch=epoch)
        """As of the last iteration's end, like the gauges of vLLM."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._running or self._waiting)

    def submit(self, request: Request, now: float) -> None:
        """Queue a request at `now` (seconds).

        Raises:
            InvalidValueError: It is empty, too long for the model, or its id is in use.
        """
        check_range("prompt_tokens", request.prompt_tokens, 1)
        check_range("max_tokens", request.max_tokens, 1)
        longest = self.profile.max_model_len
        if request.prompt_tokens + request.max_tokens > longest:
            msg = (
                f"prompt_tokens={request.prompt_tokens} plus max_tokens={request.max_tokens} exceed the "
                f"model's context of {longest} tokens: shorten the prompt or lower max_tokens"
            )
            raise InvalidValueError(msg)
        if request.request_id in self._waiting or request.request_id in self._running:
            msg = f"request_id={request.request_id!r} is already in the engine: ids must be unique"
            raise InvalidValueError(msg)
        self._waiting[request.request_id] = Sequence(request, now, target=request.prompt_tokens)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks; False if it is not here (any more)."""
        sequence = self._waiting.pop(request_id, None)
        if sequence is None:
            sequence = self._running.pop(request_id, None)
            if sequence is None:
                return False
            self._leave(sequence)
        self._counters.aborted += 1
        if not self.has_work:
            self.refresh_stats()
        return True

    def generated(self, request_id: str) -> int:
        """Output tokens of a request in the engine so far, the current iteration's included."""
        sequence = self._running.get(request_id) or self._waiting.get(request_id)
        if sequence is None:
            return 0
        since = self._iteration - sequence.prefilled_in + 1 if sequence.prefilled_in >= 0 else 0
        return sequence.generated + since

    def reset_prefix_cache(self) -> bool:
        """Forget cached content; False, and nothing happens, while requests hold blocks. Counters go on."""
        return self.pool.reset()

    def step(self, now: float, horizon: float = math.inf) -> Iteration | None:
        """Run one iteration that starts at `now`; None if there is nothing to do.

        The effects are those at its end, `Iteration.ended_at`: what finished has left, `stats` are new.
        Iterations of pure decode after the first are run too if they start before `horizon`, the next
        moment at which something may be submitted or aborted; pass `now` to get exactly one.
        """
        if not self.has_work:
            return None
        self._iteration += 1
        first = self._iteration
        work = _Work(self.profile.max_num_batched_tokens)
        self._fill_blocks(work)
        decoding = len(self._running) - (self._partial is not None)
        work.budget -= decoding
        self._continue_prompt(work)
        if not work.preempted:
            self._admit(work, now)
        if not self._running:
            msg = "no request can be scheduled: the pool is smaller than max_model_len"
            raise RuntimeError(msg)
        self._decode_context += decoding
        ended = now + self.profile.costs.iteration(work.tokens, work.pairs, decoding, self._decode_context)
        if self._leap and decoding and not (work.tokens or work.admitted or work.preempted):
            ended = self._leap_on(ended, horizon, decoding)
        iterations = self._iteration - first + 1
        generated = decoding * iterations + len(work.prefilled)
        self._counters.generation_tokens += generated
        first_tokens = self._start_decoding(work, ended)
        finished = self._finish(ended)
        self.refresh_stats()
        return Iteration(now, ended, iterations, work.tokens, generated, first_tokens, finished)

    def refresh_stats(self) -> None:
        """Bring `stats` up to date between iterations."""
        self.stats = self._counters.snapshot(
            self.pool.usage, len(self._running), len(self._waiting), self._iteration, self.epoch
        )

    def _leap_on(self, ended: float, horizon: float, decoding: int) -> float:
        """Go on decoding until someone ends or needs a block; returns the new end."""
        last = self._ends[0][0]
        if self._fills:
            last = min(last, self._fills[0][0] - 1)
        duration = self.profile.costs.iteration
        while self._iteration < last and ended < horizon:
            self._iteration += 1
            self._decode_context += decoding
            ended += duration(0, 0.0, decoding, self._decode_context)
        return ended

    def _fill_blocks(self, work: _Work) -> None:
        """Give a block to each decoding request whose last one is full, in running order."""
        block = self.profile.block_size
        while self._fills and self._fills[0][0] <= self._iteration:
            due, order, sequence = heapq.heappop(self._fills)
            if sequence.order != order or sequence.prefilled_in < 0:
                continue
            full = (sequence.target + due - sequence.prefilled_in - 1) // block
            if self._hold(sequence, full, 1, work):
                heapq.heappush(self._fills, (due + block, order, sequence))

    def _continue_prompt(self, work: _Work) -> None:
        sequence = self._partial
        if sequence is None:
            return
        chunk = min(sequence.target - sequence.computed, work.budget)
        total = sequence.computed + chunk
        block = self.profile.block_size
        if self._hold(sequence, total // block, int(total % block > 0), work):
            self._compute(sequence, chunk, work)

    def _admit(self, work: _Work, now: float) -> None:
        block = self.profile.block_size
        while self._waiting and work.budget and len(self._running) < self.profile.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            keys, target = sequence.request.keys, sequence.target
            # vLLM always computes the last token anew, to have something to sample from.
            hits, hits_free = self.pool.lookup(keys, (target - 1) // block)
            if -(-target // block) - hits > self.pool.free - hits_free:
                return
            lease = self.pool.acquire(keys, hits)
            cached = hits * block
            chunk = min(target - cached, work.budget)
            total = cached + chunk
            sequence.lease, sequence.computed = lease, cached
            self.pool.extend(lease, total // block, int(total % block > 0))
            self._waiting.popitem(last=False)
            self._running[sequence.request.request_id] = sequence
            self._order += 1
            sequence.order = self._order
            if sequence.cached_tokens is None:
                sequence.cached_tokens = cached
                sequence.scheduled_at = now
                self._counters.query_tokens += target
                self._counters.hit_tokens += cached
            work.admitted = True
            self._compute(sequence, chunk, work)

    def _compute(self, sequence: Sequence, chunk: int, work: _Work) -> None:
        work.budget -= chunk
        work.tokens += chunk
        work.pairs += causal_pairs(sequence.computed, sequence.computed + chunk)
        sequence.computed += chunk
        if sequence.computed == sequence.target:
            self._partial = None
            work.prefilled.append(sequence)
        else:
            self._partial = sequence

    def _hold(self, sequence: Sequence, full: int, partial: int, work: _Work) -> bool:
        """Extend a running request's blocks, preempting the newest until it fits; False if it went itself."""
        while True:
            assert sequence.lease is not None
            if self.pool.extend(sequence.lease, full, partial):
                return True
            victim = self._running.popitem()[1]
            self._preempt(victim)
            work.preempted = True
            if victim is sequence:
                return False

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.prefilled_in >= 0:
            # The iteration under way has not produced its token yet.
            sequence.generated += self._iteration - sequence.prefilled_in
        self._leave(sequence, in_iteration=True)
        sequence.target = sequence.request.prompt_tokens + sequence.generated
        sequence.preemptions += 1
        self._counters.preemptions += 1
        self._waiting[sequence.request.request_id] = sequence
        self._waiting.move_to_end(sequence.request.request_id, last=False)

    def _leave(self, sequence: Sequence, *, in_iteration: bool = False) -> None:
        """Free the blocks of a request that has left the running ones."""
        if sequence.prefilled_in >= 0:
            held = self._iteration - in_iteration - sequence.prefilled_in
            self._decode_context -= sequence.target + held
        if sequence is self._partial:
            self._partial = None
        assert sequence.lease is not None
        self.pool.release(sequence.lease)
        sequence.lease, sequence.computed, sequence.prefilled_in, sequence.order = None, 0, -1, 0

    def _start_decoding(self, work: _Work, ended: float) -> tuple[Request, ...]:
        first_tokens = []
        block = self.profile.block_size
        for sequence in work.prefilled:
            request = sequence.request
            sequence.prefilled_in = self._iteration
            self._decode_context += sequence.target
            end = self._iteration + request.max_tokens - sequence.generated - 1
            heapq.heappush(self._ends, (end, sequence.order, sequence))
            fill = self._iteration + 1 + (-sequence.target) % block
            if fill <= end:
                heapq.heappush(self._fills, (fill, sequence.order, sequence))
            if math.isnan(sequence.first_token_at):
                sequence.first_token_at = ended
                first_tokens.append(request)
                self._counters.prompt_tokens += request.prompt_tokens
                self._counters.cached_tokens += sequence.cached_tokens or 0
        return tuple(first_tokens)

    def _finish(self, ended: float) -> tuple[Finished, ...]:
        finished = []
        block = self.profile.block_size
        while self._ends and self._ends[0][0] <= self._iteration:
            _, order, sequence = heapq.heappop(self._ends)
            if sequence.order != order:
                continue
            request = sequence.request
            del self._running[request.request_id]
            # vLLM 0.32 schedules one step ahead, so the last token is computed too: a block that it fills
            # is hit by the next prompt (measured; see tests/simulator/test_fidelity.py).
            total = request.prompt_tokens + request.max_tokens
            assert sequence.lease is not None
            full = min(total // block, sequence.lease.blocks)
            self.pool.extend(sequence.lease, full, sequence.lease.blocks - full)
            self._leave(sequence)
            self._counters.finished += 1
            finished.append(
                Finished(
                    request,
                    sequence.cached_tokens or 0,
                    sequence.preemptions,
                    sequence.arrived_at,
                    sequence.scheduled_at,
                    sequence.first_token_at,
                    ended,
                )
            )
        return tuple(finished)
