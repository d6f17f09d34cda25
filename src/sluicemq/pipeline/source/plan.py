"""Which pieces of the journal make which tasks."""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Final

import numpy as np

from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.source.build import touched
from sluicemq.pipeline.source.heads import Heads, index_heads
from sluicemq.pipeline.source.journal import Journal
from sluicemq.pipeline.source.offsets import Offset
from sluicemq.pipeline.source.reading import SegmentRange
from sluicemq.pipeline.source.selection import Selection, row_counts

TASK_BYTES: Final = 48 << 20
"""Read by one task, about."""
LEAST_TASK_BYTES: Final = 4 << 20
"""Less is not worth another task."""
MOST_TASKS: Final = 4096
ROW_BYTES: Final = 80
"""What a row costs besides the record's own bytes."""


class WeighedRange:
    """Pieces with what each of their records weighs: `weights` and `sequences` are parallel;
    both are empty for a piece of a segment without an index, which is one whole of `weight`."""

    __slots__ = ("segment_range", "sequences", "weight", "weights")

    def __init__(
        self, segment_range: SegmentRange, weight: int, sequences: np.ndarray, weights: np.ndarray
    ) -> None:
        self.segment_range = segment_range
        self.weight = weight
        self.sequences = sequences
        self.weights = weights


def segment_ranges(
    journal: Journal, selection: Selection, columns: frozenset[str], strict: bool
) -> list[WeighedRange]:
    """Everything that may hold a record of the selection. Segments that cannot are left out by
    what their index says. Without `strict`, those that are gone or damaged are left to the task."""
    state = journal.state
    found = []
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
            found.append(WeighedRange(whole, LEAST_TASK_BYTES, none, none))
            continue
        index = segment.index
        if index is None:
            found.append(WeighedRange(whole._replace(end=segment.end), segment.end, none, none))
            continue
        if not selection.may_be_in(index.summary):
            continue
        heads = index_heads(index).take(slice(index.row(whole.low), index.row(whole.high)))
        rows, codes = selection.rows(heads, journal.names(segment))
        if len(rows):
            chosen = heads.only(rows)
            weights = _weights(chosen, codes, columns)
            found.append(
                WeighedRange(whole, int(weights.sum()), chosen["sequence"].copy(), weights)
            )
    return found


def _weights(heads: Heads, codes: np.ndarray, columns: frozenset[str]) -> np.ndarray:
    weights = row_counts(heads, codes) * ROW_BYTES
    touch = touched(columns, codes, heads)
    weights[touch] += heads["size"][touch]
    return weights


def share(weighed: list[WeighedRange], least: int) -> list[list[SegmentRange]]:
    """Pieces for each task: about equally much for each, as many as there are processors or more,
    but not for next to nothing; `least` tasks if there are as many records."""
    total = sum(item.weight for item in weighed)
    if not total:
        return []
    processors = os.cpu_count() or 1
    wanted = max(1, min(processors, total // LEAST_TASK_BYTES), -(-total // TASK_BYTES))
    if wanted > processors:
        wanted += -wanted % processors  # so that none of them has to wait for the last
    wanted = min(max(wanted, least), MOST_TASKS)
    tasks: list[list[SegmentRange]] = [[] for _ in range(wanted)]
    done = 0
    for item in weighed:
        if not len(item.weights):
            tasks[min(wanted - 1, (done + item.weight // 2) * wanted // total)].append(
                item.segment_range
            )
            done += item.weight
            continue
        middles = done + np.cumsum(item.weights) - item.weights // 2
        numbers = np.minimum(middles * wanted // total, wanted - 1)
        low = item.segment_range.low
        for number in np.unique(numbers).tolist():
            behind = int(np.searchsorted(numbers, number, side="right"))
            last = behind == len(numbers)
            high = item.segment_range.high if last else int(item.sequences[behind])
            tasks[number].append(item.segment_range._replace(low=low, high=high))
            low = high
        done += item.weight
    return [task for task in tasks if task]


def between(journal: Journal, low: int, high: int, start: Offset) -> list[SegmentRange]:
    """All segments with numbers from `low` on and below `high`, without a look into them. `start`
    tells where in one of them `low` is."""
    state = journal.state
    found = []
    for place in range(max(0, bisect_right(state.firsts, low) - 1), len(state.firsts)):
        first = state.firsts[place]
        if first >= high:
            break
        following = state.firsts[place + 1] if place + 1 < len(state.firsts) else high
        end = journal.place.records_end(state, place)
        at = start.offset if start.segment == first and start.sequence <= low else 0
        segment_range = SegmentRange(first, max(low, first), min(high, following), at, end)
        if segment_range.low < segment_range.high:
            found.append(segment_range)
    return found
