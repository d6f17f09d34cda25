"""Cursor: a position in a pending queue that survives concurrent changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic

from sluicemq.broker.pending.backlog import ready_of
from sluicemq.broker.pending.entry import AnyEntry
from sluicemq.broker.pending.queue import PRIORITIES, PendingQueue

NO_END: Final = (1 << 62) - 1
"""Order beyond all others: the cursor includes messages that arrive during the scan."""
CHUNK_COST: Final = 20
"""Cost of passing over a packed chunk, in deliveries examined."""
BATCH: Final = 200
"""Deliveries examined together."""
FIRST_BATCH: Final = 8
"""Deliveries examined together to find the first READY one."""


class Cursor(Generic[AnyEntry]):
    """Cursor over the deliveries that stay READY from the beginning to the end of a scan.

    The order is by priority, highest first, then by order.

    priority  current priority, -1 at the end
    last      order up to which it has passed the current priority
    until     order at which it ends within each priority
    """

    __slots__ = ("_pending_queue", "last", "priority", "until")

    def __init__(
        self,
        pending_queue: PendingQueue[AnyEntry, Any],
        until: int,
        priority: int = PRIORITIES - 1,
        last: int = 0,
    ) -> None:
        """Create a cursor; `priority` and `last` are those of an earlier cursor to continue."""
        self._pending_queue = pending_queue
        self.until = until
        self.priority = priority
        self.last = last

    def __iter__(self) -> Iterator[AnyEntry]:
        """Yield the READY deliveries up to the end of the scan, some as temporary objects."""
        while ready := self.step(BATCH):
            yield from ready

    def step(self, count: int) -> list[AnyEntry]:
        """Return up to `count` READY deliveries of one priority; none at the end of the scan.

        Some may be temporary objects: PendingQueue.pin_unpacked makes them permanent.
        """
        while self.priority >= 0:
            ready = self.examine(count)
            if ready:
                return ready
        return []

    def examine(self, count: int) -> list[AnyEntry]:
        """Examine at most `count` deliveries and return the READY ones.

        The list may be empty although the scan has not ended.
        """
        if self.priority < 0:
            return []
        deliveries = self._pending_queue.after(self.priority, self.last, count)
        while deliveries and deliveries[-1].order > self.until:
            deliveries.pop()
        if not deliveries:
            self.priority -= 1
            self.last = 0
            return deliveries
        self.last = deliveries[-1].order
        return ready_of(deliveries)

    def has_more(self) -> bool:
        """Return whether a READY delivery follows. The position stays the same."""
        return self.priority >= 0 and bool(
            Cursor(self._pending_queue, self.until, self.priority, self.last).step(1)
        )

    def rewind_to(self, delivery: AnyEntry) -> None:
        """Continue after a delivery that the last step returned: later ones were not processed."""
        self.last = delivery.order

    def skip(self, count: int, budget: int) -> int:
        """Pass over up to `count` READY deliveries, by packed chunks where possible; return their
        number.

        It is less than `count` if the scan has ended or the `budget` of examined deliveries is used
        up.
        """
        total = 0
        while total < count and budget > 0 and self.priority >= 0:
            chunk = self._pending_queue.packed_after(self.priority, self.last)
            if chunk is not None and chunk.last <= self.until:
                ready = chunk.count(self.last)
                if ready <= count - total:
                    total += ready
                    self.last = chunk.last
                    budget -= CHUNK_COST
                    continue
            limit, priority = min(count - total, budget, BATCH), self.priority
            total += len(self.examine(limit))
            if self.priority == priority:
                budget -= limit
        return total

    def is_before(self, delivery: AnyEntry) -> bool:
        """Return whether the scan has yet to reach the position of this delivery."""
        return delivery.order <= self.until and (
            delivery.priority < self.priority
            or (delivery.priority == self.priority and delivery.order > self.last)
        )
