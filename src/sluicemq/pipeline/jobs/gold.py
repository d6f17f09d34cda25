"""Gold: what happened at each destination in each minute, by protocol.

    gold(events)            rows of GOLD
    combine(older, newer)   one row for each key of either

Counts and histograms add up, of gauges the latest counts, and rates and percentiles are made from
those. So

    gold(all)  =  combine(gold(some), gold(the others))

but for `late_events`, which tell what came late and so depend on when it came. Each event must be
in exactly one of them: what has been added once is not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.pipeline.histogram import bucket_column, percentiles
from sluicemq.pipeline.jobs.pairs import Pairs, single
from sluicemq.pipeline.jobs.schemas import (
    COUNTED,
    GOLD,
    GOLD_KEYS,
    LATENCIES,
    PERCENTILES,
    column,
)
from sluicemq.pipeline.jobs.silver import REASON
from sluicemq.pipeline.schema import Event

WATERMARK: Final = timedelta(hours=1)
UNKNOWN: Final = "unknown"
"""Protocol of messages that the journal does not hold any more."""
ANY: Final = "any"
"""Protocol of gauges."""

NEEDS: Final = (
    *("sequence", "time", "event", "destination", "destination_kind", "published", "protocol"),
    *("size", "waiting", "in_flight", "consumers", "properties"),
)
"""The columns of events that are looked at."""

_SECONDS: Final = 60.0
_MEASURED: Final = dict(zip(LATENCIES, (Event.DELIVERED, Event.ACKNOWLEDGED), strict=True))
"""Latencies, from publishing to this event."""
_SUMMED: Final = ("messages_in", "bytes_in", *map(column, COUNTED), "late_events")
_RATED: Final = ("messages_in", "bytes_in", "acknowledged")
_MAPS: Final = (*LATENCIES, "dead_letter_reasons")
_LONGEST: Final = tuple(f"{name}_max" for name in LATENCIES)
_GAUGES: Final = ("backlog", "in_flight", "consumers", "gauged")
_PLAIN: Final = pa.schema(
    [field for field in GOLD if field.name in (*GOLD_KEYS, *_SUMMED, *_MAPS, *_LONGEST, *_GAUGES)]
)
"""The columns that do not follow from others."""


def gold(
    events: DataFrame,
    broker: str,
    newest: datetime | None = None,
    watermark: timedelta = WATERMARK,
) -> DataFrame:
    """`events` (columns of schema.EVENTS, of which no body is looked at) as rows of GOLD.

    newest  time of the newest event known before these; events of minutes that had ended by
            `watermark` before that are counted in `late_events` too
    """

    def finished(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            yield from complete(table, newest, watermark).to_batches()

    return sums(events, broker).mapInArrow(finished, from_arrow_schema(GOLD))


def combine(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Two sets of rows of GOLD as one. No event may be in both."""
    pairs = Pairs(older, newer, GOLD_KEYS)
    columns = pairs.keys()
    columns |= pairs.summed(_SUMMED)
    columns |= pairs.added(_MAPS)
    columns |= pairs.greatest(_LONGEST)
    columns |= pairs.newer_where(_GAUGES, pairs.not_older("gauged"))
    return _finish(pa.table(columns))


def complete(sums: pa.Table, newest: datetime | None, watermark: timedelta) -> pa.Table:
    """Rows of `sums` as rows of GOLD; the others as for `gold`."""
    events = sums["events"]
    late: Any = pc.multiply(events, 0)
    if newest is not None:
        limit = (newest - watermark).replace(second=0, microsecond=0)
        late = pc.if_else(pc.less(sums["minute"], pa.scalar(limit)), events, late)
    return _finish(sums.drop_columns("events").append_column("late_events", late))


def sums(events: DataFrame, broker: str) -> DataFrame:
    """What Spark has to do for `gold`, with the number of all events in `events`.

    There is nothing in it that changes from batch to batch, such as a time to compare with: Spark
    would compile it anew each time, and run it as slowly as what it has never seen.
    """
    measured = " ".join(f"WHEN '{each}' THEN published" for each in _MEASURED.values())
    facts = (
        events.where("destination IS NOT NULL AND event != 'carried'")
        .withColumn("broker", f.lit(broker))
        .selectExpr(
            "broker",
            "date_trunc('minute', time) AS minute",
            "destination",
            "coalesce(destination_kind, 'queue') AS destination_kind",
            f"if(event = 'gauge', '{ANY}', coalesce(protocol, '{UNKNOWN}')) AS protocol",
            "event",
            f"if(event = 'dead-lettered', element_at(properties, '{REASON}'), NULL) AS reason",
            "if(event = 'message', size, 0L) AS bytes",
            f"(unix_micros(time) - unix_micros(CASE event {measured} END)) / 1000D AS latency",
            "if(event = 'gauge', struct(time AS gauged, sequence AS place, waiting AS backlog,"
            " in_flight, consumers), NULL) AS gauge",
        )
        .withColumn("bucket", bucket_column(f.col("latency")))
    )
    return _sum(facts)


def _sum(facts: DataFrame) -> DataFrame:
    """One row per key: first equal facts, then what the maps are made of."""
    parts = facts.groupBy(*GOLD_KEYS, "event", "bucket", "reason").agg(
        f.expr("count(1) AS count"),
        f.expr("sum(bytes) AS bytes"),
        f.expr("max(latency) AS longest"),
        f.expr("max(gauge) AS gauge"),
    )

    def counted(event: str) -> str:
        return f"sum(if(event = '{event}', count, 0L))"

    def collected(event: str, key: str) -> str:
        wanted = f"event = '{event}' AND {key} IS NOT NULL"
        entries = f"collect_list(if({wanted}, struct({key}, count), NULL))"
        return f"map_from_entries(array_sort({entries}))"

    columns = {
        "messages_in": counted(Event.MESSAGE),
        "bytes_in": "sum(bytes)",
        **{column(each): counted(each) for each in COUNTED},
        **{name: collected(each, "bucket") for name, each in _MEASURED.items()},
        **{
            f"{name}_max": f"max(if(event = '{each}', longest, NULL))"
            for name, each in _MEASURED.items()
        },
        "dead_letter_reasons": collected(Event.DEAD_LETTERED, "reason"),
        "events": "sum(count)",
        "gauge": "max(gauge)",
    }
    whole = parts.groupBy(*GOLD_KEYS).agg(
        *(f.expr(f"{made} AS {name}") for name, made in columns.items())
    )
    gauges = (f"gauge.{name} AS {name}" for name in _GAUGES)
    return whole.selectExpr("*", *gauges).drop("gauge")


def _finish(rows: pa.Table) -> pa.Table:
    """Rows of _PLAIN with the columns that follow from the others."""
    plain = rows.select(_PLAIN.names).cast(_PLAIN)
    columns: dict[str, Any] = {name: single(plain[name]) for name in plain.schema.names}
    columns["day"] = columns["minute"].cast(pa.date32())
    for name in _RATED:
        columns[f"{name}_rate"] = pc.divide(columns[name].cast(pa.float64()), _SECONDS)
    for name in LATENCIES:
        for each, share in PERCENTILES.items():
            columns[f"{name}_{each}"] = percentiles(columns[name], share)
    return pa.table([columns[name] for name in GOLD.names], schema=GOLD)
