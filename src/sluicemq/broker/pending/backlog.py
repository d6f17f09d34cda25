"""Chunks: the older part of a long pending queue, and the requeued deliveries.

A waiting delivery costs some 200 bytes as an object. Most deliveries in a backlog of millions have
no state beyond that in the journal: these are packed in chunks, in arrays of 12 bytes each, and
become objects again when the chunk reaches the front, or one by one when another holder needs them.

Requeued deliveries are added in any order and mostly removed at the front; but any range must be
found without sorting, however many there are. So they are kept in chunks that are small enough for
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
        """Pack `deliveries`, for which `alike` must be True, and which are like `template`."""
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
        """Yield the first `count` deliveries behind that order."""
        template = self._template
        start = bisect_right(self.orders, order)
        sequences = self.orders[start : start + count]
        sizes = self._sizes[start : start + count]
        for sequence, size in zip(sequences, sizes, strict=True):
            yield template.copy_with(sequence, size)

    def count(self, order: int) -> int:
        """Return the number of deliveries behind that order."""
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


class Backlog(Generic[AnyEntry]):
    """Deliveries before the newest part of a pending queue: objects, then chunks, in order.

    packed  number of deliveries in packed chunks
    """

    __slots__ = ("_chunks", "_front", "_template", "packed")

    def __init__(self) -> None:
        self._front: deque[AnyEntry] = deque()
        self._chunks: deque[PackedChunk[AnyEntry] | list[AnyEntry]] = deque()
        self._template: AnyEntry | None = None
        """Entry for the creation of those in packed chunks."""
        self.packed = 0

    def add(self, deliveries: list[AnyEntry], pack: bool) -> None:
        """Append deliveries, at least one; packed if `pack` is set and possible."""
        if pack and PackedChunk.can_pack(deliveries):
            template = self._template
            if template is None or template.journaled != deliveries[0].journaled:
                template = self._template = deliveries[0]
            self._chunks.append(PackedChunk(deliveries, template))
            self.packed += len(deliveries)
        else:
            self._chunks.append(deliveries)

    def front(self) -> deque[AnyEntry]:
        """Return the next deliveries, to be taken from the left end; empty when none are left."""
        while not self._front and self._chunks:
            chunk = self._chunks.popleft()
            if isinstance(chunk, PackedChunk):
                self.packed -= len(chunk)
            self._front.extend(chunk)
        return self._front

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order; those in chunks as temporary
        objects.
        """
        deliveries = entries_after(self._front, order, count)
        if len(deliveries) < count:
            start = bisect_right(self._chunks, order, key=_last)
            for chunk in islice(self._chunks, start, None):
                if isinstance(chunk, PackedChunk):
                    deliveries.extend(chunk.after(order, count - len(deliveries)))
                else:
                    deliveries += entries_after(chunk, order, count - len(deliveries))
                if len(deliveries) >= count:
                    break
        return deliveries

    def packed_after(self, order: int) -> PackedChunk[AnyEntry] | None:
        """Return the packed chunk that the first delivery behind that order is in, if it is in
        one.
        """
        if self._front and self._front[-1].order > order:
            return None
        index = bisect_right(self._chunks, order, key=_last)
        chunk = self._chunks[index] if index < len(self._chunks) else None
        return chunk if isinstance(chunk, PackedChunk) else None

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        if self._front and self._front[-1].order >= order:
            return entry_at(self._front, order)
        index = bisect_left(self._chunks, order, key=_last)
        if index == len(self._chunks):
            return None
        chunk = self._chunks[index]
        return chunk.find(order) if isinstance(chunk, PackedChunk) else entry_at(chunk, order)

    def last(self) -> int:
        """Return the order of the last delivery, 0 if there is none."""
        if self._chunks:
            return _last(self._chunks[-1])
        return self._front[-1].order if self._front else 0

    def discard(self, order: int, packed: bool = False) -> bool:
        """Remove a delivery that is not in the front; return False if it is not present.

        With `packed`, remove it from a packed chunk only.
        """
        index = bisect_left(self._chunks, order, key=_last)
        if index == len(self._chunks):
            return False
        chunk = self._chunks[index]
        if isinstance(chunk, PackedChunk):
            if not chunk.remove(order):
                return False
            self.packed -= 1
        elif packed or not remove_entry(chunk, order):
            return False
        if not chunk:
            del self._chunks[index]
        return True

    @property
    def empty(self) -> bool:
        """True if there are no deliveries."""
        return not self._front and not self._chunks

    def compact(self) -> int:
        """Remove the objects that are no longer READY; return the number of deliveries left."""
        self._front = deque(ready_of(self._front))
        remaining = len(self._front) + self.packed
        chunks: deque[PackedChunk[AnyEntry] | list[AnyEntry]] = deque()
        for chunk in self._chunks:
            if isinstance(chunk, PackedChunk):
                if chunk:
                    chunks.append(chunk)
            else:
                ready = ready_of(chunk)
                remaining += len(ready)
                if ready:
                    chunks.append(ready)
        self._chunks = chunks
        return remaining


def entries_after(
    entries: deque[AnyEntry] | list[AnyEntry], order: int, count: int
) -> list[AnyEntry]:
    """Return the first `count` deliveries of an ordered sequence behind that order."""
    start = bisect_right(entries, order, key=order_of) if entries else 0
    return list(islice(entries, start, start + count))


def entry_at(entries: deque[AnyEntry] | list[AnyEntry], order: int) -> AnyEntry | None:
    """Return the delivery of an ordered sequence with that order, in any state, or None."""
    index = bisect_left(entries, order, key=order_of)
    if index < len(entries) and entries[index].order == order:
        return entries[index]
    return None


def remove_entry(chunk: list[AnyEntry], order: int) -> bool:
    """Remove the delivery with that order from a chunk; return False if it is not present."""
    index = bisect_left(chunk, order, key=order_of)
    if index == len(chunk) or chunk[index].order != order:
        return False
    del chunk[index]
    return True


def order_of(delivery: AnyEntry) -> int:
    """Return the sort key of the deliveries of one priority."""
    return delivery.order


def _last(chunk: PackedChunk[AnyEntry] | list[AnyEntry]) -> int:
    return chunk.last if isinstance(chunk, PackedChunk) else chunk[-1].order


class Requeued(Generic[AnyEntry]):
    """Sorted collection of requeued deliveries with distinct orders."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[list[AnyEntry]] = []
        """Deliveries in order; no chunk is empty."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[AnyEntry]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order, which must not be present."""
        chunks = self._chunks
        if not chunks:
            chunks.append([delivery])
            return
        index = len(chunks) - 1
        if delivery.order > chunks[index][-1].order:
            chunks[index].append(delivery)
        else:
            index = bisect_left(chunks, delivery.order, key=_last)
            insort(chunks[index], delivery, key=order_of)
        if len(chunks[index]) > 2 * CHUNK:
            chunks.insert(index + 1, chunks[index][CHUNK:])
            del chunks[index][CHUNK:]

    def first(self) -> AnyEntry:
        """Return the delivery with the lowest order. There must be one."""
        return self._chunks[0][0]

    def pop(self) -> AnyEntry:
        """Remove and return the delivery with the lowest order."""
        chunk = self._chunks[0]
        delivery = chunk.pop(0)
        if not chunk:
            del self._chunks[0]
        return delivery

    def discard(self, order: int) -> bool:
        """Remove the delivery with that order; return False if it is not present."""
        index = bisect_left(self._chunks, order, key=_last)
        if index == len(self._chunks) or not remove_entry(self._chunks[index], order):
            return False
        if not self._chunks[index]:
            del self._chunks[index]
        return True

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        index = bisect_left(self._chunks, order, key=_last)
        return entry_at(self._chunks[index], order) if index < len(self._chunks) else None

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order, in any state."""
        deliveries: list[AnyEntry] = []
        for chunk in islice(self._chunks, bisect_right(self._chunks, order, key=_last), None):
            deliveries += entries_after(chunk, order, count - len(deliveries))
            if len(deliveries) >= count:
                break
        return deliveries

    def compact(self) -> None:
        """Remove deliveries that are no longer READY."""
        ready = ready_of(self)
        self._chunks = [ready[start : start + CHUNK] for start in range(0, len(ready), CHUNK)]
