"""Gold: events of each destination in each minute, by protocol.

Counts and histograms are added, the latest depth wins, and rates and percentiles are derived. So
batches of events that are merged one after the other give the same rows as all events at once,
except for `late_events`, which depend on the order of arrival. Each event must be in exactly one
batch: a repeated event is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sluicemq.model.dead_letters import REASON
from sluicemq.pipeline.histogram import bucket_column, percentile_sql
from sluicemq.pipeline.jobs.silver import sum_maps_sql, sum_sql
from sluicemq.pipeline.schema import (
    COUNTED,
    EPOCH,
    GOLD,
    GOLD_KEYS,
    LATENCIES,
    PERCENTILES,
    Event,
    column,
)

WATERMARK: Final = timedelta(hours=1)
UNKNOWN: Final = "unknown"
"""Protocol of messages that the journal no longer has."""
ANY: Final = "any"
"""Protocol in the rows of depth events."""

GOLD_INPUT: Final = (
    *("sequence", "time", "event", "destination", "destination_kind", "published", "protocol"),
    *("size", "ready", "unacked", "consumers", "properties"),
)
"""Columns of events that gold needs."""

_SECONDS: Final = 60.0
_MEASURED: Final = dict(zip(LATENCIES, (Event.DELIVERED, Event.ACKNOWLEDGED), strict=True))
"""Latencies: time from publishing to this event."""
_SUMMED: Final = ("published", "published_bytes", *map(column, COUNTED), "late_events")
_RATED: Final = {
    "published": "publish_rate",
    "published_bytes": "published_bytes_rate",
    "acknowledged": "acknowledge_rate",
}
"""Counts and the columns of their rates."""
_MAPS: Final = (*LATENCIES, "dead_letter_reasons")
_MAXIMA: Final = tuple(f"{name}_max" for name in LATENCIES)
_DEPTHS: Final = ("backlog", "unacked", "consumers", "depth_time")


def complete(
    sums: DataFrame, newest: datetime | None = None, watermark: timedelta = WATERMARK
) -> DataFrame:
    """Return rows of `sums` as rows of GOLD, with rates and percentiles.

    newest  time of the newest event before these; events of minutes that had ended by
            `watermark` before it also count as `late_events`
    """
    late_events = f.lit(0).cast("long")
    if newest is not None and watermark < newest - EPOCH:
        limit = (newest - watermark).replace(second=0, microsecond=0)
        late_events = f.when(f.col("minute") < f.lit(limit), f.col("events")).otherwise(late_events)
    derived = _derived({name: name for name in sums.columns})
    columns = {"late_events": late_events, "day": f.to_date("minute")}
    columns |= {name: f.expr(expression) for name, expression in derived.items()}
    return sums.withColumns(columns).select(*GOLD.names)


def _derived(value: Mapping[str, str]) -> dict[str, str]:
    """Return SQL expressions of the columns that are derived from counts and histograms.

    value  SQL expression of each other column"""
    derived = {rate: f"{value[name]} / {_SECONDS}D" for name, rate in _RATED.items()}
    for name in LATENCIES:
        for percentile, share in PERCENTILES.items():
            derived[f"{name}_{percentile}"] = percentile_sql(value[name], share)
    return derived


def _combined() -> dict[str, str]:
    is_later = "coalesce(new.depth_time >= old.depth_time, new.depth_time IS NOT NULL)"
    columns = {name: sum_sql(name) for name in _SUMMED}
    columns |= {name: sum_maps_sql(name) for name in _MAPS}
    columns |= {name: f"greatest(new.{name}, old.{name})" for name in _MAXIMA}
    columns |= {name: f"if({is_later}, new.{name}, old.{name})" for name in _DEPTHS}
    return columns | _derived(columns)


COMBINED: Final = _combined()
"""SQL expressions of the columns of an existing row, `old`, and a `new` one of the same key."""


def sums(events: DataFrame, broker: str) -> DataFrame:
    """Return counts, histograms and latest depths of `events` (columns of schema.EVENTS) by key.

    They include the number of all events. Bodies are not used.

    The query contains nothing that changes between batches, such as a time to compare with,
    because Spark would compile it again for each batch.
    """
    measured = " ".join(f"WHEN '{event}' THEN published" for event in _MEASURED.values())
    facts = (
        events.where("destination IS NOT NULL AND event != 'relocated'")
        .withColumn("broker", f.lit(broker))
        .selectExpr(
            "broker",
            "date_trunc('minute', time) AS minute",
            "destination",
            "coalesce(destination_kind, 'queue') AS destination_kind",
            f"if(event = 'depth', '{ANY}', coalesce(protocol, '{UNKNOWN}')) AS protocol",
            "event",
            f"if(event = 'dead-lettered', element_at(properties, '{REASON}'), NULL) AS reason",
            "if(event = 'published', size, 0L) AS bytes",
            f"(unix_micros(time) - unix_micros(CASE event {measured} END)) / 1000D AS latency",
            "if(event = 'depth', sequence, NULL) AS depth_sequence",
            "time AS depth_time",
            *("ready AS backlog", "unacked", "consumers"),
        )
        .withColumn("bucket", bucket_column(f.col("latency")))
    )
    return _sum(facts)


def _sum(facts: DataFrame) -> DataFrame:
    """Aggregate to one row per key: first group equal facts, then build the maps.

    Each depth event is a group in the first step: Spark would sort all events for the maximum of a
    structure, and hashes them for numbers.
    """
    parts = facts.groupBy(*GOLD_KEYS, "event", "bucket", "reason", "depth_sequence").agg(
        f.expr("count(1) AS count"),
        f.expr("sum(bytes) AS bytes"),
        f.expr("max(latency) AS longest"),
        *(f.max(name).alias(name) for name in _DEPTHS),
    )
    depth = "struct(depth_time, depth_sequence, backlog, unacked, consumers)"

    def counted(event: str) -> str:
        return f"sum(if(event = '{event}', count, 0L))"

    def collected(event: str, key: str) -> str:
        condition = f"event = '{event}' AND {key} IS NOT NULL"
        return (
            "map_from_entries(array_sort(collect_list("
            f"if({condition}, struct({key}, count), NULL))))"
        )

    columns = {
        "published": counted(Event.PUBLISHED),
        "published_bytes": "sum(bytes)",
        **{column(event): counted(event) for event in COUNTED},
        **{name: collected(event, "bucket") for name, event in _MEASURED.items()},
        **{
            f"{name}_max": f"max(if(event = '{event}', longest, NULL))"
            for name, event in _MEASURED.items()
        },
        "dead_letter_reasons": collected(Event.DEAD_LETTERED, "reason"),
        "events": "sum(count)",
        "depth": f"max(if(depth_sequence IS NOT NULL, {depth}, NULL))",
    }
    totals = parts.groupBy(*GOLD_KEYS).agg(
        *(f.expr(f"{expression} AS {name}") for name, expression in columns.items())
    )
    return totals.selectExpr("*", *(f"depth.{name} AS {name}" for name in _DEPTHS)).drop("depth")
