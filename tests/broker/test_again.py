"""What a consumer holds, sent once more to the same consumer."""

from __future__ import annotations

from sluicemq.broker import Delivery
from sluicemq.journal.format import RecordType
from sluicemq.journal.memory import MemoryJournal
from tests.broker.support import Rig, bodies, body_of


def sent(deliveries: list[Delivery]) -> list[tuple[str, int]]:
    return [(body_of(delivery), delivery.attempts) for delivery in deliveries]


def test_in_queue_order_and_counted() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    a, b = rig.send(queue, "a", "b")
    [urgent] = rig.send(queue, "urgent", priority=9)
    rig.send(queue, "not asked for")
    again = rig.broker.again(reader.consumer, [b, urgent, a, 99], attempted=True)
    assert sent(again) == [("urgent", 2), ("a", 2), ("b", 2)]
    assert (queue.unacked, queue.waiting) == (4, 0)
    statistics = queue.statistics
    assert (statistics.delivered, statistics.redelivered, statistics.bytes_out) == (7, 3, 29)
    reader.settle()
    assert queue.unacked == 0


def test_what_was_never_shown_does_not_count() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    for _ in range(3):
        assert sent(rig.broker.again(reader.consumer, [sequence], attempted=False)) == [("a", 1)]
    assert queue.statistics.redelivered == 0


def test_not_after_the_last_attempt_nor_the_end_of_its_life() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=2, dead_letter=True)
    reader = rig.read(queue, 3)
    a, _ = rig.send(queue, "a", "b")
    [mortal] = rig.send(queue, "mortal", expiration=rig.clock.wall + 100)
    assert reader.consumer.window.credit == 0
    assert sent(rig.broker.again(reader.consumer, [a], attempted=True)) == [("a", 2)]
    rig.clock.advance(100)
    assert sent(rig.broker.again(reader.consumer, [a, mortal], attempted=True)) == []
    rig.broker.flush()
    assert [message.body for message in rig.dead()] == [b"a", b"mortal"]
    assert (bodies(queue), reader.consumer.window.credit) == (["b"], 2)


def test_the_time_to_acknowledge_begins_anew() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    a, _ = rig.send(queue, "a", "b")
    rig.wait(900)
    reader.got()
    rig.broker.again(reader.consumer, [a], attempted=True)
    rig.wait(100)
    assert reader.got() == ["b"]
    rig.wait(899)
    assert reader.got() == []
    rig.wait(1)
    assert reader.got() == ["a"]


def test_failed_attempts_are_journaled_as_one_record() -> None:
    journal = MemoryJournal(history=True)
    rig = Rig(journal=journal)
    queue = rig.queue()
    reader = rig.read(queue)
    sequences = rig.send(queue, "a", "b", "c")
    start = journal.durable + 1
    rig.broker.again(reader.consumer, sequences[:2], attempted=True)
    rig.broker.again(reader.consumer, sequences[2:], attempted=False)
    rig.broker.flush()
    assert [record.type for record in journal.read_from(start)] == [RecordType.ATTEMPTED]
