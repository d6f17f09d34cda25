"""Events as the source returns them, and tables as sorted rows for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.delta import LakeTable
from sluicemq.pipeline.jobs.gold import complete, sums
from sluicemq.pipeline.schema import EVENTS, Event

START = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
"""A Monday."""

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def gold(events: DataFrame, broker: str, **options: Any) -> DataFrame:
    """Return events as rows of GOLD."""
    return complete(sums(events, broker), **options)


class Journal:
    """Events with sequence numbers like in a journal: each is a separate record."""

    def __init__(self, first: int = 1) -> None:
        self._numbers = count(first)
        self.rows: list[Row] = []
        self._messages: dict[int, Row] = {}

    def message(
        self,
        seconds: float,
        body: bytes = b"",
        kind: str = "bytes",
        *,
        destination: str = "orders",
        destination_kind: str = "queue",
        protocol: str = "phpmq",
        properties: dict[str, str] | None = None,
        **fields: Any,
    ) -> int:
        row = self._row(seconds, Event.PUBLISHED, destination, destination_kind)
        row |= {"message_sequence": row["sequence"], "published": row["time"], "protocol": protocol}
        row |= {"priority": 4, "durability": "sync", "size": len(body), "body_kind": kind}
        row |= {"body": body, "properties": list((properties or {}).items())} | fields
        self._messages[row["sequence"]] = row
        return row["sequence"]

    def event(self, seconds: float, event: Event, message: int, **fields: Any) -> int:
        """Add an event of a message; of an unknown message it has the number only."""
        original = self._messages.get(message)
        row = self._row(seconds, event, "orders", "queue")
        row["message_sequence"] = message
        if original:
            for name in ("destination", "destination_kind", "published", "protocol"):
                row[name] = original[name]
        row |= fields
        return row["sequence"]

    def dead_letter(self, seconds: float, message: int, reason: str, attempts: int = 1) -> int:
        """Add a dead letter and its event, in the order; return the number of the former."""
        original = self._messages[message]
        history = {
            "deadLetterReason": reason,
            "originalQueue": original["destination"],
            "deliveryAttempts": str(attempts),
        }
        copy = self.message(
            seconds,
            original["body"],
            original["body_kind"],
            destination=original["destination"] + ".dlq",
            protocol=original["protocol"],
            properties=history,
        )
        self.event(seconds, Event.DEAD_LETTERED, message, properties=list(history.items()))
        return copy

    def depth(self, seconds: float, waiting: int, consumers: int, **fields: Any) -> None:
        row = self._row(seconds, Event.DEPTH, "orders", "queue")
        row |= {"ready": waiting, "unacked": 0, "consumers": consumers} | fields

    def _row(self, seconds: float, event: Event, destination: str, kind: str) -> Row:
        row = dict.fromkeys(EVENTS.names)
        row |= {"sequence": next(self._numbers), "record_index": 0, "time": at(seconds)}
        row |= {"event": event, "destination": destination, "destination_kind": kind}
        self.rows.append(row)
        return row


def frame(spark: SparkSession, rows: Sequence[Row], schema: pa.Schema = EVENTS) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema))


def rows(frame: DataFrame, schema: pa.Schema, keys: Iterable[str]) -> list[Row]:
    """Return all rows, sorted by their keys. Fail if the columns are not those of `schema`."""
    return sorted_rows(frame.toArrow(), schema, keys)


def sorted_rows(table: pa.Table, schema: pa.Schema, keys: Iterable[str]) -> list[Row]:
    """Return the sorted rows of an Arrow table."""
    assert table.schema.names == schema.names
    table = table.cast(schema)
    table_rows = table.to_pylist()
    for name in (field.name for field in table.schema if pa.types.is_map(field.type)):
        for row in table_rows:  # maps come as lists of pairs, in no certain order
            row[name] = None if row[name] is None else dict(row[name])
    return sorted(table_rows, key=lambda row: [str(row[key]) for key in keys])


def merged(
    parts: Iterable[DataFrame],
    table: LakeTable,
    schema: pa.Schema,
    combined: Mapping[str, str],
) -> list[Row]:
    """Return the rows of a table into which the parts were merged one after the other."""
    for part in parts:
        table.merge(part, combined)
        spark = part.sparkSession
    return rows(table.read(spark), schema, table.keys)
