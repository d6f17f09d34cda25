"""What an observer of the ways of messages is told, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import (
    Broker,
    BrokerSettings,
    Delivery,
    Destination,
    ManualClock,
    Subscription,
    Window,
)
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.broker.tracing import TracedBroker, TracedSubscription
from sluicemq.journal import FileJournal
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from tests.broker.support import Reader, Rig


class Witness:
    """Writes down everything; follows all messages whose body does not begin with a dash."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def accepted(self, destination: Destination, message: Message) -> bool:
        followed = not message.body.startswith(b"-")
        if followed:
            self.told.append(f"accepted {message.body.decode()} at {destination.name}")
            assert not message.sequence
        return followed

    def shown(self, message: Message) -> None:
        assert message.sequence
        self.told.append(f"shown {message.body.decode()}")

    def staged(self, message: Message) -> None:
        assert message.sequence
        self.told.append(f"staged {message.body.decode()}")

    def durable(self, sequence: int) -> None:
        self.told.append(f"durable {sequence}")

    def delivered(self, subscription: Subscription, delivery: Delivery) -> object:
        assert delivery.message is not None
        body = delivery.message.body.decode()
        if body.startswith("-"):
            return None
        self.told.append(f"delivered {body} {delivery.attempts} {subscription.name}".rstrip())
        return body

    def over(self, handling: object, how: str) -> None:
        self.told.append(f"{handling} is {how}")

    def since(self) -> list[str]:
        """What has been told since the last call, of what became durable only that it did."""
        told, self.told = self.told, []
        return ["durable" if line.startswith("durable") else line for line in told]


class TracedRig(Rig):
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        super().__init__(settings)
        self.witness = Witness()
        self.broker = TracedBroker(self.journal, self.clock, self.witness, settings)


@pytest.fixture
def rig() -> TracedRig:
    return TracedRig()


def test_a_durable_message_is_shown_when_it_is_on_disk(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    rig.witness.since()
    rig.send(queue, "a")
    reader.settle("a")
    assert rig.witness.since() == [
        "accepted a at q",
        "staged a",
        "durable",
        "delivered a 1",
        "a is acknowledged",
        "durable",
    ]


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_others_are_shown_at_once(rig: TracedRig, durability: Durability) -> None:
    """The consumer may have it before its sender's call returns."""
    queue = rig.queue("q")
    rig.read(queue, credit=1)
    rig.witness.since()
    rig.broker.publish(queue, rig.message(queue, "a", durability=durability))
    assert rig.witness.since() == ["accepted a at q", "delivered a 1", "shown a"]


def test_what_is_not_followed_is_not_told_of(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    rig.witness.since()
    rig.send(queue, "-a", durability=Durability.NONE)
    reader.settle("-a")
    assert set(rig.witness.since()) <= {"durable"}


def test_what_comes_back_is_released_and_delivered_again(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    rig.send(queue, "a", durability=Durability.NONE)
    rig.witness.since()
    reader.release("a")
    assert rig.witness.since()[:2] == ["a is released", "delivered a 2"]
    reader.detach()
    assert rig.witness.since()[:1] == ["a is released"]


def test_a_delivery_that_is_not_acknowledged_in_time_is_released_into_its_delay() -> None:
    rig = TracedRig()
    queue = rig.queue("q", ack_timeout=100, retry_delay=1000)
    rig.read(queue)
    rig.send(queue, "a", durability=Durability.NONE)
    rig.witness.since()
    rig.wait(100)
    assert rig.witness.since() == ["a is released"]
    rig.wait(1000)
    assert rig.witness.since() == ["delivered a 2"]


def test_a_message_sent_again_to_the_same_consumer_is_another_delivery(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a", durability=Durability.NONE)
    rig.witness.since()
    rig.broker.again(reader.consumer, [sequence], attempted=True)
    reader.settle("a")
    assert [line for line in rig.witness.since() if line != "durable"] == [
        "a is redelivered",
        "delivered a 2",
        "a is acknowledged",
    ]


def test_a_dead_letter_takes_the_place_of_the_message(rig: TracedRig) -> None:
    queue = rig.queue("q", max_attempts=1, dead_letter=True)
    reader = rig.read(queue)
    rig.send(queue, "a", durability=Durability.NONE)
    rig.witness.since()
    reader.release("a")
    assert rig.witness.since()[:3] == [
        "a is dead-lettered or moved",
        "accepted a at q.dlq",
        "shown a",
    ]


def test_purged_and_expired_messages_are_told_apart(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    rig.send(queue, "a", "b", durability=Durability.NONE)
    rig.clock.advance(1)
    rig.witness.since()
    rig.broker.purge(queue, unacked=True)
    assert rig.witness.since() == ["a is purged", "b is purged"]
    rig.send(queue, "c", durability=Durability.NONE, expiration=rig.clock.wall + 100)
    rig.witness.since()
    rig.clock.advance(200)
    reader.release("c")
    assert "c is expired" in rig.witness.since()
    # what is acknowledged after that is acknowledged
    [sequence] = rig.send(queue, "d", durability=Durability.NONE)
    rig.broker.purge(queue)
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    transactions.commit(transaction)
    assert "d is acknowledged" in rig.witness.since()


def test_who_does_not_hold_a_message_ends_nothing(rig: TracedRig) -> None:
    queue = rig.queue("q")
    holder = rig.read(queue, credit=1)
    other = rig.read(queue, credit=1)
    [sequence] = rig.send(queue, "a", durability=Durability.NONE)
    rig.witness.since()
    assert not rig.broker.settle(other.consumer, sequence)
    assert rig.witness.since() == []
    holder.settle("a")
    assert "a is acknowledged" in rig.witness.since()


def test_acknowledgements_in_a_transaction_count_when_it_is_committed(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    rig.witness.since()
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    transactions.publish(transaction, queue, rig.message(queue, "b"))
    assert rig.witness.since() == []
    transactions.commit(transaction)
    told = rig.witness.since()
    assert told[0] == "accepted b at q"
    assert "a is acknowledged" in told


def test_each_subscription_of_a_topic_delivers(rig: TracedRig) -> None:
    topic = rig.topic("t")
    for name in ("one", "two"):
        rig.read(rig.broker.subscribe(topic, name))
    rig.witness.since()
    rig.send(topic, "a", durability=Durability.NONE)
    told = rig.witness.since()
    assert {"delivered a 1 one", "delivered a 1 two"} < set(told)


def test_nothing_is_remembered_of_what_is_over(rig: TracedRig) -> None:
    queue = rig.queue("q")
    reader = rig.read(queue)
    rig.send(queue, "a", "b", "c")
    assert isinstance(queue.queue, TracedSubscription)
    assert len(queue.queue.handled) == 3
    reader.settle("a")
    rig.broker.purge(queue, unacked=True)
    assert not queue.queue.handled


def test_after_a_restart_it_goes_on(tmp_path: Path) -> None:
    clock = ManualClock()
    witness = Witness()
    address = Address(Kind.TOPIC, "t")

    def start() -> TracedBroker:
        journal = FileJournal.open(tmp_path / "journal")
        broker = TracedBroker(journal, clock, witness)
        journal.snapshot_source = lambda: snapshot(broker)
        recover(broker, journal.recovery)
        return broker

    broker = start()
    topic = broker.declare(address, DestinationSettings())
    broker.subscribe(topic, "archive", durable=True)
    broker.publish(topic, Message(address, b"a", timestamp=clock.wall))
    broker.flush()
    broker.journal.close()
    witness.since()
    broker = start()
    subscription = broker.destinations[address].subscriptions["archive"]
    assert isinstance(subscription, TracedSubscription)
    reader = Reader(broker)
    reader.consumer = broker.attach(subscription, reader, Window(1, True))
    assert "delivered a 1 archive" in witness.since()
    reader.settle("a")
    assert witness.since()[0] == "a is acknowledged"
    broker.journal.close()


def test_a_broker_that_is_not_traced_has_none_of_it() -> None:
    rig = Rig()
    queue = rig.queue("q")
    assert type(queue.queue) is Subscription
    assert type(rig.broker.subscribe(rig.topic("t"), "s")) is Subscription
    assert (
        type(Broker(MemoryJournal(), ManualClock()).core.event_recorder).__name__ == "EventRecorder"
    )
