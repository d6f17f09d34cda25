"""Index columns of records, from a segment's index or from the records' headers, and the names of
destinations by number, which the journal never reuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.segment import COLUMNS, SegmentIndex
from sluicemq.model.destination import Address, Kind
from sluicemq.pipeline.source.journal_storage import Integers

Column = np.ndarray[Any, np.dtype[Any]]

_CODES: Final = {name: np.dtype(f"<{code}") for name, code, _, _ in COLUMNS}
_PLACING: Final = ("sequence", "offset", "size", "body", "type")
_HEADER: Final = np.dtype(
    {
        "names": [name for name, _, _, place in COLUMNS if place >= 0],
        "formats": [_CODES[name] for name, _, _, place in COLUMNS if place >= 0],
        "offsets": [place for _, _, _, place in COLUMNS if place >= 0],
        "itemsize": HEADER_BYTES,
    }
)


class Heads:
    """Columns of records in journal order, named as in journal/segment.py.

    Sequence numbers and offsets are below 2**63, so the columns are signed, as in Spark.
    """

    __slots__ = ("_columns", "_from", "_rows", "count")

    def __init__(self, columns: dict[str, Column], count: int) -> None:
        self._columns = columns
        self._from: Heads | None = None
        self._rows: Column | slice = slice(None)
        self.count = count

    def __getitem__(self, name: str) -> Column:
        column = self._columns.get(name)
        if column is None and self._from is not None:
            column = self._columns[name] = self._from[name][self._rows]
        assert column is not None
        return column

    def take(self, rows: Column | slice) -> Heads:
        """Return a subset of the records. A column is copied on first access."""
        if isinstance(rows, slice):
            count = len(range(*rows.indices(self.count)))
        else:
            count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        taken = Heads({}, count)
        taken._from = self
        taken._rows = rows
        return taken

    def only(self, rows: Column) -> Heads:
        """Return the records at ascending `rows`, without a copy if these are all records."""
        return self if len(rows) == self.count else self.take(rows)

    def with_only(self, *names: str) -> Heads:
        """Return these columns alone, so that the others can be freed."""
        return Heads({name: self[name] for name in names}, self.count)

    def followed_by(self, others: Heads) -> Heads:
        """Return these records and then `others`, with sequence, position and type only."""
        columns = {name: np.concatenate((self[name], others[name])) for name in _PLACING}
        return Heads(columns, self.count + others.count)


def index_heads(index: SegmentIndex) -> Heads:
    """Return the columns of a sealed segment as views of its index."""
    columns = {
        name: _signed(np.frombuffer(column, _CODES[name])) for name, column in index.columns.items()
    }
    return Heads(columns, index.count)


def record_heads(data: memoryview, places: Integers, base: int) -> Heads:
    """Return the columns of the records at `places` (multiples of 8) in `data`.

    `base` is the offset of `data` in the segment.
    """
    words = np.frombuffer(data, "<u8", len(data) >> 3)
    rows = words[(places >> 3)[:, None] + np.arange(HEADER_BYTES >> 3)]
    fields = rows.reshape(-1).view(_HEADER)
    columns: dict[str, Column] = {
        name: _signed(np.ascontiguousarray(fields[name])) for name in _HEADER.names or ()
    }
    columns["offset"] = places + base
    return Heads(columns, len(places))


def _signed(column: Column) -> Column:
    return column.view("<i8") if column.dtype == np.dtype("<u8") else column


# --- names of destinations ---------------------------------------------------------------------

KINDS: Final = pa.array([None, "queue", "topic"], pa.string())

TABLE_NUMBERS: Final = 1 << 20
"""Numbers below this are looked up in a table, larger ones in a sorted list."""


def spelled(text: str) -> str:
    """Return text that every table format can store: a byte that is not UTF-8 becomes `\\xNN`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def _unique(numbers: Column) -> Integers:
    """Return the different numbers. Sorting or hashing them takes ten times as long."""
    if len(numbers) and int(numbers.max()) < TABLE_NUMBERS:
        flags = np.zeros(int(numbers.max()) + 1, np.bool_)
        flags[numbers] = True
        return np.flatnonzero(flags)
    return np.unique(numbers).astype(np.int64)


class Names:
    """Destinations by number, with lookups for whole columns."""

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self.addresses = dict(addresses)
        self._arrange()

    def _arrange(self) -> None:
        ordered = sorted(self.addresses)
        self._ordered = [self.addresses[number] for number in ordered]
        self._numbers: Integers = np.array(ordered, np.int64)
        # one more entry, for unknown numbers
        self._texts = pa.array([*(spelled(each.name) for each in self._ordered), None], pa.string())
        self._kinds = np.array([*(each.kind for each in self._ordered), 0], np.int32)
        # the place of each number, if they are small; the last entry is for larger numbers
        self._table: Integers | None = None
        if ordered and ordered[-1] < TABLE_NUMBERS:
            self._table = np.full(ordered[-1] + 2, len(ordered), np.int64)
            self._table[ordered] = np.arange(len(ordered))
        self._asked: object = None
        self._allowed = np.zeros(0, np.bool_)

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> Names:
        """Return the destinations that a sealed segment's index names."""
        return cls(
            {number: Address(Kind(kind), name) for number, kind, name in summary["destinations"]}
        )

    def add(self, addresses: Mapping[int, Address]) -> None:
        """Add destinations."""
        if addresses:
            self.addresses.update(addresses)
            self._arrange()

    def missing(self, numbers: Column) -> set[int]:
        """Return the numbers that have no name here."""
        unique = _unique(numbers)
        return set(unique[~np.isin(unique, self._numbers)].tolist()) - {0}

    def _places(self, numbers: Column) -> Integers:
        """Return the index of each number's name; the last entry is for unknown numbers."""
        count = len(self._numbers)
        if not count:
            return np.zeros(len(numbers), np.int64)
        if self._table is not None:
            return self._table.take(numbers, mode="clip")
        places = np.searchsorted(self._numbers, numbers)
        places[places == count] = 0
        return np.where(self._numbers[places] == numbers, places, count)

    def texts(self, numbers: Column) -> pa.Array:
        """Return the names; null for unknown numbers."""
        return self._texts.take(pa.array(self._places(numbers)))

    def addressed(self, numbers: Column) -> pa.Array:
        """Return the names, with `topic:` before those of topics; null for unknown numbers."""
        texts = pa.array([*(spelled(str(each)) for each in self._ordered), None], pa.string())
        return texts.take(pa.array(self._places(numbers)))

    def kinds(self, numbers: Column) -> pa.Array:
        """Return the kinds: "queue" or "topic"."""
        return KINDS.take(pa.array(self._kinds[self._places(numbers)]))

    def among(
        self, numbers: Column, allows: Callable[[Iterable[Address]], list[bool]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask of the numbers whose destinations `allows` accepts."""
        if self._asked != allows:
            self._allowed = np.array([*allows(self._ordered), False], np.bool_)
            self._asked = allows
        return self._allowed[self._places(numbers)]

    def bounds(self, numbers: Column, bound_by_name: Mapping[str, int], others: int) -> Integers:
        """Return the bound of each number's destination, `others` for those without one."""
        bounds = [bound_by_name.get(spelled(str(each)), others) for each in self._ordered]
        return np.array([*bounds, others], np.int64)[self._places(numbers)]
