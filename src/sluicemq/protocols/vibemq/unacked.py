"""Unacked deliveries of a VibeMQ connection, and their acknowledgement timeouts.

Deliveries are found by the ids that the client uses. Several deliveries may have the same id; the
oldest comes first. Deliveries may end or be requeued without notice; their ids stay until they are
looked up, or until `trim` removes them.

The .NET client handles one message after the other, over all its subscriptions, and acknowledges
each when its handler has returned. It does not report a failed handler. The client has therefore
not begun most of its unacked messages, and those must neither time out nor count an attempt.
Unacked deliveries, in the order in which they were sent, are

    passed    sent before a message that has been acknowledged: the client has begun it, its
              timeout runs from its delivery
    current   the first of the others: its timeout runs since it became the first, that is since
              the last acknowledgement or the last expired timeout
    queued    the rest: the client has not begun them, and their timeouts do not run

When a timeout expires, the delivery counts as an attempt. If its subscription has other consumers,
the message is requeued for them, else it is redelivered at once. If it was the current one, the
connection is *silent* until its next acknowledgement: queued messages are requeued without an
attempt if there are other consumers, and each subscription has a window of one message.

The client still has the copies of messages that were requeued or redelivered, and its handler works
on them: while such a copy is the current one, the client has begun none of its unacked messages.
So from the first expired timeout until the client has handled all such copies, each copy that was
sent is tracked, and the window is reduced by those that were requeued. The acknowledgement of such
a copy counts like any other: its handler has succeeded. The timeout of a current copy that was
requeued expires, too; then the next copy becomes current.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, Protocol

from sluicemq.broker import Broker, Consumer, Delivery
from sluicemq.protocols.channel import Unacked
from sluicemq.protocols.transport import Timer, Transport

MOST_COPIES: Final = 4096
"""Maximum number of tracked copies per connection. A client that never acknowledges adds a few with
each timeout."""


class Holder(Protocol):
    """Subscription of the connection (subscriber.py), as its unacked deliveries know it.

    timeout  acknowledgement timeout in ms, 0 = none
    """

    timeout: int

    def acknowledge(self, consumer: Consumer, delivery: Delivery) -> bool: ...
    def has_passed(self, delivery: Delivery) -> bool: ...
    def settle_taken_back(self, sequence: int) -> None: ...
    def time_out(self, sequences: list[int]) -> None: ...
    def narrow(self) -> None: ...
    def widen(self, taken: int) -> None: ...
    def measure(self) -> None: ...


class Role(Enum):
    """State of a delivery at the client, as described in the module."""

    PASSED = "passed"
    CURRENT = "current"
    QUEUED = "queued"


class Copy:
    """Frame that the client has to acknowledge.

    identity    id in the client's acknowledgement
    subscriber  subscription for which it was sent
    at          send time, in steady ms
    passed      the client has begun it (see the module)
    """

    __slots__ = ("at", "delivery", "identity", "passed", "subscriber")

    def __init__(
        self,
        identity: str,
        delivery: Delivery,
        subscriber: Holder,
        passed: bool = False,
    ) -> None:
        self.identity = identity
        self.delivery = delivery
        self.subscriber = subscriber
        self.at = delivery.delivered
        self.passed = passed


class AckTimeouts:
    """Acknowledgement timeouts of one connection.

    copies  tracked copies, in the order in which they were sent; None = tracking is not needed
    heard   steady ms of the last acknowledgement or the last expired timeout
    passed  latest send time of the acknowledged deliveries, in steady ms
    silent  the current delivery's timeout has expired without an acknowledgement since
    """

    __slots__ = (
        "_alarm",
        "_broker",
        "_due",
        "_transport",
        "_unacked",
        "copies",
        "heard",
        "passed",
        "silent",
    )

    def __init__(self, transport: Transport, broker: Broker, unacked: UnackedDeliveries) -> None:
        self._transport = transport
        self._broker = broker
        self._unacked = unacked
        self._alarm: Timer | None = None
        self._due = 0
        self.copies: list[Copy] | None = None
        self.heard = 0
        self.passed = 0
        self.silent = False

    def expect(self, timeout: int) -> None:
        """Set the timer for a delivery that must be acknowledged within `timeout` ms."""
        self._look_at(self._broker.clock.steady + timeout)

    def _look_at(self, due: int) -> None:
        if self._alarm is not None:
            if self._due <= due:
                return
            self._alarm.cancel()
        self._due = due
        delay = max(1, due - self._broker.clock.steady)
        self._alarm = self._transport.call_later(delay / 1000, self._on_alarm)

    def stop(self) -> None:
        """Cancel the timer at the end of the connection."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # --- acknowledgements --------------------------------------------------------------------

    def record_ack(self, identity: str) -> None:
        """Record an acknowledgement of the client, after it has been applied."""
        self.heard = self._broker.clock.steady
        if self.copies is None:
            return
        done = self._answer(self.copies, identity)
        if self.silent:
            self.silent = False
            done.update(self._unacked.mine.values())
        if all(self._is_unacked(copy) for copy in self.copies) and not self._has_doubles():
            self.copies = None
        taken = self._taken_back()
        for subscriber in done:
            subscriber.widen(taken[subscriber])

    def _answer(self, copies: list[Copy], identity: str) -> set[Holder]:
        """Remove the copies that the client has handled. Returns their subscribers."""
        done: set[Holder] = set()
        index = next((n for n, copy in enumerate(copies) if copy.identity == identity), -1)
        if index < 0:
            return done
        answered = copies[index]
        if not self._is_unacked(answered):
            answered.subscriber.settle_taken_back(answered.delivery.sequence)
        behind = copies[index + 1 :]
        later = {copy.delivery.sequence for copy in behind}
        kept: list[Copy] = []
        for copy in copies[: index + 1]:
            if (
                copy is not answered
                and self._is_unacked(copy)
                and copy.delivery.sequence not in later
            ):
                copy.passed = True
                kept.append(copy)
            else:
                done.add(copy.subscriber)
        copies[:] = kept + behind
        return done

    def give_up(self, sequences: Iterable[int]) -> None:
        """Stop tracking messages that have ended after their last attempt."""
        if self.copies is not None:
            ended = set(sequences)
            self.copies = [c for c in self.copies if c.delivery.sequence not in ended]

    def begun(self) -> set[int]:
        """Return the sequences of unacked messages that the client may have begun."""
        return {
            copy.delivery.sequence
            for copy, role in _roles(self._sent())
            if role is not Role.QUEUED and self._is_unacked(copy)
        }

    # --- copies ------------------------------------------------------------------------------

    def _sent(self) -> list[Copy]:
        """Return the copies that are not acknowledged, in the order in which they were sent."""
        if self.copies is not None:
            return self.copies
        by_subscription = {
            consumer.subscription: subscriber
            for consumer, subscriber in self._unacked.mine.items()
            if consumer is not None
        }
        copies: list[Copy] = []
        for identity, delivery in self._unacked.by_token.entries():
            # includes messages that have ended in another way: the client does not know
            subscriber = by_subscription.get(delivery.subscription)
            if subscriber is not None:
                passed = delivery.delivered < self.passed or subscriber.has_passed(delivery)
                copies.append(Copy(identity, delivery, subscriber, passed))
        return copies

    def _is_unacked(self, copy: Copy) -> bool:
        return self._unacked.holder(copy.delivery) is copy.subscriber

    def _has_doubles(self) -> bool:
        """Return whether a message has several copies."""
        assert self.copies is not None
        return len({copy.delivery.sequence for copy in self.copies}) < len(self.copies)

    def _taken_back(self) -> Counter[Holder]:
        """Count the client's copies that its subscriptions no longer hold."""
        return Counter(c.subscriber for c in self.copies or () if not self._is_unacked(c))

    # --- time --------------------------------------------------------------------------------

    def _deadline(self, copy: Copy, role: Role) -> int:
        """Return the steady ms at which a copy times out; 0 = never."""
        timeout = copy.subscriber.timeout
        if role is Role.QUEUED or not timeout:
            return 0
        if role is Role.PASSED:
            return copy.at + timeout if self._is_unacked(copy) else 0
        return max(copy.at, self.heard) + timeout

    def _on_alarm(self) -> None:
        """Handle expired timeouts and set the timer for the next one."""
        self._alarm = None
        now = self._broker.clock.steady
        late: dict[Holder, list[int]] = {}
        sent = self._sent()
        done: list[Copy] = []
        silent = False
        for copy, role in _roles(sent):
            deadline = self._deadline(copy, role)
            if not deadline or deadline > now:
                continue
            unacked = self._is_unacked(copy)
            if unacked:
                late.setdefault(copy.subscriber, []).append(copy.delivery.sequence)
            if role is Role.PASSED:
                done.append(copy)
            else:
                silent = True
                copy.passed = not unacked  # kept, because the client may still acknowledge it
        if late or silent:
            self.copies = [copy for copy in sent if copy not in done][-MOST_COPIES:]
            self.heard = now if silent else self.heard
            for subscriber, sequences in late.items():
                subscriber.time_out(sequences)
        if silent:
            self.silent = True
            for subscriber in list(self._unacked.mine.values()):
                subscriber.narrow()
        for subscriber in list(self._unacked.mine.values()):
            subscriber.measure()
        deadlines = [self._deadline(copy, role) for copy, role in _roles(self._sent())]
        if any(deadlines):
            self._look_at(min(filter(None, deadlines)))


def _roles(copies: Iterable[Copy]) -> Iterator[tuple[Copy, Role]]:
    """Yield each copy with its role."""
    current = False
    for copy in copies:
        if copy.passed:
            yield copy, Role.PASSED
        elif current:
            yield copy, Role.QUEUED
        else:
            current = True
            yield copy, Role.CURRENT


class UnackedDeliveries:
    """Unacked deliveries of a connection.

    mine      the connection's consumers; their subscribers maintain it
    by_token  deliveries by the id that the client acknowledges; the subscribers add them, and call
              `trim` after a batch
    timeouts  acknowledgement timeouts
    """

    __slots__ = ("by_token", "mine", "timeouts")

    def __init__(self, transport: Transport, broker: Broker) -> None:
        self.timeouts = AckTimeouts(transport, broker, self)
        self.by_token: Unacked[str, Delivery] = Unacked()
        self.mine: dict[Consumer | None, Holder] = {}

    def release(self) -> None:
        """Break the reference cycle with the timeouts after the end of the connection."""
        del self.timeouts

    def acknowledge(self, identity: str) -> None:
        """Acknowledge the oldest delivery of that id that a consumer of `mine` holds."""
        delivery = self.by_token.take(identity)
        while delivery is not None:
            consumer = delivery.consumer
            subscriber = self.mine.get(consumer)
            if (
                subscriber is not None
                and consumer is not None
                and subscriber.acknowledge(consumer, delivery)
            ):
                if self.timeouts.copies is None:
                    return
                break
            delivery = self.by_token.take(identity)
        self.timeouts.record_ack(identity)

    def holder(self, delivery: Delivery) -> Holder | None:
        """Return the subscriber whose consumer holds the delivery, or None."""
        consumer = delivery.consumer
        if consumer is None or consumer.unacked.get(delivery.sequence) is not delivery:
            return None
        return self.mine.get(consumer)

    def trim(self) -> None:
        """Remove ended deliveries if there are many."""
        self.by_token.trim(lambda delivery: self.holder(delivery) is not None)
