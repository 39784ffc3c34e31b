"""Demand, shared prefix and revisit hit rate, on traces computed by hand."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from concur_agents.ledger import Ledger, Load
from concur_agents.lifecycle import Agent, Context, Usage


class Book:
    """A ledger and its agents, one context each."""

    def __init__(self, **options) -> None:
        self.ledger = Ledger(**options)
        self.agents: dict[str, tuple[Agent, Context]] = {}

    def call(
        self,
        name: str,
        prompt: int,
        completion: int = 0,
        cached: int | None = None,
        rewritten: bool = False,
    ) -> None:
        if name not in self.agents:
            agent, context = Agent(name), Context(name)
            self.ledger.open(agent, context)
            self.agents[name] = (agent, context)
        self.ledger.record(*self.agents[name], Usage(prompt, completion, cached, rewritten))

    @property
    def demand(self) -> int:
        load = Load()
        for agent, _ in self.agents.values():
            load.add(agent)
        return self.ledger.demand(load)


def test_demand_is_whole_blocks_of_what_each_context_grew_to() -> None:
    book = Book(block_size=128)
    book.call("a", 400, 16)  # 416 -> 4 blocks
    book.call("b", 100)  # 1 block
    assert book.demand == 5 * 128
    book.call("a", 816, 16)  # 832 -> 7 blocks
    assert book.demand == 8 * 128


def test_a_context_that_shrinks_needs_less_and_is_no_congestion() -> None:
    book = Book(block_size=1, capacity_tokens=100)
    book.call("a", 1000, 0, 0)
    book.call("a", 300, 0, 0)  # compacted: all of it computed anew, by nobody's fault
    assert book.demand == 300
    assert book.ledger.take_hit_rate(None) is None


def test_a_rewritten_context_is_no_congestion_even_when_it_is_longer() -> None:
    book = Book(block_size=1, capacity_tokens=100)
    book.call("a", 1000, 0, 0)
    book.call("a", 1200, 0, 0, rewritten=True)  # trimmed in front, more behind: none of it in the cache
    assert book.demand == 1200
    assert book.ledger.take_hit_rate(None) is None
    assert book.ledger.total.rate is None
    book.call("a", 1300, 0, 300)  # what follows continues the new context, and its misses count again
    assert book.ledger.take_hit_rate(None) == 300 / 1199


def test_a_rewritten_call_says_nothing_about_growth() -> None:
    book = Book(block_size=1)
    book.call("a", 100)
    book.call("a", 130)
    book.call("a", 900, rewritten=True)
    assert book.ledger.growth_tokens == 30


def test_the_shared_prefix_counts_once() -> None:
    book = Book(block_size=16)
    book.call("a", 2000, 48, 0)  # cold: nobody was there before
    book.call("b", 2000, 48, 1600)
    book.call("c", 2000, 48, 1600)
    # Two agree, so it is shared; whose prompts were seen before that are counted with their next call.
    assert book.demand == 3 * 2048
    book.call("a", 2100, 12, 2048)
    assert book.demand == 2112 + 2 * 2048 - 1600
    book.call("b", 2048, 0, 2032)
    assert book.demand == 2112 + 2 * 2048 - 2 * 1600


def test_groups_with_one_prompt_each_do_not_pass_for_a_shared_prefix() -> None:
    book = Book(block_size=16)
    for group in range(4):
        book.call(f"{group}-first", 4000, 0, 0)
        book.call(f"{group}-second", 4000, 0, 3984)
    assert book.ledger.shared_prefix_tokens == 0
    assert book.demand == 8 * 4000


def test_a_resumed_trajectory_that_finds_its_own_history_shares_nothing() -> None:
    book = Book(block_size=16)
    for n in range(3):
        agent, context = Agent(f"a{n}"), Context(f"a{n}")
        book.ledger.open(agent, context, 8000)
        book.agents[f"a{n}"] = (agent, context)
        book.call(f"a{n}", 8160, 0, 8000)
    assert book.demand == 3 * 8160


def test_the_smallest_prefix_seen_is_taken_for_the_shared_one() -> None:
    book = Book(block_size=16)
    for name, cached in (("a", 0), ("b", 960), ("c", 320), ("d", 640)):
        book.call(name, 1000, 0, cached)
    assert book.ledger.shared_prefix_tokens == 320


def test_first_prompts_are_compulsory_misses() -> None:
    ledger_book = Book(block_size=1, capacity_tokens=1000)
    for n in range(24):
        ledger_book.call(f"a{n}", 500, 1, 0)
    assert ledger_book.ledger.take_hit_rate(0) is None  # not 0.0


def test_a_context_that_stayed_resident_reads_exactly_one() -> None:
    book = Book(block_size=128, capacity_tokens=1000)
    book.call("a", 400, 16, 0)
    book.call("a", 816, 16, 384)  # 415 computed tokens: 3 full blocks, all found
    assert book.ledger.take_hit_rate(None) == 1.0
    assert book.ledger.take_hit_rate(None) is None  # each token speaks once


def test_revisit_hits_of_a_thrashing_agent() -> None:
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 101, 0, 0)
    book.call("a", 201, 0, 25)
    book.call("a", 301, 0, 125)
    assert book.ledger.take_hit_rate(None) == (25 + 125) / (100 + 200)
    assert book.ledger.total.rate == 0.5


def test_cold_after_a_pause_is_in_the_report_and_not_in_the_signal() -> None:
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 201, 0, 0)
    book.ledger.cooled(book.agents["a"][0])
    book.call("a", 301, 0, 0)
    assert book.ledger.take_hit_rate(None) is None
    assert book.ledger.total.rate == 0.0
    book.call("a", 401, 0, 300)
    assert book.ledger.take_hit_rate(None) == 1.0


def test_few_revisits_are_no_hit_rate_yet() -> None:
    book = Book(block_size=1, capacity_tokens=100_000)  # 2 %: 2,000 tokens
    book.call("a", 1001, 0, 0)
    book.call("a", 1501, 0, 0)
    assert book.ledger.take_hit_rate(None) is None
    book.call("a", 2001, 0, 1500)
    assert book.ledger.take_hit_rate(None) == 1500 / 2500


def test_without_cached_tokens_the_engines_counter_over_the_revisits_speaks() -> None:
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 101)
    assert book.ledger.take_hit_rate(0) is None
    book.call("a", 301)  # 100 tokens revisited; the engine found 60 of them
    assert book.ledger.take_hit_rate(60) == 60 / 100


def test_counters_of_calls_that_have_not_ended_are_no_misses() -> None:
    """A starting batch: the engine has looked up every first prompt before the first answer is out."""
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 101)
    assert book.ledger.take_hit_rate(0) is None
    assert book.ledger.take_hit_rate(0) is None


def test_per_call_cached_tokens_win_from_the_first_answer_on() -> None:
    """The counters must not speak for the ticks between the first answers and the first revisit."""
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 101, 0, 0)
    assert book.ledger.take_hit_rate(30) is None
    book.call("a", 301, 0, 100)
    assert book.ledger.take_hit_rate(0) == 1.0


def test_a_flush_forgets_what_was_shared_and_what_was_pending() -> None:
    book = Book(block_size=1, capacity_tokens=1000)
    book.call("a", 101, 0, 0)
    book.call("b", 101, 0, 50)
    book.call("a", 201, 0, 0)
    book.ledger.flushed()
    assert book.ledger.take_hit_rate(None) is None
    assert book.demand == 201 + 101


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 500),
            st.integers(0, 50),
            st.none() | st.floats(0, 1),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.sampled_from([1, 16, 128]),
)
def test_sums_never_drift(calls, block) -> None:
    """Whatever is recorded: 0 <= demand <= the contexts laid side by side, and rates are in [0, 1]."""
    book = Book(block_size=block)
    for name, prompt, completion, share, rewritten in calls:
        cached = None if share is None else int(prompt * share)
        book.call(str(name), prompt, completion, cached, rewritten)
        apart = sum(-(-context.tokens // block) * block for _, context in book.agents.values())
        largest = max(-(-context.tokens // block) * block for _, context in book.agents.values())
        assert 0 <= book.demand <= apart
        if len(book.agents) == 1:
            assert book.demand == largest
        assert book.ledger.total.rate is None or 0 <= book.ledger.total.rate <= 1
    for agent, context in book.agents.values():
        book.ledger.close(agent, context)
        assert (agent.blocks, agent.shared_contexts) == (0, 0)
