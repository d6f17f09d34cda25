"""Histograms of latencies: errors of percentiles, in plain Python and in Spark."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline import histogram
from tests.pipeline.latencies import ERROR, bucket_of

LATENCIES = st.floats(0, 1e10, allow_nan=False) | st.integers(-5, 100_000).map(float)
SHARES = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


def of(latencies: list[float]) -> dict[int, int]:
    return dict(Counter(map(bucket_of, latencies)))


@given(st.lists(LATENCIES, min_size=1, max_size=50), st.sampled_from(SHARES))
def test_a_percentile_is_at_most_so_far_off(latencies: list[float], share: float) -> None:
    rank = max(1, math.ceil(share * len(latencies)))
    expected = sorted(latencies)[rank - 1]
    percentile = histogram.percentile(of(latencies), share)
    assert percentile is not None
    if expected <= histogram.FLOOR:
        assert percentile == histogram.FLOOR
    else:
        assert percentile == pytest.approx(expected, rel=ERROR * 1.001)


def test_empty_histogram_has_no_percentile() -> None:
    assert histogram.percentile({}, 0.5) is None


def test_latency_above_last_bound() -> None:
    assert bucket_of(1e300) == histogram.LAST


def test_spark_computes_same_percentiles(spark: SparkSession) -> None:
    latencies = [-1.0, 0.0, 0.01, 0.011, *(1.7**power for power in range(-8, 50))]
    frame = spark.createDataFrame([(latency,) for latency in latencies], "ms double")
    table_rows = frame.select("ms", histogram.bucket_column(f.col("ms"))).collect()
    assert {row[0]: row[1] for row in table_rows} == {x: bucket_of(x) for x in latencies}
    assert frame.select(histogram.bucket_column(f.lit(None).cast("double"))).first() == (None,)

    samples = [of(latencies[:count]) for count in (0, 1, 2, 3, 10, 58)]
    frame = spark.createDataFrame([(sample,) for sample in samples], "h map<int,bigint>")
    columns = [f.expr(histogram.percentile_sql("h", share)) for share in SHARES]
    for row in frame.select("h", *columns).collect():
        for share, found_there in zip(SHARES, row[1:], strict=True):
            expected = histogram.percentile(row[0], share)
            assert found_there == (None if expected is None else pytest.approx(expected, rel=1e-12))
