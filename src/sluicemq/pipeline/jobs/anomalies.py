"""Anomalies in gold and silver (docs/pipeline/jobs.md), with the figures that support them.

The histograms of two hours are compared by the test of Kolmogorov and Smirnov. The `id` of an
anomaly is the same on each run, so that a table of them is updated by key.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from sluicemq.pipeline.histogram import percentile_sql
from sluicemq.pipeline.schema import ANOMALIES

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

_KEYS: Final = "broker, destination, destination_kind"
_MAX_OLDEST: Final = 5
"""Number of message numbers in the evidence."""
_MAX_POISON: Final = 100
"""Maximum number of poison messages of one destination; those with most deliveries."""
_WEEK: Final = timedelta(days=7)
"""Time between the hours that are compared."""
_KS_FACTOR: Final = 1.95
"""Kolmogorov-Smirnov threshold for p = 0.001, times sqrt((n + m) / (n m))."""

_STUCK_QUEUES: Final = f"""
    WITH minutes AS (
        SELECT {_KEYS}, minute, sum(acknowledged) AS acknowledged, sum(published) AS published,
            max_by(struct(backlog + unacked AS waiting, consumers), depth_time) AS depth
        FROM {{gold}} GROUP BY {_KEYS}, minute
    ), actives AS (
        -- last_active: the last minute with acknowledgements or without waiting messages
        SELECT *, max(if(acknowledged > 0 OR depth.waiting <= 0, minute, NULL))
            OVER (PARTITION BY {_KEYS}) AS last_active
        FROM minutes
    ), stuck AS (
        SELECT {_KEYS}, min(if(depth.waiting > 0, minute, NULL)) AS minute,
            min_by(depth, minute) FILTER (WHERE depth IS NOT NULL) AS first,
            max_by(depth, minute) FILTER (WHERE depth IS NOT NULL) AS last,
            sum(published) AS published
        FROM actives WHERE last_active IS NULL OR minute > last_active GROUP BY {_KEYS}
    ), long_stuck AS (
        SELECT /*+ BROADCAST(newest) */ stuck.*,
            bigint((unix_seconds(newest) - unix_seconds(minute)) / 60) AS minutes
        FROM stuck JOIN {{newest}} newest USING (broker)
        WHERE unix_seconds(newest) - unix_seconds(minute) >= {60 * STUCK_MINUTES}
    ), open_messages AS (
        SELECT /*+ BROADCAST(long_stuck) */ {_KEYS}, message_sequence,
            row_number() OVER (PARTITION BY {_KEYS} ORDER BY message_sequence) AS rank
        FROM {{silver}} LEFT SEMI JOIN long_stuck USING ({_KEYS})
        WHERE state IN ('ready', 'unacked')
    ), oldest AS (
        SELECT {_KEYS}, array_sort(collect_list(message_sequence)) AS oldest
        FROM open_messages WHERE rank <= {_MAX_OLDEST} GROUP BY {_KEYS}
    ), figures AS (
        SELECT {_KEYS}, minute, minutes, last.waiting AS ready, first.waiting AS ready_at_first,
            published, coalesce(last.consumers, 0) AS consumers,
            coalesce(oldest, CAST(array() AS ARRAY<BIGINT>)) AS oldest
        FROM long_stuck LEFT JOIN oldest USING ({_KEYS})
    )
    SELECT 'stuck-queue' AS kind, ready > ready_at_first OR consumers = 0 AS critical,
        {_KEYS}, minute, CAST(NULL AS BIGINT) AS message_sequence,
        format_string('nothing was acknowledged for %d minutes while %d messages wait '
            || '(%d at first, %d came in); %d consumers are attached',
            minutes, ready, ready_at_first, published, consumers) AS evidence,
        to_json(struct(minutes, ready, ready_at_first, published, consumers, oldest)) AS details
    FROM figures
"""
"""Destinations with ready messages and no acknowledgements. `newest` has the newest minute of each
broker."""

_ATTEMPTS: Final = "greatest(coalesce(attempts, 0), deliveries)"
_POISON_MESSAGES: Final = f"""
    WITH ranked AS (
        SELECT *, {_ATTEMPTS} AS delivered,
            row_number() OVER (
                PARTITION BY {_KEYS} ORDER BY {_ATTEMPTS} DESC, message_sequence) AS rank
        FROM {{silver}}
        WHERE destination_kind = 'queue' AND last_delivered IS NOT NULL
            AND {_ATTEMPTS} >= {POISON_ATTEMPTS} AND state != 'acknowledged'
    )
    SELECT 'poison-message' AS kind, outcome IS NULL AS critical,
        {_KEYS}, date_trunc('minute', last_delivered) AS minute, message_sequence,
        format_string('message %d was delivered %d times and is %s%s', message_sequence, delivered,
            if(outcome IS NULL, 'still not acknowledged', state),
            coalesce(concat(': ', reason), '')) AS evidence,
        to_json(struct(message_sequence, delivered AS deliveries, state,
            coalesce(reason, '') AS reason, coalesce(message_id, '') AS message_id,
            moved_to_sequence)) AS details
    FROM ranked WHERE rank <= {_MAX_POISON}
"""
"""Messages with at least POISON_ATTEMPTS deliveries."""

_LATENCY_REGRESSIONS: Final = f"""
    WITH counts AS (
        SELECT {_KEYS}, date_trunc('hour', minute) AS hour, bucket, sum(messages) AS messages
        FROM {{gold}} LATERAL VIEW explode(end_to_end) AS bucket, messages
        GROUP BY {_KEYS}, date_trunc('hour', minute), bucket
    ), weeks AS (
        SELECT {_KEYS}, hour, bucket, messages AS later, 0L AS earlier FROM counts
        UNION ALL
        SELECT {_KEYS}, hour + INTERVAL '{_WEEK.days}' DAY, bucket, 0L, messages FROM counts
    ), buckets AS (
        SELECT {_KEYS}, hour, bucket, sum(later) AS later, sum(earlier) AS earlier
        FROM weeks GROUP BY {_KEYS}, hour, bucket
    ), shares AS (
        SELECT *, sum(later) OVER hours AS samples, sum(earlier) OVER hours AS samples_before,
            sum(later) OVER up_to AS later_up_to, sum(earlier) OVER up_to AS earlier_up_to
        FROM buckets
        WINDOW hours AS (PARTITION BY {_KEYS}, hour),
            up_to AS (PARTITION BY {_KEYS}, hour ORDER BY bucket)
    ), hours AS (
        SELECT {_KEYS}, hour, samples, samples_before,
            max(abs(later_up_to / samples - earlier_up_to / samples_before)) AS distance,
            map_from_entries(collect_list(if(later > 0, struct(bucket, later), NULL))) AS later,
            map_from_entries(collect_list(if(earlier > 0, struct(bucket, earlier), NULL)))
                AS earlier
        FROM shares
        WHERE samples >= {COMPARED_SAMPLES} AND samples_before >= {COMPARED_SAMPLES}
        GROUP BY {_KEYS}, hour, samples, samples_before
    ), percentiles AS (
        SELECT *, {percentile_sql("later", 0.95)} AS p95,
            {percentile_sql("earlier", 0.95)} AS p95_before
        FROM hours
    ), figures AS (
        SELECT {_KEYS}, hour, round(p95, 3) AS p95_ms, round(p95_before, 3) AS p95_ms_before,
            round(p95 / p95_before, 2) AS ratio, round(distance, 3) AS distance,
            samples, samples_before, p95 / p95_before >= 3 AS critical
        FROM percentiles
        WHERE p95 / p95_before >= {SLOWER_RATIO} AND distance >= greatest({MIN_DISTANCE}D,
            {_KS_FACTOR}D * sqrt((samples + samples_before) / (samples * samples_before)))
    )
    SELECT 'latency-regression' AS kind, critical,
        {_KEYS}, hour AS minute, CAST(NULL AS BIGINT) AS message_sequence,
        format_string('95 %% were acknowledged within %.1f ms, a week ago within %.1f ms '
            || '(%.1f times; %d and %d messages, distance of the histograms %.2f)',
            p95_ms, p95_ms_before, ratio, samples, samples_before, distance) AS evidence,
        to_json(struct(p95_ms, p95_ms_before, ratio, distance, samples, samples_before)) AS details
    FROM figures
"""
"""Hours with a higher latency than the same hour of the week before."""


def anomalies(gold: DataFrame, silver: DataFrame, span: timedelta = timedelta.max) -> DataFrame:
    """Return rows of ANOMALIES, from all rows of GOLD and SILVER.

    span  time from the first to the last minute of GOLD. Anomalies that take longer are not
          searched for: planning that part of the query takes a second or more
    """
    spark = gold.sparkSession
    newest = gold.groupBy("broker").agg(f.max("minute").alias("newest"))
    frames = [spark.sql(_POISON_MESSAGES, silver=silver)]
    if span >= timedelta(minutes=STUCK_MINUTES):
        frames.append(spark.sql(_STUCK_QUEUES, gold=gold, silver=silver, newest=newest))
    if span >= _WEEK - timedelta(hours=1):
        frames.append(spark.sql(_LATENCY_REGRESSIONS, gold=gold))
    identity = f"'\\n', kind, {_KEYS}, unix_micros(minute), coalesce(message_sequence, 0)"
    columns = {
        "severity": f.expr("if(critical, 'critical', 'warning')"),
        "detected": f.coalesce("newest", "minute"),
        "id": f.expr(f"sha2(concat_ws({identity}), 224)"),
    }
    rows = reduce(DataFrame.unionByName, frames).join(f.broadcast(newest), "broker", "left")
    return rows.withColumns(columns).select(*ANOMALIES.names)
