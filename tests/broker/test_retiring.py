"""Consumers that detach before they have acked all their deliveries."""

from __future__ import annotations

import pytest

from sluicemq.model.errors import SubscriptionInUse
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, bodies, purge


def test_kept_deliveries_can_be_acked_and_rest_are_requeued_uncounted() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 3)
    a, _, c = fixture.send(queue, "a", "b", "c")
    fixture.broker.retire(reader.consumer, [a, c])
    other_reader = fixture.read(queue)
    assert (other_reader.got(), other_reader.attempts) == (["b"], {"b": 1})
    assert fixture.broker.acknowledge(reader.consumer, a)
    assert not fixture.broker.acknowledge(reader.consumer, a)
    fixture.broker.release(reader.consumer, [c])
    fixture.broker.flush()
    assert (other_reader.got(), other_reader.attempts) == (["c"], {"b": 1, "c": 2})
    assert (queue.unacked, queue.statistics.acknowledged) == (2, 1)


def test_retired_consumer_is_not_counted() -> None:
    fixture = BrokerFixture()
    topic = fixture.topic()
    subscription = fixture.broker.subscribe(topic, "s", durable=True)
    reader = fixture.read(subscription, 1)
    [sequence] = fixture.send(topic, "a")
    with pytest.raises(SubscriptionInUse):
        fixture.read(subscription)
    fixture.broker.retire(reader.consumer, [sequence])
    assert (topic.consumers, topic.unacked) == (0, 1)
    fixture.send(topic, "b")
    assert reader.got() == ["a"]
    assert fixture.read(subscription).got() == ["b"]
    fixture.broker.acknowledge(reader.consumer, sequence)
    fixture.broker.flush()
    assert reader.got() == []


def test_standby_consumer_replaces_retired_one() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(active_consumers=1)
    first, second = fixture.read(queue, 1), fixture.read(queue, 2, refill=False)
    [sequence] = fixture.send(queue, "a")
    fixture.send(queue, "b")
    fixture.broker.retire(first.consumer, [sequence])
    fixture.broker.flush()
    assert second.got() == ["b"]


def test_retired_consumer_is_released_with_its_last_delivery() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    ends = {
        "acknowledged": lambda reader, s: fixture.broker.acknowledge(reader.consumer, s),
        "released": lambda reader, s: fixture.broker.release(reader.consumer, [s]),
        "acknowledged by number": lambda reader, s: fixture.broker.acknowledge_any(queue.queue, s),
        "dead": lambda reader, s: fixture.broker.dead_letter(queue.queue, s, "rejected"),
        "requeued": lambda reader, s: fixture.broker.requeue(queue.queue, s, 0),
        "timed out": lambda reader, s: fixture.broker.release(reader.consumer, [s], timed_out=True),
        "purged": lambda reader, s: purge(fixture.broker, queue, unacked=True),
        "detached": lambda reader, s: fixture.broker.detach(reader.consumer),
    }
    for name, end in ends.items():
        reader = fixture.read(queue, 1)
        [sequence] = fixture.send(queue, name)
        fixture.broker.retire(reader.consumer, [sequence])
        assert list(queue.queue.retired) == [reader.consumer], name
        end(reader, sequence)
        assert not queue.queue.retired, name
        assert queue.unacked == 0, name
        purge(fixture.broker, queue)


def test_retired_consumer_may_keep_no_deliveries() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(max_attempts=1)
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    fixture.broker.retire(reader.consumer, [99])
    assert not queue.queue.retired
    assert bodies(queue) == ["a"]
    fixture.broker.retire(reader.consumer, [])
    fixture.broker.detach(reader.consumer)
    assert fixture.read(queue).got() == ["a"]


def test_deliveries_not_kept_may_count_as_attempts() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    fixture.broker.retire(reader.consumer, attempted=True)
    second_reader = fixture.read(queue)
    second_reader.got()
    assert second_reader.attempts == {"a": 2}


def test_ack_timeout_continues_after_retirement() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=1000)
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.wait(600)
    fixture.broker.retire(reader.consumer, [sequence])
    fixture.wait(400)
    assert fixture.read(queue).got() == ["a"]


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.NONE])
def test_retired_consumer_is_removed_with_its_queue(durability: Durability) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a", durability=durability)
    fixture.broker.retire(reader.consumer, [sequence])
    fixture.broker.remove(queue)
    assert not fixture.broker.acknowledge(reader.consumer, sequence)
    fixture.broker.flush()
    assert reader.detachments == 0
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)


def test_kept_deliveries_may_be_acked_in_transactions_and_returned() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 3)
    a, b, c = fixture.send(queue, "a", "b", "c")
    fixture.broker.retire(reader.consumer, [a, b, c])
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    for sequence in (a, b, c):
        assert transactions.acknowledge(transaction, reader.consumer, sequence)
    assert not queue.queue.retired
    assert transactions.withdraw_ack(transaction, next(iter(transaction.acks)))
    assert list(queue.queue.retired) == [reader.consumer]
    assert reader.unacked_by_body() == {"a": a}
    transactions.rollback(transaction)
    other_reader = fixture.read(queue)
    assert (other_reader.got(), other_reader.attempts) == (["b", "c"], {"b": 2, "c": 2})
    fixture.broker.detach(reader.consumer)
    fixture.broker.flush()
    assert other_reader.got() == ["a"]


def test_transactional_acks_of_deleted_queue_are_dropped() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.retire(reader.consumer, [sequence])
    transactions = fixture.broker.transactions
    transaction = transactions.begin()
    transactions.acknowledge(transaction, reader.consumer, sequence)
    fixture.broker.remove(queue)
    assert transactions.withdraw_ack(transaction, *transaction.acks)
    fixture.broker.flush()
    assert (fixture.broker.core.memory, fixture.journal.stats().live) == (0, 0)
