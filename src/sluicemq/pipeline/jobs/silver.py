"""Silver: one row per message, with its decoded body and its life cycle.

Rows of the same message combine in any order: by earliest and latest times, sums of counts, and
fields that are equal wherever they are known. So batches of events that are merged one after the
other give the same rows as all events at once. Each event must be in exactly one batch: a repeated
event is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sluicemq.model.dead_letters import ORIGIN, REASON
from sluicemq.pipeline.jobs.bodies import DECODED, decode
from sluicemq.pipeline.schema import OUTCOMES, SILVER, column, sql_list

RECORD: Final = (
    *("priority", "durability", "expiration", "deliver_at", "size", "body_kind"),
    "client_timestamp",
    *("message_id", "correlation_id", "reply_to", "type", "properties", "property_types"),
    *("original_destination", *DECODED),
)
"""Columns of the message's own record, set together; `size` is then not null."""
_MINIMA: Final = ("published", "first_delivered")
_MAXIMA: Final = (
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


def silver(
    events: DataFrame, broker: str, *, may_need_udf: bool = True, may_have_topics: bool = True
) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of SILVER.

    may_need_udf    True if a row may fulfil bodies.NEEDS_UDF; otherwise the plan has no UDF
    may_have_topics  True if an event may fulfil OF_TOPICS; otherwise no maps by subscription are
                     made
    """
    rows = _sum(_facts(events, may_need_udf), broker, may_have_topics)
    derived = _derived({name: name for name in rows.columns})
    return rows.withColumns({name: f.expr(derived[name]) for name in derived}).select(*SILVER.names)


def sum_sql(name: str) -> str:
    """Return the sum of a count of the rows `old` and `new`, in SQL."""
    return f"(new.{name} + old.{name})"


def sum_maps_sql(name: str) -> str:
    """Return the map with the counts of the rows `old` and `new` added, in SQL."""
    add = "(key, one, other) -> coalesce(one, 0L) + coalesce(other, 0L)"
    return f"map_zip_with(new.{name}, old.{name}, {add})"


def _derived(value: Mapping[str, str]) -> dict[str, str]:
    """Return SQL expressions of the columns that are derived from times and counts.

    value  SQL expression of each other column"""
    ends = (f"if({value[column(event)]} IS NOT NULL, '{event}', NULL)" for event in OUTCOMES)
    outcome = f"coalesce({', '.join(ends)})"
    firsts = f"{value['deliveries']} - {value['redeliveries']}"
    open_for_some = (
        f"{value['destination_kind']} = 'topic' AND {firsts} > {value['completed_deliveries']}"
    )
    back = f"coalesce({value['requeued']} >= {value['last_delivered']}, false)"
    return {
        "outcome": outcome,
        "state": (
            f"CASE WHEN {open_for_some} THEN 'unacked' WHEN {outcome} IS NOT NULL THEN {outcome} "
            f"WHEN {value['deliveries']} > 0 AND NOT {back} THEN 'unacked' ELSE 'ready' END"
        ),
        "queueing_ms": _milliseconds(value["published"], value["first_delivered"]),
        "end_to_end_ms": _milliseconds(value["published"], value["acknowledged"]),
    }


def _milliseconds(start: str, end: str) -> str:
    return f"(unix_micros({end}) - unix_micros({start})) / 1000D"


def _combined() -> dict[str, str]:
    columns = {name: f"if(new.size IS NOT NULL, new.{name}, old.{name})" for name in RECORD}
    columns |= {name: f"least(new.{name}, old.{name})" for name in _MINIMA}
    columns |= {name: f"greatest(new.{name}, old.{name})" for name in _MAXIMA}
    columns |= {name: sum_sql(name) for name in _SUMMED}
    columns |= {name: sum_maps_sql(name) for name in _MAPS}
    return columns | _derived(columns)


COMBINED: Final = _combined()
"""SQL expressions of the columns of an existing row, `old`, and a `new` one of the same message."""


def _facts(events: DataFrame, may_need_udf: bool) -> DataFrame:
    frame = events.where("message_sequence IS NOT NULL").selectExpr(
        "*",
        "event IN ('published', 'relocated') AS _published",
        "event IN ('delivered', 'redelivered') AS _delivered",
        f"event IN ({sql_list(OUTCOMES)}) AS _ended",
        f"element_at(properties, '{ORIGIN}') AS original_destination",
        # properties of a `dead-lettered` event are those of the dead letter
        f"if(event = 'dead-lettered', element_at(properties, '{REASON}'), NULL) AS reason",
    )
    frame = decode(frame, may_need_udf)
    record = ", ".join(f"'{name}', `{name}`" for name in RECORD)
    return frame.selectExpr(
        "message_sequence",
        f"if((_delivered OR _ended) AND {OF_TOPICS}, subscription, NULL) AS subscription",
        f"if(_published, named_struct({record}), NULL) AS record",
        "destination",
        "destination_kind",
        "coalesce(published, if(event = 'published', time, NULL)) AS published",
        "protocol",
        "if(_delivered, time, NULL) AS first_delivered",
        "if(_delivered, time, NULL) AS last_delivered",
        "attempts",
        *(f"if(event = '{event}', time, NULL) AS {column(event)}" for event in OUTCOMES),
        "if(event = 'requeued', time, NULL) AS requeued",
        "reason",
        "if(event IN ('dead-lettered', 'moved'), sequence - 1, NULL) AS moved_to_sequence",
        "time AS last_event",
        "bigint(_delivered) AS deliveries",
        "bigint(event = 'redelivered') AS redeliveries",
        "bigint(_ended) AS completed_deliveries",
        "bigint(event = 'requeued') AS requeues",
        "1L AS events",
    )


def _sum(facts: DataFrame, broker: str, may_have_topics: bool) -> DataFrame:
    """Aggregate to one row per message.

    For maps by subscription, the first step groups by subscription as well, so that they take
    linear time. One exchange serves both steps, because it is by the coarser key. The broker, a
    constant, is no part of the key: Spark would exchange the rows, with their bodies, once more.
    """
    merged = [
        "first(record, true) AS record",
        *(f"min({name}) AS {name}" for name in _MINIMA),
        *(f"max({name}) AS {name}" for name in _MAXIMA),
        *(f"sum({name}) AS {name}" for name in _SUMMED),
    ]
    partitions = int(str(facts.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    parts = facts.repartition(partitions, "message_sequence")
    empty = "CAST(array() AS ARRAY<STRUCT<subscription: BIGINT, count: BIGINT>>)"
    maps = [f"map_from_entries({empty}) AS {name}" for name in _MAPS]
    if may_have_topics:
        parts = parts.groupBy("message_sequence", "subscription").agg(*map(f.expr, merged))
        maps = [
            "map_from_entries(array_sort(collect_list(if(subscription IS NOT NULL AND "
            f"{count} > 0, struct(subscription, {count}), NULL)))) AS {name}"
            for name, count in _MAPS.items()
        ]
    messages = parts.groupBy("message_sequence").agg(*map(f.expr, merged + maps))
    return messages.withColumn("broker", f.lit(broker)).selectExpr(
        *(f"record.`{name}` AS `{name}`" if name in RECORD else name for name in _PLAIN)
    )
