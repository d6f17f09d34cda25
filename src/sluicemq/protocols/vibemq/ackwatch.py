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

What was taken back stays in that order until it is acknowledged or passed: its frame still waits at
the client, and as long as it is the current one, nothing that is held has been begun.

When a time runs out, that delivery counts as an attempt. If its subscription has other consumers,
it goes back to them, else it is sent once more at once. If it was the current one, the connection
is *silent* until something is acknowledged, whatever that is: what is queued goes back uncounted
where there are other consumers, and each subscription has a window of one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sluicemq.broker import Broker, Delivery
    from sluicemq.protocols.link import Link, Timer
    from sluicemq.protocols.vibemq.held import Held
    from sluicemq.protocols.vibemq.subscriber import Subscriber


class Role(Enum):
    """See the module."""

    PASSED = "passed"
    CURRENT = "current"
    QUEUED = "queued"


class Sent(NamedTuple):
    """The first time that a message was sent on the connection.

    at       steady ms
    timeout  ms within which it had to be acknowledged
    """

    at: int
    timeout: int


class Unanswered(NamedTuple):
    """A delivery that was sent and is not acknowledged.

    holder  the subscriber that holds it; None = it has been taken back
    sent    see there
    """

    delivery: Delivery
    holder: Subscriber | None
    sent: Sent
    role: Role


class AckWatch:
    """See the module.

    heard    steady ms of the last acknowledgement, or of the last time that ran out
    passed   steady ms at which that was sent which, of all that was acknowledged, was sent last
    silent   see the module
    """

    __slots__ = ("_alarm", "_broker", "_due", "_held", "_link", "_sent", "heard", "passed", "silent")

    def __init__(self, link: Link, broker: Broker, held: Held) -> None:
        self._link = link
        self._broker = broker
        self._held = held
        self._sent: dict[int, Sent] = {}
        """By sequence, of what was taken back, or sent once more."""
        self._alarm: Timer | None = None
        self._due = 0
        self.heard = 0
        self.passed = 0
        self.silent = False

    def expect(self, timeout: int) -> None:
        """Something has been sent that has to be acknowledged within so many ms."""
        self._look_at(self._broker.clock.steady + timeout)

    def _look_at(self, due: int) -> None:
        if self._alarm is not None:
            if self._due <= due:
                return
            self._alarm.cancel()
        self._due = due
        delay = max(1, due - self._broker.clock.steady)
        self._alarm = self._link.call_later(delay / 1000, self._ring)

    def stop(self) -> None:
        """The connection is over."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def acknowledged(self, delivery: Delivery) -> int:
        """The client has acknowledged that: returns when it was first sent, in steady ms."""
        at = delivery.delivered
        if self._sent:
            first = self._sent.pop(delivery.sequence, None)
            if first is not None:
                at = first.at
        if at > self.passed:
            self.passed = at
        return at

    def hear(self) -> None:
        """There was an acknowledgement, of whatever."""
        self.heard = self._broker.clock.steady
        if self.silent:
            self.silent = False
            for subscriber in list(self._held.mine.values()):
                subscriber.widen()

    def begun(self) -> set[int]:
        """Sequences of what is held and the client has, or may have, begun to handle."""
        return {
            each.delivery.sequence
            for each in self._unanswered()
            if each.role is not Role.QUEUED and each.holder is not None
        }

    def note_resent(self, delivery: Delivery, timeout: int) -> None:
        """A delivery that the client may still have is about to be taken back, or sent again."""
        self._sent.setdefault(delivery.sequence, Sent(delivery.delivered, timeout))

    def give_up(self, sequences: Iterable[int]) -> None:
        """These have ended after their last attempt: the client is taken to have done with them."""
        for sequence in sequences:
            self._sent.pop(sequence, None)

    def _unanswered(self) -> Iterator[Unanswered]:
        """All of them, in the order in which they were sent."""
        current = False
        for delivery in self._held.sent():
            holder = self._held.holder(delivery)
            sent = self._sent.get(delivery.sequence)
            if sent is None:
                if holder is None:
                    continue  # it has ended in another way
                sent = Sent(delivery.delivered, holder.timeout)
            if sent.at < self.passed or (
                holder is not None and holder.has_passed(sent.at, delivery)
            ):
                role = Role.PASSED
            elif not current:
                current = True
                role = Role.CURRENT
            else:
                role = Role.QUEUED
            yield Unanswered(delivery, holder, sent, role)

    def _ring(self) -> None:
        """Look for what is late."""
        self._alarm = None
        now = self._broker.clock.steady
        late: dict[Subscriber, list[int]] = {}
        kept: dict[int, Sent] = {}
        due = 0
        silent = False
        for delivery, holder, sent, role in self._unanswered():
            known = delivery.sequence in self._sent
            if role is Role.QUEUED or (role is Role.CURRENT and not sent.timeout):
                if known:
                    kept[delivery.sequence] = sent
                continue
            if role is Role.PASSED and holder is None:
                continue  # the client has done with it
            since = delivery.delivered if holder is not None else sent.at
            if role is Role.CURRENT:
                since = max(since, self.heard)
            if not sent.timeout or since + sent.timeout > now:
                if sent.timeout:
                    due = min(due or since + sent.timeout, since + sent.timeout)
                if known:
                    kept[delivery.sequence] = sent
                continue
            silent = silent or role is Role.CURRENT
            if holder is not None:
                late.setdefault(holder, []).append(delivery.sequence)
                if known:
                    kept[delivery.sequence] = sent
        self._sent = kept
        for holder, sequences in late.items():
            holder.time_out(sequences)
        if silent:
            self.heard = now
            self.silent = True
            for subscriber in list(self._held.mine.values()):
                subscriber.narrow()
        for subscriber in list(self._held.mine.values()):
            subscriber.measure()
        for unanswered in self._unanswered():
            if unanswered.role is Role.CURRENT and unanswered.sent.timeout:
                # of what was sent just now, or has become the first just now
                start = max(self.heard, unanswered.sent.at)
                due = min(due or start + unanswered.sent.timeout, start + unanswered.sent.timeout)
                break
        if due:
            self._look_at(due)
