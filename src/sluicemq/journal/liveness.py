"""Reference counts and locations of live records.

Each segment has one byte per sequence number for the references that COMPLETED records have not yet
released. After the first `retain`, it has another one for references that do not survive a
restart. A byte of 255 means that the count is above 254 and stored in a dictionary of the segment.

A relocated record keeps its original sequence number as its identity; `relocated` maps that to its
new number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import or_
from typing import Final

from sluicemq.model.errors import RecordNotFound

OVERFLOWED: Final = 255
"""Byte for a larger count, which is in a dictionary."""
MAX_INLINE_COUNT: Final = 254
SPAN_LIMIT: Final = 1 << 22
"""Sequence numbers per segment, after which the next segment begins. Each number takes five bytes
of memory, whether or not it has a record."""


class LiveSegment:
    """State of one segment in the owner's thread.

    first         number in its name
    base          sequence number of index 0 of the columns
    live          references that are not released yet, by sequence - base
    large_live    counts above MAX_INLINE_COUNT among them, by sequence
    retained      the same for references in memory; empty as long as there are none
    large_retained  counts above MAX_INLINE_COUNT among them, by sequence
    offsets       offset / 8 of each record, by sequence - base; 0 = no record. Only until it is
                  sealed
    records       number of records without the INDEX record; 0 until it is sealed
    end           end offset of its records; 0 while it is being filled
    last          highest sequence number in it; 0 until it is sealed
    size          bytes; only of a sealed segment
    changed       True if `live` differs from the last snapshot
    packed_live   `live` as stored in the last snapshot
    live_at_snapshot           live records at the last snapshot
    live_at_previous_snapshot  live records at the snapshot before that; -1 = none
    """

    __slots__ = (
        "base",
        "changed",
        "end",
        "first",
        "large_live",
        "large_retained",
        "last",
        "live",
        "live_at_previous_snapshot",
        "live_at_snapshot",
        "offsets",
        "packed_live",
        "records",
        "retained",
        "sealed",
        "size",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.end = 0
        self.base = first
        self.live = bytearray()
        self.large_live: dict[int, int] = {}
        self.retained = bytearray()
        self.large_retained: dict[int, int] = {}
        self.offsets = array("I")
        self.records = 0
        self.last = 0
        self.size = 0
        self.sealed = False
        self.changed = True
        self.packed_live = b""
        self.live_at_snapshot = -1
        self.live_at_previous_snapshot = -1

    def count_live(self) -> int:
        """Return the number of records with unreleased references."""
        return len(self.live) - self.live.count(0)

    def needed_mask(self) -> bytes | bytearray:
        """Return one byte per sequence number, like `live`: nonzero if live or retained."""
        if len(self.retained) == self.retained.count(0):
            return self.live
        return bytes(map(or_, self.live, self.retained.ljust(len(self.live), b"\0")))

    @property
    def is_needed(self) -> bool:
        """True if a record of the segment is live or retained."""
        return bool(self.count_live()) or len(self.retained) > self.retained.count(0)

    def live_references(self, sequence: int) -> int:
        """Return the unreleased references of the record at that number."""
        references = self.live[sequence - self.base]
        return references if references < OVERFLOWED else self.large_live[sequence]

    def set_live_references(self, sequence: int, references: int) -> None:
        """Set the number of unreleased references of a record."""
        self.changed = True
        _set(self.live, sequence - self.base, sequence, references, self.large_live)

    def retained_references(self, sequence: int) -> int:
        """Return the in-memory references of the record at that number."""
        index = sequence - self.base
        if index >= len(self.retained):
            return 0
        references = self.retained[index]
        return references if references < OVERFLOWED else self.large_retained[sequence]

    def set_retained_references(self, sequence: int, references: int) -> None:
        """Set the number of in-memory references of a record."""
        index = sequence - self.base
        retained = self.retained
        if len(retained) <= index:
            retained.extend(bytes(len(self.live) - len(retained)))
        _set(retained, index, sequence, references, self.large_retained)


class Liveness:
    """Segments of a journal with the references of all their records."""

    __slots__ = ("_first_sequences", "relocated", "segments")

    def __init__(self) -> None:
        self.segments: list[LiveSegment] = []
        self._first_sequences: list[int] = []
        self.relocated: dict[int, int] = {}

    def add(self, segment: LiveSegment) -> None:
        """Add a segment. Callers add segments in ascending order."""
        self.segments.append(segment)
        self._first_sequences.append(segment.first)

    def remove(self, segment: LiveSegment) -> None:
        index = self.segments.index(segment)
        del self.segments[index], self._first_sequences[index]

    def find(self, sequence: int) -> LiveSegment | None:
        """Return the segment whose columns cover that number, or None."""
        index = bisect_right(self._first_sequences, sequence) - 1
        if index < 0:
            return None
        segment = self.segments[index]
        return segment if 0 <= sequence - segment.base < len(segment.live) else None

    def locate(self, sequence: int) -> tuple[LiveSegment, int]:
        """Return the segment and the current number of a record. Raises RecordNotFound."""
        if self.relocated:
            sequence = self.relocated.get(sequence, sequence)
        segment = self.find(sequence)
        if segment is None:
            raise RecordNotFound(f"no record {sequence}, or its segment has been removed")
        return segment, sequence

    # --- references that survive a restart -------------------------------------------------------

    def release_references(self, sequences: Sequence[int]) -> None:
        """Release one reference of each record. Records that are not live are ignored."""
        base = 0
        size = 0
        live = bytearray()
        for sequence in sequences:
            index = sequence - base
            if not 0 <= index < size:
                segment = self.find(sequence)
                if segment is None:
                    self._release_at(self.relocated.get(sequence, 0), sequence)
                    continue
                segment.changed = True
                base = segment.base
                live = segment.live
                size = len(live)
                index = sequence - base
            references = live[index]
            if 0 < references < OVERFLOWED:
                live[index] = references - 1
            else:
                position = sequence if references else self.relocated.get(sequence, 0)
                self._release_at(position, sequence)

    def _release_at(self, position: int, identity: int) -> None:
        """Release a reference of the record `identity`, now at `position`; 0 = nowhere."""
        segment = self.find(position)
        if segment is None:
            return
        remaining = segment.live_references(position)
        if remaining:
            segment.set_live_references(position, remaining - 1)
            self._forget_moved(segment, position, identity)

    # --- references in memory only ---------------------------------------------------------------

    def retain(self, sequence: int, count: int) -> None:
        """Add `count` in-memory references to a record. Raises RecordNotFound."""
        segment, position = self.locate(sequence)
        segment.set_retained_references(position, segment.retained_references(position) + count)

    def release(self, sequence: int) -> None:
        """Drop one in-memory reference of a record, if it has any."""
        try:
            segment, position = self.locate(sequence)
        except RecordNotFound:
            return
        references = segment.retained_references(position)
        if references:
            segment.set_retained_references(position, references - 1)
            self._forget_moved(segment, position, sequence)

    # --- moves -----------------------------------------------------------------------------------

    def move(
        self,
        segment: LiveSegment,
        sequence: int,
        identity: int,
        target: LiveSegment,
        new_sequence: int,
    ) -> None:
        """Move the record from `sequence` to `new_sequence`, which already has its references."""
        references = segment.retained_references(sequence)
        segment.set_live_references(sequence, 0)
        self.relocated[identity] = new_sequence
        if references:
            segment.set_retained_references(sequence, 0)
            target.set_retained_references(new_sequence, references)

    def _forget_moved(self, segment: LiveSegment, position: int, identity: int) -> None:
        """Forget the new number of a moved record that is no longer needed."""
        if position != identity and not (
            segment.live[position - segment.base] or segment.retained_references(position)
        ):
            self.relocated.pop(identity, None)


def _set(
    column: bytearray, index: int, sequence: int, count: int, large_counts: dict[int, int]
) -> None:
    if count > MAX_INLINE_COUNT:
        column[index] = OVERFLOWED
        large_counts[sequence] = count
    else:
        if column[index] == OVERFLOWED:
            del large_counts[sequence]
        column[index] = count
