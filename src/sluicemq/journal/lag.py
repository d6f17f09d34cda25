"""Lag of a reader: the number of records that it has not processed.

The distance of two sequence numbers is not that number: a restart and transient messages leave
sequence numbers without a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sluicemq.journal.liveness import LiveSegment
from sluicemq.journal.segment import MappedSegment, segment_path

SLICE: Final = 1 << 14
"""Sequence numbers examined together: other threads run in between."""


def records_after(directory: Path, segments: Sequence[LiveSegment], position: int) -> int:
    """Return the number of records with higher sequence numbers than `position`.

    Any thread may call it, with a copy of the journal's list of segments: it reads the index of the
    segment that contains the position. Raises JournalDamaged, OSError.
    """
    return sum(_in_segment(directory, segment, position) for segment in segments)


def _in_segment(directory: Path, segment: LiveSegment, position: int) -> int:
    places = segment.places
    if not segment.sealed:
        start = max(0, position + 1 - segment.base)
        parts = (places[at : at + SLICE] for at in range(start, len(places), SLICE))
        return sum(len(part) - part.count(0) for part in parts)
    if segment.first > position or segment.last <= position:
        return segment.records if segment.first > position else 0
    try:
        view = MappedSegment(segment_path(directory, segment.first))
    except FileNotFoundError:
        return 0  # it has been removed meanwhile
    try:
        index = view.index
        return segment.records if index is None else index.count - index.row(position + 1)
    finally:
        view.close()
