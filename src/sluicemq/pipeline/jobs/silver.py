"""Silver: one row per message, with its decoded body and its life cycle.

    silver(events)    rows of SILVER for the messages of the events
    combine(joined)   such rows, combined with the existing rows of the same messages

Rows of the same message combine in any order: by earliest and latest times, sums of counts, and
fields that are equal wherever they are known. So batches of events that are merged one after the
other give the same rows as all events at once. Each event must be in exactly one batch: a repeated
event is counted twice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from sluicemq.pipeline.delta import OLD
from sluicemq.pipeline.jobs.bodies import DECODED, decode
from sluicemq.pipeline.jobs.schemas import OUTCOMES, SILVER, SILVER_KEYS, column, sql_list

REASON: Final = "deadLetterReason"
_ORIGIN: Final = "originalQueue"
"""Property of dead letters; their `dead-lettered` event has it too."""

RECORD: Final = (
    *("priority", "durability", "expiration", "deliver_at", "size", "body_kind"),
    "client_timestamp",
    *("message_id", "correlation_id", "reply_to", "type", "properties", "property_types"),
    *("original_destination", *DECODED),
)
"""Columns of the message's own record, set together; `size` is then not null."""
_SMALLEST: Final = ("published", "first_delivered")
_GREATEST: Final = (
    *("destination", "destination_kind", "protocol", "last_delivered", "attempts"),
    *(column(outcome) for outcome in OUTCOMES),
    *("requeued", "reason", "moved_to_sequence", "last_event"),
)
_SUMMED: Final = ("deliveries", "redeliveries", "completed_deliveries", "requeues", "events")
_MAPS: Final = {
    "deliveries_by_subscription": "deliveries",
    "completed_by_subscription": "completed_deliveries",
}
"""Maps by subscription, and the counts whose parts they have."""
OF_TOPICS: Final = "destination_kind = 'topic' AND subscription IS NOT NULL"
"""SQL condition of the events that are counted by subscription."""
_DERIVED: Final = ("outcome", "state", "queueing_ms", "end_to_end_ms")

_PLAIN: Final = tuple(name for name in SILVER.names if name not in _DERIVED)


def silver(events: DataFrame, broker: str, *, java: bool = True, topics: bool = True) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of SILVER.

    java    True if a row may fulfil bodies.NEED_JAVA; otherwise nothing is sent to Python
    topics  True if an event may fulfil OF_TOPICS; otherwise no maps by subscription are made
    """
    return _finish(_sum(_facts(events, java), broker, topics))


def combine(joined: DataFrame) -> DataFrame:
    """Combine rows of SILVER with existing ones (delta.LakeTable.merge), except for RECORD."""
    columns = {name: f.least(name, OLD + name) for name in _SMALLEST}
    columns |= {name: f.greatest(name, OLD + name) for name in _GREATEST}
    columns |= {name: added(name) for name in _SUMMED}
    columns |= {name: added_maps(name) for name in _MAPS}
    made = (column.alias(name) for name, column in columns.items())
    return _finish(joined.select(*SILVER_KEYS, *RECORD, *made))


def added(name: str) -> Column:
    """Return the sum of a count of a new row and of the existing one."""
    return f.col(name) + f.coalesce(f.col(OLD + name), f.lit(0))


def added_maps(name: str) -> Column:
    """Return the map of a new row with the counts of the existing one added."""
    zero = f.lit(0).cast("long")

    def add(_: Column, one: Column, other: Column) -> Column:
        return f.coalesce(one, zero) + f.coalesce(other, zero)

    old = f.col(OLD + name)
    both = f.map_zip_with(f.col(name), old, add)
    return f.when(old.isNull(), f.col(name)).otherwise(both)


def _finish(rows: DataFrame) -> DataFrame:
    """Add the columns that are derived from times and counts."""
    ends = (f.when(f.col(column(each)).isNotNull(), each) for each in OUTCOMES)
    firsts = f.col("deliveries") - f.col("redeliveries")
    open_for_some = (f.col("destination_kind") == "topic") & (
        firsts > f.col("completed_deliveries")
    )
    back = f.coalesce(f.col("requeued") >= f.col("last_delivered"), f.lit(False))
    held = (f.col("deliveries") > 0) & ~back
    state = (
        f.when(open_for_some, "unacked")
        .when(f.col("outcome").isNotNull(), f.col("outcome"))
        .when(held, "unacked")
        .otherwise("ready")
    )
    derived = {
        "state": state,
        "queueing_ms": _milliseconds("published", "first_delivered"),
        "end_to_end_ms": _milliseconds("published", "acknowledged"),
    }
    frame = rows.withColumn("outcome", f.coalesce(*ends)).withColumns(derived)
    return frame.select(*SILVER.names)


def _milliseconds(start: str, end: str) -> Column:
    return (f.unix_micros(end) - f.unix_micros(start)) / f.lit(1000.0)


def _facts(events: DataFrame, java: bool) -> DataFrame:
    frame = events.where("message_sequence IS NOT NULL").selectExpr(
        "*",
        "event IN ('published', 'relocated') AS _published",
        "event IN ('delivered', 'redelivered') AS _given",
        f"event IN ({sql_list(OUTCOMES)}) AS _ended",
        f"element_at(properties, '{_ORIGIN}') AS original_destination",
        # properties of a `dead-lettered` event are those of the dead letter
        f"if(event = 'dead-lettered', element_at(properties, '{REASON}'), NULL) AS reason",
    )
    frame = decode(frame, java)
    record = ", ".join(f"'{name}', `{name}`" for name in RECORD)
    return frame.selectExpr(
        "message_sequence",
        f"if((_given OR _ended) AND {OF_TOPICS}, subscription, NULL) AS subscription",
        f"if(_published, named_struct({record}), NULL) AS record",
        "destination",
        "destination_kind",
        "coalesce(published, if(event = 'published', time, NULL)) AS published",
        "protocol",
        "if(_given, time, NULL) AS first_delivered",
        "if(_given, time, NULL) AS last_delivered",
        "attempts",
        *(f"if(event = '{each}', time, NULL) AS {column(each)}" for each in OUTCOMES),
        "if(event = 'requeued', time, NULL) AS requeued",
        "reason",
        "if(event IN ('dead-lettered', 'moved'), sequence - 1, NULL) AS moved_to_sequence",
        "time AS last_event",
        "bigint(_given) AS deliveries",
        "bigint(event = 'redelivered') AS redeliveries",
        "bigint(_ended) AS completed_deliveries",
        "bigint(event = 'requeued') AS requeues",
        "1L AS events",
    )


def _sum(facts: DataFrame, broker: str, topics: bool) -> DataFrame:
    """Aggregate to one row per message.

    For maps by subscription, the first step groups by subscription as well, so that they take
    linear time. One exchange serves both steps, because it is by the coarser key. The broker, a
    constant, is no part of the key: Spark would exchange the rows, with their bodies, once more.
    """
    merged = [
        "first(record, true) AS record",
        *(f"min({each}) AS {each}" for each in _SMALLEST),
        *(f"max({each}) AS {each}" for each in _GREATEST),
        *(f"sum({each}) AS {each}" for each in _SUMMED),
    ]
    partitions = int(str(facts.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    parts = facts.repartition(partitions, "message_sequence")
    none = "CAST(array() AS ARRAY<STRUCT<subscription: BIGINT, count: BIGINT>>)"
    maps = [f"map_from_entries({none}) AS {name}" for name in _MAPS]
    if topics:
        parts = parts.groupBy("message_sequence", "subscription").agg(*map(f.expr, merged))
        maps = [
            "map_from_entries(array_sort(collect_list(if(subscription IS NOT NULL AND "
            f"{count} > 0, struct(subscription, {count}), NULL)))) AS {name}"
            for name, count in _MAPS.items()
        ]
    whole = parts.groupBy("message_sequence").agg(*map(f.expr, merged + maps))
    return whole.withColumn("broker", f.lit(broker)).selectExpr(
        *(f"record.`{name}` AS `{name}`" if name in RECORD else name for name in _PLAIN)
    )
