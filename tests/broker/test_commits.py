"""Large transactions: their limits, and commits that are written and applied in slices."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sluicemq.broker import Broker, EngineSettings, ManualClock, Transaction, TransactionState
from sluicemq.journal.format import RecordType
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import LimitExceeded, TransactionError
from sluicemq.model.message import Durability, Message
from tests.broker.disk_broker import DiskBroker
from tests.support.broker import BrokerFixture
from tests.support.journal import RecordingJournal, read_from
from tests.support.scan_time import ScanTime

QUEUE = Address(Kind.QUEUE, "q")
INBOX = Address(Kind.QUEUE, "inbox")
MESSAGES = 12
SLICE = 2


def reduce_slice_size(broker: Broker) -> None:
    """Let transactions of more than `SLICE` messages be committed in slices."""
    commits = broker.transactions
    commits.slice_deliveries = commits.part_deliveries = SLICE


def begin_with_messages(broker: Broker, messages: int = MESSAGES) -> Transaction:
    """Begin a transaction, and publish messages to QUEUE in it."""
    transaction = broker.transactions.begin()
    for number in range(messages):
        message = Message(QUEUE, b"%d" % number, durability=Durability.SYNC)
        broker.transactions.publish(transaction, broker.destinations.resolve(QUEUE), message)
    return transaction


def ready_bodies(broker: Broker, address: Address = QUEUE) -> list[bytes]:
    """Return the bodies of the ready messages, in order."""
    destination = broker.destinations.find(address)
    if destination is None:
        return []
    return [broker.core.read(delivery).body for delivery in destination.queue.cursor()]


def numbered_bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(max_transaction_messages=3),
        EngineSettings(max_transaction_bytes=3000),
        EngineSettings(memory_limit=3000),
    ],
    ids=["messages", "bytes", "memory"],
)
@pytest.mark.parametrize("committed", [True, False])
def test_transaction_at_its_limit_can_still_be_ended(
    settings: EngineSettings, committed: bool
) -> None:
    fixture = BrokerFixture(settings)
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for _ in range(3):
        transactions.publish(transaction, queue, fixture.message(queue, "x" * 1000))
    with pytest.raises(LimitExceeded, match="limit"):
        transactions.publish(transaction, queue, fixture.message(queue, "x"))
    assert fixture.broker.core.memory == 3000
    (transactions.commit if committed else transactions.rollback)(transaction)
    fixture.broker.flush()
    assert queue.queue.waiting == (3 if committed else 0)
    assert fixture.broker.core.memory == (3000 if committed else 0)


def test_open_transactions_together_count_against_memory_limit() -> None:
    fixture = BrokerFixture(EngineSettings(memory_limit=3000))
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    first, second = transactions.begin(), transactions.begin()
    transactions.publish(first, queue, fixture.message(queue, "x" * 2000))
    with pytest.raises(LimitExceeded, match="memory_limit"):
        transactions.publish(second, queue, fixture.message(queue, "x" * 2000))
    transactions.rollback(first)
    transactions.publish(second, queue, fixture.message(queue, "x" * 2000))


def test_headers_count_against_limit_of_transaction() -> None:
    fixture = BrokerFixture(EngineSettings(max_transaction_bytes=3000))
    queue = fixture.queue()
    transaction = fixture.broker.transactions.begin()
    message = fixture.message(queue, "", native=bytes(4000))
    with pytest.raises(LimitExceeded, match="3000"):
        fixture.broker.transactions.publish(transaction, queue, message)


# --- slices ---------------------------------------------------------------------------------------


def test_large_commit_applies_one_slice_per_flush() -> None:
    fixture = BrokerFixture()
    reduce_slice_size(fixture.broker)
    fixture.queue()
    transaction = begin_with_messages(fixture.broker)
    done: list[bool] = []
    fixture.broker.transactions.commit(transaction, lambda: done.append(True))
    visible_counts = [0]
    while not done:
        fixture.broker.flush()
        visible_counts.append(len(ready_bodies(fixture.broker)))
    steps = [after - before for before, after in pairwise(visible_counts)]
    assert max(steps) == SLICE
    assert ready_bodies(fixture.broker) == numbered_bodies(MESSAGES)
    assert transaction.state is TransactionState.ENDED
    assert fixture.broker.core.memory == sum(map(len, numbered_bodies(MESSAGES)))
    assert fixture.journal.stats().live == MESSAGES


def test_slice_ends_with_the_time_for_scans() -> None:
    broker = Broker(MemoryJournal(), ManualClock(), start_deadline=lambda: has_expired.pop)
    reduce_slice_size(broker)
    broker.transactions.slice_deliveries = MESSAGES - 1
    has_expired = [False]
    broker.transactions.commit(begin_with_messages(broker))
    visible_counts = []
    for _ in range(30):
        has_expired[:] = [True, False]
        broker.flush()
        visible_counts.append(len(ready_bodies(broker)))
    assert set(range(0, MESSAGES + 1, SLICE)) == set(visible_counts)


def test_large_commit_ends_although_other_work_uses_up_the_time_for_scans() -> None:
    broker = Broker(MemoryJournal(), ManualClock(), start_deadline=ScanTime(1).start)
    reduce_slice_size(broker)
    transaction = begin_with_messages(broker)
    broker.transactions.commit(transaction)
    for _ in range(10 * MESSAGES // SLICE):
        while not broker.scans.is_time_up():
            pass
        broker.flush()
    assert transaction.state is TransactionState.ENDED
    assert ready_bodies(broker) == numbered_bodies(MESSAGES)


def test_others_publish_while_large_transaction_is_committed() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    reduce_slice_size(fixture.broker)
    other_queue = fixture.queue("other")
    fixture.queue()
    transactions = fixture.broker.transactions
    done: list[bool] = []
    transactions.commit(begin_with_messages(fixture.broker), lambda: done.append(True))
    while not done:
        [sequence] = fixture.send(other_queue, "between", durability=Durability.SYNC)
        assert sequence <= journal.durable
    assert other_queue.queue.waiting >= 2 * MESSAGES / SLICE
    assert ready_bodies(fixture.broker) == numbered_bodies(MESSAGES)


def test_commit_in_progress_cannot_be_undone_and_may_be_repeated() -> None:
    fixture = BrokerFixture()
    reduce_slice_size(fixture.broker)
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    transaction = begin_with_messages(fixture.broker)
    done: list[int] = []
    transactions.commit(transaction, lambda: done.append(1))
    fixture.broker.flush()
    with pytest.raises(TransactionError, match="committing"):
        transactions.rollback(transaction)
    with pytest.raises(TransactionError, match="committing"):
        transactions.publish(transaction, queue, fixture.message(queue, "late"))
    transactions.commit(transaction, lambda: done.append(2))
    while not done:
        fixture.broker.flush()
    assert done == [1, 2]
    assert ready_bodies(fixture.broker) == numbered_bodies(MESSAGES)


def test_destination_deleted_during_commit_drops_its_messages() -> None:
    fixture = BrokerFixture()
    reduce_slice_size(fixture.broker)
    queue, kept_queue = fixture.queue(), fixture.queue("kept")
    transactions = fixture.broker.transactions
    transaction = begin_with_messages(fixture.broker)
    transactions.publish(
        transaction, kept_queue, fixture.message(kept_queue, "kept", durability=Durability.SYNC)
    )
    done: list[bool] = []
    transactions.commit(transaction, lambda: done.append(True))
    while not queue.queue.waiting:
        fixture.broker.flush()
    fixture.broker.remove(queue)
    while not done:
        fixture.broker.flush()
    assert fixture.broker.destinations.find(QUEUE) is None
    assert ready_bodies(fixture.broker, kept_queue.address) == [b"kept"]
    assert fixture.journal.stats().live == 1


def test_unused_destination_stays_during_commit() -> None:
    fixture = BrokerFixture()
    reduce_slice_size(fixture.broker)
    transaction = begin_with_messages(fixture.broker)
    [destination] = transaction.destinations
    fixture.broker.transactions.commit(transaction)
    fixture.clock.advance(fixture.broker.settings.destination_idle_timeout + 1)
    fixture.broker.delete_if_idle(destination)
    assert not destination.removed
    while transaction.state is not TransactionState.ENDED:
        fixture.broker.flush()
    assert not destination.committing


# --- crashes --------------------------------------------------------------------------------------


def run_iterations(disk: DiskBroker, flushes: int) -> None:
    """Run event loop iterations, and sync the journal after each."""
    for _ in range(flushes):
        disk.broker.flush()
        disk.journal.sync()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("flushes", range(0, 3 * MESSAGES // SLICE, 2))
def test_crash_keeps_commit_completely_or_not_at_all(
    disk: DiskBroker, flushes: int, snapshot: bool
) -> None:
    reduce_slice_size(disk.broker)
    inbox = disk.broker.destinations.declare(INBOX, DestinationSettings())
    disk.queue()
    disk.send(inbox, "request")
    reader = disk.read(inbox.queue)
    disk.sync()
    transaction = begin_with_messages(disk.broker)
    [sequence] = reader.consumer.unacked
    disk.broker.transactions.acknowledge(transaction, reader.consumer, sequence)
    done: list[bool] = []
    disk.broker.transactions.commit(transaction, lambda: done.append(True))
    run_iterations(disk, flushes)
    if snapshot:
        disk.journal.seal()
        disk.journal.sync()
    is_committed = transaction.record or done
    disk.crash()
    remaining = (ready_bodies(disk.broker), ready_bodies(disk.broker, INBOX))
    assert remaining == ((numbered_bodies(MESSAGES), []) if is_committed else ([], [b"request"]))
    assert disk.journal.stats().live == (MESSAGES if is_committed else 1)
    assert not disk.broker.transactions.prepared
    disk.crash()
    assert (ready_bodies(disk.broker), ready_bodies(disk.broker, INBOX)) == remaining


@pytest.mark.parametrize("flushes", [1, 3, 20])
@pytest.mark.parametrize("committed", [True, False])
def test_large_prepared_transaction_survives_crash(
    disk: DiskBroker, committed: bool, flushes: int
) -> None:
    reduce_slice_size(disk.broker)
    disk.queue()
    transaction = begin_with_messages(disk.broker)
    done: list[bool] = []
    disk.broker.transactions.prepare(transaction, b"xid", lambda: done.append(True))
    with pytest.raises(TransactionError, match="prepar"):
        disk.broker.transactions.commit(transaction)
    run_iterations(disk, flushes)
    if flushes < 20:
        assert not done
        disk.crash()
        assert not disk.broker.transactions.prepared
        assert disk.journal.stats().live == 0
        return
    assert done
    disk.seal()
    disk.crash()
    assert ready_bodies(disk.broker) == []
    reduce_slice_size(disk.broker)
    prepared = disk.broker.transactions.prepared[b"xid"]
    assert len(prepared.sends) == MESSAGES
    if committed:
        disk.broker.transactions.commit(prepared)
        run_iterations(disk, 3)
        assert 0 < len(ready_bodies(disk.broker)) < MESSAGES
    else:
        disk.broker.transactions.rollback(prepared)
        run_iterations(disk, 1)
    disk.crash()
    assert ready_bodies(disk.broker) == (numbered_bodies(MESSAGES) if committed else [])
    assert disk.journal.stats().live == (MESSAGES if committed else 0)
    assert not disk.broker.transactions.prepared


def test_small_commit_is_one_record() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    fixture.queue()
    start = journal.durable + 1
    fixture.broker.transactions.commit(begin_with_messages(fixture.broker))
    fixture.broker.flush()
    assert RecordType.TRANSACTION_PREPARED not in {
        record.type for record in read_from(journal, start)
    }


def test_commit_is_answered_when_it_is_durable(disk: DiskBroker) -> None:
    reduce_slice_size(disk.broker)
    disk.queue()
    transaction = begin_with_messages(disk.broker)
    answers: list[int] = []
    broker = disk.broker

    def answer() -> None:
        assert not broker.publisher.staged
        answers.append(len(ready_bodies(broker)))

    broker.transactions.commit(transaction, answer)
    run_iterations(disk, 3 * MESSAGES)
    assert answers == [MESSAGES]
