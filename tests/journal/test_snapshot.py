"""When a snapshot is written, and what may go because of it: the orders of events that a crash
would punish. Each test stops the journal at one point between two of its jobs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal import upkeep as upkeep_module
from sluicemq.journal.snapshot import Capture, list_snapshots, write_snapshot
from sluicemq.journal.writer import read_durable
from tests.journal.support import crash, live_of, put, reopen, segments_of, take

OPTIONS = JournalOptions(segment_bytes=4000)


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    made = FileJournal.open(tmp_path, OPTIONS)
    made.recovery.done()
    made.snapshot_source = lambda: b"state"
    return made


def test_a_snapshot_is_never_ahead_of_the_records(
    journal: FileJournal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[tuple[int, int]] = []

    def write(directory: Path, capture: Capture) -> None:
        durable = read_durable(tmp_path)
        assert durable is not None
        positions.append((capture.snapshot.position, durable.sequence))
        write_snapshot(directory, capture)

    monkeypatch.setattr(upkeep_module, "write_snapshot", write)
    for _ in range(5):
        put(journal)
        journal.seal()  # its group is under way ...
        put(journal)
        journal.commit()  # ... when the snapshot is begun, so that its mark waits for the next
        journal.sync()
    assert len(positions) == 5
    assert all(position <= durable for position, durable in positions)
    journal.close()


def test_an_end_that_is_not_durable_removes_nothing(journal: FileJournal, tmp_path: Path) -> None:
    sequence = put(journal, b"kept")
    first = segments_of(tmp_path)[0]
    journal.seal()
    journal.commit()
    while not list_snapshots(tmp_path):
        journal._writer.wait()
        if not journal._upkeep.taking or journal._writer.outstanding == 1:
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


def test_the_segment_with_the_snapshots_mark_stays(journal: FileJournal, tmp_path: Path) -> None:
    take(journal, put(journal))
    journal.seal()
    journal.commit()  # begins the snapshot: its mark is alone in the second segment ...
    journal.seal()  # ... which is sealed before the snapshot is written
    while journal._writer.outstanding:
        journal._writer.wait()
    ((position, _),) = list_snapshots(tmp_path)
    journal._snapshot_due = False  # the crash comes before the next one
    sequence = put(journal, b"behind it")
    journal.sync()
    crash(journal)
    assert position < int(segments_of(tmp_path)[-1].stem)
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {sequence: b"behind it"}
    journal.close()


def test_a_removed_segment_that_a_crash_brings_back_is_dead(
    journal: FileJournal, tmp_path: Path
) -> None:
    ended = put(journal, b"ended")
    journal.seal()
    journal.sync()
    path = segments_of(tmp_path)[0]
    data = path.read_bytes()
    for _ in range(3):
        take(journal, ended)
        journal.seal()
        journal.sync()
    assert not path.exists()
    crash(journal)
    path.write_bytes(data)
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {}
    journal.snapshot_source = lambda: b"state"
    journal.recovery.done()
    journal.sync()
    assert not path.exists()
    journal.close()


def test_records_lost_below_a_snapshot_are_not_live(journal: FileJournal, tmp_path: Path) -> None:
    sealed = put(journal, b"sealed")
    journal.seal()
    put(journal, b"lost")  # in the second segment, before the snapshot's mark
    journal.sync()
    crash(journal)
    path = segments_of(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:80])
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {sealed: b"sealed"}
    assert journal.recovery.report["live"] == 1
    assert journal.recovery.report["lost_bytes"] > 0
    journal.close()


def test_records_cut_within_a_segment_below_a_snapshot_are_not_live(
    journal: FileJournal, tmp_path: Path
) -> None:
    journal.seal()
    kept = put(journal, b"kept")
    put(journal, b"lost")
    journal._snapshot_due = True
    journal.sync()
    assert list_snapshots(tmp_path)
    crash(journal)
    path = segments_of(tmp_path)[-1]
    path.write_bytes(path.read_bytes()[:200])
    journal = reopen(tmp_path, OPTIONS)
    assert live_of(journal) == {kept: b"kept"}
    assert journal.recovery.report["live"] == 1
    journal.close()
