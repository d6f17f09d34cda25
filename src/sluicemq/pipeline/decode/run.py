"""Decoding on Spark: the DataFrame of the frames in captures, and the run of the command line.

One task decodes one file, so all nodes must have the files under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.decode.codecs import FRAMES, DecodeOptions
from sluicemq.pipeline.decode.streams import decode_file
from sluicemq.pipeline.session import cached

MAX_ERROR_TEXTS: Final = 100


def _files_in(paths: Iterable[str | Path]) -> list[str]:
    """Return absolute file names; a directory stands for its files except hidden ones.

    Raises ConfigurationError for a missing file."""
    entries: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ConfigurationError(f"{path}: there is no such file")
        entries += sorted(path.glob("[!.]*")) if path.is_dir() else [path]
    files = dict.fromkeys(str(path.absolute()) for path in entries if path.is_file())
    if not files:
        raise ConfigurationError("there is no file to decode; give captures or directories of them")
    return list(files)


def decode(
    spark: SparkSession, paths: Sequence[str | Path], options: DecodeOptions | None = None
) -> DataFrame:
    """Return the frames and errors in these captures (codecs.FRAMES).

    The DataFrame is lazy, and each action reads the files again. Rows are not ordered: sort by
    file, connection, time, direction and offset if needed. Raises ConfigurationError for a missing
    file; other errors become rows.
    """
    decode_options = options or DecodeOptions()
    files = _files_in(paths)

    def frames(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from decode_file(files[number], decode_options)

    return spark.range(0, len(files), 1, len(files)).mapInArrow(frames, from_arrow_schema(FRAMES))


class Summary(NamedTuple):
    """Result of a decoding run.

    connections  number of connections with payload
    counts       frames, bytes and errors by protocol and frame, which are None if not recognised
                 or not decoded
    error_texts     the first MAX_ERROR_TEXTS errors: file, stream, direction, offset and text
    errors       number of all errors
    """

    connections: int
    counts: list[Row]
    error_texts: list[str]
    errors: int

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report."""
        frames = sum(count.frames for count in self.counts if count.frame is not None)
        yield f"{frames:,} frames in {self.connections:,} connections, {self.errors:,} errors"
        if self.counts:
            yield ""
            yield f"{'protocol':<18}{'frame':<28}{'number':>14}{'bytes':>18}{'errors':>10}"
        for protocol, frame, number, size, errors in self.counts:
            label = f"{protocol or 'not recognised':<18}{frame or 'not decoded':<28}"
            yield f"{label}{number:>14,}{size:>18,}{errors:>10,}"
        if self.error_texts:
            yield ""
            yield from self.error_texts
        if self.errors > len(self.error_texts):
            yield f"and {self.errors - len(self.error_texts):,} more"


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
    with cached(decode(spark, paths, options), StorageLevel.DISK_ONLY) as frames:
        if output is not None:
            frames.write.mode("append").parquet(str(output))
        if lines is not None:
            ordered = frames.orderBy("file", "connection", "time", "direction", "offset")
            for row in _as_json(ordered).toLocalIterator():
                lines.write(f"{row[0]}\n")
        return _summary(frames)


def _summary(frames: DataFrame) -> Summary:
    counts = (
        frames.groupBy("protocol", "frame")
        .agg(
            f.count("*").alias("frames"),
            f.coalesce(f.sum("length"), f.lit(0)).alias("bytes"),
            f.count("error").alias("errors"),
        )
        .orderBy(f.asc_nulls_last("protocol"), f.asc_nulls_last("frame"))
        .collect()
    )
    # an error in a file has no connection and is not a frame
    connections = frames.where("connection is not null").select("file", "connection").distinct()
    # the stream of a log of raw bytes is the file
    side = f.when(f.col("stream") != f.col("file"), f.concat_ws(", ", "stream", "direction"))
    byte = f.when(f.col("offset").isNotNull(), f.format_string("byte %,d", "offset"))
    error_texts = (
        frames.where("error is not null")
        .orderBy("file", "connection", "direction", "offset")
        .select(f.concat_ws(": ", f.concat_ws(", ", "file", side, byte), "error"))
        .limit(MAX_ERROR_TEXTS)
        .collect()
    )
    return Summary(
        connections.count(),
        counts,
        [text for (text,) in error_texts],
        sum(count.errors for count in counts),
    )


def _as_json(frames: DataFrame) -> DataFrame:
    """Return rows as JSON without nulls; a body that is not UTF-8 becomes `body_base64`."""
    text = f.try_validate_utf8(f.col("body").cast("string"))
    return frames.select(
        f.to_json(
            f.struct(
                *(name for name in FRAMES.names if name not in ("body", "error")),
                text.alias("body"),
                f.when(text.isNull(), f.base64("body")).alias("body_base64"),
                "error",
            ),
            {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx", "timeZone": "UTC"},
        )
    )
