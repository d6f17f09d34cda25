"""The older part of a long line, packed.

A delivery that waits costs some 200 bytes as an object. In a backlog of millions nothing is known
of most of them but what the journal says too: such ones are packed, a chunk of them in arrays of 12
bytes each, and become objects again when the chunk's turn comes, or one by one when somebody else
wants to hold them too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sluicemq.broker.chunks import Chunk, Run, ready_of, run_of
from sluicemq.broker.delivery import Delivery

if TYPE_CHECKING:
    from sluicemq.broker.subscription import Subscription


class PackedChunk:
    """Deliveries that differ in sequence and size only. They are READY, have never been tried,
    never expire, stand at their original place and in this line only, and their messages are in
    the journal.

    orders  of each, which are also their sequences
    last    the order of the last one, also when that has been taken out
    """

    __slots__ = ("_journaled", "_priority", "_sizes", "_subscription", "last", "orders")

    def __init__(self, deliveries: list[Delivery]) -> None:
        """`deliveries` have been found to be `alike`."""
        first = deliveries[0]
        self._subscription: Subscription = first.subscription
        self._priority = first.priority
        self._journaled = first.journaled
        self.orders = array("Q", [delivery.sequence for delivery in deliveries])
        self._sizes = array("I", [delivery.size for delivery in deliveries])
        self.last = deliveries[-1].order

    @staticmethod
    def alike(deliveries: list[Delivery]) -> bool:
        """Whether they can make a chunk. Must not be empty; all are READY, of one priority."""
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

    def __iter__(self) -> Iterator[Delivery]:
        """Each as an object, made anew."""
        return self.after(0, len(self.orders))

    def after(self, order: int, count: int) -> Iterator[Delivery]:
        """The first `count` behind that order."""
        subscription, priority, journaled = self._subscription, self._priority, self._journaled
        start = bisect_right(self.orders, order)
        sequences = self.orders[start : start + count]
        sizes = self._sizes[start : start + count]
        for sequence, size in zip(sequences, sizes, strict=True):
            yield Delivery(subscription, sequence, None, priority, size, journaled, 0, 0)

    def find(self, order: int) -> Delivery | None:
        """The one with that order, if it is there."""
        found = list(self.after(order - 1, 1))
        return found[0] if found and found[0].order == order else None

    def remove(self, sequence: int) -> bool:
        """Take one out; False if it is not there."""
        place = bisect_left(self.orders, sequence)
        if place == len(self.orders) or self.orders[place] != sequence:
            return False
        del self.orders[place]
        del self._sizes[place]
        return True


class Backlog:
    """What stands in a line before its youngest part: objects, then chunks, in order.

    packed  how many are in chunks, and so no objects
    """

    __slots__ = ("_chunks", "_front", "packed")

    def __init__(self) -> None:
        self._front: deque[Delivery] = deque()
        self._chunks: deque[PackedChunk | Chunk] = deque()
        self.packed = 0

    def add(self, deliveries: list[Delivery], pack: bool) -> None:
        """Behind all others; packed if that is allowed and possible. Must not be empty."""
        if pack and PackedChunk.alike(deliveries):
            self._chunks.append(PackedChunk(deliveries))
            self.packed += len(deliveries)
        else:
            self._chunks.append(Chunk(deliveries))

    def front(self) -> deque[Delivery]:
        """The deliveries next in line, to take from its left end; empty when none are left."""
        while not self._front and self._chunks:
            chunk = self._chunks.popleft()
            if isinstance(chunk, PackedChunk):
                self.packed -= len(chunk)
            self._front.extend(chunk)
        return self._front

    def __iter__(self) -> Iterator[Delivery]:
        """All, in order; those in a chunk as objects of the moment, good for reading only."""
        yield from self._front
        for chunk in self._chunks:
            yield from chunk

    def after(self, order: int, count: int) -> list[Delivery]:
        """The first `count` behind that order; those in a chunk as objects of the moment."""
        found = behind(self._front, order, count)
        if len(found) < count:
            start = bisect_right(self._chunks, order, key=_last)
            for chunk in islice(self._chunks, start, None):
                found.extend(chunk.after(order, count - len(found)))
                if len(found) >= count:
                    break
        return found

    def runs(self, order: int, clean: bool) -> Iterator[Run]:
        """All behind that order, and perhaps some before; `clean`: all of them are READY."""
        if self._front and self._front[-1].order > order:
            yield run_of(Chunk(list(self._front)), clean)
        start = bisect_right(self._chunks, order, key=_last)
        for chunk in islice(self._chunks, start, None):
            if isinstance(chunk, PackedChunk):
                yield Run(chunk.orders, chunk.last, 0)
            else:
                yield run_of(chunk, clean)

    def find(self, order: int) -> Delivery | None:
        """The one with that order, whatever its state."""
        if self._front and self._front[-1].order >= order:
            return at(self._front, order)
        place = bisect_left(self._chunks, order, key=_last)
        if place == len(self._chunks):
            return None
        return self._chunks[place].find(order)

    def last(self) -> int:
        """The order of the last one, 0 if there is none."""
        if self._chunks:
            return _last(self._chunks[-1])
        return self._front[-1].order if self._front else 0

    def remove(self, sequence: int) -> bool:
        """Take one out of its chunk; False if it is in none."""
        place = bisect_left(self._chunks, sequence, key=_last)
        if place < len(self._chunks):
            chunk = self._chunks[place]
            if isinstance(chunk, PackedChunk) and chunk.remove(sequence):
                self.packed -= 1
                if not chunk:
                    del self._chunks[place]
                return True
        return False

    def discard(self, order: int) -> bool:
        """Take one out, wherever it is but in the front; False if it is not there."""
        place = bisect_left(self._chunks, order, key=_last)
        if place == len(self._chunks):
            return False
        chunk = self._chunks[place]
        if not chunk.remove(order):
            return False
        if isinstance(chunk, PackedChunk):
            self.packed -= 1
        if not chunk:
            del self._chunks[place]
        return True

    @property
    def empty(self) -> bool:
        """Nothing is there."""
        return not self._front and not self._chunks

    def compact(self) -> int:
        """Forget the objects that are no longer READY. Returns how many deliveries are left."""
        self._front = deque(ready_of(self._front))
        left = len(self._front) + self.packed
        chunks: deque[PackedChunk | Chunk] = deque()
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


def behind(line: deque[Delivery], order: int, count: int) -> list[Delivery]:
    """The first `count` of a line in order that stand behind that order."""
    start = bisect_right(line, order, key=_order) if line else 0
    return list(islice(line, start, start + count))


def at(line: deque[Delivery], order: int) -> Delivery | None:
    """The one of a line in order that has that order."""
    place = bisect_left(line, order, key=_order)
    if place < len(line) and line[place].order == order:
        return line[place]
    return None


def _order(delivery: Delivery) -> int:
    return delivery.order


def _last(chunk: PackedChunk | Chunk) -> int:
    return chunk.last


def oldest(line: deque[Delivery], count: int) -> tuple[list[Delivery], int]:
    """Take the first `count` out of a line. Returns those that are READY, and how many are not."""
    taken = [line.popleft() for _ in range(count)]
    ready = ready_of(taken)
    return ready, count - len(ready)


def chained(backlog: Backlog | None, line: Iterable[Delivery] | None) -> Iterator[Delivery]:
    """A whole line: its older part, if it has one, and the rest."""
    if backlog is not None:
        yield from backlog
    if line is not None:
        yield from line
