"""Rows of a typed table from a batch of events: parsing, keys, deletions and expectations.

All functions are pure. A row of `typed_rows` has the declared columns, the columns of METADATA, and

    _deleted    True for a message that removes the row of its key; its expectations are not checked
    _failed_I   True if expectation I failed
    _outcome    see Outcome
    _reason     reason of the quarantine
    _failed     names of all failed expectations
    _unknown    number of JSON fields that no column has
    _body       body of a quarantined message
    _record     sequence number of the event's record, which is not that of a relocated message
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructType

from sluicemq.model.access import matcher
from sluicemq.model.dead_letters import REASON
from sluicemq.pipeline.delta import KEYS, temporary_settings
from sluicemq.pipeline.schema import Event, quoted
from sluicemq.pipeline.typed.bodies import parse, with_text
from sluicemq.pipeline.typed.definition import Action, TypedTable

TYPED_INPUT: Final = (
    *("sequence", "time", "event", "destination", "destination_kind", "message_sequence"),
    *("published", "protocol", "body_kind", "body", "message_id", "properties"),
)
"""Columns of `format("sluicemq")` that typed tables need: read with includeHeaders."""

METADATA: Final = (
    StructType()
    .add("_broker", "string")
    .add("_sequence", "long")
    .add("_destination", "string")
    .add("_time", "timestamp")
    .add("_message_id", "string")
)
"""Columns of every typed table after the declared ones."""

_MESSAGE: Final = (
    *("message_sequence AS _sequence", "destination AS _destination"),
    *("coalesce(published, time) AS _time", "message_id AS _message_id"),
    *("sequence AS _record", "body AS _bytes", "_text", "_error"),
)
"""Columns of a typed row before its body is parsed."""

QUARANTINE_COLUMNS: Final = (
    StructType()
    .add("broker", "string")
    .add("sequence", "long")
    .add("message_id", "string")
    .add("destination", "string")
    .add("time", "timestamp")
    .add("reason", "string")
    .add("expectation", ArrayType(StringType()))
    .add("body", "binary")
)

_LIKE: Final = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_", "*": "%"})
"""Translation of a pattern of destinations into one of LIKE."""

LENIENT: Final = {"spark.sql.ansi.enabled": "false"}
"""Settings for the analysis of the user's SQL.

A message for which a check divides by zero then fails the check (NULL) instead of the job: one
message must not stop the pipeline."""


class Outcome(StrEnum):
    """What happens to a message of a typed table."""

    WRITTEN = "written"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"


_WRITTEN: Final = f"_outcome = '{Outcome.WRITTEN}'"
_QUARANTINED: Final = f"_outcome = '{Outcome.QUARANTINED}'"


@dataclass(frozen=True)
class TableCounts:
    """Counts of one table in one batch.

    messages         messages of the table's destinations
    written, dropped, quarantined    by outcome
    deleted          written messages that remove a row
    unparsed         quarantined messages that are not of the format, type or key
    unknown_fields   JSON fields that no column has
    failed           expectation -> messages that failed it
    first_quarantined, last_quarantined    their range of sequence numbers
    """

    messages: int = 0
    written: int = 0
    dropped: int = 0
    quarantined: int = 0
    deleted: int = 0
    unparsed: int = 0
    unknown_fields: int = 0
    first_quarantined: int | None = None
    last_quarantined: int | None = None
    failed: Mapping[str, int] = field(default_factory=dict)


def declared_columns(table: TypedTable) -> StructType:
    """Return the table's declared columns; needs a Spark session."""
    return cast(StructType, StructType.fromDDL(table.schema))


def subscription(destinations: Iterable[str]) -> str:
    """Return the source's option subscribePattern for patterns of typed tables.

    Its option destinations is a list, but a pattern may have commas and blanks."""
    return "|".join(f"(?s:{matcher(pattern).pattern})" for pattern in destinations) or "(?!)"


def selects(table: TypedTable) -> Column:
    """Return the condition that an event is a published message of the table's destinations.

    Dead letters are left out unless the pattern names their queue: otherwise `orders*` would also
    match `orders.dlq`, and every dead letter would be a second row."""
    pattern = table.destination.translate(_LIKE)
    name = f.expr("if(destination_kind = 'topic', concat('topic:', destination), destination)")
    selected = (
        f.col("event").isin(str(Event.PUBLISHED), str(Event.RELOCATED))
        & f.col("message_sequence").isNotNull()
        & name.like(pattern)
    )
    if not table.names_dead_letters:
        dead = f.expr(
            f"coalesce(map_contains_key(properties, '{REASON}'), false) "
            "OR destination LIKE '%.dlq' OR destination = 'mq.sys.dmq'"
        )
        selected = selected & ~dead
    return f.coalesce(selected, f.lit(False))


def typed_rows(
    messages: DataFrame,
    table: TypedTable,
    columns: StructType,
    broker: str,
    may_need_udf: bool,
    field_lists: Sequence[tuple[str, ...]] = (),
) -> DataFrame:
    """Return messages (`selects`) as typed rows with their outcomes.

    columns        the table's declared columns
    may_need_udf  True if a message may fulfil jobs.bodies.NEEDS_UDF
    field_lists    result of bodies.common_field_lists
    """
    frame = with_text(messages, table.format, may_need_udf)
    # A declared column may have any name without a leading underscore.
    metadata = {KEYS: ", ".join(table.key)}
    frame = frame.select(f.lit(broker).alias("_broker", metadata=metadata), *map(f.expr, _MESSAGE))
    frame = parse(frame, table.format, columns, field_lists)
    with temporary_settings(messages.sparkSession, LENIENT):
        return _with_outcome(_with_key_reason(frame, table), table)


def _with_key_reason(frame: DataFrame, table: TypedTable) -> DataFrame:
    is_good, reason = f.col("_good"), f.col("_reason")
    for name in table.key:
        null = f.col(quoted(name)).isNull()
        if name in table.partition_by:
            null = null | (f.col(quoted(name)).cast("string") == "")  # which Delta stores as NULL
        is_good = is_good & ~null
        reason = f.coalesce(reason, f.when(null, f.lit(f"the key column {name} is null")))
    return frame.withColumns({"_good": is_good, "_reason": reason})


def _with_outcome(frame: DataFrame, table: TypedTable) -> DataFrame:
    deleted = f"_good AND coalesce(({table.delete}), false)" if table.delete else "false"
    checks = [
        f.expr(f"_good AND NOT _deleted AND NOT coalesce(({item.check}), false)")
        for item in table.expectations
    ]
    names = [
        f.when(f.col(f"_failed_{index}"), f.lit(item.name))
        for index, item in enumerate(table.expectations)
    ]
    outcome = (
        f.when(~f.col("_good"), f.lit(str(Outcome.QUARANTINED)))
        .when(_any_failed(table, Action.FAIL), f.expr(_stop(table)))
        .when(_any_failed(table, Action.QUARANTINE), f.lit(str(Outcome.QUARANTINED)))
        .when(_any_failed(table, Action.DROP), f.lit(str(Outcome.DROPPED)))
        .otherwise(f.lit(str(Outcome.WRITTEN)))
    )
    # Each alias may refer to those before it.
    return frame.select(
        "*",
        f.expr(deleted).alias("_deleted"),
        *(check.alias(f"_failed_{index}") for index, check in enumerate(checks)),
        f.array_compact(f.array(*names)).cast(ArrayType(StringType())).alias("_failed"),
        outcome.alias("_outcome"),
    ).selectExpr(
        "* EXCEPT (_reason, _bytes)",
        "NOT _good AS _unparsed",
        f"if({_QUARANTINED}, coalesce(_reason, "
        "concat('expectation failed: ', array_join(_failed, ', '))), NULL) AS _reason",
        f"if({_QUARANTINED}, _bytes, NULL) AS _body",
    )


def _any_failed(table: TypedTable, action: Action) -> Column:
    """Return the condition that an expectation with this action failed."""
    names = [f"_failed_{i}" for i, item in enumerate(table.expectations) if item.action is action]
    return f.expr(" OR ".join(["false", *names]))


STOPPED: Final = "[expectation failed]"
"""Start of the text of the error that an expectation with the action FAIL raises."""


def _stop(table: TypedTable) -> str:
    return (
        f"string(raise_error(concat('{STOPPED} table {table.name}: ', array_join(_failed, ', '), "
        "' at message ', _sequence, ' of the destination ', _destination)))"
    )


def count_columns(table: TypedTable) -> list[Column]:
    """Return the aggregates of TableCounts over typed rows, for `observe` or `agg`."""
    aggregates = {
        "messages": "count(1)",
        "written": f"count_if({_WRITTEN})",
        "dropped": f"count_if(_outcome = '{Outcome.DROPPED}')",
        "quarantined": f"count_if({_QUARANTINED})",
        "deleted": "count_if(_deleted)",
        "unparsed": "count_if(_unparsed)",
        "unknown_fields": "coalesce(sum(_unknown), 0)",
        "first_quarantined": f"min(if({_QUARANTINED}, _record, NULL))",
        "last_quarantined": f"max(if({_QUARANTINED}, _record, NULL))",
    }
    failed = f.create_map(
        *(
            column
            for index, item in enumerate(table.expectations)
            for column in (f.lit(item.name), f.expr(f"count_if(_failed_{index})"))
        )
    )
    return [
        *(f.expr(sql).alias(name) for name, sql in aggregates.items()),
        failed.cast("MAP<STRING, BIGINT>").alias("failed"),
    ]


def good_rows(rows: DataFrame, columns: StructType) -> DataFrame:
    """Return the rows to write: declared columns and METADATA."""
    return rows.where(_WRITTEN).select(*(quoted(item.name) for item in (*columns, *METADATA)))


def quarantined_rows(rows: DataFrame) -> DataFrame:
    """Return the rows of the quarantine table, one per message however many expectations fail."""
    return rows.where(_QUARANTINED).selectExpr(
        "_broker AS broker",
        "_sequence AS sequence",
        "_message_id AS message_id",
        "_destination AS destination",
        "_time AS time",
        "_reason AS reason",
        "_failed AS expectation",
        "_body AS body",
    )


def newest_rows(rows: DataFrame, table: TypedTable, columns: StructType) -> DataFrame:
    """Return the newest written message of each key, with `_deleted`.

    All rows are of one broker, so the highest sequence number is the newest."""
    row = f.struct(*(quoted(item.name) for item in (*columns, *METADATA)), "_deleted")
    return (
        rows.where(_WRITTEN)
        .groupBy(*map(quoted, table.key))
        .agg(f.max_by(row, "_sequence").alias("_newest"))
        .select("_newest.*")
    )
