"""Records of a segment that has no index: from one to the next by their sizes.

Unlike what a sealed segment's index says, nothing here has been checked yet: each record's CRC is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from sluicemq.journal.format import HEADER_BYTES, record_size
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES
from sluicemq.pipeline.source.heads import Heads, record_heads
from sluicemq.pipeline.source.journal_storage import Segment

RECORDS: Final = 8192
"""Taken at once."""
STRETCH_BYTES: Final = 8 << 20

Report = Callable[[int, int], None]
"""Called with the offsets of bytes that are no intact records."""


class Stretch(NamedTuple):
    """Records that lie one after the other.

    data  the bytes of them all, from offset `base` of the segment on
    stop  the offset behind the last one
    """

    heads: Heads
    data: pa.Buffer
    base: int
    stop: int


def scan_segment(
    segment: Segment, start: int, end: int, report: Report | None
) -> Iterator[Stretch]:
    """The records between two offsets, the first of which is where a record starts (0: the
    segment's first). Without `report`, damage raises JournalDamaged; with it, it is left out."""
    at = start or SEGMENT_HEADER_BYTES
    needed = STRETCH_BYTES
    while at < end:
        data = segment.stretch(at, end, needed)
        view = memoryview(data)
        complete = at + len(view) >= end
        places, stop = _hop(view, len(view))
        if places:
            stretch = Stretch(
                record_heads(view, np.array(places, np.int64), at), data, at, at + stop
            )
            at += stop
            needed = STRETCH_BYTES
            yield stretch
            continue
        if not complete:
            size = int.from_bytes(view[:4], "little")
            if len(view) < size <= end - at:
                needed = size + 7  # it does not fit into the stretch
                continue
        at = _resume(segment, at, end, report)


def _hop(view: memoryview, end: int) -> tuple[list[int], int]:
    """Where up to RECORDS intact records start, and where the last one stops."""
    # The one loop over records. Finding their starts by numpy (searching for what looks like a
    # header, doubling of jumps) costs more than the 0.1 µs that a step takes here, and their CRCs
    # have to be taken one by one in any case.
    places: list[int] = []
    words = view[: end & -4].cast("I")
    crc32 = zlib_ng.crc32
    at = 0
    last = end - HEADER_BYTES
    while at <= last:
        size = words[at >> 2]
        stop = at + size
        if size < HEADER_BYTES or stop > end or crc32(view[at + 8 : stop]) != words[(at >> 2) + 1]:
            break
        places.append(at)
        at = stop + 7 & -8
        if len(places) == RECORDS:
            break
    return places, at


def _resume(segment: Segment, at: int, end: int, report: Report | None) -> int:
    """Past what is damaged."""
    if report is None:
        raise segment.damage(at, "the record is not intact")
    place = at + 8
    while place < end:
        view = memoryview(segment.stretch(place, end, STRETCH_BYTES))
        for step in range(0, len(view), 8):
            if record_size(view, step):
                report(at, place + step)
                return place + step
        place += len(view) + 7 & -8
    report(at, end)
    return end
