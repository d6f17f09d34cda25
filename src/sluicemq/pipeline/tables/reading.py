"""Reading a version of a table: by Arrow, and by Spark's own Parquet reader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from sluicemq.pipeline.tables.files import DataFile
from sluicemq.pipeline.tables.snapshot import TableSnapshot
from sluicemq.pipeline.tables.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARQUET: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True)
)
_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")
"""Spark takes paths for patterns."""


def _known(snapshot: TableSnapshot, file: DataFile, *, ranges: bool) -> pc.Expression:
    """What holds for every row of the file: Arrow takes partition values from it, and leaves files
    out by it without opening them."""
    parts = []
    for name, value in file.partition.items():
        if value is None:
            parts.append(pc.field(name).is_null())
        else:
            kind = snapshot.schema.field(name).type
            parts.append(pc.field(name) == pa.scalar(value, kind))
    if ranges:
        for name, low in file.low.items():
            high = file.high.get(name)
            place = snapshot.schema.get_field_index(name)
            if high is None or place < 0 or file.nulls.get(name, 1):
                continue
            kind = snapshot.schema.field(place).type
            parts.append(pc.field(name) >= pa.scalar(low, kind))
            parts.append(pc.field(name) <= pa.scalar(high, kind))
    whole = pc.scalar(True)
    for place, part in enumerate(parts):
        whole = part if place == 0 else whole & part
    return whole


def dataset(storage: Storage, snapshot: TableSnapshot) -> ds.FileSystemDataset:
    """The version as an Arrow dataset, for filters and columns of any kind."""
    fragments = [
        _PARQUET.make_fragment(
            file.path,
            filesystem=storage.filesystem,
            partition_expression=_known(snapshot, file, ranges=True),
        )
        for file in snapshot.files
    ]
    return ds.FileSystemDataset(fragments, snapshot.schema, _PARQUET, storage.filesystem)


def pruned(storage: Storage, snapshot: TableSnapshot, filter: pc.Expression) -> list[DataFile]:
    """The files that may hold a row for which `filter` is true."""
    left = {fragment.path for fragment in dataset(storage, snapshot).get_fragments(filter)}
    return [file for file in snapshot.files if file.path in left]


def file_rows(
    storage: Storage, snapshot: TableSnapshot, file: DataFile, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of one file in the columns of the version."""
    fragment = _PARQUET.make_fragment(
        file.path,
        filesystem=storage.filesystem,
        partition_expression=_known(snapshot, file, ranges=False),
    )
    return fragment.to_table(
        schema=snapshot.schema, columns=None if columns is None else list(columns)
    )


def frame(spark: SparkSession, storage: Storage, snapshot: TableSnapshot) -> DataFrame:
    """The version as a DataFrame.

    The schema is given rather than found, so that files from before a column was added, and tables
    without files, have all columns.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(snapshot.schema)
    names = [f"`{name}`" for name in snapshot.schema.names]
    ours: list[str] = []
    theirs: list[str] = []
    for file in snapshot.files:
        path = _PATTERN.sub(r"\\\1", storage.location(file.path))
        # Other writers of Delta tables put partition values into the directories only.
        hive = snapshot.partitions and f"{snapshot.partitions[0]}=" in file.path
        (theirs if hive else ours).append(path)
    frames = []
    if ours:
        frames.append(spark.read.schema(schema).parquet(*ours).select(*names))
    if theirs:
        reader = spark.read.schema(schema).option("basePath", storage.root)
        frames.append(reader.parquet(*theirs).select(*names))
    if not frames:
        return spark.createDataFrame([], schema)
    return frames[0] if len(frames) == 1 else frames[0].unionAll(frames[1])
