"""Sends and acknowledgements that happen together or not at all."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings, Destination, Transaction
from sluicemq.journal.format import UNIT_END, RecordType
from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import (
    DestinationNotFound,
    LimitExceeded,
    TransactionEnded,
    TransactionError,
    TransactionNotFound,
)
from sluicemq.model.message import Durability
from tests.broker.support import Rig, bodies


def send(rig: Rig, transaction: Transaction, queue: Destination, *texts: str) -> None:
    """Publish in a transaction."""
    for text in texts:
        rig.broker.transactions.publish(transaction, queue, rig.message(queue, text))


def test_nothing_is_there_before_the_commit_and_all_of_it_after() -> None:
    rig = Rig()
    orders, answers = rig.queue("orders"), rig.queue("answers")
    reader = rig.read(orders)
    [order] = rig.send(orders, "order")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    assert transactions.settle(transaction, reader.consumer, order)
    send(rig, transaction, answers, "1", "2")
    rig.broker.flush()
    assert (orders.unacked, orders.statistics.settled, bodies(answers)) == (1, 0, [])
    transactions.commit(transaction)
    rig.broker.flush()
    assert (orders.unacked, orders.statistics.settled, bodies(answers)) == (0, 1, ["1", "2"])


@pytest.mark.parametrize("durability", Durability)
def test_a_rollback_forgets_the_sends_and_gives_the_deliveries_back(durability: Durability) -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 2)
    first, second = rig.send(queue, "a", "b", durability=durability)
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    for sequence in (second, first):
        transactions.settle(transaction, reader.consumer, sequence)
    send(rig, transaction, queue, "c")
    transactions.rollback(transaction)
    rig.broker.flush()
    assert reader.got() == ["a", "b", "a", "b"]
    assert reader.attempts == {"a": 2, "b": 2}
    assert queue.waiting == 0


def test_only_the_holder_may_settle_and_only_once() -> None:
    rig = Rig()
    queue = rig.queue()
    reader, other = rig.read(queue), rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    assert not transactions.settle(transaction, other.consumer, sequence)
    assert transactions.settle(transaction, reader.consumer, sequence)
    assert not transactions.settle(transaction, reader.consumer, sequence)
    assert not rig.broker.settle(reader.consumer, sequence)


def test_settling_in_a_transaction_refills_the_window() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    sequence, _ = rig.send(queue, "a", "b")
    rig.broker.transactions.settle(rig.broker.transactions.begin(), reader.consumer, sequence)
    rig.broker.flush()
    assert reader.got() == ["a", "b"]


def test_an_acknowledgement_taken_back_is_not_part_of_the_commit() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    first, second = rig.send(queue, "a", "b")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    for sequence in (first, second):
        transactions.settle(transaction, reader.consumer, sequence)
    assert transactions.unsettle(transaction, reader.consumer, first)
    assert not transactions.unsettle(transaction, reader.consumer, first)
    transactions.commit(transaction)
    assert reader.held() == {"a": first}
    reader.settle("a")
    assert (queue.unacked, reader.consumer.window.credit) == (0, 100)


def test_an_acknowledgement_taken_back_from_a_consumer_that_has_gone_frees_the_message() -> None:
    rig = Rig()
    queue = rig.queue()
    gone = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, gone.consumer, sequence)
    gone.detach()
    transactions.unsettle(transaction, gone.consumer, sequence)
    assert rig.read(queue).got() == ["a"]


def test_what_a_transaction_settled_does_not_time_out() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.broker.transactions.settle(rig.broker.transactions.begin(), reader.consumer, sequence)
    rig.wait(5000)
    assert reader.got() == ["a"]


def test_limits_refuse_a_send_when_it_is_made_not_at_the_commit() -> None:
    rig = Rig()
    queue = rig.queue(max_messages=1)
    rig.send(queue, "a")
    transaction = rig.broker.transactions.begin()
    with pytest.raises(LimitExceeded):
        send(rig, transaction, queue, "b")
    rig.broker.transactions.commit(transaction)
    rig.broker.flush()
    assert bodies(queue) == ["a"]


def test_a_commit_that_fails_has_done_nothing() -> None:
    rig = Rig(BrokerSettings(auto_create_queues=False))
    queue, gone = rig.queue(), rig.queue("gone")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    send(rig, transaction, queue, "a")
    send(rig, transaction, gone, "b")
    rig.broker.remove(gone)
    with pytest.raises(DestinationNotFound):
        transactions.commit(transaction)
    rig.broker.flush()
    assert bodies(queue) == []
    transactions.rollback(transaction)
    assert not transactions.open


def test_a_prepared_transaction_may_only_be_ended() -> None:
    rig = Rig()
    queue = rig.queue()
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.prepare(transaction, b"xid")
    with pytest.raises(TransactionError) as wrong:
        send(rig, transaction, queue, "a")
    assert wrong.type is TransactionError
    transactions.commit(transaction)
    with pytest.raises(TransactionNotFound):
        transactions.find_prepared(b"xid")


def test_a_transaction_that_has_ended_says_so() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    committed, undone = transactions.begin(), transactions.begin()
    transactions.commit(committed)
    transactions.rollback(undone)
    for ended in (committed, undone):
        with pytest.raises(TransactionEnded):
            send(rig, ended, queue, "b")
        with pytest.raises(TransactionEnded):
            transactions.settle(ended, reader.consumer, sequence)
        with pytest.raises(TransactionEnded):
            transactions.unsettle(ended, reader.consumer, sequence)
        with pytest.raises(TransactionEnded):
            transactions.prepare(ended, b"xid")
        with pytest.raises(TransactionEnded):
            transactions.commit(ended)
        with pytest.raises(TransactionEnded):
            transactions.rollback(ended)
    assert not transactions.prepared
    assert list(reader.held()) == ["a"]


def test_a_prepared_transaction_is_committed_by_whoever_knows_its_xid() -> None:
    rig = Rig()
    orders, answers = rig.queue("orders"), rig.queue("answers")
    reader = rig.read(orders)
    [order] = rig.send(orders, "order")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, order)
    send(rig, transaction, answers, "answer")
    transactions.prepare(transaction, b"xid")
    reader.detach()
    rig.broker.flush()
    assert (orders.waiting, orders.unacked, answers.waiting) == (0, 1, 0)
    transactions.commit(transactions.find_prepared(b"xid"))
    rig.broker.flush()
    assert (orders.unacked, bodies(answers)) == (0, ["answer"])
    assert rig.journal.stats().live == 1  # the answer: neither the order nor the PREPARED record


def test_a_prepared_transaction_rolls_back_to_the_queue() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    send(rig, transaction, queue, "never")
    transactions.prepare(transaction, b"xid")
    reader.detach()
    transactions.rollback(transactions.find_prepared(b"xid"))
    rig.broker.flush()
    assert bodies(queue) == ["a"]
    assert rig.journal.stats().live == 1


def test_an_xid_is_prepared_once_and_may_be_used_again_afterwards() -> None:
    rig = Rig()
    transactions = rig.broker.transactions
    first, second = transactions.begin(), transactions.begin()
    transactions.prepare(first, b"xid")
    with pytest.raises(TransactionError) as taken:
        transactions.prepare(second, b"xid")
    assert taken.type is TransactionError
    assert transactions.find_prepared(b"xid") is first
    transactions.rollback(first)
    transactions.prepare(second, b"xid")
    assert transactions.find_prepared(b"xid") is second


@pytest.mark.parametrize("two_phases", [False, True], ids=["one phase", "two phases"])
def test_a_commit_is_one_journal_unit(two_phases: bool) -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    orders, others = rig.queue("orders"), rig.queue("others")
    full = rig.queue("full", max_messages=1, overflow=Overflow.DROP_OLDEST)
    fresh = rig.broker.queue("fresh")  # not yet known to the journal
    readers = [rig.read(orders), rig.read(others)]
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    for queue, reader in zip((orders, others), readers, strict=True):
        [sequence] = rig.send(queue, "order")
        transactions.settle(transaction, reader.consumer, sequence)
    rig.send(full, "old", durability=Durability.LAZY)
    # what a lazy message displaces must not be recorded inside the unit
    message = rig.message(full, "new", durability=Durability.LAZY)
    transactions.publish(transaction, full, message)
    send(rig, transaction, fresh, "answer")
    if two_phases:
        transactions.prepare(transaction, b"xid")
        rig.broker.flush()
    start = journal.durable + 1
    transactions.commit(transaction)
    rig.broker.flush()
    records = list(journal.read_from(start))
    first = next(i for i, record in enumerate(records) if record.type == RecordType.MESSAGE)
    last = next(record.sequence for record in records[first:] if record.flags & UNIT_END)
    unit = [record for record in records[first:] if record.sequence <= last]
    ends = [RecordType.RESOLVED] if two_phases else []
    assert [record.type for record in unit] == [
        RecordType.MESSAGE,
        RecordType.MESSAGE,
        RecordType.SETTLED,
        RecordType.SETTLED,
        *ends,
    ]
    assert [bool(record.flags & UNIT_END) for record in unit[:-1]] == [False] * (len(unit) - 1)
    assert unit[-1].flags & UNIT_END
    assert bodies(full) == ["new"]


def test_a_transaction_without_anything_durable_leaves_no_record() -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    queue = rig.queue()
    rig.broker.flush()
    start = journal.durable + 1
    transaction = rig.broker.transactions.begin()
    message = rig.message(queue, "a", durability=Durability.NONE)
    rig.broker.transactions.publish(transaction, queue, message)
    done: list[bool] = []
    rig.broker.transactions.commit(transaction, lambda: done.append(True))
    assert done
    rig.broker.flush()
    assert list(journal.read_from(start)) == []
    assert bodies(queue) == ["a"]


def test_a_redirected_send_becomes_one_dead_letter_and_not_before_the_commit() -> None:
    rig = Rig()
    queue = rig.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    rig.send(queue, "a")
    transaction = rig.broker.transactions.begin()
    send(rig, transaction, queue, "b")
    rig.broker.flush()
    assert rig.broker.queue("q.dlq").waiting == 0
    rig.broker.transactions.commit(transaction)
    rig.broker.flush()
    assert bodies(queue) == ["a"]
    assert [message.body for message in rig.dead()] == [b"b"]


def test_an_acknowledgement_taken_back_times_out_like_a_new_delivery() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    rig.wait(5000)
    transactions.unsettle(transaction, reader.consumer, sequence)
    rig.wait(999)
    assert reader.got() == ["a"]
    rig.wait(1)
    assert reader.got() == ["a"]


def test_a_rollback_after_the_queue_was_removed_leaves_nothing() -> None:
    rig = Rig()
    queue = rig.queue(dead_letter=True, max_attempts=1)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    rig.broker.remove(queue, force=True)
    transactions.rollback(transaction)
    rig.broker.flush()
    assert rig.broker.destinations == {}
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_a_rollback_is_one_record_for_each_subscription() -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    queues = [rig.queue("first"), rig.queue("second")]
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    for queue in queues:
        reader = rig.read(queue, 3, refill=False)
        for sequence in rig.send(queue, "a", "b", "c"):
            transactions.settle(transaction, reader.consumer, sequence)
    start = journal.durable + 1
    transactions.rollback(transaction)
    rig.broker.flush()
    assert [record.type for record in journal.read_from(start)] == [RecordType.ATTEMPTED] * 2
    assert [bodies(queue) for queue in queues] == [["a", "b", "c"]] * 2


@pytest.mark.parametrize("committed", [True, False])
def test_one_that_has_ended_keeps_nothing_of_its_messages(committed: bool) -> None:
    """Whoever remembers how it ended must not hold what went through it in memory."""
    rig = Rig()
    queue = rig.queue()
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    send(rig, transaction, queue, "x" * 1000)
    transactions.prepare(transaction, b"xid")
    assert len(transaction.payload) > 1000
    (transactions.commit if committed else transactions.rollback)(transaction)
    assert (transaction.payload, len(transaction.sends), len(transaction.acks)) == (b"", 0, 0)


# --- who is told --------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_the_end_is_told_once_and_when_it_has_happened(prepared: bool, committed: bool) -> None:
    rig = Rig()
    queue = rig.queue()
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.publish(transaction, queue, rig.message(queue, "a"))
    told: list[tuple[bool, bool]] = []

    def tell(how: bool) -> None:
        told.append((how, transaction in transactions.open.values()))

    transaction.told = tell
    if prepared:
        transactions.prepare(transaction, b"xid")
    assert not told
    (transactions.commit if committed else transactions.rollback)(transaction)
    assert told == [(committed, False)]
    with pytest.raises(TransactionEnded):
        transactions.rollback(transaction)
    assert len(told) == 1


def test_a_transaction_knows_since_when_it_is() -> None:
    rig = Rig()
    rig.clock.advance(5)
    transaction = rig.broker.transactions.begin()
    assert transaction.created == rig.clock.wall
