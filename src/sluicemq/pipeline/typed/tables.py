"""Writing of typed tables to Delta: appends, merges by key, tombstones, quarantine and counts.

    silver/NAME               declared columns and METADATA; change data feed enabled
    silver/NAME_quarantine    messages that are not of the declared form, with the reason
    silver/NAME_tombstones    keys that a message has removed, with that message's position
    gold/typed_counts         a row for each table and batch with messages of it: TableCounts

Every write is tagged with an application (broker and table) and the last journal sequence of its
batch, so a repeated batch changes nothing, wherever the first attempt was interrupted.

A message is newer than another of the same broker if its sequence number is higher, and newer than
one of another broker if it was published later by the brokers' clocks. With several brokers an old
message may thus come after the deletion of its row, and a tombstone keeps it from being inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from sluicemq.model.errors import SluiceError
from sluicemq.pipeline.delta import CHANGE_DATA_FEED, RANDOM_FILE_PREFIXES, LakeTable, Tag
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.schema import Event, quoted
from sluicemq.pipeline.session import cached
from sluicemq.pipeline.typed.bodies import MAY_NEED_UDF, common_field_lists
from sluicemq.pipeline.typed.definition import (
    QUARANTINE,
    TOMBSTONES,
    Definition,
    Format,
    TypedTable,
)
from sluicemq.pipeline.typed.gold import refresh_gold
from sluicemq.pipeline.typed.rows import (
    METADATA,
    QUARANTINE_COLUMNS,
    STOPPED,
    TableCounts,
    count_columns,
    declared_columns,
    good_rows,
    newest_rows,
    quarantined_rows,
    selects,
    typed_rows,
)

_NEWER: Final = (
    "(({0}._broker = {1}._broker AND {0}._sequence > {1}._sequence) OR ({0}._broker <> {1}._broker "
    "AND ({0}._time, {0}._broker) > ({1}._time, {1}._broker)))"
)
"""SQL condition that the first of two rows is newer than the second."""
_NEW_IS_NEWER: Final = _NEWER.format("new", "old")
_POSITION: Final = ("_broker", "_sequence", "_time")

LARGE_BATCH: Final = 20_000
"""Messages of a batch from which on `common_field_lists` costs less than it saves."""

COUNTS_TABLE: Final = "gold.typed_counts"
_SUMS: Final = (
    *("messages", "written", "dropped", "quarantined", "deleted", "unparsed"),
    "unknown_fields",
)
COUNTS_COLUMNS: Final = t.StructType(
    [
        t.StructField("broker", t.StringType()),
        t.StructField("table", t.StringType()),
        t.StructField("last_sequence", t.LongType()),
        t.StructField("time", t.TimestampType()),
        *(t.StructField(name, t.LongType()) for name in _SUMS),
        t.StructField("failed", t.MapType(t.StringType(), t.LongType())),
        t.StructField("first_sequence", t.LongType()),
    ]
)
"""Columns of gold.typed_counts: the batch, and TableCounts."""


class ExpectationFailed(SluiceError):
    """An expectation with the action `fail` failed; nothing of the batch is in its table."""


def process(events: DataFrame, definition: Definition, lake: Lake) -> dict[str, TableCounts]:
    """Write a micro-batch to the typed tables, record its counts, and refresh the gold tables.

    Returns the counts of each table with messages in the batch.

    `events` has the columns rows.TYPED_INPUT and all events between its first and its last record.
    The definition has been checked (validation.check). A repeated batch changes nothing. Cache
    `events` if reading them is expensive.

    Raises ExpectationFailed, and ConfigurationError.
    """
    spark, summary = events.sparkSession, batch_summary(events, definition)
    table = lake.table(COUNTS_TABLE, COUNTS_COLUMNS)
    table.evolve(spark, COUNTS_TABLE)
    application = lake.application(COUNTS_TABLE)
    progress = table.tagged_version(spark, application)
    # the journal is read again: a table was added to the definition, or a checkpoint was lost
    is_repeated = summary["_first"] is not None and summary["_first"] <= progress
    counted: Mapping[str, tuple[int | None, int]] = {}
    if is_repeated or (progress >= 0 and any(summary[i.name].relocated for i in definition.tables)):
        counted = _counted_records(spark, lake, definition, table)
    counts = write_typed(events, definition, lake, summary, counted)
    if counts:
        # without a tag for a table that has no counts yet: Delta would leave them out
        tag = Tag(application, summary["_last"]) if summary["_last"] > progress else None
        table.append(_counts_rows(spark, lake.broker, summary, counts), tag)
    refresh_gold(spark, definition, lake)
    return counts


def _counted_records(
    spark: SparkSession, lake: Lake, definition: Definition, table: LakeTable
) -> dict[str, tuple[int | None, int]]:
    """Return the first and the last counted record of each typed table that exists.

    Counts from before a table's creation are those of a removed table of the same name."""
    conditions = [
        (f.col("table") == item.name)
        & (f.col("time") >= f.lit(typed.details(spark).createdAt.astimezone(UTC)))
        for item in definition.tables
        if (typed := lake.table(f"silver.{item.name}")).exists(spark)
    ]
    is_counted = (f.col("broker") == lake.broker) & reduce(or_, conditions, f.lit(False))
    ends = (
        table.read(spark)
        .where(is_counted)
        .groupBy("table")
        .agg(f.min("first_sequence"), f.max("last_sequence"))
    )
    return {name: (first, last) for name, first, last in ends.collect()}


def _counts_rows(
    spark: SparkSession, broker: str, summary: Row, counts: Mapping[str, TableCounts]
) -> DataFrame:
    """Return the counts of a batch as rows of COUNTS_TABLE."""
    first, last, now = summary["_first"], summary["_last"], datetime.now(UTC)
    rows = [
        (broker, name, last, now, *(getattr(c, sum) for sum in _SUMS), dict(c.failed), first)
        for name, c in counts.items()
    ]
    return spark.createDataFrame(rows, COUNTS_COLUMNS)


def batch_summary(events: DataFrame, definition: Definition) -> Row:
    """Return the properties of a batch that decide how it is written.

    `_first` and `_last` are the sequence numbers of its first and last record, and each table's
    name a row: the number of its `messages`, of those that the broker moved forward in its journal
    (`relocated`), of those that perhaps need the Python UDF (`may_need_udf`), and the
    `last` record.
    """
    aggregates = [f.min("sequence").alias("_first"), f.max("sequence").alias("_last")]
    for table in definition.tables:
        selected = selects(table)
        conditions = {
            "messages": selected,
            "relocated": selected & (f.col("event") == str(Event.RELOCATED)),
            "may_need_udf": selected & f.expr(MAY_NEED_UDF),
        }
        counts = [f.count_if(condition).alias(name) for name, condition in conditions.items()]
        last = f.max(f.when(selected, f.col("sequence"))).alias("last")
        aggregates.append(f.struct(*counts, last).alias(table.name))
    return events.agg(*aggregates).collect()[0]


def write_typed(
    batch: DataFrame,
    definition: Definition,
    lake: Lake,
    summary: Row,
    counted: Mapping[str, tuple[int | None, int]] = MappingProxyType({}),
) -> dict[str, TableCounts]:
    """Write a batch of events to the definition's tables, and return the counts of each.

    Tables without a message in it are left out.

    batch    events as those of `process`
    summary  its `batch_summary`
    counted  first and last record that were counted for a table before; None = unknown

    Raises ExpectationFailed, and ConfigurationError if a column's type has changed.
    """
    counts: dict[str, TableCounts] = {}
    for table in definition.tables:
        first, end = counted.get(table.name, (None, -1))
        if summary[table.name].messages and summary[table.name].last > end:
            writer = _TableWriter(batch.sparkSession, definition, table, lake, summary)
            messages = batch.where(selects(table))
            if end >= 0:
                messages = messages.where(f.col("sequence") > end)
            try:
                counts[table.name] = writer.write(messages, first)
            except Exception as error:
                raise _failure(definition, table, error) from error
    return counts


def _failure(definition: Definition, table: TypedTable, error: Exception) -> Exception:
    _, separator, rest = str(error).partition(f"{STOPPED} ")
    if not separator:
        return error
    reason = rest.split("\n")[0].split(" SQLSTATE")[0].rstrip(". ")
    return ExpectationFailed(
        f"{definition.location(table.line)}: {reason}: the batch is not written to silver."
        f"{table.name}. The journal keeps the message: change the check or its action, and start "
        "the pipeline again"
    )


def evolved_table(
    spark: SparkSession, definition: Definition, table: TypedTable, lake: Lake
) -> LakeTable:
    """Return a typed table as it is declared; add the columns that an existing one does not have.

    Raises ConfigurationError as LakeTable.evolve."""
    columns = t.StructType([*declared_columns(table), *METADATA])
    properties = CHANGE_DATA_FEED | (RANDOM_FILE_PREFIXES if table.partition_by else {})
    rows = lake.table(f"silver.{table.name}", columns, table.key, table.partition_by, properties)
    rows.evolve(spark, f"{definition.location(table.line)}: table {table.name!r}")
    return rows


class _TableWriter:
    """Writes one batch to one typed table and its companions."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        table: TypedTable,
        lake: Lake,
        summary: Row,
    ) -> None:
        self._spark = spark
        self._table = table
        self._lake = lake
        self._last: int = summary["_last"]
        self._summary = summary[table.name]
        self._field_lists: Sequence[tuple[str, ...]] = ()
        self._columns = declared_columns(table)
        self._rows = evolved_table(spark, definition, table, lake)
        self._quarantine = lake.table(self._rows.name + QUARANTINE, QUARANTINE_COLUMNS)
        deletions = [self._columns[key] for key in table.key]
        deletions += [item for item in METADATA if item.name in _POSITION]
        self._tombstones = lake.table(
            self._rows.name + TOMBSTONES, t.StructType(deletions), table.key
        )

    def write(self, messages: DataFrame, first: int | None) -> TableCounts:
        """Write messages of the batch; those from the record `first` on were counted before."""
        if self._summary.relocated:
            messages = self._drop_repeated(messages, first)
        is_plain_json = self._table.format is Format.JSON and not self._summary.may_need_udf
        if is_plain_json and self._summary.messages >= LARGE_BATCH:
            self._field_lists = common_field_lists(messages)
        return self._merge(messages) if self._table.key else self._append(messages)

    def _typed(self, messages: DataFrame) -> DataFrame:
        return typed_rows(
            messages,
            self._table,
            self._columns,
            self._lake.broker,
            bool(self._summary.may_need_udf),
            self._field_lists,
        )

    def _append(self, messages: DataFrame) -> TableCounts:
        """Append, and count in the same pass.

        Only if messages are to be quarantined, the range of the journal that has them is parsed
        again: keeping all parsed rows would cost more."""
        rows = self._typed(messages)
        end = self._end(self._rows)
        if end >= self._last:
            counts = self._count_outcomes(rows)
        else:
            observation = Observation()
            # Conditions are not moved below an observation, which would parse each body twice.
            observed = rows.observe(observation, *count_columns(self._table))
            observed = observed.where(f.col("_record") > end)
            self._rows.append(
                good_rows(observed, self._columns),
                self._tag(self._rows),
                size=0 if self._table.partition_by else self._summary.messages,
            )
            counts = TableCounts(**observation.get)
        if counts.quarantined:
            condition = f.expr(
                f"sequence BETWEEN {counts.first_quarantined} AND {counts.last_quarantined}"
            )
            self._write_quarantine(self._typed(messages.where(condition)))
        return counts

    def _merge(self, messages: DataFrame) -> TableCounts:
        """Merge the newest message of each key. Rows are cached: a merge scans them twice."""
        with cached(self._typed(messages)) as rows:
            counts = self._count_outcomes(rows)
            if counts.written or not self._rows.exists(self._spark):
                self._merge_newest(rows, bool(counts.deleted))
            if counts.quarantined:
                self._write_quarantine(rows)
        return counts

    def _merge_newest(self, rows: DataFrame, deletes: bool) -> None:
        newest = newest_rows(rows, self._table, self._columns)
        keys = [quoted(name) for name in self._table.key]
        if deletes:
            self._tombstones.evolve(self._spark, self._table.name)
            removed = newest.where("_deleted").select(*keys, *_POSITION)
            self._tombstones.merge(
                removed, tag=self._tag(self._tombstones), update_condition=_NEW_IS_NEWER
            )
        if self._table.delete and self._tombstones.exists(self._spark):
            # A tombstone of the same position stays: it is of this batch, written before a crash.
            conditions = [f"old.{key} = new.{key}" for key in keys]
            conditions.append(_NEWER.format("old", "new"))
            tombstones = self._tombstones.read(self._spark).alias("old")
            newest = newest.alias("new").join(
                tombstones, f.expr(" AND ".join(conditions)), "left_anti"
            )
        self._rows.merge(
            newest,
            tag=self._tag(self._rows),
            update_condition=_NEW_IS_NEWER,
            delete_condition="new._deleted",
        )

    def _write_quarantine(self, rows: DataFrame) -> None:
        end = self._end(self._quarantine)
        if end < self._last:
            self._quarantine.append(
                quarantined_rows(rows.where(f.col("_record") > end)), self._tag(self._quarantine)
            )

    def _tag(self, table: LakeTable) -> Tag:
        return Tag(self._lake.application(table.name), self._last)

    def _end(self, table: LakeTable) -> int:
        """Return the last sequence that this broker has written; -1 if there is none."""
        return table.tagged_version(self._spark, self._lake.application(table.name))

    def _count_outcomes(self, rows: DataFrame) -> TableCounts:
        (values,) = rows.agg(*count_columns(self._table)).collect()
        return TableCounts(**values.asDict())

    def _drop_repeated(self, messages: DataFrame, first: int | None) -> DataFrame:
        """Remove relocated messages that are in the tables, in this batch, or counted before.

        first  first record that was counted before; None = unknown
        """
        originals = messages.where(f.col("event") == str(Event.PUBLISHED))
        relocated = messages.where(f.col("event") == str(Event.RELOCATED))
        if first is not None:
            relocated = relocated.where(f.col("message_sequence") < first)
        relocated = relocated.dropDuplicates(["message_sequence"])
        relocated = relocated.join(originals, "message_sequence", "left_anti")
        for table, broker, sequence in (
            (self._rows, "_broker", "_sequence"),
            (self._quarantine, "broker", "sequence"),
        ):
            if table.exists(self._spark):
                known = (
                    table.read(self._spark)
                    .where(f.col(broker) == self._lake.broker)
                    .select(f.col(sequence).alias("message_sequence"))
                )
                relocated = relocated.join(known, "message_sequence", "left_anti")
        return originals.unionByName(relocated)
