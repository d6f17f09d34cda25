"""Two Arrow tables with unique keys, row by row beside each other: what the tables' `combine` are
made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEFT: Final = "_left"
_RIGHT: Final = "_right"

Columns = dict[str, Any]
"""Arrow arrays by the names of their columns."""


class Pairs:
    """The rows of `older` and `newer` with equal keys; either may lack one. Keys are never null."""

    def __init__(self, older: pa.Table, newer: pa.Table, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._older, self._newer = older, newer
        left = _numbered(older.select(self._keys), _LEFT)
        right = _numbered(newer.select(self._keys), _RIGHT)
        joined = left.join(right, self._keys, join_type="full outer", use_threads=False)
        self._joined = joined.combine_chunks()
        self.count = joined.num_rows

    def keys(self) -> Columns:
        """The columns of the key."""
        return {name: single(self._joined[name]) for name in self._keys}

    def _both(self, name: str) -> tuple[Any, Any]:
        left = single(self._older[name]).take(single(self._joined[_LEFT]))
        return left, single(self._newer[name]).take(single(self._joined[_RIGHT]))

    def smallest(self, names: Iterable[str]) -> Columns:
        """Of each pair the lesser, or the one that is not null."""
        return {name: _chosen(pc.less, *self._both(name)) for name in names}

    def greatest(self, names: Iterable[str]) -> Columns:
        """Of each pair the greater, or the one that is not null."""
        return {name: _chosen(pc.greater, *self._both(name)) for name in names}

    def summed(self, names: Iterable[str]) -> Columns:
        """The sums; what is not there is 0."""
        found = {}
        for name in names:
            left, right = self._both(name)
            found[name] = pc.add(pc.fill_null(left, 0), pc.fill_null(right, 0))
        return found

    def newer_where(self, names: Iterable[str], newer: Any) -> Columns:
        """From the newer row where the array `newer` is true, else from the older."""
        return {
            name: pc.if_else(newer, right, left)
            for name, (left, right) in ((name, self._both(name)) for name in names)
        }

    def known(self, name: str) -> tuple[Any, Any]:
        """Whether the older and the newer row has a value there."""
        left, right = self._both(name)
        return left.is_valid(), right.is_valid()

    def not_older(self, name: str) -> Any:
        """Where the newer row's value is there and not less than the older one's."""
        left, right = self._both(name)
        later = pc.fill_null(pc.greater_equal(right, left), True)
        return pc.and_(right.is_valid(), later)

    def added(self, names: Iterable[str]) -> Columns:
        """Maps: the counts of each key added up; empty where there is none."""
        return {name: self._added(name) for name in names}

    def _added(self, name: str) -> Any:
        sides = self._both(name)
        parts = [pa.table({"row": rows_of(maps), **entries_of(maps)}) for maps in sides]
        counts = pa.concat_tables(parts).group_by(["row", "key"], use_threads=False)
        found = counts.aggregate([("value", "sum")])
        found = found.sort_by([("row", "ascending"), ("key", "ascending")])
        sizes = np.bincount(found["row"].to_numpy(), minlength=self.count)
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        keys, counts = single(found["key"]), single(found["value_sum"])
        return pa.MapArray.from_arrays(offsets, keys, counts)


def entries_of(maps: Any) -> Columns:
    """All entries of an array of maps, as the columns "key" and "value"."""
    start, end = maps.offsets[0].as_py(), maps.offsets[len(maps)].as_py()
    return {"key": maps.keys[start:end], "value": maps.items[start:end]}


def rows_of(maps: Any) -> Any:
    """The row of each of these entries."""
    sizes = np.diff(maps.offsets.to_numpy())
    return np.repeat(np.arange(len(maps)), sizes)


def single(column: Any) -> Any:
    """A column of a table as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _chosen(better: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Arrow's own element-wise minimum and maximum know no time zones."""
    return pc.if_else(pc.fill_null(better(right, left), left.is_null()), right, left)


def _numbered(keys: pa.Table, name: str) -> pa.Table:
    return keys.append_column(name, pa.array(np.arange(keys.num_rows)))
