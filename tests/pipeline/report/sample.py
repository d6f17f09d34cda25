"""Rows of a gold table for the tests of the report: written by hand, or many at once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluicemq.pipeline import histogram
from sluicemq.pipeline.schema import ANOMALIES, GOLD, SILVER
from tests.pipeline.latencies import bucket_of

START: Final = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
EXAMPLES: Final = pa.schema(
    [
        *map(
            SILVER.field,
            ("broker", "message_sequence", "destination", "dead_lettered", "reason", "deliveries"),
        ),
        pa.field("size", pa.int64()),
        pa.field("beginning", pa.string()),
    ]
)
_ZERO: Final = {pa.int64(): 0, pa.float64(): 0.0, pa.string(): ""}


def table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    """Return the rows as a table. A missing value is null, or empty if it must not be null."""
    full = []
    for row in rows:
        complete = {}
        for field in schema:
            empty = None if field.nullable else _ZERO.get(field.type, {})
            complete[field.name] = row.get(field.name, empty)
        full.append(complete)
    return pa.Table.from_pylist(full, schema=schema)


def gold(*rows: dict[str, Any]) -> pa.Table:
    return table(GOLD, list(rows))


def row(minute: int = 0, destination: str = "orders", **values: Any) -> dict[str, Any]:
    """`minute` counts from START; `end_to_end` may be given as latencies in ms."""
    time = START + timedelta(minutes=minute)
    fields = {
        "broker": "b1",
        "destination_kind": "queue",
        "protocol": "phpmq",
        **values,
        "minute": time,
        "day": time.date(),
        "destination": destination,
    }
    if isinstance(fields.get("end_to_end"), list):
        fields["end_to_end"] = list(Counter(map(bucket_of, fields["end_to_end"])).items())
    if isinstance(fields.get("dead_letter_reasons"), dict):
        fields["dead_letter_reasons"] = list(fields["dead_letter_reasons"].items())
    return fields


def anomalies(*rows: dict[str, Any]) -> pa.Table:
    return table(ANOMALIES, list(rows))


def anomaly(**values: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "kind": "stuck-queue",
        "severity": "critical",
        "broker": "b1",
        "destination": "orders",
        "destination_kind": "queue",
        "minute": START,
        "detected": START + timedelta(hours=1),
        "evidence": "nothing acknowledged for 60 minutes",
        "details": '{"backlog": 7}',
        **values,
    }


def dead_letters(*rows: dict[str, Any]) -> pa.Table:
    return table(SILVER, list(rows))


def dead_letter(message: int, **values: Any) -> dict[str, Any]:
    return {
        "broker": "b1",
        "message_sequence": message,
        "destination": "orders",
        "dead_lettered": START,
        "reason": "poison",
        "state": "dead-lettered",
        "last_event": START,
        **values,
    }


def examples(*rows: dict[str, Any]) -> pa.Table:
    """Dead letters as the report of a lake reads them."""
    return table(EXAMPLES, list(rows))


def busy(minutes: int, queues: int, step: int = 1, seed: int = 7) -> pa.Table:
    """A row per queue and `step` minutes: days and nights, slow hours, queues of unlike size."""
    random = np.random.default_rng(seed)
    starts = np.arange(0, minutes, step)
    share = 1 / np.arange(1, queues + 1) ** 1.1
    wave = 0.35 + 0.65 * np.clip(np.sin((starts / 60 + 2) / 24 * 2 * np.pi), 0, 1) ** 0.8
    rates = 4000 * step * share[None, :] * wave[:, None]
    messages = random.poisson(rates)
    rows = messages.size
    minute = np.repeat(starts, queues)
    queue = np.tile(np.arange(queues), len(starts))
    flat = messages.ravel()
    slow = (minute > minutes * 0.55) & (minute < minutes * 0.62) & (queue % 3 == 0)
    middle = np.where(slow, 900.0, 6.0 + 5 * (queue % 4))
    factors = np.exp(np.linspace(-2, 3.2, 27))
    spread = np.exp(-(np.linspace(-2, 3.2, 27) ** 2) / 1.3)
    spread /= spread.sum()
    buckets = np.ceil(np.log(middle[:, None] * factors / histogram.FLOOR) / np.log(histogram.RATIO))
    counts = random.poisson(flat[:, None] * spread)
    keep = counts > 0
    offsets = np.concatenate(([0], np.cumsum(keep.sum(axis=1)))).astype(np.int32)
    dead_letters = np.where((queue == 3) & (flat > 40), flat // 40, 0)
    none = pa.array(np.zeros(rows, np.int64))
    protocols = np.array(["phpmq", "jmq", "vibemq", "msglite", "unknown"])
    waiting = np.where(queue == 3, 40 * (minute - minutes // 3).clip(0), flat // 20)
    values: dict[str, Any] = {
        "broker": pa.array(["b1"] * rows),
        "minute": pa.array(
            np.datetime64(int(START.timestamp()), "s") + minute * np.timedelta64(60, "s")
        ).cast(GOLD.field("minute").type),
        "destination": pa.array([f"queue.{number:05d}" for number in queue]),
        "destination_kind": pa.array(np.where(queue % 5 == 4, "topic", "queue")),
        "protocol": pa.array(protocols[queue % 4]),
        "published": pa.array(flat),
        "published_bytes": pa.array(flat * 812),
        "acknowledged": pa.array(counts.sum(axis=1)),
        "redelivered": pa.array(flat // 150),
        "dead_lettered": pa.array(dead_letters),
        "expired": pa.array(flat // 900),
        "end_to_end": pa.MapArray.from_arrays(
            offsets, pa.array(buckets[keep].astype(np.int32)), pa.array(counts[keep])
        ),
        "backlog": pa.array(waiting),
        "unacked": pa.array(flat // 60),
        "consumers": pa.array(queue % 7),
        "dead_letter_reasons": pa.MapArray.from_arrays(
            np.concatenate(([0], np.cumsum(dead_letters > 0))).astype(np.int32),
            pa.array(["too many deliveries"] * int((dead_letters > 0).sum()), pa.string()),
            pa.array(dead_letters[dead_letters > 0]),
        ),
    }
    values["day"] = values["minute"].cast(pa.date32())
    columns = []
    for field in GOLD:
        if field.name in values:
            columns.append(values[field.name])
        elif pa.types.is_map(field.type):
            columns.append(
                pa.MapArray.from_arrays(
                    np.zeros(rows + 1, np.int32),
                    pa.array([], field.type.key_type),
                    pa.array([], field.type.item_type),
                )
            )
        elif field.nullable:
            columns.append(pa.nulls(rows, field.type))
        else:
            columns.append(none.cast(field.type))
    return pa.Table.from_arrays(columns, schema=GOLD)
