"""Entry of a pending queue: the fields of a delivery that the queue uses."""

from __future__ import annotations

from typing import Final, Self, TypeVar

from sluicemq.model.message import Message

READY: Final = 0
"""Waits for a consumer."""
UNACKED: Final = 1
"""Delivered and not acknowledged, or acknowledged in a transaction that has not ended."""
SCHEDULED: Final = 2
"""Waits for its delivery time, the end of a back-off, or capacity in the dead-letter queue."""
ENDED: Final = 3
"""Acknowledged or removed."""

# Journaling modes of a delivery.
UNJOURNALED: Final = 0
"""Not journaled: the message is in memory only."""
REFERENCED: Final = 1
"""The record must stay readable while this delivery exists, but its end is not journaled."""
SHARED: Final = 2
"""The end of the last of several such deliveries of a message is journaled."""
RECORDED: Final = 3
"""The end of the delivery is journaled, so that it is known after a restart."""


class Entry:
    """Base of a delivery (state.py), which sets these attributes and adds its owners.

    sequence    identity of the message
    order       position in the queue; equals `sequence` until the message is requeued at the tail
    message     None while paged out; present when the entry is passed to a consumer
    priority    0-9
    attempts    deliveries so far, this one included
    expires     steady ms, 0 = never
    expiration  the same in wall ms since the epoch
    size        body bytes
    journaled   journaling mode, one of the above
    pinned      True once it may be in a pending queue although it is not READY there: it is in more
                than one, and must stay an object, or it was removed from the middle
    state       READY, UNACKED, SCHEDULED or ENDED
    """

    __slots__ = (
        "attempts",
        "expiration",
        "expires",
        "journaled",
        "message",
        "order",
        "pinned",
        "priority",
        "sequence",
        "size",
        "state",
    )

    sequence: int
    order: int
    message: Message | None
    priority: int
    attempts: int
    expires: int
    expiration: int
    size: int
    journaled: int
    pinned: bool
    state: int

    def copy_with(self, sequence: int, size: int) -> Self:
        """Return a READY entry that differs from this one in sequence and size, without message,
        attempts and expiration.
        """
        raise NotImplementedError


AnyEntry = TypeVar("AnyEntry", bound=Entry)


def queue_order(entry: Entry) -> tuple[int, int]:
    """Return the sort key for queue order."""
    return -entry.priority, entry.order
