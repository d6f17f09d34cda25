"""Who waits for what: acknowledgements are answered when they are written, and synced soon."""

from __future__ import annotations

from sluicemq.journal.memory import MemoryJournal
from sluicemq.model.message import Durability
from tests.broker.support import Rig


class LazyJournal(MemoryJournal):
    """Notes which commits ask for a sync. What is written without one is not durable, and nothing
    is written while it is `busy`."""

    __slots__ = ("asked", "busy")

    def __init__(self) -> None:
        super().__init__()
        self.sync_delay = 100
        self.asked: list[bool] = []
        self.busy = False

    def commit(self, sync: bool = True) -> None:
        last = self._next - 1
        if self.busy or last == (self.durable if sync else self.written):
            return
        self.asked.append(sync)
        if sync:
            super().commit()
        else:
            self.written = last
            self.on_written(last)


class LazyRig(Rig):
    def __init__(self) -> None:
        self.disk = LazyJournal()
        super().__init__(journal=self.disk)


def test_an_acknowledgement_is_answered_when_it_is_written_and_synced_after_the_delay() -> None:
    rig = LazyRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a")
    rig.broker.flush()
    assert reader.got() == ["a"]
    rig.disk.asked.clear()
    answered: list[str] = []
    rig.disk.busy = True
    rig.broker.when_settled(lambda: answered.append("a"))
    reader.settle("a")
    assert answered == []
    rig.disk.busy = False
    rig.broker.flush()
    assert answered == ["a"]
    assert rig.disk.asked == [False]
    assert rig.disk.durable < rig.disk.written
    rig.wait(99)
    assert rig.disk.asked == [False]
    rig.wait(1)
    assert rig.disk.asked == [False, True]
    rig.wait(1000)
    assert rig.disk.asked == [False, True]


def test_the_delay_begins_when_the_disk_has_answered() -> None:
    rig = LazyRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a")
    assert reader.got() == ["a"]
    rig.disk.busy = True
    reader.settle("a")
    rig.disk.asked.clear()
    wakes: list[str] = []
    rig.broker.wake = lambda: wakes.append("wake")
    rig.disk.busy = False
    rig.disk.commit(False)  # as another thread reports it, between two turns
    assert wakes == ["wake"]
    assert rig.disk.asked == [False]
    rig.wait(100)
    assert rig.disk.asked == [False, True]


def test_the_delay_ends_no_turn_before_its_time() -> None:
    rig = LazyRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a", "b", durability=Durability.LAZY)
    rig.broker.flush()
    assert reader.got() == ["a", "b"]
    rig.disk.asked.clear()
    rig.clock.advance(100)
    rig.broker.settle(reader.consumer, reader.held()["a"])
    rig.broker.publish(queue, rig.message(queue, "c", durability=Durability.LAZY))
    rig.broker.tick()
    assert rig.disk.asked == []  # what was sent after the acknowledgement is not ahead of it
    rig.broker.flush()
    assert rig.disk.asked == [True]


def test_without_a_record_to_wait_for_the_answer_comes_at_the_end_of_the_turn() -> None:
    rig = LazyRig()
    queue = rig.queue()
    reader = rig.read(queue)
    rig.send(queue, "a", durability=Durability.NONE)
    answered: list[str] = []
    rig.broker.when_settled(lambda: answered.append("a"))
    assert answered == []
    reader.settle("a")
    assert answered == ["a"]


def test_a_commit_that_somebody_waits_for_is_synced() -> None:
    rig = LazyRig()
    queue = rig.queue()
    rig.send(queue, "a", durability=Durability.LAZY)
    rig.broker.flush()
    assert rig.disk.asked == [False]
    confirmed: list[str] = []
    rig.broker.when_durable(rig.disk.written, lambda: confirmed.append("a"))
    rig.broker.flush()
    assert confirmed == ["a"]
    assert rig.disk.asked == [False, True]
    rig.send(queue, "b", durability=Durability.SYNC)
    rig.broker.flush()
    assert rig.disk.asked == [False, True, True]
