"""Acknowledgements are answered when they are written, and synced after a delay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.message import Durability
from tests.support.broker import BrokerFixture


class LazyJournal(MemoryJournal):
    """A journal that records whether each commit requested a sync.

    Data written without a sync is not durable. Nothing is written while the journal is `busy`.
    """

    __slots__ = ("busy", "sync_requests")

    def __init__(self) -> None:
        super().__init__()
        self.options = replace(self.options, flush_interval=100)
        self.sync_requests: list[bool] = []
        self.busy = False

    def commit(self, sync: bool = True) -> None:
        last = self._next - 1
        if self.busy or last == (self.durable if sync else self.written):
            return
        self.sync_requests.append(sync)
        if sync:
            super().commit()
        else:
            self.written = last
            self._on_written(last)


class LazyFixture(BrokerFixture):
    def __init__(self) -> None:
        self.disk = LazyJournal()
        super().__init__(journal=self.disk)

    @contextmanager
    def answered_when_written(self) -> Iterator[Callable[[], None]]:
        """Check that the yielded callback is called when the journal writes again, not before."""
        answers: list[str] = []
        self.disk.busy = True
        yield lambda: answers.append("a")
        assert answers == []
        self.disk.busy = False
        self.broker.flush()
        assert answers == ["a"]


def test_acknowledgement_is_confirmed_when_written_and_synced_after_delay() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    fixture.broker.flush()
    assert reader.got() == ["a"]
    fixture.disk.sync_requests.clear()
    with fixture.answered_when_written() as answer:
        fixture.broker.when_completed(answer)
        reader.acknowledge("a")
    assert fixture.disk.sync_requests == [False]
    assert fixture.disk.durable < fixture.disk.written
    fixture.wait(99)
    assert fixture.disk.sync_requests == [False]
    fixture.wait(1)
    assert fixture.disk.sync_requests == [False, True]
    fixture.wait(1000)
    assert fixture.disk.sync_requests == [False, True]


def test_delay_begins_when_write_completes() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a")
    assert reader.got() == ["a"]
    fixture.disk.busy = True
    reader.acknowledge("a")
    fixture.disk.sync_requests.clear()
    flush_requests: list[str] = []
    fixture.broker.on_flush_needed(lambda: flush_requests.append("flush"))
    fixture.disk.busy = False
    fixture.disk.commit(False)  # the writer thread reports it between two iterations
    assert flush_requests == ["flush"]
    assert fixture.disk.sync_requests == [False]
    fixture.wait(100)
    assert fixture.disk.sync_requests == [False, True]


def test_delay_ends_no_iteration_early() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a", "b", durability=Durability.LAZY)
    fixture.broker.flush()
    assert reader.got() == ["a", "b"]
    fixture.disk.sync_requests.clear()
    fixture.clock.advance(100)
    fixture.broker.acknowledge(reader.consumer, reader.unacked_by_body()["a"])
    fixture.broker.publish(queue, fixture.message(queue, "c", durability=Durability.LAZY))
    fixture.broker.tick()
    assert fixture.disk.sync_requests == []  # no sync for the later message
    fixture.broker.flush()
    assert fixture.disk.sync_requests == [True]


def test_acknowledgement_without_record_is_confirmed_at_end_of_iteration() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    reader = fixture.read(queue)
    fixture.send(queue, "a", durability=Durability.NONE)
    answers: list[str] = []
    fixture.broker.when_completed(lambda: answers.append("a"))
    assert answers == []
    reader.acknowledge("a")
    assert answers == ["a"]


def test_acknowledgement_of_retained_message_is_confirmed_when_written() -> None:
    fixture = LazyFixture()
    topic = fixture.topic(retain_without_subscriptions=True)
    reader = fixture.read(fixture.broker.subscribe(topic, "s"))
    fixture.send(topic, "a")
    fixture.broker.flush()
    assert reader.got() == ["a"]
    with fixture.answered_when_written() as answer:
        fixture.broker.when_completed(answer)
        reader.acknowledge("a")


def test_commit_of_acknowledgement_of_retained_message_waits_for_disk() -> None:
    fixture = LazyFixture()
    topic = fixture.topic(retain_without_subscriptions=True)
    [sequence] = fixture.send(topic, "a")
    reader = fixture.read(fixture.broker.subscribe(topic, "s", durable=True))
    fixture.broker.flush()
    assert reader.got() == ["a"]
    transaction = fixture.broker.transactions.begin()
    assert fixture.broker.transactions.acknowledge(transaction, reader.consumer, sequence)
    with fixture.answered_when_written() as answer:
        fixture.broker.transactions.commit(transaction, answer)
        fixture.broker.flush()


def test_acknowledgement_of_requeued_message_is_confirmed_when_written() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    reader = fixture.read(queue, 1, refill=False)
    [sequence] = fixture.send(queue, "a")
    fixture.broker.flush()
    reader.release()
    with fixture.answered_when_written() as answer:
        fixture.broker.when_completed(answer)
        assert fixture.broker.acknowledge_any(queue.queue, sequence)
        fixture.broker.flush()


def test_commit_with_waiting_client_is_synced() -> None:
    fixture = LazyFixture()
    queue = fixture.queue()
    fixture.send(queue, "a", durability=Durability.LAZY)
    fixture.broker.flush()
    assert fixture.disk.sync_requests == [False]
    confirmed: list[str] = []
    fixture.broker.when_durable(fixture.disk.written, lambda: confirmed.append("a"))
    fixture.broker.flush()
    assert confirmed == ["a"]
    assert fixture.disk.sync_requests == [False, True]
    fixture.send(queue, "b", durability=Durability.SYNC)
    fixture.broker.flush()
    assert fixture.disk.sync_requests == [False, True, True]
