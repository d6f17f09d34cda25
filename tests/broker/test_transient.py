"""Messages with durability none that the journal records for the pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import Broker, ManualClock, Window
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import Cause, FileJournal, JournalOptions, RecordType
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.message import Durability, Message
from tests.broker.support import Reader

QUEUE = Address(Kind.QUEUE, "q")


class Recording:
    """A broker whose journal records such messages, or not."""

    def __init__(self, directory: Path, record_transient: bool = True) -> None:
        options = JournalOptions(record_transient=record_transient)
        self.clock = ManualClock()
        self.journal = FileJournal.open(directory, options)
        self.broker = Broker(self.journal, self.clock)
        self.journal.snapshot_source = lambda: snapshot(self.broker)
        self.waiting = recover(self.broker, self.journal.recovery)
        self.queue = self.broker.resolve(QUEUE)

    def message(self, body: bytes, durability: Durability = Durability.NONE) -> Message:
        return Message(QUEUE, body, timestamp=self.clock.wall, durability=durability)

    def send(self, body: bytes, durability: Durability = Durability.NONE) -> int:
        message = self.message(body, durability)
        assert self.broker.publish(self.queue, message)
        self.settle()
        return message.sequence

    def settle(self) -> None:
        self.broker.flush()
        self.journal.sync()
        self.broker.flush()

    def about(self, sequence: int) -> list[tuple[int, int]]:
        """Type of each record of a message, and the cause where it is SETTLED."""
        return [
            (record.type, record.kind if record.type == RecordType.SETTLED else 0)
            for record in self.journal.read_from(1)
            if record.sequence == sequence
            or (record.lists_messages and sequence in record.sequences)
        ]


def test_a_transient_message_is_recorded_with_what_becomes_of_it(tmp_path: Path) -> None:
    rig = Recording(tmp_path)
    sequence = rig.send(b"a")
    reader = Reader(rig.broker)
    reader.consumer = rig.broker.attach(rig.queue.queue, reader, Window(10, True))
    rig.settle()
    assert reader.got() == ["a"]
    reader.settle()
    rig.settle()
    assert rig.about(sequence) == [
        (RecordType.MESSAGE, 0),
        (RecordType.DELIVERED, 0),
        (RecordType.SETTLED, Cause.ACKNOWLEDGED),
    ]
    rig.journal.close()


@pytest.mark.parametrize("seal", [False, True], ids=["replayed", "snapshot"])
def test_a_restart_drops_transient_messages_and_records_that(tmp_path: Path, seal: bool) -> None:
    rig = Recording(tmp_path)
    sequence = rig.send(b"transient")
    rig.send(b"lazy", Durability.LAZY)
    if seal:
        rig.journal.seal()
        rig.journal.sync()
    rig.journal.close()
    rig = Recording(tmp_path)
    rig.settle()
    assert rig.waiting == 1
    assert [rig.journal.fetch(d.sequence).body for d in rig.queue.queue.browse()] == [b"lazy"]
    assert rig.about(sequence)[-1] == (RecordType.SETTLED, Cause.DISCARDED)
    rig.journal.close()
    # also when they are not recorded any more
    assert Recording(tmp_path, record_transient=False).waiting == 1


def test_without_the_setting_nothing_is_recorded(tmp_path: Path) -> None:
    rig = Recording(tmp_path, record_transient=False)
    assert rig.about(rig.send(b"a")) == []
    rig.journal.close()


def test_messages_to_temporary_destinations_are_not_recorded(tmp_path: Path) -> None:
    rig = Recording(tmp_path)
    address = Address(Kind.QUEUE, "reply")
    rig.queue = rig.broker.create(address, DestinationSettings(), object(), False)
    assert rig.about(rig.send(b"a")) == []
    rig.journal.close()


def test_transactions_record_transient_messages_too(tmp_path: Path) -> None:
    rig = Recording(tmp_path)
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    messages = [rig.message(b"a"), rig.message(b"b", Durability.SYNC), rig.message(b"c")]
    for message in messages:
        transactions.publish(transaction, rig.queue, message)
    transactions.commit(transaction)
    rig.settle()
    for message in messages:
        assert rig.about(message.sequence) == [(RecordType.MESSAGE, 0)]
    assert rig.queue.waiting == 3
    rig.journal.close()


def test_a_recorded_message_is_not_persistent_for_selectors(tmp_path: Path) -> None:
    rig = Recording(tmp_path)
    sequence = rig.send(b"a")
    selector = rig.broker.compile_selector("JMSDeliveryMode = 'NON_PERSISTENT'")
    assert selector(rig.journal.fetch(sequence))
    rig.journal.close()
