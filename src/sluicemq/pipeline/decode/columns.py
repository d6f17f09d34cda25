"""The columns of decoded traffic: declared once. One row is one frame, or one thing that is wrong.

file              the capture it stands in
connection        number of the TCP connection in that file, from 0, in the order of their first
                  packets; null for what is wrong with the file itself
stream            "client:port > server:port"; IPv6 addresses in brackets; the file's name of a
                  log of raw bytes
direction         "to-server" or "to-client"
protocol          "phpmq", "msglite", "msglite-http", "vibemq", "jmq", "jmq-portmapper"; "tls" and
                  others that are reported and not decoded; null if it was not recognised
time              of the packet that completed the frame; null in logs of raw bytes
offset            of its first byte among the bytes of this direction, from 0, or from the first
                  byte captured; of what is wrong with the file, the byte of the file
length            bytes, of the frame or of what could not be decoded
frame             its kind in the protocol's own words; null of what is not decoded
packet_type       the number that stands for the kind in the protocol; null where there is none
destination       name of the queue or topic, address of msglite; bytes that are not UTF-8 are
                  spelled \\xNN. Several are separated by blanks
destination_kind  "queue" or "topic"
message_id        of the message that is carried, or meant; several are separated by blanks
correlation_id    as sent
request_id        what a request and its answer have in common
reply_to          destination for the answer
priority          0-9 (JMQ); the word that was sent (VibeMQ) stands in `properties`
properties        properties and headers, as text; what a control frame says
body_kind         "none", "text", "json", "bytes", "map", "stream", "object" (model.BodyKind); null
                  of frames that carry no message
body              as sent; inflated if its sender had compressed it
error             what is wrong, and what became of it; null of good frames
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")

FRAMES: Final = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("connection", pa.int64()),
        pa.field("stream", pa.string()),
        pa.field("direction", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("time", TIME),
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
"""All columns, in order."""

TO_SERVER: Final = "to-server"
TO_CLIENT: Final = "to-client"
