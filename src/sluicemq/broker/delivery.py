"""Deliveries: the state of one message in one subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sluicemq.broker.consumer import Consumer
    from sluicemq.broker.subscription import Subscription
    from sluicemq.model.message import Message

READY: Final = 0
TAKEN: Final = 1
DELAYED: Final = 2
GONE: Final = 3

# Journaling modes of a delivery.
UNJOURNALED: Final = 0
"""Not journaled: the message is in memory only."""
HELD: Final = 1
"""The record must stay readable while this delivery exists, but its end is not journaled."""
SHARED: Final = 2
"""The end of the last of several such deliveries of a message is journaled."""
RECORDED: Final = 3
"""The end of the delivery is journaled, so that it is known after a restart."""


class Delivery:
    """One message in one subscription.

    Millions of deliveries wait in memory, so the object is small and drops the message if the body
    can be read back from the journal.

    sequence    identity of the message
    order       position in the queue; equals `sequence` until the message is requeued at the tail
    message     None while paged out; always present while unacked
    consumer    consumer that holds it while unacked
    attempts    deliveries so far, this one included
    expires     steady ms, 0 = never
    expiration  the same in wall ms since the epoch
    size        body bytes
    pinned      True once it is in more than one pending queue, so that it must stay an object
    delivered   steady ms of the last delivery; while DELAYED, of the end of the delay
    """

    __slots__ = (
        "attempts",
        "consumer",
        "delivered",
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
        "subscription",
    )

    def __init__(
        self,
        subscription: Subscription,
        sequence: int,
        message: Message | None,
        priority: int,
        size: int,
        journaled: int,
        expiration: int,
        expires: int,
    ) -> None:
        self.subscription = subscription
        self.sequence = sequence
        self.order = sequence
        self.message = message
        self.priority = priority
        self.size = size
        self.journaled = journaled
        self.expiration = expiration
        self.expires = expires
        self.pinned = False
        self.attempts = 0
        self.state = READY
        self.consumer: Consumer | None = None
        self.delivered = 0

    @property
    def ready(self) -> bool:
        """True if it waits for a consumer."""
        return self.state == READY

    @property
    def scheduled(self) -> bool:
        """True if it waits for the end of a delay."""
        return self.state == DELAYED

    @property
    def taken(self) -> bool:
        """True if a consumer or a transaction holds it."""
        return self.state == TAKEN

    @property
    def ended(self) -> bool:
        """True once it is acknowledged or removed."""
        return self.state == GONE

    @property
    def recorded(self) -> bool:
        """True if its end is journaled, so that it is known after a restart."""
        return self.journaled == RECORDED

    def __repr__(self) -> str:
        state = ("ready", "taken", "delayed", "gone")[self.state]
        return f"<Delivery {self.sequence} of {self.subscription.destination.name}, {state}>"


def place(delivery: Delivery) -> tuple[int, int]:
    """Return the sort key for queue order."""
    return -delivery.priority, delivery.order
