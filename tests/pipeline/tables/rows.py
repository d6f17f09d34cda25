"""Rows for tables, of every type that the source has."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa

from sluicemq.pipeline.schema import EVENTS

START = datetime(2026, 11, 21, 23, 59, 59, 123456, tzinfo=UTC)

COLUMNS = pa.schema(
    [
        *EVENTS,
        pa.field("values", pa.list_(pa.int64())),
        pa.field("day", pa.date32()),
        pa.field("destination_partition", pa.string()),
    ]
)

NAMES = ("orders/eu 100%", None, "007", "ünï=#?*{[]}", "__HIVE_DEFAULT_PARTITION__")
"""Destinations whose names break directories, paths or readers that guess."""


def events(first: int, count: int) -> pa.Table:
    """Messages `first`, `first` + 1, …: some columns always set, some sometimes, some never."""
    rows = []
    for number in range(first, first + count):
        rows.append(
            {
                "sequence": number,
                "record_index": 0,
                "time": START.replace(microsecond=number % 1_000_000),
                "event": "published",
                "destination": f"queue {number % 3}",
                "message_sequence": number,
                "size": number % 7,
                "body": bytes([number % 256]) * (number % 7) if number % 5 else None,
                "properties": [("key", f"{number}"), ("nothing", None)] if number % 4 else None,
                "values": [number, None] if number % 3 else None,
                "day": date(2026, 11, 21 + number % 2),
                "destination_partition": NAMES[number % len(NAMES)],
            }
        )
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def sorted_rows(rows: pa.Table) -> list[dict[str, object]]:
    """For comparisons: in order, as Python values."""
    names = sorted(rows.column_names)
    return rows.select(names).sort_by("sequence").to_pylist()
