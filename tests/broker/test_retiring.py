"""Consumers that leave before they have finished with what they hold."""

from __future__ import annotations

import pytest

from sluicemq.model.errors import SubscriptionInUse
from sluicemq.model.message import Durability
from tests.broker.support import Rig, bodies


def test_what_is_kept_may_still_be_settled_and_the_rest_goes_back_uncounted() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 3)
    a, _, c = rig.send(queue, "a", "b", "c")
    rig.broker.retire(reader.consumer, [a, c])
    other = rig.read(queue)
    assert (other.got(), other.attempts) == (["b"], {"b": 1})
    assert rig.broker.settle(reader.consumer, a)
    assert not rig.broker.settle(reader.consumer, a)
    rig.broker.release(reader.consumer, [c])
    rig.broker.flush()
    assert (other.got(), other.attempts) == (["c"], {"b": 1, "c": 2})
    assert (queue.unacked, queue.statistics.settled) == (2, 1)


def test_it_is_no_consumer_any_more() -> None:
    rig = Rig()
    topic = rig.topic()
    subscription = rig.broker.subscribe(topic, "s", durable=True)
    reader = rig.read(subscription, 1)
    [sequence] = rig.send(topic, "a")
    with pytest.raises(SubscriptionInUse):
        rig.read(subscription)
    rig.broker.retire(reader.consumer, [sequence])
    assert (topic.consumers, topic.unacked) == (0, 1)
    rig.send(topic, "b")
    assert reader.got() == ["a"]
    assert rig.read(subscription).got() == ["b"]
    rig.broker.settle(reader.consumer, sequence)
    rig.broker.flush()
    assert reader.got() == []


def test_one_that_stood_by_takes_its_place() -> None:
    rig = Rig()
    queue = rig.queue(active_consumers=1)
    first, second = rig.read(queue, 1), rig.read(queue, 2, refill=False)
    [sequence] = rig.send(queue, "a")
    rig.send(queue, "b")
    rig.broker.retire(first.consumer, [sequence])
    rig.broker.flush()
    assert second.got() == ["b"]


def test_it_is_forgotten_with_the_last_delivery_it_holds() -> None:
    rig = Rig()
    queue = rig.queue()
    ends = {
        "settled": lambda reader, s: rig.broker.settle(reader.consumer, s),
        "released": lambda reader, s: rig.broker.release(reader.consumer, [s]),
        "settled by number": lambda reader, s: rig.broker.settle_any(queue.queue, s),
        "dead": lambda reader, s: rig.broker.dead_letter(queue.queue, s, "rejected"),
        "requeued": lambda reader, s: rig.broker.requeue(queue.queue, s, 0),
        "timed out": lambda reader, s: rig.broker.time_out(reader.consumer, [s]),
        "purged": lambda reader, s: rig.broker.purge(queue, unacked=True),
        "detached": lambda reader, s: rig.broker.detach(reader.consumer),
    }
    for way, end in ends.items():
        reader = rig.read(queue, 1)
        [sequence] = rig.send(queue, way)
        rig.broker.retire(reader.consumer, [sequence])
        assert list(queue.queue.retired) == [reader.consumer], way
        end(reader, sequence)
        assert not queue.queue.retired, way
        assert queue.unacked == 0, way
        rig.broker.purge(queue)


def test_it_holds_nothing_if_nothing_is_to_be_kept() -> None:
    rig = Rig()
    queue = rig.queue(max_attempts=1)
    reader = rig.read(queue)
    rig.send(queue, "a")
    rig.broker.retire(reader.consumer, [99])
    assert not queue.queue.retired
    assert bodies(queue) == ["a"]
    rig.broker.retire(reader.consumer, [])
    rig.broker.detach(reader.consumer)
    assert rig.read(queue).got() == ["a"]


def test_what_it_did_not_keep_may_count_as_attempted() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a")
    rig.broker.retire(reader.consumer, attempted=True)
    again = rig.read(queue)
    again.got()
    assert again.attempts == {"a": 2}


def test_its_time_to_acknowledge_goes_on() -> None:
    rig = Rig()
    queue = rig.queue(ack_timeout=1000)
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.wait(600)
    rig.broker.retire(reader.consumer, [sequence])
    rig.wait(400)
    assert rig.read(queue).got() == ["a"]


@pytest.mark.parametrize("durability", [Durability.SYNC, Durability.NONE])
def test_it_goes_with_its_queue(durability: Durability) -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a", durability=durability)
    rig.broker.retire(reader.consumer, [sequence])
    rig.broker.remove(queue)
    assert not rig.broker.settle(reader.consumer, sequence)
    rig.broker.flush()
    assert reader.detachments == 0
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)


def test_its_deliveries_may_go_into_transactions_and_come_back_to_it() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 3)
    a, b, c = rig.send(queue, "a", "b", "c")
    rig.broker.retire(reader.consumer, [a, b, c])
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    for sequence in (a, b, c):
        assert transactions.settle(transaction, reader.consumer, sequence)
    assert not queue.queue.retired
    assert transactions.unsettle(transaction, reader.consumer, a)
    assert list(queue.queue.retired) == [reader.consumer]
    assert reader.held() == {"a": a}
    transactions.rollback(transaction)
    other = rig.read(queue)
    assert (other.got(), other.attempts) == (["b", "c"], {"b": 2, "c": 2})
    rig.broker.detach(reader.consumer)
    rig.broker.flush()
    assert other.got() == ["a"]


def test_what_one_of_a_removed_queue_had_in_a_transaction_is_gone() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    [sequence] = rig.send(queue, "a")
    rig.broker.retire(reader.consumer, [sequence])
    transactions = rig.broker.transactions
    transaction = transactions.begin()
    transactions.settle(transaction, reader.consumer, sequence)
    rig.broker.remove(queue)
    assert transactions.unsettle(transaction, reader.consumer, sequence)
    rig.broker.flush()
    assert (rig.broker.core.memory, rig.journal.stats().live) == (0, 0)
