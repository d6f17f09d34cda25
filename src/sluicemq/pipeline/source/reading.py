"""One task: reads ranges of the journal and yields batches of rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from zlib_ng import zlib_ng

from sluicemq.journal.format import HEADER_BYTES, RecordType
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.schema import Event
from sluicemq.pipeline.source import build
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import Integers, JournalStorage, StoredSegment
from sluicemq.pipeline.source.records import (
    LOCATING_COLUMNS,
    Column,
    RecordColumns,
    ignore_damage,
    index_columns,
    scan_segment,
)
from sluicemq.pipeline.source.selection import DEAD_LETTERED, Selection, meta_sizes, row_counts

BATCH_ROWS: Final = 4096
"""Rows of a batch. Spark is fastest with 1,024 to 8,192 rows."""
BATCH_BYTES: Final = 8 << 20
SPAN_BYTES: Final = 1 << 30
"""Maximum distance of a batch's records: Arrow's offsets have 31 bits."""
SPARSE_RATIO: Final = 8
"""If less than 1 / SPARSE_RATIO of a segment is read, single records are checked, not all of it."""

_DESTINATION_COLUMNS: Final = frozenset(("destination", "destination_kind", "topic"))
_PROPERTY_COLUMNS: Final = frozenset(("properties", "property_types"))

Gather = Callable[[Integers, Integers], tuple[pa.Buffer, Integers]]
"""A function as StoredSegment.gather."""

log = logging.getLogger("sluicemq.pipeline.source")


class SegmentRange(NamedTuple):
    """Range of the sequence numbers of one segment: from `low` on and below `high`.

    start  offset of the first record to scan if the segment has no index; 0 = its first one
    end    end of the segment's records; 0 = its index states it
    """

    first: int
    low: int
    high: int
    start: int
    end: int


@dataclass(frozen=True)
class TaskRanges(InputPartition):
    """One task: ranges of the journal with that identity, and the bounds of single destinations.

    Spark pickles a reader before it plans, so the results of the plan are sent with the tasks.
    """

    segment_ranges: list[SegmentRange]
    identity: str
    lows: Mapping[str, int]
    highs: Mapping[str, int]


@dataclass(frozen=True)
class Reading:
    """Parameters of all tasks, pickled with the reader.

    strict  removed and damaged records raise an error
    """

    storage: JournalStorage
    schema: pa.Schema
    selection: Selection
    strict: bool

    @cached_property
    def columns(self) -> frozenset[str]:
        return frozenset(self.schema.names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.

        Raises JournalError, and JournalDamaged that names segment and offset. Without `strict`,
        lost records are skipped with a warning.
        """
        assert isinstance(partition, TaskRanges)
        journal = SourceJournal(self.storage, partition.identity)
        for segment_range in partition.segment_ranges:
            selection = self.selection.within(
                segment_range.low, segment_range.high, partition.lows, partition.highs
            )
            try:
                segment = self.storage.open(segment_range.first, segment_range.end)
                yield from _RangeReader(self, journal, segment, segment_range, selection).read()
            except RecordNotFound as error:
                self.report_removed(segment_range.low, segment_range.high, str(error))
            except JournalDamaged as error:
                if self.strict:
                    raise
                log.warning(
                    "Not read: sequence numbers %d to %d, or some of them. %s",
                    segment_range.low,
                    segment_range.high - 1,
                    error,
                )

    def report_removed(
        self, low: int, high: int, reason: str = "their segments have been removed"
    ) -> None:
        """Raise RecordNotFound for records removed before they were read, or log a warning."""
        self.report(
            RecordNotFound(
                f"sequence numbers {low} to {high - 1} are gone, in whole or in part: {reason}. To "
                "continue with the remaining records, set failOnDataLoss to false (missing records "
                "are then reported as warnings), or start again with another checkpoint. A slot "
                "(option slot) keeps the broker from removing records that a stream has not read."
            )
        )

    def report(self, loss: Exception) -> None:
        """Raise a loss of data, or log a warning if it is to be ignored."""
        if self.strict:
            raise loss
        log.warning("Ignored, as failOnDataLoss is false: %s", loss)


class _RangeReader:
    def __init__(
        self,
        reading: Reading,
        journal: SourceJournal,
        segment: StoredSegment,
        segment_range: SegmentRange,
        selection: Selection,
    ) -> None:
        self._reading = reading
        self._journal = journal
        self._segment = segment
        self._range = segment_range
        self._selection = selection
        self._columns = reading.columns
        self._names = journal.names(segment)
        self._needs_names = self._selection.by_destination or not self._columns.isdisjoint(
            _DESTINATION_COLUMNS
        )
        self._wants_dead_letters = Event.DEAD_LETTERED in self._selection.events and (
            not self._columns.isdisjoint(_PROPERTY_COLUMNS)
        )

    def read(self) -> Iterator[pa.RecordBatch]:
        segment, strict = self._segment, self._reading.strict
        last: RecordColumns | None = None
        for records, gather in self._record_blocks():
            if self._needs_names:
                self._journal.add_names(self._names, segment, records["destination"])
            rows, codes = self._selection.rows(records, self._names)
            selected = records.select(rows)
            counts = row_counts(selected, codes)
            is_needed = build.needed_mask(self._columns, codes, selected)
            sizes = np.where(is_needed, selected["size"], 0).astype(np.int64)
            # a scan has checked each record
            checked = segment.index is None or (
                int(sizes.sum()) * SPARSE_RATIO > segment.end and segment.is_intact(strict)
            )
            if last is None and len(rows) and rows[0] == 0 and codes[0] == DEAD_LETTERED:
                last = self._record_before(self._range.start)
            for part in _batch_ranges(selected["offset"], sizes, counts):
                part_records = selected.take(part)
                data, positions, valid = self._fetch(gather, part_records, is_needed[part], checked)
                intact_records = part_records.take(valid)
                intact_codes = codes[part][valid]
                batch = build.BatchRecords(
                    intact_records,
                    intact_codes,
                    counts[part][valid],
                    data,
                    positions[valid],
                    self._dead_letters(records, rows[part][valid], intact_codes, last),
                    self._names,
                    self._journal,
                    partial(self._report_invalid, intact_records),
                )
                yield batch.record_batch(self._reading.schema)
            last = records.take(slice(records.count - 1, None))

    def _record_blocks(self) -> Iterator[tuple[RecordColumns, Gather]]:
        """Yield consecutive records, and the function that returns their bytes."""
        index, part = self._segment.index, self._range
        if index is None:
            report = None if self._reading.strict else self._report
            for block in scan_segment(self._segment, part.start, part.end, report):
                if int(block.records["sequence"][0]) >= part.high:
                    return
                yield block.records, block.gather
        elif self._selection.may_be_in(index.summary):
            # start one record earlier, which may be the dead letter of the first one
            first_row = max(0, index.row(part.low) - 1)
            yield (
                index_columns(index).take(slice(first_row, index.row(part.high))),
                self._segment.gather,
            )

    def _record_before(self, start: int) -> RecordColumns | None:
        """Return the record that ends at `start`: the dead letter of the first event."""
        if not self._wants_dead_letters:
            return None
        last = None
        for records, *_ in scan_segment(self._segment, 0, start, ignore_damage):
            last = records.take(slice(records.count - 1, None))
        return last

    def _dead_letters(
        self, records: RecordColumns, rows: Integers, codes: Column, last: RecordColumns | None
    ) -> build.DeadLetterMetas:
        """Return the metas of the dead letters of the dead-lettered messages among these rows.

        A dead letter, which has the reason, is the record before the event and in the same unit.
        `last` is the record before all of `records`.
        """
        if not self._wants_dead_letters or not (codes == DEAD_LETTERED).any():
            return build.NO_DEAD_LETTERS
        if last is not None:
            records, rows = RecordColumns.concatenate((last, records), LOCATING_COLUMNS), rows + 1
        dead = np.flatnonzero((codes == DEAD_LETTERED) & (rows > 0))
        before = records.take(rows[dead] - 1)
        has_meta = (before["type"] == RecordType.MESSAGE) & (meta_sizes(before) > 0)
        dead, before = dead[has_meta], before.take(has_meta)
        sizes = before["size"].astype(np.int64)
        data, positions = self._segment.gather(before["offset"], sizes)
        valid = np.array(_intact(data, positions, sizes), np.bool_)
        dead, positions, bodies = dead[valid], positions[valid], before["body"][valid]
        return build.DeadLetterMetas(
            dead, build.slices(data, positions + HEADER_BYTES, positions + bodies)
        )

    def _fetch(
        self, gather: Gather, records: RecordColumns, is_needed: build.Mask, checked: bool
    ) -> tuple[pa.Buffer, Integers, build.Mask | slice]:
        """Fetch the needed records.

        Return their bytes, the position of each record in them, and the mask of intact records."""
        rows = np.flatnonzero(is_needed)
        offsets = records["offset"][rows]
        sizes = records["size"][rows].astype(np.int64)
        data, record_starts = gather(offsets, sizes)
        positions = np.full(records.count, -1, np.int64)
        positions[rows] = record_starts
        if checked or not len(rows):
            return data, positions, slice(None)
        valid = np.ones(records.count, np.bool_)
        for row, intact in zip(rows.tolist(), _intact(data, record_starts, sizes), strict=True):
            if not intact:
                valid[row] = False
                self._report_invalid(records, row, "the record is not intact")
        return data, positions, slice(None) if valid.all() else valid

    def _report_invalid(self, records: RecordColumns, row: int, text: str) -> None:
        sequence = int(records["sequence"][row])
        offset = int(records["offset"][row])
        self._reading.report(self._segment.damage(offset, f"{text} (record {sequence})"))

    def _report(self, start: int, stop: int) -> None:
        error = self._segment.damage(start, "the record is not intact")
        log.warning("Skipped %d bytes: %s", stop - start, error)


def _intact(data: pa.Buffer, record_starts: Integers, sizes: Integers) -> list[bool]:
    view = memoryview(data)
    words = view[: len(view) & -4].cast("I")
    crc32 = zlib_ng.crc32
    return [
        size >= HEADER_BYTES
        and words[start >> 2] == size
        and crc32(view[start + 8 : start + size]) == words[(start >> 2) + 1]
        for start, size in zip(record_starts.tolist(), sizes.tolist(), strict=True)
    ]


def _batch_ranges(offsets: Integers, sizes: Column, counts: Integers) -> Iterator[slice]:
    """Yield ranges of records that form batches: at least one record each, else within limits."""
    # rows and bytes before each record
    rows = np.concatenate(([0], np.cumsum(counts)))
    volume = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    start = 0
    while start < len(offsets):
        stop = min(
            int(np.searchsorted(rows, rows[start] + BATCH_ROWS, side="right")) - 1,
            int(np.searchsorted(volume, volume[start] + BATCH_BYTES, side="right")) - 1,
            int(np.searchsorted(offsets, offsets[start] + SPAN_BYTES, side="right")),
        )
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop
