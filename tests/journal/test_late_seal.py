"""Segments are sealed while the next ones are written: the order of writes, and the files after a
crash.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from sluicemq.journal import FileJournal, RecordType
from sluicemq.journal import compaction as compaction_module
from sluicemq.journal import recovery as recovery_module
from sluicemq.journal.backup import create
from sluicemq.journal.files import DurableEnd, DurableFile, read_durable
from sluicemq.journal.format import HEADER_BYTES, encode_record
from sluicemq.journal.inspect import check, dump
from sluicemq.journal.reader import read_records
from sluicemq.journal.segment import MappedSegment, build_index, encode_trailer, records_end
from sluicemq.journal.stored_backup import verify
from sluicemq.journal.writer import SegmentFile
from sluicemq.model.destination import Address
from sluicemq.model.errors import JournalDamaged, JournalError, JournalFailed
from tests.journal.support import (
    T0,
    TINY,
    live_of,
    put,
    recover,
    reopen,
    replace_os,
    segments_of,
    skipped_syncs,
)
from tests.support.journal import read_from

BODIES = [b"one", b"two", b"three"]


def flush(journal: FileJournal, sequence: int) -> None:
    """Wait until a record is durable, but not for jobs of the second thread."""
    journal.commit()
    while journal.durable < sequence:
        journal._writer.wait()
        journal.commit()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def bodies(directory: Path) -> list[bytes]:
    """Return the sequences of the messages, as another process reads them."""
    return [r.body for _, _, r in read_records(directory) if r.type == RecordType.MESSAGE]


class HeldSeals:
    """Stop the second thread before its first seal until `proceed` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proceed = threading.Event()
        seal = SegmentFile.seal

        def held(file: SegmentFile, sequence: int, names: Mapping[int, Address]) -> None:
            assert self.proceed.wait(60)
            seal(file, sequence, names)

        monkeypatch.setattr(SegmentFile, "seal", held)


class CrashedJournal(NamedTuple):
    """Two directories with the same three segments of one message each.

    crashed   no segment is sealed
    finished  the first two segments are sealed
    ends      end positions of the records of the first two segments
    """

    crashed: Path
    finished: Path
    ends: list[int]


@pytest.fixture
def crashed_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashedJournal:
    held_seals = HeldSeals(monkeypatch)
    journal = reopen(tmp_path / "finished")
    for body in BODIES[:2]:
        sequence = put(journal, body)
        journal.seal()
        flush(journal, sequence)
    flush(journal, put(journal, BODIES[2]))
    shutil.copytree(tmp_path / "finished", tmp_path / "crashed")
    held_seals.proceed.set()
    journal.close()
    monkeypatch.undo()
    firsts = [int(path.stem) for path in segments_of(tmp_path / "crashed")]
    assert len(firsts) == 3
    end_positions = [
        records_end(tmp_path / "crashed", first, following) for first, following in pairwise(firsts)
    ]
    return CrashedJournal(tmp_path / "crashed", tmp_path / "finished", end_positions)


# --- files after a crash -------------------------------------------------------------------------


def test_groups_continue_during_slow_seal(crashed_journal: CrashedJournal) -> None:
    paths = segments_of(crashed_journal.crashed)
    for path, end in zip(paths, crashed_journal.ends, strict=False):
        assert path.stat().st_size == end  # nothing of an index, and yet the next one is durable
    durable = read_durable(crashed_journal.crashed)
    assert durable is not None
    assert durable.segment == int(paths[2].stem)


def body_like_sealed_end(offset: int) -> bytes:
    """Return a body at `offset` of a segment that ends like a sealed segment."""
    index = encode_record(RecordType.INDEX, 1, T0, build_index(b"", 64, {}), flags=3)
    return bytes(8) + b"".join(index) + encode_trailer(offset + 8, 0, 0)


@pytest.mark.parametrize("is_last", [True, False])
def test_body_that_looks_like_index_does_not_seal_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Without preallocation, a file ends with its last record."""
    held_seals = HeldSeals(monkeypatch)
    journal = reopen(tmp_path / "running")
    put(journal, b"first")
    body = body_like_sealed_end(journal._fill + HEADER_BYTES)
    flush(journal, put(journal, body))
    expected = [b"first", body]
    if not is_last:
        journal.seal()
        flush(journal, put(journal, b"last"))
        expected.append(b"last")
    directory = tmp_path / "crashed"
    shutil.copytree(tmp_path / "running", directory)
    held_seals.proceed.set()
    journal.close()
    assert segments_of(directory)[0].read_bytes().endswith(body)
    assert bodies(directory) == expected
    assert check(directory).problems == []
    create(directory, tmp_path / "backup")
    assert verify(tmp_path / "backup").problems == []
    journal = reopen(directory)
    assert list(live_of(journal).values()) == expected
    journal.close()


def test_start_seals_segments_left_unsealed_by_crash(
    crashed_journal: CrashedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []

    class Published(DurableFile):
        def write(self, end: DurableEnd) -> None:
            published.append(end.segment)
            super().write(end)

    monkeypatch.setattr(recovery_module, "DurableFile", Published)
    recovery = recover(crashed_journal.crashed)
    assert published == [int(segments_of(crashed_journal.crashed)[-1].stem)]  # it never decreases
    assert recovery.report["torn_bytes"] == recovery.report["lost_bytes"] == 0
    assert recovery.report["live"] == 3
    recovery.close()
    paths = segments_of(crashed_journal.crashed)
    for path, original_path in zip(
        paths[:2], segments_of(crashed_journal.finished)[:2], strict=True
    ):
        repaired_segment, original = MappedSegment(path), MappedSegment(original_path)
        repaired_segment.verify()
        assert repaired_segment.index is not None
        assert original.index is not None
        assert repaired_segment.index.summary == original.index.summary
        for name, column in original.index.columns.items():
            assert repaired_segment.index.columns[name] == column
        repaired_segment.close()
        original.close()
    journal = reopen(crashed_journal.crashed)
    assert list(live_of(journal).values()) == BODIES
    journal.close()
    assert check(crashed_journal.crashed).problems == []


@pytest.mark.parametrize("lost", ["the rest", "pages of the rest", "pages of the begin"])
@pytest.mark.parametrize("number", [0, 1])
def test_torn_seal_is_repeated(crashed_journal: CrashedJournal, number: int, lost: str) -> None:
    path = segments_of(crashed_journal.crashed)[number]
    complete_bytes = segments_of(crashed_journal.finished)[number].read_bytes()
    end = crashed_journal.ends[number]
    assert len(complete_bytes) > end + 400
    before = contents(crashed_journal.crashed)
    # a write ends at any byte, pages do not; the steps meet every position in a unit of the format
    step = 1 if number == 0 and lost == "the rest" else 5
    for length in range(len(complete_bytes), end - 1, -step):
        for name, data in before.items():
            (crashed_journal.crashed / name).write_bytes(data)
        if lost == "the rest":
            torn_bytes = complete_bytes[:length]
        elif lost == "pages of the rest":
            torn_bytes = complete_bytes[:length] + bytes(len(complete_bytes) - length)
        else:
            torn_bytes = complete_bytes[:end] + bytes(length - end) + complete_bytes[length:]
        path.write_bytes(torn_bytes)
        if length % 7 == 0:  # another process reads it as it is
            assert check(crashed_journal.crashed).problems == []
            assert bodies(crashed_journal.crashed) == BODIES
        with skipped_syncs():
            recovery = recover(crashed_journal.crashed)
        assert recovery.report["live"] == 3
        recovery.close()
        view = MappedSegment(path)
        assert view.index is not None, length
        assert view.index_offset == end
        view.verify()
        view.close()


def test_crash_during_seals_at_start_loses_nothing(crashed_journal: CrashedJournal) -> None:
    path = segments_of(crashed_journal.crashed)[0]
    end = crashed_journal.ends[0]
    recover(crashed_journal.crashed).close()
    sealed_contents = contents(crashed_journal.crashed)
    for length in range(end, len(sealed_contents[path.name]) + 1, 7):
        path.write_bytes(sealed_contents[path.name][:length])  # the others are sealed already
        recovery = recover(crashed_journal.crashed)
        assert recovery.report["live"] == 3
        recovery.close()


@pytest.mark.parametrize("number", [0, 1])
def test_bit_flipped_before_end_of_unsealed_segment_stops_start(
    crashed_journal: CrashedJournal, number: int
) -> None:
    path = segments_of(crashed_journal.crashed)[number]
    data = path.read_bytes()
    (crashed_journal.crashed / "durable").unlink()  # only the next segment records what was on disk
    for position in range(crashed_journal.ends[number]):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        before = contents(crashed_journal.crashed)
        with pytest.raises(JournalError, match=path.name):
            recover(crashed_journal.crashed)
        assert contents(crashed_journal.crashed) == before
    path.write_bytes(data)
    recover(crashed_journal.crashed).close()


def test_checking_finds_bit_flipped_in_unsealed_segment(crashed_journal: CrashedJournal) -> None:
    path = segments_of(crashed_journal.crashed)[0]
    data = path.read_bytes()
    for position in range(64, crashed_journal.ends[0], 3):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        assert path.name in str(check(crashed_journal.crashed).problems[0])
        with pytest.raises(JournalDamaged, match=path.name):
            bodies(crashed_journal.crashed)


@pytest.mark.parametrize("number", [0, 1])
def test_byte_missing_before_end_of_unsealed_segment_stops_start(
    crashed_journal: CrashedJournal, number: int
) -> None:
    path = segments_of(crashed_journal.crashed)[number]
    data = path.read_bytes()
    for length in range(crashed_journal.ends[number]):
        path.write_bytes(data[:length])
        with pytest.raises(JournalDamaged, match=path.name):
            recover(crashed_journal.crashed)
    assert "ends here" in str(check(crashed_journal.crashed).problems[0])


def test_record_behind_end_given_by_next_segment_is_damage(crashed_journal: CrashedJournal) -> None:
    first, second, _ = segments_of(crashed_journal.crashed)
    data = first.read_bytes()
    first.write_bytes(data + second.read_bytes()[64:])
    with pytest.raises(JournalDamaged, match=rf"{first.name}, offset {len(data)}: "):
        recover(crashed_journal.crashed)


def test_missing_index_covered_by_snapshot_is_damage(crashed_journal: CrashedJournal) -> None:
    for path in segments_of(crashed_journal.finished)[:2]:
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        with pytest.raises(JournalDamaged, match=f"{path.name}.*no intact end"):
            recover(crashed_journal.finished)
        assert "no intact end" in str(check(crashed_journal.finished).problems[0])
        path.write_bytes(data)


def test_segment_header_contains_end_of_previous_segment(crashed_journal: CrashedJournal) -> None:
    first, second, _ = (MappedSegment(path) for path in segments_of(crashed_journal.finished))
    assert second.header.previous_end == first.index_offset == crashed_journal.ends[0]
    assert first.header.previous_end == 0
    field_bytes = bytes(second.view[56:60])
    assert int.from_bytes(field_bytes, "little") * 8 == first.index_offset


def test_replaced_shorter_segment_is_detected(
    crashed_journal: CrashedJournal, tmp_path: Path
) -> None:
    shutil.copytree(crashed_journal.crashed, tmp_path / "other")
    for path in segments_of(tmp_path / "other")[1:]:
        path.unlink()
    (tmp_path / "other" / "durable").unlink()
    (path,) = segments_of(tmp_path / "other")
    path.write_bytes(path.read_bytes()[:-64])
    recover(tmp_path / "other").close()  # sealed, with its remaining records
    shutil.copy(path, crashed_journal.crashed)
    with pytest.raises(JournalDamaged, match="another segment"):
        recover(crashed_journal.crashed)


# --- order of writes -----------------------------------------------------------------------------


class RecordedSyscalls:
    """Replacement of `os` in the writer that records syncs and renames with their file names."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def _record(self, call: str, fd: int) -> None:
        if threading.current_thread().name == "journal":
            self.seen.append((call, os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._record("pwrite", fd)
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        self._record("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        self._record("fsync", fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)
        if threading.current_thread().name == "journal":
            self.seen.append(("rename", new.name))


def test_durability_of_group_waits_for_groups_and_segment_switch_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = reopen(tmp_path)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    put(journal, b"x" * 1500)
    journal.sync()
    events = RecordedSyscalls()
    replace_os(monkeypatch, events)
    put(journal, b"x" * 600)
    journal.sync()  # full; the snapshot's mark is the next segment's first group
    put(journal)
    journal.sync()
    full_name, growing_name = (path.name for path in segments_of(tmp_path))
    unnamed = growing_name.replace(".segment", ".tmp")
    assert events.seen == [
        ("pwrite", full_name),
        ("fdatasync", full_name),
        ("pwrite", "durable"),
        ("pwrite", unnamed),  # header
        ("pwrite", unnamed),  # group
        ("fdatasync", unnamed),
        ("rename", growing_name),
        ("fsync", tmp_path.name),
        ("pwrite", "durable"),
        ("pwrite", growing_name),
        ("fdatasync", growing_name),
        ("pwrite", "durable"),
    ]
    journal.close()


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_group_in_new_segment_is_durable_after_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    journal = reopen(tmp_path / "a")
    first = put(journal, b"one")
    journal.seal()
    journal._snapshot_due = False  # its mark would be the first group
    flush(journal, first)
    at_call = threading.Event()
    proceed = threading.Event()

    class HeldDisk:
        def __getattr__(self, name: str) -> object:
            function = getattr(os, name)
            if name != call or threading.current_thread().name != "journal":
                return function

            def held(*arguments: object) -> object:
                at_call.set()
                assert proceed.wait(60)
                return function(*arguments)

            return held

    replace_os(monkeypatch, HeldDisk())
    second = put(journal, b"two")
    journal.commit()
    assert at_call.wait(60)
    journal._writer.collect()
    assert journal.durable < second
    durable = read_durable(tmp_path / "a")
    assert durable is not None
    assert durable.sequence == first
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    proceed.set()
    journal.sync()
    assert journal.durable >= second
    journal.close()
    monkeypatch.undo()

    journal = reopen(tmp_path / "b")
    live = live_of(journal)
    assert live.pop(first) == b"one"
    assert live == ({} if call == "rename" else {second: b"two"})
    journal.close()
    assert not list((tmp_path / "b").glob("*.tmp"))


def test_snapshot_waits_for_seals_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_seals = HeldSeals(monkeypatch)
    journal = reopen(tmp_path)
    put(journal)
    journal.seal()
    flush(journal, put(journal))
    assert journal._compactor.is_taking_snapshot
    assert not list(tmp_path.glob("*.snapshot"))
    held_seals.proceed.set()
    journal.sync()
    assert list(tmp_path.glob("*.snapshot"))
    journal.close()


def test_messages_of_segment_that_is_being_sealed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_seals = HeldSeals(monkeypatch)
    journal = reopen(tmp_path)
    first = put(journal, b"one")
    journal.seal()
    second = put(journal, b"two")
    flush(journal, second)
    for _ in range(2):
        assert (journal.fetch(first).body, journal.fetch(second).body) == (b"one", b"two")
        assert bodies(tmp_path) == [b"one", b"two"]
        assert [e.message.body for e in dump(tmp_path) if e.message] == [b"one", b"two"]
        assert next(read_from(journal, first)).sequence == first
        report = check(tmp_path)
        assert (report.problems, report.live, report.segments) == ([], 2, 2)
        held_seals.proceed.set()
        journal.sync()
    journal.close()


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "name"),
    [(SegmentFile, "seal"), (compaction_module, "write_snapshot")],
)
def test_failure_of_second_thread_ends_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    failures: list[JournalError] = []
    journal = FileJournal.open(tmp_path, TINY, on_failure=failures.append)
    first = put(journal, b"x" * 1500)
    flush(journal, first)
    may_fail = threading.Event()
    may_sync = threading.Event()

    def fail(*arguments: object) -> None:
        assert may_fail.wait(60)
        raise OSError(errno.EIO, "Input/output error")

    class HeldDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fdatasync(self, fd: int) -> None:
            assert may_sync.wait(60)
            os.fdatasync(fd)

    monkeypatch.setattr(owner, name, fail)
    second = put(journal, b"y" * 600)
    journal.seal()
    third = put(journal, b"z" * 1500)
    flush(journal, third)
    assert journal.durable >= third  # nothing waits for that thread ...
    reports: list[int] = []
    journal.observe(on_durable=reports.append)
    replace_os(monkeypatch, HeldDisk())
    fourth = put(journal)
    journal.commit()
    may_fail.set()
    while not failures and journal._writer.outstanding > 1:  # the group is held
        journal._writer.wait()
    may_sync.set()
    with pytest.raises(JournalFailed, match="Input/output error"):
        journal.sync()
    assert reports == []  # ... but once it has failed, no group counts
    assert journal.durable < fourth
    with pytest.raises(JournalFailed, match="Input/output error"):
        put(journal)
    assert len(failures) == 1
    assert str(tmp_path) in str(failures[0])
    journal.close()

    monkeypatch.undo()
    journal = reopen(tmp_path)
    assert set(live_of(journal)) >= {first, second, third}
    journal.close()


def test_second_thread_does_nothing_after_failure_of_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_seals = HeldSeals(monkeypatch)
    journal = FileJournal.open(tmp_path, TINY, on_failure=lambda error: None)
    put(journal)
    journal.seal()
    flush(journal, put(journal))  # now a seal and a snapshot are waiting
    full = segments_of(tmp_path)[0]

    class FailingDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fdatasync(self, fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

    replace_os(monkeypatch, FailingDisk())
    put(journal)
    journal.commit()
    while not journal._append_error:
        journal._writer.wait()
    held_seals.proceed.set()
    journal.close()
    assert not list(tmp_path.glob("*.snapshot"))
    assert full.exists()
