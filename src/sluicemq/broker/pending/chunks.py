"""Chunks: sorted deliveries with an array of their orders for binary search."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic

from sluicemq.broker.pending.entry import READY, AnyEntry


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

    def ready(self) -> array[int]:
        """Return the orders of the READY deliveries."""
        return array("Q", [d.order for d in self.deliveries if d.state == READY])


class QueueRun:
    """Part of a pending queue, for counting.

    orders  orders of the READY deliveries
    end     order of the last delivery in any state
    cost    number of deliveries that had to be examined one by one
    """

    __slots__ = ("cost", "end", "orders")

    def __init__(self, orders: array[int], end: int, cost: int) -> None:
        self.orders = orders
        self.end = end
        self.cost = cost


def run_of(chunk: Chunk[AnyEntry], clean: bool) -> QueueRun:
    """Return the run of a chunk; `clean` states that all its deliveries are READY."""
    return QueueRun(
        chunk.orders if clean else chunk.ready(), chunk.last, 0 if clean else len(chunk)
    )


def ready_of(deliveries: Iterable[AnyEntry]) -> list[AnyEntry]:
    """Return the READY deliveries."""
    return [delivery for delivery in deliveries if delivery.state == READY]
