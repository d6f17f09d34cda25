"""States of a delivery: delay, return and end, with the counts of both.

States, and the functions that change them:

    enter ──> READY ──dispatch──> TAKEN ──settle──────────────> GONE
               │ ^                  │ ├──release──> READY
               │ │                  │ ├──time-out──> DELAYED (back-off) or READY
               │ └──timer── DELAYED │ └──dead_letter──────────> GONE
               ├──expiry, purge, overflow─────────────────────> GONE
    enter (due later) ──> DELAYED ──timer──> READY

dispatch.py has `enter`, the dispatch to a consumer, and `settle`. redelivery.py returns
unacked messages to the pending queues, and attachment.py adds and removes consumers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from sluicemq.broker.pending.entry import DELAYED, GONE, HELD, READY, RECORDED, SHARED, TAKEN
from sluicemq.broker.state import Consumer, Delivery, Subscription, Window
from sluicemq.journal.format import Cause
from sluicemq.model.destination import Overflow

OFFERED: Final = 4096
"""Number of refused deliveries examined in one pass for capacity in the dead-letter queue."""
OFFERED_MOVES: Final = 256
"""Number of refused deliveries moved in one pass, so that other work is not delayed."""


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


def put_back(delivery: Delivery) -> None:
    """Return a delivery to its original position, in every pending queue that it matches."""
    delivery.state = READY
    delivery.consumer = None
    subscription = delivery.subscription
    if delivery.attempts:
        subscription.back[delivery.sequence] = delivery
    everything = subscription.everything
    everything.reinsert(delivery)
    if len(subscription.pending_queues) > 1:
        rescan = subscription.rescan
        for pending_queue in subscription.selective.targets(subscription.core.read(delivery)):
            if rescan is None or not rescan.defers(pending_queue, delivery):
                everything.share(delivery)
                pending_queue.reinsert(delivery)
        tidy(subscription)
    subscription.core.dirty[subscription] = None
    _released(delivery)


def _released(delivery: Delivery) -> None:
    """Notify the observer that a delivery, if it was unacked, has returned."""
    subscription = delivery.subscription
    if subscription.core.observer is not None:
        subscription.core.observer.ended(subscription, delivery.sequence, RELEASED)


def tidy(subscription: Subscription) -> None:
    """Compact the pending queues in which deliveries taken through other queues may prevail."""
    everything = subscription.everything
    stale_count = everything.length - subscription.ready
    if stale_count > 64 and stale_count > everything.loose() // 2:
        everything.compact()
    if len(subscription.pending_queues) == 1:
        return
    limit = 2 * subscription.waiting + 64
    for pending_queue in subscription.pending_queues.values():
        if pending_queue is not everything and pending_queue.length > 64:
            loose_count = pending_queue.loose()
            if loose_count > limit or loose_count > pending_queue.limit:
                pending_queue.compact()


def delay(delivery: Delivery, milliseconds: int) -> None:
    """Make a delivery that is counted as waiting ready after a delay."""
    subscription = delivery.subscription
    core = subscription.core
    delivery.state = DELAYED
    delivery.consumer = None
    delivery.delivered = due = core.clock.steady + milliseconds
    subscription.delayed[delivery.sequence] = delivery
    core.timers.add(due, _undelay, delivery)
    _released(delivery)


def _undelay(delivery: Delivery) -> None:
    # an administrator may have made it ready meanwhile, and it may have been delayed again;
    # or it has ended during the delay and waits for capacity in the dead-letter queue
    subscription = delivery.subscription
    core = subscription.core
    is_due = delivery.state == DELAYED and delivery.delivered <= core.clock.steady
    if is_due and delivery.sequence not in subscription.refused:
        end_delay(delivery)
        if delivery.journaled:
            core.clock_log.note_time()


def end_delay(delivery: Delivery) -> None:
    """Make a delayed delivery ready."""
    subscription = delivery.subscription
    del subscription.delayed[delivery.sequence]
    if subscription.refused.pop(delivery.sequence, None) and delivery.expires:
        core = subscription.core
        core.wheel.add(delivery, core.clock.steady)
    put_back(delivery)


def shed(subscription: Subscription) -> None:
    """Apply the dropping policies after an arrival."""
    destination = subscription.destination
    settings = destination.settings
    drops_lowest = settings.overflow is Overflow.DROP_LOWEST
    if not drops_lowest and settings.overflow is not Overflow.DROP_OLDEST:
        return
    while (settings.max_messages and subscription.waiting > settings.max_messages) or (
        settings.max_bytes and subscription.waiting_bytes > settings.max_bytes
    ):
        if not destination.drops:
            return
        delivery = subscription.everything.take_for_drop(drops_lowest)
        if delivery is None:
            return
        withdraw(delivery)
        drop(delivery, "overflow", False)


# --- consumers (see also attachment.py) --------------------------------------------------------


def let_go(consumer: Consumer) -> None:
    """Forget a retired consumer once it holds no more deliveries."""
    if consumer.retired and not consumer.unacked:
        consumer.subscription.retired.pop(consumer, None)
        unwatch(consumer)


def unwatch(consumer: Consumer) -> None:
    """End the acknowledgement timer of a consumer that will not receive any more deliveries."""
    if consumer.watched:
        consumer.watched = False
        consumer.subscription.core.timers.note_ended()


def enter_line(consumer: Consumer) -> None:
    """Put the consumer at the end of its line, if it may take a message."""
    if consumer.window.credit > 0 and consumer.active and not consumer.suspended:
        line = consumer.pending_queue.line
        line.pop(consumer, None)
        line[consumer] = None
        if consumer.pending_queue.mask:
            consumer.subscription.core.dirty[consumer.subscription] = None


def refilled(window: Window) -> None:
    """Put the consumers of a window in their lines after credit was added."""
    for peer in window.consumers:
        enter_line(peer)


# --- removal from a consumer -------------------------------------------------------------------


def complete(
    subscription: Subscription, cause: Cause, sequences: list[int], last: bool = True
) -> int:
    """Journal the end of messages in a subscription and return the record's sequence; `last` ends
    the journal unit.
    """
    core = subscription.core
    return core.journal.append_completed(
        subscription.number,
        subscription.destination.number,
        cause,
        sequences,
        core.clock.wall,
        last,
    )


def _take_back(subscription: Subscription, sequence: int) -> Delivery | None:
    """Remove a requeued delivery from the ready or delayed messages and return it, or None."""
    delivery = subscription.back.pop(sequence, None)
    if delivery is not None:
        take_out(delivery)
        tidy(subscription)
    return delivery


def seize(subscription: Subscription, sequence: int) -> Delivery | None:
    """Remove a message that has been delivered before and return it, or None.

    The message may be unacked, or have been requeued since.
    """
    return take_from_holder(subscription, sequence) or _take_back(subscription, sequence)


def take_from_holder(subscription: Subscription, sequence: int) -> Delivery | None:
    """Remove an unacked delivery from its consumer and restore the consumer's credit."""
    for consumer in subscription.holders:
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is not None:
            let_go(consumer)
            subscription.unacked -= 1
            subscription.unacked_bytes -= delivery.size
            delivery.consumer = None
            if consumer.window.refill:
                consumer.window.credit += 1
                refilled(consumer.window)
            return delivery
    return None


# --- the end of a delivery ---------------------------------------------------------------------


def end(delivery: Delivery, cause: Cause) -> None:
    """End a delivery that is no longer counted, and journal the cause."""
    end_all(delivery.subscription, [delivery], cause)


def end_all(subscription: Subscription, deliveries: Iterable[Delivery], cause: Cause) -> int:
    """End deliveries that are no longer counted, and journal the cause in one record.

    Return the record's sequence; 0 if the end of none of them is journaled.
    """
    sequences: list[int] = []
    for delivery in deliveries:
        if delivery.journaled == RECORDED:
            sequences.append(delivery.sequence)
        forget(delivery, cause)
    if not sequences:
        return 0
    subscription.core.event_recorder.write()
    return complete(subscription, cause, sequences)


def forget(delivery: Delivery, cause: Cause) -> None:
    """End a delivery without journaling it, because another record already does."""
    subscription = delivery.subscription
    sequence = delivery.sequence
    if delivery.state == DELAYED:
        subscription.delayed.pop(sequence, None)
        subscription.refused.pop(sequence, None)
        subscription.core.timers.note_ended()
    if delivery.attempts:
        subscription.back.pop(sequence, None)
    delivery.state = GONE
    core = subscription.core
    if delivery.message is not None:
        core.drop_message(delivery)
    if delivery.expires:
        core.wheel.discard(delivery)
    destination = subscription.destination
    if delivery.journaled == SHARED:
        if destination.is_last_copy(sequence):
            complete(destination.queue, Cause.ACKNOWLEDGED, [sequence])
    elif delivery.journaled == HELD:
        core.journal.release(sequence)
    if destination.parked:
        core.unblocking[destination] = None
    if core.observer is not None:
        core.observer.ended(subscription, sequence, _OUTCOMES.get(cause, REPLACED))


def withdraw(delivery: Delivery) -> None:
    """Stop counting a waiting delivery as ready or delayed, without dispatching it."""
    subscription = delivery.subscription
    subscription.waiting -= 1
    subscription.waiting_bytes -= delivery.size
    if delivery.state == DELAYED:
        del subscription.delayed[delivery.sequence]
        subscription.refused.pop(delivery.sequence, None)
        subscription.core.timers.note_ended()
    delivery.state = TAKEN


def take_out(delivery: Delivery) -> None:
    """Withdraw a delivery and remove it from the pending queue for good.

    The object may be a temporary one, unpacked from a chunk. The caller calls `tidy` afterwards.
    """
    if delivery.state == READY:
        delivery.subscription.everything.discard(delivery)
    withdraw(delivery)


def expire(delivery: Delivery) -> None:
    """Expire a waiting delivery, which may already have been removed from its pending queue."""
    take_out(delivery)
    expire_uncounted(delivery)
    tidy(delivery.subscription)


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
    dead_lettered = subscription.core.dead_letters.move(delivery, reason, force)
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
    if delivery.expires:
        core.wheel.discard(delivery)
    delivery.state = DELAYED
    delivery.consumer = None
    delivery.delivered = core.clock.steady + core.settings.dead_letter_retry
    subscription.delayed[delivery.sequence] = delivery
    subscription.refused[delivery.sequence] = (delivery, reason, force)
    if delivery.attempts:
        subscription.back[delivery.sequence] = delivery
    core.page_out((delivery,))
    _retry_in(subscription, core.settings.dead_letter_retry)
    _released(delivery)


def _retry_in(subscription: Subscription, milliseconds: int) -> None:
    if not subscription.retrying:
        subscription.retrying = True
        core = subscription.core
        core.timers.add(core.clock.steady + milliseconds, _offer_again, subscription)


def _offer_again(subscription: Subscription) -> None:
    """Move refused deliveries for which the dead-letter queue has capacity, oldest first."""
    subscription.retrying = False
    destination = subscription.destination
    fits = subscription.core.dead_letters.fits
    count = 0
    for delivery, reason, force in list(islice(subscription.refused.values(), OFFERED)):
        if count == OFFERED_MOVES or not fits(destination, 0):
            break
        if subscription.refused.get(delivery.sequence) is None or not fits(
            destination, delivery.size
        ):
            continue
        withdraw(delivery)
        drop(delivery, reason, force)
        count += 1
    if subscription.refused:
        milliseconds = 1 if count == OFFERED_MOVES else subscription.core.settings.dead_letter_retry
        _retry_in(subscription, milliseconds)


def dead_letter(subscription: Subscription, sequence: int, reason: str, force: bool) -> bool:
    """Remove a delivered message for good; return False if no such delivery exists."""
    delivery = seize(subscription, sequence)
    if delivery is None:
        return False
    if reason == "expired":
        subscription.destination.statistics.expired += 1
    drop(delivery, reason, force)
    return True


def purge(subscription: Subscription) -> None:
    """End the waiting deliveries of a subscription that is being deleted."""
    deliveries = chain(subscription.cursor(), list(subscription.delayed.values()))
    end_all(subscription, deliveries, Cause.DISCARDED)
    subscription.waiting = 0
    subscription.waiting_bytes = 0
    for pending_queue in subscription.pending_queues.values():
        pending_queue.clear()
