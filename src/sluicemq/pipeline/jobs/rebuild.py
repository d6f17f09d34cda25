"""Rebuilding of silver and gold from bronze."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import HadoopFiles
from sluicemq.pipeline.jobs.batch import LakeWriter
from sluicemq.pipeline.jobs.lake import Lake, journals
from sluicemq.pipeline.jobs.run import MAX_ROWS, BatchProgress
from sluicemq.pipeline.schema import EVENTS

_MADE: Final = ("gold", "silver")
_BLOCK: Final = 1024


def rebuild(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[BatchProgress, int], None] = lambda step, total: None,
    max_rows: int = MAX_ROWS,
) -> int:
    """Remove silver and gold, and make them from bronze for all brokers.

    Return the number of events. Nothing else may run on the lake. An interrupted rebuild has to be
    repeated; until then `run` refuses tables that lack what bronze has. `on_progress` is called
    with the progress and the total number of events. Raises ConfigurationError if there is no
    bronze.
    """
    if not lake.bronze.exists(spark):
        raise ConfigurationError(f"there is no bronze in {lake} to make anything from")
    bronze = lake.bronze.read(spark)
    for name in _MADE:
        HadoopFiles(spark, lake.location).remove(lake.layer(name).location)
    progress = lake.bronze.progress(spark)
    total = bronze.count()
    rows = 0
    for broker, journal in journals(progress).items():
        place = Lake(lake.location, broker, lake.catalog)
        end = progress[place.application(journal)]
        writer = LakeWriter(spark, place, journal, _MADE)
        for first, last in _ranges(spark, place, max_rows, end):
            events = bronze.where(
                (f.col("broker") == broker) & f.col("sequence").between(first, last)
            )
            done = writer.write(events.select(*EVENTS.names), first, last)
            rows += done.rows
            on_progress(BatchProgress(rows, batch=done), total)
    return rows


def _ranges(spark: SparkSession, lake: Lake, max_rows: int, end: int) -> list[tuple[int, int]]:
    """Return the broker's records as ranges of sequence numbers with about `max_rows` events; the
    last one ends with `end`."""
    numbers = lake.bronze.read(spark).where(f.col("broker") == lake.broker)
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
    if ranges:
        ranges[-1] = (ranges[-1][0], end)
    return ranges
