"""Read-ahead buffer for records that are read in order, as in a consumed backlog."""

from __future__ import annotations

from sluicemq.journal.format import (
    HEADER_BYTES,
    Record,
    decode_record,
    record_size,
    sequence_at,
    size_at,
)


class ReadAhead:
    """Part of one segment, with the offset at which the next record begins.

    `data` may end anywhere, also within a record that is still being written. `find` does not
    return a record that is not intact; the caller then reads it from the file.
    """

    __slots__ = ("_data", "_next", "first")

    def __init__(self, first: int, data: bytes) -> None:
        """Use `data` of the segment `first`; it starts at a record."""
        self.first = first
        self._data = memoryview(data)
        self._next = 0

    def find(self, sequence: int) -> Record | None:
        """Return the record if it is in the buffer after the last one found, else None."""
        data = self._data
        offset = self._next
        last = len(data) - HEADER_BYTES
        while offset <= last:
            found = sequence_at(data, offset)
            if found == sequence:
                size = record_size(data, offset)
                if not size:
                    return None
                self._next = offset + (size + 7 & -8)
                return decode_record(data, offset, size)
            size = size_at(data, offset)
            if found > sequence or size < HEADER_BYTES:
                return None
            offset += size + 7 & -8
        return None
