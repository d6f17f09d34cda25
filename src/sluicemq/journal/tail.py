"""End of an unsealed segment: distinction between a tail torn by a crash and damage.

After a crash of the machine the last write may be there in part, in any order of its pages. So
the first bad record ends the segment, unless something shows that it was on disk before:

- an intact record behind it has GROUP_START: when that was written, the bad one had been synced;
- the durable file says so, and the segment is as long as it says.

A segment that another one follows cannot be torn at all: it was on disk as far as that one says.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sluicemq.journal.format import (
    FLAGS_AT,
    GROUP_START,
    HEADER_BYTES,
    TYPE_AT,
    UNIT_END,
    RecordType,
    record_size,
    sequence_at,
)
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    MappedSegment,
    damaged,
    record_offsets,
)
from sluicemq.journal.writer import DurableEnd

SEQUENCE_LEAP: Final = 1 << 32
"""Maximum distance of a record's number from the last intact record."""

# A header in 8-byte steps: type, flags, priority, origin, kind, durability are within bounds.
_PLAUSIBLE: Final = re.compile(
    rb"(?=[\x01-%c][\x00-\x1f][\x00-\x09][\x00-\x0f][\x00-\x07][\x00-\x03])" % max(RecordType),
    re.DOTALL,
)


class Tail(NamedTuple):
    """Whole units of the last segment.

    heads   headers of their records, joined
    end     end offset of the last unit
    torn    bytes after it that a crash left, without trailing zeros, which may be reserved space
    """

    heads: bytes
    end: int
    torn: int


def find_tail(view: MappedSegment, durable: DurableEnd | None, limit: int | None = None) -> Tail:
    """Return the whole units of an unsealed segment. Raises JournalDamaged.

    With `limit`, the segment is read only up to that offset and must be intact up to it.
    """
    end = view.size if limit is None else min(limit, view.size)
    heads: list[bytes] = []
    unit: list[bytes] = []
    whole = stop = SEGMENT_HEADER_BYTES
    last = view.header.first - 1
    beyond = 0
    for offset, size in record_offsets(view.view, end):
        head = bytes(view.view[offset : offset + HEADER_BYTES])
        sequence = sequence_at(view.view, offset)
        if head[TYPE_AT] == RecordType.INDEX or sequence <= last:
            beyond = offset + size
            break
        last = sequence
        stop = offset + (size + 7 & -8)
        unit.append(head)
        if head[FLAGS_AT] & UNIT_END:
            heads += unit
            unit = []
            whole = stop
    blank = not bytes(view.view[stop:end]).strip(b"\0")
    synced = durable.offset if durable and durable.segment == view.header.first else 0
    if limit is not None:
        synced = min(synced, limit)
    if stop < synced <= view.size:
        raise damaged(view.path, stop, "a record is damaged that had been on disk")
    if not blank and has_later_group(view.view[:end], beyond or stop, last):
        raise damaged(view.path, stop, "a record is damaged and later ones are intact")
    return Tail(b"".join(heads), whole, len(bytes(view.view[whole:end]).rstrip(b"\0")))


def find_full(view: MappedSegment, end: int) -> Tail:
    """Return the units of an unsealed segment whose successor states `end` as its records' end.

    Only index and trailer may be missing. Raises JournalDamaged.
    """
    tail = find_tail(view, None, end)
    if tail.end != end:
        raise damaged(view.path, tail.end, "a record is damaged or missing that had been on disk")
    if record_size(view.view, end) and view.view[end + TYPE_AT] != RecordType.INDEX:
        raise damaged(view.path, end, "the next segment says that there is no record here")
    return tail


def has_later_group(view: memoryview, start: int, last: int) -> bool:
    """Return whether an intact group starts after `start`, which proves that `start` was synced."""
    data = bytes(view[start:])
    for match in _PLAUSIBLE.finditer(data, 8 + TYPE_AT):
        offset = start + match.start() - TYPE_AT
        if offset & 7 or not view[offset + FLAGS_AT] & GROUP_START:
            continue
        if last < sequence_at(view, offset) < last + SEQUENCE_LEAP and record_size(view, offset):
            return True
    return False
