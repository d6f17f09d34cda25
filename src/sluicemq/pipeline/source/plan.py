"""Division of the journal into tasks."""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Final

import numpy as np

from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.source.build import touched
from sluicemq.pipeline.source.heads import Heads, index_heads
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.offsets import Offset
from sluicemq.pipeline.source.reading import SegmentRange
from sluicemq.pipeline.source.selection import Selection, row_counts

TASK_BYTES: Final = 48 << 20
"""Target size of a task."""
LEAST_TASK_BYTES: Final = 4 << 20
"""Minimum size of an additional task."""
MOST_TASKS: Final = 4096
ROW_BYTES: Final = 80
"""Cost of a row in addition to the bytes of its record."""
SAMPLES: Final = 4096
"""Number of records of a segment that are weighed at least, if it has them."""


class WeighedRange:
    """Range and the weights of its records: `weights` and `sequences` are parallel.

    In a long range, one record stands for some consecutive ones. Both are empty for a range of a
    segment without an index, which has a total `weight` only."""

    __slots__ = ("segment_range", "sequences", "weight", "weights")

    def __init__(
        self, segment_range: SegmentRange, weight: int, sequences: np.ndarray, weights: np.ndarray
    ) -> None:
        self.segment_range = segment_range
        self.weight = weight
        self.sequences = sequences
        self.weights = weights


def segment_ranges(
    journal: SourceJournal, selection: Selection, columns: frozenset[str], strict: bool
) -> list[WeighedRange]:
    """Return the ranges that may contain a selected record, by the segments' index summaries.

    Without `strict`, removed and damaged segments are included; their tasks report them."""
    state = journal.state
    ranges = []
    none = np.zeros(0, np.int64)
    high = min(selection.high, state.next)
    start = max(0, bisect_right(state.firsts, selection.low) - 1)
    for place in range(start, len(state.firsts)):
        first = state.firsts[place]
        if first >= high:
            break
        following = state.firsts[place + 1] if place + 1 < len(state.firsts) else high
        whole = SegmentRange(first, max(selection.low, first), min(high, following), 0, 0)
        if whole.low >= whole.high:
            continue
        try:
            segment = journal.segment(place)
        except (RecordNotFound, JournalDamaged):
            if strict:
                raise
            ranges.append(WeighedRange(whole, LEAST_TASK_BYTES, none, none))
            continue
        index = segment.index
        if index is None:
            ranges.append(WeighedRange(whole._replace(end=segment.end), segment.end, none, none))
            continue
        if not selection.may_be_in(index.summary):
            continue
        begin, end = index.row(whole.low), index.row(whole.high)
        names = journal.names(segment)
        # weighing a sample takes a tenth of the time; it may lack what is rare
        for step in dict.fromkeys((max(1, (end - begin) // SAMPLES), 1)):
            heads = index_heads(index).take(slice(begin, end, step))
            rows, codes = selection.rows(heads, names)
            if len(rows):
                chosen = heads.only(rows)
                weights = step * _weights(chosen, codes, columns)
                sequences = chosen["sequence"].copy()
                ranges.append(WeighedRange(whole, int(weights.sum()), sequences, weights))
                break
    return ranges


def _weights(heads: Heads, codes: np.ndarray, columns: frozenset[str]) -> np.ndarray:
    weights = row_counts(heads, codes) * ROW_BYTES
    touch = touched(columns, codes, heads)
    weights[touch] += heads["size"][touch]
    return weights


def share(weighed: list[WeighedRange], least: int) -> list[list[SegmentRange]]:
    """Divide ranges among tasks of about equal weight.

    There is at least one task per processor, unless tasks become too small, and at least `least`
    tasks if there are that many records."""
    total = sum(item.weight for item in weighed)
    if not total:
        return []
    processors = os.cpu_count() or 1
    task_count = max(1, min(processors, total // LEAST_TASK_BYTES), -(-total // TASK_BYTES))
    if task_count > processors:
        task_count += -task_count % processors  # no processor is idle at the end
    task_count = min(max(task_count, least), MOST_TASKS)
    tasks: list[list[SegmentRange]] = [[] for _ in range(task_count)]
    done = 0
    for item in weighed:
        if not len(item.weights):
            tasks[min(task_count - 1, (done + item.weight // 2) * task_count // total)].append(
                item.segment_range
            )
            done += item.weight
            continue
        middles = done + np.cumsum(item.weights) - item.weights // 2
        numbers = np.minimum(middles * task_count // total, task_count - 1)
        low = item.segment_range.low
        for number in np.unique(numbers).tolist():
            behind = int(np.searchsorted(numbers, number, side="right"))
            last = behind == len(numbers)
            high = item.segment_range.high if last else int(item.sequences[behind])
            tasks[number].append(item.segment_range._replace(low=low, high=high))
            low = high
        done += item.weight
    return [task for task in tasks if task]


def between(journal: SourceJournal, low: int, high: int, start: Offset) -> list[SegmentRange]:
    """Return the range of every segment from `low` on and below `high`, without opening any.

    `start` has the byte position of `low` if it is known."""
    state = journal.state
    ranges = []
    for place in range(max(0, bisect_right(state.firsts, low) - 1), len(state.firsts)):
        first = state.firsts[place]
        if first >= high:
            break
        following = state.firsts[place + 1] if place + 1 < len(state.firsts) else high
        end = journal.place.records_end(state, place)
        at = start.offset if start.segment == first and start.sequence <= low else 0
        segment_range = SegmentRange(first, max(low, first), min(high, following), at, end)
        if segment_range.low < segment_range.high:
            ranges.append(segment_range)
    return ranges
