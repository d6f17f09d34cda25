"""Browsing, and operations of administrators: find, delete, move, copy, redeliver, redrive, purge.

             ready     scheduled unacked     in a transaction
    delete   yes       yes       yes         no
    move     yes       yes       no          no
    copy     yes       yes       yes         yes
    redeliver    -     ready now requeued    no

Each operation on one message is one journal unit, so that after a crash the message is in exactly
one place; `when_durable` accepts the sequence that is returned. An unacked message that is deleted
or requeued no longer belongs to its consumer: the broker ignores a later acknowledgement. A moved
message keeps its sender's delivery time and expiration; but if a destination limits the lifetime of
messages, the lifetime starts again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from sluicemq.broker.destinations import Destinations
from sluicemq.broker.dispatch import requeue_at_tail
from sluicemq.broker.pending.backlog import order_of
from sluicemq.broker.pending.cursor import FIRST_BATCH
from sluicemq.broker.pending.entry import READY, RECORDED, SCHEDULED, UNACKED, queue_order
from sluicemq.broker.pending.queue import PRIORITIES
from sluicemq.broker.publishing import Publisher
from sluicemq.broker.redelivery import release
from sluicemq.broker.state import Core, Delivery, Destination, Subscription
from sluicemq.broker.subscription import (
    compact_pending_queues,
    end_all,
    end_delay,
    remove_unacked,
    remove_waiting,
    withdraw,
)
from sluicemq.journal.format import Cause
from sluicemq.journal.space import ignore
from sluicemq.model.dead_letters import DeadLetterOrigin, without_dead_letter_properties
from sluicemq.model.destination import CreatedBy, Kind
from sluicemq.model.errors import (
    ActionRefused,
    BrokerError,
    BrokerStopping,
    DestinationNotFound,
    DestinationPrivate,
    LimitExceeded,
    LowDiskSpace,
    MessageTooLarge,
)
from sluicemq.model.message import Message

STEP: Final = 50
"""Deliveries of a browse that are examined together."""
SLICE: Final = 200
"""Number of messages that are purged together, with one record of the journal."""

_REASONS: Final[dict[type[BrokerError], str]] = {
    DestinationPrivate: "target-refused",
    LimitExceeded: "target-full",
    LowDiskSpace: "low-disk-space",
    MessageTooLarge: "too-large",
}
"""Reason of the ActionRefused for each error of the target."""


def scan(subscription: Subscription) -> Iterator[tuple[int, Delivery | None] | None]:
    """Yield the ready and unacked messages in queue order, determined step by step.

    Each is its sequence, with the delivery if the message is not journaled: it has the message
    until it ends. The caller fetches a journaled message.

    The subscription may change meanwhile. Messages that arrive after the start are left out;
    messages dispatched meanwhile may be. None = no message in this step; the scan continues.
    """
    core = subscription.core
    cursor = subscription.cursor(core.journal.next_sequence())
    unacked = deque(sorted(subscription.unacked_deliveries, key=queue_order))
    while cursor.priority >= 0 or unacked:
        deliveries: list[Delivery] = []
        if cursor.priority >= 0:
            deliveries = cursor.examine(STEP)
        elif unacked[0].state in (READY, UNACKED):
            deliveries = [unacked.popleft()]
        else:
            unacked.popleft()  # it has ended or is delayed
        steady = core.clock.steady
        entries = [_browsed(delivery, steady) for delivery in _merged(deliveries, unacked)]
        yield from entries or (None,)


def _merged(deliveries: list[Delivery], unacked: deque[Delivery]) -> Iterator[Delivery]:
    """Merge a cursor's deliveries with the unacked ones that precede each of them.

    An unacked one may be READY again: the cursor has returned it now, or had passed it before.
    """
    for delivery in deliveries:
        position = queue_order(delivery)
        while unacked and queue_order(unacked[0]) <= position:
            first = unacked.popleft()
            if first is not delivery and first.state in (READY, UNACKED):
                yield first
        yield delivery


def _browsed(delivery: Delivery, steady: int) -> tuple[int, Delivery | None] | None:
    if delivery.expires and delivery.expires <= steady:
        return None
    return delivery.sequence, None if delivery.journaled else delivery


class Operations:
    """Operations of administrators on the messages of a broker."""

    def __init__(
        self,
        core: Core,
        destinations: Destinations,
        publisher: Publisher,
    ) -> None:
        self._core = core
        self._destinations = destinations
        self._publisher = publisher

    def find(self, subscription: Subscription, sequence: int) -> Delivery | None:
        """Return the delivery of a message, ready, scheduled, unacked or in a transaction, or None.

        The object may be a temporary one: it is valid for reading, and for an operation that
        follows immediately.
        """
        delivery = subscription.scheduled.get(sequence) or subscription.requeued.get(sequence)
        if delivery is not None:
            return delivery
        for consumer in subscription.all_consumers:
            delivery = consumer.unacked.get(sequence)
            if delivery is not None:
                return delivery
        requeued = self._core.requeued_at_tail.get((subscription.number, sequence))
        order = sequence if requeued is None else requeued.order
        for priority in range(PRIORITIES):
            delivery = subscription.all_ready.find(priority, order)
            if delivery is not None and delivery.state == READY and delivery.sequence == sequence:
                return delivery
        return subscription.acked_in_transactions.get(sequence)

    def refind_ready(self, delivery: Delivery) -> Delivery | None:
        """Return the delivery that a cursor found, unless it has left its place since."""
        current = delivery.subscription.all_ready.find(delivery.priority, delivery.order)
        if current is None or current.state != READY or current.sequence != delivery.sequence:
            return None
        return current

    def oldest_ready(self, subscriptions: Iterable[Subscription]) -> Delivery | None:
        """Return the ready delivery with the lowest order in these subscriptions, or None."""
        cursors = [
            subscription.cursor(priority=priority)
            for subscription in subscriptions
            for priority in range(PRIORITIES)
            if subscription.all_ready.mask >> priority & 1
        ]
        ready = chain.from_iterable(cursor.step(FIRST_BATCH) for cursor in cursors)
        return min(ready, key=order_of, default=None)

    def delete(self, subscription: Subscription, deliveries: Iterable[Delivery]) -> int:
        """End deliveries of the subscription and return the sequence to wait for (0 = none).

        Raises ActionRefused, without any change, if one of them is part of a transaction.
        """
        deliveries = list(deliveries)
        for delivery in deliveries:
            _expect_no_transaction(delivery)
        for delivery in deliveries:
            if delivery.state == UNACKED:
                remove_unacked(subscription, delivery.sequence, delivery.consumer)
            else:
                remove_waiting(delivery)
        compact_pending_queues(subscription)
        return end_all(subscription, deliveries, Cause.PURGED)

    def move(self, delivery: Delivery, target: Destination) -> int:
        """Move a message. Raises ActionRefused if it is unacked or the target is full."""
        message = self._to_move(delivery)
        return self._replace(delivery, target, self._copy_for(target, delivery, message))

    def redrive(
        self, delivery: Delivery, origin: DeadLetterOrigin, creator: str | None = None
    ) -> int:
        """Redrive a dead letter to its original destination and subscription.

        Raises ActionRefused as `move`, and if the origin no longer exists. A queue is created, if
        that is permitted for `creator`; a new topic would have no subscription.
        """
        message = self._to_move(delivery)
        if origin.address.kind is Kind.TOPIC and origin.address not in self._destinations:
            raise ActionRefused("origin-gone", f"{origin.address} does not exist now")
        try:
            target = self._destinations.resolve(
                origin.address, creator=creator, by=CreatedBy.MANAGEMENT
            )
        except (DestinationNotFound, LimitExceeded) as error:
            raise ActionRefused("origin-gone", str(error)) from None
        subscription = None
        if origin.subscription:
            subscription = target.subscriptions.get(origin.subscription)
            if subscription is None:
                raise ActionRefused(
                    "origin-gone", f"{origin.address} has no subscription {origin.subscription} now"
                )
        copy = message.copy(target.address, 0)
        copy.properties = without_dead_letter_properties(message) or None
        self._core.dead_letters.adapt_copy(copy)
        return self._replace(delivery, target, copy, subscription)

    def copy(self, delivery: Delivery, target: Destination) -> int:
        """Publish a copy of a message to `target`. Raises ActionRefused if the target is full."""
        message = self._core.read(delivery)
        destination, copy = self._admit(target, self._copy_for(target, delivery, message))
        if not copy.durability:
            self._publisher.expect_memory()
        self._publisher.accept(destination, copy)
        return copy.sequence if copy.durability else 0

    def redeliver(self, delivery: Delivery) -> int:
        """Make a message deliverable as soon as possible, see the module. Raises ActionRefused."""
        _expect_no_transaction(delivery)
        if delivery.state == UNACKED:
            assert delivery.consumer is not None
            release(delivery.consumer, [delivery.sequence], ignore_max_attempts=True)
        elif delivery.state == SCHEDULED:
            scheduled = self._deliver_at(delivery, self._core.read_head(delivery))
            if scheduled and delivery.journaled == RECORDED:
                # otherwise it would be delayed again after a restart
                withdraw(delivery)
                return requeue_at_tail(delivery, self._expiration(delivery))
            end_delay(delivery)
        return 0

    def _to_move(self, delivery: Delivery) -> Message:
        """Return the message. Raises ActionRefused if it cannot be moved."""
        _expect_no_transaction(delivery)
        if delivery.state == UNACKED:
            raise ActionRefused("in-flight", "a consumer has it; it can be redelivered, or deleted")
        return self._core.read(delivery)

    def _copy_for(self, target: Destination, delivery: Delivery, message: Message) -> Message:
        """Return a copy of a message with its expiration and delivery time."""
        copy = message.copy(target.address, self._expiration(delivery))
        copy.deliver_at = self._deliver_at(delivery, message)
        self._core.dead_letters.adapt_copy(copy)
        return copy

    def _expiration(self, delivery: Delivery) -> int:
        """Return the expiration in present wall time; the clock may have been set since the
        publication.
        """
        return delivery.expires + self._core.clock.epoch if delivery.expires else 0

    def _deliver_at(self, delivery: Delivery, message: Message) -> int:
        """Return the delivery time in present wall time if it is in the future, else 0.

        The wall clock may have been set since the message arrived.
        """
        if not message.deliver_at:
            return 0
        epoch = message.epoch or self._core.clock_log.epoch_of(delivery.sequence)
        due = message.deliver_at - epoch
        return due + self._core.clock.epoch if due > self._core.clock.steady else 0

    def _replace(
        self,
        delivery: Delivery,
        target: Destination,
        message: Message,
        chosen: Subscription | None = None,
    ) -> int:
        subscription = delivery.subscription
        if target is not subscription.destination:
            destination, message = self._admit(target, message, subscription.destination)
            if destination is not target:
                target, chosen = destination, None
        remove_waiting(delivery)
        sequence = self._publisher.replace(delivery, target, message, Cause.MOVED, chosen)
        compact_pending_queues(subscription)
        return sequence

    def _admit(
        self, target: Destination, message: Message, source: Destination | None = None
    ) -> tuple[Destination, Message]:
        """Return the destination that accepts the message, and the message or its dead letter.

        Raises ActionRefused, also if the dead letter would go to `source`.
        """
        if self._core.stopping:
            raise BrokerStopping("the broker is shutting down")
        try:
            self._publisher.expect_space(message)  # the operation writes another record
            return self._publisher.admit(target, message, source)
        except (DestinationPrivate, LimitExceeded) as error:
            raise ActionRefused(_REASONS[type(error)], str(error)) from None

    def purge(
        self, destination: Destination, unacked: bool, callback: Callable[[int], None] = ignore
    ) -> None:
        """Delete the ready and scheduled messages, and with `unacked` the unacked ones.

        Only messages that are present now are deleted, in slices of the time for scans.
        `callback` is called at the end with their number, at once if one slice is enough.
        """
        until = self._core.journal.next_sequence()
        self._core.scans.begin_steps(self._purge(destination, until, unacked, callback))

    def _purge(
        self,
        destination: Destination,
        until: int,
        unacked: bool,
        callback: Callable[[int], None],
    ) -> Iterator[None]:
        count = 0
        for subscription in destination.all_subscriptions:
            for deliveries in _slices(subscription, until, unacked):
                if deliveries and not subscription.closed:
                    self.delete(subscription, deliveries)
                    count += len(deliveries)
                yield
        callback(count)


def _slices(subscription: Subscription, until: int, unacked: bool) -> Iterator[list[Delivery]]:
    """Yield the deliveries to purge that are still there, in slices.

    Those that are unacked now may return meanwhile to positions that the cursor has passed.
    """
    held = list(subscription.unacked_deliveries) if unacked else []
    cursor = subscription.cursor(until)
    while cursor.priority >= 0:
        yield cursor.examine(SLICE)
    held_later = subscription.unacked_deliveries if unacked else ()
    others = list(dict.fromkeys(chain(subscription.scheduled.values(), held, held_later)))
    for start in range(0, len(others), SLICE):
        yield [
            delivery
            for delivery in others[start : start + SLICE]
            if delivery.sequence <= until
            and (
                delivery.state in (READY, SCHEDULED)
                # or a consumer holds it, and no transaction has acknowledged it
                or (
                    unacked
                    and delivery.consumer is not None
                    and delivery.consumer.unacked.get(delivery.sequence) is delivery
                )
            )
        ]


def _expect_no_transaction(delivery: Delivery) -> None:
    """Raise ActionRefused if a transaction has acknowledged the delivery."""
    if delivery.sequence in delivery.subscription.acked_in_transactions:
        raise ActionRefused(
            "in-transaction",
            f"a transaction that has not ended has acknowledged message {delivery.sequence}",
        )
