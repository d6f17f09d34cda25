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
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Generic

from sluicemq.broker.pending.entry import READY, AnyEntry

CHUNK: Final = 512
"""Requeued deliveries in a chunk; a chunk of twice that size is split."""


class Chunk(Generic[AnyEntry]):
    """Sorted, non-empty list of deliveries. The owner ensures that it is not empty."""

    __slots__ = ("deliveries", "orders")

    def __init__(self, deliveries: list[AnyEntry]) -> None:
        """Create a chunk of `deliveries`, which are sorted by order."""
        self.deliveries = deliveries
        self.orders = array("Q", [delivery.order for delivery in deliveries])

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[AnyEntry]:
        return iter(self.deliveries)

    @property
    def last(self) -> int:
        """Order of the last delivery."""
        return self.orders[-1]

    def add(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order."""
        place = bisect_left(self.orders, delivery.order)
        self.orders.insert(place, delivery.order)
        self.deliveries.insert(place, delivery)

    def append(self, delivery: AnyEntry) -> None:
        """Append a delivery with the highest order."""
        self.orders.append(delivery.order)
        self.deliveries.append(delivery)

    def pop(self) -> AnyEntry:
        """Remove and return the first delivery."""
        del self.orders[0]
        return self.deliveries.pop(0)

    def remove(self, order: int) -> bool:
        """Remove the delivery with that order; return False if it is not present."""
        place = bisect_left(self.orders, order)
        if place == len(self.orders) or self.orders[place] != order:
            return False
        del self.orders[place], self.deliveries[place]
        return True

    def split(self, place: int) -> Chunk[AnyEntry]:
        """Remove the deliveries from index `place` on and return them as another chunk."""
        others = Chunk(self.deliveries[place:])
        del self.deliveries[place:], self.orders[place:]
        return others

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        place = bisect_left(self.orders, order)
        if place < len(self.orders) and self.orders[place] == order:
            return self.deliveries[place]
        return None

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order, in any state."""
        start = bisect_right(self.orders, order)
        return self.deliveries[start : start + count]


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
    def alike(deliveries: list[AnyEntry]) -> bool:
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
            yield template.like(sequence, size)

    def count(self, order: int) -> int:
        """Return the number of deliveries behind that order."""
        return len(self.orders) - bisect_right(self.orders, order)

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, or None."""
        found = list(self.after(order - 1, 1))
        return found[0] if found and found[0].order == order else None

    def remove(self, sequence: int) -> bool:
        """Remove a delivery; return False if it is not present."""
        place = bisect_left(self.orders, sequence)
        if place == len(self.orders) or self.orders[place] != sequence:
            return False
        del self.orders[place]
        del self._sizes[place]
        return True


class Backlog(Generic[AnyEntry]):
    """Deliveries before the newest part of a pending queue: objects, then chunks, in order.

    packed  number of deliveries in packed chunks
    """

    __slots__ = ("_chunks", "_front", "_template", "packed")

    def __init__(self) -> None:
        self._front: deque[AnyEntry] = deque()
        self._chunks: deque[PackedChunk[AnyEntry] | Chunk[AnyEntry]] = deque()
        self._template: AnyEntry | None = None
        """Entry for the creation of those in packed chunks."""
        self.packed = 0

    def add(self, deliveries: list[AnyEntry], pack: bool) -> None:
        """Append deliveries, at least one; packed if `pack` is set and possible."""
        if pack and PackedChunk.alike(deliveries):
            template = self._template
            if template is None or template.journaled != deliveries[0].journaled:
                template = self._template = deliveries[0]
            self._chunks.append(PackedChunk(deliveries, template))
            self.packed += len(deliveries)
        else:
            self._chunks.append(Chunk(deliveries))

    def front(self) -> deque[AnyEntry]:
        """Return the next deliveries, to be taken from the left end; empty when none are left."""
        while not self._front and self._chunks:
            chunk = self._chunks.popleft()
            if isinstance(chunk, PackedChunk):
                self.packed -= len(chunk)
            self._front.extend(chunk)
        return self._front

    def __iter__(self) -> Iterator[AnyEntry]:
        """Iterate over all deliveries in order; those in chunks as temporary objects for
        reading.
        """
        yield from self._front
        for chunk in self._chunks:
            yield from chunk

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order; those in chunks as temporary
        objects.
        """
        found = behind(self._front, order, count)
        if len(found) < count:
            start = bisect_right(self._chunks, order, key=_last)
            for chunk in islice(self._chunks, start, None):
                found.extend(chunk.after(order, count - len(found)))
                if len(found) >= count:
                    break
        return found

    def packed_after(self, order: int) -> PackedChunk[AnyEntry] | None:
        """Return the packed chunk that the first delivery behind that order is in, if it is in
        one.
        """
        if self._front and self._front[-1].order > order:
            return None
        place = bisect_right(self._chunks, order, key=_last)
        chunk = self._chunks[place] if place < len(self._chunks) else None
        return chunk if isinstance(chunk, PackedChunk) else None

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        if self._front and self._front[-1].order >= order:
            return at(self._front, order)
        place = bisect_left(self._chunks, order, key=_last)
        if place == len(self._chunks):
            return None
        return self._chunks[place].find(order)

    def last(self) -> int:
        """Return the order of the last delivery, 0 if there is none."""
        if self._chunks:
            return _last(self._chunks[-1])
        return self._front[-1].order if self._front else 0

    def discard(self, order: int, packed: bool = False) -> bool:
        """Remove a delivery that is not in the front; return False if it is not present.

        With `packed`, remove it from a packed chunk only.
        """
        place = bisect_left(self._chunks, order, key=_last)
        if place == len(self._chunks):
            return False
        chunk = self._chunks[place]
        is_packed = isinstance(chunk, PackedChunk)
        if (packed and not is_packed) or not chunk.remove(order):
            return False
        self.packed -= is_packed
        if not chunk:
            del self._chunks[place]
        return True

    @property
    def empty(self) -> bool:
        """True if there are no deliveries."""
        return not self._front and not self._chunks

    def compact(self) -> int:
        """Remove the objects that are no longer READY; return the number of deliveries left."""
        self._front = deque(ready_of(self._front))
        left = len(self._front) + self.packed
        chunks: deque[PackedChunk[AnyEntry] | Chunk[AnyEntry]] = deque()
        for chunk in self._chunks:
            if isinstance(chunk, PackedChunk):
                if chunk:
                    chunks.append(chunk)
            else:
                ready = ready_of(chunk)
                left += len(ready)
                if ready:
                    chunks.append(Chunk(ready))
        self._chunks = chunks
        return left


def behind(line: deque[AnyEntry], order: int, count: int) -> list[AnyEntry]:
    """Return the first `count` deliveries of an ordered deque behind that order."""
    start = bisect_right(line, order, key=_order) if line else 0
    return list(islice(line, start, start + count))


def at(line: deque[AnyEntry], order: int) -> AnyEntry | None:
    """Return the delivery of an ordered deque with that order, or None."""
    place = bisect_left(line, order, key=_order)
    if place < len(line) and line[place].order == order:
        return line[place]
    return None


def _order(delivery: AnyEntry) -> int:
    return delivery.order


def _last(chunk: PackedChunk[AnyEntry] | Chunk[AnyEntry]) -> int:
    return chunk.last


def oldest(line: deque[AnyEntry], count: int) -> tuple[list[AnyEntry], int]:
    """Remove the first `count` deliveries; return the READY ones, and the number of others."""
    taken = [line.popleft() for _ in range(count)]
    ready = ready_of(taken)
    return ready, count - len(ready)


def chained(
    backlog: Backlog[AnyEntry] | None, line: Iterable[AnyEntry] | None
) -> Iterator[AnyEntry]:
    """Iterate over the backlog, if there is one, and the rest of the pending queue."""
    if backlog is not None:
        yield from backlog
    if line is not None:
        yield from line


class Requeued(Generic[AnyEntry]):
    """Sorted collection of requeued deliveries with distinct orders."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[Chunk[AnyEntry]] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[AnyEntry]:
        for chunk in self._chunks:
            yield from chunk.deliveries

    def add(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order, which must not be present."""
        chunks = self._chunks
        if not chunks:
            chunks.append(Chunk([delivery]))
            return
        place = len(chunks) - 1
        if delivery.order > chunks[place].last:
            chunks[place].append(delivery)
        else:
            place = bisect_left(chunks, delivery.order, key=_last)
            chunks[place].add(delivery)
        if len(chunks[place]) > 2 * CHUNK:
            chunks.insert(place + 1, chunks[place].split(CHUNK))

    def first(self) -> AnyEntry:
        """Return the delivery with the lowest order. There must be one."""
        return self._chunks[0].deliveries[0]

    def pop(self) -> AnyEntry:
        """Remove and return the delivery with the lowest order."""
        chunk = self._chunks[0]
        delivery = chunk.pop()
        if not chunk:
            del self._chunks[0]
        return delivery

    def discard(self, order: int) -> bool:
        """Remove the delivery with that order; return False if it is not present."""
        place = bisect_left(self._chunks, order, key=_last)
        if place == len(self._chunks) or not self._chunks[place].remove(order):
            return False
        if not self._chunks[place]:
            del self._chunks[place]
        return True

    def find(self, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state, or None."""
        place = bisect_left(self._chunks, order, key=_last)
        return self._chunks[place].find(order) if place < len(self._chunks) else None

    def after(self, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries behind that order, in any state."""
        found: list[AnyEntry] = []
        for chunk in islice(self._chunks, bisect_right(self._chunks, order, key=_last), None):
            found += chunk.after(order, count - len(found))
            if len(found) >= count:
                break
        return found

    def compact(self) -> None:
        """Remove deliveries that are no longer READY."""
        ready = ready_of(self)
        parts = [ready[start : start + CHUNK] for start in range(0, len(ready), CHUNK)]
        self._chunks = [Chunk(part) for part in parts]
