"""Single messages handled by hand: found by number, deleted, moved, copied, sent once more.

             waiting   delayed   in flight   in a transaction
    delete   yes       yes       yes         no
    move     yes       yes       no          no
    copy     yes       yes       yes         yes
    redeliver    -     ready now taken back  no

Each is one unit of the journal, so that after a crash the message is in one place and only there;
`when_durable` may wait for the number that is returned. A message in flight that is deleted or
taken back is its consumer's no more: an acknowledgement that still comes means nothing. One that is
moved keeps what its sender said of its time of delivery and the end of its life; but where a
destination limits the life of messages, it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from sluicemq.broker.deadletter import Origin, without_dead_letter_properties
from sluicemq.broker.delivery import DELAYED, READY, RECORDED, TAKEN, Delivery
from sluicemq.broker.pending_queue import PRIORITIES
from sluicemq.broker.redelivery import release, relocate
from sluicemq.journal.format import Cause
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
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.engine import Broker
    from sluicemq.broker.subscription import Subscription
    from sluicemq.model.message import Message


def find(broker: Broker, subscription: Subscription, sequence: int) -> Delivery | None:
    """The delivery of that message, waiting, delayed or in flight, wherever that is. It may be an
    object of the moment: good for reading, and for what is in this file if that comes next."""
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
    """What has been acknowledged in transactions that have not ended."""
    transactions = broker.transactions
    for transaction in (*transactions.open.values(), *transactions.prepared.values()):
        for delivery, _ in transaction.acks:
            if delivery.subscription is subscription:
                yield delivery


def is_held(delivery: Delivery) -> bool:
    """A consumer has it, or had it and has not settled it outside a transaction."""
    consumer = delivery.consumer
    return consumer is not None and delivery.sequence in consumer.unacked


def in_flight(
    broker: Broker, subscription: Subscription, offset: int, count: int
) -> list[Delivery]:
    """Some of what is in flight, by consumer and then by time."""
    held = (consumer.unacked.values() for consumer in subscription.holders)
    everything = chain(chain.from_iterable(held), in_transactions(broker, subscription))
    return list(islice(everything, offset, offset + count))


def delete(broker: Broker, subscription: Subscription, deliveries: Iterable[Delivery]) -> int:
    """End these, which are all of the subscription. Raises ActionRefused for one that is part of a
    transaction: then nothing has happened."""
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
        subscription.forget(delivery)
    subscription.tidy()
    if not recorded:
        return 0
    broker.core.event_recorder.write()
    return broker.journal.append_settled(
        subscription.number,
        subscription.destination.number,
        Cause.PURGED,
        recorded,
        broker.clock.wall,
    )


def move(broker: Broker, delivery: Delivery, target: Destination) -> int:
    """End it here and send it there. Raises ActionRefused: it is in flight, or there is no room."""
    message, expiration = _to_move(broker, delivery)
    copy = message.copy(target.address, expiration)
    copy.deliver_at = _deliver_at(broker, delivery, message)
    return _replace(broker, delivery, target, copy)


def send_back(
    broker: Broker, delivery: Delivery, origin: Origin, creator: str | None = None
) -> int:
    """Send a dead letter back to where it was, as it was. Raises ActionRefused, as `move`, and when
    the place is not there any more, and cannot be created for `creator`."""
    message, _ = _to_move(broker, delivery)
    try:
        target = broker.resolve(origin.address, creator=creator, by=CreatedBy.MANAGEMENT)
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
    """Send the same there. Raises ActionRefused when there is no room."""
    message = broker.core.read(delivery)
    copy = message.copy(target.address, _expiration(broker, delivery))
    copy.deliver_at = _deliver_at(broker, delivery, message)
    where, copy = _admit(broker, target, copy)
    if not copy.durability:
        broker.expect_memory()
    elif not where.number:
        broker.number(where)
    broker.accept(where, copy)
    return copy.sequence if copy.durability else 0


def redeliver(broker: Broker, delivery: Delivery) -> int:
    """Have it delivered as soon as possible: see the module. Raises ActionRefused."""
    subscription = delivery.subscription
    if delivery.state == TAKEN:
        if not is_held(delivery):
            raise _in_transaction(delivery)
        assert delivery.consumer is not None
        release(delivery.consumer, [delivery.sequence], True, True)
    elif delivery.state == DELAYED:
        scheduled = _deliver_at(broker, delivery, broker.core.glance(delivery))
        if scheduled and delivery.journaled == RECORDED:
            # else it would be delayed again after a restart
            subscription.withdraw(delivery)
            return relocate(delivery, delivery.expiration)
        subscription.end_delay(delivery)
    return 0


def _to_move(broker: Broker, delivery: Delivery) -> tuple[Message, int]:
    """The message and the end of its life. Raises ActionRefused."""
    if delivery.state == TAKEN:
        if not is_held(delivery):
            raise _in_transaction(delivery)
        raise ActionRefused("in-flight", "a consumer has it; it can be redelivered, or deleted")
    return broker.core.read(delivery), _expiration(broker, delivery)


def _expiration(broker: Broker, delivery: Delivery) -> int:
    """Its end in wall time, which may be another by now than when it was sent."""
    return delivery.expires + broker.clock.epoch if delivery.expires else 0


def _deliver_at(broker: Broker, delivery: Delivery, message: Message) -> int:
    """Return the delivery time in present wall time if it has not come yet, else 0. The wall clock
    may have been set since the message came."""
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
    sequence = broker.replace(delivery, target, message, Cause.MOVED, chosen)
    subscription.tidy()
    return sequence


def _admit(broker: Broker, target: Destination, message: Message) -> tuple[Destination, Message]:
    """Where the limits let it go, and as what. Raises ActionRefused."""
    if broker.stopping:
        raise BrokerStopping("the broker is shutting down")
    if broker.low_space:
        try:
            broker.expect_space(message)  # it would be written once more
        except LowDiskSpace as error:
            raise ActionRefused("low-disk-space", str(error)) from None
    if not target.limited and not target.parked:
        return target, message
    try:
        where = broker.judge(target, message, False)
    except MessageTooLarge as error:
        raise ActionRefused("too-large", str(error)) from None
    except LimitExceeded as error:
        raise ActionRefused("target-full", str(error)) from None
    except BrokerError as error:
        raise ActionRefused("target-refused", str(error)) from None
    assert where is not None  # nobody waits for room here
    if where is target:
        return target, message
    return where, broker.redirect(message, target, where)


def _in_transaction(delivery: Delivery) -> ActionRefused:
    return ActionRefused(
        "in-transaction",
        f"a transaction that has not ended has acknowledged message {delivery.sequence}",
    )
