"""How much KV cache the agents need, and how much of what was theirs they found again.

An engine's own gauges cannot say either: idle agents' blocks read as free, and its hit rate mixes
first prompts (which no control can avoid) with revisits. The ledger adds both up from the usage of
each finished call.

It decides nothing; `admission` asks it for the demand of a set of agents, `regulator` for the hit
rate that a policy may act on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from concur_agents.errors import check_whole
from concur_agents.estimators import Mean
from concur_agents.lifecycle import Agent, Context, Usage

_SIGNAL_FRACTION = 0.02
"""A hit rate is formed once the revisited tokens reach this part of the capacity (on a small cache that is
one context, and one context counts there) ..."""
_SIGNAL_CALLS = 4
"""... or once so many calls have revisited theirs: on a large cache 2 % would be silent for too long, and
fewer calls would let one unlucky one speak for everyone."""

_FIRST_PROMPTS = 32
"""New agents remembered for the shared prefix: more than usual groups with one prompt have members."""
_FIRST_PROMPTS_MIN = 2
"""One agent's hits may be its own from an earlier run."""


@dataclass(slots=True)
class Load:
    """KV blocks of a set of agents, and how many of their contexts start with the shared prefix."""

    blocks: int = 0
    shared_contexts: int = 0
    agents: int = 0
    unknown: int = 0
    """Agents whose first answer is not there yet, so that their length is not known."""

    def add(self, agent: Agent, sign: int = 1) -> None:
        """Count `agent` in (or out, with `sign=-1`)."""
        self.blocks += sign * agent.blocks
        self.shared_contexts += sign * agent.shared_contexts
        self.agents += sign
        self.unknown += sign * (not agent.blocks)


@dataclass(frozen=True, slots=True)
class Revisits:
    """Tokens that were in an agent's own context before, and how many of them were still cached.

    Both count whole blocks: a context of n tokens can at best be found up to its last full block, so
    a context that stayed resident reads exactly 1.0 (vLLM: hits land on block boundaries).
    """

    hit_tokens: int = 0
    tokens: int = 0

    @property
    def rate(self) -> float | None:
        """Hit rate in [0, 1], None when nothing was revisited."""
        return self.hit_tokens / self.tokens if self.tokens else None

    def plus(self, other: Revisits) -> Revisits:
        """The two together."""
        return Revisits(self.hit_tokens + other.hit_tokens, self.tokens + other.tokens)


class Ledger:
    """Context lengths, demand, shared prefix and revisit hits of every open agent.

    Args:
        block_size: KV block in tokens, >= 1 (vLLM: 16 on GPUs, 128 on CPUs).
        capacity_tokens: KV cache of all engines in tokens, >= 1; None while unknown.
    """

    def __init__(self, *, block_size: int = 16, capacity_tokens: int | None = None) -> None:
        check_whole("block_size", block_size, 1)
        if capacity_tokens is not None:
            check_whole("capacity_tokens", capacity_tokens, 1)
        self.block_size = block_size
        self.capacity_tokens = capacity_tokens
        self.shared_prefix_tokens = 0
        self._first_growth = Mean()
        self._growth = Mean()
        self._residency = Mean()
        self._first_prompts: deque[int] = deque(maxlen=_FIRST_PROMPTS)
        self.total = Revisits()
        """All revisits so far, for reports."""
        self._pending = Revisits()
        self._pending_calls = 0
        self._per_call = False
        """Whether the engine reports cached tokens with each call."""
        self._counted = False
        """Whether its counters have been seen."""

    def blocks(self, tokens: int) -> int:
        """Blocks that `tokens` tokens occupy, rounded up."""
        return -(-tokens // self.block_size)

    def demand(self, load: Load, *, less: Load | None = None, plus: Agent | None = None) -> int:
        """KV tokens that `load`, without `less` and with `plus`, needs resident.

        The shared prefix counts once.
        """
        blocks, shared = load.blocks, load.shared_contexts
        if less is not None:
            blocks, shared = blocks - less.blocks, shared - less.shared_contexts
        if plus is not None:
            blocks, shared = blocks + plus.blocks, shared + plus.shared_contexts
        prefix = self.shared_prefix_tokens // self.block_size * max(0, shared - 1)
        return max(0, blocks - prefix) * self.block_size

    @property
    def growth_tokens(self) -> float | None:
        """Mean tokens that a step adds to a context. Before second steps were seen: that first ones did."""
        if self._growth:
            return self._growth.value
        return self._first_growth.value if self._first_growth else None

    @property
    def residency_tokens(self) -> float | None:
        """What a trajectory takes of the cache, summed up over its own steps, in tokens x rounds.

        Its sub-agents' contexts count, the prefix that all share does not. The mean of those that have
        ended; None before the first.
        """
        return self._residency.value if self._residency else None

    @property
    def ended(self) -> int:
        """Trajectories that this mean stands for."""
        return self._residency.count

    def ahead(
        self, load: Load, steps: float, *, less: Load | None = None, plus: Agent | None = None
    ) -> float:
        """Tokens that the agents of `load` are about to append in `steps` steps each.

        First steps whose answers are not there yet are added, whatever `steps` is.
        """
        agents = load.agents - (less.agents if less else 0) + (plus is not None)
        unknown = load.unknown - (less.unknown if less else 0) + (plus is not None and not plus.blocks)
        first = max(0.0, self._first_growth.value - self.shared_prefix_tokens)
        return unknown * first + steps * agents * (self.growth_tokens or 0.0)

    def set_block_size(self, block_size: int, agents: Iterable[Agent]) -> None:
        """Count `agents` anew in blocks of another size."""
        check_whole("block_size", block_size, 1)
        self.block_size = block_size
        for agent in agents:
            agent.blocks = sum(self.blocks(context.tokens) for context in agent.contexts.values())

    def open(self, agent: Agent, context: Context, tokens: int = 0) -> None:
        """Start a context, of a known length when a trajectory is resumed from a checkpoint."""
        context.tokens = tokens
        agent.contexts[context.context_id] = context
        agent.blocks += self.blocks(tokens)

    def close(self, agent: Agent, context: Context) -> None:
        """Forget a context."""
        del agent.contexts[context.context_id]
        agent.blocks -= self.blocks(context.tokens)
        agent.shared_contexts -= context.shared
        if context.parent is None and agent.calls:
            self._residency.add(agent.held_tokens / agent.calls * agent.steps)

    def record(self, agent: Agent, context: Context, usage: Usage) -> None:
        """Take in one finished call of `context`."""
        self._record_hits(context, usage)
        self._mark_shared(agent, context, usage)
        self._see_growth(context, usage)
        agent.blocks += self.blocks(usage.context_tokens) - self.blocks(context.tokens)
        context.tokens = usage.context_tokens
        context.calls += 1
        agent.calls += 1
        agent.steps += context.parent is None
        agent.held_tokens += max(
            0, agent.blocks * self.block_size - agent.shared_contexts * self.shared_prefix_tokens
        )
        context.warm = True

    def cooled(self, agent: Agent) -> None:
        """`agent` was paused: its blocks may go, and finding them gone is no sign of congestion."""
        for context in agent.contexts.values():
            context.warm = False

    def _record_hits(self, context: Context, usage: Usage) -> None:
        self._per_call = self._per_call or usage.cached_tokens is not None
        # A prompt shorter than the context before was compacted or edited: its misses are compulsory too.
        grew = usage.prompt_tokens >= context.tokens and not usage.rewritten
        kept = context.tokens if context.calls and grew else 0
        # The last token's KV is never cached before the next call (vLLM kv_cache_manager: num_tokens - 1).
        tokens = max(0, kept - 1) // self.block_size * self.block_size
        if not tokens:
            return
        if usage.cached_tokens is None:
            seen = Revisits(0, tokens)
        else:
            seen = Revisits(min(usage.cached_tokens, tokens), tokens)
            self.total = self.total.plus(seen)
        if context.warm and (usage.cached_tokens is not None or not self._per_call):
            self._pending = self._pending.plus(seen)
            self._pending_calls += 1

    def _see_growth(self, context: Context, usage: Usage) -> None:
        grown = usage.context_tokens - context.tokens
        if grown > 0 and not usage.rewritten:
            (self._growth if context.tokens else self._first_growth).add(grown)

    def _mark_shared(self, agent: Agent, context: Context, usage: Usage) -> None:
        if context.calls == 0 and context.parent is None and not context.tokens:
            self._see_first_prompt(usage.cached_tokens)
        shared = 0 < self.shared_prefix_tokens <= usage.prompt_tokens
        agent.shared_contexts += shared - context.shared
        context.shared = shared

    def _see_first_prompt(self, cached_tokens: int | None) -> None:
        """What a new agent found cached is what it shares with all, if all find that much.

        The smallest of the last ones counts, misses included: groups of agents with the same prompt must
        not pass for all agents, and overstating what is shared would understate the demand. Only before the
        first hit are misses no evidence: a starting batch finds nothing because nobody was there before.
        """
        if cached_tokens is None or (not cached_tokens and not self._first_prompts):
            return
        self._first_prompts.append(cached_tokens)
        if len(self._first_prompts) >= _FIRST_PROMPTS_MIN:
            self.shared_prefix_tokens = min(self._first_prompts)

    def take_hit_rate(self, hit_tokens: float | None) -> float | None:
        """H_t on revisits since the last answer that was not None; None while there are too few.

        Uses the calls' own cached tokens when the engine reports them. Else it takes `hit_tokens`, the
        engine's own count since the previous tick, over the revisited tokens of the calls that ended
        meanwhile. That reads high: the engine counts when a call starts and the ledger when it ends, and new
        agents' hits on a shared prefix count too. So let the engine report cached tokens where it can.
        """
        enough = _SIGNAL_FRACTION * self.capacity_tokens if self.capacity_tokens else math.inf
        if not self._per_call and hit_tokens is not None:
            self._counted = True
            self._pending = self._pending.plus(Revisits(int(hit_tokens), 0))
        speaks = self._per_call or self._counted
        if not speaks or (self._pending.tokens < enough and self._pending_calls < _SIGNAL_CALLS):
            return None
        rate, self._pending, self._pending_calls = self._pending.rate, Revisits(), 0
        return None if rate is None else min(1.0, rate)

    def flushed(self) -> None:
        """The engine's cache was emptied (restart, weight sync): nothing that follows is congestion."""
        self._pending = Revisits()
        self._pending_calls = 0
        self.shared_prefix_tokens = 0
        self._first_prompts.clear()
