"""A message that asks for it is not seen, and not confirmed, before it is on disk."""

from __future__ import annotations

from functools import partial

import pytest

from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.message import Durability
from tests.broker.support import Rig, bodies


class SlowJournal(MemoryJournal):
    """Nothing is durable before `sync`, however often the broker commits."""

    __slots__ = ()

    def commit(self, sync: bool = True) -> None:
        """Asked for; takes until `sync`."""

    def sync(self) -> None:
        """The disk has answered."""
        super().commit()


class SlowRig(Rig):
    """A broker whose disk answers when it is told to."""

    def __init__(self) -> None:
        self.disk = SlowJournal()
        super().__init__(journal=self.disk)

    def sync(self) -> None:
        self.disk.sync()
        self.broker.flush()


def test_a_sync_message_is_neither_seen_nor_confirmed_before_the_disk_answers() -> None:
    rig = SlowRig()
    queue = rig.queue()
    reader = rig.read(queue)
    confirmed: list[int] = []
    [sequence] = rig.send(queue, "a")
    rig.broker.when_durable(sequence, lambda: confirmed.append(sequence))
    rig.broker.flush()
    assert (reader.got(), bodies(queue), confirmed) == ([], [], [])
    assert queue.waiting == 1
    rig.sync()
    assert (reader.got(), confirmed) == (["a"], [sequence])


def test_the_broker_asks_for_a_flush_when_the_disk_has_answered() -> None:
    rig = SlowRig()
    queue = rig.queue()
    rig.send(queue, "a")
    wakes: list[str] = []
    rig.broker.wake = lambda: wakes.append("wake")
    rig.disk.sync()
    assert wakes == ["wake"]


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_other_messages_do_not_wait_for_the_disk(durability: Durability) -> None:
    rig = SlowRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a", durability=durability)
    assert reader.got() == ["a"]


def test_confirmations_come_in_order_and_at_once_for_what_is_durable() -> None:
    rig = SlowRig()
    queue = rig.queue()
    first, second = rig.send(queue, "a", "b")
    confirmed: list[int] = []
    for sequence in (first, second):
        rig.broker.when_durable(sequence, partial(confirmed.append, sequence))
    rig.sync()
    assert confirmed == [first, second]
    rig.broker.when_durable(first, lambda: confirmed.append(0))
    assert confirmed == [first, second, 0]


def test_a_sync_message_takes_its_place_before_lazy_ones_that_overtook_it() -> None:
    rig = SlowRig()
    queue = rig.queue()
    rig.send(queue, "sync")
    rig.send(queue, "lazy", durability=Durability.LAZY)
    rig.sync()
    assert rig.read(queue).got() == ["sync", "lazy"]


def test_a_message_that_becomes_durable_after_its_time_is_not_delivered() -> None:
    rig = SlowRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a", expiration=rig.clock.wall + 100)
    rig.clock.advance(100)
    rig.sync()
    assert reader.got() == []
    assert queue.waiting == 0


def test_a_message_of_a_queue_that_was_removed_meanwhile_is_dropped_but_confirmed() -> None:
    rig = SlowRig()
    queue = rig.queue()
    confirmed: list[str] = []
    [sequence] = rig.send(queue, "a")
    rig.broker.when_durable(sequence, lambda: confirmed.append("a"))
    rig.broker.remove(queue)
    successor = rig.queue()
    rig.sync()
    assert confirmed == ["a"]
    assert (successor.waiting, rig.disk.stats().live) == (0, 0)
