"""Redelivery: position, attempts, and operations by sequence number."""

from __future__ import annotations

from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, bodies


def test_unacked_messages_are_requeued_before_ready_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first_reader = fixture.read(queue, 2)
    fixture.send(queue, "a", "b", "c")
    first_reader.detach()
    reader = fixture.read(queue)
    assert reader.got() == ["a", "b", "c"]
    assert reader.attempts == {"a": 2, "b": 2, "c": 1}


def test_order_of_release_does_not_change_order_of_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 3, refill=False)
    fixture.send(queue, "a", "b", "c", "d")
    reader.got()
    reader.release("c", "a")
    fixture.broker.grant(reader.consumer.window, 3)
    assert reader.got() == ["a", "c", "d"]


def test_unstarted_deliveries_do_not_count_as_attempts() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1)
    reader = fixture.read(queue, 1)
    fixture.send(queue, "a")
    reader.release("a", attempted=False)
    assert reader.got() == ["a", "a"]
    assert reader.attempts == {"a": 1}


def test_only_holding_consumer_may_ack() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    holder, other_reader = fixture.read(queue), fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    assert not fixture.broker.acknowledge(other_reader.consumer, sequence)
    assert fixture.broker.acknowledge(holder.consumer, sequence)
    assert not fixture.broker.acknowledge(holder.consumer, sequence)
    assert queue.unacked == 0


def test_each_delivery_is_requeued_after_its_own_ack_timeout() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    fixture.wait(400)
    fixture.send(queue, "b")
    fixture.wait(599)
    assert reader.got() == ["a", "b"]
    fixture.wait(1)
    assert reader.got() == ["a"]
    fixture.wait(400)
    assert reader.got() == ["b"]


def test_timeout_continues_for_later_deliveries_after_first_ack() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b")
    reader.acknowledge("a")
    fixture.wait(1000)
    assert reader.got() == ["a", "b", "b"]


def test_consumers_own_timeout_overrides_that_of_queue() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    patient_reader = fixture.read(queue, ack_timeout=0)
    fixture.send(queue, "a")
    fixture.wait(10_000)
    assert patient_reader.got() == ["a"]


def test_retry_delay_doubles_up_to_its_limit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000, retry_delay=100, retry_delay_max=300)
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    assert reader.got() == ["a"]
    for delay in (100, 200, 300, 300):
        fixture.wait(1000)
        fixture.wait(delay - 1)
        assert reader.got() == []
        fixture.wait(1)
        assert reader.got() == ["a"]


def test_delayed_retry_does_not_block_others_and_returns_credit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000, retry_delay=500)
    reader = fixture.read(queue, 1)
    fixture.send(queue, "a", "b")
    fixture.wait(1000)
    assert reader.got() == ["a", "b"]


def test_message_is_dead_lettered_after_max_attempts() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000, max_attempts=3)
    first = fixture.read(queue)
    fixture.send(queue, "a")
    fixture.wait(1000)
    first.detach()
    last = fixture.read(queue)
    assert last.attempts == {"a": 3}
    last.release()
    assert bodies(queue) == []
    assert queue.statistics.dropped == 1


def test_requeued_message_can_be_acked_by_sequence() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    came_back, never_seen = fixture.send(queue, "a", "b")
    reader.detach()
    assert fixture.broker.acknowledge_any(queue.queue, came_back)
    assert not fixture.broker.acknowledge_any(queue.queue, came_back)
    assert not fixture.broker.acknowledge_any(queue.queue, never_seen)
    assert fixture.read(queue).got() == ["b"]
    assert queue.statistics.acknowledged == 1


def test_ack_by_sequence_refills_window_of_present_holder() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    first = fixture.read(queue, 1)
    sequence, _ = fixture.send(queue, "a", "b")
    first.detach()
    second = fixture.read(queue, 1)
    assert fixture.broker.acknowledge_any(queue.queue, sequence)
    fixture.broker.flush()
    assert second.got() == ["a", "b"]


def test_message_awaiting_its_retry_can_be_acked_by_sequence() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000, retry_delay=500)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.wait(1000)
    assert fixture.broker.acknowledge_any(queue.queue, sequence)
    fixture.wait(500)
    assert reader.got() == ["a"]
    assert queue.waiting == 0


def test_requeue_moves_unacked_message_to_end_and_returns_its_credit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    sequence, *_ = fixture.send(queue, "a", "b", "c")
    assert fixture.broker.requeue(queue.queue, sequence, 0)
    fixture.broker.flush()
    assert bodies(queue) == ["b", "c", "a"]
    assert reader.got() == ["a", "b"]
    reader.acknowledge()
    reader.acknowledge()
    assert reader.unacked_by_body() == {"a": sequence}
    assert reader.attempts["a"] == 2


def test_message_requeued_after_last_attempt_becomes_dead_letter() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=2, dead_letter=True)
    reader = fixture.read(queue, 1)
    sequence, _ = fixture.send(queue, "a", "b")
    assert fixture.broker.requeue(queue.queue, sequence, 0)
    fixture.broker.flush()
    reader.acknowledge("b")
    assert reader.attempts == {"a": 2, "b": 1}
    assert fixture.broker.requeue(queue.queue, sequence, 0)
    fixture.broker.flush()
    assert [message.body for message in fixture.dead_letters()] == [b"a"]
    assert (bodies(queue), queue.unacked, reader.consumer.window.credit) == ([], 0, 1)


def test_requeue_gives_returned_message_new_expiration() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a", expiration=fixture.clock.wall + 1000)
    fixture.send(queue, "b")
    reader.detach()
    assert fixture.broker.requeue(queue.queue, sequence, fixture.clock.wall + 5000)
    fixture.wait(4900)
    assert bodies(queue) == ["b", "a"]
    fixture.wait(200)
    assert bodies(queue) == ["b"]


def test_requeued_message_returns_to_its_new_position() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    sequence, *_ = fixture.send(queue, "a", "b", durability=Durability.NONE)
    assert fixture.broker.requeue(queue.queue, sequence, 0)
    fixture.broker.flush()
    reader.acknowledge("b")
    fixture.send(queue, "c")
    reader.detach()
    assert bodies(queue) == ["a", "c"]


def test_requeued_message_can_be_dead_lettered_by_sequence() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(dead_letter=True)
    reader = fixture.read(queue, 1)
    sequence, never_seen = fixture.send(queue, "a", "b")
    reader.detach()
    assert fixture.broker.dead_letter(queue.queue, sequence, "poison")
    assert not fixture.broker.dead_letter(queue.queue, never_seen, "poison")
    fixture.broker.flush()
    assert [message.body for message in fixture.dead_letters()] == [b"a"]
    assert fixture.read(queue).got() == ["b"]


def test_spared_messages_count_attempts_but_are_not_dead_lettered() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1, dead_letter=True)
    fixture.send(queue, "a", "b")
    reader = fixture.read(queue)
    unacked = reader.unacked_by_body()
    fixture.broker.release(reader.consumer, [unacked["a"]], ignore_max_attempts=True)
    reader.detach()
    assert bodies(queue) == ["a"]
    assert [message.body for message in fixture.dead_letters()] == [b"b"]
    second_reader = fixture.read(queue)
    second_reader.got()
    assert second_reader.attempts == {"a": 2}


def test_ack_timeout_that_engine_does_not_watch() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=3, retry_delay=100)
    fixture.send(queue, "a", "b")
    reader = fixture.read(queue)
    unacked = reader.unacked_by_body()
    fixture.broker.release(reader.consumer, [unacked["a"], 999], timed_out=True)
    fixture.wait(99)
    assert reader.got() == ["a", "b"]
    fixture.wait(1)
    assert reader.got() == ["a"]
    fixture.broker.release(reader.consumer, [unacked["a"]], timed_out=True)
    fixture.wait(199)
    assert reader.got() == []
    fixture.wait(1)
    assert reader.got() == ["a"]
    assert reader.unacked_by_body().keys() == {"a", "b"}
