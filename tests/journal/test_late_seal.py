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
from tests.journal.support import T0, TINY, live_of, put, recover, reopen, replace_os, segments_of
from tests.support.journal import read_from

BODIES = [b"one", b"two", b"three"]


def flush(journal: FileJournal, sequence: int) -> None:
    """Wait until a record is durable, but not for what the second thread has to do."""
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
    """The second thread stops before its first seal until `proceed` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proceed = threading.Event()
        seal = SegmentFile.seal

        def held(file: SegmentFile, sequence: int, names: Mapping[int, Address]) -> None:
            assert self.proceed.wait(60)
            seal(file, sequence, names)

        monkeypatch.setattr(SegmentFile, "seal", held)


class Crashed(NamedTuple):
    """Two directories of one history: three segments with a message each.

    crashed   none of the segments is sealed
    finished  the first two are
    ends      where the records of the first two end
    """

    crashed: Path
    finished: Path
    ends: list[int]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crashed:
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
    return Crashed(tmp_path / "crashed", tmp_path / "finished", end_positions)


# --- files after a crash -------------------------------------------------------------------------


def test_groups_go_on_while_a_seal_takes_its_time(history: Crashed) -> None:
    paths = segments_of(history.crashed)
    for path, end in zip(paths, history.ends, strict=False):
        assert path.stat().st_size == end  # nothing of an index, and yet the next one is durable
    durable = read_durable(history.crashed)
    assert durable is not None
    assert durable.segment == int(paths[2].stem)


def looks_sealed(offset: int) -> bytes:
    """Return a body at `offset` of a segment that ends like a sealed segment."""
    index = encode_record(RecordType.INDEX, 1, T0, build_index(b"", 64, {}), flags=3)
    return bytes(8) + b"".join(index) + encode_trailer(offset + 8, 0, 0)


@pytest.mark.parametrize("is_last", [True, False])
def test_a_body_that_looks_like_an_index_seals_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Without preallocation, a file ends with its last record."""
    held_seals = HeldSeals(monkeypatch)
    journal = reopen(tmp_path / "running")
    put(journal, b"first")
    body = looks_sealed(journal._fill + HEADER_BYTES)
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


def test_a_start_seals_segments_left_unsealed_by_a_crash(
    history: Crashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []

    class Published(DurableFile):
        def write(self, end: DurableEnd) -> None:
            published.append(end.segment)
            super().write(end)

    monkeypatch.setattr(recovery_module, "DurableFile", Published)
    recovery = recover(history.crashed)
    assert published == [int(segments_of(history.crashed)[-1].stem)]  # it never decreases
    assert recovery.report["torn_bytes"] == recovery.report["lost_bytes"] == 0
    assert recovery.report["live"] == 3
    recovery.close()
    paths = segments_of(history.crashed)
    for path, original_path in zip(paths[:2], segments_of(history.finished)[:2], strict=True):
        repaired_segment, original = MappedSegment(path), MappedSegment(original_path)
        repaired_segment.verify()
        assert repaired_segment.index is not None
        assert original.index is not None
        assert repaired_segment.index.summary == original.index.summary
        for name, column in original.index.columns.items():
            assert repaired_segment.index.columns[name] == column
        repaired_segment.close()
        original.close()
    journal = reopen(history.crashed)
    assert list(live_of(journal).values()) == BODIES
    journal.close()
    assert check(history.crashed).problems == []


@pytest.mark.parametrize("lost", ["the rest", "pages of the rest", "pages of the begin"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_seal_torn_anywhere_is_done_again(history: Crashed, number: int, lost: str) -> None:
    path = segments_of(history.crashed)[number]
    complete_bytes = segments_of(history.finished)[number].read_bytes()
    end = history.ends[number]
    assert len(complete_bytes) > end + 400
    before = contents(history.crashed)
    for length in range(end, len(complete_bytes) + 1):
        for name, data in before.items():
            (history.crashed / name).write_bytes(data)
        if lost == "the rest":
            torn_bytes = complete_bytes[:length]
        elif lost == "pages of the rest":
            torn_bytes = complete_bytes[:length] + bytes(len(complete_bytes) - length)
        else:
            torn_bytes = complete_bytes[:end] + bytes(length - end) + complete_bytes[length:]
        path.write_bytes(torn_bytes)
        if length % 7 == 0:  # another process reads it as it is
            assert check(history.crashed).problems == []
            assert bodies(history.crashed) == BODIES
        recovery = recover(history.crashed)
        assert recovery.report["live"] == 3
        recovery.close()
        view = MappedSegment(path)
        assert view.index is not None, length
        assert view.index_offset == end
        view.verify()
        view.close()


def test_a_crash_while_a_start_seals_costs_nothing(history: Crashed) -> None:
    path = segments_of(history.crashed)[0]
    end = history.ends[0]
    recover(history.crashed).close()
    sealed_contents = contents(history.crashed)
    for length in range(end, len(sealed_contents[path.name]) + 1, 7):
        path.write_bytes(sealed_contents[path.name][:length])  # the others are sealed already
        recovery = recover(history.crashed)
        assert recovery.report["live"] == 3
        recovery.close()


@pytest.mark.parametrize("number", [0, 1])
def test_a_bit_flipped_before_the_end_of_an_unsealed_segment_stops_the_start(
    history: Crashed, number: int
) -> None:
    path = segments_of(history.crashed)[number]
    data = path.read_bytes()
    (history.crashed / "durable").unlink()  # only the next segment records what was on disk
    for position in range(history.ends[number]):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        before = contents(history.crashed)
        with pytest.raises(JournalError, match=path.name):
            recover(history.crashed)
        assert contents(history.crashed) == before
    path.write_bytes(data)
    recover(history.crashed).close()


def test_checking_finds_a_bit_flipped_in_an_unsealed_segment(history: Crashed) -> None:
    path = segments_of(history.crashed)[0]
    data = path.read_bytes()
    for position in range(64, history.ends[0], 3):
        damaged_data = bytearray(data)
        damaged_data[position] ^= 1 << position % 8
        path.write_bytes(damaged_data)
        assert path.name in str(check(history.crashed).problems[0])
        with pytest.raises(JournalDamaged, match=path.name):
            bodies(history.crashed)


@pytest.mark.parametrize("number", [0, 1])
def test_a_byte_missing_before_the_end_of_an_unsealed_segment_stops_the_start(
    history: Crashed, number: int
) -> None:
    path = segments_of(history.crashed)[number]
    data = path.read_bytes()
    for length in range(history.ends[number]):
        path.write_bytes(data[:length])
        with pytest.raises(JournalDamaged, match=path.name):
            recover(history.crashed)
    assert "ends here" in str(check(history.crashed).problems[0])


def test_a_record_where_the_next_segment_says_that_there_is_none(history: Crashed) -> None:
    first, second, _ = segments_of(history.crashed)
    data = first.read_bytes()
    first.write_bytes(data + second.read_bytes()[64:])
    with pytest.raises(JournalDamaged, match=rf"{first.name}, offset {len(data)}: "):
        recover(history.crashed)


def test_an_index_that_a_snapshot_has_seen_must_be_there(history: Crashed) -> None:
    for path in segments_of(history.finished)[:2]:
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        with pytest.raises(JournalDamaged, match=f"{path.name}.*no intact end"):
            recover(history.finished)
        assert "no intact end" in str(check(history.finished).problems[0])
        path.write_bytes(data)


def test_the_header_says_where_the_records_before_it_end(history: Crashed) -> None:
    first, second, _ = (MappedSegment(path) for path in segments_of(history.finished))
    assert second.header.previous_end == first.index_offset == history.ends[0]
    assert first.header.previous_end == 0
    field_bytes = bytes(second.view[56:60])
    assert int.from_bytes(field_bytes, "little") * 8 == first.index_offset


def test_a_segment_replaced_by_a_shorter_one_of_the_same_name_is_noticed(
    history: Crashed, tmp_path: Path
) -> None:
    shutil.copytree(history.crashed, tmp_path / "other")
    for path in segments_of(tmp_path / "other")[1:]:
        path.unlink()
    (tmp_path / "other" / "durable").unlink()
    (path,) = segments_of(tmp_path / "other")
    path.write_bytes(path.read_bytes()[:-64])
    recover(tmp_path / "other").close()  # sealed, with its remaining records
    shutil.copy(path, history.crashed)
    with pytest.raises(JournalDamaged, match="another segment"):
        recover(history.crashed)


# --- order of writes -----------------------------------------------------------------------------


class Events:
    """Stands in for `os` in the writer and notes what becomes durable, with the file's name."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def _note(self, call: str, fd: int) -> None:
        if threading.current_thread().name == "journal":
            self.seen.append((call, os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._note("pwrite", fd)
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)
        self._note("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        self._note("fsync", fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)
        if threading.current_thread().name == "journal":
            self.seen.append(("rename", new.name))


def test_only_groups_and_the_switch_come_before_a_group_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = reopen(tmp_path)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    put(journal, b"x" * 1500)
    journal.sync()
    events = Events()
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
def test_a_group_in_a_new_segment_counts_only_with_its_name(
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


def test_a_snapshot_waits_for_the_seals_before_it(
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


def test_messages_of_a_segment_that_is_being_sealed_are_read(
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
def test_a_failure_of_the_second_thread_is_final(
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


def test_the_second_thread_does_nothing_after_a_failure_of_the_first(
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
