"""The one mechanism: a subscription dispatches, acknowledges, redelivers, expires and counts.

Life of a delivery (state, and the methods that change it):

    add/restore ──> READY ──dispatch──> TAKEN ──settle──────────────> GONE
                     │ ^                  │ ├──release──> READY
                     │ │                  │ ├──time-out──> DELAYED (back-off) or READY
                     │ └──timer── DELAYED │ └──dead_letter─────────────> GONE
                     ├──expiry, purge, overflow─────────────────────────> GONE
    add (deliver_at) ──> DELAYED ──timer──> READY
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from sluicemq.broker.consumer import Consumer, Sink, Window
from sluicemq.broker.core import Core
from sluicemq.broker.delivery import (
    DELAYED,
    GONE,
    HELD,
    READY,
    RECORDED,
    TAKEN,
    UNJOURNALED,
    Delivery,
)
from sluicemq.broker.dispatch import dispatch, hand_over
from sluicemq.broker.lane import Lane, Selector
from sluicemq.broker.records import encode_attempts, encode_requeue
from sluicemq.journal.format import Cause, RecordType
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import SubscriptionInUse

if TYPE_CHECKING:
    from sluicemq.broker.destination import Destination
    from sluicemq.model.message import Message

BACKFILL_SLICE: Final = 500
"""Deliveries tried against a new selector per turn."""


class Subscription:
    """See the module.

    name      "" for a queue's own; else unique within the topic
    number    what the journal calls it; 0 = not durable
    exclude   no-local token: messages of this sender are not wanted
    waiting   READY and DELAYED deliveries; waiting_bytes their bodies
    unacked   TAKEN deliveries; unacked_bytes their bodies
    back      READY and DELAYED deliveries that a consumer has seen, by sequence: it may still
              settle them by their id
    closed    True once it is gone: what still comes back to it is dropped
    """

    __slots__ = (
        "acked",
        "back",
        "closed",
        "consumers",
        "core",
        "delayed",
        "destination",
        "everything",
        "exclude",
        "lanes",
        "name",
        "number",
        "selector",
        "shared",
        "unacked",
        "unacked_bytes",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        core: Core,
        destination: Destination,
        name: str = "",
        number: int = 0,
        selector: Selector | None = None,
        exclude: object = None,
        shared: bool = True,
    ) -> None:
        self.core = core
        self.destination = destination
        self.name = name
        self.number = number
        self.selector = selector
        self.exclude = exclude
        self.shared = shared
        self.everything = Lane(core.page)
        self.lanes: dict[str, Lane] = {"": self.everything}
        self.consumers: dict[Consumer, None] = {}
        self.delayed: dict[int, Delivery] = {}
        self.back: dict[int, Delivery] = {}
        self.acked: list[int] = []
        self.closed = False
        self.waiting = 0
        self.waiting_bytes = 0
        self.unacked = 0
        self.unacked_bytes = 0

    # --- arrival -----------------------------------------------------------------------------

    def add(self, message: Message, journaled: int, alone: bool = False) -> None:
        """A message has become visible to this subscription; if `alone`, no other one has that
        might come before it."""
        core = self.core
        now = core.clock.steady
        size = len(message.body)
        expiration = message.expiration
        expires = max(1, expiration - message.epoch) if expiration else 0
        due = message.deliver_at - message.epoch if message.deliver_at else 0
        delivery = Delivery(
            self,
            message.sequence,
            message,
            self.destination.priority(message.priority),
            size,
            journaled,
            expiration,
            expires,
        )
        if not message.references:
            core.memory += size + core.overhead
        message.references += 1
        lane = self.everything
        if (
            alone
            and lane.line
            and not lane.mask
            and len(self.lanes) == 1
            and (not expires or expires > now)
            and due <= now
            and not self.destination.paused
        ):
            consumer = next(iter(lane.line))
            if consumer.window.credit == 1:
                hand_over(consumer, delivery)
                return
        if expires and expires <= now:
            self._expire(delivery)  # it came too late to displace another
        else:
            self._enter(delivery, due)
        if self.destination.limited:
            self._shed()
        if core.memory > core.memory_budget and journaled and delivery.state != GONE:
            if message.sequence <= core.journal.durable:
                core.page_out(delivery)
            else:
                core.unpaged.append(delivery)

    def restore(self, delivery: Delivery, deliver_at: int = 0) -> None:
        """A delivery found in the journal at start; in ascending order."""
        if delivery.attempts:
            self.back[delivery.sequence] = delivery
        self._enter(delivery, deliver_at - self.core.clock.epoch if deliver_at else 0)

    def restore_requeued(self, delivery: Delivery) -> None:
        """The same for one whose order is out of sequence."""
        self.waiting += 1
        self.waiting_bytes += delivery.size
        if delivery.expires:
            self.core.wheel.add(delivery, self.core.clock.steady)
        self.put_back(delivery)

    def _enter(self, delivery: Delivery, due: int) -> None:
        """`due` is the steady time before which no consumer sees it, 0 = at once."""
        self.waiting += 1
        self.waiting_bytes += delivery.size
        if delivery.expires:
            self.core.wheel.add(delivery, self.core.clock.steady)
        steady = self.core.clock.steady
        if due > steady:
            self._delay(delivery, due - steady)
        else:
            self._line_up(delivery)

    def _line_up(self, delivery: Delivery) -> None:
        """Behind everything of its priority, in every lane it matches."""
        everything = self.everything
        everything.push(delivery)
        if len(self.lanes) == 1:
            if everything.line:
                self.core.dirty[self] = None
            return
        for lane in self.lanes.values():
            if lane.selector is None:
                continue
            if lane.backlog is not None:
                lane.backlog.append(delivery)
            elif lane.selector(self._message(delivery)):
                lane.push(delivery)
        self.core.dirty[self] = None

    def put_back(self, delivery: Delivery) -> None:
        """To the place that its order gives it, in every lane it matches."""
        delivery.state = READY
        delivery.consumer = None
        if delivery.attempts:
            self.back[delivery.sequence] = delivery
        self.everything.restore(delivery)
        if len(self.lanes) > 1:
            for lane in self.lanes.values():
                if lane.selector is not None and lane.selector(self._message(delivery)):
                    lane.restore(delivery)
            self.tidy()
        self.core.dirty[self] = None

    def tidy(self) -> None:
        """Let go of what was taken through other lanes, when it is most of a lane."""
        limit = 2 * self.waiting + 64
        for lane in self.lanes.values():
            if lane.length > limit:
                lane.compact()

    def _message(self, delivery: Delivery) -> Message:
        return delivery.message or self.core.journal.fetch(delivery.sequence)

    def _delay(self, delivery: Delivery, milliseconds: int) -> None:
        delivery.state = DELAYED
        delivery.consumer = None
        self.delayed[delivery.sequence] = delivery
        self.core.timers.add(self.core.clock.steady + milliseconds, self._undelay, delivery)

    def _undelay(self, delivery: Delivery) -> None:
        if delivery.state == DELAYED:
            del self.delayed[delivery.sequence]
            self.put_back(delivery)

    def _shed(self) -> None:
        """Apply the dropping policies after an arrival."""
        limits = self.destination.settings
        if limits.overflow is Overflow.DROP_OLDEST:
            take = self.everything.take_oldest
        elif limits.overflow is Overflow.DROP_LOWEST:
            take = self.everything.take_lowest
        else:
            return
        while (limits.max_messages and self.waiting > limits.max_messages) or (
            limits.max_bytes and self.waiting_bytes > limits.max_bytes
        ):
            delivery = take()
            if delivery is None:
                return
            self.withdraw(delivery)
            self._drop(delivery, "overflow", False)

    # --- consumers ---------------------------------------------------------------------------

    def attach(
        self,
        sink: Sink,
        window: Window,
        selector: Selector | None = None,
        rank: int = 0,
        ack_timeout: int | None = None,
    ) -> Consumer:
        """Add a consumer and give it what waits. Raises SubscriptionInUse."""
        settings = self.destination.settings
        limit = settings.max_consumers if self.shared else 1
        if limit and len(self.consumers) >= limit:
            raise SubscriptionInUse(
                f"{self.destination.name}: all {limit} consumers it may have are attached"
            )
        lane = self._lane(selector)
        lane.consumers += 1
        consumer = Consumer(
            self,
            sink,
            window,
            lane,
            rank,
            settings.ack_timeout if ack_timeout is None else ack_timeout,
        )
        self.consumers[consumer] = None
        window.consumers.append(consumer)
        if settings.active_consumers:
            self.elect()
        self.enter_line(consumer)
        dispatch(self)
        return consumer

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; what it holds goes back to its original position."""
        if consumer not in self.consumers:
            return
        del self.consumers[consumer]
        consumer.window.consumers.remove(consumer)
        consumer.lane.line.pop(consumer, None)
        lane = consumer.lane
        lane.consumers -= 1
        if lane.selector is not None and not lane.consumers:
            del self.lanes[lane.selector.text]
            self.everything.packing = len(self.lanes) == 1
        self.release(consumer)
        if self.destination.settings.active_consumers:
            self.elect()
        self.destination.touch()

    def _lane(self, selector: Selector | None) -> Lane:
        if selector is None:
            return self.everything
        lane = self.lanes.get(selector.text)
        if lane is None:
            lane = self.lanes[selector.text] = Lane(self.core.page, selector)
            self.everything.packing = False
            self.everything.unpack()
            if self.everything.length:
                lane.backlog = deque(self.everything)
                self._backfill(lane)
        return lane

    def _backfill(self, lane: Lane) -> None:
        """Try a slice of the older deliveries against a new selector."""
        backlog = lane.backlog
        if backlog is None or self.lanes.get(lane.selector.text if lane.selector else "") != lane:
            return
        assert lane.selector is not None
        for _ in range(min(BACKFILL_SLICE, len(backlog))):
            delivery = backlog.popleft()
            if delivery.state == READY and lane.selector(self._message(delivery)):
                lane.push(delivery)
        if backlog:
            self.core.timers.add(self.core.clock.steady + 1, self._backfill, lane)
        else:
            lane.backlog = None
        self.core.dirty[self] = None

    def elect(self) -> None:
        """Failover: the consumers of highest rank, then longest attached, are served."""
        limit = self.destination.settings.active_consumers or len(self.consumers)
        ranked = sorted(self.consumers, key=lambda consumer: -consumer.rank)
        for place, consumer in enumerate(ranked):
            consumer.active = place < limit
            if consumer.active:
                self.enter_line(consumer)
            else:
                consumer.lane.line.pop(consumer, None)

    def enter_line(self, consumer: Consumer) -> None:
        """Put the consumer at the end of its line, if it may take a message."""
        if consumer.window.credit > 0 and consumer.active and not consumer.suspended:
            line = consumer.lane.line
            line.pop(consumer, None)
            line[consumer] = None
            if consumer.lane.mask:
                self.core.dirty[self] = None

    @property
    def hungry(self) -> bool:
        """A consumer is in line and nothing waits for it."""
        return any(lane.line and not lane.mask for lane in self.lanes.values())

    # --- acknowledgement ---------------------------------------------------------------------

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge a delivery of `consumer`; False when it holds no such delivery."""
        delivery = consumer.unacked.pop(sequence, None)
        if delivery is None:
            return False
        self.unacked -= 1
        self.unacked_bytes -= delivery.size
        self.destination.statistics.settled += 1
        delivery.state = GONE
        message = delivery.message
        if message is not None:
            message.references -= 1
            if not message.references:
                self.core.memory -= delivery.size + self.core.overhead
            delivery.message = None
        if delivery.expires:
            self.core.wheel.discard(delivery)
        if delivery.journaled == RECORDED:
            if not self.acked:
                self.core.settling[self] = None
            self.acked.append(sequence)
        elif delivery.journaled == HELD:
            self.destination.let_go(sequence)
        window = consumer.window
        if window.refill:
            window.credit += 1
            if window.credit == 1:
                self._refilled(window)
            elif consumer.lane.mask:
                self.core.dirty[self] = None
        return True

    def settle_any(self, sequence: int) -> bool:
        """Acknowledge a message that has been delivered, whoever holds it now."""
        for consumer in self.consumers:
            if sequence in consumer.unacked:
                return self.settle(consumer, sequence)
        delivery = self._take_back(sequence)
        if delivery is not None:
            self.destination.statistics.settled += 1
            self.end(delivery, Cause.ACKNOWLEDGED)
            return True
        return False

    def flush_acks(self) -> None:
        """Give the acknowledgements of this turn to the journal as one record."""
        acked = self.acked
        if acked:
            self.acked = []
            self.core.journal.append_settled(
                self.number,
                self.destination.number,
                Cause.ACKNOWLEDGED,
                acked,
                self.core.clock.wall,
            )

    def _refilled(self, window: Window) -> None:
        for peer in window.consumers:
            peer.subscription.enter_line(peer)

    def _take_back(self, sequence: int) -> Delivery | None:
        """Take a delivery out that came back and waits again."""
        delivery = self.back.pop(sequence, None)
        if delivery is not None:
            self.withdraw(delivery)
            self.tidy()
        return delivery

    def seize(self, sequence: int) -> Delivery | None:
        """Take a message that has been delivered once, whoever holds it now."""
        return self.take_from_holder(sequence) or self._take_back(sequence)

    def take_from_holder(self, sequence: int) -> Delivery | None:
        """Take a delivery off its consumer, giving the credit back."""
        for consumer in self.consumers:
            delivery = consumer.unacked.pop(sequence, None)
            if delivery is not None:
                self.unacked -= 1
                self.unacked_bytes -= delivery.size
                delivery.consumer = None
                if consumer.window.refill:
                    consumer.window.credit += 1
                    self._refilled(consumer.window)
                return delivery
        return None

    # --- redelivery --------------------------------------------------------------------------

    def release(
        self,
        consumer: Consumer,
        sequences: Iterable[int] | None = None,
        attempted: bool = True,
        spared: bool = False,
    ) -> None:
        """Give deliveries back to their original position; None = all that it holds.

        With `attempted` False the delivery does not count: it was prefetched and never shown.
        With `spared` it counts, but not even the last one is followed by the dead-letter queue.
        """
        held = consumer.unacked
        if sequences is None:
            returned = list(held.values())
            held.clear()
        else:
            returned = [held.pop(sequence) for sequence in sequences if sequence in held]
        if returned:
            self._return(consumer, returned, attempted, 0, spared)

    def _return(
        self,
        consumer: Consumer,
        returned: list[Delivery],
        attempted: bool,
        delay: int,
        spared: bool = False,
    ) -> None:
        for delivery in returned:
            self.unacked -= 1
            self.unacked_bytes -= delivery.size
        self.give_back(returned, attempted, delay, spared)
        if consumer.window.refill:
            consumer.window.credit += len(returned)
            self._refilled(consumer.window)

    def give_back(
        self, returned: list[Delivery], attempted: bool, delay: int = 0, spared: bool = False
    ) -> None:
        """Deliveries that nobody holds any more become ready, delayed, expired or dead."""
        if self.closed:
            for delivery in returned:
                self.end(delivery, Cause.DISCARDED)
            return
        core = self.core
        now = core.clock.steady
        limit = self.destination.settings.max_attempts
        counted: list[tuple[int, int]] = []
        for delivery in returned:
            delivery.consumer = None
            if not attempted:
                delivery.attempts -= 1
            if delivery.expires and delivery.expires <= now:
                self._expire(delivery)
                continue
            if attempted and limit and delivery.attempts >= limit and not spared:
                self._drop(delivery, "max-attempts", False)
                continue
            if attempted and delivery.journaled == RECORDED:
                counted.append((delivery.sequence, delivery.attempts))
            self.waiting += 1
            self.waiting_bytes += delivery.size
            if delivery.expires:
                core.wheel.add(delivery, now)  # where it is already, unless it was handed over
            if delay:
                if delivery.attempts:
                    self.back[delivery.sequence] = delivery
                self._delay(delivery, delay)
            else:
                self.put_back(delivery)
            if core.memory > core.memory_budget and delivery.journaled and delivery.message:
                core.page_out(delivery)
        if counted:
            core.journal.append_entry(
                RecordType.ATTEMPTED, encode_attempts(self.number, counted), core.clock.wall
            )

    def watch(self, consumer: Consumer) -> None:
        """Run a timer for a delivery that the consumer has just got."""
        consumer.watched = True
        core = self.core
        core.timers.add(core.clock.steady + consumer.ack_timeout, self._check_acks, consumer)

    def _check_acks(self, consumer: Consumer) -> None:
        """Take back what has been unacknowledged for too long."""
        consumer.watched = False
        now = self.core.clock.steady
        late: list[int] = []
        for delivery in consumer.unacked.values():
            if delivery.delivered + consumer.ack_timeout > now:
                break
            late.append(delivery.sequence)
        self.time_out(consumer, late)
        for delivery in islice(consumer.unacked.values(), 1):
            consumer.watched = True
            self.core.timers.add(
                delivery.delivered + consumer.ack_timeout, self._check_acks, consumer
            )

    def time_out(self, consumer: Consumer, sequences: Iterable[int]) -> None:
        """Take deliveries back that have not been acknowledged in time: each is tried again after
        its delay. Those that the consumer does not hold are passed over."""
        settings = self.destination.settings
        for sequence in sequences:
            delivery = consumer.unacked.pop(sequence, None)
            if delivery is None:
                continue
            delay = 0
            if settings.retry_delay:
                delay = settings.retry_delay << min(delivery.attempts - 1, 40)
                delay = min(delay, settings.retry_delay_max or delay)
            self._return(consumer, [delivery], True, delay)

    def requeue(self, sequence: int, expiration: int) -> bool:
        """Move a delivered message to the tail with a new expiration (wall ms, 0 = never)."""
        old = self.seize(sequence)
        if old is None:
            return False
        core = self.core
        old.state = GONE
        if old.expires:
            core.wheel.discard(old)
        clock = core.clock
        expires = max(1, clock.steady + expiration - clock.wall) if expiration else 0
        new = Delivery(
            self, sequence, old.message, old.priority, old.size, old.journaled, expiration, expires
        )
        if old.journaled == RECORDED:
            new.order = core.journal.append_entry(
                RecordType.REQUEUED,
                encode_requeue(self.number, expiration, old.attempts),
                clock.wall,
                reference=sequence,
                destination=self.destination.number,
            )
            core.note_requeued(new)
        else:
            new.order = core.journal.next_sequence()
        new.attempts = old.attempts
        self.back[sequence] = new
        self._enter(new, 0)
        if self.destination.limited:
            self._shed()
        return True

    # --- the end of a delivery -----------------------------------------------------------------

    def end(self, delivery: Delivery, cause: Cause) -> None:
        """The delivery is over; the journal is told why. It must not be counted any more."""
        self.forget(delivery)
        if delivery.journaled == RECORDED:
            self.core.journal.append_settled(
                self.number,
                self.destination.number,
                cause,
                [delivery.sequence],
                self.core.clock.wall,
            )

    def forget(self, delivery: Delivery) -> None:
        """As `end`, when the journal has been told in another way."""
        if delivery.state == DELAYED:
            self.delayed.pop(delivery.sequence, None)
        if delivery.attempts:
            self.back.pop(delivery.sequence, None)
        delivery.state = GONE
        core = self.core
        message = delivery.message
        if message is not None:
            message.references -= 1
            if not message.references:
                core.memory -= delivery.size + core.overhead
            delivery.message = None
        if delivery.expires:
            core.wheel.discard(delivery)
        if delivery.journaled == HELD:
            self.destination.let_go(delivery.sequence)
        if self.destination.parked:
            core.unblocking[self.destination] = None

    def _leave_waiting(self, delivery: Delivery) -> None:
        self.waiting -= 1
        self.waiting_bytes -= delivery.size

    def expire(self, delivery: Delivery) -> None:
        """A waiting delivery has outlived its time."""
        self.withdraw(delivery)
        self._expire(delivery)
        self.tidy()

    def _expire(self, delivery: Delivery) -> None:
        self.destination.statistics.expired += 1
        if not self.core.bury(delivery, "expired", False):
            self.end(delivery, Cause.EXPIRED)

    def _drop(self, delivery: Delivery, reason: str, force: bool) -> None:
        if not self.core.bury(delivery, reason, force):
            self.destination.statistics.dropped += 1
            self.end(delivery, Cause.DROPPED)

    def dead_letter(self, sequence: int, reason: str, force: bool) -> bool:
        """Take a delivered message out for good; False when nobody holds it."""
        delivery = self.seize(sequence)
        if delivery is None:
            return False
        self._drop(delivery, reason, force)
        return True

    def purge(self, unacked: bool, cause: Cause = Cause.PURGED) -> int:
        """Drop what waits, and with `unacked` what is in flight too. Returns how many."""
        recorded: list[int] = []
        count = 0
        for delivery in self._purged(unacked):
            count += 1
            if delivery.journaled == RECORDED:
                recorded.append(delivery.sequence)
            self.forget(delivery)
        for lane in self.lanes.values():
            lane.clear()
        if recorded:
            self.core.journal.append_settled(
                self.number, self.destination.number, cause, recorded, self.core.clock.wall
            )
        return count

    def _purged(self, unacked: bool) -> Iterator[Delivery]:
        """Each delivery, no longer counted; its caller forgets it."""
        for delivery in chain(self.everything, list(self.delayed.values())):
            self._leave_waiting(delivery)
            yield delivery
        if unacked:
            for consumer in self.consumers:
                for sequence in list(consumer.unacked):
                    delivery = consumer.unacked[sequence]
                    if self.take_from_holder(sequence):
                        yield delivery

    # --- views -------------------------------------------------------------------------------

    def browse(self, unacked: bool = True) -> Iterator[Delivery]:
        """What is there, in queue order: in-flight ones keep their place; delayed ones last.

        For looking only, and only until the next change.
        """
        flight: list[Delivery] = []
        if unacked:
            for consumer in self.consumers:
                flight.extend(consumer.unacked.values())
            flight.sort(key=_place)
        return chain(merge(self.everything, flight, key=_place), self.delayed.values())

    def failures(self) -> Iterator[tuple[int, int]]:
        """(sequence, failed attempts) of what is journaled and has failed at least once."""
        for delivery in self.back.values():
            if delivery.journaled == RECORDED:
                yield delivery.sequence, delivery.attempts
        for consumer in self.consumers:
            for delivery in consumer.unacked.values():
                if delivery.journaled == RECORDED and delivery.attempts > 1:
                    yield delivery.sequence, delivery.attempts - 1

    def matching(self, predicate: Callable[[Message], bool] | None) -> Iterator[Delivery]:
        """READY deliveries whose message satisfies the predicate, if there is one, in order."""
        everything = self.everything
        everything.unpack()
        everything.packing = False  # the caller may add to the lane while it takes out of it
        try:
            for delivery in list(everything):
                if delivery.state == READY and (
                    predicate is None or predicate(self._message(delivery))
                ):
                    yield delivery
        finally:
            everything.packing = len(self.lanes) == 1

    def withdraw(self, delivery: Delivery) -> None:
        """Take a waiting delivery out of the line without giving it to a consumer."""
        self._leave_waiting(delivery)
        if delivery.state == DELAYED:
            del self.delayed[delivery.sequence]
        delivery.state = TAKEN

    def oldest(self) -> int:
        """Timestamp (wall ms) of the message that would be delivered next; 0 when none waits."""
        head = self.everything.head()
        return self._message(head).timestamp if head else 0

    def accepts(self, message: Message) -> bool:
        """The message's sender is not excluded, and the selector matches."""
        if self.exclude is not None and message.sender == self.exclude:
            return False
        return self.selector is None or self.selector(message)

    def journaling(self, message: Message) -> int:
        """What the journal is to know of this message's delivery here."""
        if not message.durability:
            return UNJOURNALED
        return RECORDED if self.number else HELD


def _place(delivery: Delivery) -> tuple[int, int]:
    """Sorts deliveries in queue order."""
    return -delivery.priority, delivery.order
