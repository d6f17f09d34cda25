"""Requeued deliveries of a pending queue, in order.

They are added in any order and mostly removed at the front; but any range must be found without
sorting, however many there are. So they are kept in chunks that are small enough for cheap
insertion. For few deliveries the cost is about that of a heap, for many it is lower.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, Generic

from sluicemq.broker.pending.chunks import Chunk, QueueRun, ready_of, run_of
from sluicemq.broker.pending.entry import AnyEntry

CHUNK: Final = 512
"""Deliveries in a chunk; a chunk of twice that size is split."""


class Requeued(Generic[AnyEntry]):
    """Sorted collection of requeued deliveries with distinct orders."""

    __slots__ = ("_chunks", "_lasts", "_length")

    def __init__(self) -> None:
        self._chunks: list[Chunk[AnyEntry]] = []
        self._lasts: list[int] = []
        """Order of the last delivery of each chunk."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[AnyEntry]:
        for chunk in self._chunks:
            yield from chunk.deliveries

    def add(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order, which must not be present."""
        order = delivery.order
        lasts = self._lasts
        self._length += 1
        if not lasts:
            self._chunks.append(Chunk([delivery]))
            lasts.append(order)
            return
        if order > lasts[-1]:
            place = len(lasts) - 1
            chunk = self._chunks[place]
            chunk.append(delivery)
            lasts[place] = order
        else:
            place = bisect_left(lasts, order)
            chunk = self._chunks[place]
            chunk.add(delivery)
        if len(chunk.deliveries) > 2 * CHUNK:
            self._chunks.insert(place + 1, chunk.split(CHUNK))
            lasts.insert(place, chunk.last)

    def first(self) -> AnyEntry:
        """Return the delivery with the lowest order. There must be one."""
        return self._chunks[0].deliveries[0]

    def pop(self) -> AnyEntry:
        """Remove and return the delivery with the lowest order."""
        chunk = self._chunks[0]
        delivery = chunk.pop()
        self._length -= 1
        if not chunk.deliveries:
            del self._chunks[0], self._lasts[0]
        return delivery

    def discard(self, order: int) -> bool:
        """Remove the delivery with that order; return False if it is not present."""
        place = bisect_left(self._lasts, order)
        if place == len(self._lasts):
            return False
        chunk = self._chunks[place]
        if not chunk.remove(order):
            return False
        self._length -= 1
        if chunk.deliveries:
            self._lasts[place] = chunk.last
        else:
            del self._chunks[place], self._lasts[place]
        return True

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        place = bisect_left(self._lasts, order)
        return self._chunks[place].find(order) if place < len(self._lasts) else None

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order, in any state."""
        found: list[AnyEntry] = []
        for chunk in islice(self._chunks, bisect_right(self._lasts, order), None):
            found += chunk.after(order, count - len(found))
            if len(found) >= count:
                break
        return found

    def runs(self, order: int, clean: bool) -> Iterator[QueueRun]:
        """Yield all deliveries behind that order, perhaps some before; `clean`: all are READY."""
        for chunk in islice(self._chunks, bisect_right(self._lasts, order), None):
            yield run_of(chunk, clean)

    def compact(self) -> None:
        """Remove deliveries that are no longer READY."""
        ready = ready_of(self)
        parts = [ready[start : start + CHUNK] for start in range(0, len(ready), CHUNK)]
        self._chunks = [Chunk(part) for part in parts]
        self._lasts = [chunk.last for chunk in self._chunks]
        self._length = len(ready)
