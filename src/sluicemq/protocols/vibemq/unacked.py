"""What a connection has been given and has not acknowledged, by the ids its client knows.

An id need not be the only one of its kind: then the oldest delivery comes first. Deliveries may end
or be taken back without notice; their ids stay until somebody asks for them, or until they are most
of what is here.
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
"""Ids held before those that have gone are looked for."""


class UnackedDeliveries:
    """See the module.

    mine   the connection's consumers, kept by their subscribers
    first  by id, the oldest delivery. Whoever adds one under an id that is there already passes it
           to `add_again`, and calls `trim` after a batch
    timeouts  the time for acknowledgements
    """

    __slots__ = ("_limit", "_others", "first", "mine", "timeouts")

    def __init__(self, transport: Transport, broker: Broker) -> None:
        self.timeouts = AckTimeouts(transport, broker, self)
        self.first: dict[str, Delivery] = {}
        self._others: dict[str, list[Delivery]] = {}
        """Younger ones of the same id."""
        self._limit = _LIMIT
        self.mine: dict[Consumer | None, Subscriber] = {}

    def release(self) -> None:
        """Let go of what refers back here, after the end of the connection, so that both are freed
        at once."""
        del self.timeouts

    def add_again(self, identity: str, delivery: Delivery) -> None:
        """A delivery has been sent under an id that is in `first`."""
        self._others.setdefault(identity, []).append(delivery)

    def acknowledge(self, identity: str) -> None:
        """The client has done with the oldest delivery of that id that one of `mine` holds."""
        delivery = self.first.pop(identity, None)
        if delivery is None:
            self.timeouts.hear(identity)
            return
        if self._others:
            delivery = self._next(identity, delivery)
        consumer = delivery.consumer
        subscriber = self.mine.get(consumer)
        if subscriber is not None and consumer is not None:
            subscriber.acknowledge(consumer, delivery)
            if self.timeouts.copies is None:
                return
        self.timeouts.hear(identity)

    def _next(self, identity: str, delivery: Delivery) -> Delivery:
        """Move up those behind a delivery that has been taken out; if that is held no more, the
        first that is takes its place."""
        others = self._others.pop(identity, [])
        while others and self.holder(delivery) is None:
            delivery = others.pop(0)
        if others:
            self.first[identity] = others.pop(0)
        if others:
            self._others[identity] = others
        return delivery

    def holder(self, delivery: Delivery) -> Subscriber | None:
        """The one of `mine` that holds the delivery."""
        consumer = delivery.consumer
        if consumer is None or consumer.unacked.get(delivery.sequence) is not delivery:
            return None
        return self.mine.get(consumer)

    def sent(self) -> Iterator[tuple[str, Delivery]]:
        """Ids and deliveries in the order in which they were sent, those that have gone included;
        younger ones of an id come last."""
        yield from self.first.items()
        for identity, others in self._others.items():
            for delivery in others:
                yield identity, delivery

    def trim(self) -> None:
        """Forget what has gone, if there is so much here that it may be much."""
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
