"""The path of a delivery: arrival, dispatch to a consumer, and acknowledgement.

subscription.py delays, expires and drops deliveries; redelivery.py returns unacked ones.
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker.codec import Requeue, encode
from sluicemq.broker.pending.entry import ENDED, RECORDED, REFERENCED, SHARED, UNACKED
from sluicemq.broker.pending.queue import PendingQueue
from sluicemq.broker.redelivery import record_deliveries, start_ack_timer
from sluicemq.broker.state import Consumer, Delivery, Subscription
from sluicemq.broker.subscription import (
    ACKNOWLEDGED,
    compact_pending_queues,
    delay,
    drop_overflow,
    expire,
    expire_uncounted,
    handle_fault,
    journal_completion,
    mark_window_available,
    note_release,
    remove_drained_consumer,
    requeue_in_place,
)
from sluicemq.journal.format import Cause, RecordType
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.model.message import Message

ITERATION_DELIVERIES: Final = 1000
ITERATION_BYTES: Final = 1 << 20
"""Limits per consumer and iteration, so that no backlog blocks the other connections. Bodies and
headers count."""


# --- arrival -------------------------------------------------------------------------------------


def add(
    subscription: Subscription, message: Message, journaled: int, is_only_target: bool = False
) -> None:
    """Add a message that has become visible to a subscription.

    `is_only_target` states that no other subscription has received messages that could be ordered
    before it.
    """
    core = subscription.core
    destination = subscription.destination
    now = core.clock.steady
    size = len(message.body)
    expiration = message.expiration
    expires = max(1, expiration - message.epoch) if expiration else 0
    due = message.deliver_at - message.epoch if message.deliver_at else 0
    delivery = Delivery(
        subscription,
        message.sequence,
        message,
        destination.priority(message.priority),
        size,
        journaled,
        expiration,
        expires,
    )
    if not message.references:
        # as size_in_memory, without a call for most messages
        native = message.native
        headers = message.header_bytes() if message.properties and not native else len(native)
        core.memory += size + headers + core.overhead
    elif not message.durability:
        core.memory += core.delivery_overhead
    message.references += 1
    pending_queue = subscription.all_ready
    if (
        is_only_target
        and pending_queue.available_consumers
        and not pending_queue.mask
        and len(subscription.pending_queues) == 1
        and (not expires or expires > now)
        and due <= now
        and not destination.paused
        and not core.halted
        and not (destination.limited and destination.would_exceed_limits(size))
        and not subscription.requeuing
    ):
        consumer = next(iter(pending_queue.available_consumers))
        if consumer.window.credit == 1:
            _deliver_directly(consumer, delivery)
            return
    if expires and expires <= now:
        expire_uncounted(delivery)  # it came too late to displace another
    else:
        enqueue(delivery, due)
    if destination.limited:
        drop_overflow(delivery)
    if core.memory > core.memory_budget and journaled and delivery.message is not None:
        if message.sequence <= core.journal.durable:
            core.drop_message(delivery)
        else:
            core.unpaged.append(delivery)


def enqueue(delivery: Delivery, due: int) -> None:
    """Count a delivery as waiting and make it ready at steady time `due` (0 = immediately)."""
    subscription = delivery.subscription
    subscription.waiting += 1
    subscription.waiting_bytes += delivery.size
    core = subscription.core
    steady = core.clock.steady
    if delivery.expires:
        core.wheel.add(delivery, steady)
    if due > steady:
        delay(delivery, due - steady)
    else:
        _push_ready(delivery)


def _push_ready(delivery: Delivery) -> None:
    """Append a delivery, as the last of its priority, to every pending queue that it matches."""
    subscription = delivery.subscription
    all_ready = subscription.all_ready
    all_ready.push(delivery)
    if len(subscription.pending_queues) == 1:
        if all_ready.available_consumers:
            subscription.core.dispatchable[subscription] = None
        return
    rescan = subscription.rescan
    for pending_queue in subscription.selective.targets(subscription.core.read(delivery)):
        if rescan is None or not rescan.defers(pending_queue, delivery):
            all_ready.pin(delivery)
            pending_queue.push(delivery)
    subscription.core.dispatchable[subscription] = None


def requeue_at_tail(old: Delivery, expiration: int) -> int:
    """Append a delivery, which is uncounted and in no pending queue, at the tail.

    `expiration` is in wall ms. Return the sequence of its new position, for `when_durable`.
    """
    subscription = old.subscription
    core = subscription.core
    old.state = ENDED
    if old.expires:
        core.wheel.discard(old)
    clock = core.clock
    expires = max(1, clock.steady + expiration - clock.wall) if expiration else 0
    delivery = Delivery(
        subscription,
        old.sequence,
        old.message,
        old.priority,
        old.size,
        old.journaled,
        expiration,
        expires,
    )
    if old.journaled == RECORDED:
        delivery.order = core.journal.append_entry(
            RecordType.REQUEUED,
            encode(Requeue(subscription.number, expiration, old.attempts)),
            clock.wall,
            reference=old.sequence,
            destination=subscription.destination.number,
        )
        core.note_requeued_at_tail(delivery)
    else:
        delivery.order = core.journal.next_sequence()
    old.message = None
    delivery.attempts = old.attempts
    if delivery.attempts:
        subscription.requeued[delivery.sequence] = delivery
    enqueue(delivery, 0)
    note_release(delivery)
    if subscription.destination.limited:
        drop_overflow(delivery)
    core.page_out((delivery,))
    return delivery.order


# --- dispatch ------------------------------------------------------------------------------------


def dispatch(subscription: Subscription) -> None:
    """Deliver ready messages to the available consumers, one each in turn.

    A message may match the selectors of several pending queues, and the first of them delivers it.
    So the pending queue that is served first comes last the next time.
    """
    if subscription.destination.paused or subscription.core.halted or subscription.requeuing:
        compact_pending_queues(subscription)  # arrivals may have displaced others
        return
    if len(subscription.pending_queues) == 1:
        _dispatch_queue(subscription, subscription.all_ready, ITERATION_DELIVERIES)
        return
    total = 0
    total_bytes = 0
    pending_queues = [
        pending_queue
        for pending_queue in subscription.pending_queues.values()
        if pending_queue.available_consumers and pending_queue.mask
    ]
    first = pending_queues[0] if len(pending_queues) > 1 else None
    while pending_queues:
        served_queues = []
        for pending_queue in pending_queues:
            if size := _dispatch_queue(subscription, pending_queue, 1):
                served_queues.append(pending_queue)
                total_bytes += size
        pending_queues = served_queues
        total += 1
        if total >= ITERATION_DELIVERIES or total_bytes > ITERATION_BYTES:
            subscription.core.unfinished[subscription] = None
            break
    if first is not None:
        text = first.selector.text if first.selector is not None else ""
        subscription.pending_queues[text] = subscription.pending_queues.pop(text)
    compact_pending_queues(subscription)
    if subscription.rescan is not None:
        subscription.rescan.resume()


def _deliver_directly(consumer: Consumer, delivery: Delivery) -> None:
    """Deliver to the first available consumer, whose credit is 1, without a pending queue.

    With that credit, waiting for the end of the iteration could not make the batch larger. The
    delivery is neither in a pending queue nor counted.
    """
    subscription = consumer.subscription
    sequence = delivery.sequence
    size = delivery.size
    statistics = subscription.destination.statistics
    delivery.state = UNACKED
    delivery.consumer = consumer
    delivery.delivered = subscription.core.clock.steady
    delivery.attempts += 1
    if delivery.attempts > 1:
        statistics.redelivered += 1
        subscription.requeued.pop(sequence, None)
    consumer.unacked[sequence] = delivery
    subscription.unacked += 1
    subscription.unacked_bytes += size
    window = consumer.window
    window.credit = 0
    for peer in window.consumers:
        peer.pending_queue.available_consumers.pop(peer, None)
    if consumer.ack_timeout and not consumer.has_ack_timer:
        start_ack_timer(consumer)
    statistics.delivered += 1
    statistics.delivered_bytes += size
    _pass_on(consumer, [delivery])


def _pass_on(consumer: Consumer, deliveries: list[Delivery]) -> None:
    """Pass deliveries just dispatched to a consumer to its sink, and record them."""
    subscription = consumer.subscription
    consumer.delivered += len(deliveries)
    record_deliveries(subscription, deliveries)
    try:
        consumer.sink.deliver(consumer, deliveries)
    except Exception as error:
        handle_fault(consumer, error)


def deliver_one(consumer: Consumer) -> bool:
    """Deliver the first ready delivery to the consumer, whose credit is 1.

    Return False, without any change, if no delivery is ready or the simple path does not apply: the
    consumer then has to be marked as available.
    """
    subscription = consumer.subscription
    pending_queue = consumer.pending_queue
    destination = subscription.destination
    if (
        not pending_queue.mask
        or pending_queue.available_consumers
        or len(subscription.pending_queues) > 1
        or not consumer.active
        or consumer.suspended
        or destination.paused
        or subscription.core.halted
        or subscription.requeuing
    ):
        return False
    delivery = _take_ready(subscription, pending_queue)
    if delivery is None:
        return False
    subscription.waiting -= 1
    subscription.waiting_bytes -= delivery.size
    destination.unpark_later()
    _deliver_directly(consumer, delivery)
    return True


def _take_ready(
    subscription: Subscription, pending_queue: PendingQueue[Delivery, Consumer]
) -> Delivery | None:
    """Remove and return the first delivery that has not expired, with its message, or None.

    Raises JournalDamaged, RecordNotFound.
    """
    core = subscription.core
    while True:
        delivery = pending_queue.take()
        if delivery is None:
            return None
        if delivery.expires and delivery.expires <= core.clock.steady:
            expire(delivery)
            continue
        if delivery.message is None:
            try:
                core.load(delivery)
            except (JournalDamaged, RecordNotFound):
                requeue_in_place(delivery)
                raise
        return delivery


def _dispatch_queue(
    subscription: Subscription, pending_queue: PendingQueue[Delivery, Consumer], limit: int
) -> int:
    """Dispatch up to `limit` deliveries per consumer.

    Return the bytes dispatched, with one more for each delivery: 0 if there was none.
    """
    available = pending_queue.available_consumers
    if not available or not pending_queue.mask:
        return 0
    core = subscription.core
    now = core.clock.steady
    batches: dict[Consumer, list[Delivery]] = {}
    requeued = subscription.requeued
    total = 0
    size = 0
    header_size = 0
    redelivered = 0
    while available and pending_queue.mask:
        consumer = next(iter(available))
        window = consumer.window
        if window.credit <= 0:
            available.popitem(last=False)
            continue
        batch = batches.get(consumer)
        if batch is None:
            batch = batches[consumer] = []
        capacity = limit - len(batch)
        if capacity <= 0 or size + header_size > ITERATION_BYTES:
            if limit > 1:
                core.unfinished[subscription] = None
            break
        if len(available) > 1:
            capacity = 1
        elif window.credit < capacity:
            capacity = window.credit
        unacked = consumer.unacked
        count = 0
        while count < capacity:
            delivery = _take_ready(subscription, pending_queue)
            if delivery is None:
                break
            delivery.state = UNACKED
            delivery.consumer = consumer
            delivery.attempts += 1
            if delivery.attempts > 1:
                redelivered += 1
                requeued.pop(delivery.sequence, None)
            delivery.delivered = now
            unacked[delivery.sequence] = delivery
            batch.append(delivery)
            count += 1
            size += delivery.size
            message = delivery.message
            if message is not None and message.properties:
                header_size += message.header_bytes()
            if size + header_size > ITERATION_BYTES:
                break
        total += count
        window.credit -= count
        if window.credit <= 0:
            for peer in window.consumers:
                peer.pending_queue.available_consumers.pop(peer, None)
        elif count and len(available) > 1:
            available.move_to_end(consumer)
        if consumer.ack_timeout and count and not consumer.has_ack_timer:
            start_ack_timer(consumer)
    if total:
        subscription.waiting -= total
        subscription.waiting_bytes -= size
        subscription.unacked += total
        subscription.unacked_bytes += size
        destination = subscription.destination
        statistics = destination.statistics
        statistics.delivered += total
        statistics.redelivered += redelivered
        statistics.delivered_bytes += size
        destination.unpark_later()
        for consumer, batch in batches.items():
            if batch:
                _pass_on(consumer, batch)
    return total + size + header_size


# --- acknowledgement -----------------------------------------------------------------------------


def acknowledge(consumer: Consumer, sequence: int) -> bool:
    """Acknowledge a delivery of `consumer`; False when it holds no such delivery."""
    delivery = consumer.unacked.pop(sequence, None)
    if delivery is None:
        return False
    subscription = consumer.subscription
    core = subscription.core
    destination = subscription.destination
    subscription.unacked -= 1
    subscription.unacked_bytes -= delivery.size
    destination.statistics.acknowledged += 1
    delivery.state = ENDED
    message = delivery.message
    if message is not None:
        message.references -= 1
        if not message.references:
            native = message.native
            headers = message.header_bytes() if message.properties and not native else len(native)
            core.memory -= delivery.size + headers + core.overhead
        elif not message.durability:
            core.memory -= core.delivery_overhead
        delivery.message = None
    if delivery.expires:
        core.wheel.discard(delivery)
    if delivery.journaled == RECORDED:
        if not subscription.acked:
            core.subscriptions_with_acks[subscription] = None
        subscription.acked.append(sequence)
    elif delivery.journaled == SHARED:
        if destination.end_shared_copy(sequence):
            core.subscriptions_with_acks[destination.queue] = None
            destination.queue.acked.append(sequence)
    elif delivery.journaled == REFERENCED:
        core.journal.release(sequence)
    window = consumer.window
    if window.refill:
        window.credit += 1
        if window.credit == 1:
            mark_window_available(window)
        elif consumer.pending_queue.mask:
            core.dispatchable[subscription] = None
    elif consumer.retired:
        remove_drained_consumer(consumer)
    if core.observer is not None:
        core.observer.ended(subscription, sequence, ACKNOWLEDGED)
    return True


def flush_acks(subscription: Subscription) -> None:
    """Append the acknowledgements of this iteration to the journal as one record."""
    sequences = subscription.acked
    if sequences:
        subscription.acked = []
        journal_completion(subscription, Cause.ACKNOWLEDGED, sequences)
