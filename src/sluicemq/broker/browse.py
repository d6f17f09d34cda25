"""Browsing of a subscription: a snapshot, or a scan in steps."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from sluicemq.broker.pending.cursor import Cursor
from sluicemq.broker.pending.entry import DELAYED, TAKEN, place

if TYPE_CHECKING:
    from sluicemq.broker.state import Delivery, Subscription
    from sluicemq.model.message import Message

STEP: Final = 50
"""Deliveries examined together."""


class BrowseSnapshot:
    """Sequences of messages in queue order.

    Each comes with the message if it is not journaled; otherwise the caller fetches it. A journaled
    message costs 8 bytes, whatever the length of the queue; messages that have ended since are
    still listed.
    """

    __slots__ = ("_messages", "_sequences")

    def __init__(self, deliveries: Iterable[Delivery], steady: int) -> None:
        """Take the snapshot without delayed deliveries and those that have expired by `steady`."""
        self._sequences = array("Q")
        self._messages: dict[int, Message] = {}
        for delivery in deliveries:
            if delivery.state == DELAYED or (delivery.expires and delivery.expires <= steady):
                continue
            sequence = delivery.sequence
            self._sequences.append(sequence)
            if not delivery.journaled and delivery.message is not None:
                self._messages[sequence] = delivery.message

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, place: int) -> tuple[int, Message | None]:
        sequence = self._sequences[place]
        return sequence, self._messages.get(sequence)

    def __iter__(self) -> Iterator[tuple[int, Message | None]]:
        for sequence in self._sequences:
            yield sequence, self._messages.get(sequence)


def scan(subscription: Subscription) -> Iterator[tuple[int, Message | None] | None]:
    """Yield the items of a BrowseSnapshot in queue order, determined step by step.

    The subscription may change meanwhile. Messages that arrive after the start are left out;
    messages dispatched meanwhile may be. None = no message in this step; the scan continues.
    """
    core = subscription.core
    cursor = Cursor(subscription.everything, core.journal.next_sequence())
    unacked: deque[Delivery] = deque()
    for consumer in subscription.holders:
        unacked.extend(consumer.unacked.values())
    unacked = deque(sorted(unacked, key=place))
    while cursor.priority >= 0 or unacked:
        found: list[Delivery] = []
        if cursor.priority >= 0:
            found = cursor.look(STEP)
        elif unacked[0].state == TAKEN:
            found = [unacked.popleft()]
        else:
            unacked.popleft()  # released or ended: if it is READY again, the cursor has passed it
        steady = core.clock.steady
        listed = [_browsed(each, steady) for each in _merged(found, unacked)]
        yield from listed or (None,)


def _merged(found: list[Delivery], unacked: deque[Delivery]) -> Iterator[Delivery]:
    """Merge a cursor's deliveries with the unacked ones that precede each of them."""
    for delivery in found:
        here = place(delivery)
        while unacked and place(unacked[0]) < here:
            first = unacked.popleft()
            if first.state == TAKEN:
                yield first
        yield delivery


def _browsed(delivery: Delivery, steady: int) -> tuple[int, Message | None] | None:
    if delivery.expires and delivery.expires <= steady:
        return None
    return delivery.sequence, None if delivery.journaled else delivery.message
