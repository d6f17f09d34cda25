"""Reads of single records by sequence number, and of sequences of them while a broker may run.

The lag of a reader is the number of records that it has not processed. The distance of two sequence
numbers is not that number: a restart and transient messages leave sequence numbers without a
record.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import compress, zip_longest
from pathlib import Path
from typing import Final

from sluicemq.journal.files import NO_DESCRIPTOR, read_durable
from sluicemq.journal.format import (
    HEADER_BYTES,
    Record,
    RecordType,
    body_at,
    decode_record,
    record_size,
    sequence_at,
    size_at,
)
from sluicemq.journal.liveness import LiveSegment
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    DamagedFile,
    MappedSegment,
    SegmentIndex,
    list_segments,
    open_segment,
    record_offsets,
    segment_path,
)
from sluicemq.journal.writer import SegmentFile
from sluicemq.model.errors import RecordNotFound

OPEN_SEGMENTS: Final = 128
"""Maximum sealed segments kept open, each with two file descriptors: that of the mapped index, and
one for reading records."""
HEAD_BYTES: Final = 4096
"""Bytes that `head` reads of a longer record at first; its header and properties may need more."""
READ_AHEAD_BYTES: Final = 256 * 1024
"""Bytes to read at once if records are requested in order."""
READ_AHEAD_GAP: Final = 64
"""Maximum sequence number distance of two requests that count as in order."""


class ReadAhead:
    """Read-ahead buffer for records that are read in order, as in a consumed backlog.

    It is a part of one segment, with the offset at which the next record begins.

    `data` may end anywhere, also within a record that is still being written. `find` does not
    return a record that is not intact; the caller then reads it from the file.
    """

    __slots__ = ("_data", "_next", "first")

    def __init__(self, first: int, data: memoryview, start: int) -> None:
        """Use `data` of the segment `first`, in which a record starts at `start`."""
        self.first = first
        self._data = data
        self._next = start

    def find(self, sequence: int) -> Record | None:
        """Return the record if it is in the buffer after the last one found, else None."""
        data = self._data
        offset = self._next
        last = len(data) - HEADER_BYTES
        while offset <= last:
            candidate = sequence_at(data, offset)
            if candidate == sequence:
                size = record_size(data, offset)
                if not size:
                    return None
                self._next = offset + (size + 7 & -8)
                return decode_record(data, offset, size)
            size = size_at(data, offset)
            if candidate > sequence or size < HEADER_BYTES:
                return None
            offset += size + 7 & -8
        return None


class Lookup:
    """Reader of records on disk.

    The indexes of sealed segments are memory-mapped. Records are not, because the mapped pages of a
    consumed backlog would count as memory of this process.
    """

    __slots__ = ("_ahead", "_directory", "_files", "_last", "_opened")

    def __init__(self, directory: Path, files: dict[int, SegmentFile]) -> None:
        """Create a reader; `files` are the unsealed segments, by first sequence number."""
        self._directory = directory
        self._files = files
        self._opened: OrderedDict[int, tuple[MappedSegment, int]] = OrderedDict()
        """Sealed segments and descriptors of their files, the least recently used one first."""
        self._ahead: ReadAhead | None = None
        self._last = 0
        """Sequence number of the last request."""

    def read(self, segment: LiveSegment, sequence: int) -> Record:
        """Return a record on disk. Raises RecordNotFound, JournalDamaged."""
        last, self._last = self._last, sequence
        read_ahead = self._ahead
        if read_ahead is not None and read_ahead.first == segment.first:
            record = read_ahead.find(sequence)
            if record is not None:
                return record
        in_order = last < sequence <= last + READ_AHEAD_GAP
        fd, offset, size = self._locate(segment, sequence)
        data = os.pread(fd, max(size + 7 & -8, READ_AHEAD_BYTES if in_order else 0), offset)
        view = memoryview(data)
        size = record_size(view, 0)
        if not size or sequence_at(view, 0) != sequence:
            path = segment_path(self._directory, segment.first)
            raise DamagedFile(path, offset, f"record {sequence} is not intact")
        if in_order:
            self._ahead = ReadAhead(segment.first, view, size + 7 & -8)
        return decode_record(view, 0, size)

    def head(self, segment: LiveSegment, sequence: int) -> Record:
        """Return a record on disk, but without its body if it is longer than `HEAD_BYTES`.

        Only the sequence number of such a long record is checked. Raises RecordNotFound,
        JournalDamaged.
        """
        fd, offset, size = self._locate(segment, sequence)
        if size <= HEAD_BYTES:
            return self.read(segment, sequence)
        data = os.pread(fd, HEAD_BYTES, offset)
        body = body_at(data, 0)
        if sequence_at(data, 0) != sequence or not HEADER_BYTES <= body <= size:
            path = segment_path(self._directory, segment.first)
            raise DamagedFile(path, offset, f"record {sequence} is not intact")
        if body > len(data):
            data += os.pread(fd, body - len(data), offset + len(data))
        return decode_record(memoryview(data), 0, body)

    def _open(self, segment: LiveSegment) -> tuple[SegmentIndex, int]:
        """Return the mapped index of a sealed segment, and a descriptor of its file.

        Raises JournalDamaged.
        """
        entry = self._opened.get(segment.first)
        if entry is None:
            entry = self._opened[segment.first] = self._open_files(segment)
            if len(self._opened) > OPEN_SEGMENTS:
                self.forget(next(iter(self._opened)))
        else:
            self._opened.move_to_end(segment.first)
        view, fd = entry
        if view.index is None:
            raise DamagedFile(view.path, view.size, "the index is not intact")
        return view.index, fd

    def _open_files(self, segment: LiveSegment) -> tuple[MappedSegment, int]:
        """Map the index of a segment and open its file. If the process has no descriptor left,
        close the segments used least recently."""
        path = segment_path(self._directory, segment.first)
        while True:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    return MappedSegment(path, segment.end), fd
                except BaseException:
                    os.close(fd)
                    raise
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._opened:
                    raise
                self.forget(next(iter(self._opened)))

    def needed_bytes(self, segment: LiveSegment) -> int:
        """Return the bytes of the live or retained records of a sealed segment."""
        index, _ = self._open(segment)
        mask = index.by_row(segment.needed_mask(), segment.base)
        return sum(compress(index.columns["size"], mask))

    def _locate(self, segment: LiveSegment, sequence: int) -> tuple[int, int, int]:
        """Return the descriptor, the offset and the size of a record. Raises RecordNotFound."""
        if segment.sealed:
            index, fd = self._open(segment)
            row = index.row(sequence)
            if row < index.count and index.sequences[row] == sequence:
                return fd, int(index.columns["offset"][row]), int(index.columns["size"][row])
        elif offset := segment.offsets[sequence - segment.base] << 3:
            file = self._files[segment.first]
            return file.fd, offset, min(size_at(os.pread(file.fd, 4, offset), 0), file.end)
        raise RecordNotFound(f"sequence number {sequence} has no record")

    def forget(self, first: int) -> None:
        """Close the files of the segment with that first number, which is about to be removed."""
        if self._ahead is not None and self._ahead.first == first:
            self._ahead = None
        if first in self._opened:
            view, fd = self._opened.pop(first)
            view.close()
            os.close(fd)

    def close(self) -> None:
        for first in list(self._opened):
            self.forget(first)


def find_pending(parts: Sequence[bytes], sequence: int) -> Record | None:
    """Return a record from buffers not yet written, three per record, or None."""
    rows = range(0, len(parts), 3)
    index = 3 * bisect_left(rows, sequence, key=lambda start: sequence_at(parts[start], 0))
    if index == len(parts) or sequence_at(parts[index], 0) != sequence:
        return None
    record = parts[index] + parts[index + 1]
    return decode_record(memoryview(record), 0, len(record))


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
    position = start
    for offset, size in record_offsets(view.view, end, start):
        position = offset + (size + 7 & -8)
        record = decode_record(view.view, offset, size)
        if record.type == RecordType.INDEX:
            return
        if record.sequence >= sequence:
            yield offset, record
    if position < min(end, view.size):
        raise DamagedFile(view.path, position, "the record is not intact")


def read_records(directory: Path, sequence: int = 0) -> Iterator[tuple[MappedSegment, int, Record]]:
    """Iterate over segment, offset and record, from a sequence number up to the durable end.

    A broker may run meanwhile. Segments that it removes are skipped, and segments that it creates
    are not read. Raises JournalDamaged, JournalError.
    """
    durable = read_durable(directory)
    if durable is None:
        return
    first_sequences = [first for first in list_segments(directory) if first <= durable.segment]
    for first, following in zip_longest(first_sequences, first_sequences[1:]):
        if following is not None and following <= sequence:
            continue
        with (
            suppress(FileNotFoundError),
            closing(open_segment(directory, first, following)) as view,
        ):
            end = durable.offset if first == durable.segment else view.end or view.size
            for offset, record in read_segment(view, end, sequence):
                yield view, offset, record


SLICE: Final = 1 << 14
"""Sequence numbers examined together: other threads run in between."""


def records_after(directory: Path, segments: Sequence[LiveSegment], position: int) -> int:
    """Return the number of records with higher sequence numbers than `position`.

    Any thread may call it, with a copy of the journal's list of segments: it reads the index of the
    segment that contains the position. Raises JournalDamaged, OSError.
    """
    return sum(_in_segment(directory, segment, position) for segment in segments)


def _in_segment(directory: Path, segment: LiveSegment, position: int) -> int:
    offsets = segment.offsets
    if not segment.sealed:
        start = max(0, position + 1 - segment.base)
        parts = (offsets[row : row + SLICE] for row in range(start, len(offsets), SLICE))
        return sum(len(part) - part.count(0) for part in parts)
    if segment.first > position or segment.last <= position:
        return segment.records if segment.first > position else 0
    path = segment_path(directory, segment.first)
    with suppress(FileNotFoundError), closing(MappedSegment(path, segment.end)) as view:
        index = view.index
        return segment.records if index is None else index.count - index.row(position + 1)
    return 0  # it has been removed meanwhile
