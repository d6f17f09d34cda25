"""Decoding in this process, without Spark: the same two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from sluicemq.pipeline.decode.columns import FRAMES
from sluicemq.pipeline.decode.options import DecodeOptions
from sluicemq.pipeline.decode.tasks import FOUND, decode_found, find

Row = dict[str, Any]


def decoded(path: Path, options: DecodeOptions | None = None) -> list[Row]:
    """All rows of one file, by connection, direction and offset."""
    options = options or DecodeOptions()
    found = pa.Table.from_batches(list(find([str(path)], options)), FOUND)
    found = found.sort_by([(name, "ascending") for name in ("file", "connection", "number")])
    batches = list(decode_found(found.to_batches(max_chunksize=7), options))
    rows: list[Row] = pa.Table.from_batches(batches, FRAMES).to_pylist()
    return sorted(
        rows, key=lambda row: (row["connection"] or 0, row["direction"] or "", row["offset"] or 0)
    )


def decoded_bytes(directory: Path, data: bytes, options: DecodeOptions | None = None) -> list[Row]:
    path = directory / "capture"
    path.write_bytes(data)
    return decoded(path, options)


def of(rows: list[Row], direction: str) -> list[Row]:
    return [row for row in rows if row["direction"] == direction]
