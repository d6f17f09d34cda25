"""Offsets and tasks of a stream, as requested by Spark; test_spark.py tests them with Spark."""

from __future__ import annotations

import errno
import json
import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.files import read_durable
from sluicemq.journal.format import Cause
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.journal.slots import Slots
from sluicemq.model.errors import (
    ConfigurationError,
    ConnectionLost,
    JournalError,
    RecordNotFound,
)
from sluicemq.pipeline.source import offsets, plan
from sluicemq.pipeline.source.journal_storage import DirectoryStorage
from sluicemq.pipeline.source.options import arrow_columns, requested_columns
from sluicemq.pipeline.source.readers import StreamReader
from sluicemq.pipeline.source.reading import TaskRanges
from tests.pipeline.source import support
from tests.pipeline.source.support import (
    SMALL,
    T0,
    Row,
    message,
    naive_rows,
    only,
    options_of,
    put,
    rows_of,
)
from tests.pipeline.source.test_events import journal_in

Offset = dict[str, Any]
ALL = ReadAllAvailable()


def stream_of(directory: Path | str, **given: str) -> StreamReader:
    """Return the reader that Spark uses for `spark.readStream`, by default from the start."""
    options = options_of(directory, **{"startingoffsets": "earliest", **given})
    return StreamReader(options, arrow_columns(requested_columns(options)))


def batch(stream: StreamReader, start: Offset, end: Offset) -> list[Row]:
    """Return the rows of a micro-batch, after serializing reader and tasks as Spark does."""
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
    rows = []
    for task in stream.partitions(start, end):
        reader, remote_task = pickle.loads(pickle.dumps((stream, task)))
        for part in reader.read(remote_task):
            rows += rows_of(part)
    return rows


def batches(
    stream: StreamReader, limit: ReadLimit, start: Offset | None = None
) -> Iterator[list[Row]]:
    """Read micro-batches until there is nothing new."""
    start = start or stream.initialOffset()
    while (end := stream.latestOffset(start, limit)) != start:
        yield batch(stream, start, end)
        start = end


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    """Journal of several segments with indexes; the last one is being written."""
    with journal_in(tmp_path) as journal:
        fill(journal)
        yield journal


def fill(journal: FileJournal, rounds: int = 8) -> None:
    for _ in range(rounds):
        numbers = [put(journal, message(b"x" * 200)) for _ in range(10)]
        support.deliver(journal, numbers[:7])
        support.complete(journal, numbers[2:5])
        journal.sync()


def test_reads_consecutive_batches(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert batch(stream, start, end) == naive_rows(tmp_path)
    assert stream.latestOffset(end, ALL) == end
    before = len(naive_rows(tmp_path))
    for _ in range(5):  # goes on in the same segment, and then in others
        fill(journal, 1)
        start, end = end, stream.latestOffset(end, ALL)
        rows = batch(stream, start, end)
        assert rows == naive_rows(tmp_path)[before:]
        before += len(rows)


@pytest.mark.parametrize("rows", [1, 7, 25, 1000])
def test_rows_of_batch_are_limited(tmp_path: Path, journal: FileJournal, rows: int) -> None:
    stream = stream_of(tmp_path, maxoffsetspertrigger=str(rows))
    assert stream.getDefaultReadLimit() == ReadMaxRows(rows)
    parts = list(batches(stream, ReadMaxRows(rows)))
    assert [row for part in parts for row in part] == naive_rows(tmp_path)
    assert all(len(part) <= max(rows, 7) for part in parts)  # a list of 7 is not divided
    assert rows > 25 or sum(map(len, parts)) / len(parts) > rows / 2


def test_only_selected_events_count(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, events="acknowledged")
    parts = list(batches(stream, ReadMaxRows(9)))
    assert [len(part) for part in parts if part] == [9, 9, 6]


def test_bytes_of_batch_are_limited(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, events="published", maxbytespertrigger="1500")
    assert stream.getDefaultReadLimit() == ReadMaxBytes(1500)
    parts = list(batches(stream, ReadMaxBytes(1500)))
    assert [len(part) for part in parts] == [5] * 16  # 256 bytes each
    assert stream_of(tmp_path).getDefaultReadLimit() == ALL
    limited = stream_of(tmp_path, events="published", maxbytespertrigger="1500")
    assert len(next(batches(limited, ReadMaxRows(9)))) == 5
    # a trigger that wants everything gets it
    assert len(next(batches(limited, ALL))) == 80


def test_record_above_limit_is_batch_of_its_own(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        for size in (10, 5000, 10):
            put(journal, message(b"x" * size))
        journal.sync()
        stream = stream_of(tmp_path, events="published")
        assert [len(part) for part in batches(stream, ReadMaxBytes(100))] == [1, 1, 1]


def test_available_now(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path)
    stream.prepareForTriggerAvailableNow()
    expected = naive_rows(tmp_path)
    fill(journal, 2)
    rows = [row for part in batches(stream, ReadMaxRows(50)) for row in part]
    assert rows == expected
    last = naive_rows(tmp_path)[-1]["sequence"]
    assert stream.reportLatestOffset()["sequence"] > last


def test_starting_offset_of_stream(tmp_path: Path, journal: FileJournal) -> None:
    def first(**given: str) -> int:
        return int(stream_of(tmp_path, **given).initialOffset()["sequence"])

    end = read_durable(tmp_path)
    assert end is not None
    durable = end.sequence
    assert first() == 1
    assert first(startingoffsets="latest") == durable + 1
    assert first(startingoffsets="") == durable + 1
    assert first(startingoffsets='{"sequence": 17}') == 17
    offset = offsets.Offset("ab", 17, 1, 64, (3,), {"orders": 20})
    assert first(startingoffsets=json.dumps(offset.as_json())) == 17
    sequence = put(journal, message(timestamp=T0 + 60_000))
    journal.sync()
    assert first(startingoffsets="", startingtimestamp=str(T0 + 10_000)) == sequence
    assert first(startingoffsets="", startingtimestamp=str(T0 + 70_000)) == sequence + 1


def test_tasks_of_batch_are_stable(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MIN_TASK_BYTES", 1000)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)

    def tasks() -> list[list[tuple[int, int]]]:
        restarted = stream_of(tmp_path)
        return [
            [
                (row["sequence"], row["record_index"])
                for part in restarted.read(task)
                for row in rows_of(part)
            ]
            for task in restarted.partitions(start, end)
        ]

    before = tasks()
    assert len(before) == 3
    assert sum(map(len, before)) == len(naive_rows(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    journal.seal()
    fill(journal)
    assert tasks() == before


def test_invalid_offset_is_error(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    assert start["version"] == 1
    for invalid, reason in (
        ({**start, "journal": "0" * 16}, "another broker"),
        ({**start, "version": 2}, "newer release"),
        ({"partition": 3}, "another query"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            stream.latestOffset(invalid, ALL)
        with pytest.raises(ConfigurationError, match=reason):
            stream.partitions(invalid, start)


def test_offset_of_older_release(tmp_path: Path, journal: FileJournal) -> None:
    """Older offsets lack fields that only save work."""
    stream = stream_of(tmp_path)
    complete = stream.latestOffset(stream.initialOffset(), ALL)
    older = {name: complete[name] for name in ("version", "journal", "sequence")}
    fill(journal, 1)
    end = stream.latestOffset(older, ALL)
    assert batch(stream, older, end) == batch(stream, complete, end)


def remove_first(directory: Path, count: int = 1) -> None:
    for first in list_segments(directory)[:count]:
        segment_path(directory, first).unlink()


def test_stream_whose_records_were_removed(
    tmp_path: Path, journal: FileJournal, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    rows_before = naive_rows(tmp_path)
    remove_first(tmp_path, 2)
    first_remaining = list_segments(tmp_path)[0]
    for ask in (lambda: stream.latestOffset(start, ALL), lambda: stream.partitions(start, end)):
        with pytest.raises(RecordNotFound, match=r"1 to \d+ are gone.*failOnDataLoss.*slot"):
            ask()
    tolerant_stream = stream_of(tmp_path, failondataloss="false")
    with caplog.at_level(logging.WARNING):
        rows = batch(tolerant_stream, start, end)
    assert only(rows, "sequence", "record_index") == only(
        [row for row in rows_before if row["sequence"] >= first_remaining],
        "sequence",
        "record_index",
    )
    assert {row["destination"] for row in rows} == {"orders"}
    assert "1 to " in caplog.text


def test_removal_of_read_records_is_no_loss(tmp_path: Path) -> None:
    """Neither the index of a segment nor the numbers that a restart skips are lost records."""
    stream = stream_of(tmp_path, events="published")
    with journal_in(tmp_path) as journal:
        put(journal)
        journal.sync()
        start = stream.initialOffset()
        middle = stream.latestOffset(start, ALL)
    with journal_in(tmp_path) as journal:
        put(journal)
        journal.sync()
        end = stream_of(tmp_path, events="published").latestOffset(middle, ALL)
        journal.seal()
        put(journal)
        journal.sync()
        firsts = list_segments(tmp_path)
        assert firsts[-1] > end["sequence"]
        remove_first(tmp_path, len(firsts) - 1)
        restarted = stream_of(tmp_path, events="published")
        assert len(batch(restarted, end, restarted.latestOffset(end, ALL))) == 1


def test_slot_is_created_and_advanced(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, slot="lake", slotlimitbytes="5000000")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    slot = Slots(tmp_path).get("lake")
    assert (slot.position, slot.limit_bytes) == (0, 5_000_000)
    # Spark asks for what follows when it has committed a batch, also after the last one of all
    assert stream.latestOffset(end, ALL) == end
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1
    stream.latestOffset(start, ALL)  # a batch that is done again
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1
    # a query that goes on has one already
    stream_of(tmp_path, slot="lake").partitions(start, end)
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1


def test_other_limit_of_existing_slot_is_reported(
    tmp_path: Path, journal: FileJournal, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of(tmp_path, slot="lake", slotlimitbytes="5000000")
    start = stream.initialOffset()
    stream.latestOffset(start, ALL)
    stream_of(tmp_path, slot="lake", slotlimitbytes="5000000").latestOffset(start, ALL)
    stream_of(tmp_path, slot="lake").latestOffset(start, ALL)
    assert not caplog.records
    stream_of(tmp_path, slot="lake", slotlimitbytes="9000000").latestOffset(start, ALL)
    assert "The slot lake exists with another limit" in caplog.text


def test_slot_without_limit_has_limit_of_broker(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, slot="lake")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    stream.latestOffset(end, ALL)
    for setting in (5_000_000, 1 << 40):
        slot = Slots(tmp_path, setting).get("lake")
        assert (slot.position, slot.limit_bytes) == (end["sequence"] - 1, setting)


def test_slot_is_advanced_when_query_continues(tmp_path: Path, journal: FileJournal) -> None:
    """The query was stopped after its last batch was committed."""
    stream = stream_of(tmp_path, slot="lake")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert Slots(tmp_path).get("lake").position == 0
    stream_of(tmp_path, slot="lake").latestOffset(end, ALL)
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1


def test_slot_is_not_advanced_by_foreign_checkpoint(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, slot="lake")
    end = stream.latestOffset(stream.initialOffset(), ALL)
    with pytest.raises(ConfigurationError, match="the checkpoint is of the journal"):
        stream.latestOffset({**end, "journal": "another"}, ALL)
    assert Slots(tmp_path).get("lake").position == 0


@pytest.mark.parametrize(
    "error", [ConnectionLost("the broker is away"), OSError(errno.ENOSPC, "the disk is full")]
)
def test_slot_is_advanced_by_next_batch_after_outage(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    stream = stream_of(tmp_path, slot="lake")
    end = stream.latestOffset(stream.initialOffset(), ALL)

    def fail(self: DirectoryStorage, slot: str, position: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStorage, "advance_slot", fail)
        assert stream.latestOffset(end, ALL) == end
    assert Slots(tmp_path).get("lake").position == 0
    assert stream.latestOffset(end, ALL) == end
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1


def test_slot_holds_segments(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        journal.set_snapshot_source(lambda: b"")  # there is a broker, which needs nothing
        stream = stream_of(tmp_path, slot="lake", events="published")
        start = stream.initialOffset()
        stream.latestOffset(start, ALL)
        for _ in range(100):
            support.complete(journal, [put(journal)])
            journal.sync()
        journal.compact()
        end = stream.latestOffset(start, ALL)
        assert len(batch(stream, start, end)) == 100
        stream.latestOffset(end, ALL)
        journal.compact()
        with pytest.raises(RecordNotFound, match="are gone"):
            stream.latestOffset(start, ALL)


def test_slot_ahead_of_query_is_reported(
    tmp_path: Path, journal: FileJournal, caplog: pytest.LogCaptureFixture
) -> None:
    stream = stream_of(tmp_path, slot="lake")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    stream.latestOffset(end, ALL)
    assert not caplog.records
    # the checkpoint was removed
    stream_of(tmp_path, slot="lake").latestOffset(start, ALL)
    assert "slot lake is ahead of this query" in caplog.text
    caplog.clear()
    stream_of(tmp_path, slot="lake").latestOffset(end, ALL)
    assert not caplog.records


def test_slot_that_another_source_moves_is_reported(
    tmp_path: Path, journal: FileJournal, caplog: pytest.LogCaptureFixture
) -> None:
    """Two sources of one query with the same slot: the slower one is not protected."""
    fast, slow = (stream_of(tmp_path, slot="lake") for _ in range(2))
    start = slow.initialOffset()
    read = slow.latestOffset(start, ReadMaxRows(10))
    end = fast.latestOffset(fast.latestOffset(start, ALL), ALL)
    assert not caplog.records
    for _ in range(2):
        read = slow.latestOffset(read, ReadMaxRows(10))
    (record,) = caplog.records
    assert "slot lake is ahead of this query" in record.getMessage()
    assert f"{end['sequence'] - 1} before they are read" in record.getMessage()
    assert Slots(tmp_path).get("lake").position == end["sequence"] - 1


@pytest.mark.parametrize("strict", ["true", "false"])
def test_lost_slot_is_reported(
    tmp_path: Path, journal: FileJournal, strict: str, caplog: pytest.LogCaptureFixture
) -> None:
    slots = Slots(tmp_path)
    slots.create("lake")
    slots.mark_lost("lake", slots.get("lake"))
    stream = stream_of(tmp_path, slot="lake", failondataloss=strict)
    start = stream.initialOffset()
    if strict == "true":
        with pytest.raises(JournalError, match=r"slot lake no longer retains.*Delete the slot"):
            stream.latestOffset(start, ALL)
    else:
        with caplog.at_level(logging.WARNING):
            stream.latestOffset(start, ALL)
        assert "slot lake no longer retains segments" in caplog.text


def test_stream_waits_for_journal(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    with journal_in(tmp_path) as journal:
        put(journal)
        journal.sync()
        end = stream.latestOffset(start, ALL)
        assert len(batch(stream, start, end)) == 1


def test_batch_that_ends_behind_dead_letter(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        sequence = put(journal)
        put(journal, message(properties={"deadLetterReason": "expired"}))
        support.complete(journal, [sequence], Cause.DEAD_LETTERED)
        journal.sync()
        for _ in range(2):  # being written, and sealed
            parts = list(batches(stream_of(tmp_path), ReadMaxRows(1)))
            assert [row["event"] for (row,) in parts] == ["published", "published", "dead-lettered"]
            assert parts[2][0]["properties"] == {"deadLetterReason": "expired"}
            assert parts[2][0]["property_types"] == {"deadLetterReason": "text"}
            journal.seal()
            journal.sync()


def test_open_segment_is_not_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_in(tmp_path, JournalOptions()) as journal:
        fill(journal, 20)
        stream = stream_of(tmp_path, startingoffsets="latest", columns="sequence")
        start = stream.initialOffset()
        fill(journal, 1)
        end = stream.latestOffset(start, ALL)
        (task,) = stream.partitions(start, end)
        assert isinstance(task, TaskRanges)
        (segment_range,) = task.segment_ranges
        assert segment_range.end - segment_range.start < 4000 < segment_range.start
        assert SMALL.segment_bytes == 4000
