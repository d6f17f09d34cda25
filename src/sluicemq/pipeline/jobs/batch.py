"""Writing of one batch of events to the tables of a lake; repeated batches have no effect."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import INTERPRETED, Tag, temporary_settings
from sluicemq.pipeline.jobs import gold, silver
from sluicemq.pipeline.jobs.bodies import NEEDS_UDF
from sluicemq.pipeline.jobs.lake import EVENT_LAYERS, Lake
from sluicemq.pipeline.schema import BRONZE, EPOCH, EVENTS
from sluicemq.pipeline.session import is_local, materialized
from sluicemq.pipeline.typed.rows import TableCounts

_GOLD_SETTINGS: Final = {"spark.databricks.delta.merge.materializeSource": "none"}
"""The merged rows are materialised already."""
_LOCAL_GOLD_SETTINGS: Final = {**_GOLD_SETTINGS, "spark.sql.shuffle.partitions": "1"}
"""A batch has few groups of events; a second task would take longer than it saves."""


@dataclass
class BatchResult:
    """Result of a batch.

    last     sequence number of the last record that it may have
    rows     events in it; 0 if all tables had it already
    oldest, newest    times of its oldest and newest events
    gold_committed    time at which gold was committed; None if gold had the batch already
    seconds  time for each table; a table that had the batch already is missing
    typed    counts of the typed tables with messages in it
    """

    last: int
    rows: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    gold_committed: datetime | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    typed: Mapping[str, TableCounts] = field(default_factory=dict)


class LakeWriter:
    """Writes batches of one journal to a lake, one after the other.

    It caches the progress of each table; no other writer may write this broker's events meanwhile.

    tasks  most tasks that write events and messages at a time; 0 = no limit
    ends   last record of each table, -1 = none
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        journal: str,
        layers: Collection[str] = EVENT_LAYERS,
        watermark: timedelta = gold.WATERMARK,
        tasks: int = 0,
    ) -> None:
        self._lake = lake
        self._journal = journal
        self._application = lake.application(journal)
        self._layers = [layer for layer in EVENT_LAYERS if layer in layers]
        self._watermark = watermark
        self._tasks = tasks
        self.ends = {
            layer: lake.layer(layer).tagged_version(spark, self._application)
            for layer in self._layers
        }
        self._version = lake.bronze.version(spark) if "bronze" in self._layers else -1
        application = lake.append_application(journal)
        self._appended = (
            lake.silver.tagged_version(spark, application) if "silver" in self._layers else -1
        )
        self._newest: datetime | None = None

    def write(self, events: DataFrame, first: int, last: int) -> BatchResult:
        """Write one batch: all events of the records from `first` to `last`.

        If only gold is written, the columns gold.GOLD_INPUT are sufficient. Raises
        ConfigurationError for a batch that silver cannot have without bronze."""
        result = BatchResult(last)
        observation: Observation | None = None
        observed_from = last
        facts: Mapping[str, Any] | None = None
        changed: tuple[int, int] | None = None
        for layer in self._layers:
            end = self.ends[layer]
            if end >= last:
                continue
            if layer == "silver" and self._appended > last:
                if "bronze" in self._layers:
                    continue  # a later batch takes the rest of the interrupted one from bronze
                raise ConfigurationError(
                    f"a batch ends with the record {last}, but an interrupted one has added "
                    f"messages to silver up to {self._appended}: set --max-rows and --max-bytes at "
                    "least as high as before"
                )
            before = time.perf_counter()
            rows, start = events, first
            if layer == "silver" and "bronze" in self._layers:
                # bronze has them in Parquet, which costs less than another read of the journal
                rows, start = self._from_bronze(events.sparkSession, last, changed), end + 1
            elif first <= end:
                # a condition is added only if needed: Spark compiles each new condition again
                rows, start = events.where(f.col("sequence") > f.lit(end)), end + 1
            if layer == "silver":
                facts = (
                    observation.get
                    if observation is not None and observed_from <= start
                    else rows.agg(*_facts(rows)).collect()[0].asDict()
                )
                self._silver(rows, result, facts)
            else:
                if observation is None:
                    observation, observed_from = Observation(), start
                    rows = rows.observe(observation, *_facts(rows))
                if layer == "gold":
                    self._gold(rows, result, observation)
                else:
                    changed = self._bronze(self._with_task_limit(rows), result, last - start + 1)
            self.ends[layer] = last
            result.seconds[layer] = time.perf_counter() - before
        facts = facts if observation is None else observation.get
        if facts is not None:
            result.rows = facts["rows"]
            if facts["newest"] is not None:
                result.oldest, result.newest = _time(facts["oldest"]), _time(facts["newest"])
        self._newest = max(filter(None, (self._newest, result.newest)), default=None)
        return result

    # A batch without rows for a table is committed, too: its tag is the progress of the table.

    def _tag(self, result: BatchResult) -> Tag:
        return Tag(self._application, result.last)

    def _gold(self, events: DataFrame, result: BatchResult, observation: Observation) -> None:
        spark, table, broker = events.sparkSession, self._lake.gold, self._lake.broker
        runs_locally = is_local(spark)
        with temporary_settings(spark, _LOCAL_GOLD_SETTINGS if runs_locally else _GOLD_SETTINGS):
            sums = materialized(gold.sums(events, broker))
            rows = gold.complete(sums, self._newest, self._watermark)
            if observation.get["oldest"] is None:
                table.append(rows.where("false"), self._tag(result))
            else:
                days = (_time(observation.get[name]).date() for name in ("oldest", "newest"))
                first, last = (f"DATE'{day}'" for day in days)
                old_condition = f"old.broker = '{broker}' AND old.day BETWEEN {first} AND {last}"
                with temporary_settings(spark, INTERPRETED if runs_locally else {}):
                    table.merge(rows, gold.COMBINED, self._tag(result), old_condition=old_condition)
        result.gold_committed = datetime.now(UTC)

    def _bronze(
        self, events: DataFrame, result: BatchResult, records: int
    ) -> tuple[int, int] | None:
        """Append the events of at most that many records.

        Returns the first and the last version that have all events silver lacks; None if others
        have some of them."""
        table = self._lake.bronze
        table.append(bronze(events, self._lake.broker), self._tag(result), size=records)
        version = table.version(events.sparkSession)
        before, self._version = self._version, version
        if version > before and self.ends["bronze"] == self.ends.get("silver"):
            return before + 1, version
        return None

    def _silver(self, events: DataFrame, result: BatchResult, facts: Mapping[str, Any]) -> None:
        """Append the messages that silver does not have, then merge events of those that it has.

        The append is much cheaper, and does not read the table. It has a tag of its own if a merge
        follows: if the batch is interrupted between the two, a batch that has all its records
        merges the rest, and shorter ones wait for it in bronze.

        facts  of these events, or of more
        """
        end, appended = self.ends["silver"], max(self.ends["silver"], self._appended)
        may_need_udf = bool(facts["may_need_udf"])
        low, high = facts["first_message"], facts["last_message"]
        broker, table = self._lake.broker, self._lake.silver
        # a message has the number of its first event, so silver has none above `appended`
        any_late = low is not None and low <= appended
        any_new = high is not None and high > appended
        message = "message_sequence"
        if any_new or not any_late:
            new_events = events.where(~_at_most(message, appended)) if any_late else events
            rows = silver.silver(
                new_events,
                broker,
                may_need_udf=may_need_udf,
                may_have_topics=bool(facts["may_have_topics"]),
            )
            late_application = self._lake.append_application(self._journal)
            tag = Tag(late_application if any_late else self._application, result.last)
            table.append(rows if any_new else rows.where("false"), tag, size=facts["rows"])
            self._appended = result.last
        if any_late:
            is_late = _at_most(message, appended)
            if appended > end:
                is_late &= _at_most(message, end) | ~_at_most("sequence", appended)
            rows = silver.silver(events.where(is_late), broker, may_need_udf=may_need_udf)
            numbers = f"old.{message} BETWEEN {low} AND {min(high, appended)}"
            old_condition = f"old.broker = '{broker}' AND {numbers}"
            table.merge(rows, silver.COMBINED, self._tag(result), old_condition=old_condition)

    def _from_bronze(
        self, spark: SparkSession, last: int, changed: tuple[int, int] | None
    ) -> DataFrame:
        """Return the events up to the record `last` that silver does not have yet.

        changed  versions that have all of them; None = not known
        """
        table = self._lake.bronze
        if changed is not None:
            # needs neither a search in the table's log nor a condition that changes
            rows = table.changes(spark, *changed, inserts_only=True)
        else:
            rows = table.read(spark).where(f.col("sequence").between(self.ends["silver"] + 1, last))
        return self._with_task_limit(
            rows.where(f.col("broker") == self._lake.broker).select(*EVENTS.names)
        )

    def _with_task_limit(self, rows: DataFrame) -> DataFrame:
        return rows.coalesce(self._tasks) if self._tasks else rows


def bronze(events: DataFrame, broker: str) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of BRONZE: unchanged, with partitions."""
    return (
        events.withColumn("broker", f.lit(broker))
        .withColumn("day", f.to_date("time"))
        .select(*BRONZE.names)
    )


def _time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def _at_most(name: str, limit: int) -> Column:
    """Return the condition that a number is at most `limit`, or null.

    It compares structures, because a number would be part of the generated code, which Spark would
    compile again for each batch."""
    return f.struct(f.col(name).alias("n")) <= f.struct(f.lit(limit).cast("long").alias("n"))


def _facts(events: DataFrame) -> list[Column]:
    """Return the aggregates of events that their writing depends on, and those of BatchResult."""
    facts = {
        "rows": f.count(f.lit(1)),
        "oldest": f.min(f.unix_micros("time")),
        "newest": f.max(f.unix_micros("time")),
    }
    if "body_kind" in events.columns:
        facts |= {
            "may_need_udf": f.max(f.expr(NEEDS_UDF)),
            "may_have_topics": f.max(f.expr(silver.OF_TOPICS)),
            "first_message": f.min("message_sequence"),
            "last_message": f.max("message_sequence"),
        }
    return [aggregate.alias(name) for name, aggregate in facts.items()]
