"""States of a delivery: delay, return and end, with the counts of both.

States, and the functions that change them:

    enqueue ──> READY ──dispatch──> UNACKED ──acknowledge──────────> ENDED
                 │ ^                   ├──release──> READY
                 │ │                   ├──time-out──> SCHEDULED (back-off) or READY
                 │ └──timer── SCHEDULED └──dead_letter─────────────> ENDED
                 ├──expiry, purge, overflow────────────────────────> ENDED
    enqueue (due later) ──> SCHEDULED ──timer──> READY

dispatch.py has `enqueue`, the dispatch to a consumer, and `acknowledge`. redelivery.py returns
unacked messages to the pending queues, and attachment.py adds and removes consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from sluicemq.broker.pending.entry import (
    ENDED,
    READY,
    RECORDED,
    REFERENCED,
    SCHEDULED,
    SHARED,
    UNACKED,
)
from sluicemq.broker.state import Consumer, Core, Delivery, Subscription, Window
from sluicemq.journal.format import Cause
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import JournalError

RETRY_EXAMINED: Final = 4096
"""Number of refused deliveries examined in one pass for capacity in the dead-letter queue."""
RETRY_MOVES: Final = 256
"""Number of refused deliveries moved in one pass, so that other work is not delayed."""
DISCARDED_TOGETHER: Final = 200
"""Number of messages of a closed subscription that end together, with one record of the journal."""

ACKNOWLEDGED: Final = "acknowledged"
RELEASED: Final = "released"
REDELIVERED: Final = "redelivered"
REPLACED: Final = "dead-lettered or moved"
"""Outcomes of delivery attempts, of which observers are notified (Observer.ended)."""

_OUTCOMES: Final = {
    Cause.ACKNOWLEDGED: ACKNOWLEDGED,
    Cause.EXPIRED: "expired",
    Cause.DROPPED: "dropped",
    Cause.PURGED: "purged",
    Cause.DISCARDED: "discarded",
}


# --- return ------------------------------------------------------------------------------------


def requeue_in_place(delivery: Delivery) -> None:
    """Return a delivery to its original position, in every pending queue that it matches."""
    delivery.state = READY
    delivery.consumer = None
    subscription = delivery.subscription
    if delivery.attempts:
        subscription.requeued[delivery.sequence] = delivery
    all_ready = subscription.all_ready
    all_ready.reinsert(delivery)
    if len(subscription.pending_queues) > 1:
        rescan = subscription.rescan
        for pending_queue in subscription.selective.targets(subscription.core.read(delivery)):
            if rescan is None or not rescan.defers(pending_queue, delivery):
                all_ready.pin(delivery)
                pending_queue.reinsert(delivery)
        compact_pending_queues(subscription)
    subscription.core.dispatchable[subscription] = None
    note_release(delivery)


def note_release(delivery: Delivery) -> None:
    """Notify the observer that a delivery, if it was unacked, has returned."""
    subscription = delivery.subscription
    if subscription.core.observer is not None:
        subscription.core.observer.ended(subscription, delivery.sequence, RELEASED)


def compact_pending_queues(subscription: Subscription) -> None:
    """Compact the pending queues in which deliveries taken through other queues may prevail."""
    all_ready = subscription.all_ready
    stale_count = all_ready.length - subscription.ready
    if stale_count > 64 and stale_count > all_ready.count_objects() // 2:
        all_ready.compact()
    if len(subscription.pending_queues) == 1:
        return
    limit = 2 * subscription.waiting + 64
    for pending_queue in subscription.pending_queues.values():
        if pending_queue is not all_ready and pending_queue.length > 64:
            loose_count = pending_queue.count_objects()
            if loose_count > limit or loose_count > pending_queue.limit:
                pending_queue.compact()


def delay(delivery: Delivery, milliseconds: int) -> None:
    """Make a delivery that is counted as waiting ready after a delay."""
    subscription = delivery.subscription
    core = subscription.core
    delivery.state = SCHEDULED
    delivery.consumer = None
    delivery.delivered = due = core.clock.steady + milliseconds
    subscription.scheduled[delivery.sequence] = delivery
    core.timers.add(due, _undelay, delivery)
    note_release(delivery)


def _undelay(delivery: Delivery) -> None:
    # an administrator may have made it ready meanwhile, and it may have been delayed again; or it
    # has ended during the delay and waits for capacity in the dead-letter queue, or to be discarded
    subscription = delivery.subscription
    core = subscription.core
    is_due = delivery.state == SCHEDULED and delivery.delivered <= core.clock.steady
    if is_due and not subscription.closed and delivery.sequence not in subscription.refused:
        end_delay(delivery)
        if delivery.journaled:
            core.clock_log.note_time()


def end_delay(delivery: Delivery) -> None:
    """Make a scheduled delivery ready."""
    subscription = delivery.subscription
    del subscription.scheduled[delivery.sequence]
    if subscription.refused.pop(delivery.sequence, None) and delivery.expires:
        core = subscription.core
        core.wheel.add(delivery, core.clock.steady)
    requeue_in_place(delivery)


def drop_overflow(delivery: Delivery) -> None:
    """Apply the dropping policies after the arrival of a delivery.

    A body of more than `max_bytes` is dropped itself: the others fit without it.
    """
    subscription = delivery.subscription
    destination = subscription.destination
    settings = destination.settings
    drops_lowest = settings.overflow is Overflow.DROP_LOWEST
    if not drops_lowest and settings.overflow is not Overflow.DROP_OLDEST:
        return
    while (settings.max_messages and subscription.waiting > settings.max_messages) or (
        settings.max_bytes and subscription.waiting_bytes > settings.max_bytes
    ):
        if not destination.drops_when_full:
            return
        if settings.max_bytes and delivery.size > settings.max_bytes and delivery.state != ENDED:
            remove_waiting(delivery)
            drop(delivery, "overflow", False)
            compact_pending_queues(subscription)
            continue
        victim = _take_for_drop(subscription, drops_lowest)
        if victim is None:
            return
        withdraw(victim)
        drop(victim, "overflow", False)


def _take_for_drop(subscription: Subscription, lowest: bool) -> Delivery | None:
    """Return the waiting delivery to drop, or None.

    Deliveries refused by the full dead-letter queue are dropped first, as no consumer gets them;
    then ready ones; then the one that was scheduled first.
    """
    for delivery, _, _ in subscription.refused.values():
        return delivery
    ready = subscription.all_ready.take_for_drop(lowest)
    return ready or next(iter(subscription.scheduled.values()), None)


# --- consumers (see also attachment.py) --------------------------------------------------------


def remove_drained_consumer(consumer: Consumer) -> None:
    """Forget a retired consumer once it holds no more deliveries."""
    if consumer.retired and not consumer.unacked:
        consumer.subscription.retired.pop(consumer, None)
        stop_ack_timer(consumer)


def stop_ack_timer(consumer: Consumer) -> None:
    """End the acknowledgement timer of a consumer that will not receive any more deliveries."""
    if consumer.has_ack_timer:
        consumer.has_ack_timer = False
        consumer.subscription.core.timers.note_ended()


def mark_available(consumer: Consumer) -> None:
    """Mark the consumer as available, after the others, if it may take a message."""
    if consumer.window.credit > 0 and consumer.active and not consumer.suspended:
        available = consumer.pending_queue.available_consumers
        available.pop(consumer, None)
        available[consumer] = None
        if consumer.pending_queue.mask:
            consumer.subscription.core.dispatchable[consumer.subscription] = None


def suspend(consumer: Consumer) -> None:
    """Deliver nothing to the consumer until it is resumed."""
    consumer.suspended = True
    consumer.pending_queue.available_consumers.pop(consumer, None)


def handle_fault(consumer: Consumer, error: Exception) -> None:
    """Handle an error of a consumer's session, which its sink has raised: the consumer gets no more
    deliveries, and the owner of the engine ends its connection.

    Raises the error if it is one of the journal, or if the owner has set no `on_fault`.
    """
    on_fault = consumer.subscription.core.on_fault
    if on_fault is None or isinstance(error, JournalError):
        raise error
    suspend(consumer)
    on_fault(consumer, error)


def notify_detached(consumers: Iterable[Consumer]) -> None:
    """Notify the sinks of consumers whose destination or subscription was deleted."""
    for consumer in consumers:
        try:
            consumer.sink.detached(consumer)
        except Exception as error:
            handle_fault(consumer, error)


def mark_window_available(window: Window) -> None:
    """Mark the consumers of a window as available after credit was added."""
    for peer in window.consumers:
        mark_available(peer)


# --- removal from a consumer -------------------------------------------------------------------


def journal_completion(
    subscription: Subscription, cause: Cause, sequences: list[int], last: bool = True
) -> int:
    """Journal the end of messages in a subscription and return the record's sequence; `last` ends
    the journal unit.
    """
    core = subscription.core
    record = core.journal.append_completed(
        subscription.number,
        subscription.destination.number,
        cause,
        sequences,
        core.clock.wall,
        last,
    )
    if cause is Cause.ACKNOWLEDGED:
        core.last_ack_record = record
    return record


def remove_delivered(
    subscription: Subscription, sequence: int, consumer: Consumer | None = None
) -> Delivery | None:
    """Remove a message that has been delivered before and return it, or None.

    The message may be unacked, or have been requeued since.
    """
    delivery = remove_unacked(subscription, sequence, consumer)
    if delivery is None and (delivery := subscription.requeued.pop(sequence, None)):
        remove_waiting(delivery)
        compact_pending_queues(subscription)
    return delivery


def remove_unacked(
    subscription: Subscription, sequence: int, holder: Consumer | None = None
) -> Delivery | None:
    """Remove an unacked delivery from its consumer, `holder` if that is known, and restore the
    consumer's credit.
    """
    consumers = subscription.all_consumers if holder is None else (holder,)
    for consumer in consumers:
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is not None:
            remove_drained_consumer(consumer)
            subscription.unacked -= 1
            subscription.unacked_bytes -= delivery.size
            delivery.consumer = None
            if consumer.window.refill:
                consumer.window.credit += 1
                mark_window_available(consumer.window)
            return delivery
    return None


# --- the end of a delivery ---------------------------------------------------------------------


def end(delivery: Delivery, cause: Cause) -> None:
    """End a delivery that is no longer counted, and journal the cause."""
    end_all(delivery.subscription, [delivery], cause)


def end_all(subscription: Subscription, deliveries: list[Delivery], cause: Cause) -> int:
    """End deliveries that are no longer counted, and journal the cause.

    Return the sequence of the last record; 0 if the end of none of them is journaled.
    """
    sequences = prepare_completion(subscription.core, deliveries)
    for delivery in deliveries:
        end_unjournaled(delivery, cause)
    record = 0
    for owner, ended in sequences.items():
        record = journal_completion(owner, cause, ended)
    return record


def prepare_completion(core: Core, deliveries: Iterable[Delivery]) -> dict[Subscription, list[int]]:
    """Return the sequences of the deliveries whose end is journaled, by their `_owner_of_end`.

    The caller journals their end and ends them; the deliveries recorded so far are journaled first.
    """
    sequences: dict[Subscription, list[int]] = {}
    for delivery in deliveries:
        owner = _owner_of_end(delivery)
        if owner is not None:
            sequences.setdefault(owner, []).append(delivery.sequence)
    if sequences:
        core.event_recorder.write()
    return sequences


def _owner_of_end(delivery: Delivery) -> Subscription | None:
    """Return the subscription under whose number the end of a delivery is journaled, or None.

    The end of the last SHARED delivery of a message is that of its topic's group. This counts the
    end of a SHARED delivery: call it once for each.
    """
    if delivery.journaled == RECORDED:
        return delivery.subscription
    destination = delivery.subscription.destination
    if delivery.journaled == SHARED and destination.end_shared_copy(delivery.sequence):
        return destination.queue
    return None


def end_unjournaled(delivery: Delivery, cause: Cause) -> None:
    """End a delivery that is no longer counted, without journaling it: the caller does if needed
    (`prepare_completion`).
    """
    subscription = delivery.subscription
    sequence = delivery.sequence
    if delivery.attempts:
        subscription.requeued.pop(sequence, None)
    delivery.state = ENDED
    core = subscription.core
    if delivery.message is not None:
        core.drop_message(delivery)
    if delivery.expires:
        core.wheel.discard(delivery)
    if delivery.journaled == REFERENCED:
        core.journal.release(sequence)
    subscription.destination.unpark_later()
    if core.observer is not None:
        core.observer.ended(subscription, sequence, _OUTCOMES.get(cause, REPLACED))


def withdraw(delivery: Delivery) -> None:
    """Stop counting a waiting delivery as ready or scheduled, without dispatching it."""
    subscription = delivery.subscription
    subscription.waiting -= 1
    subscription.waiting_bytes -= delivery.size
    if delivery.state == SCHEDULED:
        del subscription.scheduled[delivery.sequence]
        subscription.refused.pop(delivery.sequence, None)
        subscription.core.timers.note_ended()
    delivery.state = UNACKED


def remove_waiting(delivery: Delivery) -> None:
    """Withdraw a delivery and remove it from the pending queue.

    The object may be a temporary one, unpacked from a chunk. The caller calls
    `compact_pending_queues` afterwards.
    """
    if delivery.state == READY:
        delivery.subscription.all_ready.discard(delivery)
    withdraw(delivery)


def expire(delivery: Delivery) -> None:
    """Expire a waiting delivery, which may already have been removed from its pending queue."""
    remove_waiting(delivery)
    expire_uncounted(delivery)
    compact_pending_queues(delivery.subscription)


def expire_all(deliveries: list[Delivery]) -> Iterator[None]:
    """Expire those deliveries that still wait, and yield after each."""
    for delivery in deliveries:
        subscription = delivery.subscription
        if (
            (delivery.state == READY or delivery.state == SCHEDULED)
            and not subscription.closed
            # otherwise it has ended already, and waits for capacity in the dead-letter queue
            and delivery.sequence not in subscription.refused
        ):
            expire(delivery)
            yield


def expire_uncounted(delivery: Delivery) -> None:
    """Expire a delivery that is not counted as waiting."""
    delivery.subscription.destination.statistics.expired += 1
    drop(delivery, "expired", False)


def drop(delivery: Delivery, reason: str, force: bool) -> None:
    """Dead-letter a delivery, end it, or keep it until the dead-letter queue has capacity.

    The delivery must no longer be counted as waiting or unacked; the expiry of one that is dropped
    as "expired" has been counted.
    """
    subscription = delivery.subscription
    dead_lettered = subscription.core.move_to_dead_letters(delivery, reason, force)
    if dead_lettered is None:
        _keep_refused(delivery, reason, force)
    elif dead_lettered:
        return
    elif reason == "expired":
        end(delivery, Cause.EXPIRED)
    else:
        subscription.destination.statistics.dropped += 1
        end(delivery, Cause.DROPPED)


def _keep_refused(delivery: Delivery, reason: str, force: bool) -> None:
    """Keep a delivery that the full dead-letter queue refused, and offer it again later.

    The delivery counts as waiting and is delivered to no consumer. The next offer follows after
    the setting `dead_letter_retry`.
    """
    subscription = delivery.subscription
    core = subscription.core
    subscription.waiting += 1
    subscription.waiting_bytes += delivery.size
    delivery.state = SCHEDULED
    delivery.consumer = None
    delivery.delivered = core.clock.steady + core.settings.dead_letter_retry
    subscription.scheduled[delivery.sequence] = delivery
    subscription.refused[delivery.sequence] = (delivery, reason, force)
    if delivery.attempts:
        subscription.requeued[delivery.sequence] = delivery
    core.page_out((delivery,))
    _schedule_retry(subscription, core.settings.dead_letter_retry)
    note_release(delivery)


def _schedule_retry(subscription: Subscription, milliseconds: int) -> None:
    if not subscription.retrying:
        subscription.retrying = True
        core = subscription.core
        core.timers.add(core.clock.steady + milliseconds, _retry_refused, subscription)


def _retry_refused(subscription: Subscription) -> None:
    """Move refused deliveries for which the dead-letter queue has capacity, oldest first."""
    subscription.retrying = False
    destination = subscription.destination
    count = 0
    for delivery, reason, force in list(islice(subscription.refused.values(), RETRY_EXAMINED)):
        if count == RETRY_MOVES or not destination.has_dead_letter_capacity(0):
            break
        is_refused = delivery.sequence in subscription.refused
        if is_refused and destination.has_dead_letter_capacity(delivery.size):
            withdraw(delivery)
            drop(delivery, reason, force)
            count += 1
    if subscription.refused:
        milliseconds = 1 if count == RETRY_MOVES else subscription.core.settings.dead_letter_retry
        _schedule_retry(subscription, milliseconds)


def dead_letter(
    subscription: Subscription,
    sequence: int,
    reason: str,
    force: bool,
    consumer: Consumer | None = None,
) -> bool:
    """Dead-letter a delivered message; return False if no such delivery exists."""
    delivery = remove_delivered(subscription, sequence, consumer)
    if delivery is None:
        return False
    if reason == "expired":
        subscription.destination.statistics.expired += 1
    drop(delivery, reason, force)
    return True


def discard_waiting(subscription: Subscription) -> None:
    """End the waiting deliveries of a closed subscription, in slices of the time for scans.

    Those that are left for a later slice are in no map by which a client or a timer finds them.
    """
    subscription.requeued.clear()
    subscription.refused.clear()
    scheduled = list(subscription.scheduled.values())
    waiting = chain(iter(subscription.all_ready.take, None), scheduled)
    subscription.core.scans.begin_steps(_discard(subscription, waiting))


def _discard(subscription: Subscription, waiting: Iterator[Delivery]) -> Iterator[None]:
    while deliveries := list(islice(waiting, DISCARDED_TOGETHER)):
        for delivery in deliveries:
            withdraw(delivery)
        end_all(subscription, deliveries, Cause.DISCARDED)
        yield
