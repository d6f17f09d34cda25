"""Captures as a DataFrame of frames.

    files ──find──▶ chunks of notes ──by (file, connection), sorted──▶ decode ──▶ frames

The first step reads each file once, one task for each file. The second reads the payloads that its
notes tell of from the file itself, so that all nodes have to see the files under the same names.
No more than one connection is decoded at a time by a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.options import Options
from sluicemq.pipeline.decode.tasks import FOUND, decode_found, find

_TASKS_PER_CORE = 4
"""Connections differ in length: with more tasks than cores the load evens out."""


def files_of(paths: Iterable[str | Path]) -> list[str]:
    """Absolute names; a directory stands for the files in it whose names do not begin with a dot.
    Raises ConfigurationError for what is not there."""
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
    spark: SparkSession, paths: Sequence[str | Path], options: Options | None = None
) -> DataFrame:
    """The frames in these captures, and what is wrong with them: columns.FRAMES. Nothing is read
    before a row is asked for, and everything is read again for each action.

    Rows come in no order: sort by file, connection, time, direction and offset if that matters.
    Raises ConfigurationError for a file that is not there; all else that is wrong is a row.
    """
    options = options or Options()
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
