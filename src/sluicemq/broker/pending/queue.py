"""Pending queue of one selector: deliveries by priority, then order; consumers in turn.

A subscription has one pending queue for consumers without a selector and one for each distinct
selector in use. A delivery is in every pending queue that it matches and is taken from only one;
the others find it no longer READY and skip it. So a selector is evaluated once per message, a take
is O(1), and the backlog is searched only when a selector is new (see selector_rescan.py).

Each priority has two sources: a FIFO of first deliveries, and the requeued deliveries
(backlog.py). The lower `order` goes first, which preserves the original position. The older part
of a long FIFO is kept in chunks (backlog.py). No delivery is in a pending queue twice.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from sluicemq.broker.pending.backlog import (
    Chunks,
    PackedChunk,
    entries_after,
    entry_at,
    order_of,
    ready_of,
)
from sluicemq.broker.pending.entry import READY, AnyEntry
from sluicemq.broker.routing import Selector

PRIORITIES: Final = 10
COMPACTION_MIN: Final = 1024
"""Smallest number of objects in a pending queue before deliveries that have ended are removed."""

AnyConsumer = TypeVar("AnyConsumer")


class PendingQueue(Generic[AnyEntry, AnyConsumer]):
    """Ready deliveries of one selector. `available_consumers` can take a message now.

    fifos     newest part of the FIFO, by priority
    backlogs  older part of the FIFO in chunks, by priority
    requeued  requeued deliveries by priority; None when there are none
    mask      a bit for each priority that has deliveries
    length    number of deliveries, including those that are no longer READY
    limit     number of objects above which the pending queue is compacted
    """

    __slots__ = (
        "_chunk_size",
        "available_consumers",
        "backlogs",
        "consumers",
        "fifos",
        "length",
        "limit",
        "mask",
        "pinned",
        "requeued",
        "selector",
    )

    def __init__(self, chunk_size: int, selector: Selector | None = None) -> None:
        """Create an empty pending queue; `chunk_size` is the number of deliveries in a chunk."""
        self._chunk_size = chunk_size
        self.selector = selector
        self.backlogs: list[Chunks[AnyEntry] | None] = [None] * PRIORITIES
        self.pinned = False
        """True if other pending queues may contain some of its deliveries too."""
        self.fifos: list[deque[AnyEntry] | None] = [None] * PRIORITIES
        self.requeued: list[Chunks[AnyEntry] | None] = [None] * PRIORITIES
        self.mask = 0
        self.length = 0
        self.limit = COMPACTION_MIN
        self.available_consumers: OrderedDict[AnyConsumer, None] = OrderedDict()
        self.consumers = 0

    def push(self, delivery: AnyEntry) -> None:
        """Append a delivery, in O(1) if its order is the highest of its priority.

        It is not the highest if other messages overtook it while it was staged.
        """
        priority = delivery.priority
        fifo = self.fifos[priority]
        if fifo is None:
            fifo = self.fifos[priority] = deque()
        elif fifo:
            if fifo[-1].order > delivery.order:
                self.reinsert(delivery)
                return
        else:
            backlog = self.backlogs[priority]
            if backlog is not None and backlog.last() > delivery.order:
                self.reinsert(delivery)
                return
        fifo.append(delivery)
        self.mask |= 1 << priority
        self.length += 1
        if len(fifo) > 2 * self._chunk_size:
            self._move_to_backlog(priority, fifo)

    def _move_to_backlog(self, priority: int, fifo: deque[AnyEntry]) -> None:
        """Move the older half of a long FIFO to the backlog."""
        deliveries = [fifo.popleft() for _ in range(self._chunk_size)]
        ready = ready_of(deliveries)
        self.length -= len(deliveries) - len(ready)
        packing = self.selector is None
        if packing and self.pinned:
            for delivery in ready:
                if delivery.pinned:
                    self.length -= 1
                    self._insert(delivery)
            ready = [delivery for delivery in ready if not delivery.pinned]
        if ready:
            backlog = self.backlogs[priority]
            if backlog is None:
                backlog = self.backlogs[priority] = Chunks()
            backlog.append(ready, packing)

    def pin(self, delivery: AnyEntry) -> None:
        """Mark a delivery object of this queue that will be in another pending queue too."""
        delivery.pinned = True
        self.pinned = True

    def pin_unpacked(self, delivery: AnyEntry) -> None:
        """Keep this object of a READY delivery in the pending queue, because another holder needs
        it.

        The delivery must have just been returned by `after` or by a cursor.
        """
        self.pin(delivery)
        backlog = self.backlogs[delivery.priority]
        if backlog is not None and backlog.discard(delivery.sequence, packed=True):
            self.length -= 1
            self._insert(delivery)
            self._remove_empty(delivery.priority)

    def discard(self, delivery: AnyEntry) -> None:
        """Remove a READY delivery without taking it.

        Among the newest deliveries it remains until it is skipped as no longer READY.
        """
        for chunks in (self.backlogs[delivery.priority], self.requeued[delivery.priority]):
            if chunks is not None and chunks.discard(delivery.order):
                self.length -= 1
                self._remove_empty(delivery.priority)
                return
        delivery.pinned = True  # if it becomes READY again, `reinsert` has to look for it

    def _remove_empty(self, priority: int) -> None:
        """Remove the parts of a priority that have become empty."""
        backlog, requeued = self.backlogs[priority], self.requeued[priority]
        if backlog is not None and backlog.trim():
            self.backlogs[priority] = backlog = None
        if requeued is not None and requeued.trim():
            self.requeued[priority] = requeued = None
        if backlog is None and requeued is None and not self.fifos[priority]:
            self.mask &= ~(1 << priority)

    def after(self, priority: int, order: int, count: int) -> list[AnyEntry]:
        """Return the first `count` deliveries of a priority after that order, in any state.

        Those in chunks are temporary objects.
        """
        backlog = self.backlogs[priority]
        deliveries = backlog.after(order, count) if backlog is not None else []
        fifo = self.fifos[priority]
        if fifo and len(deliveries) < count:
            deliveries += entries_after(fifo, order, count - len(deliveries))
        requeued = self.requeued[priority]
        if requeued is not None:
            deliveries += requeued.after(order, count)
            deliveries.sort(key=order_of)
            del deliveries[count:]
        return deliveries

    def packed_after(self, priority: int, order: int) -> PackedChunk[AnyEntry] | None:
        """Return the packed chunk that has the next deliveries of a priority after that order.

        None if they are not in one, or if requeued deliveries are among them.
        """
        backlog, requeued = self.backlogs[priority], self.requeued[priority]
        chunk = backlog.packed_after(order) if backlog is not None else None
        if chunk is not None and requeued is not None:
            candidates = requeued.after(order, 1)
            if candidates and candidates[0].order <= chunk.last:
                return None
        return chunk

    def find(self, priority: int, order: int) -> AnyEntry | None:
        """Return the delivery with that order, in any state; one in a chunk as a temporary
        object.
        """
        requeued = self.requeued[priority]
        if requeued is not None:
            delivery = requeued.find(order)
            if delivery is not None:
                return delivery
        fifo = self.fifos[priority]
        if fifo and fifo[0].order <= order:
            return entry_at(fifo, order)
        backlog = self.backlogs[priority]
        return backlog.find(order) if backlog is not None else None

    def reinsert(self, delivery: AnyEntry) -> None:
        """Insert a delivery at the position of its order, unless it is there already.

        A delivery taken through another pending queue stays in this one until it is skipped.
        """
        if delivery.pinned and self.find(delivery.priority, delivery.order) is delivery:
            return
        self._insert(delivery)

    def _insert(self, delivery: AnyEntry) -> None:
        priority = delivery.priority
        requeued = self.requeued[priority]
        if requeued is None:
            requeued = self.requeued[priority] = Chunks()
        requeued.insert(delivery)
        self.mask |= 1 << priority
        self.length += 1

    def take(self) -> AnyEntry | None:
        """Remove and return the first READY delivery of the highest priority."""
        while self.mask:
            priority = self.mask.bit_length() - 1
            fifo = self.fifos[priority]
            if fifo and self.backlogs[priority] is None and self.requeued[priority] is None:
                # inlined `_pop` for the common case
                delivery = fifo.popleft()
                self.length -= 1
                if not fifo:
                    self.mask &= ~(1 << priority)
            else:
                delivery = self._pop(priority)
            if delivery.state == READY:
                return delivery
        return None

    def take_for_drop(self, lowest: bool) -> AnyEntry | None:
        """Remove and return the READY delivery with the lowest order: of the lowest priority with
        `lowest`, otherwise of all.
        """
        while self.mask:
            priority = (self.mask & -self.mask).bit_length() - 1
            if not lowest:
                priorities = [number for number in range(PRIORITIES) if self.mask >> number & 1]
                priority = min(priorities, key=lambda number: self._front(number)[0].order)
            delivery = self._pop(priority)
            if delivery.state == READY:
                return delivery
        return None

    def head(self) -> AnyEntry | None:
        """Return the delivery that `take` would return, without removing it."""
        while self.mask:
            priority = self.mask.bit_length() - 1
            delivery = self._front(priority)[0]
            if delivery.state == READY:
                return delivery
            self._pop(priority)
        return None

    def _front(self, priority: int) -> deque[AnyEntry]:
        """Return the deque that begins with the first delivery of a priority that has any."""
        backlog, requeued = self.backlogs[priority], self.requeued[priority]
        front = backlog.front() if backlog is not None else self.fifos[priority]
        if requeued is not None:
            requeued_front = requeued.front()
            if not front or requeued_front[0].order < front[0].order:
                return requeued_front
        assert front
        return front

    def _pop(self, priority: int) -> AnyEntry:
        front = self._front(priority)
        delivery = front.popleft()
        self.length -= 1
        if not front:
            self._remove_empty(priority)
        return delivery

    def count_objects(self) -> int:
        """Return the number of its deliveries that are objects."""
        return self.length - sum(backlog.packed for backlog in self.backlogs if backlog is not None)

    def compact(self) -> None:
        """Remove the deliveries that were taken through other pending queues."""
        self.length = 0
        self.mask = 0
        for priority in range(PRIORITIES):
            count = 0
            backlog = self.backlogs[priority]
            if backlog is not None:
                count = backlog.compact()
            fifo = self.fifos[priority]
            if fifo is not None:
                fifo = deque(ready_of(fifo))
                self.fifos[priority] = fifo
                count += len(fifo)
            requeued = self.requeued[priority]
            if requeued is not None:
                count += requeued.compact()
            self.length += count
            self.mask |= 1 << priority
            self._remove_empty(priority)
        self.limit = 2 * self.count_objects() + COMPACTION_MIN
