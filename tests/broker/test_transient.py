"""Messages with durability none that the journal records for the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import Broker, ManualClock, Window
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import Cause, FileJournal, JournalOptions, RecordType
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from tests.support.broker import Reader
from tests.support.journal import read_from

QUEUE = Address(Kind.QUEUE, "q")


class TransientFixture:
    """A broker whose journal may record transient messages."""

    def __init__(self, directory: Path, record_transient: bool = True) -> None:
        options = JournalOptions(record_transient=record_transient)
        self.clock = ManualClock()
        self.journal = FileJournal.open(directory, options)
        self.broker = Broker(self.journal, self.clock)
        self.journal.set_snapshot_source(lambda: snapshot(self.broker))
        self.waiting = recover(self.broker, self.journal.recovery)
        self.queue = self.broker.destinations.resolve(QUEUE)

    def message(self, body: bytes, durability: Durability = Durability.NONE) -> Message:
        return Message(QUEUE, body, timestamp=self.clock.wall, durability=durability)

    def send(self, body: bytes, durability: Durability = Durability.NONE) -> int:
        message = self.message(body, durability)
        assert self.broker.publish(self.queue, message)
        self.acknowledge()
        return message.sequence

    def acknowledge(self) -> None:
        self.broker.flush()
        self.journal.sync()
        self.broker.flush()

    def about(self, sequence: int) -> list[tuple[int, int]]:
        """Return the type of each record of a message, and the cause of its end."""
        return [
            (record.type, record.kind if record.type == RecordType.COMPLETED else 0)
            for record in read_from(self.journal, 1)
            if record.sequence == sequence
            or (record.lists_messages and sequence in record.sequences)
        ]


def test_transient_message_and_its_end_are_recorded(tmp_path: Path) -> None:
    fixture = TransientFixture(tmp_path)
    sequence = fixture.send(b"a")
    reader = Reader(fixture.broker)
    reader.consumer = fixture.broker.attach(fixture.queue.queue, reader, Window(10, True))
    fixture.acknowledge()
    assert reader.got() == ["a"]
    reader.acknowledge()
    fixture.acknowledge()
    assert fixture.about(sequence) == [
        (RecordType.MESSAGE, 0),
        (RecordType.DELIVERED, 0),
        (RecordType.COMPLETED, Cause.ACKNOWLEDGED),
    ]
    fixture.journal.close()


@pytest.mark.parametrize("seal", [False, True], ids=["replayed", "snapshot"])
def test_restart_drops_transient_messages_and_records_that(tmp_path: Path, seal: bool) -> None:
    fixture = TransientFixture(tmp_path)
    sequence = fixture.send(b"transient")
    fixture.send(b"lazy", Durability.LAZY)
    if seal:
        fixture.journal.seal()
        fixture.journal.sync()
    fixture.journal.close()
    fixture = TransientFixture(tmp_path)
    fixture.acknowledge()
    assert fixture.waiting == 1
    assert [fixture.journal.fetch(d.sequence).body for d in fixture.queue.queue.browse()] == [
        b"lazy"
    ]
    assert fixture.about(sequence)[-1] == (RecordType.COMPLETED, Cause.DISCARDED)
    fixture.journal.close()
    # also if they are no longer recorded
    assert TransientFixture(tmp_path, record_transient=False).waiting == 1


def test_without_setting_nothing_is_recorded(tmp_path: Path) -> None:
    fixture = TransientFixture(tmp_path, record_transient=False)
    assert fixture.about(fixture.send(b"a")) == []
    fixture.journal.close()


def test_messages_to_temporary_destinations_are_not_recorded(tmp_path: Path) -> None:
    fixture = TransientFixture(tmp_path)
    address = Address(Kind.QUEUE, "reply")
    fixture.queue = fixture.broker.destinations.create(
        address, DestinationSettings(), owner=object(), automatic=False
    )
    assert fixture.about(fixture.send(b"a")) == []
    fixture.journal.close()


def test_transactions_record_transient_messages_too(tmp_path: Path) -> None:
    fixture = TransientFixture(tmp_path)
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    messages = [
        fixture.message(b"a"),
        fixture.message(b"b", Durability.SYNC),
        fixture.message(b"c"),
    ]
    for message in messages:
        transactions.publish(transaction, fixture.queue, message)
    transactions.commit(transaction)
    fixture.acknowledge()
    for message in messages:
        assert fixture.about(message.sequence) == [(RecordType.MESSAGE, 0)]
    assert fixture.queue.waiting == 3
    fixture.journal.close()


def test_recorded_message_is_not_persistent_for_selectors(tmp_path: Path) -> None:
    fixture = TransientFixture(tmp_path)
    sequence = fixture.send(b"a")
    selector = fixture.broker.compile_selector("JMSDeliveryMode = 'NON_PERSISTENT'")
    assert selector(fixture.journal.fetch(sequence))
    fixture.journal.close()
