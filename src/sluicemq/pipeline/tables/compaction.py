"""Which files are joined into one, and how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sluicemq.pipeline.tables import reading
from sluicemq.pipeline.tables.files import DataFile, Layout, directory, write_table
from sluicemq.pipeline.tables.snapshot import TableSnapshot
from sluicemq.pipeline.tables.storage import Storage

TARGET_BYTES: Final = 64 << 20
"""Compressed. Larger files would save little, and cost an upsert of an old row more."""
MOST_BYTES: Final = 512 << 20
"""Uncompressed: what one joined file may take in memory while it is sorted."""
ENOUGH: Final = 0.75
"""A file of that share of the target is left as it is."""


def planned(
    storage: Storage, snapshot: TableSnapshot, target_bytes: int
) -> Iterator[list[DataFile]]:
    """Groups of small files of one partition, neighbours by the first sort column."""
    layout = Layout(snapshot.partitions, snapshot.sort)
    first = snapshot.sort[0] if snapshot.sort else None

    def place(file: DataFile) -> str:
        return directory(layout, file.partition)

    for _, partition in groupby(sorted(snapshot.files, key=place), place):
        files = list(partition)
        if first is not None and all(first in file.low for file in files):
            files.sort(key=lambda file: file.low[first])
        group: list[DataFile] = []
        size = raw = 0
        for file in files:
            small = file.size < ENOUGH * target_bytes
            more = _raw(storage, file) if small else 0
            if not small or size + file.size > target_bytes or raw + more > MOST_BYTES:
                if len(group) > 1:
                    yield group
                group, size, raw = [], 0, 0
            if small:
                group.append(file)
                size += file.size
                raw += more
        if len(group) > 1:
            yield group


def _raw(storage: Storage, file: DataFile) -> int:
    with storage.filesystem.open_input_file(file.path) as stream:
        metadata = pq.read_metadata(stream)
    return sum(
        metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)
    )


def joined(
    storage: Storage, layout: Layout, snapshot: TableSnapshot, group: list[DataFile]
) -> list[DataFile]:
    """Writes the rows of those files as one, sorted."""
    rows = pa.concat_tables(reading.file_rows(storage, snapshot, file) for file in group)
    one = replace(layout, file_bytes=rows.nbytes + 1, file_rows=rows.num_rows + 1)
    return write_table(storage, one, rows)
