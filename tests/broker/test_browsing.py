"""Browsing messages without consuming them."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings, Subscription, scan
from sluicemq.model.errors import RecordNotFound
from sluicemq.model.message import Durability, Message
from tests.support.broker import BrokerFixture


def browsed(fixture: BrokerFixture, subscription: Subscription) -> list[tuple[int, Message | None]]:
    """Return what a scan without interruptions yields, with the message of each delivery."""
    return [(item[0], item[1] and item[1].message) for item in scan(subscription) if item]


def test_browse_lists_ready_and_unacked_messages_in_queue_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    unacked, low = fixture.send(queue, "held", "low", priority=1)
    [high] = fixture.send(queue, "high", priority=9)
    assert browsed(fixture, queue.queue) == [(high, None), (unacked, None), (low, None)]
    assert fixture.broker.fetch(high).body == b"high"
    reader.acknowledge()
    with pytest.raises(RecordNotFound):
        fixture.broker.fetch(unacked)


def test_browse_omits_ended_and_scheduled_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "expired", expiration=fixture.clock.wall + 100)
    fixture.send(queue, "delayed", deliver_at=fixture.clock.wall + 5000)
    [ready] = fixture.send(queue, "there", expiration=fixture.clock.wall + 101)
    reader = fixture.read(queue, 0)
    fixture.clock.advance(100)
    assert [sequence for sequence, _ in browsed(fixture, reader.consumer.subscription)] == [ready]


def test_browse_lists_messages_acked_in_transaction_until_its_commit() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    a, b = fixture.send(queue, "a", "b")
    transaction = fixture.broker.transactions.begin()
    fixture.broker.transactions.acknowledge(transaction, reader.consumer, a)
    assert [sequence for sequence, _ in browsed(fixture, queue.queue)] == [a, b]
    fixture.broker.retire(reader.consumer, [b])
    assert [sequence for sequence, _ in browsed(fixture, queue.queue)] == [a, b]
    fixture.broker.transactions.commit(transaction)
    assert [sequence for sequence, _ in browsed(fixture, queue.queue)] == [b]


def test_browse_carries_only_messages_that_are_not_journaled() -> None:
    fixture = BrokerFixture(EngineSettings(chunk_deliveries=2, memory_budget=0))
    queue = fixture.queue()
    sequences = fixture.send(queue, *"abcdefgh")
    [volatile_sequence] = fixture.send(queue, "volatile", durability=Durability.NONE)
    fixture.broker.publish(queue, fixture.message(queue, "lazy", durability=Durability.LAZY))
    browse = browsed(fixture, queue.queue)
    assert len(browse) == 10
    assert [sequence for sequence, _ in browse][:9] == [*sequences, volatile_sequence]
    assert [message for _, message in browse][:8] == [None] * 8
    sequence, message = browse[8]
    assert message is not None
    assert (sequence, message.body) == (volatile_sequence, b"volatile")
    assert fixture.broker.fetch(browse[9][0]).body == b"lazy"
