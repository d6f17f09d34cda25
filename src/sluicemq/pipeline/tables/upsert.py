"""Upsert by copying the few files that hold one of the keys.

Keys that ascend (numbers of messages) lie in few files: the rest is left out by its bounds alone,
then by reading only the key columns. What is rewritten does not grow with the table.

Each key is in one file at most, so files are worked through one by one: memory holds one file and
the new rows, however many files are touched. Rows of new keys join the newest file if that is
rewritten anyway, so that batches do not leave a small file each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sluicemq.pipeline.tables import reading
from sluicemq.pipeline.tables.columns import fitted
from sluicemq.pipeline.tables.errors import SchemaMismatch, TableError
from sluicemq.pipeline.tables.files import DataFile, Layout, write_table
from sluicemq.pipeline.tables.keys import codes, is_unique, last_of_each, may_hold
from sluicemq.pipeline.tables.snapshot import TableSnapshot
from sluicemq.pipeline.tables.storage import Storage

Combine = Callable[[pa.Table, pa.Table], pa.Table]
Places = np.ndarray[Any, np.dtype[np.intp]]


def upserted(
    storage: Storage,
    layout: Layout,
    base: TableSnapshot,
    rows: pa.Table,
    keys: Sequence[str],
    combine: Combine | None,
) -> tuple[list[DataFile], list[DataFile]]:
    """Writes the files that take the place of others; (files to add, files to remove).

    `rows` have the table's columns.
    """
    missing = [key for key in keys if key not in rows.column_names]
    if missing or not keys:
        names = ", ".join(missing) or "none given"
        raise SchemaMismatch(f"an upsert needs its key columns: {names}")
    if not rows.num_rows:
        return [], []
    merge = combine or (lambda old, new: last_of_each(new, keys))

    def merged(old: pa.Table, new: pa.Table) -> pa.Table:
        made = fitted(merge(old, new), base.schema)
        if not is_unique(made, keys):
            raise TableError(
                "the combination of old and new rows has several rows of one key "
                f"({', '.join(keys)})"
            )
        return made

    adds: list[DataFile] = []
    removes: list[DataFile] = []
    free = np.ones(rows.num_rows, bool)
    joined: list[pa.Table] = []
    newest = _by_key(base.files, keys)[-1:]
    for file, old_places, new_places in _touched(storage, base, rows, keys):
        old = reading.file_rows(storage, base, file)
        stays = np.ones(old.num_rows, bool)
        stays[old_places] = False
        free[new_places] = False
        pieces = [
            old.filter(pa.array(stays)),
            merged(old.take(pa.array(old_places)), rows.take(pa.array(new_places))),
        ]
        removes.append(file)
        if [file] == newest:
            joined = pieces
        else:
            adds += write_table(storage, layout, pa.concat_tables(pieces))
    if free.any():
        unseen = rows if free.all() else rows.filter(pa.array(free))
        joined.append(merged(base.schema.empty_table(), unseen))
    if joined:
        adds += write_table(storage, layout, pa.concat_tables(joined))
    return adds, removes


def _by_key(files: Sequence[DataFile], keys: Sequence[str]) -> list[DataFile]:
    """Ascending by the first key; files of unknown bounds come first."""
    first = keys[0]
    known = [file for file in files if first in file.low]
    unknown = [file for file in files if first not in file.low]
    return unknown + sorted(known, key=lambda file: file.low[first])


def _touched(
    storage: Storage, base: TableSnapshot, rows: pa.Table, keys: Sequence[str]
) -> Iterator[tuple[DataFile, Places, Places]]:
    """The files that hold a key of `rows`: (file, places of such rows in it, places in `rows`)."""
    wanted = rows.select(list(keys))
    for file in _by_key(base.files, keys):
        held = {**file.partition}
        low, high = {**file.low, **held}, {**file.high, **held}
        nulls = {**file.nulls, **{name: int(value is None) for name, value in held.items()}}
        if not may_hold(low, high, nulls, wanted):
            continue
        old, new = codes(keys, reading.file_rows(storage, base, file, keys), wanted)
        found = np.isin(old, new)
        if found.any():
            yield file, np.flatnonzero(found), np.flatnonzero(np.isin(new, old[found]))
