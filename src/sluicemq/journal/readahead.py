"""Records read in order: a backlog that is being consumed is read in large pieces."""

from __future__ import annotations

from sluicemq.journal.format import HEADER_BYTES, Record, decode_record, record_size


class ReadAhead:
    """A piece of one segment, and where in it the record after the last one begins.

    `data` may end anywhere, also in what has not been written yet: whatever is not an intact
    record is not found, and has to be looked for where it should be.
    """

    __slots__ = ("_data", "_next", "first")

    def __init__(self, first: int, data: bytes) -> None:
        """`first` is the segment's; a record begins where `data` begins."""
        self.first = first
        self._data = memoryview(data)
        self._next = 0

    def find(self, sequence: int) -> Record | None:
        """The record, if it is at or soon after the place where the last one ended."""
        data = self._data
        offset = self._next
        last = len(data) - HEADER_BYTES
        while offset <= last:
            found = int.from_bytes(data[offset + 8 : offset + 16], "little")
            if found == sequence:
                size = record_size(data, offset)
                if not size:
                    return None
                self._next = offset + (size + 7 & -8)
                return decode_record(data, offset, size)
            size = int.from_bytes(data[offset : offset + 4], "little")
            if found > sequence or size < HEADER_BYTES:
                return None
            offset += size + 7 & -8
        return None
