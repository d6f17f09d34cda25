"""Columns of the lake's tables.

New columns are added at the end; no column ever changes its name, type or meaning. `broker` is the
name in `--broker` of the broker whose journal was read: several brokers may share a lake.

BRONZE: all events, unchanged.

    broker ...           see above; then the columns of pipeline/schema.py
    day                  UTC date of `time`; the table is partitioned by broker and day

SILVER: one row per message. Key: (broker, message_sequence). Partitioned by broker.

    broker, message_sequence  sequence number of the message in that broker's journal
    destination, destination_kind   where it was published
    published            publishing time; null if the journal no longer had the message
    protocol             publisher's protocol; null as with `published`
    priority, durability, expiration, deliver_at, size, body_kind     as in pipeline/schema.py
    message_id, correlation_id, reply_to, type, properties, property_types
    body                 the body as sent; null where `text` or `json` is the same bytes
    text                 of text bodies, and of bytes that are UTF-8 by protocols that do not
                         distinguish (PHPMQ, msglite)
    json                 of JSON bodies as sent; of map and stream bodies as JSON
    map, map_types       entries of a map body as text, and the Java type of each: "boolean",
                         "byte", "short", "character", "integer", "long", "float", "double", "text",
                         "bytes" (in base64), "null", "map" (as JSON)
    values, value_types  of a stream body, the same
    decode_error         reason why the body does not match its kind; null = it does
    first_delivered, last_delivered     first and last time it was delivered to a consumer
    deliveries           number of deliveries, and number of redeliveries among them
    redeliveries
    attempts             largest number of attempts in the events of a delivery
    acknowledged ... discarded   time at which a delivery ended so; for a topic, where each
                         subscription has its own delivery, the last such time
    requeued             last time it moved to the tail of its queue
    completed_deliveries number of deliveries that ended, for any cause
    requeues             number of times it was requeued
    reason               reason why it was dead-lettered
    moved_to_sequence    sequence number of the dead letter, or of the message it was moved to
    original_destination of a dead letter: the destination that could not deliver it
    deliveries_by_subscription, completed_by_subscription    for a message of a topic: deliveries,
                         and ended deliveries, per subscription
    events               number of events of this row
    last_event           time of the latest
    outcome              event that ended it ("acknowledged" ... "discarded"); null = none yet
    state                "ready", "unacked" (delivered and not ended, possibly ready for
                         redelivery), or the outcome
    queueing_ms          published to first delivered
    end_to_end_ms        published to acknowledged
    client_timestamp     as in pipeline/schema.py

GOLD: one row per minute, destination and protocol. Key: (broker, minute, destination,
destination_kind, protocol). Counts are of events in that minute; they add up.

    broker, minute, day  start of the minute, and its UTC date; partitioned by broker and day
    destination, destination_kind
    protocol             of the messages; "unknown" if the journal did not hold them any more;
                         "any" in the rows of depth events, which have no protocol
    published, published_bytes   number of published messages, and bytes of their bodies
    delivered            first deliveries
    redelivered ... requeued     see pipeline/schema.py
    publish_rate, published_bytes_rate, acknowledge_rate    per second, the minute's average
    queueing             published to first delivered: histogram, bucket -> count
                         (pipeline/histogram.py)
    queueing_p50 ... queueing_p99    percentiles of it, ms, at most 2.5 % off; null without any
    queueing_max         the longest, ms, exact
    end_to_end ...       published to acknowledged, the same
    backlog, unacked, consumers    the latest depth event of the minute; null without one
    depth_time           time of that event
    dead_letter_reasons  reason -> dead letters
    late_events          events that came after the watermark (relative to the newest known event)
                         had passed the minute; the other columns include them

ANOMALIES: findings in gold and silver. Key: `id`.

    id                   the same for the same finding in every run
    kind                 "stuck-queue", "poison-message" or "latency-regression"
    severity             "warning" or "critical"
    broker, destination, destination_kind
    minute               start: stuck since; last delivery; the slow hour
    message_sequence     sequence number of a poison message
    detected             newest event known at detection
    evidence             a sentence with the figures
    details              the same as a JSON object
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
    [
        _required("broker", pa.string()),
        *EVENTS,
        _required("day", pa.date32()),
    ]
)

SILVER_KEYS: Final = ("broker", "message_sequence")
SILVER: Final = pa.schema(
    [
        _required("broker", pa.string()),
        _required("message_sequence", pa.int64()),
        pa.field("destination", pa.string()),
        pa.field("destination_kind", pa.string()),
        pa.field("published", TIME),
        pa.field("protocol", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("durability", pa.string()),
        pa.field("expiration", TIME),
        pa.field("deliver_at", TIME),
        pa.field("size", pa.int64()),
        pa.field("body_kind", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("correlation_id", pa.string()),
        pa.field("reply_to", pa.string()),
        pa.field("type", pa.string()),
        pa.field("properties", TEXTS),
        pa.field("property_types", TEXTS),
        pa.field("body", pa.binary()),
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
                *(pa.field(f"{name}_{each}", pa.float64()) for each in PERCENTILES),
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
