"""Unacked deliveries of a connection, by the ids that its client uses.

Several deliveries may have the same id; the oldest comes first. Deliveries may end or be requeued
without notice; their ids stay until they are looked up, or until `trim` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sluicemq.protocols.vibemq.ack_timeouts import AckTimeouts

if TYPE_CHECKING:
    from sluicemq.broker import Broker, Consumer, Delivery
    from sluicemq.protocols.transport import Transport
    from sluicemq.protocols.vibemq.subscriber import Subscriber

_LIMIT: Final = 1024
"""Number of ids from which on `trim` looks for ended deliveries."""


class UnackedDeliveries:
    """Unacked deliveries of a connection.

    mine      the connection's consumers; their subscribers maintain it
    first     oldest delivery of each id. A caller that adds a delivery under an existing id passes
              it to `add_again`, and calls `trim` after a batch
    timeouts  acknowledgement timeouts
    """

    __slots__ = ("_limit", "_others", "first", "mine", "timeouts")

    def __init__(self, transport: Transport, broker: Broker) -> None:
        self.timeouts = AckTimeouts(transport, broker, self)
        self.first: dict[str, Delivery] = {}
        self._others: dict[str, list[Delivery]] = {}
        """Later deliveries of the same id."""
        self._limit = _LIMIT
        self.mine: dict[Consumer | None, Subscriber] = {}

    def release(self) -> None:
        """Break the reference cycle with the timeouts after the end of the connection."""
        del self.timeouts

    def add_again(self, identity: str, delivery: Delivery) -> None:
        """Add a further delivery of an id that is in `first`."""
        self._others.setdefault(identity, []).append(delivery)

    def acknowledge(self, identity: str) -> None:
        """Acknowledge the oldest delivery of that id that a consumer of `mine` holds."""
        delivery = self.first.pop(identity, None)
        if delivery is None:
            self.timeouts.record_ack(identity)
            return
        if self._others:
            delivery = self._next(identity, delivery)
        consumer = delivery.consumer
        subscriber = self.mine.get(consumer)
        if subscriber is not None and consumer is not None:
            subscriber.acknowledge(consumer, delivery)
            if self.timeouts.copies is None:
                return
        self.timeouts.record_ack(identity)

    def _next(self, identity: str, delivery: Delivery) -> Delivery:
        """Return the oldest delivery of an id that is still unacked, starting with `delivery`.

        Moves the next one to `first`.
        """
        others = self._others.pop(identity, [])
        while others and self.holder(delivery) is None:
            delivery = others.pop(0)
        if others:
            self.first[identity] = others.pop(0)
        if others:
            self._others[identity] = others
        return delivery

    def holder(self, delivery: Delivery) -> Subscriber | None:
        """Return the subscriber whose consumer holds the delivery, or None."""
        consumer = delivery.consumer
        if consumer is None or consumer.unacked.get(delivery.sequence) is not delivery:
            return None
        return self.mine.get(consumer)

    def sent(self) -> Iterator[tuple[str, Delivery]]:
        """Yield ids and deliveries in the order in which they were sent, ended ones included.

        Later deliveries of the same id come last.
        """
        yield from self.first.items()
        for identity, others in self._others.items():
            for delivery in others:
                yield identity, delivery

    def trim(self) -> None:
        """Remove ended deliveries if there are many."""
        if len(self.first) <= self._limit:
            return
        before, self.first = self.first, {}
        others, self._others = self._others, {}
        for identity, oldest in before.items():
            for delivery in (oldest, *others.get(identity, ())):
                if self.holder(delivery) is not None and (
                    self.first.setdefault(identity, delivery) is not delivery
                ):
                    self.add_again(identity, delivery)
        self._limit = 2 * len(self.first) + _LIMIT
