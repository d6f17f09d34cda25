"""Ended deliveries are released, however long the broker runs."""

from __future__ import annotations

import gc
import weakref

import pytest

from sluicemq.broker.scheduler import FEW_ENDED
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability
from tests.support.broker import DAY, BrokerFixture, Reader, TypeSelector, delivery_objects, purge

MESSAGES = 4000


def test_acknowledged_messages_with_long_ttl_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    for _ in range(MESSAGES):
        fixture.clock.advance(100)  # each message expires in another slot
        fixture.send(queue, "a", expiration=fixture.clock.wall + DAY)
        reader.acknowledge()
    assert delivery_objects(queue) < 10


def test_scheduled_messages_that_expire_or_are_purged_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    tomorrow = fixture.clock.wall + DAY
    for _ in range(MESSAGES // 10):
        expiration = fixture.clock.wall + 100
        fixture.send(queue, *"abcdefghij", expiration=expiration, deliver_at=tomorrow)
        fixture.wait(300)
    fixture.send(queue, *["a"] * MESSAGES, deliver_at=tomorrow)
    assert purge(fixture.broker, queue) == MESSAGES
    assert delivery_objects(queue) <= 2 * FEW_ENDED


@pytest.mark.parametrize("way", ["detached", "retired", "retired while unacked"])
def test_consumers_are_released_before_ack_timeout(way: str) -> None:
    fixture = BrokerFixture()
    queue = fixture.queue(ack_timeout=DAY)
    for _ in range(MESSAGES):
        [sequence] = fixture.send(queue, "a")
        reader = fixture.read(queue, 1)
        if way == "retired while unacked":
            fixture.broker.retire(reader.consumer, [sequence])
        reader.acknowledge()
        if way == "retired":
            fixture.broker.retire(reader.consumer)
        reader.detach()
    gc.collect()
    assert sum(isinstance(item, Reader) for item in gc.get_objects()) <= 2 * FEW_ENDED


def test_idle_selector_does_not_retain_messages_acked_by_others() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 0, selector=TypeSelector("red"))
    reader = fixture.read(queue, 1)
    for _ in range(MESSAGES):
        fixture.send(queue, "a", type="red")
        reader.acknowledge()
    assert delivery_objects(queue) < 100


def test_requeued_messages_acked_by_sequence_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    for _ in range(MESSAGES):
        reader = fixture.read(queue, 1)
        [sequence] = fixture.send(queue, "a")
        reader.detach()
        assert fixture.broker.acknowledge_any(queue.queue, sequence)
    assert delivery_objects(queue) < 100


def test_ended_requeued_messages_are_released() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    for _ in range(MESSAGES):
        [sequence] = fixture.send(queue, "a")
        assert fixture.broker.requeue(queue.queue, sequence, 0)
        fixture.broker.flush()
        reader.acknowledge()
    assert delivery_objects(queue) < MESSAGES // 2


def test_lazy_messages_above_budget_are_released_when_durable() -> None:
    fixture = BrokerFixture()
    fixture.broker.core.memory_budget = 0
    queue = fixture.queue()
    reader = fixture.read(queue)
    for _ in range(MESSAGES):
        fixture.send(queue, "a", durability=Durability.LAZY)
        reader.acknowledge()
    assert delivery_objects(queue) < 10


def test_deleted_temporary_destination_does_not_keep_its_owner() -> None:
    fixture = BrokerFixture()
    owners = [Reader(fixture.broker)]
    reference = weakref.ref(owners[0])
    queue = fixture.broker.destinations.declare(Address(Kind.QUEUE, "q"), owner=owners[0])
    fixture.broker.delete_temporary(owners.pop())
    assert queue.temporary
    assert reference() is None
