"""Subscriptions: dispatch, acknowledgement, redelivery, expiry and counts of one cursor.

Life of a delivery (states, and the methods that change them):

    add/recover ──> READY ──dispatch──> TAKEN ──settle──────────────> GONE
                     │ ^                  │ ├──release──> READY
                     │ │                  │ ├──time-out──> DELAYED (back-off) or READY
                     │ └──timer── DELAYED │ └──dead_letter─────────────> GONE
                     ├──expiry, purge, overflow─────────────────────────> GONE
    add (deliver_at) ──> DELAYED ──timer──> READY

attachment.py adds and removes consumers, dispatch.py selects messages for them, and redelivery.py
returns unacked messages to the pending queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from sluicemq.broker.core import Core
from sluicemq.broker.cursor import NO_END, Cursor
from sluicemq.broker.delivery import (
    DELAYED,
    GONE,
    HELD,
    READY,
    RECORDED,
    SHARED,
    TAKEN,
    UNJOURNALED,
    Delivery,
    place,
)
from sluicemq.broker.dispatch import hand_over
from sluicemq.broker.events import ACKNOWLEDGED, RELEASED, outcome_of
from sluicemq.broker.pending_queue import PRIORITIES, PendingQueue, Selector
from sluicemq.broker.routing import Routes
from sluicemq.journal.format import Cause
from sluicemq.model.destination import Overflow

if TYPE_CHECKING:
    from sluicemq.broker.consumer import Consumer, Window
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.selector_rescan import SelectorRescan
    from sluicemq.model.message import Message

DURABLE_SUBSCRIPTION: Final = 1 << 31
"""Bit set in the numbers of durable subscriptions; without it the number is a destination's."""
OFFERED: Final = 4096
"""Number of refused deliveries examined in one pass for capacity in the dead-letter queue."""
OFFERED_MOVES: Final = 256
"""Number of refused deliveries moved in one pass, so that other work is not delayed."""


class Subscription:
    """One independent cursor over a destination's messages, with its consumers.

    name      "" for a queue's own subscription; otherwise unique within the topic
    number    number in the journal, 0 = none; members of a group have their topic's number
    member    member of its topic's group (see Destination.members)
    exclude   no-local token: messages of this sender are not delivered
    owner     user that owns the subscription; "" = no owner yet, or not owned by a user
    waiting   number of READY and DELAYED deliveries; waiting_bytes = size of their bodies
    unacked   number of TAKEN deliveries; unacked_bytes = size of their bodies
    back      READY and DELAYED deliveries that were delivered before, by sequence: the consumer may
              still acknowledge them by their id
    pending_queues  by the text of the selector; "" is `everything`, which has no selector
    selective routes to pending queues, except those that still wait for a rescan pass
    retired   consumers that are detached and still hold deliveries
    refused   DELAYED deliveries that have ended and wait for capacity in the dead-letter queue, by
              sequence, with the reason and whether they are dead-lettered unconditionally
    retrying  True while a timer runs that offers the refused deliveries again
    rescan    matches ready messages against the selectors of new pending queues, or None
    closed    True once the subscription is deleted: returned deliveries are dropped
    acked, delivered, redelivered   sequences (with attempts) to journal in this iteration
    """

    __slots__ = (
        "acked",
        "back",
        "closed",
        "consumers",
        "core",
        "delayed",
        "delivered",
        "destination",
        "everything",
        "exclude",
        "member",
        "name",
        "number",
        "owner",
        "pending_queues",
        "redelivered",
        "refused",
        "rescan",
        "retired",
        "retrying",
        "selective",
        "selector",
        "shared",
        "unacked",
        "unacked_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        core: Core,
        destination: Destination,
        name: str = "",
        number: int = 0,
        selector: Selector | None = None,
        exclude: object = None,
        shared: bool = True,
        owner: str = "",
    ) -> None:
        self.core = core
        self.destination = destination
        self.name = name
        self.number = number
        self.member = False
        self.selector = selector
        self.exclude = exclude
        self.shared = shared
        self.owner = owner
        self.everything = PendingQueue(core.chunk_deliveries)
        self.pending_queues: dict[str, PendingQueue] = {"": self.everything}
        self.selective: Routes[PendingQueue] = Routes()
        self.rescan: SelectorRescan | None = None
        self.consumers: dict[Consumer, None] = {}
        self.retired: dict[Consumer, None] = {}
        self.delayed: dict[int, Delivery] = {}
        self.back: dict[int, Delivery] = {}
        self.refused: dict[int, tuple[Delivery, str, bool]] = {}
        self.retrying = False
        self.acked: list[int] = []
        self.delivered: list[int] = []
        self.redelivered: list[tuple[int, int]] = []
        self.closed = False
        self.waiting = 0
        self.waiting_bytes = 0
        self.unacked = 0
        self.unacked_bytes = 0

    # --- arrival -----------------------------------------------------------------------------

    def add(self, message: Message, journaled: int, alone: bool = False) -> None:
        """Add a message that has become visible to this subscription.

        `alone` states that no other subscription has received messages that could be ordered before
        it.
        """
        core = self.core
        now = core.clock.steady
        size = len(message.body)
        expiration = message.expiration
        expires = max(1, expiration - message.epoch) if expiration else 0
        due = message.deliver_at - message.epoch if message.deliver_at else 0
        delivery = Delivery(
            self,
            message.sequence,
            message,
            self.destination.priority(message.priority),
            size,
            journaled,
            expiration,
            expires,
        )
        if not message.references:
            core.memory += size + core.overhead
        message.references += 1
        pending_queue = self.everything
        if (
            alone
            and pending_queue.line
            and not pending_queue.mask
            and len(self.pending_queues) == 1
            and (not expires or expires > now)
            and due <= now
            and not self.destination.paused
            and not core.halted
            and not (self.destination.limited and self.destination.full(size))
        ):
            consumer = next(iter(pending_queue.line))
            if consumer.window.credit == 1:
                hand_over(consumer, delivery)
                return
        if expires and expires <= now:
            self.expire_uncounted(delivery)  # it came too late to displace another
        else:
            self.enter(delivery, due)
        if self.destination.limited:
            self.shed()
        if core.memory > core.memory_budget and journaled and delivery.state != GONE:
            if message.sequence <= core.journal.durable:
                core.page_out(delivery)
            else:
                core.unpaged.append(delivery)

    def recover(self, delivery: Delivery, due: int = 0) -> None:
        """Add a delivery found in the journal at start; called in ascending order. `due` as in
        `enter`.
        """
        if delivery.attempts:
            self.back[delivery.sequence] = delivery
        self.enter(delivery, due)

    def recover_requeued(self, delivery: Delivery) -> None:
        """Add a recovered delivery whose order differs from its sequence."""
        self.waiting += 1
        self.waiting_bytes += delivery.size
        if delivery.expires:
            self.core.wheel.add(delivery, self.core.clock.steady)
        self.put_back(delivery)

    def enter(self, delivery: Delivery, due: int) -> None:
        """Count a delivery as waiting and make it ready at steady time `due` (0 = immediately)."""
        self.waiting += 1
        self.waiting_bytes += delivery.size
        if delivery.expires:
            self.core.wheel.add(delivery, self.core.clock.steady)
        steady = self.core.clock.steady
        if due > steady:
            self.delay(delivery, due - steady)
        else:
            self._line_up(delivery)

    def _line_up(self, delivery: Delivery) -> None:
        """Append a delivery behind all of its priority, in every pending queue that it matches."""
        everything = self.everything
        everything.push(delivery)
        if len(self.pending_queues) == 1:
            if everything.line:
                self.core.dirty[self] = None
            return
        rescan = self.rescan
        for pending_queue in self.selective.targets(self.core.read(delivery)):
            if rescan is None or not rescan.defers(pending_queue, delivery):
                everything.share(delivery)
                pending_queue.push(delivery)
        self.core.dirty[self] = None

    def put_back(self, delivery: Delivery) -> None:
        """Return a delivery to its original position, in every pending queue that it matches."""
        delivery.state = READY
        delivery.consumer = None
        if delivery.attempts:
            self.back[delivery.sequence] = delivery
        everything = self.everything
        everything.reinsert(delivery)
        if len(self.pending_queues) > 1:
            rescan = self.rescan
            for pending_queue in self.selective.targets(self.core.read(delivery)):
                if rescan is None or not rescan.defers(pending_queue, delivery):
                    everything.share(delivery)
                    pending_queue.reinsert(delivery)
            self.tidy()
        self.core.dirty[self] = None
        self._released(delivery)

    def _released(self, delivery: Delivery) -> None:
        """Notify the observer that a delivery, if it was unacked, has returned."""
        if self.core.observer is not None:
            self.core.observer.ended(self, delivery.sequence, RELEASED)

    def tidy(self) -> None:
        """Compact the pending queues in which deliveries taken through other queues may prevail."""
        everything = self.everything
        gone = everything.length - self.ready
        if gone > 64 and gone > everything.loose() // 2:
            everything.compact()
        if len(self.pending_queues) == 1:
            return
        most = 2 * self.waiting + 64
        for pending_queue in self.pending_queues.values():
            if pending_queue is not everything and pending_queue.length > 64:
                loose = pending_queue.loose()
                if loose > most or loose > pending_queue.limit:
                    pending_queue.compact()

    def delay(self, delivery: Delivery, milliseconds: int) -> None:
        delivery.state = DELAYED
        delivery.consumer = None
        delivery.delivered = due = self.core.clock.steady + milliseconds
        self.delayed[delivery.sequence] = delivery
        self.core.timers.add(due, self._undelay, delivery)
        self._released(delivery)

    def _undelay(self, delivery: Delivery) -> None:
        # an administrator may have made it ready meanwhile, and it may have been delayed again
        if delivery.state == DELAYED and delivery.delivered <= self.core.clock.steady:
            self.end_delay(delivery)
            if delivery.journaled:
                self.core.clock_log.note_time()

    def end_delay(self, delivery: Delivery) -> None:
        """Make a delayed delivery ready."""
        del self.delayed[delivery.sequence]
        self.refused.pop(delivery.sequence, None)
        self.put_back(delivery)

    def shed(self) -> None:
        """Apply the dropping policies after an arrival."""
        limits = self.destination.settings
        if limits.overflow is Overflow.DROP_OLDEST:
            take = self.everything.take_oldest
        elif limits.overflow is Overflow.DROP_LOWEST:
            take = self.everything.take_lowest
        else:
            return
        while (limits.max_messages and self.waiting > limits.max_messages) or (
            limits.max_bytes and self.waiting_bytes > limits.max_bytes
        ):
            if not self.destination.drops:
                return
            delivery = take()
            if delivery is None:
                return
            self.withdraw(delivery)
            self.drop(delivery, "overflow", False)

    # --- consumers (see also attachment.py) --------------------------------------------------

    def let_go(self, consumer: Consumer) -> None:
        """Forget a retired consumer once it holds no more deliveries."""
        if consumer.retired and not consumer.unacked:
            self.retired.pop(consumer, None)

    @property
    def holders(self) -> list[Consumer]:
        """Return the consumers that may hold a delivery."""
        return [*self.consumers, *self.retired]

    def enter_line(self, consumer: Consumer) -> None:
        """Put the consumer at the end of its line, if it may take a message."""
        if consumer.window.credit > 0 and consumer.active and not consumer.suspended:
            line = consumer.pending_queue.line
            line.pop(consumer, None)
            line[consumer] = None
            if consumer.pending_queue.mask:
                self.core.dirty[self] = None

    @property
    def hungry(self) -> bool:
        """True if a consumer waits in a line and no ready message is pending for it."""
        return any(
            pending_queue.line and not pending_queue.mask
            for pending_queue in self.pending_queues.values()
        )

    # --- acknowledgement ---------------------------------------------------------------------

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge a delivery of `consumer`; False when it holds no such delivery."""
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is None:
            return False
        self.unacked -= 1
        self.unacked_bytes -= delivery.size
        self.destination.statistics.acknowledged += 1
        delivery.state = GONE
        message = delivery.message
        if message is not None:
            message.references -= 1
            if not message.references:
                self.core.memory -= delivery.size + self.core.overhead
            delivery.message = None
        if delivery.expires:
            self.core.wheel.discard(delivery)
        if delivery.journaled == RECORDED:
            if not self.acked:
                self.core.settling[self] = None
            self.acked.append(sequence)
        elif delivery.journaled == SHARED:
            if self.destination.is_last_copy(sequence):
                if self.number == self.destination.number:
                    if not self.acked:
                        self.core.settling[self] = None
                    self.acked.append(sequence)
                else:
                    self.destination.end_shared(sequence)
        elif delivery.journaled == HELD:
            self.core.journal.release(sequence)
        window = consumer.window
        if window.refill:
            window.credit += 1
            if window.credit == 1:
                self.refilled(window)
            elif consumer.pending_queue.mask:
                self.core.dirty[self] = None
        elif consumer.retired:
            self.let_go(consumer)
        if self.core.observer is not None:
            self.core.observer.ended(self, sequence, ACKNOWLEDGED)
        return True

    def settle_any(self, sequence: int) -> bool:
        """Acknowledge a message that has been delivered, regardless of its present consumer."""
        for consumer in self.holders:
            if sequence in consumer.unacked:
                return self.settle(consumer, sequence)
        delivery = self._take_back(sequence)
        if delivery is not None:
            self.destination.statistics.acknowledged += 1
            self.end(delivery, Cause.ACKNOWLEDGED)
            return True
        return False

    def flush_acks(self) -> None:
        """Append the acknowledgements of this iteration to the journal as one record."""
        acked = self.acked
        if acked:
            self.acked = []
            self.core.settled = self.core.journal.append_completed(
                self.number,
                self.destination.number,
                Cause.ACKNOWLEDGED,
                acked,
                self.core.clock.wall,
            )

    def refilled(self, window: Window) -> None:
        for peer in window.consumers:
            peer.subscription.enter_line(peer)

    def _take_back(self, sequence: int) -> Delivery | None:
        """Remove a requeued delivery from the ready or delayed messages and return it, or None."""
        delivery = self.back.pop(sequence, None)
        if delivery is not None:
            self.take_out(delivery)
            self.tidy()
        return delivery

    def seize(self, sequence: int) -> Delivery | None:
        """Remove a message that has been delivered before and return it, or None.

        The message may be unacked, or have been requeued since.
        """
        return self.take_from_holder(sequence) or self._take_back(sequence)

    def take_from_holder(self, sequence: int) -> Delivery | None:
        """Remove an unacked delivery from its consumer and restore the consumer's credit."""
        for consumer in self.holders:
            delivery = consumer.unacked.pop(sequence, None)
            if delivery is not None:
                self.let_go(consumer)
                self.unacked -= 1
                self.unacked_bytes -= delivery.size
                delivery.consumer = None
                if consumer.window.refill:
                    consumer.window.credit += 1
                    self.refilled(consumer.window)
                return delivery
        return None

    # --- the end of a delivery -----------------------------------------------------------------

    def end(self, delivery: Delivery, cause: Cause) -> None:
        """End a delivery that is no longer counted, and journal the cause."""
        self.forget(delivery, cause)
        if delivery.journaled == RECORDED:
            self.core.event_recorder.write()
            self.core.journal.append_completed(
                self.number,
                self.destination.number,
                cause,
                [delivery.sequence],
                self.core.clock.wall,
            )

    def forget(self, delivery: Delivery, cause: Cause) -> None:
        """End a delivery without journaling it, because another record already does."""
        if delivery.state == DELAYED:
            self.delayed.pop(delivery.sequence, None)
            self.refused.pop(delivery.sequence, None)
        if delivery.attempts:
            self.back.pop(delivery.sequence, None)
        delivery.state = GONE
        core = self.core
        message = delivery.message
        if message is not None:
            message.references -= 1
            if not message.references:
                core.memory -= delivery.size + core.overhead
            delivery.message = None
        if delivery.expires:
            core.wheel.discard(delivery)
        if delivery.journaled == SHARED:
            if self.destination.is_last_copy(delivery.sequence):
                self.destination.end_shared(delivery.sequence)
        elif delivery.journaled == HELD:
            core.journal.release(delivery.sequence)
        if self.destination.parked:
            core.unblocking[self.destination] = None
        if core.observer is not None:
            core.observer.ended(self, delivery.sequence, outcome_of(cause))

    def withdraw(self, delivery: Delivery) -> None:
        """Stop counting a waiting delivery as ready or delayed, without dispatching it."""
        self._leave_waiting(delivery)
        if delivery.state == DELAYED:
            del self.delayed[delivery.sequence]
            self.refused.pop(delivery.sequence, None)
        delivery.state = TAKEN

    def take_out(self, delivery: Delivery) -> None:
        """Withdraw a delivery and remove it from the pending queue for good.

        The object may be a temporary one, unpacked from a chunk. The caller calls `tidy`
        afterwards.
        """
        if delivery.state == READY:
            self.everything.discard(delivery)
        self.withdraw(delivery)

    def _leave_waiting(self, delivery: Delivery) -> None:
        self.waiting -= 1
        self.waiting_bytes -= delivery.size

    def expire(self, delivery: Delivery) -> None:
        """Expire a waiting delivery, which may already have been removed from its pending queue."""
        self.take_out(delivery)
        self.expire_uncounted(delivery)
        self.tidy()

    def expire_uncounted(self, delivery: Delivery) -> None:
        """Expire a delivery that is not counted as waiting."""
        self.destination.statistics.expired += 1
        self.finish(delivery, "expired", False)

    def drop(self, delivery: Delivery, reason: str, force: bool) -> None:
        """Dead-letter a delivery, end it, or keep it until the dead-letter queue has capacity.

        The delivery must no longer be counted as waiting or unacked.
        """
        self.finish(delivery, reason, force)

    def finish(self, delivery: Delivery, reason: str, force: bool) -> None:
        """Do the same as `drop` for a delivery whose expiry, if any, has already been counted."""
        dead_lettered = self.core.dead_letters.move(delivery, reason, force)
        if dead_lettered is None:
            self.keep_refused(delivery, reason, force)
        elif dead_lettered:
            return
        elif reason == "expired":
            self.end(delivery, Cause.EXPIRED)
        else:
            self.destination.statistics.dropped += 1
            self.end(delivery, Cause.DROPPED)

    def keep_refused(self, delivery: Delivery, reason: str, force: bool) -> None:
        """Keep a delivery that the full dead-letter queue refused, and offer it again later.

        The delivery counts as waiting and is delivered to no consumer. The next offer follows after
        `refused_retry` milliseconds.
        """
        core = self.core
        self.waiting += 1
        self.waiting_bytes += delivery.size
        if delivery.expires:
            core.wheel.discard(delivery)
        delivery.state = DELAYED
        delivery.consumer = None
        delivery.delivered = core.clock.steady + core.refused_retry
        self.delayed[delivery.sequence] = delivery
        self.refused[delivery.sequence] = (delivery, reason, force)
        if delivery.attempts:
            self.back[delivery.sequence] = delivery
        if (
            core.memory > core.memory_budget
            and delivery.journaled
            and delivery.message is not None
            and delivery.sequence <= core.journal.durable
        ):
            core.page_out(delivery)
        self._retry_in(core.refused_retry)
        self._released(delivery)

    def _retry_in(self, milliseconds: int) -> None:
        if not self.retrying:
            self.retrying = True
            self.core.timers.add(self.core.clock.steady + milliseconds, self._offer_again, None)

    def _offer_again(self, argument: None) -> None:
        """Move refused deliveries for which the dead-letter queue has capacity, oldest first."""
        self.retrying = False
        fits = self.core.dead_letters.fits
        moved = 0
        for delivery, reason, force in list(islice(self.refused.values(), OFFERED)):
            if moved == OFFERED_MOVES or not fits(self.destination, 0):
                break
            if self.refused.get(delivery.sequence) is None or not fits(
                self.destination, delivery.size
            ):
                continue
            self.withdraw(delivery)
            self.finish(delivery, reason, force)
            moved += 1
        if self.refused:
            self._retry_in(1 if moved == OFFERED_MOVES else self.core.refused_retry)

    def dead_letter(self, sequence: int, reason: str, force: bool) -> bool:
        """Remove a delivered message for good; return False if no such delivery exists."""
        delivery = self.seize(sequence)
        if delivery is None:
            return False
        self.drop(delivery, reason, force)
        return True

    def purge(self, unacked: bool, cause: Cause = Cause.PURGED) -> int:
        """Drop the ready and delayed messages, and with `unacked` the unacked ones too.

        Return the number of messages dropped.
        """
        recorded: list[int] = []
        count = 0
        for delivery in self._purged(unacked):
            count += 1
            if delivery.journaled == RECORDED:
                recorded.append(delivery.sequence)
            self.forget(delivery, cause)
        for pending_queue in self.pending_queues.values():
            pending_queue.clear()
        if recorded:
            self.core.event_recorder.write()
            self.core.journal.append_completed(
                self.number, self.destination.number, cause, recorded, self.core.clock.wall
            )
        return count

    def _purged(self, unacked: bool) -> Iterator[Delivery]:
        """Yield each delivery to be purged, no longer counted; the caller ends it with `forget`."""
        for delivery in chain(self.everything, list(self.delayed.values())):
            self._leave_waiting(delivery)
            yield delivery
        if unacked:
            for consumer in self.holders:
                for sequence in list(consumer.unacked):
                    delivery = consumer.unacked[sequence]
                    if self.take_from_holder(sequence):
                        yield delivery

    # --- views -------------------------------------------------------------------------------

    def browse(self, unacked: bool = True) -> Iterator[Delivery]:
        """Iterate over the deliveries in queue order: unacked ones in their position, delayed ones
        last.

        The iterator is read-only and valid until the next change of the subscription.
        """
        flight: list[Delivery] = []
        if unacked:
            for consumer in self.holders:
                flight.extend(consumer.unacked.values())
            flight.sort(key=place)
        return chain(merge(self.everything, flight, key=place), self.delayed.values())

    def failures(self) -> Iterator[tuple[int, int]]:
        """Yield (sequence, failed attempts) of journaled deliveries that have failed at least
        once.
        """
        for delivery in self.back.values():
            if delivery.journaled >= SHARED:
                yield delivery.sequence, delivery.attempts
        for delivery in self.in_flight():
            if delivery.attempts > 1:
                yield delivery.sequence, delivery.attempts - 1

    def in_flight(self) -> Iterator[Delivery]:
        """Yield the unacked deliveries that are journaled."""
        for consumer in self.holders:
            for delivery in consumer.unacked.values():
                if delivery.journaled >= SHARED:
                    yield delivery

    def cursor(self, until: int = NO_END, priority: int = PRIORITIES - 1, last: int = 0) -> Cursor:
        """Return a cursor over the ready deliveries; arguments as in Cursor."""
        return Cursor(self.everything, until, priority, last)

    def head(self) -> Delivery | None:
        """Return the next delivery to dispatch to a consumer without a selector, or None."""
        return self.everything.head()

    def eldest(self) -> Delivery | None:
        """Return the ready delivery that was published first, or None."""
        return self.everything.eldest()

    def oldest(self) -> int:
        """Return the arrival time (wall ms) of the next message to deliver; 0 if none is ready."""
        head = self.everything.head()
        return self.core.read(head).arrival if head else 0

    @property
    def ready(self) -> int:
        """Number of deliveries that wait and are not delayed."""
        return self.waiting - len(self.delayed)

    @property
    def clean(self) -> bool:
        """True if every delivery in the main pending queue is READY."""
        return self.everything.length == self.ready

    def accepts(self, message: Message) -> bool:
        """Return whether the selector matches and the message's sender is not excluded."""
        if self.exclude is not None and message.sender == self.exclude:
            return False
        return self.selector is None or self.selector(message)

    @property
    def durable(self) -> bool:
        """True if it belongs to a topic and outlives its consumers and the process."""
        return self.number >= DURABLE_SUBSCRIPTION

    def journaling(self, message: Message) -> int:
        """Return the journaling mode of this message's delivery here, outside a group."""
        if not message.durability:
            return UNJOURNALED
        return RECORDED if self.durable else HELD
