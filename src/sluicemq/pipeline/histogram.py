"""Latency histograms: mergeable, and small enough for a row per minute and destination.

A histogram is a map bucket -> count. Bucket 0 has values up to FLOOR ms (and negative ones, because
clocks step), bucket k those in (FLOOR x RATIO^(k-1), FLOOR x RATIO^k], the last one all above.
Empty buckets are absent. Two histograms are merged by adding their counts.

A percentile is the geometric mean of the bucket with the value of nearest rank. Its relative error
is at most ERROR; for values up to FLOOR, its absolute error is at most FLOOR.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f

FLOOR: Final = 0.01
"""Lower limit in ms; the broker's clock has milliseconds, other journals may be more precise."""
RATIO: Final = 1.05
LAST: Final = 600
"""Last bucket; its lower bound is 1.5 years."""
ERROR: Final = RATIO**0.5 - 1
"""Relative error of a percentile, 2.5 %."""


def bucket_of(ms: float) -> int:
    """Return the bucket of a latency in ms."""
    if ms <= FLOOR:
        return 0
    return min(LAST, math.ceil(math.log(ms / FLOOR) / math.log(RATIO)))


def bounds(bucket: int) -> tuple[float, float]:
    """Return (above, up to) in ms; the last bucket ends at infinity."""
    if bucket <= 0:
        return 0.0, FLOOR
    return FLOOR * RATIO ** (bucket - 1), math.inf if bucket >= LAST else FLOOR * RATIO**bucket


def middle(bucket: int) -> float:
    """Return the representative value of a bucket in ms."""
    return float(FLOOR if bucket <= 0 else FLOOR * RATIO ** (bucket - 0.5))


def merge(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the sum of histograms in the order of the buckets."""
    total: dict[int, int] = {}
    for each in histograms:
        for bucket, count in each.items():
            total[bucket] = total.get(bucket, 0) + count
    return dict(sorted(total.items()))


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the latency (ms) that the share (0-1) does not exceed; None without values."""
    left = max(1, math.ceil(share * sum(histogram.values())))
    for bucket, count in sorted(histogram.items()):
        left -= count
        if left <= 0:
            return middle(bucket)
    return None


def percentiles(histograms: Any, share: float) -> Any:
    """Return `percentile` for an Arrow array of histograms with entries in any order."""
    start, end = histograms.offsets[0].as_py(), histograms.offsets[len(histograms)].as_py()
    sizes = np.diff(histograms.offsets.to_numpy())
    row = np.repeat(np.arange(len(histograms)), sizes)
    bucket = histograms.keys[start:end].to_numpy()
    order = np.lexsort((bucket, row))
    bucket = bucket[order]
    # cumulative counts over the entries of all rows
    upto = np.concatenate(([0], np.cumsum(histograms.items[start:end].to_numpy()[order])))
    first = np.concatenate(([0], np.cumsum(sizes)))
    before = upto[first[:-1]]
    total = upto[first[1:]] - before
    rank = np.maximum(1, np.ceil(share * total)).astype(np.int64)
    found = np.minimum(np.searchsorted(upto, before + rank) - 1, max(0, len(bucket) - 1))
    if not len(bucket):
        return pa.nulls(len(histograms), pa.float64())
    value = np.where(bucket[found] <= 0, FLOOR, FLOOR * RATIO ** (bucket[found] - 0.5))
    return pa.array(value, pa.float64(), mask=total == 0)


def bucket_column(ms: Column) -> Column:
    """Return `bucket_of` as a Spark column; null for null."""
    place = f.ceil(f.log(ms / FLOOR) / math.log(RATIO))
    # least() ignores nulls
    bucket = f.when(ms <= FLOOR, 0).when(ms.isNotNull(), f.least(f.lit(LAST), place))
    return bucket.cast("int")


def percentile_column(histogram: Column, share: float) -> Column:
    """Return `percentile` as a Spark column; null for an empty histogram."""
    entries = f.array_sort(f.map_entries(histogram))
    total = f.aggregate(f.map_values(histogram), f.lit(0).cast("long"), lambda sum, n: sum + n)
    rank = f.greatest(f.lit(1).cast("long"), f.ceil(total * share))

    def step(state: Column, entry: Column) -> Column:
        left = state["left"] - entry["value"]
        found = f.when((state["left"] > 0) & (left <= 0), entry["key"]).otherwise(state["found"])
        return f.struct(left.alias("left"), found.alias("found"))

    start = f.struct(rank.alias("left"), f.lit(None).cast("int").alias("found"))
    found = f.aggregate(entries, start, step, lambda state: state["found"])
    return f.when(found <= 0, FLOOR).otherwise(FLOOR * f.pow(f.lit(RATIO), found - 0.5))
