"""Segment files: header, index and trailer, reading, and the end of one that is not sealed.

format.py defines the records. The name is the lowest sequence number it may contain, 20 digits, and
".segment". The header:

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

A segment gets its name once its first group is on disk, and by then all records of the segment
before it are on disk. That one is sealed with index and trailer later: a crash may leave several
unsealed segments. The number at 56 states where the records of such a segment must end.

A sealed segment ends with an index by column, and a trailer that locates it. The INDEX record's
body consists of a summary and the columns. Each column has one value for each record of the
segment, without the INDEX record, and is padded with zeros to a multiple of 8 bytes. A reader maps
a column with one call and needs no loop over records.

    u32   length of the summary
    JSON  the summary, padded with the length before it to a multiple of 8:
          {"records", "first_sequence", "last_sequence", "first_time", "last_time" (µs, smallest
           and largest), "destinations": [[number, kind, name], ...], "types": {"type": count}}
    sequence     u64      time         i64      expiration   i64      reference    u64
    offset       u64 of the record in the file  size         u32      body         u32
    destination  u32      references   u16      type         u8       flags        u8
    priority     u8       origin       u8       kind         u8       durability   u8

The trailer follows the INDEX record and ends the file:

    offset  size
       0     8   "SLUICEND"
       8     8   offset of the INDEX record
      16     8   records, the INDEX record not counted
      24     4   CRC-32 of the file before the trailer
      28     4   CRC-32 of bytes 0 .. 28

A body at the end of an unsealed segment may look like both (see MappedSegment).

An unsealed segment may be damaged, or end with a torn tail: after a crash of the machine, any pages
of the last write may be missing. So the segment ends before the first record that is not intact,
unless there is evidence that this record had been synced, which is damage:

- a later, intact record has GROUP_START: all records before it had been synced when it was written;
- the durable file has an end after it, and the segment is at least that long.

A segment with a successor has no torn tail: it was on disk up to the end that the successor states.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct, calcsize
from typing import Final, Literal, NamedTuple
from zlib import crc32

import msgspec

from sluicemq.journal.files import DurableEnd, write_atomically
from sluicemq.journal.format import (
    FIELDS,
    FLAGS_AT,
    FORMAT_VERSION,
    GROUP_START,
    HEADER_BYTES,
    SIZE_AND_CRC,
    TYPE_AT,
    UNIT_END,
    Checksum,
    RecordType,
    body_at,
    record_size,
    sequence_at,
    size_at,
)
from sluicemq.journal.space import ignore
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged, JournalError

_ORDER: Final = (
    *("sequence", "time", "expiration", "reference", "offset", "size", "body", "destination"),
    *("references", "type", "flags", "priority", "origin", "kind", "durability"),
)
_FIELDS: Final[dict[str, tuple[Literal["Q", "q", "I", "H", "B"], int]]] = {
    "offset": ("Q", -1),  # computed
    **{name: (code, offset) for name, code, offset in FIELDS},
}
COLUMNS: Final = tuple(
    (name, _FIELDS[name][0], calcsize("<" + _FIELDS[name][0]), _FIELDS[name][1]) for name in _ORDER
)
"""Name, format as in `struct`, bytes, and offset in the record header; -1 = not in the header."""
INDEX_BYTES: Final = sum(width for _, _, width, _ in COLUMNS)
"""Size of a record in the columns, in bytes."""
TRAILER: Final = Struct("<8sQQII")
TRAILER_BYTES: Final = 32
TRAILER_MAGIC: Final = b"SLUICEND"
SLICE: Final = 1024
"""Number of records whose columns are built without a pause: about 0.3 ms."""

_LENGTH: Final = Struct("<I")


def build_index(
    heads: bytes | bytearray,
    start: int,
    names: Mapping[int, Address],
    pause: Callable[[], None] = ignore,
) -> bytes:
    """Return the INDEX record's body for consecutive records from offset `start` on.

    `heads` are their headers, joined. Whole byte planes are copied at a time: 60,000 records
    take 16 ms, a sixth of the time of a loop over records and fields. `pause` is called every
    SLICE records, so that a thread can yield the interpreter.
    """
    count = len(heads) // HEADER_BYTES
    columns: dict[str, list[bytes | bytearray]] = {name: [] for name, _, _, _ in COLUMNS}
    offset = start
    min_times: list[int] = []
    max_times: list[int] = []
    numbers: set[int] = set()
    types: Counter[int] = Counter()
    for slice_start in range(0, len(heads), SLICE * HEADER_BYTES):
        part = _columns(heads[slice_start : slice_start + SLICE * HEADER_BYTES])
        offsets = array("Q", bytes(8 * len(part["type"])))
        for row, size in enumerate(array("I", bytes(part["size"]))):
            offsets[row] = offset
            offset += size + 7 & -8
        part["offset"] = offsets.tobytes()
        times = array("q", bytes(part["time"]))
        min_times.append(min(times))
        max_times.append(max(times))
        numbers.update(array("I", bytes(part["destination"])))
        types.update(part["type"])
        for name, column in part.items():
            columns[name].append(column)
        pause()
    numbers.discard(0)
    summary = Summary(
        records=count,
        first_sequence=sequence_at(heads, 0),
        last_sequence=sequence_at(heads, len(heads) - HEADER_BYTES),
        first_time=min(min_times, default=0),
        last_time=max(max_times, default=0),
        destinations=[
            (number, names[number].kind, names[number].name)
            for number in sorted(numbers)
            if number in names
        ],
        types=dict(sorted(types.items())),
    )
    # json escapes names that are not UTF-8, which msgspec does not
    fields = msgspec.to_builtins(summary, str_keys=True)
    text = json.dumps(fields, separators=(",", ":")).encode()
    chunks: list[bytes | bytearray] = [_LENGTH.pack(len(text)), text]
    chunks.append(bytes(-(4 + len(text)) & 7))
    for name, _, width, _ in COLUMNS:
        chunks += columns[name]
        chunks.append(bytes(-(count * width) & 7))
    return b"".join(chunks)


def _columns(heads: bytes | bytearray) -> dict[str, bytes | bytearray]:
    """Return all columns except the offsets."""
    count = len(heads) // HEADER_BYTES
    columns: dict[str, bytes | bytearray] = {}
    for name, _, width, offset in COLUMNS:
        if offset >= 0:
            column = bytearray(count * width)
            for byte in range(width):
                column[byte::width] = heads[offset + byte :: HEADER_BYTES]
            columns[name] = column
    return columns


def encode_trailer(index_offset: int, records: int, crc: int) -> bytes:
    """Return the trailer of a sealed segment; `crc` is the CRC-32 of the file up to the trailer."""
    head = TRAILER.pack(TRAILER_MAGIC, index_offset, records, crc, 0)[:-4]
    return head + _LENGTH.pack(crc32(head))


def decode_trailer(data: bytes | memoryview) -> tuple[int, int, int] | None:
    """Return index offset, records and CRC; None if the trailer is not intact."""
    if len(data) != TRAILER_BYTES:
        return None
    magic, index_offset, records, crc, own_crc = TRAILER.unpack(data)
    if magic != TRAILER_MAGIC or own_crc != crc32(data[:28]):
        return None
    return index_offset, records, crc


def crc_before_trailer(crc: int, last: bytes, data: bytes) -> tuple[int, bytes]:
    """Add `data`, the next bytes of a file, to the CRC of all but its last TRAILER_BYTES.

    `crc` and `last` are the result for the bytes before, 0 and b"" at first. The last bytes, which
    may be the trailer, are returned with the CRC.
    """
    data = last + data
    return crc32(data[:-TRAILER_BYTES], crc), data[-TRAILER_BYTES:]


class Summary(msgspec.Struct):
    """Contents of a segment. Times are in wall µs.

    destinations  number, kind and name of those that its records refer to and that are known
    types         number of records of each type
    """

    records: int
    first_sequence: int
    last_sequence: int
    first_time: int
    last_time: int
    destinations: list[tuple[int, Kind, str]]
    types: dict[int, int]

    def addresses(self) -> dict[int, Address]:
        """Return the destinations by number."""
        return {number: Address(kind, name) for number, kind, name in self.destinations}


class SegmentIndex:
    """Columns of one segment as memory views. Call `close` before the mapping is closed."""

    __slots__ = ("_views", "columns", "count", "dense", "sequences", "summary")

    def __init__(self, payload: memoryview) -> None:
        """Decode a payload built by `build_index`. Raises JournalDamaged for any other one."""
        if len(payload) < 8:
            raise JournalDamaged("the index is too short")
        (length,) = _LENGTH.unpack_from(payload)
        try:
            fields = json.loads(bytes(payload[4 : 4 + length]))
            self.summary = msgspec.convert(fields, Summary, str_keys=True)
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise JournalDamaged(f"the summary of the index cannot be read: {error}") from error
        self.count = count = self.summary.records
        offset = 4 + length + 7 & -8
        expected = offset + sum(count * width + 7 & -8 for _, _, width, _ in COLUMNS)
        if count < 0 or expected != len(payload):
            raise JournalDamaged(f"the index of {count} records has {len(payload)} bytes")
        self._views: list[memoryview] = []
        self.columns: dict[str, memoryview[int]] = {}
        for name, code, width, _ in COLUMNS:
            raw = payload[offset : offset + count * width]
            column = raw.cast(code)
            self._views += (column, raw)
            self.columns[name] = column
            offset += count * width + 7 & -8
        self.sequences = self.columns["sequence"]
        self.dense = count > 0 and self.sequences[-1] - self.sequences[0] == count - 1

    def row(self, sequence: int) -> int:
        """Return the first row with at least that sequence number; `count` if there is none."""
        if self.dense:
            return min(max(sequence - int(self.sequences[0]), 0), self.count)
        return bisect_left(self.sequences, sequence)

    def by_row(self, column: bytes | bytearray, base: int) -> bytes | bytearray:
        """Return the bytes of the records from a column with a byte per sequence number.

        `base` is the sequence number of the column's first byte.
        """
        if self.dense:
            start = int(self.sequences[0]) - base
            return column[start : start + self.count]
        return bytes([column[sequence - base] for sequence in self.sequences.tolist()])

    def close(self) -> None:
        """Release the buffer."""
        for view in self._views:
            view.release()
        self._views.clear()
        self.columns.clear()


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


class DamagedFile(JournalDamaged):
    """Damage at an offset of a file. The text includes the remedy."""

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        super().__init__(path, offset, problem)
        self.path = path
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.path}, offset {self.offset}: {self.problem}. No crash can explain this; "
            "nothing has been changed. To see what else is affected: sluicemq journal check "
            f"{self.path.parent}"
        )


def segment_path(directory: Path, first: int) -> Path:
    return directory / f"{first:020d}{SUFFIX}"


def sealed_time(directory: Path, first: int) -> int:
    """Return the time a segment was sealed, in ms since the epoch; 0 if it does not exist."""
    try:
        return segment_path(directory, first).stat().st_mtime_ns // 1_000_000
    except OSError:
        return 0


def list_segments(directory: Path) -> list[int]:
    """Return the first sequence numbers of the segments in a directory, ascending."""
    return list_numbered_files(directory, SUFFIX)


def list_numbered_files(directory: Path, suffix: str) -> list[int]:
    """Return the sequence numbers that name the files of a type in a directory, ascending."""
    stems = (name.removesuffix(suffix) for name in os.listdir(directory) if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isdecimal())


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
        raise DamagedFile(path, 0, "the segment header is incomplete")
    magic, version, _, first, previous, created, identity, end, crc = SEGMENT_HEADER.unpack_from(
        data
    )
    if magic == MAGIC:
        check_version(path, version)
    if magic != MAGIC or crc != crc32(data[:60]):
        raise DamagedFile(path, 0, "the segment header is not intact")
    return SegmentHeader(first, previous, created, identity, end << 3)


def read_segment_header(directory: Path, first: int) -> SegmentHeader:
    """Read a segment's header. Raises FileNotFoundError, JournalDamaged, JournalError."""
    path = segment_path(directory, first)
    with path.open("rb") as file:
        return decode_segment_header(file.read(SEGMENT_HEADER_BYTES), path)


def records_end(directory: Path, first: int, following: int | None) -> int:
    """Return the end of the records of segment `first` as stated by the next one, 0 if unknown.

    Damage of the next segment is ignored; its reader reports it. Raises JournalError.
    """
    if following is None:
        return 0
    try:
        header = read_segment_header(directory, following)
    except (FileNotFoundError, JournalDamaged):
        return 0
    return header.previous_end if header.previous == first else 0


def record_offsets(
    view: memoryview, end: int, start: int = SEGMENT_HEADER_BYTES
) -> Iterator[tuple[int, int]]:
    """Iterate over offset and size of the records up to `end`, until the first damaged one."""
    bounded_view = view[:end]
    while size := record_size(bounded_view, start):
        yield start, size
        start += size + 7 & -8


class MappedSegment:
    """Segment file mapped for reading. `index` is None if the segment is not sealed; `end` is the
    end of its records, 0 if it is unknown. Callers `close` the view.
    """

    __slots__ = ("_map", "crc", "end", "header", "index", "index_offset", "path", "size", "view")

    def __init__(self, path: Path, end: int = 0, checksum: Checksum = crc32) -> None:
        """Map the file.

        A client can send a body that looks like an index with a trailer, and may be the end of an
        unsealed segment. So an index does not count if the file consists of intact records, unless
        it begins at `end`, the end of the records as known from elsewhere, or the file matches its
        CRC. `checksum` is zlib's CRC-32 or a faster implementation of it.

        Raises FileNotFoundError, JournalDamaged, JournalError.
        """
        self.path = path
        self.end = end
        with path.open("rb", buffering=0) as file:
            self.size = os.fstat(file.fileno()).st_size
            if self.size < SEGMENT_HEADER_BYTES:
                raise DamagedFile(path, 0, "the segment header is incomplete")
            self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
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
        has_crc = offset == self.end or checksum(self.view[:end]) == crc
        if not has_crc and self._intact_end(self.size) == self.size:
            return
        self.index_offset = self.end = offset
        self.crc = crc
        try:
            self.index = SegmentIndex(self.view[offset + HEADER_BYTES : offset + size])
        except JournalDamaged as error:
            raise DamagedFile(self.path, offset, str(error)) from error
        if self.index.count != records:
            raise DamagedFile(self.path, end, f"the trailer counts {records} records")

    def _intact_end(self, end: int) -> int:
        """Return the end of the intact records at the beginning of the segment, up to `end`."""
        position = SEGMENT_HEADER_BYTES
        for offset, size in record_offsets(self.view, end):
            position = offset + (size + 7 & -8)
        return min(position, end)

    def verify(self) -> None:
        """Compare a sealed segment with its CRC. Raises JournalDamaged with the offset."""
        end = self.size - TRAILER_BYTES
        if crc32(self.view[:end]) == self.crc:
            return
        raise DamagedFile(self.path, self._intact_end(end), "the bytes do not match their CRC")

    def close(self) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None
        self.view.release()
        with suppress(BufferError):  # a propagating exception still refers to the map
            self._map.close()


def open_segment(
    directory: Path, first: int, following: int | None, identity: bytes | None = None
) -> MappedSegment:
    """Map segment `first`; `following` is the number of the next one, if there is one, `identity`
    that of the data directory, if it is known.

    Raises FileNotFoundError, JournalDamaged, JournalError.
    """
    # in this order: if the next segment has been removed, this one has its index by then
    end = records_end(directory, first, following)
    view = MappedSegment(segment_path(directory, first), end)
    header = view.header
    if header.first != first or identity not in (None, header.identity):
        view.close()
        text = "the segment belongs to another file name or data directory"
        raise DamagedFile(view.path, 16, text)
    return view


MAX_SEQUENCE_GAP: Final = 1 << 32
"""Maximum distance of a record's number from the last intact record."""

# A header in 8-byte steps: type, flags, priority, origin, kind, durability are within bounds.
_PLAUSIBLE: Final = re.compile(
    rb"(?=[\x01-%c][\x00-\x1f][\x00-\x09][\x00-\x0f][\x00-\x07][\x00-\x03])" % max(RecordType),
    re.DOTALL,
)


class Tail(NamedTuple):
    """Whole units of the last segment.

    heads       headers of their records, joined
    end         end offset of the last unit
    torn_bytes  bytes after it that a crash left, without trailing zeros, which may be reserved
                space
    """

    heads: bytes
    end: int
    torn_bytes: int


def find_tail(view: MappedSegment, durable: DurableEnd | None, limit: int | None = None) -> Tail:
    """Return the whole units of an unsealed segment. Raises JournalDamaged.

    With `limit`, the segment is read only up to that offset and must be intact up to it.
    """
    end = view.size if limit is None else min(limit, view.size)
    heads: list[bytes] = []
    unit: list[bytes] = []
    whole_end = stop = SEGMENT_HEADER_BYTES
    last = view.header.first - 1
    search_start = 0
    for offset, size in record_offsets(view.view, end):
        head = bytes(view.view[offset : offset + HEADER_BYTES])
        sequence = sequence_at(view.view, offset)
        if head[TYPE_AT] == RecordType.INDEX or sequence <= last:
            search_start = offset + size
            break
        last = sequence
        stop = offset + (size + 7 & -8)
        unit.append(head)
        if head[FLAGS_AT] & UNIT_END:
            heads += unit
            unit = []
            whole_end = stop
    is_blank = not bytes(view.view[stop:end]).strip(b"\0")
    durable_offset = durable.offset if durable and durable.segment == view.header.first else 0
    if limit is not None:
        durable_offset = min(durable_offset, limit)
    if stop < durable_offset <= view.size:
        raise DamagedFile(view.path, stop, "a durable record is damaged")
    if not is_blank and has_later_group(view.view[:end], search_start or stop, last):
        raise DamagedFile(view.path, stop, "a record is damaged and later ones are intact")
    return Tail(b"".join(heads), whole_end, len(bytes(view.view[whole_end:end]).rstrip(b"\0")))


def find_full(view: MappedSegment, end: int) -> Tail:
    """Return the units of an unsealed segment whose successor states `end` as its records' end.

    Only index and trailer may be missing. Raises JournalDamaged.
    """
    tail = find_tail(view, None, end)
    if tail.end != end:
        raise DamagedFile(view.path, tail.end, "a durable record is damaged or missing")
    if record_size(view.view, end) and view.view[end + TYPE_AT] != RecordType.INDEX:
        raise DamagedFile(view.path, end, "according to the next segment there is no record here")
    return tail


SMALL_RECORD: Final = 4096
"""Bytes. A search for a later group checks the CRC of every candidate up to this size."""
SEARCH_SHARE: Final = 16
"""Factor: the CRCs of larger candidates cover at most this multiple of the searched bytes."""


def has_later_group(view: memoryview, start: int, last: int) -> bool:
    """Return whether an intact group starts after `start`, which proves that `start` was synced.

    A client can send a body that contains records. So records within another record are no group,
    even if that record is torn, unless its size is damaged.
    """
    offset = start + (-start & 7)
    while offset + HEADER_BYTES <= len(view):
        end = offset + (size_at(view, offset) + 7 & -8)
        # the space of a record is reserved before it is written, unless preallocation is disabled
        if end > len(view) or not _is_header(view, offset, last):
            return _find_group(view, offset, len(view), last) > 0
        if record_size(view, offset):
            if offset > start and view[offset + FLAGS_AT] & GROUP_START:
                return True
        else:
            group = _find_group(view, offset, end, last)
            if group and _is_intact_but_shorter(view, offset, group):
                return True
        offset = end
    return False


def _is_header(view: memoryview, offset: int, last: int) -> bool:
    """Return whether there can be the header of a record after the number `last` at `offset`."""
    return (
        _PLAUSIBLE.match(view, offset + TYPE_AT) is not None
        and last < sequence_at(view, offset) < last + MAX_SEQUENCE_GAP
        and HEADER_BYTES <= body_at(view, offset) <= size_at(view, offset)
    )


def _find_group(view: memoryview, start: int, end: int, last: int) -> int:
    """Return the offset of the first intact group after `start` and before `end`, 0 if none is.

    A client can send a body full of headers, each of a record that extends to the end of the body.
    Checking all of them would take hours, so the search for large records is limited.
    """
    data = bytes(view[start : end + HEADER_BYTES])
    remaining = SEARCH_SHARE * len(data)
    for match in _PLAUSIBLE.finditer(data, 8 + TYPE_AT):
        offset = start + match.start() - TYPE_AT
        if offset & 7 or offset >= end or not view[offset + FLAGS_AT] & GROUP_START:
            continue
        if not last < sequence_at(view, offset) < last + MAX_SEQUENCE_GAP:
            continue
        size = size_at(view, offset)
        if SMALL_RECORD < size <= len(view) - offset:
            remaining -= size
            if remaining < 0:
                continue
        if record_size(view, offset):
            return offset
    return 0


def _is_intact_but_shorter(view: memoryview, offset: int, end: int) -> bool:
    """Return whether the record at `offset` matches its CRC if it ends before a header, which is
    at `end` or before."""
    expected = int(SIZE_AND_CRC.unpack_from(view, offset)[1])
    data = bytes(view[offset : end + HEADER_BYTES])
    crc = crc32(data[8:HEADER_BYTES])
    start = HEADER_BYTES
    for match in _PLAUSIBLE.finditer(data, HEADER_BYTES + TYPE_AT):
        following = match.start() - TYPE_AT
        if following & 7:
            continue
        block = max(start, following - 8)
        crc = crc32(data[start:block], crc)
        start = block
        last_block = data[block:following]  # of which up to 7 bytes are padding
        used = len(last_block.rstrip(b"\0"))
        if any(
            crc32(last_block[:size], crc) == expected for size in range(used, len(last_block) + 1)
        ):
            return True
    return False


IDENTITY_NAME: Final = "identity"


def read_identity(directory: Path) -> bytes | None:
    """Return the directory's identity of 16 bytes, None if it has none. Raises JournalDamaged."""
    path = directory / IDENTITY_NAME
    try:
        identity = bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        if list_segments(directory):
            raise DamagedFile(
                path, 0, f"the file is missing, but there are {SUFFIX} files"
            ) from None
        return None
    except ValueError:
        identity = b""
    if len(identity) != IDENTITY_BYTES:
        raise DamagedFile(path, 0, "the file does not hold 32 hexadecimal digits")
    return identity


def make_identity(directory: Path) -> bytes:
    """Generate, store and return the identity of a new directory, 16 random bytes."""
    identity = os.urandom(IDENTITY_BYTES)
    write_atomically(directory / IDENTITY_NAME, identity.hex().encode() + b"\n")
    return identity
