"""Consumers of a subscription: attach, activate, retire and detach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sluicemq.broker.dispatch import dispatch
from sluicemq.broker.pending.queue import PendingQueue
from sluicemq.broker.redelivery import release
from sluicemq.broker.selector_rescan import SelectorRescan
from sluicemq.broker.state import Consumer, Window
from sluicemq.broker.subscription import enter_line
from sluicemq.model.errors import DestinationPrivate, LimitExceeded, SubscriptionInUse

if TYPE_CHECKING:
    from sluicemq.broker.routing import Selector
    from sluicemq.broker.state import Delivery, Destination, Sink, Subscription


def attach(
    subscription: Subscription,
    sink: Sink,
    window: Window,
    selector: Selector | None,
    rank: int,
    ack_timeout: int | None,
    owner: object = None,
) -> Consumer:
    """Attach a consumer and dispatch ready messages to it.

    Raises DestinationPrivate, SubscriptionInUse, LimitExceeded.
    """
    destination = subscription.destination
    if destination.owner is not None and destination.owner is not owner:
        raise DestinationPrivate(
            f"{destination.address} is temporary: only the connection that created it may receive "
            "from it"
        )
    settings = destination.settings
    limit = settings.max_consumers if subscription.shared else 1
    if limit and len(subscription.consumers) >= limit:
        raise SubscriptionInUse(
            f"{subscription.destination.name}: all {limit} consumers it may have are attached"
        )
    if selector is not None:
        _expect_selector_load(subscription, selector)
    pending_queue = _pending_queue(subscription, selector)
    pending_queue.consumers += 1
    consumer = Consumer(
        subscription,
        sink,
        window,
        pending_queue,
        rank,
        settings.ack_timeout if ack_timeout is None else ack_timeout,
    )
    subscription.consumers[consumer] = None
    window.consumers.append(consumer)
    if settings.active_consumers:
        elect(subscription)
    enter_line(consumer)
    dispatch(subscription)
    return consumer


def detach(consumer: Consumer) -> None:
    """Remove a consumer and return its unacked deliveries to their original positions."""
    if consumer in consumer.subscription.consumers:
        _leave(consumer)
        release(consumer)
        _left(consumer.subscription)
    elif consumer.retired:
        release(consumer)


def retire(consumer: Consumer, kept: Iterable[int], attempted: bool) -> None:
    """Remove a consumer that keeps some of its deliveries: see Broker.retire."""
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


def reselect(consumer: Consumer, selector: Selector) -> None:
    """Change the selector of an attached consumer, which keeps its unacked deliveries."""
    subscription = consumer.subscription
    _leave_pending_queue(consumer)
    consumer.pending_queue = _pending_queue(subscription, selector)
    consumer.pending_queue.consumers += 1
    enter_line(consumer)


def elect(subscription: Subscription) -> None:
    """Activate the consumers of highest rank, then longest attached (failover)."""
    consumers = subscription.consumers
    limit = subscription.destination.settings.active_consumers or len(consumers)
    for place, consumer in enumerate(sorted(consumers, key=_by_rank)):
        consumer.active = place < limit
        if consumer.active:
            enter_line(consumer)
        else:
            consumer.pending_queue.line.pop(consumer, None)


def _by_rank(consumer: Consumer) -> int:
    return -consumer.rank


def _expect_selector_load(subscription: Subscription, selector: Selector) -> None:
    """Raise LimitExceeded if the selectors of a queue would cost each message too much."""
    if selector.text in subscription.pending_queues:
        return
    routes = subscription.selective
    if subscription.rescan is not None:
        load = routes.load + subscription.rescan.load_with(selector)
    else:
        load = routes.load_with(selector)
    expect_load(subscription.destination, load)


def expect_load(destination: Destination, load: int) -> None:
    """Raise LimitExceeded if the selectors of a destination exceed the permitted load."""
    limit = destination.core.selector_load
    if limit and load > limit:
        raise LimitExceeded(
            f"the selectors in use at {destination.address} would have {load} identifiers, "
            f"literals and operations together, at most {limit} are allowed "
            "(broker.max_destination_selector_nodes); use fewer or simpler ones, or compare one "
            "property with a value (id = 17)"
        )


def _pending_queue(
    subscription: Subscription, selector: Selector | None
) -> PendingQueue[Delivery, Consumer]:
    if selector is None:
        return subscription.everything
    pending_queue = subscription.pending_queues.get(selector.text)
    if pending_queue is None:
        pending_queue = subscription.pending_queues[selector.text] = PendingQueue(
            subscription.core.chunk_deliveries, selector
        )
        if not subscription.everything.mask:
            subscription.selective.add(pending_queue, selector)
        else:
            if subscription.rescan is None:
                subscription.rescan = SelectorRescan(subscription)
            subscription.rescan.join(pending_queue)
    return pending_queue


def _leave(consumer: Consumer) -> None:
    """Detach the consumer from its subscription, so that nothing more is dispatched to it."""
    subscription = consumer.subscription
    del subscription.consumers[consumer]
    consumer.window.consumers.remove(consumer)
    _leave_pending_queue(consumer)


def _leave_pending_queue(consumer: Consumer) -> None:
    subscription = consumer.subscription
    pending_queue = consumer.pending_queue
    pending_queue.line.pop(consumer, None)
    pending_queue.consumers -= 1
    if pending_queue.selector is not None and not pending_queue.consumers:
        del subscription.pending_queues[pending_queue.selector.text]
        if subscription.rescan is None or not subscription.rescan.leave(pending_queue):
            subscription.selective.remove(pending_queue, pending_queue.selector)


def _left(subscription: Subscription) -> None:
    if subscription.destination.settings.active_consumers:
        elect(subscription)
    subscription.destination.touch()
