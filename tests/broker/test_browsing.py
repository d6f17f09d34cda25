"""Browsing messages without consuming them."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.errors import RecordNotFound
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, purge


def test_browse_lists_ready_and_unacked_messages_in_queue_order() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    held, low = fixture.send(queue, "held", "low", priority=1)
    [high] = fixture.send(queue, "high", priority=9)
    assert list(fixture.broker.browse(queue.queue)) == [(high, None), (held, None), (low, None)]
    assert list(fixture.broker.browse(queue.queue, unacked=False)) == [(high, None), (low, None)]
    assert fixture.broker.fetch(high).body == b"high"
    reader.settle()
    with pytest.raises(RecordNotFound):
        fixture.broker.fetch(held)


def test_browse_omits_ended_and_scheduled_messages() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.send(queue, "expired", expiration=fixture.clock.wall + 100)
    fixture.send(queue, "delayed", deliver_at=fixture.clock.wall + 5000)
    [there] = fixture.send(queue, "there", expiration=fixture.clock.wall + 101)
    reader = fixture.read(queue, 0)
    fixture.clock.advance(100)
    assert [sequence for sequence, _ in fixture.broker.browse(reader.consumer.subscription)] == [
        there
    ]


def test_browse_omits_messages_acked_in_a_transaction() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    a, b = fixture.send(queue, "a", "b")
    transaction = fixture.broker.transactions.begin()
    fixture.broker.transactions.settle(transaction, reader.consumer, a)
    assert [sequence for sequence, _ in fixture.broker.browse(queue.queue)] == [b]
    fixture.broker.retire(reader.consumer, [b])
    assert [sequence for sequence, _ in fixture.broker.browse(queue.queue)] == [b]


def test_browse_carries_only_messages_that_are_not_journaled() -> None:
    fixture = BrokerFixture(EngineSettings(chunk_deliveries=2, memory_budget=0))
    queue = fixture.queue()
    sequences = fixture.send(queue, *"abcdefgh")
    [volatile] = fixture.send(queue, "volatile", durability=Durability.NONE)
    fixture.broker.publish(queue, fixture.message(queue, "lazy", durability=Durability.LAZY))
    snapshot = fixture.broker.browse(queue.queue)
    assert len(snapshot) == 10
    assert [sequence for sequence, _ in snapshot][:9] == [*sequences, volatile]
    assert [message for _, message in snapshot][:8] == [None] * 8
    sequence, message = snapshot[8]
    assert message is not None
    assert (sequence, message.body) == (volatile, b"volatile")
    assert fixture.broker.fetch(snapshot[9][0]).body == b"lazy"
    with pytest.raises(IndexError):
        snapshot[10]


def test_browse_shows_a_snapshot_whatever_happens_later() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    [volatile] = fixture.send(queue, "a", durability=Durability.NONE)
    snapshot = fixture.broker.browse(queue.queue)
    purge(fixture.broker, queue)
    fixture.send(queue, "b")
    [(sequence, message)] = snapshot
    assert message is not None
    assert (sequence, message.body) == (volatile, b"a")
