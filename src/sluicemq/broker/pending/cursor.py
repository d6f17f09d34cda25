"""Cursor: a position in a pending queue that survives concurrent changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, Generic

from sluicemq.broker.pending.backlog import QueueRun, ready_of
from sluicemq.broker.pending.entry import AnyEntry
from sluicemq.broker.pending.queue import PRIORITIES, PendingQueue

NO_END: Final = (1 << 62) - 1
"""Order beyond all others: the cursor includes messages that arrive during the scan."""
RUN_COST: Final = 20
"""Cost of passing over a chunk, in deliveries examined."""


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

    def _descend(self) -> None:
        self.priority -= 1
        self.last = 0

    def step(self, count: int) -> list[AnyEntry]:
        """Return up to `count` READY deliveries of one priority; none at the end of the scan.

        Some may be temporary objects: PendingQueue.pull makes them permanent.
        """
        while self.priority >= 0:
            ready = self.look(count)
            if ready:
                return ready
        return []

    def look(self, count: int) -> list[AnyEntry]:
        """Examine at most `count` deliveries and return the READY ones.

        The list may be empty although the scan has not ended.
        """
        if self.priority < 0:
            return []
        found = self._pending_queue.after(self.priority, self.last, count)
        while found and found[-1].order > self.until:
            found.pop()
        if not found:
            self._descend()
            return found
        self.last = found[-1].order
        return ready_of(found)

    def more(self) -> bool:
        """Return whether a READY delivery follows. The position stays the same."""
        return self.priority >= 0 and bool(
            Cursor(self._pending_queue, self.until, self.priority, self.last).step(1)
        )

    def back_to(self, delivery: AnyEntry) -> None:
        """Continue behind a delivery that the last step returned: later ones were not processed."""
        self.last = delivery.order

    def skip(self, count: int, clean: bool, budget: int) -> int:
        """Pass over up to `count` READY deliveries, by chunks where possible; return their number.

        It is less than `count` if the scan has ended or the `budget` of examined deliveries is used
        up. `clean` states that all deliveries in the pending queue are READY.
        """
        passed = 0
        while passed < count and budget > 0 and self.priority >= 0:
            line = self._pending_queue.runs(self.priority, self.last, clean)
            requeued = self._pending_queue.requeued[self.priority]
            others = requeued.runs(self.last, clean) if requeued is not None else iter(())
            here = self._next(line)
            there = self._next(others)
            while budget > 0:
                if here is None and there is None:
                    self._descend()
                    break
                end = _nearest(here, there)
                ready = 0
                for run in (here, there):
                    if run is not None:
                        ready += bisect_right(run.orders, end) - bisect_right(run.orders, self.last)
                if ready > count - passed:
                    self._stop_within(here, there, count - passed)
                    return count
                passed += ready
                self.last = end
                if here is not None and here.end <= end:
                    budget -= RUN_COST + here.cost
                    here = self._next(line)
                if there is not None and there.end <= end:
                    budget -= RUN_COST + there.cost
                    there = self._next(others)
        return passed

    def _next(self, runs: Iterator[QueueRun]) -> QueueRun | None:
        """Return the next run within the range of the scan, or None."""
        run = next(runs, None)
        if run is None or self.last >= self.until:
            return None
        if run.end > self.until:
            return QueueRun(
                run.orders[: bisect_right(run.orders, self.until)], self.until, run.cost
            )
        return run

    def _stop_within(self, here: QueueRun | None, there: QueueRun | None, count: int) -> None:
        """Pass over `count` deliveries of two runs, which contain more."""
        orders: list[int] = []
        for run in (here, there):
            if run is not None:
                orders += run.orders[bisect_right(run.orders, self.last) :]
        if count:
            self.last = sorted(orders)[count - 1]

    def is_before(self, delivery: AnyEntry) -> bool:
        """Return whether the scan has yet to reach the position of this delivery."""
        return delivery.order <= self.until and (
            delivery.priority < self.priority
            or (delivery.priority == self.priority and delivery.order > self.last)
        )


def _nearest(here: QueueRun | None, there: QueueRun | None) -> int:
    """Return the end of the first of two runs, of which at least one is present."""
    if here is None:
        assert there is not None
        return there.end
    return here.end if there is None else min(here.end, there.end)
