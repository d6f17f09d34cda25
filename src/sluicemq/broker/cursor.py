"""A position in a pending queue that moves on in steps, between which the queue may change."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sluicemq.broker.chunks import Run, ready_of
from sluicemq.broker.pending_queue import PRIORITIES

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.pending_queue import PendingQueue

RUN_COST: Final = 20
"""To pass over a chunk costs as much as to look at so many deliveries."""


class Cursor:
    """Comes to every delivery that stays READY in the line from the beginning to the end of the
    scan, highest priority first, then by order.

    priority  the one it is at, -1 at the end
    last      in that priority it has passed everything up to this order
    until     order at which it ends within each priority
    """

    __slots__ = ("_pending_queue", "last", "priority", "until")

    def __init__(
        self, pending_queue: PendingQueue, until: int, priority: int = PRIORITIES - 1, last: int = 0
    ) -> None:
        """`priority` and `last` are those of an earlier cursor that is to be gone on with."""
        self._pending_queue = pending_queue
        self.until = until
        self.priority = priority
        self.last = last

    def _descend(self) -> None:
        self.priority -= 1
        self.last = 0

    def step(self, count: int) -> list[Delivery]:
        """Up to `count` READY deliveries of one priority; none at the end of the scan.

        Some may be objects of the moment: Pending queue.pull makes them the line's own.
        """
        while self.priority >= 0:
            ready = self.look(count)
            if ready:
                return ready
        return []

    def look(self, count: int) -> list[Delivery]:
        """The same, but it looks at no more than `count`: there may be none although the scan has
        not ended."""
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

    def back_to(self, delivery: Delivery) -> None:
        """Continue behind a delivery that the last step returned: those after it were not looked
        at."""
        self.last = delivery.order

    def skip(self, count: int, clean: bool, budget: int) -> int:
        """Pass over up to `count` READY deliveries, chunk by chunk where it can. Returns how many:
        fewer than `count` if the scan has ended, or if it had to look at so many that its `budget`
        was used up. `clean`: all that is in the line is READY.
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

    def _next(self, runs: Iterator[Run]) -> Run | None:
        """The next run, as far as the scan goes."""
        run = next(runs, None)
        if run is None or self.last >= self.until:
            return None
        if run.end > self.until:
            return Run(run.orders[: bisect_right(run.orders, self.until)], self.until, run.cost)
        return run

    def _stop_within(self, here: Run | None, there: Run | None, count: int) -> None:
        """Pass over `count` of what is in the two runs, which is more."""
        orders: list[int] = []
        for run in (here, there):
            if run is not None:
                orders += run.orders[bisect_right(run.orders, self.last) :]
        if count:
            self.last = sorted(orders)[count - 1]

    def is_before(self, delivery: Delivery) -> bool:
        """The scan has still to come to the place of this delivery."""
        return delivery.order <= self.until and (
            delivery.priority < self.priority
            or (delivery.priority == self.priority and delivery.order > self.last)
        )


def _nearest(here: Run | None, there: Run | None) -> int:
    """Where the first of two runs ends, of which there is one at least."""
    if here is None:
        assert there is not None
        return there.end
    return here.end if there is None else min(here.end, there.end)
