"""Damaged or removed segments cause an error with a position, or a reported gap."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sluicemq.journal.reader import read_records
from sluicemq.journal.segment import TRAILER_BYTES, list_segments, segment_path
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.source import reading
from sluicemq.pipeline.source.reading import TaskRanges
from tests.pipeline.source.support import Row, message, only, put, read, reader_of
from tests.pipeline.source.test_events import journal_in

COUNT = 100


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Messages m0, m1, ... in several sealed segments and an open one."""
    with journal_in(tmp_path) as journal:
        for number in range(COUNT):
            put(journal, message(b"m%d " % number * 30))
            journal.sync()
    assert len(list_segments(tmp_path)) > 2
    return tmp_path


def place_of(directory: Path, sequence: int) -> tuple[Path, int]:
    """Return the file and offset of a record."""
    for view, offset, record in read_records(directory):
        if record.sequence == sequence:
            return view.path, offset
    raise AssertionError(sequence)


def flip(path: Path, offset: int) -> None:
    """Flip one bit without changing the modification time."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def numbers(rows: list[Row]) -> list[int]:
    return [sequence for (sequence,) in only(rows, "sequence")]


def last_segment(directory: Path) -> Path:
    return segment_path(directory, list_segments(directory)[-1])


@pytest.mark.parametrize("part", ["body", "size", "sequence"])
@pytest.mark.parametrize("sealed", [True, False])
def test_damaged_record_is_reported(
    directory: Path, sealed: bool, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    sequences = numbers(read(directory, events="published"))
    candidates = [
        number
        for number in sequences
        if (place_of(directory, number)[0] == last_segment(directory)) != sealed
    ]
    victim = candidates[1]
    path, offset = place_of(directory, victim)
    flip(path, offset + {"body": 90, "size": 1, "sequence": 8}[part])

    with pytest.raises(JournalDamaged, match=f"{path.name}.*offset {offset}"):
        read(directory, events="published")
    with caplog.at_level(logging.WARNING):
        remaining = numbers(read(directory, events="published", failondataloss="false"))
    assert remaining == [number for number in sequences if number != victim]
    assert f"offset {offset}" in caplog.text


def test_damage_outside_read_is_reported(directory: Path) -> None:
    sequences = numbers(read(directory, events="published"))
    path, offset = place_of(directory, sequences[0])
    flip(path, offset + 90)
    with pytest.raises(JournalDamaged, match=f"offset {offset}"):
        read(directory, events="published", startingoffsets=str(sequences[1]))
    # what needs no bodies is in the index, which has a CRC of its own
    assert numbers(read(directory, events="published", columns="sequence")) == sequences


def test_few_records_are_checked_one_by_one(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SPARSE_RATIO", 0)
    sequences = numbers(read(directory, events="published"))
    path, offset = place_of(directory, sequences[2])
    flip(path, offset + 90)
    assert numbers(read(directory, startingoffsets="1", endingoffsets=str(sequences[2])))
    with pytest.raises(JournalDamaged, match=f"offset {offset}"):
        read(directory, events="published")


def test_damaged_index_is_ignored(directory: Path) -> None:
    expected = read(directory)
    path = segment_path(directory, list_segments(directory)[0])
    flip(path, path.stat().st_size - TRAILER_BYTES - 8)
    assert read(directory) == expected


def test_truncated_segment_is_reported(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    sequences = numbers(read(directory, events="published"))
    path, offset = place_of(directory, sequences[3])
    with path.open("r+b") as file:
        file.truncate(offset)
    with pytest.raises(JournalDamaged, match=path.name):
        read(directory, events="published")
    with caplog.at_level(logging.WARNING):
        remaining = numbers(read(directory, events="published", failondataloss="false"))
    assert set(remaining) < set(sequences)
    assert remaining[-1] == sequences[-1]
    assert path.name in caplog.text


@pytest.mark.parametrize("strict", ["true", "false"])
def test_segment_removed_before_it_is_read(
    directory: Path, strict: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(directory, events="published", failondataloss=strict)
    (share,) = reader.partitions()
    assert isinstance(share, TaskRanges)
    removed = share.segment_ranges[0]
    segment_path(directory, removed.first).unlink()
    if strict == "true":
        with pytest.raises(RecordNotFound, match=f"{removed.low} to {removed.high - 1} are gone"):
            list(reader.read(share))
    else:
        with caplog.at_level(logging.WARNING):
            rows = sum(batch.num_rows for batch in reader.read(share))
        assert 0 < rows < COUNT
        assert f"{removed.low} to {removed.high - 1} are gone" in caplog.text


def test_segment_removed_while_it_is_read(directory: Path) -> None:
    reader = reader_of(directory, events="published")
    (share,) = reader.partitions()
    assert isinstance(share, TaskRanges)
    batches = reader.read(share)
    first = next(batches)
    segment_path(directory, share.segment_ranges[0].first).unlink()  # it is mapped: its bytes stay
    assert first.num_rows + sum(batch.num_rows for batch in batches) == COUNT


def test_removed_start_is_reported(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    firsts = list_segments(directory)
    segment_path(directory, firsts[0]).unlink()
    assert numbers(read(directory))[0] >= firsts[1]
    with pytest.raises(RecordNotFound, match=f"2 to {firsts[1] - 1} are gone.*failOnDataLoss"):
        read(directory, startingoffsets="2")
    with caplog.at_level(logging.WARNING):
        rows = read(directory, startingoffsets="2", failondataloss="false")
    assert numbers(rows)[0] >= firsts[1]
    assert "are gone" in caplog.text


def test_start_behind_last_record_of_removed_segment(directory: Path) -> None:
    """The number in between is that of the segment's index."""
    firsts = list_segments(directory)
    segment_path(directory, firsts[0]).unlink()
    assert read(directory, startingoffsets=str(firsts[1] - 1)) == read(directory)


def test_names_of_destinations_are_known_without_their_declaration(directory: Path) -> None:
    with journal_in(directory) as journal:
        last = put(journal)
        journal.sync()
        # the record that names the destination is in the first segment, and only there
        segment_path(directory, list_segments(directory)[0]).unlink()
        (row,) = read(directory, startingoffsets=str(last))
        assert row["destination"] == "orders"
