"""Scan of the records of a segment without an index, by their sizes.

The index of a sealed segment is verified; here the CRC of each record is checked instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from sluicemq.journal.format import (
    HEADER_BYTES,
    LAST_TYPE,
    TYPE_AT,
    body_at,
    record_size,
    size_at,
)
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES
from sluicemq.pipeline.source.heads import Heads, index_heads, record_heads
from sluicemq.pipeline.source.journal_storage import StoredSegment

RECORDS: Final = 8192
"""Maximum number of records of one stretch."""
STRETCH_BYTES: Final = 8 << 20

Report = Callable[[int, int], None]
"""Called with the start and end offsets of bytes that are not intact records."""


def ignore_damage(start: int, stop: int) -> None:
    """Ignore the damage; the task that reads the record reports it."""


class Stretch(NamedTuple):
    """Consecutive records.

    data  bytes of all of them; `base` is the offset of `data` in the segment
    stop  offset behind the last record
    """

    heads: Heads
    data: pa.Buffer
    base: int
    stop: int


def segment_heads(segment: StoredSegment, start: int, report: Report | None) -> Iterator[Heads]:
    """Yield the columns of a segment's records, from its index or, from `start` on, by a scan."""
    if segment.index is not None:
        yield index_heads(segment.index)
        return
    for stretch in scan_segment(segment, start, segment.end, report):
        yield stretch.heads


def scan_segment(
    segment: StoredSegment, start: int, end: int, report: Report | None
) -> Iterator[Stretch]:
    """Yield the records between two offsets; `start` is the start of a record, 0 = the first one.

    Damaged records are passed to `report` and skipped; without `report` they raise
    JournalDamaged."""
    at = start or SEGMENT_HEADER_BYTES
    needed = STRETCH_BYTES
    while at < end:
        data = segment.stretch(at, end, needed)
        view = memoryview(data)
        heads, stop = _records(view, at)
        if heads.count:
            stretch = Stretch(heads, data, at, at + stop)
            at += stop
            needed = STRETCH_BYTES
            yield stretch
            continue
        padded = size_at(view, 0) + 7 & -8
        if len(view) < padded <= end - at:
            needed = padded  # the record is larger than the stretch
            continue
        at = _resume(segment, at, end, report)


def _records(view: memoryview, base: int) -> tuple[Heads, int]:
    """Return up to RECORDS intact records from the start of `view` on, and the end of the last one.

    The checks are those of `record_size`.
    """
    places = np.array(_hop(view), np.int64)
    heads = record_heads(view, places, base)
    sizes = heads["size"].astype(np.int64)
    stops = places + (sizes + 7 & -8)
    words = np.frombuffer(view, "<u8", len(view) >> 3)
    padding = sizes & 7
    last_words = words[(stops >> 3) - 1] >> (8 * padding).astype(np.uint64)
    intact = (
        ((padding == 0) | (last_words == 0))
        & (heads["type"] > 0)
        & (heads["type"] <= LAST_TYPE)
        & (heads["body"] >= HEADER_BYTES)
        & (heads["body"] <= heads["size"])
    )
    count = len(places) if intact.all() else int(np.argmin(intact))
    return heads.take(slice(count)), int(stops[count - 1]) if count else 0


def _hop(view: memoryview) -> list[int]:
    """Return the starts of up to RECORDS records that match their CRC."""
    # The only loop over records. A vectorised search (for header patterns, or by pointer doubling)
    # costs more than the 0.1 µs of a step here, and each CRC has to be computed separately anyway.
    places: list[int] = []
    end = len(view)
    words = view[: end & -4].cast("I")
    crc32 = zlib_ng.crc32
    at = 0
    last = end - HEADER_BYTES
    while at <= last:
        size = words[at >> 2]
        stop = at + size
        padded = stop + 7 & -8
        if size < HEADER_BYTES or padded > end:
            break
        if crc32(view[at + 8 : stop]) != words[(at >> 2) + 1]:
            break
        places.append(at)
        at = padded
        if len(places) == RECORDS:
            break
    return places


def _resume(segment: StoredSegment, at: int, end: int, report: Report | None) -> int:
    """Report the damaged bytes at `at` and return the offset of the next intact record."""
    if report is None:
        raise segment.damage(at, "the record is not intact")
    place = at + 8
    while place < end:
        view = memoryview(segment.stretch(place, end, STRETCH_BYTES))
        more = end - place - len(view)
        for step in range(0, len(view), 8):
            if record_size(view, step):
                report(at, place + step)
                return place + step
            size = _size_beyond(view, step, more)
            if size:
                whole = memoryview(segment.stretch(place + step, end, size))
                if record_size(whole, 0):
                    report(at, place + step)
                    return place + step
        # the last header may be incomplete
        place += len(view) - HEADER_BYTES + 8 if more else len(view)
    report(at, end)
    return end


def _size_beyond(view: memoryview, step: int, more: int) -> int:
    """Return the padded size of what may be a record that ends up to `more` bytes behind `view`.

    Return 0 if there is no header of such a record.
    """
    if not more or step + HEADER_BYTES > len(view):
        return 0
    size = size_at(view, step)
    padded = size + 7 & -8
    if not len(view) < step + padded <= len(view) + more:
        return 0
    plausible = 0 < view[step + TYPE_AT] <= LAST_TYPE and body_at(view, step) >= HEADER_BYTES
    return padded if plausible and body_at(view, step) <= size else 0
