"""Work on a whole lake: detection of anomalies, compaction, removal of old versions, rebuilding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import HadoopPath, temporary_settings
from sluicemq.pipeline.jobs.anomalies import anomalies
from sluicemq.pipeline.jobs.batch import LakeWriter
from sluicemq.pipeline.jobs.lake import Lake, journals
from sluicemq.pipeline.jobs.run import MAX_BYTES, MAX_ROWS, BatchProgress
from sluicemq.pipeline.schema import EVENTS
from sluicemq.pipeline.session import materialized

_COMPARED_TIME: Final = timedelta(days=8)
"""Time range of gold to examine: a day, and the same day of the previous week."""
_EXAMINED_TIME: Final = timedelta(days=1)
"""Time range of silver to examine: messages with an event in it."""
RETENTION: Final = timedelta(days=7)
"""Age of table versions that `maintain` retains."""
_UNCHECKED: Final = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}
"""Otherwise Delta refuses to remove files of versions younger than a week."""
_DERIVED: Final = ("gold", "silver")
"""Layers that `rebuild` computes from bronze."""
MAX_MERGES: Final = 10
"""Maximum number of attempts to store anomalies."""
CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Errors of a commit if another process, such as the pipeline of another broker, has changed or
created the table meanwhile."""
_BLOCK: Final = 1024
"""Sequence numbers of a block: `rebuild` cuts ranges between blocks."""


def find_anomalies(spark: SparkSession, lake: Lake) -> int:
    """Find anomalies in gold and silver, and store them in the table of anomalies.

    Return the number of anomalies found now, including those stored before."""
    if not lake.gold.exists(spark) or not lake.silver.exists(spark):
        return 0
    gold, silver = lake.gold.read(spark), lake.silver.read(spark)
    first, last = gold.agg(
        f.unix_seconds(f.min("minute")), f.unix_seconds(f.max("minute"))
    ).collect()[0]
    if last is None:
        return 0
    newest = datetime.fromtimestamp(last, UTC)
    start = newest - _COMPARED_TIME
    recent_gold = gold.where(
        (f.col("day") >= f.lit(start.date())) & (f.col("minute") >= f.lit(start))
    )
    recent_silver = silver.where(f.col("last_event") >= f.lit(newest - _EXAMINED_TIME))
    # not cached: each commit to gold or silver would plan the query again and read both tables
    rows = materialized(anomalies(recent_gold, recent_silver, timedelta(seconds=last - first)))
    # merging no rows costs seconds: Delta plans and compiles both of its queries
    if not lake.anomalies.exists(spark) or not rows.isEmpty():
        for attempt in range(1, MAX_MERGES + 1):
            try:
                lake.anomalies.merge(rows)
                break
            except CONFLICTS:
                if attempt == MAX_MERGES:
                    raise
    return lake.anomalies.read(spark).count()


def maintain(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[str, int, int], None] = lambda name, before, after: None,
    older_than: timedelta = RETENTION,
) -> None:
    """Join the small files of each table and delete files of versions older than `older_than`.

    A table that is younger has no such files, and one with a single file is compact. `on_progress`
    is called with each table's name and its number of files before and after. A query may run at
    the same time.
    """
    for name, table in lake.tables(spark).items():
        delta = DeltaTable.forPath(spark, table.location)
        details = table.details(spark)
        before = after = details.numFiles
        if before > 1:
            metrics = delta.optimize().executeCompaction().collect()[0].metrics
            after += metrics.numFilesAdded - metrics.numFilesRemoved
        if datetime.now(UTC) - details.createdAt.astimezone(UTC) > older_than:
            with temporary_settings(spark, _UNCHECKED):
                delta.vacuum(older_than / timedelta(hours=1))
        on_progress(name, before, after)


def rebuild(
    spark: SparkSession,
    lake: Lake,
    on_progress: Callable[[BatchProgress, int], None] = lambda step, total: None,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Remove silver and gold, and compute them from bronze for all brokers.

    Batches have about `max_rows` events and `max_bytes` of bodies. Return the number of events.
    No other process may write to the lake. An interrupted rebuild has to be repeated; until then
    `run` refuses tables that lack events of bronze. `on_progress` is called with the progress and
    the total number of events. Raises ConfigurationError if there is no bronze, and as
    Lake.write_lock.
    """
    if not lake.bronze.exists(spark):
        raise ConfigurationError(f"there is no bronze in {lake} to rebuild tables from")
    brokers = {
        Lake(lake.location, broker, lake.catalog): journal
        for broker, journal in journals(lake.bronze.tags(spark)).items()
    }
    with ExitStack() as locks:
        for broker_lake in brokers:
            locks.enter_context(broker_lake.write_lock())
        for name in _DERIVED:
            HadoopPath(spark, lake.layer(name).location).remove()
        bronze = lake.bronze.read(spark)
        total = bronze.count()
        rows = 0
        for broker_lake, journal in brokers.items():
            end = lake.bronze.tagged_version(spark, broker_lake.application(journal))
            writer = LakeWriter(spark, broker_lake, journal, _DERIVED)
            for first, last in _ranges(spark, broker_lake, max_rows, max_bytes, end):
                events = bronze.where(
                    (f.col("broker") == broker_lake.broker) & f.col("sequence").between(first, last)
                )
                result = writer.write(events.select(*EVENTS.names), first, last)
                rows += result.rows
                on_progress(BatchProgress(rows, batch=result), total)
    return rows


def _ranges(
    spark: SparkSession, lake: Lake, max_rows: int, max_bytes: int, end: int
) -> list[tuple[int, int]]:
    """Return the broker's records as ranges of sequence numbers within about these limits; the last
    one ends with `end`."""
    numbers = lake.bronze.read(spark).where(f.col("broker") == lake.broker)
    # numbers have gaps and a record may have many events, so count blocks and cut between them
    block = f.floor(f.col("sequence") / _BLOCK).alias("block")
    share = f"greatest(count(1) / {max_rows}, coalesce(sum(size), 0) / {max_bytes}) AS share"
    blocks = numbers.groupBy(block).agg(f.expr(share))
    before = f.sum("share").over(Window.orderBy("block")) - f.col("share")
    batches = blocks.withColumn("batch", f.floor(before)).groupBy("batch")
    rows = batches.agg(f.min("block").alias("first")).orderBy("first").collect()
    firsts = [row["first"] * _BLOCK for row in rows] or [0]
    return [(first, next_first - 1) for first, next_first in pairwise([*firsts, end + 1])]
