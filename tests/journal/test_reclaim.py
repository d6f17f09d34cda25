"""Space is reclaimed without removing needed records."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from sluicemq.journal import FileJournal, JournalOptions, RecordType
from sluicemq.journal.inspect import check
from sluicemq.journal.log import compact
from sluicemq.journal.snapshot import list_snapshots
from sluicemq.journal.space import ignore
from sluicemq.model.errors import JournalError, RecordNotFound
from tests.journal.support import T0, crash, live_of, put, reopen, segments_of, take
from tests.support.journal import read_from

OPTIONS = JournalOptions(segment_bytes=4000)


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    file_journal = FileJournal.open(tmp_path, OPTIONS)
    file_journal.recovery.close()
    file_journal.set_snapshot_source(lambda: b"state")
    return file_journal


def write_completed_segments(journal: FileJournal, rounds: int) -> None:
    """Fill one segment per round with messages, and complete all of them."""
    for _ in range(rounds):
        sequences = [put(journal, b"x" * 400) for _ in range(10)]
        take(journal, *sequences)
        journal.sync()


def test_segments_without_live_records_are_removed(journal: FileJournal, tmp_path: Path) -> None:
    write_completed_segments(journal, 20)
    assert len(segments_of(tmp_path)) <= 3
    assert journal.stats().segments == len(segments_of(tmp_path))
    assert len(list_snapshots(tmp_path)) == 1
    journal.close()


def test_segments_are_kept_until_no_snapshot_needs_them(
    journal: FileJournal, tmp_path: Path
) -> None:
    sequence = put(journal)
    journal.seal()
    journal.sync()
    first = segments_of(tmp_path)[0]
    take(journal, sequence)
    journal.sync()  # dead now, but live for the snapshot on disk
    assert first.exists()
    crash(journal)
    journal = reopen(tmp_path)
    assert live_of(journal) == {}
    journal.close()


def test_old_message_moves_forward_and_keeps_its_sequence(
    journal: FileJournal, tmp_path: Path
) -> None:
    old_sequence = put(journal, b"old")
    older_entry = journal.append_entry(RecordType.TRANSACTION_PREPARED, b"xid", T0, references=1)
    shared_sequence = put(journal, b"twice", references=2)
    first = segments_of(tmp_path)[0]
    write_completed_segments(journal, 12)  # far enough to be moved more than once
    assert not first.exists()
    assert journal.stats().relocated == 3
    assert journal.fetch(old_sequence).body == b"old"
    assert journal.fetch(old_sequence).sequence == old_sequence
    assert journal.fetch_entry(older_entry).body == b"xid"
    take(journal, shared_sequence)
    crash_and_live = {old_sequence: b"old", shared_sequence: b"twice"}
    journal.sync()
    crash(journal)

    journal = FileJournal.open(tmp_path, OPTIONS)
    assert live_of(journal) == crash_and_live
    assert [row.references for row in journal.recovery.live_rows()] == [1, 1]
    assert journal.fetch_entry(older_entry).body == b"xid"
    journal.set_snapshot_source(lambda: b"state")
    journal.recovery.close()
    take(journal, old_sequence, shared_sequence)
    journal.append_entry(RecordType.TRANSACTION_RESOLVED, b"", T0, reference=older_entry)
    assert journal.stats().relocated == 0
    write_completed_segments(journal, 6)
    assert journal.stats().live == 0
    assert len(segments_of(tmp_path)) <= 3
    journal.close()
    assert check(tmp_path).problems == []


def test_retained_records_move_and_do_not_survive_restart(
    journal: FileJournal, tmp_path: Path
) -> None:
    sequence = put(journal, b"held", references=0)
    journal.retain(sequence, 300)
    first = segments_of(tmp_path)[0]
    write_completed_segments(journal, 8)
    assert not first.exists()
    assert journal.fetch(sequence).body == b"held"
    for _ in range(299):
        journal.release(sequence)
    assert journal.fetch(sequence).body == b"held"
    journal.release(sequence)
    write_completed_segments(journal, 6)
    with pytest.raises(RecordNotFound):
        journal.fetch(sequence)
    journal.close()
    journal = FileJournal.open(tmp_path, OPTIONS)
    assert live_of(journal) == {}
    journal.close()


def test_retained_record_keeps_its_segment(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=4000, compaction_threshold=0))
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    sequence = put(journal, b"held", references=0)
    journal.retain(sequence)
    first = segments_of(tmp_path)[0]
    write_completed_segments(journal, 6)
    assert first.exists()
    journal.release(sequence)
    write_completed_segments(journal, 3)
    assert not first.exists()
    journal.close()


def test_full_backlog_is_not_moved(journal: FileJournal, tmp_path: Path) -> None:
    sequences = [put(journal, b"x" * 400) for _ in range(40)]
    journal.sync()
    write_completed_segments(journal, 8)
    assert journal.stats().relocated == 0
    assert all(journal.fetch(s).body == b"x" * 400 for s in sequences)
    journal.close()


def test_idle_journal_stops_writing(tmp_path: Path) -> None:
    options = JournalOptions(segment_bytes=700, compaction_threshold=0.9)
    journal = FileJournal.open(tmp_path, options)
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    for _ in range(10):
        live = [put(journal, b"x" * 150) for _ in range(3)]
        take(journal, live[0])
        journal.commit()
        for _ in range(200):  # jobs of the writer; every one may lead to another
            if not journal._writer.outstanding:
                break
            journal._writer.wait()
            journal._move_records()
            journal.commit()
        assert not journal._writer.outstanding
    journal.close()


def test_idle_journal_with_large_message_stops_writing(
    tmp_path: Path,
) -> None:
    """Its move exceeds the budget, and must not permit the next one."""
    options = JournalOptions(segment_bytes=4000, compaction_threshold=1.0)
    journal = FileJournal.open(tmp_path, options)
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    sequence = put(journal, bytes(20_000))
    groups = 0

    def count(durable: int) -> None:
        nonlocal groups
        groups += 1
        assert groups < 200

    journal.observe(on_durable=count)
    write_completed_segments(journal, 10)
    assert journal.fetch(sequence).body == bytes(20_000)
    journal.close()


def test_large_body_is_not_moved_to_reclaim_few_bytes(journal: FileJournal, tmp_path: Path) -> None:
    large_sequence = put(journal, b"x" * 3500)  # one record of eight, but most of the segment
    take(journal, *[put(journal, b"") for _ in range(6)])
    journal.seal()
    journal.sync()
    first = segments_of(tmp_path)[0]
    write_completed_segments(journal, 8)
    assert journal.stats().relocated == 0
    assert first.exists()
    assert journal.fetch(large_sequence).body == b"x" * 3500
    journal.close()


def test_slot_holds_segments_until_it_is_advanced(journal: FileJournal, tmp_path: Path) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    first = put(journal, b"0")
    take(journal, first)
    write_completed_segments(journal, 5)
    count = len(segments_of(tmp_path))
    assert count > 5
    bodies = [r.body for r in read_from(journal, 1) if r.type == RecordType.MESSAGE]
    assert len(bodies) == 51
    journal.slots.advance("reader", journal.durable)
    write_completed_segments(journal, 2)
    assert len(segments_of(tmp_path)) <= 4
    journal.close()


def restart(journal: FileJournal, directory: Path) -> FileJournal:
    journal.close()
    journal = FileJournal.open(directory, OPTIONS)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    return journal


def test_segments_held_by_slot_at_restart_are_removed_afterwards(
    journal: FileJournal, tmp_path: Path
) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    write_completed_segments(journal, 10)
    journal = restart(journal, tmp_path)
    assert len(segments_of(tmp_path)) > 9
    journal.slots.delete("reader")
    write_completed_segments(journal, 3)
    assert len(segments_of(tmp_path)) <= 3
    journal.close()


def test_old_message_moves_forward_after_restart(journal: FileJournal, tmp_path: Path) -> None:
    old_sequence = put(journal, b"old")
    first = segments_of(tmp_path)[0]
    write_completed_segments(journal, 1)
    journal = restart(journal, tmp_path)
    assert first.exists()
    write_completed_segments(journal, 10)
    assert not first.exists()
    assert journal.fetch(old_sequence).body == b"old"
    journal.close()


def test_slot_above_size_limit_is_lost(journal: FileJournal, tmp_path: Path) -> None:
    journal.slots.create("slow", limit_bytes=12_000)
    write_completed_segments(journal, 2)
    assert not journal.slots.get("slow").lost
    write_completed_segments(journal, 8)
    assert journal.slots.get("slow").lost
    assert len(segments_of(tmp_path)) <= 3
    journal.close()


def test_slot_claimed_before_its_removal_is_kept(journal: FileJournal) -> None:
    journal.slots.claim("job", "first", 0, 0)  # its lease ends at once
    may_continue = threading.Event()
    journal._writer.defer(lambda: may_continue.wait(10), ignore)
    journal._compactor.remove_finished()
    journal.slots.claim("job", "second", 0, 60_000)
    may_continue.set()
    journal.sync()
    with pytest.raises(JournalError, match="held by second"):
        journal.slots.claim("job", "third", 0, 60_000)
    journal.close()


@pytest.mark.parametrize("change", ["has read everything", "is new", "has read a part"])
def test_slot_changed_before_its_loss_is_lost_only_with_gap(
    journal: FileJournal, change: str
) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    write_completed_segments(journal, 5)
    slot = journal.slots.get("reader")
    path = journal.slots._path("reader")
    journal.slots._write(path, msgspec.structs.replace(slot, limit_bytes=1))
    may_continue = threading.Event()
    journal._writer.defer(lambda: may_continue.wait(10), ignore)
    journal._compactor.remove_finished()
    journal.slots._write(path, slot)
    if change == "is new":
        journal.slots.delete("reader")
        journal.slots.create("reader")
    else:
        journal.slots.advance("reader", journal.durable if "everything" in change else 5)
    may_continue.set()
    journal.sync()
    assert journal.slots.get("reader").lost == (change == "has read a part")
    journal.close()


def test_unreadable_slot_file_holds_all_segments(journal: FileJournal, tmp_path: Path) -> None:
    journal.slots.create("a")
    (tmp_path / "slots" / "a.json").write_text("{}")
    write_completed_segments(journal, 6)
    assert len(segments_of(tmp_path)) > 6
    assert "a.json" in str(check(tmp_path).problems)
    journal.close()


def test_restarts_do_not_accumulate_segments(tmp_path: Path) -> None:
    for _ in range(6):
        journal = FileJournal.open(tmp_path, OPTIONS)
        journal.recovery.close()
        journal.set_snapshot_source(lambda: b"state")
        journal.commit()
        journal.sync()
        journal.close()
    assert len(segments_of(tmp_path)) <= 2


def test_memory_of_numbers_without_records_is_released(
    journal: FileJournal, tmp_path: Path
) -> None:
    for _ in range(3):
        for _ in range(1 << 21):
            journal.next_sequence()
        journal.sync()
    assert sum(len(s.live) for s in journal._liveness.segments) < 5 << 20
    assert live_of(journal) == {}
    journal.close()


def test_compacting_leaves_only_live_records(tmp_path: Path) -> None:
    options = JournalOptions(segment_bytes=4000, compaction_threshold=0)
    journal = FileJournal.open(tmp_path, options)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    kept_bodies = {}
    for n in range(10):
        kept_bodies[put(journal, b"kept %d" % n)] = b"kept %d" % n
        write_completed_segments(journal, 1)
    journal.close()
    size = sum(path.stat().st_size for path in segments_of(tmp_path))
    before, after = compact(tmp_path, options)
    assert before.live == after.live == 10
    assert sum(path.stat().st_size for path in segments_of(tmp_path)) < size / 3
    journal = FileJournal.open(tmp_path, options)
    assert live_of(journal) == kept_bodies
    assert journal.recovery.state == b"state"
    journal.close()
    assert check(tmp_path).problems == []


def _age(journal: FileJournal, directory: Path, milliseconds: int) -> None:
    """Make slots and segments appear older."""
    for path in segments_of(directory):
        mtime = path.stat().st_mtime - milliseconds / 1000
        os.utime(path, (mtime, mtime))
    for path in (directory / "slots").glob("*.json"):
        slot = json.loads(path.read_text())
        for name in ("created", "moved"):
            slot[name] = max(0, slot[name] - milliseconds)
        path.write_text(json.dumps(slot))


HOUR = 3_600_000


@pytest.fixture
def warnings() -> list[str]:
    """Texts for the operator."""
    return []


@pytest.fixture
def idle_journal(tmp_path: Path, warnings: list[str]) -> FileJournal:
    """A journal with an idle limit of two hours, segments without live records, and a slot."""
    options = JournalOptions(segment_bytes=4000, slot_idle_timeout=2 * HOUR)
    file_journal = FileJournal.open(tmp_path, options, on_warning=warnings.append)
    file_journal.recovery.close()
    file_journal.set_snapshot_source(lambda: b"state")
    file_journal.slots.create("reader", 0)
    write_completed_segments(file_journal, 5)
    return file_journal


def test_damaged_slot_keeps_all_segments_and_is_reported_once(
    idle_journal: FileJournal, tmp_path: Path, warnings: list[str]
) -> None:
    idle_journal.slots.delete("reader")
    damaged_file = tmp_path / "slots" / "other.json"
    damaged_file.write_text("{")
    write_completed_segments(idle_journal, 3)
    write_completed_segments(idle_journal, 3)
    assert len(segments_of(tmp_path)) > 8
    [warning] = warnings
    assert f"no segment is removed: {damaged_file} is not a slot file" in warning
    idle_journal.slots.delete("other")
    write_completed_segments(idle_journal, 3)
    assert len(segments_of(tmp_path)) <= 3


def test_slot_without_reader_is_lost_after_warning(
    idle_journal: FileJournal, tmp_path: Path, warnings: list[str]
) -> None:
    _age(idle_journal, tmp_path, HOUR // 2)
    write_completed_segments(idle_journal, 3)
    assert warnings == []
    _age(idle_journal, tmp_path, HOUR)
    write_completed_segments(idle_journal, 3)
    [warning] = warnings
    assert "reader" in warning
    assert "half of journal.slot_idle_timeout" in warning
    assert len(segments_of(tmp_path)) > 8
    _age(idle_journal, tmp_path, HOUR)
    write_completed_segments(idle_journal, 3)
    assert "is lost" in warnings[1]
    slot = idle_journal.slots.get("reader")
    assert (slot.lost, slot.abandoned) == (True, True)
    assert len(segments_of(tmp_path)) <= 4
    with pytest.raises(JournalError, match="slot_idle_timeout"):
        idle_journal.slots.advance("reader", 1)
    idle_journal.close()


@pytest.mark.parametrize("position", [0, 5])
def test_any_acknowledgement_keeps_slot(
    idle_journal: FileJournal, tmp_path: Path, position: int
) -> None:
    _age(idle_journal, tmp_path, 3 * HOUR)
    idle_journal.slots.advance("reader", position, shared=True)
    write_completed_segments(idle_journal, 3)
    assert not idle_journal.slots.get("reader").lost
    idle_journal.close()


def test_slot_that_holds_no_segments_is_not_lost_by_age(
    idle_journal: FileJournal, tmp_path: Path
) -> None:
    idle_journal.slots.advance("reader", idle_journal.durable)
    _age(idle_journal, tmp_path, 100 * HOUR)
    write_completed_segments(idle_journal, 3)  # it holds these, for a moment only
    assert not idle_journal.slots.get("reader").lost
    idle_journal.close()


def test_without_limit_no_slot_is_lost_by_age(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=4000, slot_idle_timeout=0))
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    journal.slots.create("reader", 0)
    write_completed_segments(journal, 3)
    _age(journal, tmp_path, 10_000 * HOUR)
    write_completed_segments(journal, 3)
    assert not journal.slots.get("reader").lost
    journal.close()
