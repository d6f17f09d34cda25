"""Who gets what: the messages of a subscription and its consumers in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicemq.broker.core import TURN_BYTES, TURN_DELIVERIES
from sluicemq.broker.delivery import TAKEN
from sluicemq.model.errors import JournalDamaged, RecordNotFound

if TYPE_CHECKING:
    from sluicemq.broker.consumer import Consumer
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.lane import Lane
    from sluicemq.broker.subscription import Subscription


def dispatch(subscription: Subscription) -> None:
    """Hand out what waits to the consumers in line, one each in turn."""
    if subscription.destination.paused:
        return
    if len(subscription.lanes) == 1:
        _serve(subscription, subscription.everything, TURN_DELIVERIES)
        return
    statistics = subscription.destination.statistics
    enough = statistics.bytes_out + TURN_BYTES
    total = 0
    served = True
    while served:
        served = False
        for lane in list(subscription.lanes.values()):
            if lane.line and lane.mask and _serve(subscription, lane, 1):
                served = True
        total += 1
        if total >= TURN_DELIVERIES or statistics.bytes_out > enough:
            subscription.core.again[subscription] = None
            break
    subscription.tidy()


def hand_over(consumer: Consumer, delivery: Delivery) -> None:
    """Give what has just become visible to the consumer whose turn it is, whose credit is 1: it
    could not be given more if the delivery waited for the end of the turn.

    The delivery has not been in a lane nor in the wheel; should it come back, it enters both.
    """
    subscription = consumer.subscription
    sequence = delivery.sequence
    size = delivery.size
    delivery.state = TAKEN
    delivery.consumer = consumer
    delivery.attempts = 1
    delivery.delivered = subscription.core.clock.steady
    consumer.unacked[sequence] = delivery
    subscription.unacked += 1
    subscription.unacked_bytes += size
    window = consumer.window
    window.credit = 0
    for peer in window.consumers:
        peer.lane.line.pop(peer, None)
    if consumer.ack_timeout and not consumer.watched:
        subscription.watch(consumer)
    statistics = subscription.destination.statistics
    statistics.delivered += 1
    statistics.bytes_out += size
    consumer.sink.deliver(consumer, [delivery])


def _serve(subscription: Subscription, lane: Lane, limit: int) -> int:
    """Give up to `limit` deliveries per consumer. Returns how many were given."""
    line = lane.line
    if not line or not lane.mask:
        return 0
    core = subscription.core
    now = core.clock.steady
    batches: dict[Consumer, list[Delivery]] = {}
    back = subscription.back
    given = 0
    size = 0
    redelivered = 0
    while line and lane.mask:
        consumer = next(iter(line))
        window = consumer.window
        if window.credit <= 0:
            line.popitem(last=False)
            continue
        batch = batches.get(consumer)
        if batch is None:
            batch = batches[consumer] = []
        room = limit - len(batch)
        if room <= 0 or size > TURN_BYTES:
            if limit > 1:
                core.again[subscription] = None
            break
        if len(line) > 1:
            room = 1
        elif window.credit < room:
            room = window.credit
        unacked = consumer.unacked
        taken = 0
        while taken < room:
            delivery = lane.take()
            if delivery is None:
                break
            if delivery.expires and delivery.expires <= now:
                subscription.expire(delivery)
                continue
            if delivery.message is None:
                try:
                    core.load(delivery)
                except (JournalDamaged, RecordNotFound):
                    subscription.put_back(delivery)
                    raise
            delivery.state = TAKEN
            delivery.consumer = consumer
            delivery.attempts += 1
            if delivery.attempts > 1:
                redelivered += 1
                back.pop(delivery.sequence, None)
            delivery.delivered = now
            unacked[delivery.sequence] = delivery
            batch.append(delivery)
            taken += 1
            size += delivery.size
            if size > TURN_BYTES:
                break
        given += taken
        window.credit -= taken
        if window.credit <= 0:
            for peer in window.consumers:
                peer.lane.line.pop(peer, None)
        elif len(line) > 1:
            line.move_to_end(consumer)
        if consumer.ack_timeout and taken and not consumer.watched:
            subscription.watch(consumer)
    if given:
        subscription.waiting -= given
        subscription.waiting_bytes -= size
        subscription.unacked += given
        subscription.unacked_bytes += size
        destination = subscription.destination
        statistics = destination.statistics
        statistics.delivered += given
        statistics.redelivered += redelivered
        statistics.bytes_out += size
        if destination.parked:
            core.unblocking[destination] = None
        for consumer, batch in batches.items():
            if batch:
                consumer.sink.deliver(consumer, batch)
    return given
