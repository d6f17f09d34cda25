"""Columns of decoded traffic (docs/pipeline/decode.md), and the collection of its rows.

One row is one frame or one error.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

FRAMES: Final = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("connection", pa.int64()),
        pa.field("stream", pa.string()),
        pa.field("direction", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("offset", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("frame", pa.string()),
        pa.field("packet_type", pa.int32()),
        pa.field("destination", pa.string()),
        pa.field("destination_kind", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("body_kind", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("error", pa.string()),
    ]
)
"""All columns in order."""

_MAX_ROWS: Final = 4096
"""Rows with which a batch is due."""
_MAX_BYTES: Final = 16 << 20
"""Bytes of bodies with which a batch is due."""

Row = dict[str, Any]
"""Columns by name; absent ones are null, and names that are not in FRAMES are ignored."""
Pairs = list[tuple[str, str | None]]


class RowBuffer:
    """Rows of a file that do not form a batch yet."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._rows: list[Row] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """True if a batch is due."""
        return len(self._rows) >= _MAX_ROWS or self._bytes >= _MAX_BYTES

    def add(self, row: Row) -> None:
        """Add a row, and set its column `file`."""
        row["file"] = self.file
        self._rows.append(row)
        self._bytes += len(row.get("body") or b"")

    def take(self) -> pa.RecordBatch:
        """Return all added rows, possibly none, and clear them."""
        rows, self._rows, self._bytes = self._rows, [], 0
        return pa.RecordBatch.from_pylist(rows, FRAMES)
