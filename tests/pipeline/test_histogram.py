"""Histograms of latencies: what a percentile may be off, and that Spark computes the same."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sluicemq.pipeline import histogram
from sluicemq.pipeline.jobs.schemas import COUNTS

LATENCIES = st.floats(0, 1e10, allow_nan=False) | st.integers(-5, 100_000).map(float)
SHARES = (0.0, 0.01, 0.5, 0.95, 0.99, 1.0)


def of(latencies: list[float]) -> dict[int, int]:
    return histogram.merge({histogram.bucket_of(each): 1} for each in latencies)


@given(st.lists(LATENCIES, min_size=1, max_size=50), st.sampled_from(SHARES))
def test_a_percentile_is_at_most_so_far_off(latencies: list[float], share: float) -> None:
    rank = max(1, math.ceil(share * len(latencies)))
    exact = sorted(latencies)[rank - 1]
    found = histogram.percentile(of(latencies), share)
    assert found is not None
    if exact <= histogram.FLOOR:
        assert found == histogram.FLOOR
    else:
        assert found == pytest.approx(exact, rel=histogram.ERROR * 1.001)


@given(LATENCIES)
def test_a_latency_is_within_the_bounds_of_its_bucket(latency: float) -> None:
    above, up_to = histogram.bounds(histogram.bucket_of(latency))
    assert latency <= up_to * (1 + 1e-12)
    assert latency > above * (1 - 1e-12) or above == 0


@given(st.lists(st.lists(LATENCIES, max_size=10), max_size=4))
def test_merged_is_as_if_counted_at_once(parts: list[list[float]]) -> None:
    assert histogram.merge(map(of, parts)) == of([each for part in parts for each in part])


def test_nothing_has_no_percentile() -> None:
    assert histogram.percentile({}, 0.5) is None


def test_what_is_longer_than_the_last_bound() -> None:
    assert histogram.bucket_of(1e300) == histogram.LAST
    assert histogram.bounds(histogram.LAST)[1] == math.inf


def test_spark_finds_the_same(spark: SparkSession) -> None:
    latencies = [-1.0, 0.0, 0.01, 0.011, *(1.7**power for power in range(-8, 50))]
    frame = spark.createDataFrame([(each,) for each in latencies], "ms double")
    found = frame.select("ms", histogram.bucket_column(f.col("ms"))).collect()
    assert {row[0]: row[1] for row in found} == {x: histogram.bucket_of(x) for x in latencies}
    assert frame.select(histogram.bucket_column(f.lit(None).cast("double"))).first() == (None,)

    samples = [of(latencies[:count]) for count in (0, 1, 2, 3, 10, 58)]
    frame = spark.createDataFrame([(each,) for each in samples], "h map<int,bigint>")
    for share in SHARES:
        array = pa.array([list(each.items()) for each in samples], COUNTS)
        assert histogram.percentiles(array, share).to_pylist() == [
            histogram.percentile(each, share) for each in samples
        ]
    columns = [histogram.percentile_column(f.col("h"), share) for share in SHARES]
    for row in frame.select("h", *columns).collect():
        for share, found_there in zip(SHARES, row[1:], strict=True):
            wanted = histogram.percentile(row[0], share)
            assert found_there == (None if wanted is None else pytest.approx(wanted, rel=1e-12))
