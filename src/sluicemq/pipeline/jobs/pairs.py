"""Join of two Arrow tables with unique keys, used by `combine` of the lake's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LEFT: Final = "_left"
_RIGHT: Final = "_right"

Columns = dict[str, Any]
"""Arrow arrays by column name."""


class Pairs:
    """Rows of `older` and `newer`, paired by key; either may be missing. Keys are never null."""

    def __init__(self, older: pa.Table, newer: pa.Table, keys: Sequence[str]) -> None:
        self._keys = list(keys)
        self._older, self._newer = older, newer
        left = _numbered(older.select(self._keys), _LEFT)
        right = _numbered(newer.select(self._keys), _RIGHT)
        joined = left.join(right, self._keys, join_type="full outer", use_threads=False)
        self._joined = joined.combine_chunks()
        self.count = joined.num_rows

    def keys(self) -> Columns:
        """Return the key columns."""
        return {name: single(self._joined[name]) for name in self._keys}

    def _both(self, name: str) -> tuple[Any, Any]:
        left = single(self._older[name]).take(single(self._joined[_LEFT]))
        return left, single(self._newer[name]).take(single(self._joined[_RIGHT]))

    def smallest(self, names: Iterable[str]) -> Columns:
        """Return the smaller value of each pair, or the one that is not null."""
        return {name: _chosen(pc.less, *self._both(name)) for name in names}

    def greatest(self, names: Iterable[str]) -> Columns:
        """Return the greater value of each pair, or the one that is not null."""
        return {name: _chosen(pc.greater, *self._both(name)) for name in names}

    def summed(self, names: Iterable[str]) -> Columns:
        """Return the sums; null counts as 0."""
        found = {}
        for name in names:
            left, right = self._both(name)
            found[name] = pc.add(pc.fill_null(left, 0), pc.fill_null(right, 0))
        return found

    def newer_where(self, names: Iterable[str], newer: Any) -> Columns:
        """Return the newer value where the array `newer` is true, else the older one."""
        return {
            name: pc.if_else(newer, right, left)
            for name, (left, right) in ((name, self._both(name)) for name in names)
        }

    def known(self, name: str) -> tuple[Any, Any]:
        """Return masks of the pairs whose older and whose newer row has a value."""
        left, right = self._both(name)
        return left.is_valid(), right.is_valid()

    def not_older(self, name: str) -> Any:
        """Return the mask of pairs whose newer value is present and not less than the older one."""
        left, right = self._both(name)
        later = pc.fill_null(pc.greater_equal(right, left), True)
        return pc.and_(right.is_valid(), later)

    def added(self, names: Iterable[str]) -> Columns:
        """Return maps with the counts of equal keys added up; empty if there is none."""
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
    """Return all entries of an array of maps as the columns "key" and "value"."""
    start, end = maps.offsets[0].as_py(), maps.offsets[len(maps)].as_py()
    return {"key": maps.keys[start:end], "value": maps.items[start:end]}


def rows_of(maps: Any) -> Any:
    """Return the row index of each of these entries."""
    sizes = np.diff(maps.offsets.to_numpy())
    return np.repeat(np.arange(len(maps)), sizes)


def single(column: Any) -> Any:
    """Return a table's column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _chosen(better: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Select the better value of each pair; Arrow's own functions do not support time zones."""
    return pc.if_else(pc.fill_null(better(right, left), left.is_null()), right, left)


def _numbered(keys: pa.Table, name: str) -> pa.Table:
    return keys.append_column(name, pa.array(np.arange(keys.num_rows)))
