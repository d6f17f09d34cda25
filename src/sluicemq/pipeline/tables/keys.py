"""Rows compared by key, over whole columns. A null equals a null, as in `GROUP BY`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Codes = np.ndarray[Any, np.dtype[np.int64]]


def codes(keys: Sequence[str], *tables: pa.Table) -> tuple[Codes, ...]:
    """One integer per row of each table: equal in all tables exactly where the keys are equal."""
    whole: Codes | None = None
    for key in keys:
        chunks = [chunk for table in tables for chunk in table.column(key).chunks]
        kind = tables[0].schema.field(key).type
        column = pa.chunked_array(chunks, type=kind)
        if len(keys) == 1 and pa.types.is_int64(kind) and column.null_count == 0:
            whole = column.to_numpy()
            break
        # combine_chunks first: each chunk would get a dictionary of its own
        merged = column.combine_chunks()
        if isinstance(merged, pa.ChunkedArray):
            encoded = merged.dictionary_encode(null_encoding="encode").unify_dictionaries()
            indices = pa.chunked_array([chunk.indices for chunk in encoded.chunks])
        else:
            indices = merged.dictionary_encode(null_encoding="encode").indices
        part = indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if whole is None:
            whole = part
        else:
            # Kept dense, so that no number of keys can overflow.
            whole = np.unique(whole * (part.max(initial=0) + 1) + part, return_inverse=True)[1]
    if whole is None:
        raise ValueError("no key columns")
    edges = np.cumsum([table.num_rows for table in tables])[:-1]
    return tuple(np.split(whole, edges))


def last_of_each(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of rows with the same key the last one."""
    (found,) = codes(keys, rows)
    _, places = np.unique(found[::-1], return_index=True)
    if len(places) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(rows.num_rows - 1 - places)))


def is_unique(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Whether no two rows have the same key."""
    (found,) = codes(keys, rows)
    return bool(len(np.unique(found)) == rows.num_rows)


def may_hold(
    low: dict[str, Any], high: dict[str, Any], nulls: dict[str, int], wanted: pa.Table
) -> bool:
    """Whether a file with those bounds may hold one of the wanted keys (a table of key columns)."""
    for name in wanted.column_names:
        column = wanted.column(name)
        if column.null_count and nulls.get(name, 1):
            continue
        if name in low and name in high:
            inside = pc.and_(
                pc.greater_equal(column, pa.scalar(low[name], column.type)),
                pc.less_equal(column, pa.scalar(high[name], column.type)),
            )
            if not pc.any(inside).as_py():
                return False
    return True
