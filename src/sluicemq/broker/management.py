"""Management operations on single messages: find by sequence, delete, move, copy and redeliver.

             waiting   delayed   unacked     in a transaction
    delete   yes       yes       yes         no
    move     yes       yes       no          no
    copy     yes       yes       yes         yes
    redeliver    -     ready now requeued    no

Each operation is one journal unit, so that after a crash the message is in exactly one place;
`when_durable` accepts the sequence that is returned. An unacked message that is deleted or requeued
no longer belongs to its consumer: the broker ignores a later acknowledgement. A moved message keeps
its sender's delivery time and expiration; but if a destination limits the lifetime of messages, the
lifetime starts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import DELAYED, READY, RECORDED, TAKEN, Delivery
from sluicemq.broker.pending_queue import PRIORITIES
from sluicemq.broker.redelivery import release, relocate
from sluicemq.journal.format import Cause
from sluicemq.model.dead_letters import DeadLetterOrigin, without_dead_letter_properties
from sluicemq.model.destination import CreatedBy
from sluicemq.model.errors import (
    ActionRefused,
    BrokerError,
    BrokerStopping,
    DestinationNotFound,
    LimitExceeded,
    LowDiskSpace,
    MessageTooLarge,
)

if TYPE_CHECKING:
    from sluicemq.broker.broker import Broker
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.subscription import Subscription
    from sluicemq.model.message import Message


def find(broker: Broker, subscription: Subscription, sequence: int) -> Delivery | None:
    """Return the delivery of a message, waiting, delayed, unacked or in a transaction, or None.

    The object may be a temporary one: it is valid for reading, and for an operation of this module
    that follows immediately.
    """
    delivery = subscription.delayed.get(sequence) or subscription.back.get(sequence)
    if delivery is not None:
        return delivery
    for consumer in subscription.holders:
        delivery = consumer.unacked.get(sequence)
        if delivery is not None:
            return delivery
    requeued = broker.core.requeued.get((subscription.number, sequence))
    order = sequence if requeued is None else requeued.order
    for priority in range(PRIORITIES):
        delivery = subscription.everything.find(priority, order)
        if delivery is not None and delivery.state == READY and delivery.sequence == sequence:
            return delivery
    for delivery in in_transactions(broker, subscription):
        if delivery.sequence == sequence:
            return delivery
    return None


def in_transactions(broker: Broker, subscription: Subscription) -> Iterator[Delivery]:
    """Yield the deliveries acknowledged in transactions that have not ended."""
    transactions = broker.transactions
    for transaction in (*transactions.open.values(), *transactions.prepared.values()):
        for delivery, _ in transaction.acks:
            if delivery.subscription is subscription:
                yield delivery


def is_held(delivery: Delivery) -> bool:
    """Return whether a consumer holds the delivery outside of a transaction."""
    consumer = delivery.consumer
    return consumer is not None and delivery.sequence in consumer.unacked


def in_flight(
    broker: Broker, subscription: Subscription, offset: int, count: int
) -> list[Delivery]:
    """Return up to `count` unacked deliveries from `offset` on, by consumer and then by time."""
    held = (consumer.unacked.values() for consumer in subscription.holders)
    everything = chain(chain.from_iterable(held), in_transactions(broker, subscription))
    return list(islice(everything, offset, offset + count))


def delete(broker: Broker, subscription: Subscription, deliveries: Iterable[Delivery]) -> int:
    """End the given deliveries of the subscription and return the sequence to wait for (0 = none).

    Raises ActionRefused, without any change, if one of them is part of a transaction.
    """
    deliveries = list(deliveries)
    for delivery in deliveries:
        if delivery.state == TAKEN and not is_held(delivery):
            raise _in_transaction(delivery)
    recorded: list[int] = []
    for delivery in deliveries:
        if delivery.journaled == RECORDED:
            recorded.append(delivery.sequence)
        if delivery.state == TAKEN:
            subscription.take_from_holder(delivery.sequence)
        else:
            subscription.take_out(delivery)
        subscription.forget(delivery, Cause.PURGED)
    subscription.tidy()
    if not recorded:
        return 0
    broker.core.event_recorder.write()
    return broker.journal.append_completed(
        subscription.number,
        subscription.destination.number,
        Cause.PURGED,
        recorded,
        broker.clock.wall,
    )


def move(broker: Broker, delivery: Delivery, target: Destination) -> int:
    """Move a message to `target`. Raises ActionRefused if it is unacked or the target is full."""
    message, expiration = _to_move(broker, delivery)
    copy = message.copy(target.address, expiration)
    copy.deliver_at = _deliver_at(broker, delivery, message)
    return _replace(broker, delivery, target, copy)


def send_back(
    broker: Broker, delivery: Delivery, origin: DeadLetterOrigin, creator: str | None = None
) -> int:
    """Redrive a dead letter to its original destination and subscription.

    Raises ActionRefused as `move`, and if the origin no longer exists and cannot be created for
    `creator`.
    """
    message, _ = _to_move(broker, delivery)
    try:
        target = broker.destinations.resolve(
            origin.address, creator=creator, by=CreatedBy.MANAGEMENT
        )
    except (DestinationNotFound, LimitExceeded) as error:
        raise ActionRefused("origin-gone", str(error)) from None
    chosen = None
    if origin.subscription:
        chosen = target.subscriptions.get(origin.subscription)
        if chosen is None:
            raise ActionRefused(
                "origin-gone", f"{origin.address} has no subscription {origin.subscription} now"
            )
    properties = without_dead_letter_properties(message)
    copy = message.copy(target.address, 0, properties)
    copy.properties = properties or None
    return _replace(broker, delivery, target, copy, chosen)


def copy_to(broker: Broker, delivery: Delivery, target: Destination) -> int:
    """Publish a copy of a message to `target`. Raises ActionRefused if the target is full."""
    message = broker.core.read(delivery)
    copy = message.copy(target.address, _expiration(broker, delivery))
    copy.deliver_at = _deliver_at(broker, delivery, message)
    where, copy = _admit(broker, target, copy)
    if not copy.durability:
        broker.publisher.expect_memory()
    elif not where.number:
        broker.destinations.number(where)
    broker.publisher.accept(where, copy)
    return copy.sequence if copy.durability else 0


def redeliver(broker: Broker, delivery: Delivery) -> int:
    """Make a message deliverable as soon as possible, see the module. Raises ActionRefused."""
    subscription = delivery.subscription
    if delivery.state == TAKEN:
        if not is_held(delivery):
            raise _in_transaction(delivery)
        assert delivery.consumer is not None
        release(delivery.consumer, [delivery.sequence], True, True)
    elif delivery.state == DELAYED:
        scheduled = _deliver_at(broker, delivery, broker.core.glance(delivery))
        if scheduled and delivery.journaled == RECORDED:
            # otherwise it would be delayed again after a restart
            subscription.withdraw(delivery)
            return relocate(delivery, delivery.expiration)
        subscription.end_delay(delivery)
    return 0


def _to_move(broker: Broker, delivery: Delivery) -> tuple[Message, int]:
    """Return the message and its expiration in wall ms. Raises ActionRefused."""
    if delivery.state == TAKEN:
        if not is_held(delivery):
            raise _in_transaction(delivery)
        raise ActionRefused("in-flight", "a consumer has it; it can be redelivered, or deleted")
    return broker.core.read(delivery), _expiration(broker, delivery)


def _expiration(broker: Broker, delivery: Delivery) -> int:
    """Return the expiration in present wall time; the clock may have been set since the
    publication.
    """
    return delivery.expires + broker.clock.epoch if delivery.expires else 0


def _deliver_at(broker: Broker, delivery: Delivery, message: Message) -> int:
    """Return the delivery time in present wall time if it is in the future, else 0.

    The wall clock may have been set since the message arrived.
    """
    if not message.deliver_at:
        return 0
    epoch = message.epoch or broker.core.clock_log.epoch_of(delivery.sequence)
    due = message.deliver_at - epoch
    return due + broker.clock.epoch if due > broker.clock.steady else 0


def _replace(
    broker: Broker,
    delivery: Delivery,
    target: Destination,
    message: Message,
    chosen: Subscription | None = None,
) -> int:
    subscription = delivery.subscription
    if target is not subscription.destination:
        where, message = _admit(broker, target, message)
        if where is not target:
            target, chosen = where, None
    subscription.take_out(delivery)
    sequence = broker.publisher.replace(delivery, target, message, Cause.MOVED, chosen)
    subscription.tidy()
    return sequence


def _admit(broker: Broker, target: Destination, message: Message) -> tuple[Destination, Message]:
    """Return the destination that accepts the message, and the message or its dead letter.

    Raises ActionRefused.
    """
    if broker.stopping:
        raise BrokerStopping("the broker is shutting down")
    if broker.publisher.low_space:
        try:
            broker.publisher.expect_space(message)  # the operation writes another record
        except LowDiskSpace as error:
            raise ActionRefused("low-disk-space", str(error)) from None
    if not target.limited and not target.parked:
        return target, message
    try:
        where = broker.publisher.judge(target, message, False)
    except MessageTooLarge as error:
        raise ActionRefused("too-large", str(error)) from None
    except LimitExceeded as error:
        raise ActionRefused("target-full", str(error)) from None
    except BrokerError as error:
        raise ActionRefused("target-refused", str(error)) from None
    assert where is not None  # may_wait is False
    if where is target:
        return target, message
    return where, broker.publisher.redirect(message, target, where)


def _in_transaction(delivery: Delivery) -> ActionRefused:
    return ActionRefused(
        "in-transaction",
        f"a transaction that has not ended has acknowledged message {delivery.sequence}",
    )
