"""Deliveries in a row, sorted, and a list of their orders, by which they are found."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import READY

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery


class Chunk:
    """See the module. Who has one sees to it that it is not empty."""

    __slots__ = ("deliveries", "orders")

    def __init__(self, deliveries: list[Delivery]) -> None:
        """`deliveries` are in order."""
        self.deliveries = deliveries
        self.orders = array("Q", [delivery.order for delivery in deliveries])

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    @property
    def last(self) -> int:
        """The order of the last one."""
        return self.orders[-1]

    def add(self, delivery: Delivery) -> None:
        """Where its order places it."""
        place = bisect_left(self.orders, delivery.order)
        self.orders.insert(place, delivery.order)
        self.deliveries.insert(place, delivery)

    def append(self, delivery: Delivery) -> None:
        """Behind all others."""
        self.orders.append(delivery.order)
        self.deliveries.append(delivery)

    def pop(self) -> Delivery:
        """Remove and return the first one."""
        del self.orders[0]
        return self.deliveries.pop(0)

    def remove(self, order: int) -> bool:
        """Take the one with that order out; False if it is not there."""
        place = bisect_left(self.orders, order)
        if place == len(self.orders) or self.orders[place] != order:
            return False
        del self.orders[place], self.deliveries[place]
        return True

    def split(self, place: int) -> Chunk:
        """Keep those before the place, and return the others."""
        others = Chunk(self.deliveries[place:])
        del self.deliveries[place:], self.orders[place:]
        return others

    def find(self, order: int) -> Delivery | None:
        """The one with that order, whatever its state."""
        place = bisect_left(self.orders, order)
        if place < len(self.orders) and self.orders[place] == order:
            return self.deliveries[place]
        return None

    def after(self, order: int, count: int) -> list[Delivery]:
        """The first `count` behind that order, whatever their state."""
        start = bisect_right(self.orders, order)
        return self.deliveries[start : start + count]

    def ready(self) -> array[int]:
        """The orders of those that are READY."""
        return array("Q", [d.order for d in self.deliveries if d.state == READY])


class Run:
    """Some of a line, as one sees them who counts.

    orders  of those that are READY
    end     the order of the last one, READY or not
    cost    how many had to be looked at one by one
    """

    __slots__ = ("cost", "end", "orders")

    def __init__(self, orders: array[int], end: int, cost: int) -> None:
        self.orders = orders
        self.end = end
        self.cost = cost


def run_of(chunk: Chunk, clean: bool) -> Run:
    """`clean`: all of them are READY."""
    return Run(chunk.orders if clean else chunk.ready(), chunk.last, 0 if clean else len(chunk))


def ready_of(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Those that are READY."""
    return [delivery for delivery in deliveries if delivery.state == READY]
