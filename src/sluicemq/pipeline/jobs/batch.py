"""Writing of one batch of events to the tables of a lake; repeated batches have no effect."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from sluicemq.pipeline.jobs import gold, silver
from sluicemq.pipeline.jobs.bronze import bronze, choose_named
from sluicemq.pipeline.jobs.lake import NAMES, Lake
from sluicemq.pipeline.jobs.schemas import BRONZE_PARTITIONS, GOLD_KEYS, SILVER_KEYS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_JAVA: Final = ("phpmq", "msglite", "vibemq", gold.ANY)
"""Protocols whose messages never have a body that needs protocols/java.py."""


@dataclass
class BatchResult:
    """Result of a batch.

    rows     events in it; 0 if all tables had it already
    first, last    sequence numbers of the first and the last record
    oldest, newest    times of its oldest and newest events
    gold_committed    time at which gold was committed; None if gold had the batch already
    seconds  time for each table; a table that had the batch already is missing
    """

    rows: int = 0
    first: int = 0
    last: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    gold_committed: datetime | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class LakeWriter:
    """Writes batches of one journal to a lake, one after the other.

    It caches the progress of each table; no other writer may write this broker's events meanwhile.
    """

    def __init__(
        self,
        lake: Lake,
        journal: str,
        names: Collection[str] = NAMES,
        watermark: timedelta = gold.WATERMARK,
    ) -> None:
        self._lake = lake
        self._application = lake.application(journal)
        self._names = [name for name in NAMES if name in names]
        self._watermark = watermark
        self._tables = {name: lake.table(name) for name in self._names}
        self._ends = {name: lake.reached(journal, [name]) for name in self._names}
        self._named = lake.named() if "bronze" in self._names else frozenset()
        self._newest: datetime | None = None

    def write(self, events: DataFrame) -> BatchResult:
        """Write one batch, which has all events between its first and its last record.

        If only gold is written, the columns gold.NEEDS are sufficient."""
        done = BatchResult()
        found = self._gold(events, done) if "gold" in self._ends else None
        overview = self._overview(events, done, found)
        if all(end is not None and end >= done.last for end in self._ends.values()):
            done.rows = 0
        if not done.rows:
            return done
        for name in self._names:
            end = self._ends[name]
            if end is not None and end >= done.last:
                continue
            before = time.perf_counter()
            if name == "gold":
                self._tables[name].upsert(
                    found, GOLD_KEYS, self._application, done.last, gold.combine
                )
                done.gold_committed = datetime.now(UTC)
            elif name == "bronze":
                self._bronze(events, overview, done)
            else:
                self._silver(events, overview, done)
            self._ends[name] = done.last
            done.seconds[name] = done.seconds.get(name, 0.0) + time.perf_counter() - before
        self._newest = max(filter(None, (self._newest, done.newest)), default=None)
        return done

    def _gold(self, events: DataFrame, done: BatchResult) -> pa.Table:
        """Return rows of gold, and set the batch's row count and range."""
        before = time.perf_counter()
        seen = Observation()
        sums = gold.sums(_observed(events, seen), self._lake.broker).toArrow()
        _set_range(seen, done)
        if self._overlaps(done, "gold"):
            sums = gold.sums(self._missing(events, done, "gold"), self._lake.broker).toArrow()
        found = gold.complete(sums, self._newest, self._watermark)
        done.seconds["gold"] = time.perf_counter() - before
        return found

    def _overview(self, events: DataFrame, done: BatchResult, found: pa.Table | None) -> pa.Table:
        """Return the batch's destinations and protocols.

        They come from the rows of gold, unless gold had a part of the batch already after a
        crash."""
        if found is not None and len({*self._ends.values()}) == 1:
            return found
        seen = Observation()
        kinds = _observed(events, seen).select("destination", "protocol").distinct().toArrow()
        _set_range(seen, done)
        return kinds

    def _overlaps(self, done: BatchResult, name: str) -> bool:
        """Return True if a table has a part of the batch already, as after a crash."""
        end = self._ends.get(name)
        return end is not None and done.first <= end

    def _missing(self, events: DataFrame, done: BatchResult, name: str) -> DataFrame:
        """Return the events that a table does not have yet.

        A condition is added only if needed, because Spark compiles each new condition again."""
        if not self._overlaps(done, name):
            return events
        return events.where(f.col("sequence") > f.lit(self._ends[name]))

    def _bronze(self, events: DataFrame, found: pa.Table, done: BatchResult) -> None:
        destinations = pc.unique(found["destination"]).to_pylist()
        self._named = choose_named(self._named, destinations)
        rows = bronze(self._missing(events, done, "bronze"), self._named, self._lake.broker)
        writer = rows.write.format("sluicemq-table").mode("append")
        writer = writer.option("format", self._lake.kind)
        writer = writer.option("path", str(self._lake.path("bronze")))
        writer = writer.option("partitionBy", ",".join(BRONZE_PARTITIONS)).option(
            "sortBy", "sequence"
        )
        writer.option("txnAppId", self._application).option("txnVersion", str(done.last)).save()

    def _silver(self, events: DataFrame, found: pa.Table, done: BatchResult) -> None:
        java = bool(set(pc.unique(found["protocol"]).to_pylist()) - set(_NO_JAVA))
        frame = self._missing(events, done, "silver")
        rows = silver.finish(silver.sums(frame, self._lake.broker, java).toArrow())
        self._tables["silver"].upsert(
            rows, SILVER_KEYS, self._application, done.last, silver.combine
        )


def _observed(events: DataFrame, seen: Observation) -> DataFrame:
    return events.observe(
        seen,
        f.count(f.lit(1)).alias("rows"),
        f.min("sequence").alias("first"),
        f.max("sequence").alias("last"),
        f.min(f.unix_micros("time")).alias("oldest"),
        f.max(f.unix_micros("time")).alias("newest"),
    )


def _set_range(seen: Observation, done: BatchResult) -> None:
    observed: dict[str, Any] = seen.get
    done.rows, done.first, done.last = (
        observed["rows"],
        observed["first"] or 0,
        observed["last"] or 0,
    )
    if observed["newest"] is not None:
        done.oldest = _EPOCH + timedelta(microseconds=observed["oldest"])
        done.newest = _EPOCH + timedelta(microseconds=observed["newest"])
