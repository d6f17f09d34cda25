"""Redelivery of unacked messages to the same consumer."""

from __future__ import annotations

from sluicemq.broker import Delivery
from sluicemq.journal.format import RecordType
from tests.support.broker import BrokerFixture, bodies, body_of
from tests.support.journal import RecordingJournal, read_from


def bodies_and_attempts(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(body_of(delivery), delivery.attempts) for delivery in deliveries]


def test_messages_are_redelivered_in_queue_order_and_counted() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    a, b = fixture.send(queue, "a", "b")
    [urgent_sequence] = fixture.send(queue, "urgent", priority=9)
    fixture.send(queue, "not asked for")
    redelivered = fixture.broker.start_next_attempt(
        reader.consumer, [b, urgent_sequence, a, 99], attempted=True
    )
    assert bodies_and_attempts(redelivered) == [("urgent", 2), ("a", 2), ("b", 2)]
    assert (queue.unacked, queue.waiting) == (4, 0)
    statistics = queue.statistics
    assert (statistics.delivered, statistics.redelivered, statistics.delivered_bytes) == (7, 3, 29)
    reader.acknowledge()
    assert queue.unacked == 0


def test_unstarted_deliveries_do_not_count_as_attempts() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    for _ in range(3):
        assert bodies_and_attempts(
            fixture.broker.start_next_attempt(reader.consumer, [sequence], attempted=False)
        ) == [("a", 1)]
    assert queue.statistics.redelivered == 0


def test_no_redelivery_after_last_attempt_or_expiry() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=2, dead_letter=True)
    reader = fixture.read(queue, 3)
    a, _ = fixture.send(queue, "a", "b")
    [mortal] = fixture.send(queue, "mortal", expiration=fixture.clock.wall + 100)
    assert reader.consumer.window.credit == 0
    assert bodies_and_attempts(
        fixture.broker.start_next_attempt(reader.consumer, [a], attempted=True)
    ) == [("a", 2)]
    fixture.clock.advance(100)
    assert (
        bodies_and_attempts(
            fixture.broker.start_next_attempt(reader.consumer, [a, mortal], attempted=True)
        )
        == []
    )
    fixture.broker.flush()
    assert [message.body for message in fixture.dead_letters()] == [b"a", b"mortal"]
    assert (bodies(queue), reader.consumer.window.credit) == (["b"], 2)


def test_redelivery_restarts_ack_timeout() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    a, _ = fixture.send(queue, "a", "b")
    fixture.wait(900)
    reader.got()
    fixture.broker.start_next_attempt(reader.consumer, [a], attempted=True)
    fixture.wait(100)
    assert reader.got() == ["b"]
    fixture.wait(899)
    assert reader.got() == []
    fixture.wait(1)
    assert reader.got() == ["a"]


def test_failed_attempts_are_journaled_as_one_record() -> None:
    journal = RecordingJournal()
    fixture = BrokerFixture(journal=journal)
    queue = fixture.queue()
    reader = fixture.read(queue)
    sequences = fixture.send(queue, "a", "b", "c")
    start = journal.durable + 1
    fixture.broker.start_next_attempt(reader.consumer, sequences[:2], attempted=True)
    fixture.broker.start_next_attempt(reader.consumer, sequences[2:], attempted=False)
    fixture.broker.flush()
    assert [record.type for record in read_from(journal, start)] == [RecordType.DELIVERY_ATTEMPTS]
