"""Division of the journal into micro-batches, and of those into tasks."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from sluicemq.pipeline.source.build import needed_mask
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import Integers, StoredSegment
from sluicemq.pipeline.source.offsets import Offset
from sluicemq.pipeline.source.reading import Reading, SegmentRange
from sluicemq.pipeline.source.records import (
    RecordColumns,
    ignore_damage,
    index_columns,
    segment_columns,
)
from sluicemq.pipeline.source.selection import Selection, row_counts

TASK_BYTES: Final = 48 << 20
"""Target size of a task."""
MIN_TASK_BYTES: Final = 4 << 20
"""Minimum size of an additional task."""
MAX_TASKS: Final = 4096
NO_LIMIT: Final = (1 << 63) - 1
"""Rows or bytes of a micro-batch without a limit."""
ROW_BYTES: Final = 80
"""Cost of a row in addition to the bytes of its record."""
SAMPLES: Final = 4096
"""Number of records of a segment that are weighed at least, if it has them."""


class WeighedRange(NamedTuple):
    """Range and the weights of its records: `weights` and `sequences` are parallel.

    In a long range, one record stands for some consecutive ones; in a range of a segment without an
    index, the first one stands for all."""

    segment_range: SegmentRange
    sequences: np.ndarray
    weights: np.ndarray


def _ranges(journal: SourceJournal, low: int, high: int) -> Iterator[tuple[int, SegmentRange]]:
    """Yield each segment with records from `low` on and below `high`: its index and its range."""
    segments = journal.state.segments
    for number in range(max(0, bisect_right(segments, low) - 1), len(segments)):
        first = segments[number]
        if first >= high:
            return
        next_first = segments[number + 1] if number + 1 < len(segments) else high
        if max(low, first) < min(high, next_first):
            end = journal.storage.records_end(journal.state, number)
            yield number, SegmentRange(first, max(low, first), min(high, next_first), 0, end)


def segment_ranges(
    journal: SourceJournal, selection: Selection, columns: frozenset[str], strict: bool
) -> list[WeighedRange]:
    """Return the ranges that may contain a selected record, by the segments' index summaries.

    Without `strict`, removed and damaged segments are included; their tasks report them."""
    ranges = []
    high = min(selection.high, journal.state.next)
    for number, segment_range in _ranges(journal, selection.low, high):
        segment = journal.find(number, strict)
        if segment is None or segment.index is None:
            # only one task can read it
            weight = MIN_TASK_BYTES if segment is None else segment.end
            estimate = np.array([segment_range.low]), np.array([weight])
            ranges.append(WeighedRange(segment_range, *estimate))
            continue
        index = segment.index
        if not selection.may_be_in(index.summary):
            continue
        begin, end = index.row(segment_range.low), index.row(segment_range.high)
        names = journal.names(segment)
        # weighing a sample takes a tenth of the time, but it may lack rare records
        for step in dict.fromkeys((max(1, (end - begin) // SAMPLES), 1)):
            records = index_columns(index).take(slice(begin, end, step))
            rows, codes = selection.rows(records, names)
            if len(rows):
                selected = records.select(rows)
                weights = step * _weights(selected, codes, columns)
                ranges.append(WeighedRange(segment_range, selected["sequence"].copy(), weights))
                break
    return ranges


def _weights(records: RecordColumns, codes: np.ndarray, columns: frozenset[str]) -> np.ndarray:
    weights = row_counts(records, codes) * ROW_BYTES
    is_needed = needed_mask(columns, codes, records)
    weights[is_needed] += records["size"][is_needed]
    return weights


def split_into_tasks(weighed: list[WeighedRange], minimum: int) -> list[list[SegmentRange]]:
    """Divide ranges among tasks of about equal weight.

    There is at least one task per processor, unless tasks become too small, and at least `minimum`
    tasks if there are that many records."""
    total = sum(int(item.weights.sum()) for item in weighed)
    if not total:
        return []
    processors = os.cpu_count() or 1
    task_count = max(1, min(processors, total // MIN_TASK_BYTES), -(-total // TASK_BYTES))
    if task_count > processors:
        task_count += -task_count % processors  # no processor is idle at the end
    task_count = min(max(task_count, minimum), MAX_TASKS)
    tasks: list[list[SegmentRange]] = [[] for _ in range(task_count)]
    weight_before = 0
    for item in weighed:
        middles = weight_before + np.cumsum(item.weights) - item.weights // 2
        numbers = np.minimum(middles * task_count // total, task_count - 1)
        low = item.segment_range.low
        for number in np.unique(numbers).tolist():
            stop = int(np.searchsorted(numbers, number, side="right"))
            high = item.segment_range.high if stop == len(numbers) else int(item.sequences[stop])
            tasks[number].append(item.segment_range._replace(low=low, high=high))
            low = high
        weight_before += int(item.weights.sum())
    return [task for task in tasks if task]


def split_by_segment(
    journal: SourceJournal, low: int, high: int, start: Offset
) -> list[SegmentRange]:
    """Return the range of each segment with records from `low` on and below `high`; open none.

    `start` has the byte position of `low` if it is known."""
    return [
        segment_range._replace(
            start=start.offset
            if start.segment == segment_range.first and start.sequence <= low
            else 0
        )
        for _, segment_range in _ranges(journal, low, high)
    ]


# --- micro-batches -----------------------------------------------------------------------------


def limit_batch(
    journal: SourceJournal,
    reading: Reading,
    start: Offset,
    end: Offset,
    max_rows: int,
    max_bytes: int,
) -> tuple[Offset, int, int]:
    """Return the position from `start` up to `end` at which the micro-batch reaches a limit.

    Its first record is admitted even if it exceeds the limits. Also return the rows and the bytes
    of the records that were counted: all up to `end`, or more than a limit.

    Raises RecordNotFound or JournalDamaged if the reading is strict. Otherwise removed and damaged
    segments count as empty, because the tasks report them.
    """
    rows_before = bytes_before = 0
    for segment, selected, counts in _selected(journal, reading, start, end):
        if not selected.count:
            continue
        rows = np.cumsum(counts)
        volume = np.cumsum(selected["size"], dtype=np.int64)
        admitted_count = min(
            int(np.searchsorted(rows, max_rows - rows_before, side="right")),
            int(np.searchsorted(volume, max_bytes - bytes_before, side="right")),
        )
        if not bytes_before:
            admitted_count = max(admitted_count, 1)
        rows_before += int(rows[-1])
        bytes_before += int(volume[-1])
        if admitted_count < selected.count:
            sequence, offset = (
                int(selected[name][admitted_count]) for name in ("sequence", "offset")
            )
            position = replace(end, sequence=sequence, segment=segment.first, offset=offset)
            return position, rows_before, bytes_before
    return end, rows_before, bytes_before


def _selected(
    journal: SourceJournal, reading: Reading, start: Offset, end: Offset
) -> Iterator[tuple[StoredSegment, RecordColumns, Integers]]:
    """Yield the selected records from `start` up to `end`, with the number of rows of each."""
    requested = reading.selection.within(start.sequence, end.sequence, start.starts, {})
    for number, segment_range in _ranges(journal, start.sequence, end.sequence):
        segment = journal.find(number, reading.strict)
        if segment is None or (
            segment.index is not None and not requested.may_be_in(segment.index.summary)
        ):
            continue
        names = journal.names(segment)
        position = start.offset if start.segment == segment_range.first else 0
        for records in segment_columns(segment, position, ignore_damage):
            if requested.by_destination:
                journal.add_names(names, segment, records["destination"])
            rows, codes = requested.rows(records, names)
            selected = records.select(rows)
            yield segment, selected, row_counts(selected, codes)
