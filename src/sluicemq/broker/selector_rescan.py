"""What waits, tried against selectors that are new.

A consumer may come with a selector that nobody has used yet, to a line of millions. Each of them
has to be read and tried, which takes seconds, and meanwhile everybody else is to be served. So it
is done in slices, of a share of each millisecond and never longer than scans may take (scans.py):
one pass along the line for all selectors that were new when it began; those that come later wait
for the next pass. Of a packed backlog only what a selector wants becomes objects.

What arrives during the pass is tried at once, so that the pass ends however much arrives; but it
is kept back until the pass has passed its priority, lest it overtake what is older. The pass waits
when each of its pending queues has enough to go on with and nobody waits for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluicemq.broker.core import ITERATION_DELIVERIES
from sluicemq.broker.cursor import Cursor
from sluicemq.broker.delivery import READY
from sluicemq.broker.routing import Routes

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.pending_queue import PendingQueue, Selector
    from sluicemq.broker.subscription import Subscription

ENOUGH: Final = 1000
"""Deliveries in a pending queue that need no others yet."""
STEP: Final = 50
"""Deliveries tried between two looks at what there is enough of."""
IDLE: Final = 3
"""So many times more is tried when there was no turn since the last slice but the slice's own."""
LONGEST: Final = 10
"""ms that one slice makes up for at most."""
TRIED_BYTES: Final = 1 << 13
"""Bytes of a body that cost as much as another delivery."""


class SelectorRescan:
    """The pass of one subscription. It ends by itself."""

    __slots__ = (
        "_armed",
        "_cursor",
        "_expected",
        "_following",
        "_iterations",
        "_kept",
        "_last",
        "_pending_queues",
        "_routes",
        "_subscription",
    )

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._pending_queues: dict[PendingQueue, None] = {}
        """Those whose selectors are being tried."""
        self._routes: Routes[PendingQueue] = Routes()
        """The same, by what they want."""
        self._following: dict[PendingQueue, None] = {}
        """Those that wait for the next pass."""
        self._expected: Routes[PendingQueue] = Routes()
        """The same, by what they want."""
        self._kept: list[tuple[PendingQueue, Delivery]] = []
        """What came since the pass began and its pending queues want."""
        self._armed = False
        self._last = 0
        """Steady ms of the last slice."""
        self._iterations = 0
        """Turns that had ended when it came."""
        self._cursor = self._begin()

    def _begin(self) -> Cursor:
        subscription = self._subscription
        return Cursor(subscription.everything, subscription.core.journal.next_sequence())

    def load_with(self, selector: Selector) -> int:
        """Return the load (routing.py) of the pending queues that wait for a pass, and that
        selector."""
        return self._expected.load_with(selector)

    def join(self, pending_queue: PendingQueue) -> None:
        """Try what waits against the selector of a pending queue that is new."""
        if self._pending_queues:
            self._following[pending_queue] = None
            self._expected.add(pending_queue, pending_queue.selector)
            self._arm()
            return
        self._enter(pending_queue)
        core = self._subscription.core
        self._last = core.clock.steady
        self._iterations = core.iterations
        if core.scans.waiting or core.scans.over():
            self._arm()
        else:
            self._try(core.tries_first)

    def _enter(self, pending_queue: PendingQueue) -> None:
        """The pass is for this pending queue too, and so is what arrives from now on."""
        self._pending_queues[pending_queue] = None
        self._routes.add(pending_queue, pending_queue.selector)
        self._subscription.selective.add(pending_queue, pending_queue.selector)

    def leave(self, pending_queue: PendingQueue) -> bool:
        """Stop the rescan of a pending queue that is no longer used. Return whether it was still
        waiting for its pass."""
        if pending_queue in self._following:
            del self._following[pending_queue]
            self._expected.remove(pending_queue, pending_queue.selector)
            return True
        if pending_queue in self._pending_queues:
            del self._pending_queues[pending_queue]
            self._routes.remove(pending_queue, pending_queue.selector)
            if not self._pending_queues:
                self._next()
        return False

    def defers(self, pending_queue: PendingQueue, delivery: Delivery) -> bool:
        """Whether a delivery that has arrived or come back, and that the pending queue wants, is
        not to stand in it now, because the pass will come to it or has to come further before."""
        cursor = self._cursor
        if pending_queue not in self._pending_queues or delivery.priority > cursor.priority:
            return False
        if delivery.order <= cursor.until:
            return cursor.is_before(delivery)
        self._subscription.everything.share(delivery)
        self._kept.append((pending_queue, delivery))
        return True

    def resume(self) -> None:
        """Something has been taken out of the pending queues."""
        if not self._armed and not self._sated():
            self._last = self._subscription.core.clock.steady
            self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            core = self._subscription.core
            core.timers.add(core.clock.steady + 1, self._queue, None)

    def _queue(self, _: None) -> None:
        self._subscription.core.scans.schedule(self._run)

    def _run(self) -> None:
        self._armed = False
        core = self._subscription.core
        if self._subscription.rescan is not self:
            return
        elapsed = core.clock.steady - self._last
        idle = core.iterations == self._iterations + 1
        self._last = core.clock.steady
        self._iterations = core.iterations
        self._try(core.tries * min(max(elapsed, 1), LONGEST) * (IDLE if idle else 1))

    def _sated(self) -> bool:
        return not self._following and all(
            pending_queue.length >= ENOUGH for pending_queue in self._pending_queues
        )

    def _try(self, budget: int) -> None:
        """Continue until the budget or the time of scans is used up. A delivery that goes to a
        pending queue without enough is not counted: it is work for that pending queue's
        consumers."""
        core = self._subscription.core
        everything = self._subscription.everything
        core.dirty[self._subscription] = None
        cursor = self._cursor
        tried = 0
        while budget > 0 and tried < ITERATION_DELIVERIES:
            if self._sated():
                return
            priority = cursor.priority
            deliveries = cursor.look(min(budget, STEP))
            if cursor.priority != priority:
                self._show(cursor.priority)
            if cursor.priority < 0:
                self._next()
                return
            if not deliveries and cursor.priority == priority:
                budget -= 1  # all it has looked at were no longer READY
            for delivery in deliveries:
                tried += 1
                cost = 1 + delivery.size // TRIED_BYTES
                pending_queues = self._routes.targets(core.read(delivery))
                if pending_queues:
                    everything.pull(delivery)
                for pending_queue in pending_queues:
                    if pending_queue.length < ENOUGH:
                        cost = 0
                    pending_queue.push(delivery)
                budget -= cost
                if core.scans.over():
                    cursor.back_to(delivery)
                    self._arm()
                    return
        self._arm()

    def _show(self, priority: int) -> None:
        """The pass has come down to a priority: what was kept of higher ones has its turn."""
        kept, self._kept = self._kept, []
        for pending_queue, delivery in kept:
            if delivery.priority <= priority:
                self._kept.append((pending_queue, delivery))
            elif delivery.state == READY:
                pending_queue.push(delivery)

    def _next(self) -> None:
        """Begin the next pass, if somebody waits for it."""
        self._show(-1)
        self._pending_queues = {}
        self._routes = Routes()
        if self._following:
            following, self._following = self._following, {}
            self._expected = Routes()
            self._cursor = self._begin()
            for pending_queue in following:
                self._enter(pending_queue)
            self._arm()
        else:
            self._subscription.rescan = None
