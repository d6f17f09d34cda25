"""A message with durability sync is not visible or confirmed before it is on disk."""

from __future__ import annotations

from functools import partial

import pytest

from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture, bodies


class SlowJournal(MemoryJournal):
    """A journal in which nothing is durable before `sync`, however often the broker commits."""

    __slots__ = ()

    def commit(self, sync: bool = True) -> None:
        """Start a commit, which ends with `sync`."""

    def sync(self) -> None:
        """Report that the disk has synced."""
        super().commit()


class SlowFixture(BrokerFixture):
    """A broker whose journal syncs only on request."""

    def __init__(self) -> None:
        self.disk = SlowJournal()
        super().__init__(journal=self.disk)

    def sync(self) -> None:
        self.disk.sync()
        self.broker.flush()


def test_sync_message_is_neither_visible_nor_confirmed_before_sync() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    confirmed: list[int] = []
    [sequence] = fixture.send(queue, "a")
    fixture.broker.when_durable(sequence, lambda: confirmed.append(sequence))
    fixture.broker.flush()
    assert (reader.got(), bodies(queue), confirmed) == ([], [], [])
    assert queue.waiting == 1
    fixture.sync()
    assert (reader.got(), confirmed) == (["a"], [sequence])


def test_broker_schedules_flush_after_sync() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    fixture.send(queue, "a")
    flush_requests: list[str] = []
    fixture.broker.on_flush_needed(lambda: flush_requests.append("wake"))
    fixture.disk.sync()
    assert flush_requests == ["wake"]


@pytest.mark.parametrize("durability", [Durability.LAZY, Durability.NONE])
def test_unsynced_messages_do_not_wait_for_disk(durability: Durability) -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a", durability=durability)
    assert reader.got() == ["a"]


def test_confirmations_come_in_order_and_together_for_durable_messages() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    first, second = fixture.send(queue, "a", "b")
    confirmed: list[int] = []
    for sequence in (first, second):
        fixture.broker.when_durable(sequence, partial(confirmed.append, sequence))
    fixture.sync()
    assert confirmed == [first, second]
    fixture.broker.when_durable(first, lambda: confirmed.append(0))
    assert confirmed == [first, second, 0]


def test_sync_message_precedes_lazy_messages_published_later() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    fixture.send(queue, "sync")
    fixture.send(queue, "lazy", durability=Durability.LAZY)
    fixture.sync()
    assert fixture.read(queue).got() == ["sync", "lazy"]


def test_message_that_becomes_durable_after_its_time_is_not_delivered() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a", expiration=fixture.clock.wall + 100)
    fixture.clock.advance(100)
    fixture.sync()
    assert reader.got() == []
    assert queue.waiting == 0


def test_message_of_queue_deleted_meanwhile_is_dropped_but_confirmed() -> None:
    fixture = SlowFixture()
    queue = fixture.queue()
    confirmed: list[str] = []
    [sequence] = fixture.send(queue, "a")
    fixture.broker.when_durable(sequence, lambda: confirmed.append("a"))
    fixture.broker.remove(queue)
    successor = fixture.queue()
    fixture.sync()
    assert confirmed == ["a"]
    assert (successor.waiting, fixture.disk.stats().live) == (0, 0)
