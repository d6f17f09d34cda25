"""Index columns of records, from a segment's index or from the records' headers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sluicemq.journal.format import HEADER_BYTES
from sluicemq.journal.segment import COLUMNS, SegmentIndex
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
