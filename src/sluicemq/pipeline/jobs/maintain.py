"""Periodic work on a lake: detection of anomalies, compaction, removal of old versions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs.anomalies import USUAL, Thresholds, anomalies
from sluicemq.pipeline.jobs.lake import Lake

_COMPARED: Final = timedelta(days=8)
"""Time range of gold to examine: a day, and the same day of the previous week."""
_LOOKED_AT: Final = timedelta(days=1)
"""Time range of silver to examine: messages with an event in it."""
KEPT: Final = timedelta(days=7)
"""Age of table versions that `maintain` retains."""
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
"""Delta's refusal to remove files of versions younger than a week."""


def find_anomalies(spark: SparkSession, lake: Lake, limits: Thresholds = USUAL) -> int:
    """Find anomalies in gold and silver, and store them in the table of anomalies.

    Return the number of anomalies found now, including those stored before."""
    if not lake.gold.exists(spark) or not lake.silver.exists(spark):
        return 0
    gold, silver = lake.gold.read(spark), lake.silver.read(spark)
    seconds = gold.agg(f.unix_seconds(f.max("minute"))).collect()[0][0]
    if seconds is None:
        return 0
    newest = datetime.fromtimestamp(seconds, UTC)
    since = newest - _COMPARED
    rates = gold.where((f.col("day") >= f.lit(since.date())) & (f.col("minute") >= f.lit(since)))
    lives = silver.where(f.col("last_event") >= f.lit(newest - _LOOKED_AT))
    lake.anomalies.merge(anomalies(rates, lives, limits))
    return lake.anomalies.read(spark).count()


def maintain(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[str, int, int], None] = lambda name, before, after: None,
    older_than: timedelta = KEPT,
) -> None:
    """Join the small files of each table and delete files of versions older than `older_than`.

    `on_progress` is called with each table's name and its number of files before and after. May run
    beside a query.
    """
    for name, table in lake.tables(spark).items():
        before = table.state(spark).files
        delta = DeltaTable.forPath(spark, table.location)
        delta.optimize().executeCompaction()
        checked = spark.conf.get(_CHECK, "true")
        spark.conf.set(_CHECK, "false")
        try:
            delta.vacuum(older_than / timedelta(hours=1))
        finally:
            spark.conf.set(_CHECK, str(checked))
        on_progress(name, before, table.state(spark).files)
