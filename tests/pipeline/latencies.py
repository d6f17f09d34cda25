"""Buckets of latencies as the definition of the histogram states them, without Spark."""

from __future__ import annotations

import math

from sluicemq.pipeline.histogram import FLOOR, LAST, RATIO

ERROR = RATIO**0.5 - 1
"""Largest relative error of a percentile, 2.5 %."""


def bucket_of(ms: float) -> int:
    """The bucket of a latency in ms."""
    if ms <= FLOOR:
        return 0
    return min(LAST, math.ceil(math.log(ms / FLOOR) / math.log(RATIO)))
