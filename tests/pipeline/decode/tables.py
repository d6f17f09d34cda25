"""Decoding in this process, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from sluicemq.pipeline.decode import FRAMES, DecodeOptions
from sluicemq.pipeline.decode.streams import decode_file

Row = dict[str, Any]


def decoded(path: Path, options: DecodeOptions | None = None) -> list[Row]:
    """Return all rows of a file, ordered by connection, direction and offset."""
    batches = list(decode_file(str(path), options or DecodeOptions()))
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
