"""Periodic maintenance of a lake: detection of anomalies, compaction of small files."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sluicemq.pipeline.jobs.anomalies import USUAL, Thresholds, anomalies
from sluicemq.pipeline.jobs.lake import NAMES, Lake
from sluicemq.pipeline.jobs.schemas import ANOMALY_KEYS

_COMPARED: Final = timedelta(days=8)
"""Time range of gold to examine: a day, and the same day of the previous week."""
_LOOKED_AT: Final = timedelta(days=1)
"""Time range of silver to examine: messages with an event in it."""
KEPT: Final = timedelta(days=7)
"""Age of table versions that `compact` retains."""


def find_anomalies(spark: SparkSession, lake: Lake, limits: Thresholds = USUAL) -> int:
    """Find anomalies in gold and silver, and store them in the table of anomalies.

    Return the number of anomalies found now, including those stored before."""
    gold, silver = lake.table("gold"), lake.table("silver")
    if not gold.exists() or not silver.exists():
        return 0
    newest = pc.max(gold.read(["minute"])["minute"]).as_py()
    if newest is None:
        return 0
    rates = gold.frame(spark, filter=pc.field("minute") >= newest - _COMPARED)
    lives = silver.frame(spark, filter=pc.field("last_event") >= newest - _LOOKED_AT)
    found = anomalies(rates, lives, limits).toArrow()
    kept = lake.table("anomalies")
    if found.num_rows:
        kept.upsert(found, ANOMALY_KEYS)
    return sum(file.rows for file in kept.files()) if kept.exists() else 0


def compact(
    lake: Lake,
    on_progress: Callable[[str, int, int], None] = lambda name, before, after: None,
    older_than: timedelta = KEPT,
) -> None:
    """Join the small files of each table and delete files of versions older than `older_than`.

    `on_progress` is called with each table's name and its number of files before and after. May run
    beside a query.
    """
    for name in (*NAMES, "anomalies"):
        found = lake.table(name)
        if found.exists():
            before = len(found.files())
            found.compact()
            found.vacuum(older_than)
            on_progress(name, before, len(found.files()))
