"""Report of a lake: finds its tables, reads the required rows and writes the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import HadoopPath, LakeTable
from sluicemq.pipeline.jobs.lake import TABLES, Lake, journals
from sluicemq.pipeline.report import figures
from sluicemq.pipeline.report.charts import write_pngs
from sluicemq.pipeline.report.page import write
from sluicemq.pipeline.schema import GOLD

BODY_BYTES: Final = 100
"""Number of bytes of a body that is no text in an example, in hexadecimal."""
_ENTRIES: Final = "transform(map_entries(`map`), each -> concat_ws(': ', each.key, each.value))"
_BYTES: Final = f"lower(trim(regexp_replace(hex(left(body, {BODY_BYTES})), '..', '$0 ')))"
EXAMPLE_COLUMNS: Final = (
    "broker",
    "message_sequence",
    "coalesce(original_destination, destination, '') AS destination",
    "dead_lettered",
    "reason",
    "deliveries",
    "size",
    f"left(coalesce(array_join({_ENTRIES}, ', '), text, json, {_BYTES}), {figures.BODY_CHARACTERS})"
    " AS beginning",
)
"""Columns of the examples of dead letters, as SQL over silver."""


def report_lake(
    spark: SparkSession,
    lake: Lake,
    out: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    png: Path | None = None,
    top: int = figures.TOP,
    title: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> figures.ReportFigures:
    """Write the report of a lake to `out`, and its charts into the directory `png` if given.

    since, until, top   as for `build`
    title         default: the name of the lake
    progress      called with the name of each step before it begins

    Missing tables are left out, and without any traffic the report has instructions.
    Raises ConfigurationError if there is no such lake or the period is empty.
    """
    since, until = _whole_minute(since), _whole_minute(until)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(f"the period ends ({until}) before it begins ({since})")
    if not HadoopPath(spark, lake.location).exists():
        raise ConfigurationError(
            f"there is no lake in {lake}: sluicemq pipeline run or backfill creates it"
        )
    existing = lake.tables(spark)
    present = {name: existing[name] for name in TABLES if name in existing}
    progress("state of the lake")
    state = _state(spark, lake, present) if present else None
    progress("traffic")
    gold, anomalies, dead_letters = GOLD.empty_table(), None, None
    if "gold.traffic" in present:
        rows = lake.gold.read(spark).where(_in_period("minute", since, until))
        gold = rows.select(*figures.COLUMNS).toArrow()
    if "gold.anomalies" in present:
        anomalies = lake.anomalies.read(spark).toArrow()
    if "silver.messages" in present:
        rows = lake.silver.read(spark).where(_in_period("dead_lettered", since, until))
        dead_letters = _examples(rows).toArrow()
    report = figures.build(
        gold,
        anomalies,
        dead_letters,
        state=state,
        title=title or Path(lake.location).name or "SluiceMQ",
        since=since,
        until=until,
        top=top,
    )
    progress("page")
    write(report, out)
    if png is not None:
        progress("PNG charts")
        write_pngs(report, png)
    return report


def _whole_minute(time: datetime | None) -> datetime | None:
    if time is None:
        return None
    return datetime.fromtimestamp(figures.minute_of(time) * figures.MINUTE, UTC)


def _in_period(column: str, since: datetime | None, until: datetime | None) -> Column:
    time = f.col(column)
    has_begun = time >= f.coalesce(f.lit(since), time)
    return has_begun & ((time < f.lit(until)) | f.lit(until is None))


def _examples(dead_letters: DataFrame) -> DataFrame:
    """Return the newest examples of the most frequent reasons."""
    reason = f.coalesce("reason", f.lit(""))
    counts = dead_letters.groupBy(reason.alias("frequent")).count()
    frequent = counts.orderBy(f.desc("count"), "frequent").limit(figures.MAX_REASONS)
    newest = Window.partitionBy(reason).orderBy(f.desc("dead_lettered"), f.desc("message_sequence"))
    return (
        dead_letters.selectExpr(*EXAMPLE_COLUMNS)
        .withColumn("rank", f.row_number().over(newest))
        .join(f.broadcast(frequent), reason == f.col("frequent"), "left_semi")
        .where(f.col("rank") <= figures.MAX_EXAMPLES)
        .drop("rank")
    )


def _state(spark: SparkSession, lake: Lake, tables: Mapping[str, LakeTable]) -> figures.LakeState:
    table_states = []
    for name, table in tables.items():
        details = table.details(spark)
        table_states.append(
            {
                "name": name,
                "rows": table.read(spark).count(),
                "files": details.numFiles,
                "size": details.sizeInBytes,
                "version": table.version(spark),
                "changed": details.lastModified,
            }
        )
    tags = lake.gold.tags(spark)
    progress = (
        (broker, *tags[Lake(lake.location, broker).application(journal)])
        for broker, journal in sorted(journals(tags).items())
    )
    return figures.LakeState(tuple(table_states), tuple(progress))
