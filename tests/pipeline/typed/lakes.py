"""A lake in a directory, and batches of events for its typed tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.typed.definition import Definition, TypedTable
from sluicemq.pipeline.typed.rows import TableCounts
from sluicemq.pipeline.typed.tables import batch_summary, write_typed
from tests.pipeline.jobs.events import Journal, frame


class LakeDirectory(Lake):
    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.format("delta").load(self.table(name).location)

    def rows(self, spark: SparkSession, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of a table, sorted by their text."""
        rows = self.read(spark, name).selectExpr(*columns).collect()
        return sorted((tuple(row) for row in rows), key=str)


def batch(
    spark: SparkSession, bodies: Iterable[bytes], first: int, seconds: float = 0
) -> DataFrame:
    """Published messages with the sequence numbers from `first` on."""
    journal = Journal(first)
    for index, body in enumerate(bodies):
        journal.message(seconds + index, body, "json", message_id=f"m{index}")
    return frame(spark, journal.rows)


def write(
    spark: SparkSession, events: DataFrame, table: TypedTable, lake: LakeDirectory
) -> TableCounts | None:
    definition = Definition(tables=(table,))
    summary = batch_summary(events, definition)
    return write_typed(events, definition, lake, summary).get(table.name)
