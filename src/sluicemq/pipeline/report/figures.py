"""Figures of a report, independent of the layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import words
from sluicemq.pipeline.report.scale import MINUTE, Bins

Counts = NDArray[np.int64]


@dataclass(slots=True)
class Timeline:
    """Traffic of all destinations, per bin of time.

    arrivals  published messages, per protocol (palette.PROTOCOLS), most frequent first
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

    def at_most(self, bins: int) -> Self:
        """Return the timeline with at most `bins` bins: adjacent ones are merged."""
        factor = -(-self.bins.count // bins)
        starts = np.arange(0, self.bins.count, factor)
        ends = np.minimum(starts + factor, self.bins.count) - 1

        def total(values: Counts) -> Counts:
            return np.add.reduceat(values, starts, axis=0)

        return type(self)(
            bins=self.bins.merged(factor),
            arrivals={name: total(values) for name, values in self.arrivals.items()},
            acknowledged=total(self.acknowledged),
            redelivered=total(self.redelivered),
            expired=total(self.expired),
            dead_lettered=total(self.dead_lettered),
            latency=total(self.latency),
            backlog=None if self.backlog is None else self.backlog[ends],
            unacked=None if self.unacked is None else self.unacked[ends],
            seconds=np.add.reduceat(self.seconds, starts),
        )


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

    arrivals  published messages for a small chart, with its own bins
    """

    broker: str
    name: str
    kind: str
    consumers: int | None
    arrivals: Counts


@dataclass(frozen=True, slots=True)
class Example:
    """One dead letter.

    body  beginning of the body, as text
    """

    broker: str
    message: int
    destination: str
    time: datetime | None
    deliveries: int | None
    size: int | None
    body: str | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead letters of one reason."""

    text: str
    count: int
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Anomaly (pipeline/jobs/schemas.py)."""

    kind: str
    severity: str
    broker: str
    destination: str
    destination_kind: str
    time: datetime
    message: int | None
    evidence: str
    figures: str


@dataclass(frozen=True, slots=True)
class TableFigures:
    """Size and version of a table of the lake."""

    name: str
    rows: int
    files: int
    size: int
    version: int | None
    changed: datetime | None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of one broker's journal in the lake.

    last       last record that gold has
    committed  time at which gold got it
    """

    broker: str
    last: int
    committed: datetime


@dataclass(frozen=True, slots=True)
class LakeState:
    """State of the lake."""

    tables: tuple[TableFigures, ...] = ()
    progress: tuple[Progress, ...] = ()


@dataclass(slots=True, kw_only=True)
class ReportFigures(Totals):
    """All figures of a report. Without traffic, `timeline` is None.

    since, until   the period, in minutes since 1970; `until` is exclusive
    peak, peak_at  messages published in the busiest minute, and that minute
    others         sum of the destinations beyond `queues`; None if there are none
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
    anomalies: tuple[Anomaly, ...] = ()
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
