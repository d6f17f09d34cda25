"""Steps of the wall clock and restarts: due messages stay due, and expirations continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import Broker, ManualClock, Window
from sluicemq.broker.records import MAX_STEPS, ClockLog, EventRecorder
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from tests.support.broker import Reader

QUEUE = Address(Kind.QUEUE, "q")
HOUR = 3_600_000
DAY = 24 * HOUR


class RestartableBroker:
    """A broker on disk with a manual clock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.journal = FileJournal.open(self.directory)
        self.broker = Broker(self.journal, self.clock)
        self.journal.set_snapshot_source(lambda: snapshot(self.broker))
        recover(self.broker, self.journal.recovery)
        self.broker.refresh()
        self.queue = self.broker.destinations.resolve(QUEUE).queue

    def restart(self, *, clock_step_back: int = 0, seal: bool = False) -> None:
        """Stop, set the wall clock back, start; with `seal` a snapshot is taken before."""
        self.broker.flush()
        if seal:
            self.journal.seal()
        self.journal.sync()
        self.journal.close()
        self.clock.wall -= clock_step_back
        self.start()

    def set_wall(self, change: int) -> None:
        self.clock.wall += change
        self.broker.refresh()

    def send(self, body: str, *, delay: int = 0, ttl: int = 0) -> None:
        wall = self.clock.wall
        message = Message(
            QUEUE,
            body.encode(),
            timestamp=wall,
            durability=Durability.SYNC,
            expiration=wall + ttl if ttl else 0,
            deliver_at=wall + delay if delay else 0,
        )
        self.broker.publish(self.broker.destinations.resolve(QUEUE), message)
        self.broker.flush()
        self.journal.sync()
        self.broker.flush()

    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.broker.refresh()
        self.broker.tick()
        self.broker.flush()

    def ready(self) -> list[str]:
        """Return the bodies that a consumer would get."""
        return [
            self.journal.fetch(delivery.sequence).body.decode()
            for delivery in self.queue.browse()
            if delivery.sequence not in self.queue.scheduled
        ]


@pytest.fixture
def broker(tmp_path: Path) -> RestartableBroker:
    return RestartableBroker(tmp_path)


@pytest.mark.parametrize("seal", [False, True], ids=["replayed", "snapshot"])
@pytest.mark.parametrize("clock_step_back", [0, 2 * HOUR, DAY])
def test_ready_message_stays_ready_when_clock_was_set_back_before_restart(
    broker: RestartableBroker, clock_step_back: int, seal: bool
) -> None:
    broker.send("later", delay=HOUR)
    broker.wait(HOUR)
    assert broker.ready() == ["later"]
    broker.restart(clock_step_back=clock_step_back, seal=seal)
    assert broker.ready() == ["later"]
    # and after another start, which finds no further step
    broker.restart(seal=seal)
    assert broker.ready() == ["later"]


@pytest.mark.parametrize("seal", [False, True], ids=["replayed", "snapshot"])
@pytest.mark.parametrize("change", [DAY, -DAY], ids=["ahead", "back"])
def test_clock_step_while_running_changes_neither_delay_nor_ttl_after_restart(
    broker: RestartableBroker, change: int, seal: bool
) -> None:
    broker.send("due", delay=HOUR)
    broker.send("mortal", ttl=3 * HOUR)
    broker.wait(HOUR)
    broker.send("scheduled", delay=HOUR)
    broker.set_wall(change)
    broker.send("new", ttl=HOUR)
    broker.restart(seal=seal)
    assert broker.ready() == ["due", "mortal", "new"]
    broker.wait(HOUR + 200)
    assert broker.ready() == ["due", "mortal", "scheduled"]
    broker.wait(HOUR)
    assert broker.ready() == ["due", "scheduled"]


def test_clock_set_back_does_not_prolong_ttl(broker: RestartableBroker) -> None:
    broker.send("mortal", ttl=2 * HOUR)
    broker.wait(HOUR)
    broker.send("young", ttl=2 * HOUR)
    broker.broker.core.clock_log.note_time()
    broker.restart(clock_step_back=DAY)
    broker.wait(HOUR + 200)
    assert broker.ready() == ["young"]
    broker.restart()
    broker.wait(HOUR + 200)
    assert broker.ready() == []


def test_delivery_before_step_back_does_not_count_as_another_step(
    broker: RestartableBroker,
) -> None:
    broker.send("mortal", ttl=HOUR)
    broker.broker.attach(broker.queue, Reader(broker.broker), Window(1, True))
    broker.broker.flush()
    broker.set_wall(-DAY)
    broker.restart()
    broker.wait(200)
    assert broker.ready() == ["mortal"]


def test_message_from_after_step_uses_new_clock(broker: RestartableBroker) -> None:
    broker.send("old")
    broker.restart(clock_step_back=365 * DAY)
    broker.send("new", ttl=HOUR)
    broker.send("scheduled", delay=HOUR)
    broker.restart()
    assert broker.ready() == ["old", "new"]
    broker.wait(HOUR + 200)
    assert broker.ready() == ["old", "scheduled"]


def test_moved_message_keeps_its_delay_after_clock_was_set_back(
    broker: RestartableBroker,
) -> None:
    broker.send("later", delay=HOUR)
    broker.wait(HOUR)
    broker.set_wall(-DAY)
    [delivery] = broker.queue.browse()
    broker.broker.operations.copy(delivery, broker.broker.destinations.resolve(QUEUE))
    broker.broker.flush()
    broker.journal.sync()
    assert broker.ready() == ["later", "later"]


def test_steps_are_bounded_and_unneeded_ones_are_dropped() -> None:
    clock = ManualClock()
    journal = MemoryJournal()
    log = ClockLog(journal, clock, EventRecorder(journal, clock))
    for _ in range(MAX_STEPS + 10):
        clock.wall += 2000
        log.detect_step()
    assert len(log.steps) == MAX_STEPS
    last = log.steps[-1][0]
    assert log.epoch_of(last) == clock.epoch
    assert log.epoch_of(last - 1) == clock.epoch - 2000
    log.drop_before(last)
    assert log.steps == []


def test_small_difference_is_not_clock_step() -> None:
    clock = ManualClock()
    journal = MemoryJournal()
    log = ClockLog(journal, clock, EventRecorder(journal, clock))
    clock.wall += 999
    log.detect_step()
    assert log.steps == []
    clock.wall += 1
    log.detect_step()
    assert [step for _, step in log.steps] == [1000]
