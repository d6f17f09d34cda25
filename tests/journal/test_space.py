"""A full file system: the journal waits for space, writes acknowledgements to its reserve, and
reclaims space."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sluicemq.broker import Broker, ManualClock
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.journal.snapshot import MAX_SPAN
from sluicemq.journal.space import RESERVE_NAME, SpaceLevel, SpaceReport
from sluicemq.model.errors import JournalError, JournalFailed, LowDiskSpace
from sluicemq.model.message import Durability, Message
from tests.faults import filesystem
from tests.faults.filesystem import SmallFilesystem
from tests.journal.support import crash, put, take

MIB = 1 << 20
SLICE = 1 << 19
OPTIONS = JournalOptions(
    segment_bytes=2 * MIB,
    preallocate_bytes=256 * 1024,
    reserve_bytes=4 * MIB,
    disk_free_limit_bytes=8 * MIB,
    disk_free_limit_percent=0.0,
    compaction_threshold=0.0,
)


class JournalOnSmallDisk:
    """A journal on a file system of its own, and the event loop of its owner."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.others = 0
        self.size = 64 * MIB
        self.filesystem = SmallFilesystem(directory, lambda: (self.size, self.others))
        self.filesystem.install()
        self.levels: list[SpaceLevel] = []
        self.warnings: list[str] = []
        self.calls: list[Callable[[], None]] = []
        self.called = threading.Event()

    def notify(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
        self.called.set()

    def open(self, options: JournalOptions = OPTIONS) -> FileJournal:
        journal = FileJournal.open(
            self.directory,
            options,
            self.notify,
            self._failed,
            on_warning=self.warnings.append,
            wait_for_space=True,
        )
        journal.observe(on_space=self._changed)
        journal.set_snapshot_source(bytes)
        journal.recovery.close()
        self.check(journal)
        return journal

    def check(self, journal: FileJournal) -> None:
        journal.measure_space()
        journal.check_space()

    def _failed(self, error: JournalError) -> None:
        raise AssertionError(str(error))

    def _changed(self, report: SpaceReport) -> None:
        self.levels.append(report.level)

    def fill(self, left: int = 0) -> None:
        """Leave only `left` bytes of the file system free."""
        self.others = self.size - self.filesystem.used - left

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Run the callbacks of the journal's threads."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            self.called.wait(0.02)
            self.called.clear()
            calls, self.calls = self.calls, []
            for call in calls:
                call()

    def check_until(self, journal: FileJournal, condition: Callable[[], bool]) -> None:
        """Check the space until the condition is true."""

        def checked() -> bool:
            self.check(journal)
            return condition()

        self.run_until(checked)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[JournalOnSmallDisk]:
    small_disk = JournalOnSmallDisk(tmp_path)
    yield small_disk
    small_disk.filesystem.uninstall()


def test_level_follows_free_space_with_hysteresis(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    assert small_disk.levels == []
    small_disk.fill(7 * MIB)
    small_disk.check(journal)
    assert small_disk.levels == [SpaceLevel.LOW]
    small_disk.fill(9 * MIB)  # above the threshold, and not a quarter above it
    small_disk.check(journal)
    assert small_disk.levels == [SpaceLevel.LOW]
    small_disk.fill(11 * MIB)
    small_disk.check(journal)
    assert small_disk.levels == [SpaceLevel.LOW, SpaceLevel.ENOUGH]
    journal.close()


def test_threshold_is_at_most_quarter_of_small_file_system(small_disk: JournalOnSmallDisk) -> None:
    small_disk.size = 16 * MIB
    journal = small_disk.open()
    state = journal.space_state()
    assert state.level == SpaceLevel.ENOUGH
    assert (state.threshold, state.reserve, state.reserve_size) == (4 * MIB, MIB, MIB)
    journal.close()


def test_acknowledgements_go_to_reserve_of_full_disk(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    sequences = [put(journal, bytes(1000)) for _ in range(3)]
    journal.sync()
    small_disk.fill()
    sequences_written = [take(journal, sequences[0])]
    while not journal.space.is_using_reserve:  # space reserved ahead is used first
        sequences_written.append(take(journal, *range(1, 1000)))
        journal.commit()
        small_disk.run_until(lambda: journal.durable >= sequences_written[-1])
    assert small_disk.levels[0] == SpaceLevel.LOW
    assert SpaceLevel.EXHAUSTED not in small_disk.levels
    crash(journal)
    journal = small_disk.open()
    assert journal.space.low
    assert list(journal.addresses)
    journal.close()


def test_journal_waits_while_reserve_is_used_up(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    put(journal, bytes(1000))
    journal.sync()
    small_disk.fill()
    while not journal.space.exhausted:
        last = put(journal, bytes(100_000))  # a record whose space is not reclaimed
        journal.commit()
        small_disk.run_until(lambda s=last: journal.durable >= s or journal.space.exhausted)
    small_disk.run_until(lambda: SpaceLevel.EXHAUSTED in small_disk.levels)
    assert journal.durable < last
    assert journal.space_state().reserve == MIB  # kept for indexes and snapshots
    small_disk.others -= 40 * MIB
    small_disk.check(journal)
    small_disk.run_until(lambda: journal.durable >= last)
    small_disk.check(journal)
    small_disk.run_until(lambda: not journal.space.is_using_reserve)
    small_disk.check(journal)
    assert small_disk.levels[-1] == SpaceLevel.ENOUGH
    assert os.stat(small_disk.directory / RESERVE_NAME).st_size == 4 * MIB
    journal.close()


def test_journal_that_waits_for_space_accepts_no_more_numbers_than_recovery(
    small_disk: JournalOnSmallDisk,
) -> None:
    journal = small_disk.open()
    broker = Broker(journal, ManualClock())
    topic = broker.destinations.topic("without subscribers")
    small_disk.fill()
    while not journal.space.exhausted:
        last = put(journal, bytes(100_000))
        journal.commit()
        small_disk.run_until(lambda s=last: journal.durable >= s or journal.space.exhausted)
    small_disk.run_until(lambda: journal.space_state().level == SpaceLevel.EXHAUSTED)
    small_disk.check(journal)

    def send() -> None:
        broker.publish(topic, Message(topic.address, b"x", durability=Durability.NONE))
        broker.flush()

    def send_many() -> None:
        for _ in range(2 * MAX_SPAN // SLICE):
            send()
            assign_numbers(journal, SLICE)

    send()
    with pytest.raises(LowDiskSpace, match="full"):
        send_many()
    small_disk.others -= 40 * MIB
    small_disk.check_until(journal, lambda: not journal.space.low)
    small_disk.run_until(lambda: journal.durable >= last)
    last = put(journal, b"after the stall")
    broker.flush()
    send()
    small_disk.run_until(lambda: journal.durable >= last)
    crash(journal)
    journal = small_disk.open()
    assert journal.fetch(last).body == b"after the stall"
    journal.close()


def assign_numbers(journal: FileJournal, count: int) -> None:
    """Assign sequence numbers to messages that are not journaled, as `next_sequence` does."""
    journal._live.extend(bytes(count))
    journal._offsets.frombytes(bytes(journal._offsets.itemsize * count))
    journal._next += count
    journal.next_sequence()


@pytest.mark.parametrize("preallocate_bytes", [0, 256 * 1024])
def test_small_group_waits_without_reserve(
    small_disk: JournalOnSmallDisk, monkeypatch: pytest.MonkeyPatch, preallocate_bytes: int
) -> None:
    """On a fast disk, the owner's thread writes small groups itself, but never waits for space."""
    monkeypatch.setattr(filesystem, "BLOCK", 1)
    options = replace(OPTIONS, reserve_bytes=0, preallocate_bytes=preallocate_bytes)
    journal = small_disk.open(options)
    journal._average_sync_time = 0.0
    last = put(journal)
    journal.commit()
    small_disk.run_until(lambda: journal.durable >= last)
    small_disk.fill()
    file = journal._file
    # the record fills the reserved space exactly, and its entry in the index finds none
    left = file._reserved - file.end - file._index_bytes
    last = put(journal, bytes(max(left, 2 * HEADER_BYTES) // 8 * 8 - HEADER_BYTES))
    journal.commit()
    small_disk.run_until(lambda: journal.space.exhausted)
    assert journal.durable < last
    small_disk.others -= 40 * MIB
    small_disk.check(journal)
    small_disk.run_until(lambda: journal.durable >= last)
    journal.close()


def test_journal_without_notification_fails_on_full_disk(small_disk: JournalOnSmallDisk) -> None:
    small_disk.open().close()
    failures: list[JournalError] = []
    journal = FileJournal.open(small_disk.directory, OPTIONS, on_failure=failures.append)
    small_disk.fill()
    put(journal, bytes(6 * MIB))
    with pytest.raises(JournalFailed, match="No space left"):
        journal.sync()
    assert len(failures) == 1
    journal.close()


def test_space_of_acked_messages_is_reclaimed_while_it_is_low(
    small_disk: JournalOnSmallDisk,
) -> None:
    journal = small_disk.open()
    sequences = [put(journal, bytes(100_000)) for _ in range(60)]
    journal.sync()
    small_disk.fill()
    small_disk.check(journal)
    before = small_disk.filesystem.used
    last_sequence = take(journal, *sequences)
    journal.commit()
    small_disk.run_until(lambda: journal.durable >= last_sequence)

    small_disk.check_until(journal, lambda: small_disk.filesystem.used < before - 5 * MIB)
    small_disk.check_until(journal, lambda: not journal.space.is_using_reserve)
    journal.close()


def test_start_on_full_disk_uses_reserve(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    sequence = put(journal, b"kept")
    journal.sync()
    crash(journal)
    small_disk.fill()
    journal = small_disk.open()
    assert small_disk.levels == [SpaceLevel.LOW]
    assert live_of_reader(journal, sequence) == b"kept"
    last_sequence = take(journal, sequence)
    journal.commit()
    small_disk.run_until(lambda: journal.durable >= last_sequence)
    journal.close()


def test_start_without_any_space_waits(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    sequence = put(journal, b"kept")
    journal.sync()
    crash(journal)
    (small_disk.directory / RESERVE_NAME).unlink()
    small_disk.fill(4096 - preallocated(list_segments(small_disk.directory), small_disk))
    journal = small_disk.open()
    assert journal.space.exhausted
    assert live_of_reader(journal, sequence) == b"kept"
    small_disk.others -= 40 * MIB
    small_disk.check(journal)
    last_sequence = take(journal, sequence)
    journal.commit()
    small_disk.run_until(lambda: journal.durable >= last_sequence)
    journal.close()


def preallocated(firsts: list[int], small_disk: JournalOnSmallDisk) -> int:
    """Return the bytes that recovery frees of the last segment: all but its first block."""
    path = segment_path(small_disk.directory, firsts[-1])
    return os.stat(path).st_blocks * 512 - 4096


def test_start_without_any_space_names_directory(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open()
    sequence = put(journal, b"kept")
    for _ in range(100):
        put(journal)  # their index takes more than a block
    journal.sync()
    crash(journal)
    (small_disk.directory / RESERVE_NAME).unlink()
    small_disk.fill(-MIB)
    with pytest.raises(JournalError, match="Free space") as error:
        small_disk.open()
    assert str(small_disk.directory) in str(error.value)
    small_disk.others = 0
    journal = small_disk.open()
    assert live_of_reader(journal, sequence) == b"kept"
    journal.close()


def live_of_reader(journal: FileJournal, sequence: int) -> bytes:
    return journal.fetch(sequence).body


def test_error_of_full_disk_names_path(small_disk: JournalOnSmallDisk) -> None:
    small_disk.fill()
    with pytest.raises(JournalError, match="Free space") as error:
        FileJournal.open(small_disk.directory, OPTIONS)
    assert str(small_disk.directory) in str(error.value)


def test_slots_are_reported_and_dropped_only_if_configured(small_disk: JournalOnSmallDisk) -> None:
    journal = small_disk.open(OPTIONS)
    journal.slots.create("late")
    sequences = [put(journal, bytes(100_000)) for _ in range(60)]
    take(journal, *sequences)
    journal.sync()
    small_disk.fill(6 * MIB)
    small_disk.check_until(journal, lambda: bool(journal.bytes_held_by_slots()))
    assert journal.bytes_held_by_slots()["late"] > 2 * MIB
    assert not journal.slots.get("late").lost
    journal.sync()
    journal.close()

    journal = small_disk.open(replace(OPTIONS, invalidate_slots_on_low_disk_space=True))
    small_disk.check_until(journal, lambda: journal.slots.get("late").lost)
    small_disk.check_until(journal, lambda: len(list_segments(small_disk.directory)) < 3)
    assert journal.bytes_held_by_slots() == {}
    reason = "disk space was low (journal.invalidate_slots_on_low_disk_space)"
    assert reason in journal.slots.get("late").describe_loss("late")
    assert small_disk.warnings == [
        "the slot late is lost: disk space is low (journal.invalidate_slots_on_low_disk_space)"
    ]
    journal.close()
