"""Decoding run of the command line: decodes captures, stores the rows and reports the result."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline.decode.frames import decode
from sluicemq.pipeline.decode.options import DecodeOptions

MOST_TROUBLES: Final = 100
"""Maximum number of errors in a summary."""

_ORDER: Final = ("file", "connection", "time", "direction", "offset")


class Count(NamedTuple):
    """Frames of one kind: their number, bytes, and the number with an error.

    `protocol` and `frame` are None if they were not recognised or decoded."""

    protocol: str | None
    frame: str | None
    frames: int
    bytes: int
    errors: int


class Trouble(NamedTuple):
    """Error and its position; see columns.py."""

    file: str
    stream: str | None
    direction: str | None
    offset: int | None
    error: str


class Summary(NamedTuple):
    """Result of a decoding run.

    connections  number of connections with payload
    counts       by protocol and kind of frame
    troubles     the first MOST_TROUBLES errors
    errors       number of all errors
    """

    connections: int
    counts: list[Count]
    troubles: list[Trouble]
    errors: int

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report."""
        frames = sum(each.frames for each in self.counts if each.frame is not None)
        yield f"{frames:,} frames in {self.connections:,} connections, {self.errors:,} errors"
        if self.counts:
            yield ""
            yield f"{'protocol':<18}{'frame':<28}{'number':>14}{'bytes':>18}{'errors':>10}"
        for each in self.counts:
            protocol = each.protocol or "not recognised"
            frame = each.frame or "not decoded"
            yield (
                f"{protocol:<18}{frame:<28}{each.frames:>14,}{each.bytes:>18,}{each.errors:>10,}"
            )
        if self.troubles:
            yield ""
        for trouble in self.troubles:
            where = [trouble.file]
            if trouble.stream is not None and trouble.stream != trouble.file:
                where.append(f"{trouble.stream}, {trouble.direction}")
            if trouble.offset is not None:
                where.append(f"byte {trouble.offset:,}")
            yield f"{', '.join(where)}: {trouble.error}"
        if self.errors > len(self.troubles):
            yield f"and {self.errors - len(self.troubles):,} more"


def run(
    spark: SparkSession,
    paths: Sequence[str | Path],
    options: DecodeOptions | None = None,
    *,
    output: str | Path | None = None,
    lines: TextIO | None = None,
) -> Summary:
    """Decode captures once; add the rows to Parquet files, write them as lines of JSON, or neither.

    output  directory of Parquet files, created if missing; rows are added to it
    lines   receives one JSON object for each row, by file, connection, time and offset

    Raises ConfigurationError.
    """
    frames = decode(spark, paths, options).persist(StorageLevel.DISK_ONLY)
    try:
        if output is not None:
            frames.write.mode("append").parquet(str(output))
        if lines is not None:
            for row in frames.orderBy(*_ORDER).mapInArrow(_json, "line string").toLocalIterator():
                lines.write(row[0])
                lines.write("\n")
        return _summary(frames)
    finally:
        frames.unpersist()


def _summary(frames: DataFrame) -> Summary:
    counts = (
        frames.groupBy("protocol", "frame")
        .agg(f.count("*"), f.coalesce(f.sum("length"), f.lit(0)), f.count("error"))
        .orderBy(f.asc_nulls_last("protocol"), f.asc_nulls_last("frame"))
        .collect()
    )
    # an error in a file has no connection and is not a frame
    connections = frames.where("connection is not null").select("file", "connection").distinct()
    troubles = (
        frames.where("error is not null")
        .orderBy("file", "connection", "direction", "offset")
        .select(*Trouble._fields)
        .limit(MOST_TROUBLES)
        .collect()
    )
    return Summary(
        connections.count(),
        [Count(*row) for row in counts],
        [Trouble(*row) for row in troubles],
        sum(row[4] for row in counts),
    )


def _json(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = [json.dumps(_printable(row), ensure_ascii=False) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(made, pa.string())], ["line"])


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without nulls; a body that is not UTF-8 becomes `body_base64`."""
    printable = {name: value for name, value in row.items() if value is not None}
    if "time" in printable:
        printable["time"] = printable["time"].isoformat()
    if "properties" in printable:
        printable["properties"] = dict(printable["properties"])
    body = printable.pop("body", None)
    if body is not None:
        try:
            printable["body"] = body.decode()
        except UnicodeDecodeError:
            printable["body_base64"] = b64encode(body).decode()
    return printable
