"""A priority queue whose members can leave at any time, in O(log n) amortised.

A heap with lazy deletion: a member that leaves stays in the heap as a stale entry until it surfaces,
and the heap is rebuilt when stale entries outnumber live ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = tuple[float, ...]

_REBUILD_MIN = 64
"""Below this size a rebuild costs more than the stale entries it removes."""


class Ranking(Generic[Item]):
    """Members ordered by a key, smallest first. Equal keys come out in the order they went in."""

    def __init__(self) -> None:
        self._live: dict[Item, tuple[Key, int]] = {}
        self._heap: list[tuple[Key, int, Item]] = []
        self._pushes = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[Item]:
        """Members in no particular order."""
        return iter(self._live)

    def add(self, item: Item, key: Key) -> None:
        """Put `item` in, or give it another key."""
        self._pushes += 1
        self._live[item] = (key, self._pushes)
        heapq.heappush(self._heap, (key, self._pushes, item))
        if len(self._heap) > 2 * len(self._live) + _REBUILD_MIN:
            self._heap = [(k, n, i) for i, (k, n) in self._live.items()]
            heapq.heapify(self._heap)

    def discard(self, item: Item) -> None:
        """Take `item` out if it is in."""
        self._live.pop(item, None)

    def first(self) -> Item | None:
        """The member with the smallest key, or None when empty."""
        heap, live = self._heap, self._live
        while heap:
            key, pushes, item = heap[0]
            if live.get(item) == (key, pushes):
                return item
            heapq.heappop(heap)
        return None
