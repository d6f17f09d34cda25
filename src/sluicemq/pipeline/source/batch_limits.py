"""Row and byte limits of a micro-batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.pipeline.source.heads import Heads, index_heads
from sluicemq.pipeline.source.journal import SourceJournal
from sluicemq.pipeline.source.journal_storage import Integers, StoredSegment
from sluicemq.pipeline.source.offsets import Offset
from sluicemq.pipeline.source.segment_scan import scan_segment
from sluicemq.pipeline.source.selection import Selection, row_counts


class BatchLimits:
    """Remaining rows and record bytes of a micro-batch; None = no limit.

    The first record of a micro-batch is admitted even if it exceeds the limits.
    """

    def __init__(self, rows: int | None, volume: int | None) -> None:
        self._rows = rows
        self._volume = volume
        self._empty = True

    def first_beyond(self, sizes: Integers, counts: Integers) -> int:
        """Return the index of the first of the next records that exceeds a limit.

        Return the number of records if all of them fit.
        """
        total = place = len(sizes)
        if not total:
            return 0
        rows = np.cumsum(counts)
        volume = np.cumsum(sizes)
        if self._rows is not None:
            place = int(np.searchsorted(rows, self._rows, side="right"))
            self._rows -= int(rows[-1])
        if self._volume is not None:
            place = min(place, int(np.searchsorted(volume, self._volume, side="right")))
            self._volume -= int(volume[-1])
        if self._empty:
            place = max(place, 1)
        self._empty = False
        return place


def admit(
    journal: SourceJournal,
    selection: Selection,
    start: Offset,
    end: Offset,
    limits: BatchLimits,
    strict: bool,
) -> Offset:
    """Return the position from `start` up to `end` at which the micro-batch reaches its limits.

    Raises RecordNotFound or JournalDamaged if `strict`. Otherwise removed and damaged segments
    count as empty, because the tasks report them.
    """
    for segment, chosen, counts in _selected(journal, selection, start, end, strict):
        beyond = limits.first_beyond(chosen["size"].astype(np.int64), counts)
        if beyond < chosen.count:
            sequence = int(chosen["sequence"][beyond])
            if segment.index is not None:
                return Offset(end.journal, sequence)
            return Offset(end.journal, sequence, segment.first, int(chosen["offset"][beyond]))
    return end


def count_rows(
    journal: SourceJournal,
    selection: Selection,
    start: Offset,
    end: Offset,
    enough: int,
    strict: bool,
) -> int:
    """Return the rows from `start` up to `end`, or fewer, but at least `enough`.

    Raises as `admit`.
    """
    rows = 0
    for _, _, counts in _selected(journal, selection, start, end, strict):
        rows += int(counts.sum())
        if rows >= enough:
            break
    return rows


def _selected(
    journal: SourceJournal, selection: Selection, start: Offset, end: Offset, strict: bool
) -> Iterator[tuple[StoredSegment, Heads, Integers]]:
    """Yield the selected records from `start` up to `end`, with the number of rows of each."""
    state = journal.state
    requested = selection.between(start.sequence, end.sequence)
    for place in range(max(0, bisect_right(state.firsts, start.sequence) - 1), len(state.firsts)):
        first = state.firsts[place]
        if first >= end.sequence:
            break
        try:
            segment = journal.segment(place)
        except (RecordNotFound, JournalDamaged):
            if strict:
                raise
            continue
        names = journal.names(segment)
        parts: Iterator[Heads]
        if segment.index is None:
            at = start.offset if start.segment == first else 0
            parts = (stretch.heads for stretch in scan_segment(segment, at, segment.end, _ignore))
        elif requested.may_be_in(segment.index.summary):
            parts = iter((index_heads(segment.index),))
        else:
            continue
        for heads in parts:
            if requested.by_destination:
                journal.complete(names, segment, heads["destination"])
            rows, codes = requested.rows(heads, names)
            chosen = heads.only(rows)
            yield segment, chosen, row_counts(chosen, codes)


def _ignore(start: int, stop: int) -> None:
    """Ignore the damage; the task that reads the record reports it."""
