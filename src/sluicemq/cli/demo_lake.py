"""Last part of the demonstration: write its traffic into the tables of a lake, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.run import PipelineJob, Supervisor
from sluicemq.pipeline.jobs.upkeep import find_anomalies
from sluicemq.pipeline.report import report_lake
from sluicemq.pipeline.session import session


def fill(directory: Path, lake: Path) -> int:
    """Write the journal in `directory` into the tables below `lake`. Returns the number of
    events."""
    place = Lake(lake)
    spark = session("sluicemq-demo", log=place.log)
    try:
        job = PipelineJob(source={"path": str(directory)}, lake=place)
        events = Supervisor(spark, job).run(interval=None)
        find_anomalies(spark, place)
        return events
    finally:
        spark.stop()


def traffic(lake: Path) -> Mapping[str, tuple[int, int]]:
    """Return per destination, from gold, the number of messages published and acknowledged."""
    gold = Lake(lake).table("gold").read(["destination", "published", "acknowledged"])
    sums: pa.Table = gold.group_by("destination").aggregate(
        [("published", "sum"), ("acknowledged", "sum")]
    )
    return {
        row["destination"]: (row["published_sum"], row["acknowledged_sum"])
        for row in sums.to_pylist()
    }


def states(lake: Path) -> Mapping[str, int]:
    """Return the number of messages per state, from silver."""
    counted = pc.value_counts(Lake(lake).table("silver").read(["state"])["state"])
    return {each["values"]: each["counts"] for each in counted.to_pylist()}


def draw(lake: Path, page: Path) -> None:
    """Write the report."""
    report_lake(lake, page, title="The demonstration")
