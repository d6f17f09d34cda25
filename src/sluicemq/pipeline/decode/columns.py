"""Columns of decoded traffic. One row is one frame or one error.

file              file name of the capture
connection        number of the TCP connection in that file, from 0, in the order of their first
                  packets; null for an error in the file itself
stream            "client:port > server:port"; IPv6 addresses in brackets; the file name for a
                  log of raw bytes
direction         "to-server" or "to-client"
protocol          "phpmq", "msglite", "vibemq", "jmq"; "tls", "msglite-http", "jmq-portmapper" and
                  others that are reported and not decoded; null if it was not recognised
time              time of the packet that completed the frame; null in logs of raw bytes
offset            position of its first byte in this direction, from 0, or from the first byte
                  captured; for an error in the file, the position in the file
length            bytes of the frame or of what could not be decoded
frame             type of the frame in the protocol's terms; null if it was not decoded
packet_type       number of that type in the protocol; null if there is none
destination       name of the queue or topic, address of msglite; a byte that is not UTF-8 becomes
                  \\xNN. Several are separated by blanks
destination_kind  "queue" or "topic"
message_id        id of the message in the frame, or that it refers to; separated by blanks
correlation_id    as sent
request_id        id that a request and its response share
reply_to          destination for the reply
priority          0-9 (JMQ); VibeMQ's priority names are in `properties`
properties        properties and headers, as text; fields of a control frame
body_kind         "none", "text", "json", "bytes", "map", "stream", "object" (model.BodyKind); null
                  for frames without a message
body              as sent; decompressed if its sender had compressed it
error             error and its effect; null for valid frames
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
