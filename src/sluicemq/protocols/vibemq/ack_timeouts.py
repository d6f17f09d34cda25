"""How long a VibeMQ connection may take to acknowledge, and what becomes of what is late.

The .NET client handles one message after the other, over all its subscriptions, and acknowledges
each when its handler has returned; of one that failed it says nothing. Most of what it holds has
therefore not been begun, and that must neither run out of time nor count an attempt. Of the
deliveries that were sent and not acknowledged, in the order in which they were sent,

    passed    was sent before something that has been acknowledged: it was begun, its time runs
              from its delivery
    current   the first of the others: its time runs since it became the first, that is since the
              last acknowledgement or the last time that ran out
    queued    the rest: the client has not come to it, and its time stands still

When a time runs out, that delivery counts as an attempt. If its subscription has other consumers,
it goes back to them, else it is sent once more at once. If it was the current one, the connection
is *silent* until something is acknowledged, whatever that is: what is queued goes back uncounted
where there are other consumers, and each subscription has a window of one message.

What was taken back, or sent again, is still in the client's hands, and its handler works on it: as
long as such a copy is the current one, nothing that is held has been begun. So from the first time
that runs out, until the client has done with all such copies, each copy that was sent is kept track
of, and the window is smaller by those that were taken back. An acknowledgement of such a copy is
worth as much as one of what is held: its handler has succeeded. The time of a current copy that was
taken back runs out, too; then the next one is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.broker import Broker, Delivery
    from sluicemq.protocols.transport import Timer, Transport
    from sluicemq.protocols.vibemq.subscriber import Subscriber
    from sluicemq.protocols.vibemq.unacked import UnackedDeliveries

MOST_COPIES: Final = 4096
"""Of which track is kept for one connection. A client that never acknowledges gets a few more
with each time-out."""


class Role(Enum):
    """See the module."""

    PASSED = "passed"
    CURRENT = "current"
    QUEUED = "queued"


class Copy:
    """One frame that the client has to acknowledge.

    identity    by which it does
    subscriber  that it was sent for
    at          steady ms at which it was sent
    passed      see the module
    """

    __slots__ = ("at", "delivery", "identity", "passed", "subscriber")

    def __init__(
        self,
        identity: str,
        delivery: Delivery,
        subscriber: Subscriber,
        passed: bool = False,
    ) -> None:
        self.identity = identity
        self.delivery = delivery
        self.subscriber = subscriber
        self.at = delivery.delivered
        self.passed = passed


class AckTimeouts:
    """See the module.

    copies  of which track is kept, in the order in which they were sent; None = there is no need
    heard   steady ms of the last acknowledgement, or of the last time that ran out
    passed  steady ms at which that was sent which, of all that was acknowledged, was sent last
    silent  see the module
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
        """Watch for what has just been sent and has to be acknowledged within so many ms."""
        self._look_at(self._broker.clock.steady + timeout)

    def _look_at(self, due: int) -> None:
        if self._alarm is not None:
            if self._due <= due:
                return
            self._alarm.cancel()
        self._due = due
        delay = max(1, due - self._broker.clock.steady)
        self._alarm = self._transport.call_later(delay / 1000, self._ring)

    def stop(self) -> None:
        """End: the connection is over."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    # --- acknowledgements --------------------------------------------------------------------

    def hear(self, identity: str) -> None:
        """Note that the client has acknowledged that id, and what it means has been settled."""
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

    def _answer(self, copies: list[Copy], identity: str) -> set[Subscriber]:
        """Take out what the client has done with. Returns whose it was."""
        done: set[Subscriber] = set()
        place = next((n for n, copy in enumerate(copies) if copy.identity == identity), -1)
        if place < 0:
            return done
        answered = copies[place]
        if not self._is_unacked(answered):
            answered.subscriber.settle_taken_back(answered.delivery.sequence)
        behind = copies[place + 1 :]
        later = {copy.delivery.sequence for copy in behind}
        kept: list[Copy] = []
        for copy in copies[: place + 1]:
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
        """Forget what has ended after its last attempt, as if the client had done with it."""
        if self.copies is not None:
            ended = set(sequences)
            self.copies = [c for c in self.copies if c.delivery.sequence not in ended]

    def begun(self) -> set[int]:
        """Sequences of what is held and the client has, or may have, begun to handle."""
        return {
            copy.delivery.sequence
            for copy, role in _roles(self._sent())
            if role is not Role.QUEUED and self._is_unacked(copy)
        }

    # --- copies ------------------------------------------------------------------------------

    def _sent(self) -> list[Copy]:
        """Return what was sent and is not acknowledged, in order."""
        if self.copies is not None:
            return self.copies
        by_subscription = {
            consumer.subscription: subscriber
            for consumer, subscriber in self._unacked.mine.items()
            if consumer is not None
        }
        copies: list[Copy] = []
        for identity, delivery in self._unacked.sent():
            # of what has ended in another way, too: the client does not know
            subscriber = by_subscription.get(delivery.subscription)
            if subscriber is not None:
                passed = delivery.delivered < self.passed or subscriber.has_passed(delivery)
                copies.append(Copy(identity, delivery, subscriber, passed))
        return copies

    def _is_unacked(self, copy: Copy) -> bool:
        return self._unacked.holder(copy.delivery) is copy.subscriber

    def _has_doubles(self) -> bool:
        """Return whether there are several copies of a message."""
        assert self.copies is not None
        return len({copy.delivery.sequence for copy in self.copies}) < len(self.copies)

    def _taken_back(self) -> Counter[Subscriber]:
        """Count the copies that the client has and its subscriptions do not hold."""
        return Counter(c.subscriber for c in self.copies or () if not self._is_unacked(c))

    # --- time --------------------------------------------------------------------------------

    def _deadline(self, copy: Copy, role: Role) -> int:
        """Steady ms at which the time of a copy runs out; 0 = never."""
        timeout = copy.subscriber.timeout
        if role is Role.QUEUED or not timeout:
            return 0
        if role is Role.PASSED:
            return copy.at + timeout if self._is_unacked(copy) else 0
        return max(copy.at, self.heard) + timeout

    def _ring(self) -> None:
        """Look for what is late, and arrange for the next look."""
        self._alarm = None
        now = self._broker.clock.steady
        late: dict[Subscriber, list[int]] = {}
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
                copy.passed = not unacked  # it stays, as it may still be acknowledged
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
    """Say of each copy what it is, see the module."""
    current = False
    for copy in copies:
        if copy.passed:
            yield copy, Role.PASSED
        elif current:
            yield copy, Role.QUEUED
        else:
            current = True
            yield copy, Role.CURRENT
