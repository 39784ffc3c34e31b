"""How long one engine iteration takes, and what fits in memory.

An iteration computes prompt tokens of some requests and one token of every decoding request. Its duration is
modelled as a sum, each term of which is a resource a real engine spends:

    overhead                                 scheduling, launches, reading the weights
    + token     x prompt tokens computed     the linear layers
    + attention x sum(new token x context)   causal attention of the prompt tokens
    + sequence  x decoding requests          the linear layers and bookkeeping of decode
    + kv_read   x sum(their contexts)        decode reads every cached token's KV once
    + mixed     x decoding requests          only if prompt tokens are computed in the same iteration
    + experts   x (1 - expert_skip^tokens)   reading the routed experts that any of its tokens is sent to

The quadratic term is what makes a recomputed long context dear. `profiles.py` has the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from concur_agents.errors import InvalidValueError, check_range


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per unit of work; see the module's formula. All >= 0, `overhead` > 0."""

    overhead: float
    token: float
    attention: float
    sequence: float
    kv_read: float
    mixed: float = 0.0
    experts: float = 0.0
    expert_skip: float = 1.0
    """Chance that a token is not sent to a given expert, in [0, 1]."""

    def __post_init__(self) -> None:
        for item in fields(self):
            check_range(f"costs.{item.name}", getattr(self, item.name), 0, open_low=item.name == "overhead")
        check_range("costs.expert_skip", self.expert_skip, 0, 1)

    def iteration(self, tokens: int, pairs: float, decoding: int, context: int) -> float:
        """Duration in seconds.

        Args:
            tokens: Prompt tokens computed.
            pairs: Sum over these of the context each attends to (see `causal_pairs`).
            decoding: Requests that decode one token.
            context: Sum of their context lengths in tokens.
        """
        decode = self.sequence * decoding + self.kv_read * context
        if self.experts:
            decode += self.experts * (1.0 - self.expert_skip ** (tokens + decoding))
        if not tokens:
            return self.overhead + decode
        return self.overhead + self.token * tokens + self.attention * pairs + decode + self.mixed * decoding


def causal_pairs(start: int, stop: int) -> float:
    """Token pairs that causal attention looks at when tokens [start, stop) of a sequence are computed."""
    return (stop - start) * (start + stop + 1) / 2


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine as started: model, memory and scheduler settings.

    `num_blocks` counts vLLM's null block. Defaults of the scheduler are vLLM's for the device in question.
    """

    name: str
    model: str
    costs: CostModel
    block_size: int
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    source: str = ""

    def __post_init__(self) -> None:
        check_range("block_size", self.block_size, 1)
        check_range("num_blocks", self.num_blocks, 2)
        check_range("max_num_seqs", self.max_num_seqs, 1)
        check_range("max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs)
        check_range("max_model_len", self.max_model_len, 2)
        if self.max_model_len > (self.num_blocks - 1) * self.block_size:
            msg = (
                f"max_model_len={self.max_model_len} does not fit into the KV cache: "
                f"{self.num_blocks - 1} usable blocks of {self.block_size} tokens; "
                "give the engine more KV tokens or lower max_model_len"
            )
            raise InvalidValueError(msg)

    @property
    def kv_tokens(self) -> int:
        """KV capacity in tokens as vLLM reports it (`kv_cache_size_tokens`), null block included."""
        return self.num_blocks * self.block_size

    def with_kv_tokens(self, kv_tokens: int) -> Profile:
        """The same engine with a KV cache of `kv_tokens`, rounded down to whole blocks (at least 2).

        `max_model_len` is lowered when a full-length request would no longer fit.
        """
        check_range("kv_tokens", kv_tokens, 2 * self.block_size)
        num_blocks = int(kv_tokens) // self.block_size
        longest = min(self.max_model_len, (num_blocks - 1) * self.block_size)
        return replace(self, num_blocks=num_blocks, max_model_len=longest)
