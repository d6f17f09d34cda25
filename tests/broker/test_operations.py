"""Operations on single messages in states that random steps (test_model.py) rarely reach."""

from __future__ import annotations

import pytest

from sluicemq.broker import Delivery, Destination, EngineSettings
from sluicemq.model.dead_letters import DeadLetterOrigin, origin_of
from sluicemq.model.destination import Address, Kind, Overflow
from sluicemq.model.errors import ActionRefused
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, TypeSelector, bodies


def find_delivery(fixture: BrokerFixture, queue: Destination, sequence: int) -> Delivery:
    delivery = fixture.broker.operations.find(queue.queue, sequence)
    assert delivery is not None
    return delivery


def test_last_delivery_of_chunk_may_be_removed_and_queue_is_empty() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=2))
    queue = fixture.queue()
    sent = fixture.send(queue, *"abcdefgh", durability=Durability.LAZY)
    for sequence in (*sent[2:], *sent[:2]):
        fixture.broker.operations.delete(queue.queue, [find_delivery(fixture, queue, sequence)])
        queue.queue.all_ready.compact()
    assert queue.waiting == 0
    assert queue.queue.all_ready.take() is None
    assert fixture.journal.stats().live == 0
    reader = fixture.read(queue)
    fixture.send(queue, "i", priority=0)
    fixture.send(queue, "j")
    assert reader.got() == ["i", "j"]


def test_chunks_of_one_priority_are_removed_and_those_of_another_stay() -> None:
    fixture = BrokerFixture(EngineSettings(memory_budget=0, chunk_deliveries=1))
    queue = fixture.queue()
    high = fixture.send(queue, *"abcd", durability=Durability.LAZY, priority=9)
    low = fixture.send(queue, *"efgh", durability=Durability.LAZY, priority=1)
    for sequence in high:
        fixture.broker.operations.delete(queue.queue, [find_delivery(fixture, queue, sequence)])
    assert [d.sequence for d in queue.queue.cursor()] == low
    reader = fixture.read(queue)
    fixture.broker.flush()
    assert [d.sequence for d in reader.consumer.unacked.values()] == low


def test_manually_requeued_message_does_not_become_dead_letter() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1, dead_letter=True)
    reader = fixture.read(queue, 1, refill=False)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.operations.redeliver(find_delivery(fixture, queue, sequence))
    fixture.broker.flush()
    assert bodies(queue) == ["a"]
    assert reader.unacked_by_body() == {}


def test_scheduled_message_redelivered_after_step_of_clock_keeps_its_lifetime() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    now = fixture.clock.wall
    [sequence] = fixture.send(queue, "a", expiration=now + 1000, deliver_at=now + 500)
    fixture.clock.wall += 5000
    fixture.broker.operations.redeliver(queue.queue.scheduled[sequence])
    fixture.wait(900)
    assert bodies(queue) == ["a"]
    fixture.wait(300)
    assert bodies(queue) == []


def test_immediate_retry_does_not_shorten_next_delay() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(retry_delay=1000)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.release(reader.consumer, [sequence], timed_out=True)
    fixture.wait(500)
    fixture.broker.operations.redeliver(find_delivery(fixture, queue, sequence))
    fixture.broker.flush()
    assert reader.got() == ["a", "a"]
    fixture.broker.release(reader.consumer, [sequence], timed_out=True)
    fixture.wait(600)  # when the first retry would have been
    assert reader.got() == []
    fixture.wait(1400)
    assert reader.got() == ["a"]


def test_message_that_matches_selector_leaves_all_pending_queues() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 0, refill=False, selector=TypeSelector("red"))
    first, second = fixture.send(queue, "a", "b", type="red")
    fixture.broker.operations.delete(queue.queue, [find_delivery(fixture, queue, first)])
    fixture.broker.grant(reader.consumer.window, 5)
    fixture.broker.flush()
    assert reader.got() == ["b"]
    assert fixture.broker.operations.find(queue.queue, first) is None
    assert find_delivery(fixture, queue, second).consumer is reader.consumer


def test_move_to_full_queue_displaces_its_oldest_message() -> None:
    fixture = BrokerFixture()
    source, target = (
        fixture.queue("s"),
        fixture.queue(max_messages=2, overflow=Overflow.DROP_OLDEST),
    )
    [sequence] = fixture.send(source, "moved")
    fixture.send(target, "old", "new")
    fixture.broker.operations.move(find_delivery(fixture, source, sequence), target)
    fixture.broker.flush()
    assert bodies(target) == ["new", "moved"]


def test_move_to_full_queue_that_redirects_overflow() -> None:
    fixture = BrokerFixture()
    source = fixture.queue("s")
    target = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    [sequence] = fixture.send(source, "moved")
    fixture.send(target, "there")
    fixture.broker.operations.move(find_delivery(fixture, source, sequence), target)
    fixture.broker.flush()
    assert [m.body for m in fixture.dead_letters()] == [b"moved"]
    assert source.waiting == 0
    assert origin_of(fixture.dead_letters()[0]) == DeadLetterOrigin(Address(Kind.QUEUE, "q"), "")


def test_full_queue_that_redirects_overflow_does_not_return_dead_letter_to_its_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.send(queue, "a", "b")
    dead_letter_queue = fixture.broker.destinations[Address(Kind.QUEUE, "q.dlq")]
    [dead_letter] = dead_letter_queue.queue.browse()
    for operation in (
        lambda: fixture.broker.operations.redrive(dead_letter, DeadLetterOrigin(queue.address, "")),
        lambda: fixture.broker.operations.move(dead_letter, queue),
    ):
        with pytest.raises(ActionRefused) as error:
            operation()
        assert error.value.reason == "target-full"
    assert [delivery.sequence for delivery in dead_letter_queue.queue.browse()] == [
        dead_letter.sequence
    ]
    assert queue.statistics.dead_lettered == 1


def test_dead_letter_of_deleted_topic_is_not_redriven() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic(max_messages=1, overflow=Overflow.DEAD_LETTER, dead_letter=True)
    fixture.broker.subscribe(topic, "s")
    fixture.send(topic, "a", "b")
    fixture.broker.remove(topic)
    dead_letter_queue = fixture.broker.destinations[Address(Kind.QUEUE, "t.dlq")]
    [dead_letter] = dead_letter_queue.queue.browse()
    origin = origin_of(fixture.broker.read(dead_letter))
    assert origin == DeadLetterOrigin(topic.address, "")
    with pytest.raises(ActionRefused) as error:
        fixture.broker.operations.redrive(dead_letter, origin)
    assert error.value.reason == "origin-gone"
    assert bodies(dead_letter_queue) == ["b"]
    assert topic.address not in fixture.broker.destinations


def test_dead_letter_is_not_redriven_without_automatic_creation() -> None:
    fixture = BrokerFixture(EngineSettings(auto_create_queues=False))
    queue = fixture.queue(dead_letter=True)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.dead_letter(queue.queue, sequence, "rejected")
    reader.detach()
    fixture.broker.remove(queue)
    dead_letter_queue = fixture.broker.destinations[Address(Kind.QUEUE, "q.dlq")]
    delivery = next(iter(dead_letter_queue.queue.cursor()))
    with pytest.raises(ActionRefused) as error:
        fixture.broker.operations.redrive(delivery, DeadLetterOrigin(Address(Kind.QUEUE, "q"), ""))
    assert error.value.reason == "origin-gone"
    assert dead_letter_queue.waiting == 1
