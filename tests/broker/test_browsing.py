"""Looking at what is there without taking it."""

from __future__ import annotations

import pytest

from sluicemq.broker import BrokerSettings
from sluicemq.model.errors import RecordNotFound
from sluicemq.model.message import Durability
from tests.broker.support import Rig


def test_what_waits_and_is_in_flight_in_queue_order() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    held, low = rig.send(queue, "held", "low", priority=1)
    [high] = rig.send(queue, "high", priority=9)
    assert list(rig.broker.browse(queue.queue)) == [(high, None), (held, None), (low, None)]
    assert list(rig.broker.browse(queue.queue, unacked=False)) == [(high, None), (low, None)]
    assert rig.broker.fetch(high).body == b"high"
    reader.settle()
    with pytest.raises(RecordNotFound):
        rig.broker.fetch(held)


def test_not_what_is_over_nor_what_is_not_due() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.send(queue, "expired", expiration=rig.clock.wall + 100)
    rig.send(queue, "delayed", deliver_at=rig.clock.wall + 5000)
    [there] = rig.send(queue, "there", expiration=rig.clock.wall + 101)
    reader = rig.read(queue, 0)
    rig.clock.advance(100)
    assert [sequence for sequence, _ in rig.broker.browse(reader.consumer.subscription)] == [there]


def test_not_what_a_transaction_has_acknowledged() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue)
    a, b = rig.send(queue, "a", "b")
    transaction = rig.broker.transactions.begin()
    rig.broker.transactions.settle(transaction, reader.consumer, a)
    assert [sequence for sequence, _ in rig.broker.browse(queue.queue)] == [b]
    rig.broker.retire(reader.consumer, [b])
    assert [sequence for sequence, _ in rig.broker.browse(queue.queue)] == [b]


def test_a_message_comes_with_it_only_if_the_journal_does_not_have_it() -> None:
    rig = Rig(BrokerSettings(chunk_deliveries=2, memory_budget=0))
    queue = rig.queue()
    sequences = rig.send(queue, *"abcdefgh")
    [volatile] = rig.send(queue, "volatile", durability=Durability.NONE)
    rig.broker.publish(queue, rig.message(queue, "lazy", durability=Durability.LAZY))
    snapshot = rig.broker.browse(queue.queue)
    assert len(snapshot) == 10
    assert [sequence for sequence, _ in snapshot][:9] == [*sequences, volatile]
    assert [message for _, message in snapshot][:8] == [None] * 8
    sequence, message = snapshot[8]
    assert message is not None
    assert (sequence, message.body) == (volatile, b"volatile")
    assert rig.broker.fetch(snapshot[9][0]).body == b"lazy"
    with pytest.raises(IndexError):
        snapshot[10]


def test_it_shows_what_was_there_whatever_has_happened_since() -> None:
    rig = Rig()
    queue = rig.queue()
    [volatile] = rig.send(queue, "a", durability=Durability.NONE)
    snapshot = rig.broker.browse(queue.queue)
    rig.broker.purge(queue)
    rig.send(queue, "b")
    [(sequence, message)] = snapshot
    assert message is not None
    assert (sequence, message.body) == (volatile, b"a")
