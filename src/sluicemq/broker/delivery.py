"""One message in one subscription: waiting, delayed, in flight, or gone."""

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

# What the journal knows of a delivery.
UNJOURNALED: Final = 0
"""Nothing: the message lives in memory only."""
HELD: Final = 1
"""The record must stay readable while this delivery lives, but its end is not journaled."""
SHARED: Final = 2
"""The end of the last of several such deliveries of a message is journaled."""
RECORDED: Final = 3
"""Its end is journaled: after a restart the subscription knows it."""


class Delivery:
    """A message's place in a subscription. Millions of these wait in memory, so it is small and
    lets go of the message itself when the body may be read back from the journal.

    sequence    the message's identity
    order       place in the queue; equals `sequence` until the message is requeued
    message     None while paged out; always present while in flight
    consumer    who holds it, when in flight
    attempts    deliveries so far, this one included
    expires     steady ms, 0 = never
    expiration  the same in wall ms since the epoch
    size        body bytes
    pinned      True once it stands in more than one line, so that it must stay an object
    delivered   steady ms of the last delivery; while it is DELAYED, of the end of that
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

    def __repr__(self) -> str:
        state = ("ready", "taken", "delayed", "gone")[self.state]
        return f"<Delivery {self.sequence} of {self.subscription.destination.name}, {state}>"


def place(delivery: Delivery) -> tuple[int, int]:
    """Sorts deliveries in queue order."""
    return -delivery.priority, delivery.order
