"""DataFrame of the frames in captures.

    files ──find──▶ chunks of notes ──by (file, connection), sorted──▶ decode ──▶ frames

The first step reads each file once, with one task per file. The second reads the payloads from the
file itself, so all nodes must have the files under the same names. A task decodes one connection
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.tasks import FOUND, decode_found, find

_TASKS_PER_CORE = 4
"""Connections differ in length: more tasks than cores even out the load."""


def files_of(paths: Iterable[str | Path]) -> list[str]:
    """Return absolute file names; a directory stands for its files except hidden ones.

    Raises ConfigurationError for a missing file."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.is_file())
            found += [str(each.absolute()) for each in inside if not each.name.startswith(".")]
        elif path.is_file():
            found.append(str(path.absolute()))
        else:
            raise ConfigurationError(f"{path}: there is no such file")
    if not found:
        raise ConfigurationError("there is no file to decode; name captures or directories of them")
    return list(dict.fromkeys(found))


def decode(
    spark: SparkSession, paths: Sequence[str | Path], options: DecodeOptions | None = None
) -> DataFrame:
    """Return the frames and errors in these captures (columns.FRAMES).

    The DataFrame is lazy, and each action reads the files again. Rows are not ordered: sort by
    file, connection, time, direction and offset if needed. Raises ConfigurationError for a missing
    file; other errors become rows.
    """
    options = options or DecodeOptions()
    files = files_of(paths)
    partitions = options.partitions or _TASKS_PER_CORE * spark.sparkContext.defaultParallelism

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from find([files[number] for number in batch.column(0).to_pylist()], options)

    def frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from decode_found(batches, options)

    return (
        spark.range(0, len(files), 1, len(files))
        .mapInArrow(found, from_arrow_schema(FOUND))
        .repartition(partitions, "file", "connection")
        .sortWithinPartitions("file", "connection", "number")
        .mapInArrow(frames, from_arrow_schema(FRAMES))
    )
