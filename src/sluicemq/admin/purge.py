"""Purge a destination in slices, so that no other request waits for a long backlog."""

from __future__ import annotations

from typing import Final

from sluicemq.admin.time_slices import TimeSlices
from sluicemq.broker import Broker, Destination, Subscription
from sluicemq.broker.cursor import Cursor
from sluicemq.broker.delivery import DELAYED, Delivery
from sluicemq.broker.management import delete, is_held

SLICE: Final = 200
"""Number of messages that are purged together, with one record of the journal."""


async def purge_destination(broker: Broker, destination: Destination, unacked: bool) -> int:
    """Purge the messages that are ready at the time of the call, and with `unacked` the unacked
    ones. Return their number."""
    until = broker.journal.next_sequence()
    slices = TimeSlices(broker)
    count = 0
    for subscription in (destination.queue, *destination.subscriptions.values()):
        count += await _drop_ready(broker, subscription, until, slices)
        count += await _drop_delayed(broker, subscription, slices)
        if unacked:
            count += await _drop_unacked(broker, subscription, slices)
    return count


async def _drop_ready(
    broker: Broker, subscription: Subscription, until: int, slices: TimeSlices
) -> int:
    count = 0
    cursor = Cursor(subscription.everything, until)
    while cursor.priority >= 0 and not subscription.closed:
        found = cursor.look(SLICE)
        if found:
            delete(broker, subscription, found)
            count += len(found)
        if slices.due:
            await slices.rest()
    return count


async def _drop_delayed(broker: Broker, subscription: Subscription, slices: TimeSlices) -> int:
    count = 0
    delayed = list(subscription.delayed.values())
    for start in range(0, len(delayed), SLICE):
        still = [each for each in delayed[start : start + SLICE] if each.state == DELAYED]
        if still and not subscription.closed:
            delete(broker, subscription, still)
            count += len(still)
        if slices.due:
            await slices.rest()
    return count


async def _drop_unacked(broker: Broker, subscription: Subscription, slices: TimeSlices) -> int:
    count = 0
    for consumer in subscription.holders:
        held: list[Delivery] = list(consumer.unacked.values())
        for start in range(0, len(held), SLICE):
            still = [
                each
                for each in held[start : start + SLICE]
                if each.consumer is consumer and is_held(each)
            ]
            if still and not subscription.closed:
                delete(broker, subscription, still)
                count += len(still)
            if slices.due:
                await slices.rest()
    return count
