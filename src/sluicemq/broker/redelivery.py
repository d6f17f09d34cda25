"""Redelivery: return of unacked deliveries, their attempts and delays.

An attempted delivery may be delayed, or end because it has expired or has used all attempts that
its destination allows. Otherwise it returns to its original position, before later messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from sluicemq.broker.codec import Attempts, encode
from sluicemq.broker.pending.entry import ENDED, RECORDED, SHARED, queue_order
from sluicemq.broker.state import Consumer, Delivery, Subscription
from sluicemq.broker.subscription import (
    delay,
    drop,
    end_all,
    expire_uncounted,
    mark_window_available,
    remove_drained_consumer,
    requeue_in_place,
)
from sluicemq.journal.format import Cause, RecordType
from sluicemq.model.destination import DestinationSettings

REQUEUED_TOGETHER: Final = 200
"""Number of deliveries that one step of a scan requeues, with one record of the journal."""


def release(
    consumer: Consumer,
    sequences: Iterable[int],
    attempted: bool = True,
    *,
    ignore_max_attempts: bool = False,
    timed_out: bool = False,
) -> None:
    """Return deliveries to their original positions.

    Sequences that the consumer does not hold are ignored. With `attempted` False the delivery
    counts no attempt: it was prefetched and not processed. With `ignore_max_attempts` it counts,
    but even the last attempt does not lead to the dead-letter queue. A delivery that `timed_out`
    is redelivered after its delay.
    """
    unacked = consumer.unacked
    deliveries = [unacked.pop(sequence) for sequence in sequences if sequence in unacked]
    if not deliveries:
        return
    remove_drained_consumer(consumer)
    requeue_unacked(
        consumer.subscription,
        deliveries,
        attempted,
        ignore_max_attempts=ignore_max_attempts,
        timed_out=timed_out,
    )
    window = consumer.window
    if window.refill:
        window.credit += len(deliveries)
        mark_window_available(window)


def _retry_delay(settings: DestinationSettings, attempts: int) -> int:
    """Return the ms until a message that was not acknowledged in time is delivered again."""
    delay_ms = settings.retry_delay << min(attempts - 1, 40)
    return min(delay_ms, settings.retry_delay_max or delay_ms)


def requeue_unacked(
    subscription: Subscription,
    returned: list[Delivery],
    attempted: bool,
    *,
    ignore_max_attempts: bool = False,
    timed_out: bool = False,
) -> None:
    """Make unacked deliveries removed from their consumer ready, expired or dead-lettered.

    With `timed_out` those that are to be delivered again are delayed (`retry_delay`).
    """
    for delivery in returned:
        subscription.unacked -= 1
        subscription.unacked_bytes -= delivery.size
    if subscription.closed:
        end_all(subscription, returned, Cause.DISCARDED)
        return
    core = subscription.core
    now = core.clock.steady
    settings = subscription.destination.settings
    limit = settings.max_attempts
    counts: list[tuple[int, int]] = []
    for delivery in returned:
        delivery.consumer = None
        if not attempted:
            delivery.attempts -= 1
        if delivery.expires and delivery.expires <= now:
            expire_uncounted(delivery)
            continue
        if attempted and limit and delivery.attempts >= limit and not ignore_max_attempts:
            drop(delivery, "max-attempts", False)
            if delivery.state != ENDED and delivery.journaled == RECORDED:
                counts.append((delivery.sequence, delivery.attempts))
            continue
        if delivery.journaled >= SHARED:
            counts.append((delivery.sequence, delivery.attempts))
        subscription.waiting += 1
        subscription.waiting_bytes += delivery.size
        if delivery.expires:
            core.wheel.add(delivery, now)  # it is not there yet if it was dispatched on arrival
        delay_ms = _retry_delay(settings, delivery.attempts) if timed_out else 0
        if delay_ms:
            if delivery.attempts:
                subscription.requeued[delivery.sequence] = delivery
            delay(delivery, delay_ms)
        else:
            requeue_in_place(delivery)
    core.page_out(returned)
    _journal_attempts(subscription, counts)


def requeue_in_slices(subscription: Subscription, count: int, steps: Iterator[None]) -> None:
    """Run the steps that requeue `count` deliveries; many of them in slices of the time for scans.

    Nothing is dispatched before the last step, so that the deliveries precede later messages. While
    the broker stops they are requeued at once, because there may be no further iteration.
    """
    core = subscription.core
    if core.stopping or count <= REQUEUED_TOGETHER:
        for _ in steps:
            pass
    else:
        subscription.requeuing.append(steps)
        core.scans.begin_steps(_then_dispatch(subscription, steps))


def _then_dispatch(subscription: Subscription, steps: Iterator[None]) -> Iterator[None]:
    """Run the steps, and resume the dispatch even if one of them raises."""
    try:
        yield from steps
    finally:
        subscription.requeuing.remove(steps)
        subscription.core.dispatchable[subscription] = None


def start_next_attempt(
    consumer: Consumer, sequences: Iterable[int], attempted: bool
) -> list[Delivery]:
    """Start the next attempt of deliveries at the same consumer: see Broker.start_next_attempt."""
    subscription = consumer.subscription
    now = subscription.core.clock.steady
    unacked = consumer.unacked
    statistics = subscription.destination.statistics
    limit = subscription.destination.settings.max_attempts
    counts: list[tuple[int, int]] = []
    new_deliveries: list[Delivery] = []
    ended_sequences: list[int] = []
    deliveries = {unacked[sequence] for sequence in sequences if sequence in unacked}
    for delivery in sorted(deliveries, key=queue_order):
        expired = bool(delivery.expires) and delivery.expires <= now
        if expired or (attempted and limit and delivery.attempts >= limit):
            ended_sequences.append(delivery.sequence)
            continue
        if attempted:
            if delivery.journaled >= SHARED:
                counts.append((delivery.sequence, delivery.attempts))
            delivery.attempts += 1
        delivery.delivered = now
        unacked[delivery.sequence] = unacked.pop(delivery.sequence)  # the latest
        statistics.delivered += 1
        if delivery.attempts > 1:
            statistics.redelivered += 1
        statistics.delivered_bytes += delivery.size
        new_deliveries.append(delivery)
    _journal_attempts(subscription, counts)
    if new_deliveries:
        record_deliveries(subscription, new_deliveries)
    release(consumer, ended_sequences, attempted)
    if new_deliveries and consumer.ack_timeout and not consumer.has_ack_timer:
        start_ack_timer(consumer)
    return new_deliveries


def record_deliveries(subscription: Subscription, deliveries: list[Delivery]) -> None:
    """Notify the observer of deliveries just dispatched to a consumer, and record them."""
    core = subscription.core
    if core.observer is not None:
        core.observer.delivered(subscription, deliveries)
    if core.event_recorder.recording and subscription.number:
        core.event_recorder.deliver(
            subscription.number, subscription.destination.number, deliveries
        )


def _journal_attempts(subscription: Subscription, counts: list[tuple[int, int]]) -> None:
    if counts and subscription.number:
        core = subscription.core
        core.event_recorder.write()  # the counts replace those of earlier deliveries
        payload = encode(Attempts(subscription.number, counts))
        core.journal.append_entry(RecordType.DELIVERY_ATTEMPTS, payload, core.clock.wall)


def restore_unacked(consumer: Consumer, delivery: Delivery) -> None:
    """Return a delivery from a transaction to the consumer that acknowledged it there.

    Raises JournalDamaged, RecordNotFound.
    """
    subscription = consumer.subscription
    if delivery.message is None:
        subscription.core.load(delivery)
    # the acknowledgement timeout starts again, so the oldest delivery stays first
    delivery.delivered = subscription.core.clock.steady
    consumer.unacked[delivery.sequence] = delivery
    if consumer.retired:
        subscription.retired[consumer] = None
    if consumer.window.refill:
        consumer.window.credit -= 1
    if consumer.ack_timeout and not consumer.has_ack_timer:
        start_ack_timer(consumer)


def start_ack_timer(consumer: Consumer) -> None:
    """Start the acknowledgement timer for a delivery that the consumer has just received."""
    consumer.has_ack_timer = True
    core = consumer.subscription.core
    core.timers.add(core.clock.steady + consumer.ack_timeout, _check_acks, consumer)


def _check_acks(consumer: Consumer) -> None:
    """Return deliveries that have been unacked for longer than the timeout."""
    consumer.has_ack_timer = False
    core = consumer.subscription.core
    now = core.clock.steady
    sequences: list[int] = []
    for delivery in consumer.unacked.values():
        if delivery.delivered + consumer.ack_timeout > now:
            break
        sequences.append(delivery.sequence)
    release(consumer, sequences, timed_out=True)
    for delivery in islice(consumer.unacked.values(), 1):
        consumer.has_ack_timer = True
        core.timers.add(delivery.delivered + consumer.ack_timeout, _check_acks, consumer)
