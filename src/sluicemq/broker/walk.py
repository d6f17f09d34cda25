"""A walk along a line in the order of delivery, in steps between which the line may change."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import READY
from sluicemq.broker.lane import PRIORITIES

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.lane import Lane


class Walk:
    """Comes to every delivery that stays READY in the line from the beginning to the end of the
    walk, highest priority first, then by order.

    priority  the one it is at, -1 at the end
    until     order at which it ends within each priority
    """

    __slots__ = ("_lane", "_last", "_passed", "_returned", "priority", "until")

    def __init__(self, lane: Lane, until: int) -> None:
        self._lane = lane
        self.until = until
        self._passed = 0
        """Order in the FIFO of the last one it came to."""
        self._last = 0
        """Order of the last one, whether in the FIFO or not."""
        self._returned: deque[Delivery] = deque()
        """Those of the priority that are not in the FIFO and still to come."""
        self.priority = PRIORITIES
        self._descend()

    def _descend(self) -> None:
        self.priority -= 1
        self._passed = self._last = 0
        if self.priority >= 0:
            heap = sorted(self._lane.returned[self.priority] or ())
            self._returned = deque([delivery for order, _, delivery in heap if order <= self.until])

    def step(self, count: int) -> list[Delivery]:
        """Up to `count` READY deliveries of one priority; none at the end of the walk.

        Some may be objects of the moment: Lane.pull makes them the line's own.
        """
        while self.priority >= 0:
            found = self._step(count)
            if not found:
                self._descend()
                continue
            ready = [delivery for delivery in found if delivery.state == READY]
            if ready:
                return ready
        return []

    def _step(self, count: int) -> list[Delivery]:
        line = self._lane.after(self.priority, self._passed, count)
        returned = self._returned
        found: list[Delivery] = []
        place = 0
        while len(found) < count:
            here = line[place] if place < len(line) and line[place].order <= self.until else None
            if returned and (here is None or returned[0].order < here.order):
                found.append(returned.popleft())
            elif here is not None:
                self._passed = here.order
                found.append(here)
                place += 1
            else:
                break
        if found:
            self._last = found[-1].order
        return found

    def is_before(self, delivery: Delivery) -> bool:
        """The walk has still to come to the place of this delivery."""
        return delivery.order <= self.until and (
            delivery.priority < self.priority
            or (delivery.priority == self.priority and delivery.order > self._last)
        )

    def note(self, delivery: Delivery) -> None:
        """A delivery has come to a place that the walk `is_before`."""
        if delivery.priority == self.priority and not self._lane.ends_with(delivery):
            insort(self._returned, delivery, key=_order)


def _order(delivery: Delivery) -> int:
    return delivery.order
