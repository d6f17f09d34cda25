"""Index columns of records, from a segment's index or by a scan of the records, and the names of
destinations by number, which the journal never reuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from sluicemq.journal.format import HEADER_BYTES, LAST_TYPE, TYPE_AT, record_size, size_at
from sluicemq.journal.segment import COLUMNS, SEGMENT_HEADER_BYTES, SegmentIndex
from sluicemq.model.destination import Address
from sluicemq.pipeline.schema import escape_invalid
from sluicemq.pipeline.source.journal_storage import Integers, StoredSegment

Column = np.ndarray[Any, np.dtype[Any]]

_CODES: Final = {name: np.dtype(f"<{code}") for name, code, _, _ in COLUMNS}
LOCATING_COLUMNS: Final = ("sequence", "offset", "size", "body", "type")
"""Columns that locate the fields of a record."""
_HEADER: Final = np.dtype(
    {
        "names": [name for name, _, _, offset in COLUMNS if offset >= 0],
        "formats": [_CODES[name] for name, _, _, offset in COLUMNS if offset >= 0],
        "offsets": [offset for _, _, _, offset in COLUMNS if offset >= 0],
        "itemsize": HEADER_BYTES,
    }
)


class RecordColumns:
    """Columns of records in journal order, named as in journal/segment.py.

    Sequence numbers and offsets are below 2**63, so the columns are signed, as in Spark.
    """

    __slots__ = ("_columns", "_parent", "_rows")

    def __init__(
        self,
        columns: dict[str, Column],
        parent: RecordColumns | None = None,
        rows: Column | slice = slice(None),
    ) -> None:
        """Take these columns, and other ones on first access from `rows` of `parent`."""
        self._columns = columns
        self._parent = parent
        self._rows = rows

    @property
    def count(self) -> int:
        return len(self["sequence"])

    def __getitem__(self, name: str) -> Column:
        column = self._columns.get(name)
        if column is None and self._parent is not None:
            column = self._columns[name] = self._parent[name][self._rows]
        assert column is not None
        return column

    def take(self, rows: Column | slice) -> RecordColumns:
        """Return a subset of the records. A column is copied on first access."""
        return RecordColumns({}, self, rows)

    def select(self, rows: Column) -> RecordColumns:
        """Return the records at ascending `rows`, without a copy if these are all records."""
        return self if len(rows) == self.count else self.take(rows)

    @classmethod
    def concatenate(cls, parts: Sequence[RecordColumns], names: Iterable[str]) -> RecordColumns:
        """Return the records of all parts, with these columns only: the others can be freed."""
        return cls({name: np.concatenate([part[name] for part in parts]) for name in names})


def index_columns(index: SegmentIndex) -> RecordColumns:
    """Return the columns of a sealed segment as views of its index."""
    return RecordColumns(
        {
            name: _signed(np.frombuffer(column, _CODES[name]))
            for name, column in index.columns.items()
        }
    )


def record_columns(data: memoryview, record_starts: Integers, base: int) -> RecordColumns:
    """Return the columns of the records at `record_starts` (multiples of 8) in `data`.

    `base` is the offset of `data` in the segment.
    """
    words = np.frombuffer(data, "<u8", len(data) >> 3)
    rows = words[(record_starts >> 3)[:, None] + np.arange(HEADER_BYTES >> 3)]
    fields = rows.reshape(-1).view(_HEADER)
    columns: dict[str, Column] = {
        name: _signed(np.ascontiguousarray(fields[name])) for name in _HEADER.names or ()
    }
    columns["offset"] = record_starts + base
    return RecordColumns(columns)


def _signed(column: Column) -> Column:
    return column.view("<i8") if column.dtype == np.dtype("<u8") else column


# --- scan of a segment without an index ---------------------------------------------------------

# The index of a sealed segment is verified; here the CRC of each record is checked instead.

BLOCK_RECORDS: Final = 8192
BLOCK_BYTES: Final = 8 << 20

Report = Callable[[int, int], None]
"""Called with the start and end offsets of bytes that are not intact records."""


def ignore_damage(start: int, stop: int) -> None:
    """Ignore the damage; the task that reads the record reports it."""


class ScannedRecords(NamedTuple):
    """Consecutive records.

    data  bytes of all of them; `base` is the offset of `data` in the segment
    """

    records: RecordColumns
    data: pa.Buffer
    base: int

    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        """Return the bytes of the records at `offsets`, as StoredSegment.gather."""
        return self.data, offsets - self.base


def segment_columns(
    segment: StoredSegment, start: int, report: Report | None
) -> Iterator[RecordColumns]:
    """Yield the columns of a segment's records, from its index or, from `start` on, by a scan."""
    if segment.index is not None:
        yield index_columns(segment.index)
        return
    for block in scan_segment(segment, start, segment.end, report):
        yield block.records


def scan_segment(
    segment: StoredSegment, start: int, end: int, report: Report | None
) -> Iterator[ScannedRecords]:
    """Yield the records between two offsets; `start` is the start of a record, 0 = the first one.

    Damaged records are passed to `report` and skipped; without `report` they raise
    JournalDamaged."""
    position = start or SEGMENT_HEADER_BYTES
    while position < end:
        data = segment.read_bytes(position, end, BLOCK_BYTES)
        padded = size_at(memoryview(data), 0) + 7 & -8
        if len(data) < padded <= end - position:
            data = segment.read_bytes(position, end, padded)
        records, stop = _records(memoryview(data), position)
        if records.count:
            yield ScannedRecords(records, data, position)
            position += stop
        else:
            position = _skip_damage(segment, position, end, report)


def _records(view: memoryview, base: int) -> tuple[RecordColumns, int]:
    """Return up to BLOCK_RECORDS intact records at the start of `view`, and the end of the last.

    The checks are those of `record_size`.
    """
    starts = np.array(_intact_starts(view), np.int64)
    records = record_columns(view, starts, base)
    sizes = records["size"].astype(np.int64)
    stops = starts + (sizes + 7 & -8)
    words = np.frombuffer(view, "<u8", len(view) >> 3)
    padding = sizes & 7
    last_words = words[(stops >> 3) - 1] >> (8 * padding).astype(np.uint64)
    intact = (
        ((padding == 0) | (last_words == 0))
        & (records["type"] > 0)
        & (records["type"] <= LAST_TYPE)
        & (records["body"] >= HEADER_BYTES)
        & (records["body"] <= records["size"])
    )
    count = len(starts) if intact.all() else int(np.argmin(intact))
    return records.take(slice(count)), int(stops[count - 1]) if count else 0


def _intact_starts(view: memoryview) -> list[int]:
    """Return the starts of up to BLOCK_RECORDS records that match their CRC."""
    # The only loop over records. A vectorised search (for header patterns, or by pointer doubling)
    # costs more than the 0.1 µs of a step here, and each CRC has to be computed separately anyway.
    starts: list[int] = []
    end = len(view)
    words = view[: end & -4].cast("I")
    crc32 = zlib_ng.crc32
    position = 0
    last = end - HEADER_BYTES
    while position <= last:
        size = words[position >> 2]
        stop = position + size
        padded = stop + 7 & -8
        if (
            size < HEADER_BYTES
            or padded > end
            or crc32(view[position + 8 : stop]) != words[(position >> 2) + 1]
        ):
            break
        starts.append(position)
        position = padded
        if len(starts) == BLOCK_RECORDS:
            break
    return starts


def _skip_damage(segment: StoredSegment, at: int, end: int, report: Report | None) -> int:
    """Report the damaged bytes at `at` and return the offset of the next intact record."""
    if report is None:
        raise segment.damage(at, "the record is not intact")
    view = memoryview(segment.read_bytes(at, end, end - at))
    starts = range(8, len(view) - HEADER_BYTES + 1, 8)
    # most steps are rejected by their type, which is faster than `record_size`
    plausible = (step for step in starts if 0 < view[step + TYPE_AT] <= LAST_TYPE)
    step = next((step for step in plausible if record_size(view, step, zlib_ng.crc32)), end - at)
    report(at, at + step)
    return at + step


# --- names of destinations ---------------------------------------------------------------------


def name_of(address: Address) -> str:
    return escape_invalid(address.name)


def full_name(address: Address) -> str:
    """Return the name of a queue, or `topic:` and that of a topic."""
    return escape_invalid(str(address))


def kind_of(address: Address) -> str:
    return address.kind.name.lower()


TABLE_NUMBERS: Final = 1 << 20
"""Numbers below this are looked up in a table, larger ones in a sorted list."""


class Names:
    """Destinations by number, with lookups for whole columns."""

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self.addresses = dict(addresses)
        self._build_lookups()

    def _build_lookups(self) -> None:
        ordered = sorted(self.addresses)
        self._ordered = [self.addresses[number] for number in ordered]
        self._numbers: Integers = np.array(ordered, np.int64)
        self._texts: dict[Callable[[Address], str], pa.Array] = {}
        # the position of each number, if all are small; the last entry is for larger numbers
        self._table: Integers | None = None
        largest = max(ordered, default=0)
        if largest < TABLE_NUMBERS:
            self._table = np.full(largest + 2, len(ordered), np.int64)
            self._table[ordered] = np.arange(len(ordered))
        self._allowed_by: object = None
        self._allowed_flags = np.zeros(0, np.bool_)

    def add(self, addresses: Mapping[int, Address]) -> None:
        if addresses:
            self.addresses.update(addresses)
            self._build_lookups()

    def missing(self, numbers: Column) -> set[int]:
        """Return the numbers that have no name here."""
        unknown = numbers[self._indexes(numbers) == len(self._numbers)]
        return set(unknown.tolist()) - {0}

    def _indexes(self, numbers: Column) -> Integers:
        """Return the index of each number's name; the last entry is for unknown numbers."""
        if self._table is not None:
            return self._table.take(numbers, mode="clip")
        count = len(self._numbers)
        indices = np.searchsorted(self._numbers, numbers)
        indices[indices == count] = 0
        return np.where(self._numbers[indices] == numbers, indices, count)

    def texts(self, numbers: Column, text: Callable[[Address], str]) -> pa.Array:
        """Return a text for each destination; null for unknown numbers.

        `text` is a function of this module, which is called once for each destination."""
        if text not in self._texts:
            self._texts[text] = pa.array([*map(text, self._ordered), None], pa.string())
        return self._texts[text].take(pa.array(self._indexes(numbers)))

    def allowed_mask(
        self, numbers: Column, allows: Callable[[Iterable[Address]], list[bool]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask of the numbers whose destinations `allows` accepts."""
        if self._allowed_by != allows:
            self._allowed_flags = np.array([*allows(self._ordered), False], np.bool_)
            self._allowed_by = allows
        return self._allowed_flags[self._indexes(numbers)]

    def bounds(self, numbers: Column, bound_by_name: Mapping[str, int], others: int) -> Integers:
        """Return the bound of each number's destination, `others` for those without one."""
        bounds = [bound_by_name.get(full_name(address), others) for address in self._ordered]
        return np.array([*bounds, others], np.int64)[self._indexes(numbers)]
