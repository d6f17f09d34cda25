"""Snapshots, and the removal of segments after them, in event orders that are critical in a crash.

Each test stops the journal at one point between two of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from zlib import compress, crc32

import msgspec
import pytest

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal import compaction as compaction_module
from sluicemq.journal.files import read_durable
from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.snapshot import (
    MAX_SPAN,
    SNAPSHOT_HEAD,
    SNAPSHOT_MAGIC,
    Capture,
    Snapshot,
    decode_snapshot,
    list_snapshots,
    write_snapshot,
)
from sluicemq.journal.space import DiskSpace
from sluicemq.model.errors import JournalDamaged
from tests.journal.support import crash, live_of, put, reopen, segments_of, take

OPTIONS = JournalOptions(segment_bytes=4000)


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    file_journal = FileJournal.open(tmp_path, OPTIONS)
    file_journal.recovery.close()
    file_journal.set_snapshot_source(lambda: b"state")
    return file_journal


def test_snapshot_is_never_ahead_of_records(
    journal: FileJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[tuple[int, int]] = []

    def write(directory: Path, capture: Capture, space: DiskSpace) -> None:
        durable = read_durable(tmp_path)
        assert durable is not None
        positions.append((capture.snapshot.position, durable.sequence))
        write_snapshot(directory, capture, space)

    monkeypatch.setattr(compaction_module, "write_snapshot", write)
    for _ in range(5):
        put(journal)
        journal.seal()  # its group is under way ...
        put(journal)
        journal.commit()  # ... when the snapshot is begun, so that its mark waits for the next
        journal.sync()
    assert len(positions) == 5
    assert all(position <= durable for position, durable in positions)
    journal.close()


def test_end_that_is_not_durable_removes_nothing(journal: FileJournal, tmp_path: Path) -> None:
    sequence = put(journal, b"kept")
    first = segments_of(tmp_path)[0]
    journal.seal()
    journal.commit()
    while not list_snapshots(tmp_path):
        journal._writer.wait()
        journal.commit()
        if not journal._compactor.is_taking_snapshot or journal._writer.outstanding == 1:
            break
    take(journal, sequence)  # after the snapshot was begun, and never handed over
    while journal._writer.outstanding:
        journal._writer.wait()
    assert list_snapshots(tmp_path)
    assert first.exists()
    crash(journal)
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {sequence: b"kept"}
    journal.close()


def test_segment_with_snapshots_mark_stays(journal: FileJournal, tmp_path: Path) -> None:
    take(journal, put(journal))
    journal.seal()
    while not journal._compactor.is_taking_snapshot:
        journal._writer.wait()
        journal.commit()  # begins the snapshot: its mark is alone in the second segment ...
    journal.seal()  # ... which is sealed before the snapshot is written
    journal._writer.wait()
    journal.commit()
    while journal._writer.outstanding:
        journal._writer.wait()
    journal._snapshot_due = False  # the crash comes before the next one
    ((position, _),) = list_snapshots(tmp_path)
    sequence = put(journal, b"behind it")
    journal.sync()
    crash(journal)
    assert position < int(segments_of(tmp_path)[-1].stem)
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {sequence: b"behind it"}
    journal.close()


def test_removed_segment_that_reappears_after_crash_has_no_live_records(
    journal: FileJournal, tmp_path: Path
) -> None:
    ended_sequence = put(journal, b"ended")
    journal.seal()
    journal.sync()
    path = segments_of(tmp_path)[0]
    data = path.read_bytes()
    for _ in range(3):
        take(journal, ended_sequence)
        journal.seal()
        journal.sync()
    assert not path.exists()
    crash(journal)
    path.write_bytes(data)
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {}
    journal.set_snapshot_source(lambda: b"state")
    journal.recovery.close()
    journal.sync()
    assert not path.exists()
    journal.close()


def test_records_lost_below_snapshot_are_not_live(journal: FileJournal, tmp_path: Path) -> None:
    sealed_sequence = put(journal, b"sealed")
    journal.seal()
    put(journal, b"lost")  # in the second segment, before the snapshot's mark
    journal.sync()
    crash(journal)
    path = segments_of(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:80])
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {sealed_sequence: b"sealed"}
    assert journal.recovery.report["live"] == 1
    assert journal.recovery.report["lost_bytes"] > 0
    journal.close()


def test_records_cut_within_segment_below_snapshot_are_not_live(
    journal: FileJournal, tmp_path: Path
) -> None:
    journal.seal()
    kept_sequence = put(journal, b"kept")
    put(journal, b"lost")
    journal._snapshot_due = True
    journal.sync()
    assert list_snapshots(tmp_path)
    crash(journal)
    path = segments_of(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:200])
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {kept_sequence: b"kept"}
    assert journal.recovery.report["live"] == 1
    journal.close()


def _set_live(live: bytes) -> Callable[[Snapshot], None]:
    def change(snapshot: Snapshot) -> None:
        snapshot.segments[0].live = live

    return change


def _set_too_many_live(snapshot: Snapshot) -> None:
    snapshot.segments[0].live = compress(bytes(MAX_SPAN + 1))


def _set_base(base: int) -> Callable[[Snapshot], None]:
    def change(snapshot: Snapshot) -> None:
        snapshot.segments[0].base = base

    return change


def _set_relocated(snapshot: Snapshot) -> None:
    snapshot.relocated = bytes(24)


def _set_kind(snapshot: Snapshot) -> None:
    snapshot.addresses.append((1, 9, b"of no kind"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(_set_live(b"no zlib"), id="not packed"),
        pytest.param(_set_live(compress(b"")), id="live too short"),
        pytest.param(_set_too_many_live, id="live without bounds"),
        pytest.param(_set_live(compress(b"\xff" * 9)), id="no number for many references"),
        pytest.param(_set_base(1 << 40), id="base behind the records"),
        pytest.param(_set_base(-(1 << 40)), id="base far before the records"),
        pytest.param(_set_relocated, id="half a pair"),
        pytest.param(_set_kind, id="a destination of no kind"),
    ],
)
def test_inconsistent_snapshot_with_valid_checksum_is_damage(
    journal: FileJournal, tmp_path: Path, change: Callable[[Snapshot], None]
) -> None:
    put(journal)
    journal.seal()
    journal.sync()
    crash(journal)
    ((_, path),) = list_snapshots(tmp_path)
    snapshot = decode_snapshot(path.read_bytes(), path)
    change(snapshot)
    payload = msgspec.msgpack.encode(snapshot)
    head = SNAPSHOT_HEAD.pack(SNAPSHOT_MAGIC, FORMAT_VERSION, crc32(payload), len(payload))
    path.write_bytes(head + payload)
    with pytest.raises(JournalDamaged, match=r"snapshot|sequence numbers"):
        reopen(tmp_path, OPTIONS)
