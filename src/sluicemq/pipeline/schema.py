"""Columns of the source, as Arrow and Spark types (docs/pipeline/source.md).

One row is one event of a destination or of a message. New columns are added at the end of their
group; no column ever changes its name, type or meaning.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import pyarrow as pa

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME: Final = pa.timestamp("us", tz="UTC")
TEXTS: Final = pa.map_(pa.string(), pa.string())


class Event(StrEnum):
    """Type of an event. From ACKNOWLEDGED to DISCARDED, a delivery ended (journal.format.Cause)."""

    PUBLISHED = "published"
    RELOCATED = "relocated"
    DELIVERED = "delivered"
    REDELIVERED = "redelivered"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead-lettered"
    DROPPED = "dropped"
    PURGED = "purged"
    MOVED = "moved"
    DISCARDED = "discarded"
    REQUEUED = "requeued"
    DEPTH = "depth"


PLAIN: Final = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("record_index", pa.int32(), nullable=False),
        pa.field("time", TIME, nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("destination", pa.string()),
        pa.field("destination_kind", pa.string()),
        pa.field("message_sequence", pa.int64()),
        pa.field("published", TIME),
        pa.field("protocol", pa.string()),
        pa.field("subscription", pa.int64()),
        pa.field("attempts", pa.int32()),
        pa.field("priority", pa.int32()),
        pa.field("durability", pa.string()),
        pa.field("expiration", TIME),
        pa.field("size", pa.int64()),
        pa.field("body_kind", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("ready", pa.int64()),
        pa.field("unacked", pa.int64()),
        pa.field("consumers", pa.int64()),
    ]
)
"""Columns of every read."""

HEADERS: Final = pa.schema(
    [
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("type", pa.string()),
        pa.field("deliver_at", TIME),
        pa.field("properties", TEXTS),
        pa.field("property_types", TEXTS),
        pa.field("client_timestamp", TIME),
    ]
)
"""Columns that need the rarely set fields of each message."""

EVENTS: Final = pa.schema([*PLAIN, *HEADERS])
"""All columns in order, as in bronze tables."""

KAFKA_HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
LOG_APPEND_TIME: Final = 1
"""Kafka's `timestampType` of a time that the broker has set."""
KAFKA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIME),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", KAFKA_HEADERS),
    ]
)
"""Columns of a read with `shape=kafka`."""


def quoted(name: str) -> str:
    """Return a name as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def escape_invalid(text: str) -> str:
    """Return text that every table format can store: a byte that is not UTF-8 becomes `\\xNN`."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def property_text(value: object) -> str | None:
    """Return a property's value as text; `property_types` holds its type."""
    if value is None or type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        return base64.b64encode(value).decode()
    return str(value)
