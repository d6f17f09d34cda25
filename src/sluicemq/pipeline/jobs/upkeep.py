"""What is done to the tables of a lake now and then: anomalies found, small files joined."""

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
"""Gold that is looked through: the hours of a day, and of the same day a week before."""
_LOOKED_AT: Final = timedelta(days=1)
"""Messages that are looked at: those to which something happened."""
KEPT: Final = timedelta(days=7)
"""Versions of tables that can be gone back to after `compact`."""


def find_anomalies(spark: SparkSession, lake: Lake, limits: Thresholds = USUAL) -> int:
    """Look through gold and silver, and keep what is found in the table of anomalies. Returns how
    many there are now, those included that were there before."""
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
    tell: Callable[[str, int, int], None] = lambda name, before, after: None,
    older_than: timedelta = KEPT,
) -> None:
    """Join the small files of each table, and delete what no version younger than `older_than`
    needs. `tell` is given each table's name and its number of files before and after.

    May run beside a query.
    """
    for name in (*NAMES, "anomalies"):
        found = lake.table(name)
        if found.exists():
            before = len(found.files())
            found.compact()
            found.vacuum(older_than)
            tell(name, before, len(found.files()))
