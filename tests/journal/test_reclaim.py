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


def turnover(journal: FileJournal, rounds: int) -> None:
    """Traffic that fills one segment per round and leaves nothing live."""
    for _ in range(rounds):
        sequences = [put(journal, b"x" * 400) for _ in range(10)]
        take(journal, *sequences)
        journal.sync()


def test_dead_segments_go(journal: FileJournal, tmp_path: Path) -> None:
    turnover(journal, 20)
    assert len(segments_of(tmp_path)) <= 3
    assert journal.stats().segments == len(segments_of(tmp_path))
    assert len(list_snapshots(tmp_path)) == 1
    journal.close()


def test_nothing_goes_before_a_snapshot_that_does_not_need_it(
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


def test_an_old_message_moves_forward_and_keeps_its_name(
    journal: FileJournal, tmp_path: Path
) -> None:
    old_sequence = put(journal, b"old")
    older_entry = journal.append_entry(RecordType.TRANSACTION_PREPARED, b"xid", T0, references=1)
    shared_sequence = put(journal, b"twice", references=2)
    first = segments_of(tmp_path)[0]
    turnover(journal, 12)  # far enough to be moved more than once
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
    turnover(journal, 6)
    assert journal.stats().live == 0
    assert len(segments_of(tmp_path)) <= 3
    journal.close()
    assert check(tmp_path).problems == []


def test_retained_records_move_too_and_do_not_survive_a_restart(
    journal: FileJournal, tmp_path: Path
) -> None:
    sequence = put(journal, b"held", references=0)
    journal.retain(sequence, 300)
    first = segments_of(tmp_path)[0]
    turnover(journal, 8)
    assert not first.exists()
    assert journal.fetch(sequence).body == b"held"
    for _ in range(299):
        journal.release(sequence)
    assert journal.fetch(sequence).body == b"held"
    journal.release(sequence)
    turnover(journal, 6)
    with pytest.raises(RecordNotFound):
        journal.fetch(sequence)
    journal.close()
    journal = FileJournal.open(tmp_path, OPTIONS)
    assert live_of(journal) == {}
    journal.close()


def test_a_retained_record_keeps_its_segment(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=4000, compaction_threshold=0))
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    sequence = put(journal, b"held", references=0)
    journal.retain(sequence)
    first = segments_of(tmp_path)[0]
    turnover(journal, 6)
    assert first.exists()
    journal.release(sequence)
    turnover(journal, 3)
    assert not first.exists()
    journal.close()


def test_a_full_backlog_is_not_moved(journal: FileJournal, tmp_path: Path) -> None:
    sequences = [put(journal, b"x" * 400) for _ in range(40)]
    journal.sync()
    turnover(journal, 8)
    assert journal.stats().relocated == 0
    assert all(journal.fetch(s).body == b"x" * 400 for s in sequences)
    journal.close()


def test_an_idle_journal_comes_to_rest(tmp_path: Path) -> None:
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


def test_an_idle_journal_with_a_message_larger_than_the_budget_comes_to_rest(
    tmp_path: Path,
) -> None:
    """Its move costs more than the budget can be negative, and must not pay for the next one."""
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
    turnover(journal, 10)
    assert journal.fetch(sequence).body == bytes(20_000)
    journal.close()


def test_a_large_body_is_not_moved_for_the_few_bytes_beside_it(
    journal: FileJournal, tmp_path: Path
) -> None:
    large_sequence = put(journal, b"x" * 3500)  # one record of eight, but most of the segment
    take(journal, *[put(journal, b"") for _ in range(6)])
    journal.seal()
    journal.sync()
    first = segments_of(tmp_path)[0]
    turnover(journal, 8)
    assert journal.stats().relocated == 0
    assert first.exists()
    assert journal.fetch(large_sequence).body == b"x" * 3500
    journal.close()


def test_a_slot_holds_segments_until_it_is_advanced(journal: FileJournal, tmp_path: Path) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    first = put(journal, b"0")
    take(journal, first)
    turnover(journal, 5)
    count = len(segments_of(tmp_path))
    assert count > 5
    bodies = [r.body for r in read_from(journal, 1) if r.type == RecordType.MESSAGE]
    assert len(bodies) == 51
    journal.slots.advance("reader", journal.durable)
    turnover(journal, 2)
    assert len(segments_of(tmp_path)) <= 4
    journal.close()


def restarted(journal: FileJournal, directory: Path) -> FileJournal:
    journal.close()
    journal = FileJournal.open(directory, OPTIONS)
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    return journal


def test_segments_that_a_slot_held_at_a_restart_go_afterwards(
    journal: FileJournal, tmp_path: Path
) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    turnover(journal, 10)
    journal = restarted(journal, tmp_path)
    assert len(segments_of(tmp_path)) > 9
    journal.slots.drop("reader")
    turnover(journal, 3)
    assert len(segments_of(tmp_path)) <= 3
    journal.close()


def test_an_old_message_moves_forward_after_a_restart(journal: FileJournal, tmp_path: Path) -> None:
    old_sequence = put(journal, b"old")
    first = segments_of(tmp_path)[0]
    turnover(journal, 1)
    journal = restarted(journal, tmp_path)
    assert first.exists()
    turnover(journal, 10)
    assert not first.exists()
    assert journal.fetch(old_sequence).body == b"old"
    journal.close()


def test_a_slot_that_would_hold_too_much_is_lost(journal: FileJournal, tmp_path: Path) -> None:
    journal.slots.create("slow", limit_bytes=12_000)
    turnover(journal, 2)
    assert not journal.slots.get("slow").lost
    turnover(journal, 8)
    assert journal.slots.get("slow").lost
    assert len(segments_of(tmp_path)) <= 3
    journal.close()


def test_a_slot_claimed_while_its_removal_waits_stays(journal: FileJournal) -> None:
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
def test_a_slot_changed_while_its_loss_waits_is_lost_only_if_it_has_a_gap(
    journal: FileJournal, change: str
) -> None:
    journal.slots.create("reader", limit_bytes=10**9)
    turnover(journal, 5)
    slot = journal.slots.get("reader")
    path = journal.slots._path("reader")
    journal.slots._write(path, msgspec.structs.replace(slot, limit_bytes=1))
    may_continue = threading.Event()
    journal._writer.defer(lambda: may_continue.wait(10), ignore)
    journal._compactor.remove_finished()
    journal.slots._write(path, slot)
    if change == "is new":
        journal.slots.drop("reader")
        journal.slots.create("reader")
    else:
        journal.slots.advance("reader", journal.durable if "everything" in change else 5)
    may_continue.set()
    journal.sync()
    assert journal.slots.get("reader").lost == (change == "has read a part")
    journal.close()


def test_a_slot_file_that_cannot_be_read_holds_everything(
    journal: FileJournal, tmp_path: Path
) -> None:
    journal.slots.create("a")
    (tmp_path / "slots" / "a.json").write_text("{}")
    turnover(journal, 6)
    assert len(segments_of(tmp_path)) > 6
    assert "a.json" in str(check(tmp_path).problems)
    journal.close()


def test_restarts_alone_do_not_pile_up_segments(tmp_path: Path) -> None:
    for _ in range(6):
        journal = FileJournal.open(tmp_path, OPTIONS)
        journal.recovery.close()
        journal.set_snapshot_source(lambda: b"state")
        journal.commit()
        journal.sync()
        journal.close()
    assert len(segments_of(tmp_path)) <= 2


def test_numbers_without_records_take_no_memory_for_long(
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
        turnover(journal, 1)
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
    """Make the slots and the segments appear older."""
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
def aging(tmp_path: Path, warnings: list[str]) -> FileJournal:
    """A journal with an idle limit of two hours, unneeded segments, and a slot."""
    options = JournalOptions(segment_bytes=4000, slot_idle_timeout=2 * HOUR)
    file_journal = FileJournal.open(tmp_path, options, on_warning=warnings.append)
    file_journal.recovery.close()
    file_journal.set_snapshot_source(lambda: b"state")
    file_journal.slots.create("reader", 0)
    turnover(file_journal, 5)
    return file_journal


def test_a_slot_without_a_reader_is_lost_after_a_warning(
    aging: FileJournal, tmp_path: Path, warnings: list[str]
) -> None:
    _age(aging, tmp_path, HOUR // 2)
    turnover(aging, 3)
    assert warnings == []
    _age(aging, tmp_path, HOUR)
    turnover(aging, 3)
    [warning] = warnings
    assert "reader" in warning
    assert "half of journal.slot_idle_timeout" in warning
    assert len(segments_of(tmp_path)) > 8
    _age(aging, tmp_path, HOUR)
    turnover(aging, 3)
    assert "is lost" in warnings[1]
    slot = aging.slots.get("reader")
    assert (slot.lost, slot.abandoned) == (True, True)
    assert len(segments_of(tmp_path)) <= 4
    with pytest.raises(JournalError, match="slot_idle_timeout"):
        aging.slots.advance("reader", 1)
    aging.close()


@pytest.mark.parametrize("position", [0, 5])
def test_any_acknowledgement_keeps_a_slot(
    aging: FileJournal, tmp_path: Path, position: int
) -> None:
    _age(aging, tmp_path, 3 * HOUR)
    aging.slots.advance("reader", position, shared=True)
    turnover(aging, 3)
    assert not aging.slots.get("reader").lost
    aging.close()


def test_a_slot_that_holds_nothing_back_is_not_lost_for_its_age(
    aging: FileJournal, tmp_path: Path
) -> None:
    aging.slots.advance("reader", aging.durable)
    _age(aging, tmp_path, 100 * HOUR)
    turnover(aging, 3)  # it holds these, for a moment only
    assert not aging.slots.get("reader").lost
    aging.close()


def test_without_a_limit_no_slot_is_lost_for_its_age(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=4000, slot_idle_timeout=0))
    journal.recovery.close()
    journal.set_snapshot_source(lambda: b"state")
    journal.slots.create("reader", 0)
    turnover(journal, 3)
    _age(journal, tmp_path, 10_000 * HOUR)
    turnover(journal, 3)
    assert not journal.slots.get("reader").lost
    journal.close()
