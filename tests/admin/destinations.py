"""Create destinations with messages and consumers for tests of the API."""

from __future__ import annotations

from typing import Any

from sluicemq.broker import Broker, Consumer, Destination, Window
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import BodyKind, Durability, Message
from tests.support.broker import Reader


def queue(broker: Broker, name: str = "q", **settings: Any) -> Destination:
    """Declare a queue."""
    return broker.destinations.declare(Address(Kind.QUEUE, name), DestinationSettings(**settings))


def topic(broker: Broker, name: str = "t", **settings: Any) -> Destination:
    """Declare a topic."""
    return broker.destinations.declare(Address(Kind.TOPIC, name), DestinationSettings(**settings))


def send(destination: Destination, *bodies: str, **fields: Any) -> list[int]:
    """Publish messages and return their sequence numbers; `broker` is the destination's broker."""
    broker = fields.pop("broker")
    fields.setdefault("durability", Durability.LAZY)
    fields.setdefault("kind", BodyKind.TEXT)
    fields.setdefault("timestamp", broker.clock.wall)
    sent = []
    for body in bodies:
        message = Message(destination.address, body.encode(), **fields)
        assert broker.publish(destination, message)
        sent.append(message.sequence)
    broker.flush()
    return sent


def read(broker: Broker, destination: Destination, credit: int = 100) -> Reader:
    """Attach a consumer and dispatch ready messages to it."""
    reader = Reader(broker)
    reader.consumer = broker.attach(destination.queue, reader, Window(credit, True))
    broker.flush()
    return reader


def unacked_numbers(consumer: Consumer) -> list[int]:
    """Return the sequence numbers of a consumer's unacked messages."""
    return list(consumer.unacked)


def queued_bodies(broker: Broker, name: str = "q", kind: Kind = Kind.QUEUE) -> list[str]:
    """Return the bodies of ready messages in queue order, then those of scheduled messages."""
    deliveries = broker.destinations[Address(kind, name)].queue.browse()
    return [broker.core.read(d).body.decode() for d in deliveries if d.ready or d.scheduled]
