"""The engine while the journal's disk is nearly full: persistent messages are refused, and
operations that end messages continue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from sluicemq.broker import Broker, ManualClock, Window
from sluicemq.broker.codec import BatchPart
from sluicemq.journal.format import RecordType
from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.errors import ActionRefused, BatchRefused, LowDiskSpace
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from tests.support.broker import Reader, purge
from tests.support.journal import RecordingJournal, read_from


class LowSpaceFixture:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.journal = RecordingJournal(record_deliveries=True, depth_interval=100)
        self.broker = Broker(self.journal, self.clock)
        self.queue = self.broker.destinations.queue("orders")

    def message(self, body: bytes = b"x", durability: Durability = Durability.SYNC) -> Message:
        return Message(
            self.queue.address,
            body,
            BodyKind.BYTES,
            Origin.INTERNAL,
            durability,
            self.clock.wall,
            0,
            4,
        )

    def publish(self, body: bytes = b"x") -> int:
        message = self.message(body)
        self.broker.publish(self.queue, message)
        self.broker.flush()
        return message.sequence

    def set_level(self, level: SpaceLevel) -> None:
        self.broker.publisher.on_space(SpaceReport(level))
        self.broker.flush()

    def read(self, credit: int = 10) -> Reader:
        reader = Reader(self.broker)
        reader.consumer = self.broker.attach(self.queue.queue, reader, Window(credit, True))
        self.broker.flush()
        return reader

    def record_types(self) -> list[int]:
        return [record.type for record in read_from(self.journal, 0)]


@pytest.fixture
def fixture() -> LowSpaceFixture:
    return LowSpaceFixture()


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.SYNC])
def test_journaled_messages_are_refused_until_space_returns(
    fixture: LowSpaceFixture, durability: Durability
) -> None:
    fixture.set_level(SpaceLevel.LOW)
    with pytest.raises(LowDiskSpace, match="nearly full"):
        fixture.broker.publish(fixture.queue, fixture.message(durability=durability))
    fixture.broker.publish(fixture.queue, fixture.message(durability=Durability.NONE))
    fixture.set_level(SpaceLevel.ENOUGH)
    fixture.broker.publish(fixture.queue, fixture.message(durability=durability))
    fixture.broker.flush()
    assert fixture.queue.waiting == 2


def test_consumers_acknowledge_and_no_optional_records_are_written(
    fixture: LowSpaceFixture,
) -> None:
    fixture.publish(b"one")
    fixture.publish(b"two")
    fixture.set_level(SpaceLevel.LOW)
    before = len(fixture.record_types())
    reader = fixture.read()
    assert reader.got() == ["one", "two"]
    reader.acknowledge()
    fixture.clock.advance(1000)
    fixture.broker.tick()
    fixture.broker.flush()
    assert fixture.record_types()[before:] == [RecordType.COMPLETED]
    fixture.set_level(SpaceLevel.ENOUGH)
    fixture.publish(b"three")
    assert RecordType.DELIVERED not in fixture.record_types()[:before]
    reader.acknowledge()
    assert RecordType.DELIVERED in fixture.record_types()


def test_redeliveries_dead_letters_and_purges_continue(fixture: LowSpaceFixture) -> None:
    settings = DestinationSettings(max_attempts=2, dead_letter=True)
    fixture.broker.destinations.declare(fixture.queue.address, settings)
    fixture.publish(b"one")
    fixture.publish(b"two")
    fixture.set_level(SpaceLevel.LOW)
    reader = fixture.read(1)
    for _ in range(2):
        fixture.broker.release(reader.consumer, [next(iter(reader.consumer.unacked))])
        fixture.broker.flush()
    model_messages = fixture.broker.destinations.find(Address(Kind.QUEUE, "orders.dlq"))
    assert model_messages is not None
    assert model_messages.waiting == 1
    assert purge(fixture.broker, fixture.queue, unacked=True) == 1


def test_moving_messages_is_refused_and_deleting_is_not(fixture: LowSpaceFixture) -> None:
    sequence = fixture.publish()
    fixture.set_level(SpaceLevel.LOW)
    subscription = fixture.queue.queue
    delivery = fixture.broker.operations.find(subscription, sequence)
    assert delivery is not None
    other_queue = fixture.broker.destinations.queue("other")
    operations = fixture.broker.operations
    for operation in (operations.move, operations.copy):
        with pytest.raises(ActionRefused) as error:
            operation(delivery, other_queue)
        assert error.value.reason == "low-disk-space"
    fixture.broker.operations.delete(subscription, [delivery])
    assert fixture.queue.waiting == 0


def test_transactions_at_low_space(fixture: LowSpaceFixture) -> None:
    transactions = fixture.broker.transactions
    fixture.publish(b"one")
    fixture.publish(b"two")
    reader = fixture.read()
    prepared, sending_transaction, acking_transaction = (
        transactions.begin(),
        transactions.begin(),
        transactions.begin(),
    )
    transactions.publish(prepared, fixture.queue, fixture.message(b"prepared"))
    transactions.prepare(prepared, b"xid")
    transactions.publish(sending_transaction, fixture.queue, fixture.message(b"sent"))
    transactions.acknowledge(acking_transaction, reader.consumer, reader.unacked_by_body()["one"])
    transactions.acknowledge(sending_transaction, reader.consumer, reader.unacked_by_body()["two"])
    fixture.broker.flush()
    reader.got()
    fixture.set_level(SpaceLevel.LOW)
    refused_calls: list[Callable[[], object]] = [
        lambda: transactions.publish(acking_transaction, fixture.queue, fixture.message()),
        lambda: transactions.commit(sending_transaction),
        lambda: transactions.prepare(sending_transaction, b"other"),
    ]
    for call in refused_calls:
        with pytest.raises(LowDiskSpace):
            call()
    transactions.rollback(sending_transaction)
    transactions.commit(acking_transaction)
    transactions.commit(prepared)
    fixture.broker.flush()
    assert sorted(reader.got()) == ["prepared", "two"]


def test_batches_are_refused_temporarily(fixture: LowSpaceFixture) -> None:
    part = BatchPart(writer="w", batch=1, partition=0, part=0, final=True, digest=1, rows=1)
    fixture.set_level(SpaceLevel.LOW)
    with pytest.raises(BatchRefused) as error:
        fixture.broker.batches.write(part, [(fixture.queue.address, fixture.message())])
    [refusal] = error.value.refused
    assert refusal.is_temporary
    fixture.set_level(SpaceLevel.ENOUGH)
    assert not fixture.broker.batches.write(
        part, [(fixture.queue.address, fixture.message())]
    ).is_repeat


def test_blocked_producers_also_wait_for_disk_space(fixture: LowSpaceFixture) -> None:
    settings = DestinationSettings(max_messages=1, overflow=Overflow.BLOCK)
    fixture.broker.destinations.declare(fixture.queue.address, settings)
    fixture.publish(b"one")
    accepted_bodies: list[str] = []
    assert not fixture.broker.publish(
        fixture.queue, fixture.message(b"two"), lambda: accepted_bodies.append("two")
    )
    fixture.set_level(SpaceLevel.LOW)
    reader = fixture.read()
    reader.acknowledge()
    assert accepted_bodies == []
    fixture.set_level(SpaceLevel.ENOUGH)
    assert accepted_bodies == ["two"]
    assert reader.got() == ["one", "two"]


class StalledJournal(RecordingJournal):
    """A journal in which the write of a group takes so long that it runs out of numbers. A commit
    after the write begins the next segment."""

    is_stalled = True
    is_writing = True

    def commit(self, sync: bool = True) -> None:
        super().commit(sync)
        self.is_stalled = self.is_writing


@pytest.mark.parametrize("durability", [Durability.NONE, Durability.SYNC])
def test_no_message_is_accepted_while_write_hangs(
    fixture: LowSpaceFixture, durability: Durability
) -> None:
    journal = StalledJournal()
    fixture.broker = broker = Broker(journal, fixture.clock)
    queue = broker.destinations.queue("orders")
    resumed: list[str] = []
    broker.flush()
    with pytest.raises(LowDiskSpace, match="does not respond"):
        broker.publish(queue, fixture.message(durability=durability))
    rows = [(queue.address, fixture.message(durability=durability))]
    assert [type(refusal.error) for refusal in broker.batches.check(rows)] == [LowDiskSpace]
    broker.publisher.when_space(fixture, lambda: resumed.append("resumed"))
    broker.flush()
    assert resumed == []
    journal.is_writing = False
    broker.flush()
    assert resumed == ["resumed"]
    broker.publish(queue, fixture.message(durability=durability))


def test_nothing_is_delivered_when_reserve_is_used_up(fixture: LowSpaceFixture) -> None:
    fixture.publish(b"one")
    fixture.publish(b"two")
    reader = fixture.read(1)
    assert reader.got() == ["one"]
    fixture.set_level(SpaceLevel.EXHAUSTED)
    reader.acknowledge()
    fixture.broker.grant(reader.consumer.window, 1)
    assert reader.got() == []
    fixture.broker.publish(fixture.queue, fixture.message(b"three", Durability.NONE))
    fixture.broker.flush()
    assert reader.got() == []
    fixture.set_level(SpaceLevel.LOW)
    assert reader.got() == ["two", "three"]


def test_messages_in_memory_are_not_recorded(fixture: LowSpaceFixture) -> None:
    fixture.journal.options = replace(fixture.journal.options, record_transient=True)
    fixture.set_level(SpaceLevel.LOW)
    before = len(fixture.record_types())
    message = fixture.message(durability=Durability.NONE)
    fixture.broker.publish(fixture.queue, message)
    fixture.broker.flush()
    assert message.durability is Durability.NONE
    assert len(fixture.record_types()) == before
