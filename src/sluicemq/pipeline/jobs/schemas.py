"""Columns of the lake's tables (docs/pipeline/tables.md).

New columns are added at the end; no column ever changes its name, type or meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from sluicemq.pipeline.schema import EVENTS, TEXTS, TIME

COUNTS: Final = pa.map_(pa.int32(), pa.int64())
"""Type of a histogram: bucket -> count."""
BY_SUBSCRIPTION: Final = pa.map_(pa.int64(), pa.int64())
REASONS: Final = pa.map_(pa.string(), pa.int64())

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


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


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
        _required("dead_letter_reasons", REASONS),
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
