"""Rebuilding of silver and gold from bronze."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.jobs.batch import LakeWriter
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.run import MAX_ROWS, BatchProgress
from sluicemq.pipeline.schema import EVENTS

_MADE: Final = ("gold", "silver")


def expect_bronze(lake: Lake) -> None:
    """Check that bronze exists. Raises ConfigurationError if it does not."""
    if not lake.table("bronze").exists():
        raise ConfigurationError(f"there is no bronze in {lake.directory} to make anything from")


def rebuild(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[BatchProgress, int], None] = lambda step, total: None,
    max_rows: int = MAX_ROWS,
) -> int:
    """Drop silver and gold, and rebuild them from bronze for all brokers.

    Return the number of events. Nothing else may run on the lake. An interrupted rebuild has to be
    repeated; the lake's `rebuilding` file marks that. `on_progress` is called with the progress
    and the total number of events. Raises ConfigurationError if there is no bronze.
    """
    expect_bronze(lake)
    bronze = lake.table("bronze")
    lake.rebuilding.touch()
    for name in _MADE:
        shutil.rmtree(lake.path(name), ignore_errors=True)
    total = sum(file.rows for file in bronze.files())
    rows = 0
    for broker, journal in lake.brokers().items():
        writer = LakeWriter(Lake(lake.directory, lake.kind, broker), journal, _MADE)
        for first, last in _ranges(spark, lake, broker, max_rows):
            in_range = (pc.field("sequence") >= first) & (pc.field("sequence") <= last)
            events = bronze.frame(spark, filter=in_range).where(
                (f.col("broker") == broker) & f.col("sequence").between(first, last)
            )
            done = writer.write(events.select(*EVENTS.names))
            rows += done.rows
            on_progress(BatchProgress(rows, batch=done), total)
    lake.rebuilding.unlink()
    return rows


def _ranges(spark: SparkSession, lake: Lake, broker: str, max_rows: int) -> list[tuple[int, int]]:
    """Return the broker's records as ranges of sequence numbers with about `max_rows` events."""
    numbers = lake.table("bronze").frame(spark).where(f.col("broker") == broker)
    # numbers have gaps and a record may have many events, so count blocks and cut between them
    block = f.floor(f.col("sequence") / _BLOCK)
    counts = numbers.groupBy(block.alias("block")).count().orderBy("block").collect()
    ranges: list[tuple[int, int]] = []
    capacity = 0
    for row in counts:
        first, last = row["block"] * _BLOCK, (row["block"] + 1) * _BLOCK - 1
        if ranges and row["count"] <= capacity:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
            capacity = max_rows
        capacity -= row["count"]
    return ranges


_BLOCK: Final = 1024
