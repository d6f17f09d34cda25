"""Deliveries in the journal: when they are written, in which order, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

from sluicemq.broker import Broker, ManualClock
from sluicemq.broker.delivery import RECORDED, Delivery
from sluicemq.broker.event_recorder import EventRecorder
from sluicemq.journal import Cause, FileJournal, JournalOptions
from sluicemq.journal.format import (
    MAX_SETTLED,
    UNIT_END,
    RecordType,
    decode_redelivered,
)
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.message import Durability
from tests.broker.support import Rig

NEWS = {
    RecordType.DELIVERED,
    RecordType.REDELIVERED,
    RecordType.SETTLED,
    RecordType.MESSAGE,
    RecordType.ATTEMPTED,
}


class QuietJournal(MemoryJournal):
    """Writes what it is told to, and no more; counts that."""

    __slots__ = ("writes",)

    def __init__(self) -> None:
        super().__init__(history=True, deliveries=True)
        self.sync_delay = 100
        self.writes = 0

    def commit(self, sync: bool = True) -> None:
        if self.pending:
            self.writes += 1
        super().commit(sync)


class EventRecorderRig(Rig):
    def __init__(self) -> None:
        self.disk = QuietJournal()
        super().__init__(journal=self.disk)

    def records(self) -> list[tuple[RecordType, list[int]]]:
        """Deliveries and settlements since the last call, each with its messages."""
        self.wait(self.disk.sync_delay)
        found = [record for record in self.disk.read_from(0) if record.lists_messages]
        assert self.disk._history is not None
        self.disk._history.clear()
        return [(RecordType(record.type), record.sequences) for record in found]


def test_deliveries_are_no_reason_to_write_before_the_delay() -> None:
    rig = EventRecorderRig()
    queue = rig.queue()
    sent = rig.send(queue, "a", "b")
    reader = rig.read(queue)
    before = rig.disk.writes
    rig.broker.flush()
    assert reader.got() == ["a", "b"]
    rig.wait(99)
    assert rig.disk.writes == before
    rig.wait(1)
    assert rig.disk.writes == before + 1
    rig.wait(1000)
    assert rig.disk.writes == before + 1
    assert rig.records() == [(RecordType.DELIVERED, sent)]


def test_a_turn_that_writes_takes_deliveries_along_each_turns_in_a_record() -> None:
    rig = EventRecorderRig()
    queue = rig.queue()
    other = rig.queue("other")
    sent = rig.send(queue, "a", "b", "c")
    reader = rig.read(queue, 1, refill=False)
    rig.broker.flush()
    started = rig.clock.wall
    rig.clock.advance(10)
    rig.broker.grant(reader.consumer.window, 2)
    rig.broker.flush()
    before = rig.disk.writes
    rig.clock.advance(10)
    rig.send(other, "x")
    assert rig.disk.writes == before + 1
    found = [r for r in rig.disk.read_from(0) if r.type == RecordType.DELIVERED]
    assert [(r.time // 1000 - started, r.sequences) for r in found] == [
        (0, sent[:1]),
        (10, sent[1:]),
    ]
    assert {r.destination for r in found} == {r.subscription for r in found} == {queue.number}


def test_the_delivery_comes_before_what_settles_it() -> None:
    rig = EventRecorderRig()
    queue = rig.queue(max_attempts=2, dead_letter=True)
    reader = rig.read(queue)
    [acked] = rig.send(queue, "acked")
    reader.settle("acked")
    assert rig.records() == [(RecordType.DELIVERED, [acked]), (RecordType.SETTLED, [acked])]
    [dead] = rig.send(queue, "dead")
    reader.release("dead")
    reader.release("dead")
    assert rig.records() == [
        (RecordType.DELIVERED, [dead]),
        (RecordType.REDELIVERED, [dead]),
        (RecordType.SETTLED, [dead]),
    ]
    once = rig.queue("once", max_attempts=1)
    other = rig.read(once)
    [dropped] = rig.send(once, "dropped")
    other.release("dropped")
    assert rig.records() == [(RecordType.DELIVERED, [dropped]), (RecordType.SETTLED, [dropped])]
    [purged] = rig.send(queue, "purged")
    rig.broker.purge(queue, unacked=True)
    assert rig.records() == [(RecordType.DELIVERED, [purged]), (RecordType.SETTLED, [purged])]
    [committed] = rig.send(queue, "committed")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, committed)
    transactions.commit(transaction)
    assert rig.records() == [
        (RecordType.DELIVERED, [committed]),
        (RecordType.SETTLED, [committed]),
    ]
    [given_up] = rig.send(queue, "given up")
    rig.broker.dead_letter(queue.queue, given_up, "rejected")
    assert rig.records() == [
        (RecordType.DELIVERED, [given_up]),
        (RecordType.SETTLED, [given_up]),
    ]
    [removed] = rig.send(queue, "removed")
    rig.broker.remove(queue, force=True)
    assert rig.records() == [(RecordType.DELIVERED, [removed]), (RecordType.SETTLED, [removed])]


def test_no_unit_is_ended_by_a_delivery() -> None:
    """A dead letter and the end of what it was made of are one unit."""
    rig = EventRecorderRig()
    queue = rig.queue(max_attempts=1, dead_letter=True)
    reader = rig.read(queue)
    rig.send(queue, "dead")
    start = rig.disk.durable + 1
    reader.release("dead")
    rig.wait(100)
    records = [r for r in rig.disk.read_from(start) if r.type in NEWS]
    assert [r.type for r in records] == [
        RecordType.DELIVERED,
        RecordType.MESSAGE,
        RecordType.SETTLED,
    ]
    assert [bool(r.flags & UNIT_END) for r in records] == [True, False, True]
    assert records[2].kind == Cause.DEAD_LETTERED


def test_later_deliveries_are_told_with_their_number() -> None:
    rig = EventRecorderRig()
    queue = rig.queue()
    first, second = rig.send(queue, "a", "b")
    reader = rig.read(queue)
    rig.broker.flush()
    rig.broker.again(reader.consumer, [first], attempted=True)
    rig.broker.flush()
    reader.release("a", "b")
    rig.wait(100)
    found = [r for r in rig.disk.read_from(0) if r.type == RecordType.REDELIVERED]
    assert [decode_redelivered(r.body) for r in found] == [
        (queue.number, [first], [2]),
        (queue.number, [first, second], [3, 2]),
    ]


def test_only_what_the_journal_sees_the_end_of_is_told() -> None:
    rig = EventRecorderRig()
    queue, topic = rig.queue(), rig.topic()
    subscription = rig.broker.subscribe(topic, "s")
    rig.read(queue)
    rig.read(subscription)
    rig.send(queue, "kept nowhere", durability=Durability.NONE)
    rig.send(topic, "of no durable subscription")
    assert rig.records() == []
    durable = rig.broker.subscribe(topic, "d", durable=True)
    rig.read(durable)
    sent = rig.send(topic, "b")
    assert rig.records() == [(RecordType.DELIVERED, sent)]


def test_a_broker_that_stops_leaves_nothing_untold() -> None:
    rig = EventRecorderRig()
    queue = rig.queue()
    sent = rig.send(queue, "a")
    rig.read(queue)
    rig.broker.stopping = True
    rig.broker.flush()
    found = [r for r in rig.disk.read_from(0) if r.lists_messages]
    assert [r.sequences for r in found] == [sent]


def test_deliveries_may_be_switched_off(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(deliveries=False, gauge_interval=0))
    broker = Broker(journal, ManualClock())
    assert not broker.core.event_recorder.recording
    assert broker.deadline() == 1 << 62
    journal.close()


def test_a_long_list_becomes_several_records() -> None:
    rig = EventRecorderRig()
    queue = rig.queue()
    rig.send(queue, "a")
    event_recorder = EventRecorder(rig.disk, rig.clock)
    deliveries = [
        Delivery(queue.queue, sequence, None, 4, 1, RECORDED, 0, 0)
        for sequence in range(MAX_SETTLED + 2)
    ]
    for delivery in deliveries:
        delivery.attempts = 1
    event_recorder.deliver(queue.queue, deliveries)
    assert event_recorder.end_iteration()
    for delivery in deliveries:
        delivery.attempts = 5
    event_recorder.deliver(queue.queue, deliveries)
    event_recorder.write()
    assert not event_recorder.end_iteration()
    rig.broker.flush()
    records = [r for r in rig.disk.read_from(0) if r.lists_messages]
    sizes: list[tuple[int, int]] = [(r.type, len(r.sequences)) for r in records]
    assert sizes == [
        (RecordType.DELIVERED, MAX_SETTLED),
        (RecordType.DELIVERED, 2),
        (RecordType.REDELIVERED, MAX_SETTLED),
        (RecordType.REDELIVERED, 2),
    ]
    assert decode_redelivered(records[3].body)[2] == [5, 5]
