"""What has ended is let go of, however long the broker runs."""

from __future__ import annotations

import gc

import pytest

from sluicemq.broker import Delivery
from sluicemq.model.message import Durability
from tests.broker.support import DAY, OfType, Rig

MANY = 4000


def deliveries() -> int:
    """How many there are in the process."""
    gc.collect()
    return sum(isinstance(thing, Delivery) for thing in gc.get_objects())


@pytest.fixture
def before() -> int:
    return deliveries()


def test_a_long_life_does_not_outlive_the_acknowledgement(before: int) -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        rig.clock.advance(100)  # each expires in a tenth of a second of its own
        rig.send(queue, "a", expiration=rig.clock.wall + DAY)
        reader.settle()
    assert deliveries() - before < 10


def test_a_selector_that_nobody_serves_does_not_keep_what_others_took(before: int) -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 0, selector=OfType("red"))
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        rig.send(queue, "a", type="red")
        reader.settle()
    assert deliveries() - before < 100


def test_what_came_back_and_was_settled_by_number_leaves_no_trace(before: int) -> None:
    rig = Rig()
    queue = rig.queue()
    for _ in range(MANY):
        reader = rig.read(queue, 1)
        [sequence] = rig.send(queue, "a")
        reader.detach()
        assert rig.broker.settle_any(queue.queue, sequence)
    assert deliveries() - before < 100


def test_requeued_messages_are_not_remembered_when_they_have_gone(before: int) -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        [sequence] = rig.send(queue, "a")
        assert rig.broker.requeue(queue.queue, sequence, 0)
        rig.broker.flush()
        reader.settle()
    assert deliveries() - before < MANY // 2


def test_lazy_messages_over_the_budget_are_remembered_only_until_they_are_durable(
    before: int,
) -> None:
    rig = Rig()
    rig.broker.core.memory_budget = 0
    queue = rig.queue()
    reader = rig.read(queue)
    for _ in range(MANY):
        rig.send(queue, "a", durability=Durability.LAZY)
        reader.settle()
    assert deliveries() - before < 10
