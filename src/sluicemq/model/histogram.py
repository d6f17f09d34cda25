"""Histogram of durations, in buckets whose bounds have a fixed ratio.

    bucket          0        1       …   43       44
    seconds up to   16 µs    22.6 µs …   47.5 s   (no bound)

One or several threads write a histogram and another reads it. Counts for metrics and quantiles for
display, of all time or of the last minute, are computed from copies, so that recording remains a
single addition.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import sqrt
from threading import Lock
from typing import Final

FIRST_SECONDS: Final = 16e-6
BUCKETS: Final = 44
"""Number of buckets with an upper bound."""
BOUNDS: Final = tuple(FIRST_SECONDS * sqrt(2) ** number for number in range(BUCKETS))
"""Upper bound of each bucket in seconds."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Copy of a histogram at one moment, or the difference of two copies.

    counts   number of durations in each bucket, not cumulative; the last bucket has no bound
    sum      sum of all durations in seconds
    longest  longest duration in seconds; in a difference, an upper estimate
    """

    counts: tuple[int, ...]
    sum: float
    longest: float

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def since(self, before: Distribution) -> Distribution:
        """Return the durations recorded after `before`, an earlier copy of the same histogram."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        longest = self.longest
        if longest == before.longest:
            # the longest may be older: only the buckets of the new durations are known
            highest_bucket = max((n for n, count in enumerate(counts) if count), default=-1)
            longest = 0.0 if highest_bucket < 0 else min(longest, _upper(highest_bucket, longest))
        return Distribution(counts, max(0.0, self.sum - before.sum), longest)

    def quantile(self, part: float) -> float:
        """Return the `part` quantile (0-1) in seconds, to within a bucket; 0 without durations."""
        count = self.count
        if not count:
            return 0.0
        rank = part * count
        lower_count = 0
        for number, bucket_count in enumerate(self.counts):
            if bucket_count and lower_count + bucket_count >= rank:
                lower = BOUNDS[number - 1] if number else 0.0
                upper = _upper(number, self.longest)
                estimate = lower + (upper - lower) * max(0.0, rank - lower_count) / bucket_count
                return min(estimate, self.longest)
            lower_count += bucket_count
        return self.longest


def _upper(bucket: int, longest: float) -> float:
    return BOUNDS[bucket] if bucket < BUCKETS else longest


class Histogram:
    """Thread-safe histogram of durations."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = [0] * (BUCKETS + 1)
        self._sum = 0.0
        self._longest = 0.0

    def record(self, seconds: float) -> None:
        """Record a duration; negative ones count as 0. Thread-safe."""
        seconds = max(0.0, seconds)
        bucket = bisect_left(BOUNDS, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += seconds
            if seconds > self._longest:
                self._longest = seconds

    def read(self) -> Distribution:
        """Return a copy of all durations recorded so far. Thread-safe."""
        with self._lock:
            return Distribution(tuple(self._counts), self._sum, self._longest)
