"""A broker in memory, and consumers that record their deliveries."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from sluicemq.broker import (
    Broker,
    Consumer,
    Delivery,
    Destination,
    EngineSettings,
    ManualClock,
    Selector,
    Subscription,
    Window,
)
from sluicemq.broker.pending.cursor import Cursor
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Message

DAY = 24 * 60 * 60 * 1000


class Reader:
    """A consumer that records its deliveries. `attempts` maps bodies to their last attempt."""

    consumer: Consumer

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.attempts: dict[str, int] = {}
        self.detachments = 0
        self._got: list[str] = []

    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            body = body_of(delivery)
            self._got.append(body)
            self.attempts[body] = delivery.attempts

    def detached(self, consumer: Consumer) -> None:
        self.detachments += 1

    def got(self) -> list[str]:
        """Return the bodies delivered since the last call, in order."""
        bodies, self._got = self._got, []
        return bodies

    def unacked_by_body(self) -> dict[str, int]:
        """Return the sequence numbers of its unacked messages, by body."""
        return {body_of(d): sequence for sequence, d in self.consumer.unacked.items()}

    def acknowledge(self, *bodies: str) -> None:
        """Acknowledge these or all unacked messages, and flush."""
        unacked = self.unacked_by_body()
        for body in bodies or unacked:
            assert self.broker.acknowledge(self.consumer, unacked[body])
        self.broker.flush()

    def release(self, *bodies: str, attempted: bool = True) -> None:
        """Requeue these or all unacked messages, and flush."""
        unacked = self.unacked_by_body()
        sequences = [unacked[body] for body in bodies or unacked]
        self.broker.release(self.consumer, sequences, attempted=attempted)
        self.broker.flush()

    def detach(self) -> None:
        self.broker.detach(self.consumer)
        self.broker.flush()


def purge(broker: Broker, destination: Destination, *, unacked: bool = False) -> int:
    """Purge a destination and return the number of messages."""
    counts: list[int] = []
    broker.operations.purge(destination, unacked, counts.append)
    while not counts:
        broker.flush()
    return counts[0]


def move_ready(
    broker: Broker,
    source: Subscription,
    target: Destination,
    predicate: Callable[[Message], bool] | None = None,
    limit: int = 0,
) -> int:
    """Move up to `limit` ready messages (0: all) in order, and return their number."""
    cursor = Cursor(source.all_ready, broker.journal.next_sequence())
    count = 0
    step = cursor.step(1)
    while step and not (limit and count >= limit):
        [delivery] = step
        if predicate is None or predicate(broker.core.read(delivery)):
            broker.operations.move(delivery, target)
            count += 1
        step = cursor.step(1)
    return count


class BrokerFixture:
    """A broker in memory. Its methods flush unless documented otherwise.

    Only message bodies count towards memory use, so that tests can compute it. With `settings`,
    additional deliveries of messages that are not journaled count too.
    """

    def __init__(
        self, settings: EngineSettings | None = None, journal: MemoryJournal | None = None
    ) -> None:
        self.clock = ManualClock()
        self.journal = journal or MemoryJournal()
        settings = replace(settings or EngineSettings(delivery_overhead=0), message_overhead=0)
        self.broker = Broker(self.journal, self.clock, settings)

    def queue(self, name: str = "q", **settings: Any) -> Destination:
        """Declare a queue."""
        return self.broker.destinations.declare(
            Address(Kind.QUEUE, name), DestinationSettings(**settings)
        )

    def topic(self, name: str = "t", **settings: Any) -> Destination:
        """Declare a topic."""
        return self.broker.destinations.declare(
            Address(Kind.TOPIC, name), DestinationSettings(**settings)
        )

    def message(self, destination: Destination, body: str, **fields: Any) -> Message:
        """Return a message that is not published yet."""
        return Message(destination.address, body.encode(), timestamp=self.clock.wall, **fields)

    def send(self, destination: Destination, *bodies: str, **fields: Any) -> list[int]:
        """Publish messages and return their sequence numbers."""
        messages = [self.message(destination, body, **fields) for body in bodies]
        for message in messages:
            assert self.broker.publish(destination, message)
        self.broker.flush()
        return [message.sequence for message in messages]

    def read(
        self,
        source: Destination | Subscription,
        credit: int = 100,
        *,
        refill: bool = True,
        window: Window | None = None,
        selector: Selector | None = None,
        ack_timeout: int | None = None,
    ) -> Reader:
        """Attach a reader, to a temporary destination as its owner; does not flush."""
        reader = Reader(self.broker)
        subscription = source.queue if isinstance(source, Destination) else source
        reader.consumer = self.broker.attach(
            subscription,
            reader,
            window or Window(credit, refill),
            selector=selector,
            ack_timeout=ack_timeout,
            owner=subscription.destination.owner,
        )
        return reader

    def wait(self, milliseconds: int) -> None:
        """Advance the clock and call the broker's timers."""
        self.clock.advance(milliseconds)
        self.broker.tick()
        self.broker.flush()

    def sample_stats(self, seconds: float = 1.0) -> None:
        """Sample all destinations once."""
        for _ in self.broker.stats_sampler.sample_all(seconds):
            pass

    def dead_letters(self, name: str = "q.dlq") -> list[Message]:
        """Return the messages in an existing dead-letter queue."""
        queue = self.broker.destinations[Address(Kind.QUEUE, name)].queue
        return [message_of(delivery) for delivery in queue.browse()]


class TypeSelector:
    """A selector on the message type that counts its evaluations."""

    def __init__(self, type: str) -> None:
        self.text = f"JMSType = '{type}'"
        self.equalities = ()
        self.nodes = 3
        self.type = type
        self.calls = 0

    def __call__(self, message: Message) -> bool:
        self.calls += 1
        return message.type == self.type


def message_of(delivery: Delivery) -> Message:
    """Return the message of a delivery that is not paged out."""
    assert delivery.message is not None
    return delivery.message


def body_of(delivery: Delivery) -> str:
    return message_of(delivery).body.decode()


def delivery_objects(queue: Destination) -> int:
    """Return the number of delivery objects of the queue in the process."""
    gc.collect()
    return sum(
        isinstance(item, Delivery) and item.subscription is queue.queue for item in gc.get_objects()
    )


def bodies(source: Destination | Subscription) -> list[str]:
    """Return the bodies of ready and unacked messages in queue order."""
    subscription = source.queue if isinstance(source, Destination) else source
    return [body_of(delivery) for delivery in subscription.browse()]
