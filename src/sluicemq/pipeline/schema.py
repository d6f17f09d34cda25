"""Columns of the source (docs/pipeline/source.md) and of a lake's tables, as Arrow types.

One row of the source is one event of a destination or of a message. New columns are added at the
end of their group or table; no column ever changes its name, type or meaning.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
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


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


PLAIN: Final = pa.schema(
    [
        _required("sequence", pa.int64()),
        _required("record_index", pa.int32()),
        _required("time", TIME),
        _required("event", pa.string()),
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


# --- tables of a lake (docs/pipeline/tables.md) ---------------------------------------------------

COUNTS: Final = pa.map_(pa.int32(), pa.int64())
"""Type of a histogram: bucket -> count."""
BY_SUBSCRIPTION: Final = pa.map_(pa.int64(), pa.int64())

OUTCOMES: Final = (
    "acknowledged",
    "expired",
    "dead-lettered",
    "dropped",
    "purged",
    "moved",
    "discarded",
)
"""Events that end a delivery. If a message of a topic has several, the first of these is its
outcome."""


def column(event: str) -> str:
    """Return the column of an event's time or count."""
    return event.replace("-", "_")


def sql_list(words: Iterable[str]) -> str:
    """Return names as the list of an SQL IN (...)."""
    return ", ".join(f"'{word}'" for word in words)


BRONZE: Final = pa.schema(
    [_required("broker", pa.string()), *EVENTS, _required("day", pa.date32())]
)

_OF_EVENTS: Final = (
    *("destination", "destination_kind", "published", "protocol", "priority", "durability"),
    *("expiration", "deliver_at", "size", "body_kind", "message_id", "correlation_id", "reply_to"),
    *("type", "properties", "property_types", "body"),
)
"""Columns of SILVER that events have, too."""
SILVER_KEYS: Final = ("broker", "message_sequence")
SILVER: Final = pa.schema(
    [
        _required("broker", pa.string()),
        _required("message_sequence", pa.int64()),
        *map(EVENTS.field, _OF_EVENTS),
        pa.field("text", pa.string()),
        pa.field("json", pa.string()),
        pa.field("map", TEXTS),
        pa.field("map_types", TEXTS),
        pa.field("values", pa.list_(pa.string())),
        pa.field("value_types", pa.list_(pa.string())),
        pa.field("decode_error", pa.string()),
        pa.field("first_delivered", TIME),
        pa.field("last_delivered", TIME),
        _required("deliveries", pa.int64()),
        _required("redeliveries", pa.int64()),
        pa.field("attempts", pa.int32()),
        *(pa.field(column(outcome), TIME) for outcome in OUTCOMES),
        pa.field("requeued", TIME),
        _required("completed_deliveries", pa.int64()),
        _required("requeues", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("moved_to_sequence", pa.int64()),
        pa.field("original_destination", pa.string()),
        pa.field("deliveries_by_subscription", BY_SUBSCRIPTION),
        pa.field("completed_by_subscription", BY_SUBSCRIPTION),
        _required("events", pa.int64()),
        _required("last_event", TIME),
        pa.field("outcome", pa.string()),
        _required("state", pa.string()),
        pa.field("queueing_ms", pa.float64()),
        pa.field("end_to_end_ms", pa.float64()),
        pa.field("client_timestamp", TIME),
    ]
)

GOLD_KEYS: Final = ("broker", "minute", "destination", "destination_kind", "protocol")
COUNTED: Final = ("delivered", "redelivered", *OUTCOMES, "requeued")
"""Events that gold counts, each in the column of its name."""
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES: Final = ("queueing", "end_to_end")
GOLD: Final = pa.schema(
    [
        _required("broker", pa.string()),
        _required("minute", TIME),
        _required("day", pa.date32()),
        _required("destination", pa.string()),
        _required("destination_kind", pa.string()),
        _required("protocol", pa.string()),
        _required("published", pa.int64()),
        _required("published_bytes", pa.int64()),
        *(_required(column(event), pa.int64()) for event in COUNTED),
        _required("publish_rate", pa.float64()),
        _required("published_bytes_rate", pa.float64()),
        _required("acknowledge_rate", pa.float64()),
        *(
            field
            for name in LATENCIES
            for field in (
                _required(name, COUNTS),
                *(pa.field(f"{name}_{percentile}", pa.float64()) for percentile in PERCENTILES),
                pa.field(f"{name}_max", pa.float64()),
            )
        ),
        pa.field("backlog", pa.int64()),
        pa.field("unacked", pa.int64()),
        pa.field("consumers", pa.int64()),
        pa.field("depth_time", TIME),
        _required("dead_letter_reasons", pa.map_(pa.string(), pa.int64())),
        _required("late_events", pa.int64()),
    ]
)

ANOMALIES: Final = pa.schema(
    [
        _required("id", pa.string()),
        _required("kind", pa.string()),
        _required("severity", pa.string()),
        _required("broker", pa.string()),
        _required("destination", pa.string()),
        _required("destination_kind", pa.string()),
        _required("minute", TIME),
        pa.field("message_sequence", pa.int64()),
        _required("detected", TIME),
        _required("evidence", pa.string()),
        _required("details", pa.string()),
    ]
)


# --- texts ----------------------------------------------------------------------------------------


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
