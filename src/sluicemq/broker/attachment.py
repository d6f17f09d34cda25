"""Consumers of a subscription: attach, activate, retire and detach; messages that some decline.

A consumer may be unable to process a message dispatched to it, such as one too large for its
protocol. It calls `decline` and names its kind: consumers of one kind can process the same
messages. From then on the broker treats it as a consumer with a selector that does not match the
messages declined by its kind (pending/queue.py). So a declined message blocks no other message, is
not dispatched to that kind again, and costs other queues nothing.

    another attached consumer can process it    it waits in its position
    no other attached consumer can              it becomes a dead letter
    the same, but it is a dead letter           it waits
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from sluicemq.broker.dispatch import dispatch
from sluicemq.broker.pending.queue import PendingQueue
from sluicemq.broker.redelivery import REQUEUED_TOGETHER, release, requeue_in_slices
from sluicemq.broker.routing import Routes, Selector
from sluicemq.broker.selector_rescan import SelectorRescan
from sluicemq.broker.selectors.equality import Equality
from sluicemq.broker.state import Consumer, Delivery, Destination, Sink, Subscription, Window
from sluicemq.broker.subscription import (
    dead_letter,
    mark_available,
    remove_drained_consumer,
    stop_ack_timer,
)
from sluicemq.model.dead_letters import is_dead_letter
from sluicemq.model.errors import DestinationPrivate, LimitExceeded, SubscriptionInUse
from sluicemq.model.message import Message

MAX_DECLINED: Final = 4096
"""Number of declined messages recorded for each kind of consumer and subscription.

Beyond it the oldest one is forgotten: it is dispatched again if it is requeued.
"""


def attach(
    subscription: Subscription,
    sink: Sink,
    window: Window,
    selector: Selector | None,
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
            f"{subscription.destination.name}: it has {limit} consumers, the limit"
        )
    expect_load(destination, subscription.selective, selector)
    pending_queue = _join_pending_queue(subscription, selector)
    consumer = Consumer(
        subscription,
        sink,
        window,
        pending_queue,
        settings.ack_timeout if ack_timeout is None else ack_timeout,
    )
    subscription.consumers[consumer] = None
    window.consumers.append(consumer)
    active_limit = settings.active_consumers or len(subscription.consumers)
    consumer.active = len(subscription.consumers) <= active_limit
    mark_available(consumer)
    dispatch(subscription)
    return consumer


def detach(consumer: Consumer, unattempted: Container[int], *, ignore_max_attempts: bool) -> None:
    """Remove a consumer and return its unacked deliveries: see Broker.detach."""
    subscription = consumer.subscription
    if consumer in subscription.consumers:
        _remove_consumer(consumer)
        stop_ack_timer(consumer)
    if consumer.unacked:
        consumer.retired = True
        subscription.retired[consumer] = None
        requeue_in_slices(
            subscription,
            len(consumer.unacked),
            _release_all(consumer, unattempted, ignore_max_attempts),
        )


def _release_all(
    consumer: Consumer, unattempted: Container[int], ignore_max_attempts: bool
) -> Iterator[None]:
    """Return the deliveries of a retired consumer, which is detached when it holds none."""
    while sequences := list(consumer.unacked):
        # a search for the first ones that remain would pass over all that have been removed
        for start in range(0, len(sequences), REQUEUED_TOGETHER):
            part = sequences[start : start + REQUEUED_TOGETHER]
            release(consumer, [item for item in part if item in unattempted], attempted=False)
            release(consumer, part, ignore_max_attempts=ignore_max_attempts)
            yield
    remove_drained_consumer(consumer)
    consumer.retired = False


def retire(consumer: Consumer, kept: Container[int], attempted: bool) -> None:
    """Remove a consumer that keeps some of its deliveries: see Broker.retire."""
    subscription = consumer.subscription
    if consumer not in subscription.consumers:
        return
    _remove_consumer(consumer)
    sequences = [sequence for sequence in consumer.unacked if sequence not in kept]
    release(consumer, sequences, attempted)
    consumer.retired = True
    consumer.window = Window(0, False)
    subscription.retired[consumer] = None
    remove_drained_consumer(consumer)


def reselect(consumer: Consumer, selector: Selector) -> None:
    """Change the selector of an attached consumer, which keeps its unacked deliveries."""
    _leave_pending_queue(consumer)
    consumer.pending_queue = _join_pending_queue(consumer.subscription, selector)
    mark_available(consumer)


def activate_consumers(subscription: Subscription) -> None:
    """Activate the consumers that have been attached longest; the others are standbys."""
    consumers = subscription.consumers
    limit = subscription.destination.settings.active_consumers or len(consumers)
    for position, consumer in enumerate(consumers):
        consumer.active = position < limit
        if consumer.active:
            mark_available(consumer)
        else:
            consumer.pending_queue.available_consumers.pop(consumer, None)


def expect_load(destination: Destination, routes: Routes[Any], selector: Selector | None) -> None:
    """Raise LimitExceeded if the load of the selectors would exceed the limit with this one.

    The load of a topic that accepts no messages has no cost.
    """
    limit = destination.core.settings.max_destination_selector_nodes
    if selector is None or selector.text in routes.routes or destination.refuses_messages:
        return
    load = routes.load_with(selector)
    if limit and load > limit:
        raise LimitExceeded(
            f"the selectors in use at {destination.address} would have {load} identifiers, "
            f"literals and operations together, at most {limit} are allowed "
            "(broker.max_destination_selector_nodes); use fewer or simpler ones, or compare one "
            "property with a value (id = 17)"
        )


def _join_pending_queue(
    subscription: Subscription, selector: Selector | None
) -> PendingQueue[Delivery, Consumer]:
    """Return the pending queue of a selector, created if needed, with one more consumer."""
    text = "" if selector is None else selector.text
    pending_queue = subscription.pending_queues.get(text)
    if pending_queue is None:
        pending_queue = subscription.pending_queues[text] = PendingQueue(
            subscription.core.settings.chunk_deliveries, selector
        )
        subscription.selective.add(pending_queue, selector)
        if subscription.all_ready.mask:
            if subscription.rescan is None:
                subscription.rescan = SelectorRescan(subscription)
            subscription.rescan.add_queue(pending_queue)
    pending_queue.consumers += 1
    return pending_queue


def _remove_consumer(consumer: Consumer) -> None:
    """Remove the consumer from its subscription, so that nothing more is dispatched to it, and
    activate the standby, if any, that takes its place.
    """
    subscription = consumer.subscription
    del subscription.consumers[consumer]
    consumer.window.consumers.remove(consumer)
    _leave_pending_queue(consumer)
    destination = subscription.destination
    for standby in islice(subscription.consumers, destination.settings.active_consumers):
        if not standby.active:
            standby.active = True
            mark_available(standby)
    destination.restart_idle_time()


def _leave_pending_queue(consumer: Consumer) -> None:
    subscription = consumer.subscription
    pending_queue = consumer.pending_queue
    pending_queue.available_consumers.pop(consumer, None)
    pending_queue.consumers -= 1
    if pending_queue.selector is not None and not pending_queue.consumers:
        del subscription.pending_queues[pending_queue.selector.text]
        subscription.selective.remove(pending_queue, pending_queue.selector)
        if subscription.rescan is not None:
            subscription.rescan.remove_queue(pending_queue)


class Acceptable:
    """Selector of the messages of one subscription that a kind of consumer has not declined."""

    __slots__ = ("_declined", "_subscription", "equalities", "nodes", "text")

    def __init__(self, subscription: Subscription, text: str) -> None:
        """Create a selector that matches all messages; `text` must differ from every JMS
        selector.
        """
        self.text: str = text
        self.nodes: int = 1
        self.equalities: tuple[Equality, ...] = ()
        self._subscription = subscription
        self._declined: dict[int, None] = {}

    def __call__(self, message: Message) -> bool:
        """Return whether to dispatch the message to these consumers.

        True unless they have declined it and it waits for others: a declined message that does not
        wait must come back here to become a dead letter.
        """
        return message.sequence not in self._declined or not self.can_wait(message)

    def decline(self, sequence: int) -> None:
        """Record that these consumers cannot process a message."""
        self._declined[sequence] = None
        if len(self._declined) > MAX_DECLINED:
            del self._declined[next(iter(self._declined))]

    def can_wait(self, message: Message) -> bool:
        """Return whether a declined message can wait for another consumer."""
        if is_dead_letter(message):
            return True
        for pending_queue in self._subscription.pending_queues.values():
            selector = pending_queue.selector
            if selector is self or not pending_queue.consumers:
                continue
            if selector is None:
                return True
            if isinstance(selector, Acceptable):
                if message.sequence not in selector._declined:
                    return True
            elif selector(message):
                return True
        return False


def decline(consumer: Consumer, sequences: Iterable[int], kind: str, reason: str) -> None:
    """Return deliveries that a consumer cannot process; see Broker.decline.

    Raises JournalDamaged, RecordNotFound.
    """
    subscription = consumer.subscription
    unacked = [sequence for sequence in sequences if sequence in consumer.unacked]
    if not unacked or consumer not in subscription.consumers:
        return
    text = f"(not too large for {kind})"
    pending_queue = subscription.pending_queues.get(text)
    selector = Acceptable(subscription, text) if pending_queue is None else pending_queue.selector
    assert isinstance(selector, Acceptable)
    if consumer.pending_queue.selector is None:
        reselect(consumer, selector)
    returned_sequences: list[int] = []
    for sequence in unacked:
        message = subscription.core.read(consumer.unacked[sequence])
        selector.decline(sequence)
        if selector.can_wait(message):
            returned_sequences.append(sequence)
        else:
            dead_letter(subscription, sequence, reason, True)
    release(consumer, returned_sequences, attempted=False)
