"""Who is served: consumers come, stand in line, retire and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sluicemq.broker.backfill import Backfill
from sluicemq.broker.consumer import Consumer, Sink, Window
from sluicemq.broker.dispatch import dispatch
from sluicemq.broker.lane import Lane, Selector
from sluicemq.broker.redelivery import release
from sluicemq.model.errors import SubscriptionInUse

if TYPE_CHECKING:
    from sluicemq.broker.subscription import Subscription


def attach(
    subscription: Subscription,
    sink: Sink,
    window: Window,
    selector: Selector | None,
    rank: int,
    ack_timeout: int | None,
) -> Consumer:
    """Add a consumer and give it what waits. Raises SubscriptionInUse."""
    settings = subscription.destination.settings
    limit = settings.max_consumers if subscription.shared else 1
    if limit and len(subscription.consumers) >= limit:
        raise SubscriptionInUse(
            f"{subscription.destination.name}: all {limit} consumers it may have are attached"
        )
    lane = _lane(subscription, selector)
    lane.consumers += 1
    consumer = Consumer(
        subscription,
        sink,
        window,
        lane,
        rank,
        settings.ack_timeout if ack_timeout is None else ack_timeout,
    )
    subscription.consumers[consumer] = None
    window.consumers.append(consumer)
    if settings.active_consumers:
        elect(subscription)
    subscription.enter_line(consumer)
    dispatch(subscription)
    return consumer


def detach(consumer: Consumer) -> None:
    """Remove a consumer; what it holds goes back to its original position."""
    if consumer in consumer.subscription.consumers:
        _leave(consumer)
        release(consumer)
        _left(consumer.subscription)
    elif consumer.retired:
        release(consumer)


def retire(consumer: Consumer, kept: Iterable[int], attempted: bool) -> None:
    """Remove a consumer that goes on holding some of its deliveries: see Broker.retire."""
    subscription = consumer.subscription
    if consumer not in subscription.consumers:
        return
    _leave(consumer)
    keep = set(kept)
    returned = [sequence for sequence in consumer.unacked if sequence not in keep]
    release(consumer, returned, attempted)
    consumer.retired = True
    consumer.window = Window(0, False)
    if consumer.unacked:
        subscription.retired[consumer] = None
    _left(subscription)


def elect(subscription: Subscription) -> None:
    """Failover: the consumers of highest rank, then longest attached, are served."""
    consumers = subscription.consumers
    limit = subscription.destination.settings.active_consumers or len(consumers)
    for place, consumer in enumerate(sorted(consumers, key=_by_rank)):
        consumer.active = place < limit
        if consumer.active:
            subscription.enter_line(consumer)
        else:
            consumer.lane.line.pop(consumer, None)


def _by_rank(consumer: Consumer) -> int:
    return -consumer.rank


def _lane(subscription: Subscription, selector: Selector | None) -> Lane:
    if selector is None:
        return subscription.everything
    lane = subscription.lanes.get(selector.text)
    if lane is None:
        lane = subscription.lanes[selector.text] = Lane(subscription.core.page, selector)
        if not subscription.everything.mask:
            subscription.selective.add(lane, selector)
        else:
            if subscription.backfill is None:
                subscription.backfill = Backfill(subscription)
            subscription.backfill.join(lane)
    return lane


def _leave(consumer: Consumer) -> None:
    """It gets nothing any more."""
    subscription = consumer.subscription
    del subscription.consumers[consumer]
    consumer.window.consumers.remove(consumer)
    lane = consumer.lane
    lane.line.pop(consumer, None)
    lane.consumers -= 1
    if lane.selector is not None and not lane.consumers:
        del subscription.lanes[lane.selector.text]
        if subscription.backfill is None or not subscription.backfill.leave(lane):
            subscription.selective.remove(lane, lane.selector)


def _left(subscription: Subscription) -> None:
    if subscription.destination.settings.active_consumers:
        elect(subscription)
    subscription.destination.touch()
