"""Chunks: the older part of a long pending queue, and the requeued deliveries.

A waiting delivery costs some 200 bytes as an object. Most deliveries in a backlog of millions have
no state beyond that in the journal: these are packed in chunks, in arrays of 12 bytes each, and
become objects again when the chunk reaches the front, or one by one when another holder needs them.

Requeued deliveries are added in any order and mostly removed at the front; but any range must be
found without sorting, however many there are. So they are kept in chunks, too, small enough for
cheap insertion. For few deliveries the cost is about that of a heap, for many it is lower.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Generic

from sluicemq.broker.pending.entry import READY, AnyEntry

CHUNK: Final = 512
"""Requeued deliveries in a chunk; a chunk of twice that size is split."""


def ready_of(deliveries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """Return the READY deliveries."""
    return [delivery for delivery in deliveries if delivery.state == READY]


class PackedChunk(Generic[AnyEntry]):
    """Deliveries that differ in sequence and size only.

    They are READY, have not been attempted, never expire, are in their original position and in
    this pending queue only, and their messages are in the journal.

    orders  order of each delivery, which is also its sequence
    last    order of the last one, even after its removal
    """

    __slots__ = ("_sizes", "_template", "last", "orders")

    def __init__(self, deliveries: list[AnyEntry], template: AnyEntry) -> None:
        """Pack `deliveries`, for which `can_pack` must be True, and which are like `template`."""
        self._template = template
        self.orders = array("Q", [delivery.sequence for delivery in deliveries])
        self._sizes = array("I", [delivery.size for delivery in deliveries])
        self.last = deliveries[-1].order

    @staticmethod
    def can_pack(deliveries: list[AnyEntry]) -> bool:
        """Return whether deliveries, at least one, all READY and of one priority, can be packed."""
        journaled = deliveries[0].journaled
        return bool(journaled) and all(
            delivery.message is None
            and not delivery.attempts
            and not delivery.expiration
            and delivery.order == delivery.sequence
            and delivery.journaled == journaled
            for delivery in deliveries
        )

    def __len__(self) -> int:
        return len(self.orders)

    def __iter__(self) -> Iterator[AnyEntry]:
        """Iterate over the deliveries as new objects."""
        return self.after(0, len(self.orders))

    def after(self, order: int, count: int) -> Iterator[AnyEntry]:
        """Yield the first `count` deliveries after that order."""
        template = self._template
        start = bisect_right(self.orders, order)
        sequences = self.orders[start : start + count]
        sizes = self._sizes[start : start + count]
        for sequence, size in zip(sequences, sizes, strict=True):
            yield template.copy_with(sequence, size)

    def count(self, order: int) -> int:
        """Return the number of deliveries after that order."""
        return len(self.orders) - bisect_right(self.orders, order)

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, or None."""
        deliveries = list(self.after(order - 1, 1))
        return deliveries[0] if deliveries and deliveries[0].order == order else None

    def remove(self, sequence: int) -> bool:
        """Remove a delivery; return False if it is not present."""
        index = bisect_left(self.orders, sequence)
        if index == len(self.orders) or self.orders[index] != sequence:
            return False
        del self.orders[index]
        del self._sizes[index]
        return True


class Chunks(Generic[AnyEntry]):
    """Deliveries of one priority in order, in chunks, none of which is empty.

    packed  number of deliveries in packed chunks
    """

    __slots__ = ("_chunks", "_template", "packed")

    def __init__(self) -> None:
        self._chunks: deque[PackedChunk[AnyEntry] | deque[AnyEntry]] = deque()
        self._template: AnyEntry | None = None
        """Entry for the creation of those in packed chunks."""
        self.packed = 0

    def __iter__(self) -> Iterator[AnyEntry]:
        for chunk in self._chunks:
            yield from chunk

    def append(self, deliveries: list[AnyEntry], pack: bool) -> None:
        """Append a chunk of deliveries, at least one; packed if `pack` is set and possible."""
        if pack and PackedChunk.can_pack(deliveries):
            template = self._template
            if template is None or template.journaled != deliveries[0].journaled:
                template = self._template = deliveries[0]
            self._chunks.append(PackedChunk(deliveries, template))
            self.packed += len(deliveries)
        else:
            self._chunks.append(deque(deliveries))

    def insert(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order, which must not be present.

        No chunk may be packed.
        """
        chunks = self._chunks
        if not chunks:
            chunks.append(deque((delivery,)))
            return
        index = len(chunks) - 1
        if delivery.order <= self.last():
            index = self._index(delivery.order)
        chunk = chunks[index]
        assert not isinstance(chunk, PackedChunk)
        if delivery.order > chunk[-1].order:
            chunk.append(delivery)
        else:
            insort(chunk, delivery, key=order_of)
        if len(chunk) > 2 * CHUNK:
            chunks.insert(index, deque([chunk.popleft() for _ in range(CHUNK)]))

    def front(self) -> deque[AnyEntry]:
        """Return the first chunk as objects, in any state.

        The caller may remove deliveries from it, and calls `trim` if none is left.
        """
        chunk = self._chunks[0]
        if isinstance(chunk, PackedChunk):
            self.packed -= len(chunk)
            chunk = self._chunks[0] = deque(chunk)
        return chunk

    def trim(self) -> bool:
        """Remove the first chunk if it is empty; return whether there are no deliveries left."""
        if self._chunks and not self._chunks[0]:
            self._chunks.popleft()
        return not self._chunks

    def _index(self, order: int) -> int:
        """Return the index of the chunk that has the delivery of that order, or the next one."""
        return bisect_left(self._chunks, order, key=_last)

    def last(self) -> int:
        """Return the order of the last delivery. There must be one."""
        return _last(self._chunks[-1])

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries after that order, in any state; those in packed
        chunks as temporary objects.
        """
        deliveries: list[AnyEntry] = []
        for chunk in islice(self._chunks, self._index(order + 1), None):
            if isinstance(chunk, PackedChunk):
                deliveries.extend(chunk.after(order, count - len(deliveries)))
            else:
                deliveries += entries_after(chunk, order, count - len(deliveries))
            if len(deliveries) >= count:
                break
        return deliveries

    def packed_after(self, order: int) -> PackedChunk[AnyEntry] | None:
        """Return the packed chunk that the first delivery after that order is in, if it is in
        one.
        """
        index = self._index(order + 1)
        chunk = self._chunks[index] if index < len(self._chunks) else None
        return chunk if isinstance(chunk, PackedChunk) else None

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        index = self._index(order)
        if index == len(self._chunks):
            return None
        chunk = self._chunks[index]
        return chunk.find(order) if isinstance(chunk, PackedChunk) else entry_at(chunk, order)

    def discard(self, order: int, packed: bool = False) -> bool:
        """Remove the delivery with that order; return False if it is not present.

        With `packed`, remove it from a packed chunk only.
        """
        index = self._index(order)
        if index == len(self._chunks):
            return False
        chunk = self._chunks[index]
        if isinstance(chunk, PackedChunk):
            if not chunk.remove(order):
                return False
            self.packed -= 1
        elif packed or not _remove_entry(chunk, order):
            return False
        if not chunk:
            del self._chunks[index]
        return True

    def compact(self) -> int:
        """Remove the objects that are no longer READY; return the number of deliveries left."""
        remaining = self.packed
        chunks: deque[PackedChunk[AnyEntry] | deque[AnyEntry]] = deque()
        for chunk in self._chunks:
            if not isinstance(chunk, PackedChunk):
                chunk = deque(ready_of(chunk))
                remaining += len(chunk)
            if chunk:
                chunks.append(chunk)
        self._chunks = chunks
        return remaining


def entries_after(entries: deque[AnyEntry], order: int, count: int) -> list[AnyEntry]:
    """Return the first `count` deliveries of an ordered sequence after that order."""
    start = bisect_right(entries, order, key=order_of)
    return list(islice(entries, start, start + count))


def entry_at(entries: deque[AnyEntry], order: int) -> AnyEntry | None:
    """Return the delivery of an ordered sequence with that order, in any state, or None."""
    index = bisect_left(entries, order, key=order_of)
    if index < len(entries) and entries[index].order == order:
        return entries[index]
    return None


def _remove_entry(chunk: deque[AnyEntry], order: int) -> bool:
    """Remove the delivery with that order from a chunk; return False if it is not present."""
    index = bisect_left(chunk, order, key=order_of)
    if index == len(chunk) or chunk[index].order != order:
        return False
    del chunk[index]
    return True


def order_of(delivery: AnyEntry) -> int:
    """Return the sort key of the deliveries of one priority."""
    return delivery.order


def _last(chunk: PackedChunk[AnyEntry] | deque[AnyEntry]) -> int:
    return chunk.last if isinstance(chunk, PackedChunk) else chunk[-1].order
