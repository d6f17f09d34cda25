"""Writing of one batch of events to the tables of a lake; repeated batches have no effect."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline.delta import Tag
from sluicemq.pipeline.jobs import gold, silver
from sluicemq.pipeline.jobs.bodies import NEED_JAVA
from sluicemq.pipeline.jobs.lake import NAMES, Lake
from sluicemq.pipeline.jobs.schemas import BRONZE
from sluicemq.pipeline.schema import EVENTS
from sluicemq.pipeline.typed.rows import TableCounts

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class BatchResult:
    """Result of a batch.

    first, last    sequence numbers of the first and the last record that it may have
    rows     events in it; 0 if all tables had it already
    oldest, newest    times of its oldest and newest events
    gold_committed    time at which gold was committed; None if gold had the batch already
    seconds  time for each table; a table that had the batch already is missing
    typed    counts of the typed tables with messages in it
    """

    first: int
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
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        journal: str,
        layers: Collection[str] = NAMES,
        watermark: timedelta = gold.WATERMARK,
    ) -> None:
        self._lake = lake
        self._journal = journal
        self._application = lake.application(journal)
        self._layers = [layer for layer in NAMES if layer in layers]
        self._watermark = watermark
        reached = {layer: lake.reached(spark, journal, [layer]) for layer in self._layers}
        self._ends = {layer: -1 if end is None else end for layer, end in reached.items()}
        self._appended = -1
        if "silver" in self._layers:
            self._appended = lake.silver.progress(spark).get(lake.appended(journal), -1)
        self._newest: datetime | None = None

    def write(self, events: DataFrame, first: int, last: int) -> BatchResult:
        """Write one batch: all events of the records from `first` to `last`.

        If only gold is written, the columns gold.NEEDS are sufficient."""
        done = BatchResult(first, last)
        seen: Observation | None = None
        seen_from = last
        for layer in self._layers:
            end = self._ends[layer]
            if end >= last or (layer == "silver" and self._appended > last):
                continue
            before = time.perf_counter()
            rows, start = events, first
            if layer == "silver" and "bronze" in self._layers:
                # bronze has them in Parquet, which costs less than another read of the journal
                rows, start = self._from_bronze(events.sparkSession, last), end + 1
            elif first <= end:
                # a condition is added only if needed: Spark compiles each new condition again
                rows, start = events.where(f.col("sequence") > f.lit(end)), end + 1
            if seen is None:
                seen, seen_from = Observation(), start
                rows = _observed(rows, seen)
            if layer == "gold":
                self._gold(rows, done)
            elif layer == "bronze":
                self._lake.bronze.append(bronze(rows, self._lake.broker), self._tag(done))
            else:
                self._silver(rows, done, seen if seen_from <= start else None)
            self._ends[layer] = last
            done.seconds[layer] = time.perf_counter() - before
        if seen is not None:
            observed = seen.get
            done.rows = observed["rows"]
            if observed["newest"] is not None:
                done.oldest = _EPOCH + timedelta(microseconds=observed["oldest"])
                done.newest = _EPOCH + timedelta(microseconds=observed["newest"])
        self._newest = max(filter(None, (self._newest, done.newest)), default=None)
        return done

    # A batch without rows for a table is committed, too: the table tells how far it has come.

    def _tag(self, done: BatchResult) -> Tag:
        return Tag(self._application, done.last)

    def _gold(self, events: DataFrame, done: BatchResult) -> None:
        sums = gold.sums(events, self._lake.broker).persist()
        try:
            # as dates: times would come in the zone of this process
            (days,) = sums.agg(f.to_date(f.min("minute")), f.to_date(f.max("minute"))).collect()
            rows = gold.complete(sums, self._newest, self._watermark)
            if days[0] is None:
                self._lake.gold.append(rows.where("false"), self._tag(done))
            else:
                broker = self._lake.broker
                within = {"broker": (broker, broker), "day": (days[0], days[1])}
                self._lake.gold.merge(rows, gold.combine, self._tag(done), within=within)
        finally:
            sums.unpersist()
        done.gold_committed = datetime.now(UTC)

    def _silver(self, events: DataFrame, done: BatchResult, seen: Observation | None) -> None:
        """Append the messages that silver does not have, then merge events of those that it has.

        The append is much cheaper, and does not read the table. It has a tag of its own if a merge
        follows: if the batch is interrupted between the two, a batch that has all its records
        merges the rest, and shorter ones wait for it in bronze.

        seen  observation that includes all the events; None if there is none
        """
        end, appended = self._ends["silver"], max(self._ends["silver"], self._appended)
        message = f.col("message_sequence")
        # a message has the number of its first event, so silver has none above `appended`
        new = message > appended
        late = (message <= end) | ((message <= appended) & (f.col("sequence") > appended))
        numbers = f.min(f.when(late, message)), f.max(f.when(late, message)), f.max(message)
        low, high, newest = events.agg(*numbers).collect()[0]
        java, topics = (seen.get["java"], seen.get["topics"]) if seen else (True, True)
        broker, table = self._lake.broker, self._lake.silver
        any_new = newest is not None and newest > appended
        if any_new or low is None:
            rows = silver.silver(events.where(new), broker, java=bool(java), topics=bool(topics))
            application = self._application if low is None else self._lake.appended(self._journal)
            table.append(rows if any_new else rows.where("false"), Tag(application, done.last))
            self._appended = done.last
        if low is not None:
            rows = silver.silver(events.where(late), broker, java=bool(java))
            within = {"broker": (broker, broker), "message_sequence": (low, high)}
            tag = self._tag(done)
            table.merge(rows, silver.combine, tag, within=within, kept=silver.RECORD, known="size")

    def _from_bronze(self, spark: SparkSession, last: int) -> DataFrame:
        """Return the events up to the record `last` that silver does not have yet."""
        rows = self._lake.bronze.read(spark).where(f.col("broker") == self._lake.broker)
        chosen = f.col("sequence").between(self._ends["silver"] + 1, last)
        return rows.where(chosen).select(*EVENTS.names)


def bronze(events: DataFrame, broker: str) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of BRONZE: unchanged, with partitions."""
    frame = events.withColumn("broker", f.lit(broker)).withColumn("day", f.to_date("time"))
    return frame.select(*BRONZE.names)


def _observed(events: DataFrame, seen: Observation) -> DataFrame:
    java, topics = f.lit(None), f.lit(None)
    if "body_kind" in events.columns:
        java, topics = f.max(f.expr(NEED_JAVA)), f.max(f.expr(silver.OF_TOPICS))
    return events.observe(
        seen,
        f.count(f.lit(1)).alias("rows"),
        f.min(f.unix_micros("time")).alias("oldest"),
        f.max(f.unix_micros("time")).alias("newest"),
        java.alias("java"),
        topics.alias("topics"),
    )
