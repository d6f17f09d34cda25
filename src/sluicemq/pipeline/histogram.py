"""Latency histograms: mergeable, and small enough for a row per minute and destination.

A histogram is a map bucket -> count. Bucket 0 has values up to FLOOR ms (and negative ones, because
clocks step), bucket k those in (FLOOR x RATIO^(k-1), FLOOR x RATIO^k], the last one all above.
Empty buckets are absent. Two histograms are merged by adding their counts.

A percentile is the geometric mean of the bucket with the value of nearest rank. Its relative error
is at most RATIO^0.5 - 1 (2.5 %); for values up to FLOOR, its absolute error is at most FLOOR.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

FLOOR: Final = 0.01
"""Lower limit in ms; the broker's clock has milliseconds, other journals may be more precise."""
RATIO: Final = 1.05
LAST: Final = 600
"""Last bucket; its lower bound is 1.5 years."""


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the latency (ms) that the share (0-1) does not exceed; None without values."""
    remaining = max(1, math.ceil(share * sum(histogram.values())))
    for bucket, count in sorted(histogram.items()):
        remaining -= count
        if remaining <= 0:
            return float(FLOOR if bucket <= 0 else FLOOR * RATIO ** (bucket - 0.5))
    return None


def bucket_column(ms: Column) -> Column:
    """Return the bucket of a latency in ms; null for null."""
    index = f.ceil(f.log(ms / FLOOR) / math.log(RATIO))
    # least() ignores nulls
    return f.when(ms <= FLOOR, 0).when(ms.isNotNull(), f.least(f.lit(LAST), index)).cast("int")


def percentile_sql(histogram: str, share: float) -> str:
    """Return `percentile` of a column as an SQL expression; null for an empty histogram."""
    count = f"aggregate(map_values({histogram}), 0L, (sum, n) -> sum + n)"
    rank = f"greatest(1L, ceil({count} * {share}D))"
    return (
        f"aggregate(array_sort(map_entries({histogram})), "
        f"named_struct('left', {rank}, 'found', CAST(NULL AS INT)), "
        "(state, entry) -> named_struct('left', state.left - entry.value, 'found', "
        "if(state.left > 0 AND state.left <= entry.value, entry.key, state.found)), "
        f"state -> if(state.found <= 0, {FLOOR}D, {FLOOR}D * power({RATIO}D, state.found - 0.5D)))"
    )
