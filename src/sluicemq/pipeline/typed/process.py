"""Typed tables of one micro-batch: rows, counts, gold.

gold/typed_counts    a row for each typed table and batch with messages of it: TableCounts
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluicemq.pipeline.delta import Tag
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.typed.definition import Definition
from sluicemq.pipeline.typed.gold import refresh_gold
from sluicemq.pipeline.typed.rows import TableCounts
from sluicemq.pipeline.typed.tables import application, overview, write_typed

COUNTS_TABLE: Final = "gold.typed_counts"
_SUMS: Final = (
    *("messages", "written", "dropped", "quarantined", "deleted", "unparsed"),
    "unknown_fields",
)
COUNTS_COLUMNS: Final = StructType(
    [
        StructField("broker", StringType()),
        StructField("table", StringType()),
        StructField("last_sequence", LongType()),
        StructField("time", TimestampType()),
        *(StructField(name, LongType()) for name in _SUMS),
        StructField("failed", MapType(StringType(), LongType())),
    ]
)
"""Columns of gold.typed_counts; `failed` is expectation -> messages that failed it."""


@dataclass(frozen=True)
class Processed:
    """Result of a batch: counts of each typed table, and gold tables that were refreshed."""

    counts: Mapping[str, TableCounts]
    refreshed: tuple[str, ...]


def process(
    spark: SparkSession, events: DataFrame, definition: Definition, lake: Lake
) -> Processed:
    """Write a micro-batch to the typed tables, record its counts, and refresh the gold tables.

    `events` has the columns rows.NEEDED and all events between its first and its last record;
    `spark` is its session. The definition has been checked (validation.check). A repeated batch
    changes nothing. Cache `events` if reading them is expensive.

    Raises ExpectationFailed, and ConfigurationError.
    """
    found = overview(events, definition)
    if found is None:
        return Processed({}, tuple(refresh_gold(spark, definition, lake)))
    counts = write_typed(spark, events, definition, lake, found)
    if counts:
        _record(spark, found.last, counts, lake)
    return Processed(counts, tuple(refresh_gold(spark, definition, lake)))


def _record(spark: SparkSession, last: int, counts: Mapping[str, TableCounts], lake: Lake) -> None:
    table = lake.table(COUNTS_TABLE, COUNTS_COLUMNS)
    now = datetime.now(UTC)
    rows = [
        (
            lake.broker,
            name,
            last,
            now,
            *(getattr(count, column) for column in _SUMS),
            dict(count.failed),
        )
        for name, count in counts.items()
    ]
    tag = Tag(application(lake.broker, table), last)
    table.append(spark.createDataFrame(rows, COUNTS_COLUMNS), tag)
