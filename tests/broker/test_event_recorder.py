"""Delivery records: when they are written, in which order, and their state after a crash."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from sluicemq.broker import Broker, ManualClock
from sluicemq.broker.pending.entry import RECORDED
from sluicemq.broker.records import EventRecorder
from sluicemq.broker.state import Delivery
from sluicemq.journal import Cause, FileJournal, JournalOptions
from sluicemq.journal.format import (
    MAX_COMPLETED,
    UNIT_END,
    RecordType,
    decode_deliveries,
)
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, purge
from tests.support.journal import RecordingJournal, read_from

DELIVERY_RECORDS = {
    RecordType.DELIVERED,
    RecordType.REDELIVERED,
    RecordType.COMPLETED,
    RecordType.MESSAGE,
    RecordType.DELIVERY_ATTEMPTS,
}


class QuietJournal(RecordingJournal):
    """A journal that writes only on commit and counts the writes."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        super().__init__(record_deliveries=True)
        self.options = replace(self.options, flush_interval=100)
        self.writes = 0

    def commit(self, sync: bool = True) -> None:
        if self.has_pending_records:
            self.writes += 1
        super().commit(sync)


class EventRecorderFixture(BrokerFixture):
    def __init__(self) -> None:
        self.disk = QuietJournal()
        super().__init__(journal=self.disk)

    def records(self) -> list[tuple[RecordType, list[int]]]:
        """Return the records of deliveries and their ends since the last call."""
        self.wait(self.disk.options.flush_interval)
        records = [record for record in read_from(self.disk, 0) if record.lists_messages]
        self.disk.records.clear()
        return [(RecordType(record.type), record.sequences) for record in records]


def test_deliveries_alone_cause_no_write_before_delay() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue()
    sent = fixture.send(queue, "a", "b")
    reader = fixture.read(queue)
    before = fixture.disk.writes
    fixture.broker.flush()
    assert reader.got() == ["a", "b"]
    fixture.wait(99)
    assert fixture.disk.writes == before
    fixture.wait(1)
    assert fixture.disk.writes == before + 1
    fixture.wait(1000)
    assert fixture.disk.writes == before + 1
    assert fixture.records() == [(RecordType.DELIVERED, sent)]


def test_writing_iteration_includes_deliveries_of_each_iteration() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue()
    other_queue = fixture.queue("other")
    sent = fixture.send(queue, "a", "b", "c")
    reader = fixture.read(queue, 1, refill=False)
    fixture.broker.flush()
    started = fixture.clock.wall
    fixture.clock.advance(10)
    fixture.broker.grant(reader.consumer.window, 2)
    fixture.broker.flush()
    before = fixture.disk.writes
    fixture.clock.advance(10)
    fixture.send(other_queue, "x")
    assert fixture.disk.writes == before + 1
    deliveries = [r for r in read_from(fixture.disk, 0) if r.type == RecordType.DELIVERED]
    assert [(r.time // 1000 - started, r.sequences) for r in deliveries] == [
        (0, sent[:1]),
        (10, sent[1:]),
    ]
    assert (
        {r.destination for r in deliveries}
        == {r.subscription for r in deliveries}
        == {queue.number}
    )


def test_delivery_record_precedes_record_of_its_end() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue(max_attempts=2, dead_letter=True)
    reader = fixture.read(queue)
    [acked_sequence] = fixture.send(queue, "acked")
    reader.acknowledge("acked")
    assert fixture.records() == [
        (RecordType.DELIVERED, [acked_sequence]),
        (RecordType.COMPLETED, [acked_sequence]),
    ]
    [dead_letter_sequence] = fixture.send(queue, "dead")
    reader.release("dead")
    reader.release("dead")
    assert fixture.records() == [
        (RecordType.DELIVERED, [dead_letter_sequence]),
        (RecordType.REDELIVERED, [dead_letter_sequence]),
        (RecordType.COMPLETED, [dead_letter_sequence]),
    ]
    single_attempt_queue = fixture.queue("once", max_attempts=1)
    single_attempt_reader = fixture.read(single_attempt_queue)
    [dropped] = fixture.send(single_attempt_queue, "dropped")
    single_attempt_reader.release("dropped")
    assert fixture.records() == [
        (RecordType.DELIVERED, [dropped]),
        (RecordType.COMPLETED, [dropped]),
    ]
    [purged] = fixture.send(queue, "purged")
    purge(fixture.broker, queue, unacked=True)
    assert fixture.records() == [(RecordType.DELIVERED, [purged]), (RecordType.COMPLETED, [purged])]
    [committed] = fixture.send(queue, "committed")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, committed)
    transactions.commit(transaction)
    assert fixture.records() == [
        (RecordType.DELIVERED, [committed]),
        (RecordType.COMPLETED, [committed]),
    ]
    [rejected] = fixture.send(queue, "given up")
    fixture.broker.dead_letter(queue.queue, rejected, "rejected")
    assert fixture.records() == [
        (RecordType.DELIVERED, [rejected]),
        (RecordType.COMPLETED, [rejected]),
    ]
    [removed_sequence] = fixture.send(queue, "removed")
    fixture.broker.remove(queue, force=True)
    assert fixture.records() == [
        (RecordType.DELIVERED, [removed_sequence]),
        (RecordType.COMPLETED, [removed_sequence]),
    ]


def test_delivery_record_does_not_end_unit() -> None:
    """A dead letter and the end of what it was made of are one unit."""
    fixture = EventRecorderFixture()
    queue = fixture.queue(max_attempts=1, dead_letter=True)
    reader = fixture.read(queue)
    fixture.send(queue, "dead")
    start = fixture.disk.durable + 1
    reader.release("dead")
    fixture.wait(100)
    records = [r for r in read_from(fixture.disk, start) if r.type in DELIVERY_RECORDS]
    assert [r.type for r in records] == [
        RecordType.DELIVERED,
        RecordType.MESSAGE,
        RecordType.COMPLETED,
    ]
    assert [bool(r.flags & UNIT_END) for r in records] == [True, False, True]
    assert records[2].kind == Cause.DEAD_LETTERED


def test_redeliveries_are_recorded_with_their_attempt_number() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue()
    first, second = fixture.send(queue, "a", "b")
    reader = fixture.read(queue)
    fixture.broker.flush()
    fixture.broker.start_next_attempt(reader.consumer, [first], attempted=True)
    fixture.broker.flush()
    reader.release("a", "b")
    fixture.wait(100)
    redeliveries = [r for r in read_from(fixture.disk, 0) if r.type == RecordType.REDELIVERED]
    assert [decode_deliveries(r.body) for r in redeliveries] == [
        (queue.number, [first], [2]),
        (queue.number, [first, second], [3, 2]),
    ]


def test_only_deliveries_whose_end_is_journaled_are_recorded() -> None:
    fixture = EventRecorderFixture()
    queue, topic = fixture.queue(), fixture.topic()
    subscription = fixture.broker.subscribe(topic, "s")
    fixture.read(queue)
    fixture.read(subscription)
    fixture.send(queue, "kept nowhere", durability=Durability.NONE)
    fixture.send(topic, "of no durable subscription")
    assert fixture.records() == []
    durable = fixture.broker.subscribe(topic, "d", durable=True)
    fixture.read(durable)
    sent = fixture.send(topic, "b")
    assert fixture.records() == [(RecordType.DELIVERED, sent)]


def test_stopping_broker_records_all_deliveries() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue()
    sent = fixture.send(queue, "a")
    fixture.read(queue)
    fixture.broker.stop()
    fixture.broker.flush()
    delivery_records = [r for r in read_from(fixture.disk, 0) if r.lists_messages]
    assert [r.sequences for r in delivery_records] == [sent]


def test_delivery_records_can_be_disabled(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(record_deliveries=False, depth_interval=0))
    broker = Broker(journal, ManualClock())
    assert not broker.core.event_recorder.recording
    assert broker.deadline() == 1 << 62
    journal.close()


def test_long_list_becomes_several_records() -> None:
    fixture = EventRecorderFixture()
    queue = fixture.queue()
    fixture.send(queue, "a")
    event_recorder = EventRecorder(fixture.disk, fixture.clock)
    deliveries = [
        Delivery(queue.queue, sequence, None, 4, 1, RECORDED, 0, 0)
        for sequence in range(MAX_COMPLETED + 2)
    ]
    for delivery in deliveries:
        delivery.attempts = 1
    event_recorder.deliver(queue.number, queue.number, deliveries)
    assert event_recorder.end_iteration()
    for delivery in deliveries:
        delivery.attempts = 5
    event_recorder.deliver(queue.number, queue.number, deliveries)
    event_recorder.write()
    assert not event_recorder.end_iteration()
    fixture.broker.flush()
    records = [r for r in read_from(fixture.disk, 0) if r.lists_messages]
    sizes: list[tuple[int, int]] = [(r.type, len(r.sequences)) for r in records]
    assert sizes == [
        (RecordType.DELIVERED, MAX_COMPLETED),
        (RecordType.DELIVERED, 2),
        (RecordType.REDELIVERED, MAX_COMPLETED),
        (RecordType.REDELIVERED, 2),
    ]
    assert decode_deliveries(records[3].body)[2] == [5, 5]
