"""What has ended is let go of, however long the broker runs."""

from __future__ import annotations

import gc

from sluicemq.broker import Delivery, Destination
from sluicemq.model.message import Durability
from tests.broker.support import DAY, OfType, Rig

MANY = 4000


def remembered(queue: Destination) -> int:
    """How many deliveries of the queue there are in the process."""
    gc.collect()
    return sum(
        isinstance(thing, Delivery) and thing.subscription is queue.queue
        for thing in gc.get_objects()
    )


def test_a_long_life_does_not_outlive_the_acknowledgement() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        rig.clock.advance(100)  # each expires in a tenth of a second of its own
        rig.send(queue, "a", expiration=rig.clock.wall + DAY)
        reader.settle()
    assert remembered(queue) < 10


def test_a_selector_that_nobody_serves_does_not_keep_what_others_took() -> None:
    rig = Rig()
    queue = rig.queue()
    rig.read(queue, 0, selector=OfType("red"))
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        rig.send(queue, "a", type="red")
        reader.settle()
    assert remembered(queue) < 100


def test_what_came_back_and_was_settled_by_number_leaves_no_trace() -> None:
    rig = Rig()
    queue = rig.queue()
    for _ in range(MANY):
        reader = rig.read(queue, 1)
        [sequence] = rig.send(queue, "a")
        reader.detach()
        assert rig.broker.settle_any(queue.queue, sequence)
    assert remembered(queue) < 100


def test_requeued_messages_are_not_remembered_when_they_have_gone() -> None:
    rig = Rig()
    queue = rig.queue()
    reader = rig.read(queue, 1)
    for _ in range(MANY):
        [sequence] = rig.send(queue, "a")
        assert rig.broker.requeue(queue.queue, sequence, 0)
        rig.broker.flush()
        reader.settle()
    assert remembered(queue) < MANY // 2


def test_lazy_messages_over_the_budget_are_remembered_only_until_they_are_durable() -> None:
    rig = Rig()
    rig.broker.core.memory_budget = 0
    queue = rig.queue()
    reader = rig.read(queue)
    for _ in range(MANY):
        rig.send(queue, "a", durability=Durability.LAZY)
        reader.settle()
    assert remembered(queue) < 10
