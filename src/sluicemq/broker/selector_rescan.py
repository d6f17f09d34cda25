"""Selector rescan: matching of ready messages against new selectors.

A consumer may attach with a new selector to a queue of millions of messages. Reading and matching
them takes seconds, in which the broker must serve other clients. So the rescan runs in slices, each
a share of a millisecond's work and limited by the time of scans: one pass over the queue for all
selectors that were new when it began; later selectors wait for the next pass. Deliveries of a
packed backlog become objects only if a selector matches them.

Messages that arrive during the pass are matched immediately, so that the pass ends regardless of
the arrival rate; but they are kept back until the pass has completed their priority, so that they
do not overtake older messages. The pass pauses when each of its pending queues has enough
deliveries and no selector waits for the next pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sluicemq.broker.pending.cursor import Cursor
from sluicemq.broker.pending.entry import READY
from sluicemq.broker.routing import Routes

if TYPE_CHECKING:
    from sluicemq.broker.pending.queue import PendingQueue
    from sluicemq.broker.state import Consumer, Delivery, Subscription

    Pending = PendingQueue[Delivery, Consumer]

ENOUGH_READY: Final = 1000
"""Number of deliveries in a pending queue that needs no more for now."""
STEP: Final = 50
"""Deliveries matched between two checks of the pending queues' lengths."""
IDLE_FACTOR: Final = 3
"""Factor of the budget when the broker is idle: no iteration but the last slice's own has run."""
MAX_ELAPSED_MS: Final = 10
"""Longest pause that one slice makes up for, in ms."""
BYTES_PER_COST: Final = 1 << 13
"""Bytes of a body that cost as much as another delivery."""
MIN_DEFERRED: Final = 1024
"""Number of deliveries kept back before those that are no longer READY are removed."""


class SelectorRescan:
    """Rescan of one subscription. It ends by itself."""

    __slots__ = (
        "_cursor",
        "_deferred",
        "_deferred_limit",
        "_is_scheduled",
        "_iterations",
        "_last_slice",
        "_next_queues",
        "_pending_queues",
        "_routes",
        "_subscription",
    )

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._pending_queues: dict[Pending, None] = {}
        """Pending queues of the present pass."""
        self._routes: Routes[Pending] = Routes()
        """Routes to the pending queues of the present pass."""
        self._next_queues: dict[Pending, None] = {}
        """Pending queues that wait for the next pass."""
        self._deferred: dict[tuple[Pending, Delivery], None] = {}
        """Matching deliveries that arrived since the pass began, in order of arrival."""
        self._deferred_limit = MIN_DEFERRED
        """Number of them above which those that are no longer READY are removed."""
        self._is_scheduled = False
        self._last_slice = 0
        """Steady ms of the last slice."""
        self._iterations = 0
        """Number of iterations that had ended at the last slice."""
        self._cursor = self._begin()

    def _begin(self) -> Cursor[Delivery]:
        subscription = self._subscription
        return Cursor(subscription.all_ready, subscription.core.journal.next_sequence())

    def add_queue(self, pending_queue: Pending) -> None:
        """Match the waiting messages against the selector of a new pending queue."""
        if self._pending_queues:
            self._next_queues[pending_queue] = None
            self._schedule()
            return
        self._add_to_pass(pending_queue)
        core = self._subscription.core
        self._last_slice = core.clock.steady
        self._iterations = core.iterations
        if core.scans.waiting or core.scans.is_time_up():
            self._schedule()
        else:
            self._match_slice(core.settings.rescan_first_slice)

    def _add_to_pass(self, pending_queue: Pending) -> None:
        """Add a pending queue to this pass."""
        self._pending_queues[pending_queue] = None
        self._routes.add(pending_queue, pending_queue.selector)

    def remove_queue(self, pending_queue: Pending) -> None:
        """Stop the rescan of an unused pending queue."""
        self._next_queues.pop(pending_queue, None)
        if pending_queue in self._pending_queues:
            del self._pending_queues[pending_queue]
            self._routes.remove(pending_queue, pending_queue.selector)
            if not self._pending_queues:
                self._begin_next_pass()

    def defers(self, pending_queue: Pending, delivery: Delivery) -> bool:
        """Return whether a matching delivery must not enter the pending queue yet.

        True if the pass, or the next one, will reach the delivery, or if the pass has to complete
        its priority first.
        """
        if pending_queue in self._next_queues:
            return True
        cursor = self._cursor
        if pending_queue not in self._pending_queues or delivery.priority > cursor.priority:
            return False
        if delivery.order <= cursor.until:
            return cursor.is_before(delivery)
        self._subscription.all_ready.pin(delivery)
        self._deferred[pending_queue, delivery] = None
        if len(self._deferred) > self._deferred_limit:
            # drop those that other consumers have taken; a requeued one is kept back again
            self._deferred = {entry: None for entry in self._deferred if entry[1].state == READY}
            self._deferred_limit = 2 * len(self._deferred) + MIN_DEFERRED
        return True

    def resume(self) -> None:
        """Resume a paused pass after deliveries were taken from the pending queues."""
        if not self._is_scheduled and not self._has_enough():
            self._last_slice = self._subscription.core.clock.steady
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            core = self._subscription.core
            core.timers.add(core.clock.steady + 1, core.scans.schedule, self._run_slice)

    def _run_slice(self) -> None:
        self._is_scheduled = False
        core = self._subscription.core
        if self._subscription.rescan is not self:
            return
        elapsed = core.clock.steady - self._last_slice
        is_idle = core.iterations == self._iterations + 1
        self._last_slice = core.clock.steady
        self._iterations = core.iterations
        self._match_slice(
            core.settings.rescan_rate
            * min(max(elapsed, 1), MAX_ELAPSED_MS)
            * (IDLE_FACTOR if is_idle else 1)
        )

    def _has_enough(self) -> bool:
        return not self._next_queues and all(
            pending_queue.length >= ENOUGH_READY for pending_queue in self._pending_queues
        )

    def _match_slice(self, budget: int) -> None:
        """Continue until the budget or the time of scans is used up.

        A delivery matched for a pending queue that has too few is free of charge: it is work for
        the consumers of that pending queue.
        """
        core = self._subscription.core
        all_ready = self._subscription.all_ready
        core.dispatchable[self._subscription] = None
        cursor = self._cursor
        while budget > 0:
            if self._has_enough():
                return
            priority = cursor.priority
            deliveries = cursor.examine(min(budget, STEP))
            if cursor.priority != priority:
                self._push_deferred(cursor.priority)
            if cursor.priority < 0:
                self._begin_next_pass()
                return
            if not deliveries and cursor.priority == priority:
                budget -= 1  # all deliveries examined were no longer READY
            for delivery in deliveries:
                cost = 1 + delivery.size // BYTES_PER_COST
                pending_queues = self._routes.targets(core.read(delivery))
                if pending_queues:
                    all_ready.pin_unpacked(delivery)
                for pending_queue in pending_queues:
                    if pending_queue.length < ENOUGH_READY:
                        cost = 0
                    pending_queue.push(delivery)
                budget -= cost
                if core.scans.is_time_up():
                    cursor.rewind_to(delivery)
                    self._schedule()
                    return
        self._schedule()

    def _push_deferred(self, priority: int) -> None:
        """Publish the deliveries kept back for priorities that the pass has completed."""
        entries, self._deferred = self._deferred, {}
        for pending_queue, delivery in entries:
            if delivery.priority <= priority:
                self._deferred[pending_queue, delivery] = None
            elif delivery.state == READY:
                pending_queue.push(delivery)

    def _begin_next_pass(self) -> None:
        """Begin the next pass if pending queues wait for it."""
        self._push_deferred(-1)
        self._pending_queues = {}
        self._routes = Routes()
        if self._next_queues:
            pending_queues, self._next_queues = self._next_queues, {}
            self._cursor = self._begin()
            for pending_queue in pending_queues:
                self._add_to_pass(pending_queue)
            self._schedule()
        else:
            self._subscription.rescan = None
