"""The paged KV block pool: which blocks hold what, which are free, and who is evicted next.

The semantics are those of vLLM v1 (`vllm/v1/core/block_pool.py`, 0.24 and later):

* block 0 is the null block, so a pool of `num_blocks` has `num_blocks - 1` usable ones;
* usage counts blocks held by requests only: a cached block that nobody holds is free;
* a finished request frees its blocks tail first, so the tail of a sequence is evicted before its head;
* blocks without a hash (partly filled tails) are reused before any cached block is evicted;
* a hit takes its blocks off the free queue.

One deviation: a block computed twice is held once here (vLLM keeps the duplicate until it is evicted).

Cached blocks are kept as *runs* in a radix tree, never one by one, so that a 10,000-token context costs a
handful of operations. Within the free queue a run leaves from its tail, which is the order in which vLLM
queued its blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from concur_agents.errors import check_range


class BlockKeys(Protocol):
    """Identities of a sequence's blocks, by block number.

    `keys[i]` must stand for *all* tokens from the start of the sequence to the end of block i (a chained
    hash): if two sequences agree at i, they agree at every j < i. The pool relies on it to compare whole
    runs by their last block.
    """

    def __getitem__(self, index: int, /) -> int:
        """Identity of block `index`."""
        ...


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """Keys of a token stream nobody wrote down: a shared prefix, then tokens of its own, without end.

    `stream` and `prefix` are ids in [0, 2^30). Sequences with one `prefix` share their first
    `prefix_blocks` blocks; the rest is unique to `stream`.
    """

    stream: int
    prefix: int = 0
    prefix_blocks: int = 0

    def __getitem__(self, index: int, /) -> int:
        """Identity of block `index`."""
        if index < self.prefix_blocks:
            return (self.prefix << 33) | (1 << 32) | index
        return (self.stream << 33) | index


class _Run:
    """Contiguous cached blocks [start, stop) of a sequence; equal prefixes share their runs."""

    __slots__ = ("children", "keys", "parent", "refs", "start", "stop")

    def __init__(self, keys: BlockKeys, start: int, stop: int, parent: _Run | None) -> None:
        self.keys = keys
        self.start = start
        self.stop = stop
        self.parent = parent
        self.children: dict[int, _Run] = {}
        self.refs = 0


class Lease:
    """The blocks one request holds: `full` cached ones, and `partial` (0 or 1) not full yet."""

    __slots__ = ("full", "keys", "partial", "run")

    def __init__(self, keys: BlockKeys, run: _Run, full: int) -> None:
        self.keys = keys
        self.run = run
        self.full = full
        self.partial = 0

    @property
    def blocks(self) -> int:
        """How many blocks are held."""
        return self.full + self.partial


def _agree_until(mine: BlockKeys, other: BlockKeys, start: int, stop: int) -> int:
    """First block in (start, stop] where the two differ, given that they agree at `start`."""
    if mine[stop - 1] == other[stop - 1]:
        return stop
    low, high = start + 1, stop - 1
    while low < high:
        middle = (low + high) // 2
        if mine[middle] == other[middle]:
            low = middle + 1
        else:
            high = middle
    return low


class BlockPool:
    """All KV blocks of one engine. Every operation costs O(runs touched), not O(blocks).

    Args:
        num_blocks: Blocks in memory, the null block included; at least 2.
    """

    def __init__(self, num_blocks: int) -> None:
        check_range("num_blocks", num_blocks, 2)
        self.num_blocks = num_blocks
        self.usable = num_blocks - 1
        self.evicted = 0
        """Cached blocks evicted so far."""
        self._blank = self.usable
        self._root = _Run((), 0, 0, None)
        self._root.refs = 1
        self._lru: OrderedDict[_Run, None] = OrderedDict()
        self._free = self.usable

    @property
    def free(self) -> int:
        """Blocks nobody holds, cached or not."""
        return self._free

    @property
    def cached_free(self) -> int:
        """Blocks nobody holds whose content could still be hit. vLLM exports no such number."""
        return self._free - self._blank

    @property
    def usage(self) -> float:
        """`vllm:kv_cache_usage_perc`: fraction of usable blocks held by requests, in [0, 1]."""
        return 1.0 - self._free / self.usable

    def lookup(self, keys: BlockKeys, limit: int) -> tuple[int, int]:
        """How many of the first `limit` blocks are cached, and how many of these nobody holds."""
        return self._count(self._root, keys, 0, limit)

    def acquire(self, keys: BlockKeys, limit: int) -> Lease:
        """Hold the cached blocks among the first `limit`; the lease says how many there were."""
        lease = Lease(keys, self._root, 0)
        self._follow(lease, limit)
        return lease

    def extend(self, lease: Lease, full: int, partial: int) -> bool:
        """Make the lease hold `full` full blocks and `partial` (0 or 1) unfilled ones.

        Full blocks become visible to `lookup` at once. Nothing changes and False is returned if the free
        blocks do not suffice.
        """
        keys = lease.keys
        known, known_free = (0, 0)
        if full > lease.full and lease.run.children:
            known, known_free = self._count(lease.run, keys, lease.full, full)
        fresh = full - lease.full - known
        need = fresh + partial - lease.partial
        if need > self._free - known_free:
            return False
        if known:
            self._follow(lease, full)
        if need > 0:
            self._take(need)
        elif need < 0:
            self._blank -= need
            self._free -= need
        lease.partial = partial
        if fresh:
            run = lease.run
            if run.refs == 1 and not run.children and run is not self._root:
                run.keys = keys
                run.stop = full
            else:
                grown = _Run(keys, lease.full, full, run)
                grown.refs = 1
                run.children[keys[lease.full]] = grown
                lease.run = grown
            lease.full = full
        return True

    def release(self, lease: Lease) -> None:
        """Give everything back; the full blocks stay cached until they are evicted, tail first."""
        self._blank += lease.partial
        self._free += lease.partial
        run: _Run | None = lease.run
        while run is not None and run is not self._root:
            run.refs -= 1
            if run.refs == 0:
                self._lru[run] = None
                self._free += run.stop - run.start
            run = run.parent
        lease.run, lease.full, lease.partial = self._root, 0, 0

    def reset(self) -> bool:
        """Forget all cached content (`/reset_prefix_cache`). Refused, as in vLLM, while blocks are held."""
        if self._free != self.usable:
            return False
        self._lru.clear()
        self._root.children.clear()
        self._blank = self.usable
        return True

    @staticmethod
    def _count(run: _Run, keys: BlockKeys, start: int, limit: int) -> tuple[int, int]:
        """How many blocks of [start, limit) follow below `run`, and how many of these nobody holds."""
        position, free = start, 0
        while position < limit:
            child = run.children.get(keys[position])
            if child is None:
                break
            end = _agree_until(child.keys, keys, position, min(child.stop, limit))
            if child.refs == 0:
                free += end - position
            position = end
            if end < child.stop:
                break
            run = child
        return position - start, free

    def _follow(self, lease: Lease, limit: int) -> None:
        """Walk down from the lease's end through cached blocks, holding them."""
        keys, run, position = lease.keys, lease.run, lease.full
        while position < limit:
            child = run.children.get(keys[position])
            if child is None:
                break
            end = _agree_until(child.keys, keys, position, min(child.stop, limit))
            if end < child.stop:
                child = self._split(child, end)
            if child.refs == 0:
                self._free -= end - position
                self._lru.pop(child, None)
            child.refs += 1
            run, position = child, end
        lease.run, lease.full = run, position

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut `run` in two and return the upper part.

        The lower part keeps the object: leases that end in it, and its place in the free queue, stay valid.
        """
        parent = run.parent
        assert parent is not None
        upper = _Run(run.keys, run.start, at, parent)
        upper.refs = run.refs
        upper.children[run.keys[at]] = run
        parent.children[run.keys[run.start]] = upper
        run.start, run.parent = at, upper
        return upper

    def _take(self, count: int) -> None:
        """Use up `count` free blocks: the blank ones first, then the oldest cached runs from their tails."""
        self._free -= count
        blank = min(count, self._blank)
        self._blank -= blank
        count -= blank
        while count:
            run = next(iter(self._lru))
            taken = min(count, run.stop - run.start)
            run.stop -= taken
            count -= taken
            self.evicted += taken
            if run.stop == run.start:
                del self._lru[run]
                parent = run.parent
                assert parent is not None
                assert not run.children
                del parent.children[run.keys[run.start]]
