"""How long things took: durations counted in buckets whose bounds stand in a fixed ratio.

    bucket          0        1       …   43       44
    seconds up to   16 µs    22.6 µs …   47.5 s   (no bound)

A histogram is written by one thread or several and read by another. What it is asked for - counts
for metrics, quantiles for people, of all time or of the last minute - comes from copies, so that
recording stays one addition.
"""

from __future__ import annotations

from bisect import bisect_left
from math import sqrt
from threading import Lock
from typing import Final

FIRST_SECONDS: Final = 16e-6
BUCKETS: Final = 44
"""That have a bound."""
BOUNDS: Final = tuple(FIRST_SECONDS * sqrt(2) ** number for number in range(BUCKETS))
"""Seconds; each belongs to its bucket."""


class Distribution:
    """A histogram as it was at some moment, or what came between two such moments.

    counts   of each bucket, not cumulative; the last is what no bound holds
    sum      seconds of all durations together
    longest  seconds of the longest one; between two moments, at least that
    """

    __slots__ = ("counts", "longest", "sum")

    def __init__(self, counts: tuple[int, ...], total: float, longest: float) -> None:
        self.counts = counts
        self.sum = total
        self.longest = longest

    @property
    def bounds(self) -> tuple[float, ...]:
        """Seconds."""
        return BOUNDS

    @property
    def count(self) -> int:
        """How many durations."""
        return sum(self.counts)

    def since(self, before: Distribution) -> Distribution:
        """What has come after `before`, an earlier moment of the same histogram."""
        counts = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        longest = self.longest
        if longest == before.longest:
            # it may be older: of the new ones only the bucket is known
            highest = max((n for n, count in enumerate(counts) if count), default=-1)
            longest = 0.0 if highest < 0 else min(longest, _upper(highest, longest))
        return Distribution(counts, max(0.0, self.sum - before.sum), longest)

    def quantile(self, part: float) -> float:
        """Seconds that `part` (0-1) of the durations did not exceed, to within a bucket; 0 if there
        are none."""
        count = self.count
        if not count:
            return 0.0
        wanted = part * count
        seen = 0
        for number, here in enumerate(self.counts):
            if here and seen + here >= wanted:
                lower = BOUNDS[number - 1] if number else 0.0
                upper = _upper(number, self.longest)
                inside = lower + (upper - lower) * max(0.0, wanted - seen) / here
                return min(inside, self.longest)
            seen += here
        return self.longest


def _upper(bucket: int, longest: float) -> float:
    return BOUNDS[bucket] if bucket < BUCKETS else longest


class Histogram:
    """See the module."""

    __slots__ = ("_counts", "_lock", "_longest", "_sum")

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = [0] * (BUCKETS + 1)
        self._sum = 0.0
        self._longest = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration; below 0 is 0. On any thread."""
        seconds = max(0.0, seconds)
        bucket = bisect_left(BOUNDS, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += seconds
            if seconds > self._longest:
                self._longest = seconds

    def read(self) -> Distribution:
        """All so far. On any thread."""
        with self._lock:
            return Distribution(tuple(self._counts), self._sum, self._longest)
