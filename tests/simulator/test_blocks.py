"""The run-based pool agrees block for block with a naive one that keeps every block by itself."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_agents.errors import InvalidValueError
from concur_agents.simulator.blocks import BlockPool, StreamKeys


class NaivePool:
    """vLLM's block pool, one dictionary entry a block."""

    def __init__(self, num_blocks):
        self.usable = num_blocks - 1
        self.blank = self.usable
        self.refs = {}
        self.queue = OrderedDict()
        self.evicted = 0

    @property
    def free(self):
        return self.blank + len(self.queue)

    def lookup(self, keys, limit):
        count = 0
        while count < limit and keys[count] in self.refs:
            count += 1
        return count, sum(self.refs[keys[i]] == 0 for i in range(count))

    def touch(self, key):
        if self.refs[key] == 0:
            del self.queue[key]
        self.refs[key] += 1

    def take(self):
        if self.blank:
            self.blank -= 1
        else:
            key, _ = self.queue.popitem(last=False)
            del self.refs[key]
            self.evicted += 1

    def acquire(self, keys, limit):
        held = {"keys": keys, "full": self.lookup(keys, limit)[0], "partial": 0}
        for i in range(held["full"]):
            self.touch(keys[i])
        return held

    def extend(self, held, full, partial):
        keys = held["keys"]
        known = held["full"]
        while known < full and keys[known] in self.refs:
            known += 1
        known_free = sum(self.refs[keys[i]] == 0 for i in range(held["full"], known))
        need = full - known + partial - held["partial"]
        if need > self.free - known_free:
            return False
        for i in range(held["full"], known):
            self.touch(keys[i])
        for _ in range(need):
            self.take()
        self.blank += max(0, -need)
        for i in range(known, full):
            self.refs[keys[i]] = 1
        held["full"], held["partial"] = full, partial
        return True

    def release(self, held):
        self.blank += held["partial"]
        for i in reversed(range(held["full"])):
            key = held["keys"][i]
            self.refs[key] -= 1
            if self.refs[key] == 0:
                self.queue[key] = None


class ListKeys(list):
    """Keys as the server makes them: one list a request, its content equal where the streams are."""


def keys_for(stream, as_list, length=64):
    """A few streams that fork from shared prefixes of different lengths."""
    keys = StreamKeys(stream, prefix=stream % 2, prefix_blocks=(0, 3, 5, 8)[stream % 4])
    return ListKeys(keys[i] for i in range(length)) if as_list else keys


def same_state(pool, naive, streams):
    assert pool.free == naive.free
    assert pool.cached_free == len(naive.queue)
    assert pool.evicted == naive.evicted
    assert pool.usage == pytest.approx(1 - naive.free / naive.usable)
    for stream in range(streams):
        assert pool.lookup(keys_for(stream, False), 60) == naive.lookup(keys_for(stream, False), 60)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(2, 60),
    streams=st.integers(1, 7),
    as_list=st.booleans(),
)
def test_agrees_with_the_naive_pool(seed, num_blocks, streams, as_list):
    rng = random.Random(seed)
    pool, naive = BlockPool(num_blocks), NaivePool(num_blocks)
    held = []
    for _ in range(60):
        if not held or rng.random() < 0.35:
            keys = keys_for(rng.randrange(streams), as_list)
            limit = rng.randint(0, 40)
            lease, block = pool.acquire(keys, limit), naive.acquire(keys, limit)
            assert lease.full == block["full"]
            held.append((lease, block))
        elif rng.random() < 0.6:
            lease, block = rng.choice(held)
            full, partial = lease.full + rng.randint(0, 6), rng.randint(0, 1)
            if lease.partial and full == lease.full:
                partial = 1
            assert pool.extend(lease, full, partial) == naive.extend(block, full, partial)
            assert lease.blocks == block["full"] + block["partial"]
        else:
            lease, block = held.pop(rng.randrange(len(held)))
            pool.release(lease)
            naive.release(block)
        same_state(pool, naive, streams)
    for lease, block in held:
        pool.release(lease)
        naive.release(block)
    same_state(pool, naive, streams)
    assert pool.free == pool.usable


def test_cached_blocks_nobody_holds_read_as_free():
    pool = BlockPool(11)
    lease = pool.acquire(StreamKeys(1), 0)
    assert pool.extend(lease, 4, 1)
    assert pool.usage == 0.5
    pool.release(lease)
    assert pool.usage == 0.0
    assert pool.cached_free == 4
    assert pool.lookup(StreamKeys(1), 10) == (4, 4)


def test_evicts_the_oldest_sequence_from_its_tail():
    pool = BlockPool(9)
    for stream in (1, 2):
        lease = pool.acquire(StreamKeys(stream), 0)
        assert pool.extend(lease, 4, 0)
        pool.release(lease)
    lease = pool.acquire(StreamKeys(3), 0)
    assert pool.extend(lease, 3, 0)
    assert [pool.lookup(StreamKeys(s), 9)[0] for s in (1, 2)] == [1, 4]
    assert pool.evicted == 3


def test_a_hit_saves_its_blocks_from_eviction():
    pool = BlockPool(9)
    for stream in (1, 2):
        lease = pool.acquire(StreamKeys(stream), 0)
        assert pool.extend(lease, 4, 0)
        pool.release(lease)
    hit = pool.acquire(StreamKeys(1), 2)
    other = pool.acquire(StreamKeys(3), 0)
    assert pool.extend(other, 6, 0)
    assert pool.lookup(StreamKeys(1), 9)[0] == 2
    assert pool.lookup(StreamKeys(2), 9)[0] == 0
    assert not pool.extend(other, 7, 0)
    pool.release(hit)
    assert pool.extend(other, 7, 0)


def test_reset_is_refused_while_blocks_are_held():
    pool = BlockPool(9)
    lease = pool.acquire(StreamKeys(1), 0)
    assert pool.extend(lease, 2, 1)
    assert not pool.reset()
    pool.release(lease)
    assert pool.reset()
    assert pool.lookup(StreamKeys(1), 9) == (0, 0)
    assert pool.free == pool.usable == 8


def test_too_small_a_pool_is_refused():
    with pytest.raises(InvalidValueError, match="num_blocks=1"):
        BlockPool(1)
