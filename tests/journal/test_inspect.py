"""`journal check` and `journal dump`, with and without a concurrent writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.journal import Cause, FileJournal, JournalOptions, RecordType
from sluicemq.journal.inspect import check, dump
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged, JournalError
from tests.journal.support import ORDERS, T0, TINY, crash, make_message, put, segments_of


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    file_journal = FileJournal.open(tmp_path, TINY)
    file_journal.recovery.close()
    file_journal.set_snapshot_source(lambda: b"state")
    file_journal.slots.create("keeps_everything")
    return file_journal


def fill(journal: FileJournal) -> tuple[int, int]:
    """Write two sealed segments, the first without live records, and an open one.

    Return the sequence numbers of an ended message and of a live one.
    """
    ended_sequence = put(journal, b"ended")
    journal.seal()
    journal.sync()
    live = put(journal, b"live")
    journal.append_completed(
        1, journal.destination_number(ORDERS), Cause.EXPIRED, [ended_sequence], T0
    )
    journal.seal()
    journal.sync()
    put(journal, b"last")
    journal.sync()
    return ended_sequence, live


def test_check_of_valid_journal_during_writes(journal: FileJournal, tmp_path: Path) -> None:
    fill(journal)
    put(journal, b"not handed over")
    report = check(tmp_path)
    assert report.problems == []
    assert report.live == 2
    assert report.types["MESSAGE"] == 3
    assert report.segments == 3
    journal.close()


def test_check_lists_every_kind_of_damage_with_its_position(
    journal: FileJournal, tmp_path: Path
) -> None:
    fill(journal)
    crash(journal)
    for path in segments_of(tmp_path):
        data = path.read_bytes()
        for position in range(0, len(data), 5):
            damaged_data = bytearray(data)
            damaged_data[position] ^= 1 << position % 8
            path.write_bytes(damaged_data)
            if position in range(8, 12):
                with pytest.raises(JournalError, match="version"):
                    check(tmp_path)
                continue
            report = check(tmp_path)
            assert report.problems, (path, position)
            assert path.name in str(report.problems[0])
        path.write_bytes(data)
    assert check(tmp_path).problems == []


def test_check_lists_missing_files(journal: FileJournal, tmp_path: Path) -> None:
    fill(journal)
    crash(journal)
    segments_of(tmp_path)[0].unlink()
    assert "missing" not in str(check(tmp_path).problems)  # everything in it had ended: it may go
    segments_of(tmp_path)[0].unlink()
    assert "missing" in str(check(tmp_path).problems)
    (tmp_path / "identity").unlink()
    assert "identity" in str(check(tmp_path).problems)


def test_directory_without_journal_is_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        check(tmp_path)
    with pytest.raises(JournalError, match="not a directory"):
        check(tmp_path / "nowhere")


def test_check_reports_truncated_file(journal: FileJournal, tmp_path: Path) -> None:
    put(journal)
    journal.sync()
    crash(journal)
    path = segments_of(tmp_path)[0]
    path.write_bytes(path.read_bytes()[:-8])
    assert "ends here" in str(check(tmp_path).problems[0])


def test_dump_shows_records_with_their_destination(journal: FileJournal, tmp_path: Path) -> None:
    ended_sequence, live = fill(journal)
    topic = Address(Kind.TOPIC, "news")
    journal.append_message(make_message(b"t", address=topic), journal.destination_number(topic))
    journal.forget_destination(topic)
    journal.sync()
    put(journal, b"not durable")

    messages = [e.message for e in dump(tmp_path) if e.record.is_message]
    assert [m.body for m in messages if m] == [b"ended", b"live", b"last", b"t"]
    (entry,) = dump(tmp_path, address=topic, types=[RecordType.MESSAGE])
    assert entry.message is not None
    assert (entry.address, entry.message.body) == (topic, b"t")
    types = [e.record.type for e in dump(tmp_path, reference=ended_sequence)]
    assert types == [RecordType.MESSAGE, RecordType.COMPLETED]
    assert next(dump(tmp_path, sequence=live)).record.sequence == live
    assert [e.record.sequence for e in dump(tmp_path)] == sorted(
        e.record.sequence for e in dump(tmp_path)
    )
    journal.close()


def test_dump_stops_at_damage(journal: FileJournal, tmp_path: Path) -> None:
    fill(journal)
    crash(journal)
    path = segments_of(tmp_path)[1]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=path.name):
        list(dump(tmp_path))


def test_check_while_segments_are_created_and_removed(tmp_path: Path) -> None:
    journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=3000, preallocate_bytes=0))
    journal.recovery.close()
    journal.set_snapshot_source(bytes)
    pinned_sequence = put(journal, b"pinned")
    for _ in range(40):
        sequences = [put(journal, b"x" * 200) for _ in range(8)]
        journal.append_completed(1, 1, 1, sequences, T0)
        journal.commit()
        journal._writer.collect()
        assert check(tmp_path).problems == []
    journal.sync()
    assert journal.fetch(pinned_sequence).body == b"pinned"
    journal.close()
