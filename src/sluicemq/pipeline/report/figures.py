"""Figures of a report, independent of the layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import words

Counts = NDArray[np.int64]
Row = dict[str, Any]

PROTOCOLS: Final = {
    "phpmq": "PHPMQ",
    "vibemq": "VibeMQ",
    "jmq": "JMS",
    "msglite": "msglite",
    "other": "other",
}
"""Display names of the protocols, each with a colour of its own."""
MINUTE: Final = 60
DAY_MINUTES: Final = 1440

BIN_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 480, 720, 1440, 2880, 10_080)
"""Widths of a bin in minutes; beyond them, whole weeks."""
MAX_BINS: Final = 96
"""Maximum number of bins: a chart is 370 to 1,000 pixels wide, and its table has a row for each."""


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
    def over(cls, first: int, last: int) -> Self:
        """Return bins for the minutes `first` to `last`, both included."""
        widths = chain(BIN_MINUTES, count(20_160, 10_080))
        width = next(width for width in widths if last // width - first // width < MAX_BINS)
        return cls(first // width * width, width, last // width - first // width + 1)

    def index(self, minutes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the bin of each minute; all minutes must be in a bin."""
        return (minutes - self.start) // self.width

    def seconds(self, index: int) -> tuple[int, int]:
        """Return the start and end of a bin in seconds since 1970."""
        start = (self.start + index * self.width) * MINUTE
        return start, start + self.width * MINUTE


@dataclass(frozen=True, slots=True)
class Timeline:
    """Traffic of all destinations, per bin of time.

    arrivals  published messages, per protocol (PROTOCOLS) that has any
    latency   bins x buckets (pipeline/histogram.py): messages by the time from published to
              acknowledged
    backlog, unacked   latest depths at the end of each bin; None without any depth event
    seconds   seconds of each bin within the period
    """

    bins: Bins
    arrivals: dict[str, Counts]
    acknowledged: Counts
    redelivered: Counts
    expired: Counts
    dead_lettered: Counts
    latency: Counts
    backlog: Counts | None
    unacked: Counts | None
    seconds: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of published-to-acknowledged in ms; None without any acknowledgement."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """Return the percentiles of a histogram, given as a count per bucket."""
        sparse = {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}
        return cls(*(histogram.percentile(sparse, share) for share in (0.5, 0.95, 0.99)))


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over a period.

    backlog  ready messages at the end of the period; None without any depth event
    """

    published: int = 0
    published_bytes: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    late_events: int = 0
    backlog: int | None = None
    latency: Percentiles = field(default_factory=Percentiles)


@dataclass(slots=True, kw_only=True)
class DestinationFigures(Totals):
    """One destination in the period, or all those without a row of their own.

    arrivals  published messages per bin
    """

    broker: str
    name: str
    kind: str
    arrivals: Counts


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead letters of one reason.

    examples  rows of silver, with the `beginning` of the body as text
    """

    text: str
    count: int
    examples: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of the lake.

    tables    name, rows, files, size, version and time of the last change (`changed`) of each table
    progress  of each broker's journal: the last record that gold has, and when gold got it
    """

    tables: tuple[Row, ...] = ()
    progress: tuple[tuple[str, int, datetime], ...] = ()


@dataclass(slots=True, kw_only=True)
class ReportFigures(Totals):
    """All figures of a report. Without traffic, `timeline` is None.

    since, until   the period, in minutes since 1970; `until` is exclusive
    peak, peak_at  messages published in the busiest minute, and that minute
    others         sum of the destinations beyond `queues`; None if there are none
    anomalies      the most severe and newest rows of the table of anomalies
    """

    title: str
    made: datetime
    since: int | None = None
    until: int | None = None
    timeline: Timeline | None = None
    peak: int = 0
    peak_at: int | None = None
    queues: tuple[DestinationFigures, ...] = ()
    others: DestinationFigures | None = None
    other_count: int = 0
    brokers: int = 1
    reasons: tuple[Reason, ...] = ()
    anomalies: tuple[Row, ...] = ()
    anomaly_count: int = 0
    state: LakeState | None = None

    @property
    def seconds(self) -> int:
        """Length of the period in seconds."""
        return 0 if self.since is None or self.until is None else (self.until - self.since) * MINUTE

    @property
    def period(self) -> str:
        """The period as text; empty if it is not known."""
        if self.since is None or self.until is None:
            return ""
        return words.span(self.since * MINUTE, self.until * MINUTE, words.moment) + " UTC"
