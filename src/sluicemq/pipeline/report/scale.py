"""Scales of axes: bins of time, and round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sluicemq.pipeline.report import words

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

BIN_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 7 * 1440)
"""Widths of a bin in minutes; beyond them, whole weeks."""
_WEEK: Final = 7 * 1440

_TICK_SECONDS: Final = (
    *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)),
    *(HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 5, 7, 14, 28, 56, 91, 182, 364)),
)


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
        for width in BIN_MINUTES:
            start = first // width * width
            count = (last - start) // width + 1
            if count <= at_most:
                return cls(start, width, count)
        weeks = math.ceil((last - first + 1) / (_WEEK * (at_most - 1)))
        width = weeks * _WEEK
        start = first // width * width
        return cls(start, width, (last - start) // width + 1)

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


@dataclass(frozen=True, slots=True)
class Tick:
    """Tick of an axis; `strong` marks a new day."""

    at: float
    label: str
    strong: bool = False


def time_ticks(start: float, end: float, at_most: int) -> list[Tick]:
    """Return ticks at round times between two times (seconds since 1970)."""
    step = next(
        (step for step in _TICK_SECONDS if (end - start) / step <= at_most),
        math.ceil((end - start) / at_most / DAY) * DAY,
    )
    marks = []
    at = math.ceil(start / step) * step
    while at <= end:
        midnight = at % DAY == 0
        # A time of day alone would be ambiguous.
        label = words.day(at) if midnight or step >= DAY else words.clock(at)
        marks.append(Tick(at, label, midnight and step < DAY))
        at += step
    return marks


def value_ticks(top: float, at_most: int, *, whole: bool = False) -> list[float]:
    """Return round values from 0 to the first one that is not below `top`.

    Return 0 and 1 if `top` is 0. `whole`: there is no value between 0 and 1."""
    if top <= 0:
        return [0.0, 1.0]
    rough = max(top / at_most, 1.0 if whole else 0.0)
    power: float = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(factor * power for factor in factors if factor * power >= rough * 0.9999)
    return [step * index for index in range(math.ceil(top / step * 0.9999) + 1)]
