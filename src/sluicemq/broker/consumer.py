"""Who receives: a consumer of one subscription, and the window of credit it draws from."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from sluicemq.broker.delivery import Delivery

if TYPE_CHECKING:
    from sluicemq.broker.pending_queue import PendingQueue
    from sluicemq.broker.subscription import Subscription

_numbers: Final = count(1)


class Sink(Protocol):
    """Where deliveries go."""

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        """Take one or more deliveries, in order. Must only queue bytes, never block or raise."""

    def detached(self, consumer: Consumer) -> None:
        """The destination or subscription was removed by somebody else, and the consumer with
        it. Called after the removal, so that attaching anew is possible."""


class Window:
    """Credit: how many more deliveries its consumers may be given.

    credit    deliveries allowed now, >= 0; below 0 only if acknowledgements were taken back in a
              transaction after the credit they gave had been used
    refill    True: each settled delivery gives one back (prefetch); False: only a grant adds
    consumers that share it: msglite's ready command waits on several addresses with one credit
    """

    __slots__ = ("consumers", "credit", "refill")

    def __init__(self, credit: int, refill: bool) -> None:
        self.credit = credit
        self.refill = refill
        self.consumers: list[Consumer] = []


class Consumer:
    """One consumer attached to one subscription.

    number       of all consumers since the process began
    delivered    deliveries it has been given
    unacked      deliveries it holds, oldest delivery first
    ack_timeout  ms after which a delivery is taken back, 0 = never
    rank         higher is preferred among failover consumers
    active       False while it stands by for an active consumer to go
    suspended    True while its connection cannot take more bytes
    retired      True once it has left, though it may still hold deliveries
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
        """A timer is running for its oldest unacknowledged delivery."""
