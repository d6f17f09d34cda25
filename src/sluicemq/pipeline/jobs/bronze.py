"""Bronze: all events unchanged, with the partition columns."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs.schemas import BRONZE


def bronze(events: DataFrame, broker: str) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of BRONZE."""
    frame = events.withColumn("broker", f.lit(broker)).withColumn("day", f.to_date("time"))
    return frame.select(*BRONZE.names)
