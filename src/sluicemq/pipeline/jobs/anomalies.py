"""Anomalies in gold and silver (docs/pipeline/jobs.md), with the figures that support them.

The histograms of two hours are compared by the test of Kolmogorov and Smirnov. The `id` of an
anomaly is the same on each run, so that a table of them is updated by key.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from sluicemq.pipeline.histogram import percentile_sql
from sluicemq.pipeline.jobs.schemas import ANOMALIES

_KEYS: Final = ("broker", "destination", "destination_kind")
_MAX_OLDEST: Final = 5
"""Number of message numbers in the evidence."""
_MAX_POISON: Final = 100
"""Maximum number of poison messages of one destination; those with most deliveries."""
_WEEK: Final = timedelta(days=7)
"""Time between the hours that are compared."""
_KS_FACTOR: Final = 1.95
"""Kolmogorov-Smirnov threshold for p = 0.001, times sqrt((n + m) / (n m))."""

STUCK_MINUTES: Final = 15
"""Minutes without an acknowledgement while messages are ready."""
POISON_ATTEMPTS: Final = 5
"""Deliveries from which a message is poison."""
COMPARED_SAMPLES: Final = 200
"""Acknowledgements that each of two hours needs for a comparison."""
SLOWER_RATIO: Final = 1.5
"""Minimum ratio of the later hour's 95th percentile to the earlier one's."""
MIN_DISTANCE: Final = 0.1
"""Minimum distance of the two histograms, 0-1."""


def anomalies(gold: DataFrame, silver: DataFrame, span: timedelta = timedelta.max) -> DataFrame:
    """Return rows of ANOMALIES, from all rows of GOLD and SILVER.

    span  time from the first to the last minute of GOLD. Anomalies that take longer are not
          searched for: planning that part of the query takes a second or more
    """
    newest = gold.groupBy("broker").agg(f.max("minute").alias("newest"))
    frames = [poison_messages(silver)]
    if span >= timedelta(minutes=STUCK_MINUTES):
        frames.append(stuck_queues(gold, silver, newest))
    if span >= _WEEK - timedelta(hours=1):
        frames.append(latency_regressions(gold))
    return (
        reduce(DataFrame.unionByName, frames)
        .join(f.broadcast(newest), "broker", "left")
        .withColumn("detected", f.coalesce("newest", "minute"))
        .withColumn(
            "id",
            f.sha2(
                f.concat_ws(
                    "\n",
                    "kind",
                    *_KEYS,
                    f.unix_micros("minute"),
                    f.coalesce("message_sequence", f.lit(0)),
                ),
                224,
            ),
        )
        .select(*ANOMALIES.names)
    )


def stuck_queues(gold: DataFrame, silver: DataFrame, newest: DataFrame) -> DataFrame:
    """Return destinations with ready messages and no acknowledgements.

    newest  the newest minute of each broker
    """
    minutes = gold.groupBy(*_KEYS, "minute").agg(
        f.expr("max_by(struct(backlog, unacked, consumers), depth_time) AS depth"),
        f.sum("acknowledged").alias("acknowledged"),
        f.sum("published").alias("published"),
    )
    waits = f.col("depth.backlog") + f.col("depth.unacked")
    # the last minute with acknowledgements or without ready messages
    last_active = f.max(f.when((f.col("acknowledged") > 0) | (waits <= 0), f.col("minute")))
    by_keys = Window.partitionBy(*_KEYS)
    after = minutes.withColumn("moved", last_active.over(by_keys)).where(
        f.col("moved").isNull() | (f.col("minute") > f.col("moved"))
    )
    stuck = (
        after.groupBy(*_KEYS)
        .agg(
            f.min(f.when(waits > 0, f.col("minute"))).alias("minute"),
            f.expr("min_by(depth, minute) FILTER (WHERE depth IS NOT NULL) AS first"),
            f.expr("max_by(depth, minute) FILTER (WHERE depth IS NOT NULL) AS last"),
            f.sum("published").alias("published"),
        )
        .join(f.broadcast(newest), "broker")
        .withColumn("minutes", (f.unix_seconds("newest") - f.unix_seconds("minute")) / 60)
        .where(f.col("minutes") >= STUCK_MINUTES)
    )
    open_rows = silver.where(f.col("state").isin("ready", "unacked"))
    oldest = (
        open_rows.join(f.broadcast(stuck.select(*_KEYS)), list(_KEYS), "left_semi")
        .withColumn("_rank", f.row_number().over(by_keys.orderBy("message_sequence")))
        .where(f.col("_rank") <= _MAX_OLDEST)
        .groupBy(*_KEYS)
        .agg(f.array_sort(f.collect_list("message_sequence")).alias("oldest"))
    )
    frame = stuck.join(oldest, list(_KEYS), "left")
    first = f.col("first.backlog") + f.col("first.unacked")
    last = f.col("last.backlog") + f.col("last.unacked")
    consumers = f.coalesce(f.col("last.consumers"), f.lit(0))
    figures = {
        "minutes": f.col("minutes").cast("long"),
        "ready": last,
        "ready_at_first": first,
        "published": f.col("published"),
        "consumers": consumers,
        "oldest": f.coalesce("oldest", f.array().cast("array<bigint>")),
    }
    evidence = f.format_string(
        "nothing was acknowledged for %d minutes while %d messages wait (%d at first, %d came in); "
        "%d consumers are attached",
        *(figures[name] for name in list(figures)[:5]),
    )
    return _rows(frame, "stuck-queue", (last > first) | (consumers == 0), evidence, figures)


def poison_messages(silver: DataFrame) -> DataFrame:
    """Return messages with at least POISON_ATTEMPTS deliveries."""
    attempts = f.greatest(f.coalesce("attempts", f.lit(0)), f.col("deliveries"))
    by_keys = Window.partitionBy(*_KEYS).orderBy(attempts.desc(), "message_sequence")
    frame = (
        silver.where((f.col("destination_kind") == "queue") & f.col("last_delivered").isNotNull())
        .where((attempts >= POISON_ATTEMPTS) & (f.col("state") != "acknowledged"))
        .withColumn("_rank", f.row_number().over(by_keys))
        .where(f.col("_rank") <= _MAX_POISON)
        .withColumn("minute", f.date_trunc("minute", "last_delivered"))
    )
    figures = {
        "message_sequence": f.col("message_sequence"),
        "deliveries": attempts.cast("long"),
        "state": f.col("state"),
        "reason": f.coalesce("reason", f.lit("")),
        "message_id": f.coalesce("message_id", f.lit("")),
        "moved_to_sequence": f.col("moved_to_sequence"),
    }
    evidence = f.format_string(
        "message %d was delivered %d times and is %s%s",
        figures["message_sequence"],
        figures["deliveries"],
        f.when(f.col("outcome").isNull(), "still not acknowledged").otherwise(f.col("state")),
        f.coalesce(f.concat(f.lit(": "), "reason"), f.lit("")),
    )
    return _rows(frame, "poison-message", f.col("outcome").isNull(), evidence, figures)


def latency_regressions(gold: DataFrame) -> DataFrame:
    """Return hours with a higher latency than the same hour of the week before."""
    counts = (
        gold.select(*_KEYS, f.date_trunc("hour", "minute").alias("hour"), f.explode("end_to_end"))
        .groupBy(*_KEYS, "hour", f.col("key").alias("bucket"))
        .agg(f.sum("value").alias("now"))
    )
    previous = counts.select(
        *_KEYS, (f.col("hour") + f.lit(_WEEK)).alias("hour"), "bucket", f.col("now").alias("then")
    )
    joined = counts.join(previous, [*_KEYS, "hour", "bucket"], "full").na.fill(0, ["now", "then"])
    hours = Window.partitionBy(*_KEYS, "hour")
    cumulative = hours.orderBy("bucket")
    shares = joined.select(
        "*",
        *(f.sum(period).over(hours).alias(f"{period}_all") for period in ("now", "then")),
        *(f.sum(period).over(cumulative).alias(f"{period}_upto") for period in ("now", "then")),
    ).where((f.col("now_all") >= COMPARED_SAMPLES) & (f.col("then_all") >= COMPARED_SAMPLES))
    gap = f.abs(f.col("now_upto") / f.col("now_all") - f.col("then_upto") / f.col("then_all"))
    frame = (
        shares.groupBy(*_KEYS, f.col("hour").alias("minute"))
        .agg(
            f.max(gap).alias("distance"),
            f.first("now_all").alias("samples"),
            f.first("then_all").alias("samples_before"),
            *(_histogram(period).alias(period) for period in ("now", "then")),
        )
        .withColumn("p95", f.expr(percentile_sql("now", 0.95)))
        .withColumn("p95_before", f.expr(percentile_sql("then", 0.95)))
    )
    n, m = f.col("samples"), f.col("samples_before")
    by_chance = _KS_FACTOR * f.sqrt((n + m) / (n * m))
    ratio = f.col("p95") / f.col("p95_before")
    frame = frame.where(
        (ratio >= SLOWER_RATIO) & (f.col("distance") >= f.greatest(by_chance, f.lit(MIN_DISTANCE)))
    )
    figures = {
        "p95_ms": f.round("p95", 3),
        "p95_ms_before": f.round("p95_before", 3),
        "ratio": f.round(ratio, 2),
        "distance": f.round("distance", 3),
        "samples": n,
        "samples_before": m,
    }
    evidence = f.format_string(
        "95 %% were acknowledged within %.1f ms, a week ago within %.1f ms (%.1f times; %d and %d "
        "messages, distance of the histograms %.2f)",
        *(figures[name] for name in ("p95_ms", "p95_ms_before", "ratio")),
        *(figures[name] for name in ("samples", "samples_before", "distance")),
    )
    return _rows(frame, "latency-regression", ratio >= 3, evidence, figures)


def _histogram(name: str) -> Column:
    return f.map_from_entries(f.collect_list(f.when(f.col(name) > 0, f.struct("bucket", name))))


def _rows(
    frame: DataFrame, kind: str, critical: Column, evidence: Column, figures: dict[str, Column]
) -> DataFrame:
    return frame.select(
        f.lit(kind).alias("kind"),
        f.when(critical, "critical").otherwise("warning").alias("severity"),
        *_KEYS,
        "minute",
        figures.get("message_sequence", f.lit(None).cast("long")).alias("message_sequence"),
        evidence.alias("evidence"),
        f.to_json(f.struct(*(value.alias(name) for name, value in figures.items()))).alias(
            "details"
        ),
    )
