"""Sequential reads of records, also while a broker writes the journal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from sluicemq.journal.format import Record, RecordType, decode_record
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    MappedSegment,
    damaged,
    list_segments,
    record_offsets,
    records_end,
    segment_path,
)
from sluicemq.journal.writer import DurableEnd, read_durable


def read_segment(view: MappedSegment, end: int, sequence: int) -> Iterator[tuple[int, Record]]:
    """Iterate over offset and record from a sequence number up to offset `end`, without INDEX.

    Raises JournalDamaged if the records end before `end`.
    """
    start = SEGMENT_HEADER_BYTES
    index = view.index
    if index is not None:
        end = min(end, view.index_offset)
        row = index.row(sequence)
        start = int(index.columns["offset"][row]) if row < index.count else end
    reached = start
    for offset, size in record_offsets(view.view, end, start):
        reached = offset + (size + 7 & -8)
        record = decode_record(view.view, offset, size)
        if record.type == RecordType.INDEX:
            return
        if record.sequence >= sequence:
            yield offset, record
    if reached < min(end, view.size):
        raise damaged(view.path, reached, "the record is not intact")


def read_records(
    directory: Path, durable: DurableEnd | None = None, sequence: int = 0
) -> Iterator[tuple[MappedSegment, int, Record]]:
    """Iterate over segment, offset and record of all records up to the durable end, in order.

    A broker may run meanwhile. Segments that it removes are skipped, and segments that it creates
    are not read. Raises JournalDamaged, JournalError.
    """
    durable = durable or read_durable(directory)
    if durable is None:
        return
    firsts = [first for first in list_segments(directory) if first <= durable.segment]
    for first, following in zip_longest(firsts, firsts[1:]):
        if following is not None and following <= sequence:
            continue
        end = records_end(directory, first, following)
        try:
            view = MappedSegment(segment_path(directory, first))
        except FileNotFoundError:
            continue
        try:
            if first == durable.segment:
                end = durable.offset
            elif not end or view.index is not None:
                end = view.size
            for offset, record in read_segment(view, end, sequence):
                yield view, offset, record
        finally:
            view.close()
