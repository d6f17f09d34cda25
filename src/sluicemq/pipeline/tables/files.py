"""Data files: Parquet, written so that readers can skip as much as possible.

zstd level 1 (what more costs in time it does not give in size), row groups of 16 k rows, sorted,
one partition per file. Statistics of every number, time, date and short text go into the file and
into the table's own list of files, so that a reader drops whole files without opening them.

    2026-11-21/orders@2Feu/part-6f0c….parquet

The files hold the partition columns too, so that a plain list of files is all that a reader needs.
Names of directories are for people: no reader takes a value from them. Characters but letters,
digits, `_`, `-` and `.` become @XX there (`%`, `=`, `~` and what is not ASCII break one engine or
another), and long values are cut. A text of no characters is a null to Delta, and so it is here.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluicemq.pipeline.tables.keys import Codes, codes
from sluicemq.pipeline.tables.storage import Storage

ROW_GROUP: Final = 16_384
FILE_BYTES: Final = 64 << 20
"""Of Arrow memory, before compression: what a writing task holds at most (about twice), and what
an upsert that touches one row of a file has to rewrite."""
FILE_ROWS: Final = 131_072
SHORT: Final = 64
"""Texts up to this many bytes on average are worth a dictionary and statistics."""
NO_VALUE: Final = "null"

_ESCAPED: Final = re.compile(rb"^[_.]|[^A-Za-z0-9_.\-]")
_LONGEST: Final = 120
"""Characters of one directory name."""


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table.

    path       relative to the table
    size       bytes
    partition  value of each partition column
    low, high  bounds of columns, where known; `low` may be shorter than the least text
    nulls      number of nulls of columns, where known
    """

    path: str
    rows: int
    size: int
    partition: dict[str, Any] = field(default_factory=dict)
    low: dict[str, Any] = field(default_factory=dict)
    high: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """How a table's files are written.

    partitions      columns, one directory level each
    sort            columns by which the rows of a file ascend
    directory       of all data files, relative to the table; "" or ending in "/"
    file_bytes      of Arrow memory that go into one file, at most about
    file_rows       the same in rows
    """

    partitions: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    directory: str = ""
    file_bytes: int = FILE_BYTES
    file_rows: int = FILE_ROWS


def spelled(value: Any) -> str | None:
    """A partition value as text; None = null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _named(value: Any) -> str:
    text = spelled(value)
    if text is None:
        return NO_VALUE
    return _ESCAPED.sub(lambda match: b"@%02X" % ord(match[0]), text.encode()).decode()[:_LONGEST]


def directory(layout: Layout, partition: dict[str, Any]) -> str:
    """Where files of that partition go, relative to the table."""
    return layout.directory + "".join(f"{_named(value)}/" for value in partition.values())


def _sliced(rows: pa.Table, layout: Layout) -> Iterator[pa.Table]:
    """`rows` in order, in equal pieces."""
    pieces = max(-(-rows.nbytes // layout.file_bytes), -(-rows.num_rows // layout.file_rows), 1)
    step = max(-(-rows.num_rows // pieces), 1)
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _order(rows: pa.Table, layout: Layout, groups: Codes | None) -> Codes:
    """Places of the rows, by group and then by the sort columns (nulls last)."""
    columns = [name for name in layout.sort if name in rows.column_names]
    places: Codes = np.arange(rows.num_rows)
    if columns:
        keys = [(name, "ascending") for name in columns]
        places = pc.sort_indices(rows.select(columns), sort_keys=keys).to_numpy().astype(np.int64)
    if groups is not None:
        places = places[np.argsort(groups[places], kind="stable")]
    return places


def _partitioned(rows: pa.Table, layout: Layout) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The rows of each partition, in order. Columns that the rows do not have are null."""
    given = [name for name in layout.partitions if name in rows.column_names]
    groups = codes(given, rows)[0] if given else None
    order = _order(rows, layout, groups)
    if not bool((order[1:] > order[:-1]).all()):
        rows = rows.take(pa.array(order))  # copying bodies is the dear part
    edges = [0, rows.num_rows]
    if groups is not None:
        edges[1:1] = (np.flatnonzero(np.diff(groups[order])) + 1).tolist()
    for first, end in pairwise(edges):
        piece = rows.slice(first, end - first)
        partition: dict[str, Any] = dict.fromkeys(layout.partitions)
        for name in given:
            value = piece.column(name)[0].as_py()
            if value == "":
                place = piece.schema.get_field_index(name)
                nulls = pa.nulls(piece.num_rows, pa.string())
                piece = piece.set_column(place, piece.schema.field(place), nulls)
            else:
                partition[name] = value
        yield partition, piece


def _short(column: pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_string(kind):
        return bool(column.nbytes <= (SHORT + 8) * max(len(column), 1))
    return not (pa.types.is_binary(kind) or pa.types.is_nested(kind))


def _bounded(kind: pa.DataType) -> bool:
    # Not of floating point: NaN has no place in an order.
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_string(kind)
    )


def bounds(
    metadata: pq.FileMetaData, schema: pa.Schema
) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """(low, high, nulls) of a file's columns, where its footer tells them."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    wanted = {field.name for field in schema if _bounded(field.type)}
    unknown = set()
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(row_group.num_columns):
            chunk = row_group.column(place)
            name = chunk.path_in_schema
            if name not in wanted:
                continue
            found = chunk.statistics
            if found is None or not found.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                low[name] = min(low.get(name, found.min), found.min)
                high[name] = max(high.get(name, found.max), found.max)
            elif found.null_count < chunk.num_values:
                unknown.add(name)
    for name in unknown:
        low.pop(name, None)
        high.pop(name, None)
        nulls.pop(name, None)
    return low, high, nulls


def write_file(
    storage: Storage, layout: Layout, partition: dict[str, Any], rows: pa.Table
) -> DataFile:
    """Writes one file of rows of one partition, already in order."""
    path = f"{directory(layout, partition)}part-{uuid.uuid4()}.parquet"
    short = [name for name in rows.column_names if _short(rows.column(name))]
    texts = [name for name in short if pa.types.is_string(rows.schema.field(name).type)]
    footer: list[pq.FileMetaData] = []
    with storage.create(path) as stream:
        pq.write_table(
            rows,
            stream,
            row_group_size=ROW_GROUP,
            compression="zstd",
            compression_level=1,
            use_dictionary=[*texts, *_leaves(rows.schema)],
            write_statistics=short,
            store_schema=False,
            metadata_collector=footer,
        )
        size = stream.tell()
    low, high, nulls = bounds(footer[0], rows.schema)
    return DataFile(path, rows.num_rows, size, partition, low, high, nulls)


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns inside maps, lists and structs, as Parquet names them: the names of properties
    repeat in every row, so they want a dictionary."""
    found: list[str] = []

    def walk(path: str, kind: pa.DataType) -> None:
        if pa.types.is_map(kind):
            walk(f"{path}.key_value.key", kind.key_type)
            walk(f"{path}.key_value.value", kind.item_type)
        elif pa.types.is_list(kind):
            walk(f"{path}.list.element", kind.value_type)
        elif pa.types.is_struct(kind):
            for field in kind.fields:
                walk(f"{path}.{field.name}", field.type)
        elif "." in path:
            found.append(path)

    for field_ in schema:
        walk(field_.name, field_.type)
    return found


def write_table(storage: Storage, layout: Layout, rows: pa.Table) -> list[DataFile]:
    """Writes rows in memory as data files that belong to no table yet; their ranges of the sort
    columns do not overlap."""
    if not rows.num_rows:
        return []
    return [
        write_file(storage, layout, partition, part)
        for partition, piece in _partitioned(rows, layout)
        for part in _sliced(piece, layout)
    ]


def write_rows(storage: Storage, layout: Layout, batches: Iterable[pa.Table]) -> list[DataFile]:
    """The same for a stream of rows of one schema. Holds `layout.file_bytes` of them at a time, so
    that memory does not grow with their number."""
    written: list[DataFile] = []
    held: list[pa.Table] = []
    size = rows = 0
    for batch in batches:
        if rows and (size + batch.nbytes > layout.file_bytes or rows >= layout.file_rows):
            written += write_table(storage, layout, pa.concat_tables(held))
            held.clear()
            size = rows = 0
        held.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
    if rows:
        written += write_table(storage, layout, pa.concat_tables(held))
    return written
