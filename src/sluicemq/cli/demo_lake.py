"""Last part of the demonstration: write its traffic into the tables of a lake, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.maintain import find_anomalies
from sluicemq.pipeline.jobs.run import PipelineJob, Supervisor
from sluicemq.pipeline.report import report_lake
from sluicemq.pipeline.session import SHORT_JOB, session


def _spark(lake: Path) -> SparkSession:
    """Return the demonstration's session, which the first call opens."""
    settings = {"spark.driver.extraJavaOptions": SHORT_JOB}
    return session("sluicemq-demo", settings, Lake(lake).log)


def stop() -> None:
    """Stop the session, if there is one."""
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


def fill(directory: Path, lake: Path) -> int:
    """Write the journal in `directory` into the tables below `lake`. Returns the number of
    events."""
    place, spark = Lake(lake), _spark(lake)
    job = PipelineJob(source={"path": str(directory)}, lake=place)
    events = Supervisor(spark, job).run(interval=None)
    find_anomalies(spark, place)
    return events


def traffic(lake: Path) -> Mapping[str, tuple[int, int]]:
    """Return per destination, from gold, the number of messages published and acknowledged."""
    rows = Lake(lake).gold.read(_spark(lake)).groupBy("destination")
    sums = rows.agg(f.sum("published"), f.sum("acknowledged")).collect()
    return {row[0]: (row[1], row[2]) for row in sums}


def states(lake: Path) -> Mapping[str, int]:
    """Return the number of messages per state, from silver."""
    counts = Lake(lake).silver.read(_spark(lake)).groupBy("state").count().collect()
    return {row[0]: row[1] for row in counts}


def draw(lake: Path, page: Path) -> None:
    """Write the report."""
    report_lake(_spark(lake), Lake(lake), page, title="The demonstration")
