"""Segment files: names, headers and reading. format.py defines records, index.py the index.

The name is the lowest sequence number it may contain, 20 digits, and ".segment". The header:

    offset  size
       0     8   "SLUICEMQ"
       8     4   format version
      12     4   zeros
      16     8   the number in the name
      24     8   that of the segment before it, or 0
      32     8   created, µs since 1970-01-01 UTC
      40    16   identity of the data directory
      56     4   where the records of the segment before it end, / 8; 0 = there is none
      60     4   CRC-32 of bytes 0 .. 60

A segment gets its name once its first group is on disk, and all of the segment before it was on
disk before that. Index and trailer are added to that one later: a crash may leave several segments
without them. The number at 56 tells how much of such a segment must be there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from sluicemq.journal.format import (
    FORMAT_VERSION,
    HEADER_BYTES,
    TYPE_AT,
    Checksum,
    RecordType,
    record_size,
)
from sluicemq.journal.index import TRAILER_BYTES, SegmentIndex, decode_trailer
from sluicemq.model.errors import JournalDamaged, JournalError

MAGIC: Final = b"SLUICEMQ"
SUFFIX: Final = ".segment"
SEGMENT_HEADER: Final = Struct("<8sIIQQq16sII")
SEGMENT_HEADER_BYTES: Final = 64
IDENTITY_BYTES: Final = 16


class SegmentHeader(NamedTuple):
    """Fields of the first 64 bytes. `previous_end` is an offset in bytes."""

    first: int
    previous: int
    created: int
    identity: bytes
    previous_end: int


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{SUFFIX}"


def list_segments(directory: Path) -> list[int]:
    """Return the first sequence numbers of the segments in a directory, ascending."""
    return numbered(directory, SUFFIX)


def numbered(directory: Path, suffix: str) -> list[int]:
    """Return the sequence numbers that name the files of a type in a directory, ascending."""
    found = []
    for name in os.listdir(directory):
        stem = name.removesuffix(suffix)
        if stem != name and len(stem) == 20 and stem.isdecimal():
            found.append(int(stem))
    return sorted(found)


def check_version(path: Path, version: int) -> None:
    """Raise JournalError if a file has another format version than this release's."""
    if version != FORMAT_VERSION:
        raise JournalError(
            f"{path} has format version {version}; this release reads only version "
            f"{FORMAT_VERSION}. Use the release that wrote it."
        )


def encode_segment_header(header: SegmentHeader) -> bytes:
    packed = SEGMENT_HEADER.pack(
        MAGIC,
        FORMAT_VERSION,
        0,
        header.first,
        header.previous,
        header.created,
        header.identity,
        header.previous_end >> 3,
        0,
    )[:-4]
    return packed + crc32(packed).to_bytes(4, "little")


def decode_segment_header(data: bytes | memoryview, path: Path) -> SegmentHeader:
    """Decode a header. Raises JournalDamaged, or JournalError for another format version."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise damaged(path, 0, "the segment header is incomplete")
    magic, version, _, first, previous, created, identity, end, crc = SEGMENT_HEADER.unpack_from(
        data
    )
    if magic == MAGIC:
        check_version(path, version)
    if magic != MAGIC or crc != crc32(data[:60]):
        raise damaged(path, 0, "the segment header is not intact")
    return SegmentHeader(first, previous, created, identity, end << 3)


def read_segment_header(directory: Path, first: int) -> SegmentHeader:
    """Read a segment's header. Raises FileNotFoundError, JournalDamaged, JournalError."""
    path = segment_path(directory, first)
    with path.open("rb") as file:
        return decode_segment_header(file.read(SEGMENT_HEADER_BYTES), path)


def records_end(directory: Path, first: int, following: int | None) -> int:
    """Return the end of the records of segment `first` as stated by the next one, 0 if unknown.

    Call this before opening the segment: if the next one has been removed, this one has its index
    by then. Damage of the next segment is ignored; its reader reports it. Raises JournalError.
    """
    if following is None:
        return 0
    try:
        header = read_segment_header(directory, following)
    except (FileNotFoundError, JournalDamaged):
        return 0
    return header.previous_end if header.previous == first else 0


def damaged(path: Path, offset: int, what: str) -> JournalDamaged:
    """Return the error for damage at an offset of a file, with the remedy."""
    return JournalDamaged(
        f"{path}, offset {offset}: {what}. No crash can explain this; nothing has been changed. "
        f"To see what else is affected: sluicemq journal check {path.parent}"
    )


def record_offsets(
    view: memoryview, end: int, start: int = SEGMENT_HEADER_BYTES
) -> Iterator[tuple[int, int]]:
    """Iterate over offset and size of the records up to `end`, until the first damaged one."""
    bounded = view[:end]
    while size := record_size(bounded, start):
        yield start, size
        start += size + 7 & -8


class MappedSegment:
    """Segment file mapped for reading. `index` is None if the segment is not sealed.

    Raises FileNotFoundError, JournalDamaged, JournalError. Callers `close` the view. `checksum` is
    zlib's CRC-32 or a faster implementation of it; it checks the index, 5 % of the segment.
    """

    __slots__ = ("_map", "crc", "header", "index", "index_offset", "path", "size", "view")

    def __init__(self, path: Path, checksum: Checksum = crc32) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size = os.fstat(fd).st_size
            if self.size < SEGMENT_HEADER_BYTES:
                raise damaged(path, 0, "the segment header is incomplete")
            self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self.view = memoryview(self._map)
        self.index: SegmentIndex | None = None
        self.index_offset = 0
        self.crc = 0
        try:
            self.header = decode_segment_header(self.view[:SEGMENT_HEADER_BYTES], path)
            self._read_index(checksum)
        except BaseException:
            self.close()
            raise

    def _read_index(self, checksum: Checksum) -> None:
        end = self.size - TRAILER_BYTES
        trailer = decode_trailer(self.view[end:]) if end >= SEGMENT_HEADER_BYTES else None
        if trailer is None:
            return
        offset, records, crc = trailer
        if not SEGMENT_HEADER_BYTES <= offset <= end - HEADER_BYTES:
            return
        size = record_size(self.view[:end], offset, checksum)
        if size == 0 or self.view[offset + TYPE_AT] != RecordType.INDEX:
            return
        self.index_offset = offset
        self.crc = crc
        try:
            self.index = SegmentIndex(self.view[offset + HEADER_BYTES : offset + size])
        except JournalDamaged as error:
            raise damaged(self.path, offset, str(error)) from error
        if self.index.count != records:
            raise damaged(self.path, end, f"the trailer counts {records} records")

    def verify(self) -> None:
        """Compare a sealed segment with its CRC. Raises JournalDamaged with the offset."""
        end = self.size - TRAILER_BYTES
        if crc32(self.view[:end]) == self.crc:
            return
        reached = SEGMENT_HEADER_BYTES
        for offset, size in record_offsets(self.view, end):
            reached = offset + (size + 7 & -8)
        raise damaged(self.path, min(reached, end), "the bytes do not match their CRC")

    def close(self) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None
        self.view.release()
        with suppress(BufferError):  # a propagating exception still refers to the map
            self._map.close()
