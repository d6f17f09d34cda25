"""Bins of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from typing import Final

import numpy as np
from numpy.typing import NDArray

MINUTE: Final = 60
DAY_MINUTES: Final = 1440

BIN_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 7 * 1440)
"""Widths of a bin in minutes; beyond them, whole weeks."""
WEEK: Final = 7 * DAY_MINUTES


def minute_of(time: datetime) -> int:
    """Return the minute since 1970 of a time; a time without a zone is UTC."""
    known = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(known.timestamp()) // MINUTE


@dataclass(frozen=True, slots=True)
class Bins:
    """Adjacent bins of time of equal width.

    start  first minute of the first bin, in minutes since 1970 (UTC)
    width  minutes of a bin, >= 1
    count  number of bins, >= 1
    """

    start: int
    width: int
    count: int

    @classmethod
    def over(cls, first: int, last: int, at_most: int) -> Bins:
        """Return bins for the minutes `first` to `last`, both included."""
        widths = chain(BIN_MINUTES, count(2 * WEEK, WEEK))
        width = next(width for width in widths if last // width - first // width < at_most)
        return cls(first // width * width, width, last // width - first // width + 1)

    def merged(self, factor: int) -> Bins:
        """Merge `factor` adjacent bins into one; the last one may be shorter."""
        return Bins(self.start, self.width * factor, -(-self.count // factor))

    def index(self, minutes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the bin of each minute; all minutes must be in a bin."""
        return (minutes - self.start) // self.width

    @property
    def end(self) -> int:
        """Minute after the last bin."""
        return self.start + self.width * self.count

    def seconds(self, index: int) -> tuple[int, int]:
        """Return the start and end of a bin in seconds since 1970."""
        start = (self.start + index * self.width) * MINUTE
        return start, start + self.width * MINUTE
