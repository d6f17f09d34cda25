"""Sends and acknowledgements that happen together or not at all."""

from __future__ import annotations

import pytest

from sluicemq.broker import Destination, EngineSettings, Transaction, snapshot
from sluicemq.journal.format import UNIT_END, RecordType
from sluicemq.model.destination import Overflow
from sluicemq.model.errors import (
    DestinationNotFound,
    LimitExceeded,
    TransactionEnded,
    TransactionError,
)
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, bodies
from tests.support.journal import RecordingJournal, read_from


def send(fixture: BrokerFixture, transaction: Transaction, queue: Destination, *texts: str) -> None:
    """Publish in a transaction."""
    for text in texts:
        fixture.broker.transactions.publish(transaction, queue, fixture.message(queue, text))


def test_all_changes_become_visible_at_commit() -> None:
    fixture = BrokerFixture()
    orders, answers = fixture.queue("orders"), fixture.queue("answers")
    reader = fixture.read(orders)
    [order] = fixture.send(orders, "order")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    assert transactions.acknowledge(transaction, reader.consumer, order)
    send(fixture, transaction, answers, "1", "2")
    fixture.broker.flush()
    assert (orders.unacked, orders.statistics.acknowledged, bodies(answers)) == (1, 0, [])
    transactions.commit(transaction)
    fixture.broker.flush()
    assert (orders.unacked, orders.statistics.acknowledged, bodies(answers)) == (0, 1, ["1", "2"])


@pytest.mark.parametrize("durability", Durability)
def test_rollback_drops_sends_and_requeues_deliveries(durability: Durability) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 2)
    first, second = fixture.send(queue, "a", "b", durability=durability)
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for sequence in (second, first):
        transactions.acknowledge(transaction, reader.consumer, sequence)
    send(fixture, transaction, queue, "c")
    transactions.rollback(transaction)
    fixture.broker.flush()
    assert reader.got() == ["a", "b", "a", "b"]
    assert reader.attempts == {"a": 2, "b": 2}
    assert queue.waiting == 0


def test_only_holder_may_acknowledge_and_only_once() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader, other_reader = fixture.read(queue), fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    assert not transactions.acknowledge(transaction, other_reader.consumer, sequence)
    assert transactions.acknowledge(transaction, reader.consumer, sequence)
    assert not transactions.acknowledge(transaction, reader.consumer, sequence)
    assert not fixture.broker.acknowledge(reader.consumer, sequence)


def test_acknowledging_in_transaction_refills_window() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    sequence, _ = fixture.send(queue, "a", "b")
    fixture.broker.transactions.acknowledge(
        fixture.broker.transactions.begin(), reader.consumer, sequence
    )
    fixture.broker.flush()
    assert reader.got() == ["a", "b"]


def test_withdrawn_acknowledgement_is_not_part_of_commit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    first, second = fixture.send(queue, "a", "b")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for sequence in (first, second):
        transactions.acknowledge(transaction, reader.consumer, sequence)
    delivery = next(iter(transaction.acks))
    assert transactions.withdraw_ack(transaction, delivery)
    assert not transactions.withdraw_ack(transaction, delivery)
    transactions.commit(transaction)
    assert reader.unacked_by_body() == {"a": first}
    reader.acknowledge("a")
    assert (queue.unacked, reader.consumer.window.credit) == (0, 100)


def test_withdrawn_acknowledgement_of_detached_consumer_requeues_message() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    reader.detach()
    transactions.withdraw_ack(transaction, *transaction.acks)
    assert fixture.read(queue).got() == ["a"]


def test_messages_acked_in_transaction_do_not_time_out() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.transactions.acknowledge(
        fixture.broker.transactions.begin(), reader.consumer, sequence
    )
    fixture.wait(5000)
    assert reader.got() == ["a"]


def test_limits_refuse_send_before_commit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1)
    fixture.send(queue, "a")
    transaction = fixture.broker.transactions.begin()
    with pytest.raises(LimitExceeded):
        send(fixture, transaction, queue, "b")
    fixture.broker.transactions.commit(transaction)
    fixture.broker.flush()
    assert bodies(queue) == ["a"]


def test_failed_commit_has_no_effect() -> None:
    fixture = BrokerFixture(EngineSettings(auto_create_queues=False))
    queue, deleted_queue = fixture.queue(), fixture.queue("gone")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    send(fixture, transaction, queue, "a")
    send(fixture, transaction, deleted_queue, "b")
    fixture.broker.remove(deleted_queue)
    with pytest.raises(DestinationNotFound):
        transactions.commit(transaction)
    fixture.broker.flush()
    assert bodies(queue) == []
    transactions.rollback(transaction)
    assert not transactions.open


def test_prepared_transaction_may_only_be_ended() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.prepare(transaction, b"xid")
    with pytest.raises(TransactionError) as error:
        send(fixture, transaction, queue, "a")
    assert error.type is TransactionError
    transactions.commit(transaction)
    assert b"xid" not in transactions.prepared


def test_ended_transaction_raises() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    delivery = reader.consumer.unacked[sequence]
    transactions = fixture.broker.transactions
    committed, rolled_back = transactions.begin(), transactions.begin()
    transactions.commit(committed)
    transactions.rollback(rolled_back)
    for transaction in (committed, rolled_back):
        with pytest.raises(TransactionEnded):
            send(fixture, transaction, queue, "b")
        with pytest.raises(TransactionEnded):
            transactions.acknowledge(transaction, reader.consumer, sequence)
        with pytest.raises(TransactionEnded):
            transactions.withdraw_ack(transaction, delivery)
        with pytest.raises(TransactionEnded):
            transactions.prepare(transaction, b"xid")
        with pytest.raises(TransactionEnded):
            transactions.commit(transaction)
        with pytest.raises(TransactionEnded):
            transactions.rollback(transaction)
    assert not transactions.prepared
    assert list(reader.unacked_by_body()) == ["a"]


def test_prepared_transaction_is_committed_by_its_xid() -> None:
    fixture = BrokerFixture()
    orders, answers = fixture.queue("orders"), fixture.queue("answers")
    reader = fixture.read(orders)
    [order] = fixture.send(orders, "order")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, order)
    send(fixture, transaction, answers, "answer")
    transactions.prepare(transaction, b"xid")
    reader.detach()
    fixture.broker.flush()
    assert (orders.waiting, orders.unacked, answers.waiting) == (0, 1, 0)
    transactions.commit(transactions.prepared[b"xid"])
    fixture.broker.flush()
    assert (orders.unacked, bodies(answers)) == (0, ["answer"])
    # only the reply remains: neither the order nor the PREPARED record
    assert fixture.journal.stats().live == 1


def test_prepared_transaction_rolls_back_to_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    send(fixture, transaction, queue, "never")
    transactions.prepare(transaction, b"xid")
    reader.detach()
    transactions.rollback(transactions.prepared[b"xid"])
    fixture.broker.flush()
    assert bodies(queue) == ["a"]
    assert fixture.journal.stats().live == 1


def test_xid_is_prepared_once_and_may_be_used_again_afterwards() -> None:
    fixture = BrokerFixture()
    transactions = fixture.broker.transactions
    first, second = transactions.begin(), transactions.begin()
    transactions.prepare(first, b"xid")
    with pytest.raises(TransactionError) as error:
        transactions.prepare(second, b"xid")
    assert error.type is TransactionError
    assert transactions.prepared[b"xid"] is first
    transactions.rollback(first)
    transactions.prepare(second, b"xid")
    assert transactions.prepared[b"xid"] is second


@pytest.mark.parametrize("two_phases", [False, True], ids=["one phase", "two phases"])
def test_commit_is_one_journal_unit(two_phases: bool) -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    orders, other_queue = fixture.queue("orders"), fixture.queue("others")
    full = fixture.queue("full", max_messages=1, overflow=Overflow.DROP_OLDEST)
    new_queue = fixture.broker.destinations.queue("fresh")  # not yet known to the journal
    readers = [fixture.read(orders), fixture.read(other_queue)]
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for queue, reader in zip((orders, other_queue), readers, strict=True):
        [sequence] = fixture.send(queue, "order")
        transactions.acknowledge(transaction, reader.consumer, sequence)
    fixture.send(full, "old", durability=Durability.LAZY)
    # messages displaced by a lazy message must not be recorded inside the unit
    message = fixture.message(full, "new", durability=Durability.LAZY)
    transactions.publish(transaction, full, message)
    send(fixture, transaction, new_queue, "answer")
    if two_phases:
        transactions.prepare(transaction, b"xid")
        fixture.broker.flush()
    start = journal.durable + 1
    transactions.commit(transaction)
    fixture.broker.flush()
    records = list(read_from(journal, start))
    first = next(i for i, record in enumerate(records) if record.type == RecordType.MESSAGE)
    last = next(record.sequence for record in records[first:] if record.flags & UNIT_END)
    unit = [record for record in records[first:] if record.sequence <= last]
    end_records = [RecordType.TRANSACTION_RESOLVED] if two_phases else []
    assert [record.type for record in unit] == [
        RecordType.MESSAGE,
        RecordType.MESSAGE,
        RecordType.COMPLETED,
        RecordType.COMPLETED,
        *end_records,
    ]
    assert [bool(record.flags & UNIT_END) for record in unit[:-1]] == [False] * (len(unit) - 1)
    assert unit[-1].flags & UNIT_END
    assert bodies(full) == ["new"]


def test_end_of_retained_message_is_in_unit_of_its_commit() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    topic = fixture.topic(retain_without_subscriptions=True)
    answers = fixture.queue("answers")
    [sequence] = fixture.send(topic, "retained")
    reader = fixture.read(fixture.broker.subscribe(topic, "s", durable=True))
    fixture.broker.flush()
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    assert transactions.acknowledge(transaction, reader.consumer, sequence)
    send(fixture, transaction, answers, "answer")
    start = journal.durable + 1
    transactions.commit(transaction)
    fixture.broker.flush()
    assert [
        (record.type, bool(record.flags & UNIT_END))
        for record in read_from(journal, start)
        if record.type in (RecordType.MESSAGE, RecordType.COMPLETED)
    ] == [(RecordType.MESSAGE, False), (RecordType.COMPLETED, True)]
    assert journal.stats().live == 1


def test_transaction_without_durable_messages_leaves_no_record() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    queue = fixture.queue()
    fixture.broker.flush()
    start = journal.durable + 1
    transaction = fixture.broker.transactions.begin()
    message = fixture.message(queue, "a", durability=Durability.NONE)
    fixture.broker.transactions.publish(transaction, queue, message)
    done: list[bool] = []
    fixture.broker.transactions.commit(transaction, lambda: done.append(True))
    assert done
    fixture.broker.flush()
    assert list(read_from(journal, start)) == []
    assert bodies(queue) == ["a"]


def test_redirected_send_becomes_one_dead_letter_and_not_before_commit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "a")
    transaction = fixture.broker.transactions.begin()
    send(fixture, transaction, queue, "b")
    fixture.broker.flush()
    assert fixture.broker.destinations.queue("q.dlq").waiting == 0
    fixture.broker.transactions.commit(transaction)
    fixture.broker.flush()
    assert bodies(queue) == ["a"]
    assert [message.body for message in fixture.dead_letters()] == [b"b"]


def test_withdrawn_acknowledgement_times_out_like_new_delivery() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    fixture.wait(5000)
    transactions.withdraw_ack(transaction, *transaction.acks)
    fixture.wait(999)
    assert reader.got() == ["a"]
    fixture.wait(1)
    assert reader.got() == ["a"]


def test_rollback_after_queue_was_removed_leaves_nothing() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True, max_attempts=1)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    fixture.broker.remove(queue, force=True)
    transactions.rollback(transaction)
    fixture.broker.flush()
    assert not fixture.broker.destinations
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


@pytest.mark.parametrize("durability", Durability)
def test_waiting_consumer_receives_sends_in_order(durability: Durability) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    transaction = fixture.broker.transactions.begin()
    for body in ("a", "b", "c"):
        message = fixture.message(queue, body, durability=durability)
        fixture.broker.transactions.publish(transaction, queue, message)
    fixture.broker.transactions.commit(transaction)
    fixture.broker.flush()
    for body in ("a", "b", "c"):
        assert reader.got() == [body]
        reader.acknowledge()


def test_rollback_is_one_record_for_each_subscription() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    queues = [fixture.queue("first"), fixture.queue("second")]
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for queue in queues:
        reader = fixture.read(queue, 3, refill=False)
        for sequence in fixture.send(queue, "a", "b", "c"):
            transactions.acknowledge(transaction, reader.consumer, sequence)
    start = journal.durable + 1
    transactions.rollback(transaction)
    fixture.broker.flush()
    assert [record.type for record in read_from(journal, start)] == [
        RecordType.DELIVERY_ATTEMPTS
    ] * 2
    assert [bodies(queue) for queue in queues] == [["a", "b", "c"]] * 2


@pytest.mark.parametrize("committed", [True, False])
def test_ended_transaction_releases_its_messages(committed: bool) -> None:
    """A reference to an ended transaction must not keep its messages in memory."""
    fixture = BrokerFixture()
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    send(fixture, transaction, queue, "x" * 1000)
    transactions.prepare(transaction, b"xid")
    assert len(transaction.sends) == 1
    (transactions.commit if committed else transactions.rollback)(transaction)
    assert (len(transaction.sends), len(transaction.acks)) == (0, 0)


def test_snapshot_refers_to_prepared_messages() -> None:
    """The journal keeps a PREPARED record until it is resolved; a copy would only take memory."""
    fixture = BrokerFixture()
    transaction = fixture.broker.transactions.begin()
    send(fixture, transaction, fixture.queue(), "x" * 10_000)
    fixture.broker.transactions.prepare(transaction, b"xid")
    assert len(snapshot(fixture.broker)) < 5_000


# --- reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_end_is_reported_once_and_after_it_happened(prepared: bool, committed: bool) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.publish(transaction, queue, fixture.message(queue, "a"))
    reports: list[tuple[bool, bool]] = []

    def report(ended: Transaction, committed: bool) -> None:
        assert ended is transaction
        reports.append((committed, transaction in transactions.open.values()))

    transactions.ends.append(report)
    if prepared:
        transactions.prepare(transaction, b"xid")
    assert not reports
    (transactions.commit if committed else transactions.rollback)(transaction)
    assert reports == [(committed, False)]
    with pytest.raises(TransactionEnded):
        transactions.rollback(transaction)
    assert len(reports) == 1


def test_transaction_has_its_start_time() -> None:
    fixture = BrokerFixture()
    fixture.clock.advance(5)
    transaction = fixture.broker.transactions.begin()
    assert transaction.created == fixture.clock.wall
