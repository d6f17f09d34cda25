"""Consumers of subscriptions, and the credit windows that limit their deliveries."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from sluicemq.broker.delivery import Delivery

if TYPE_CHECKING:
    from sluicemq.broker.pending_queue import PendingQueue
    from sluicemq.broker.subscription import Subscription

_numbers: Final = count(1)


class Sink(Protocol):
    """Receiver of a consumer's deliveries."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Accept one or more deliveries, in order. Must only queue bytes, never block or raise."""

    def detached(self, consumer: Consumer) -> None:
        """Handle the deletion of the consumer's destination or subscription by another client.

        Called after the deletion, so that attaching again is possible.
        """


class Window:
    """Credit: number of further deliveries that its consumers may receive.

    credit    deliveries allowed now, >= 0; below 0 only if acknowledgements were withdrawn in a
              transaction after the credit they restored had been used
    refill    True: each acknowledged delivery restores one (prefetch); False: only grants add
    consumers consumers that share it: msglite's ready command covers several addresses with it
    """

    __slots__ = ("consumers", "credit", "refill")

    def __init__(self, credit: int, refill: bool) -> None:
        self.credit = credit
        self.refill = refill
        self.consumers: list[Consumer] = []


class Consumer:
    """Consumer attached to one subscription.

    number       number among all consumers since the process began
    delivered    number of deliveries it has received
    unacked      deliveries it holds, oldest delivery first
    ack_timeout  ms after which an unacked delivery is redelivered, 0 = never
    rank         higher is preferred among failover consumers
    active       False while it is a standby for an active consumer
    suspended    True while its connection cannot accept more bytes
    retired      True once it is detached, though it may still hold deliveries
    """

    __slots__ = (
        "ack_timeout",
        "active",
        "delivered",
        "number",
        "pending_queue",
        "rank",
        "retired",
        "sink",
        "subscription",
        "suspended",
        "unacked",
        "watched",
        "window",
    )

    def __init__(
        self,
        subscription: Subscription,
        sink: Sink,
        window: Window,
        pending_queue: PendingQueue,
        rank: int,
        ack_timeout: int,
    ) -> None:
        self.number: int = next(_numbers)
        self.subscription = subscription
        self.sink = sink
        self.window = window
        self.pending_queue = pending_queue
        self.rank = rank
        self.ack_timeout = ack_timeout
        self.unacked: dict[int, Delivery] = {}
        self.delivered = 0
        self.active = True
        self.suspended = False
        self.retired = False
        self.watched = False
        """True while a timer runs for its oldest unacked delivery."""
