"""What has ended is let go of, however long the broker runs."""

from __future__ import annotations

import gc

from sluicemq.broker import Delivery, Destination
from sluicemq.model.message import Durability
from tests.support.broker import DAY, BrokerFixture, OfType

MANY = 4000


def remembered(queue: Destination) -> int:
    """How many deliveries of the queue there are in the process."""
    gc.collect()
    return sum(
        isinstance(thing, Delivery) and thing.subscription is queue.queue
        for thing in gc.get_objects()
    )


def test_a_long_life_does_not_outlive_the_acknowledgement() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    for _ in range(MANY):
        fixture.clock.advance(100)  # each expires in a tenth of a second of its own
        fixture.send(queue, "a", expiration=fixture.clock.wall + DAY)
        reader.settle()
    assert remembered(queue) < 10


def test_a_selector_that_nobody_serves_does_not_keep_what_others_took() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    fixture.read(queue, 0, selector=OfType("red"))
    reader = fixture.read(queue, 1)
    for _ in range(MANY):
        fixture.send(queue, "a", type="red")
        reader.settle()
    assert remembered(queue) < 100


def test_what_came_back_and_was_settled_by_number_leaves_no_trace() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    for _ in range(MANY):
        reader = fixture.read(queue, 1)
        [sequence] = fixture.send(queue, "a")
        reader.detach()
        assert fixture.broker.settle_any(queue.queue, sequence)
    assert remembered(queue) < 100


def test_requeued_messages_are_not_remembered_when_they_have_gone() -> None:
    fixture = BrokerFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1)
    for _ in range(MANY):
        [sequence] = fixture.send(queue, "a")
        assert fixture.broker.requeue(queue.queue, sequence, 0)
        fixture.broker.flush()
        reader.settle()
    assert remembered(queue) < MANY // 2


def test_lazy_messages_over_the_budget_are_remembered_only_until_they_are_durable() -> None:
    fixture = BrokerFixture()
    fixture.broker.core.memory_budget = 0
    queue = fixture.queue()
    reader = fixture.read(queue)
    for _ in range(MANY):
        fixture.send(queue, "a", durability=Durability.LAZY)
        reader.settle()
    assert remembered(queue) < 10
