"""Silver: one row per message, with its decoded body and its life cycle.

    silver(events)          rows of SILVER for the messages of the events
    combine(older, newer)   one row for each message of either

Rows of the same message combine in any order: by earliest and latest times, sums of counts, and
fields that are equal wherever they are known. So

    silver(all)  =  combine(silver(some), silver(the others))

Each event must be in exactly one of them: a repeated event is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from sluicemq.pipeline.jobs.bodies import DECODED, decode
from sluicemq.pipeline.jobs.pairs import Pairs, single
from sluicemq.pipeline.jobs.schemas import OUTCOMES, SILVER, SILVER_KEYS, column, sql_list

REASON: Final = "deadLetterReason"
_ORIGIN: Final = "originalQueue"
"""Property of dead letters; their `dead-lettered` event has it too."""

_RECORD: Final = (
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
_DERIVED: Final = ("outcome", "state", "queueing_ms", "end_to_end_ms")

_PLAIN: Final = pa.schema([field for field in SILVER if field.name not in _DERIVED])


def silver(events: DataFrame, broker: str) -> DataFrame:
    """Return `events` (columns of schema.EVENTS) as rows of SILVER."""
    return sums(events, broker).mapInArrow(_finish_batches, from_arrow_schema(SILVER))


def combine(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Combine two tables of SILVER. No event may be in both."""
    pairs = Pairs(older, newer, SILVER_KEYS)
    columns = pairs.keys()
    _, known = pairs.known("size")
    columns |= pairs.newer_where(_RECORD, known)
    columns |= pairs.smallest(_SMALLEST)
    columns |= pairs.greatest(_GREATEST)
    columns |= pairs.summed(_SUMMED)
    columns |= pairs.added(_MAPS)
    return finish(pa.table([columns[name] for name in _PLAIN.names], names=_PLAIN.names))


def sums(events: DataFrame, broker: str, java: bool = True) -> DataFrame:
    """Return `silver` without the derived columns (`finish`).

    java  True if there may be bodies of JMS clients
    """
    return _sum(_facts(events, broker, java))


def _facts(events: DataFrame, broker: str, java: bool) -> DataFrame:
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
    record = ", ".join(f"'{name}', `{name}`" for name in _RECORD)
    return frame.withColumn("broker", f.lit(broker)).selectExpr(
        "broker",
        "message_sequence",
        "if((_given OR _ended) AND destination_kind = 'topic', subscription, NULL) AS subscription",
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


def _sum(facts: DataFrame) -> DataFrame:
    """Aggregate to one row per message.

    The first step groups by subscription as well, so that maps by subscription take linear time.
    One exchange serves both steps, because it is by the coarser key.
    """
    merged = [
        "first(record, true) AS record",
        *(f"min({each}) AS {each}" for each in _SMALLEST),
        *(f"max({each}) AS {each}" for each in _GREATEST),
        *(f"sum({each}) AS {each}" for each in _SUMMED),
    ]
    maps = [
        "map_from_entries(array_sort(collect_list(if(subscription IS NOT NULL AND "
        f"{count} > 0, struct(subscription, {count}), NULL)))) AS {name}"
        for name, count in _MAPS.items()
    ]
    partitions = int(str(facts.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    placed = facts.repartition(partitions, *SILVER_KEYS)
    parts = placed.groupBy(*SILVER_KEYS, "subscription").agg(*map(f.expr, merged))
    whole = parts.groupBy(*SILVER_KEYS).agg(*map(f.expr, (*merged, *maps)))
    return whole.selectExpr(
        *(f"record.`{name}` AS `{name}`" if name in _RECORD else name for name in _PLAIN.names)
    )


def finish(rows: pa.Table) -> pa.Table:
    """Add the derived columns to rows of `sums`."""
    plain = rows.cast(_PLAIN)
    # bodies may exceed the size of one array
    columns: dict[str, Any] = {
        name: plain[name] if name in _RECORD else single(plain[name]) for name in _PLAIN.names
    }
    ended = [columns[column(each)].is_valid() for each in OUTCOMES]
    outcome = pc.case_when(pc.make_struct(*ended), *(pa.scalar(each) for each in OUTCOMES))
    topic = pc.equal(columns["destination_kind"], "topic")
    firsts = pc.subtract(columns["deliveries"], columns["redeliveries"])
    back = pc.greater_equal(columns["requeued"], columns["last_delivered"])
    held = pc.and_(pc.greater(columns["deliveries"], 0), pc.invert(pc.fill_null(back, False)))
    cases = pc.make_struct(
        pc.fill_null(pc.and_(topic, pc.greater(firsts, columns["completed_deliveries"])), False),
        outcome.is_valid(),
        held,
    )
    columns["outcome"] = outcome
    columns["state"] = pc.case_when(
        cases, pa.scalar("unacked"), outcome, pa.scalar("unacked"), pa.scalar("ready")
    )
    for name, end in (("queueing_ms", "first_delivered"), ("end_to_end_ms", "acknowledged")):
        columns[name] = _milliseconds(columns["published"], columns[end])
    return pa.table([columns[name] for name in SILVER.names], schema=SILVER)


def _finish_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from finish(pa.Table.from_batches([batch])).to_batches()


def _milliseconds(start: Any, end: Any) -> Any:
    passed = pc.subtract(end.cast(pa.int64()), start.cast(pa.int64()))
    return pc.divide(passed.cast(pa.float64()), 1000.0)
