"""Reports to an observer of message handling, which change nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sluicemq.broker import (
    Broker,
    Delivery,
    Destination,
    EngineSettings,
    ManualClock,
    Subscription,
    Window,
)
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from tests.support.broker import BrokerFixture, Reader, purge


class RecordingObserver:
    """An observer that records all calls. It traces messages whose body begins with no dash."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.unacked: dict[tuple[Subscription, int], str] = {}

    def accepted(self, destination: Destination, message: Message) -> bool:
        is_traced = not message.body.startswith(b"-")
        if is_traced:
            self.lines.append(f"accepted {message.body.decode()} at {destination.name}")
            assert not message.sequence
        return is_traced

    def visible(self, message: Message) -> None:
        assert message.sequence
        self.lines.append(f"visible {message.body.decode()}")

    def staged(self, message: Message) -> None:
        assert message.sequence
        self.lines.append(f"staged {message.body.decode()}")

    def durable(self, sequence: int) -> None:
        self.lines.append(f"durable {sequence}")

    def delivered(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.ended(subscription, delivery.sequence, "redelivered")
            assert delivery.message is not None
            body = delivery.message.body.decode()
            if not body.startswith("-"):
                line = f"delivered {body} {delivery.attempts} {subscription.name}"
                self.lines.append(line.rstrip())
                self.unacked[subscription, delivery.sequence] = body

    def ended(self, subscription: Subscription, sequence: int, outcome: str) -> None:
        body = self.unacked.pop((subscription, sequence), None)
        if body is not None:
            self.lines.append(f"{body} is {outcome}")

    def take_lines(self) -> list[str]:
        """Return the lines since the last call; durable lines lose their sequence number."""
        lines, self.lines = self.lines, []
        return ["durable" if line.startswith("durable") else line for line in lines]


class TracedFixture(BrokerFixture):
    def __init__(self, settings: EngineSettings | None = None) -> None:
        super().__init__(settings)
        self.observer = RecordingObserver()
        self.broker = Broker(self.journal, self.clock, settings, observer=self.observer)


@pytest.fixture
def fixture() -> TracedFixture:
    return TracedFixture()


def test_durable_message_is_visible_when_it_is_on_disk(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.observer.take_lines()
    fixture.send(queue, "a")
    reader.acknowledge("a")
    assert fixture.observer.take_lines() == [
        "accepted a at q",
        "staged a",
        "durable",
        "delivered a 1",
        "a is acknowledged",
        "durable",
    ]


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_other_messages_are_visible_at_once(fixture: TracedFixture, durability: Durability) -> None:
    """The consumer may receive the message before its sender's call returns."""
    queue = fixture.queue("q")
    fixture.read(queue, credit=1)
    fixture.observer.take_lines()
    fixture.broker.publish(queue, fixture.message(queue, "a", durability=durability))
    assert fixture.observer.take_lines() == ["accepted a at q", "delivered a 1", "visible a"]


def test_untraced_messages_are_not_reported(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.observer.take_lines()
    fixture.send(queue, "-a", durability=Durability.NONE)
    reader.acknowledge("-a")
    assert set(fixture.observer.take_lines()) <= {"durable"}


def test_requeued_messages_are_released_and_redelivered(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.send(queue, "a", durability=Durability.NONE)
    fixture.observer.take_lines()
    reader.release("a")
    assert fixture.observer.take_lines()[:2] == ["a is released", "delivered a 2"]
    reader.detach()
    assert fixture.observer.take_lines()[:1] == ["a is released"]


def test_message_requeued_at_tail_is_released(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    fixture.read(queue, credit=1)
    sequence, _ = fixture.send(queue, "a", "b", durability=Durability.NONE)
    fixture.observer.take_lines()
    assert fixture.broker.requeue(queue.queue, sequence, 0)
    assert fixture.observer.take_lines() == ["a is released"]


def test_delivery_that_is_not_acknowledged_in_time_is_released_into_its_delay() -> None:
    fixture = TracedFixture()
    queue = fixture.queue("q", ack_timeout=100, retry_delay=1000)
    fixture.read(queue)
    fixture.send(queue, "a", durability=Durability.NONE)
    fixture.observer.take_lines()
    fixture.wait(100)
    assert fixture.observer.take_lines() == ["a is released"]
    fixture.wait(1000)
    assert fixture.observer.take_lines() == ["delivered a 2"]


def test_message_sent_again_to_same_consumer_is_another_delivery(
    fixture: TracedFixture,
) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a", durability=Durability.NONE)
    fixture.observer.take_lines()
    fixture.broker.start_next_attempt(reader.consumer, [sequence], attempted=True)
    reader.acknowledge("a")
    assert [line for line in fixture.observer.take_lines() if line != "durable"] == [
        "a is redelivered",
        "delivered a 2",
        "a is acknowledged",
    ]


def test_dead_letter_continues_trace_of_message(fixture: TracedFixture) -> None:
    queue = fixture.queue("q", max_attempts=1, dead_letter=True)
    reader = fixture.read(queue)
    fixture.send(queue, "a", durability=Durability.NONE)
    fixture.observer.take_lines()
    reader.release("a")
    assert fixture.observer.take_lines()[:3] == [
        "accepted a at q.dlq",
        "visible a",
        "a is dead-lettered or moved",
    ]


def test_purged_and_expired_messages_are_distinguished(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b", durability=Durability.NONE)
    fixture.clock.advance(1)
    fixture.observer.take_lines()
    purge(fixture.broker, queue, unacked=True)
    assert fixture.observer.take_lines() == ["a is purged", "b is purged"]
    fixture.send(queue, "c", durability=Durability.NONE, expiration=fixture.clock.wall + 100)
    fixture.observer.take_lines()
    fixture.clock.advance(200)
    reader.release("c")
    assert "c is expired" in fixture.observer.take_lines()
    # messages acknowledged after that count as acknowledged
    [sequence] = fixture.send(queue, "d", durability=Durability.NONE)
    purge(fixture.broker, queue)
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    transactions.commit(transaction)
    assert "d is acknowledged" in fixture.observer.take_lines()


def test_acks_by_other_consumers_end_no_span(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    holder = fixture.read(queue, credit=1)
    other_reader = fixture.read(queue, credit=1)
    [sequence] = fixture.send(queue, "a", durability=Durability.NONE)
    fixture.observer.take_lines()
    assert not fixture.broker.acknowledge(other_reader.consumer, sequence)
    assert fixture.observer.take_lines() == []
    holder.acknowledge("a")
    assert "a is acknowledged" in fixture.observer.take_lines()


def test_acknowledgements_in_transaction_count_when_it_is_committed(
    fixture: TracedFixture,
) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    fixture.observer.take_lines()
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    transactions.publish(transaction, queue, fixture.message(queue, "b"))
    assert fixture.observer.take_lines() == []
    transactions.commit(transaction)
    lines = fixture.observer.take_lines()
    assert lines[0] == "accepted b at q"
    assert "a is acknowledged" in lines


def test_each_subscription_of_topic_delivers(fixture: TracedFixture) -> None:
    topic = fixture.topic("t")
    for name in ("one", "two"):
        fixture.read(fixture.broker.subscribe(topic, name))
    fixture.observer.take_lines()
    fixture.send(topic, "a", durability=Durability.NONE)
    lines = fixture.observer.take_lines()
    assert {"delivered a 1 one", "delivered a 1 two"} < set(lines)


def test_ended_messages_are_released(fixture: TracedFixture) -> None:
    queue = fixture.queue("q")
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b", "c")
    reader.acknowledge("a")
    purge(fixture.broker, queue, unacked=True)
    assert not fixture.observer.unacked


def test_tracing_continues_after_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    observer = RecordingObserver()
    address = Address(Kind.TOPIC, "t")

    def start() -> Broker:
        journal = FileJournal.open(tmp_path / "journal")
        broker = Broker(journal, clock, observer=observer)
        journal.set_snapshot_source(lambda: snapshot(broker))
        recover(broker, journal.recovery)
        return broker

    broker = start()
    topic = broker.destinations.declare(address, DestinationSettings())
    broker.subscribe(topic, "archive", durable=True)
    broker.publish(topic, Message(address, b"a", timestamp=clock.wall))
    broker.flush()
    broker.journal.close()
    observer.take_lines()
    broker = start()
    subscription = broker.destinations[address].subscriptions["archive"]
    reader = Reader(broker)
    reader.consumer = broker.attach(subscription, reader, Window(1, True))
    assert "delivered a 1 archive" in observer.take_lines()
    reader.acknowledge("a")
    assert observer.take_lines()[0] == "a is acknowledged"
    broker.journal.close()
