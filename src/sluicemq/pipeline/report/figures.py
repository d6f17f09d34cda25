"""Figures of a report, independent of its layout, and their computation from a lake's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, count
from operator import itemgetter
from typing import Any, Final, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report import formatting
from sluicemq.pipeline.schema import PERCENTILES

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
MAX_MINUTE: Final = 8000 * 365 * DAY_MINUTES
"""Last minute of a period, in the year 9964; bins may end some years later."""

BIN_MINUTES: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 480, 720, 1440, 2880, 10_080)
"""Widths of a bin in minutes; beyond them, whole weeks."""
MAX_BINS: Final = 96
"""Maximum number of bins: a chart is 370 to 1,000 pixels wide, and its table has a row for each."""

SUMMED: Final = (
    "published",
    "published_bytes",
    "acknowledged",
    "redelivered",
    "expired",
    "dead_lettered",
    "late_events",
)
COUNTED: Final = ("acknowledged", "redelivered", "expired", "dead_lettered")
DEPTHS: Final = ("backlog", "unacked")
COLUMNS: Final = (
    *("broker", "destination_kind", "destination", "minute", "protocol"),
    *SUMMED,
    *DEPTHS,
    *("end_to_end", "dead_letter_reasons"),
)
"""Columns of gold that a report needs."""
TOP: Final = 25
MAX_REASONS: Final = 20
MAX_EXAMPLES: Final = 3
MAX_ANOMALIES: Final = 50
BODY_CHARACTERS: Final = 300
"""Maximum number of characters of a body in an example."""
NO_REASON: Final = "no reason known"


def minute_of(time: datetime) -> int:
    """Return the minute since 1970 of a time; a time without a zone is UTC.

    Times that the axis of a chart cannot have become 1970 or MAX_MINUTE."""
    zoned_time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return min(max(0, int(zoned_time.timestamp()) // MINUTE), MAX_MINUTE)


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
    counts    further columns of gold: sums of COUNTED, and the latest DEPTHS at the end of each
              bin, which are absent without any depth event
    latency   bins x buckets (pipeline/histogram.py): messages by the time from published to
              acknowledged
    seconds   seconds of each bin within the period
    """

    bins: Bins
    arrivals: dict[str, Counts]
    counts: dict[str, Counts]
    latency: Counts
    seconds: NDArray[np.float64]


def percentiles(counts: Counts) -> dict[str, float | None]:
    """Return PERCENTILES of a histogram, given as a count per bucket; None without any count."""
    sparse = {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}
    return {name: histogram.percentile(sparse, share) for name, share in PERCENTILES.items()}


@dataclass(slots=True, kw_only=True)
class Totals:
    """Sums over a period.

    backlog  ready messages at the end of the period; None without any depth event
    latency  PERCENTILES of published-to-acknowledged in ms; None without any acknowledgement
    """

    published: int = 0
    published_bytes: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    late_events: int = 0
    backlog: int | None = None
    latency: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PERCENTILES))


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

    examples  dead letters, with the `beginning` of the body as text
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
    created: datetime
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
        return formatting.span(self.since * MINUTE, self.until * MINUTE, formatting.moment) + " UTC"


def build(
    gold: pa.Table,
    anomalies: pa.Table | None = None,
    dead_letters: pa.Table | None = None,
    *,
    state: LakeState | None = None,
    title: str = "SluiceMQ",
    since: datetime | None = None,
    until: datetime | None = None,
    top: int = TOP,
    created: datetime | None = None,
) -> ReportFigures:
    """Compute the figures of a report.

    gold          rows of a gold table in any order
    anomalies     rows of the table of anomalies
    dead_letters  examples of dead letters (EXAMPLE_COLUMNS of report/lake.py) in any order
    since, until  limits of the period, to the minute, UTC if without a zone; `until` is
                  exclusive. None = all rows
    top           number of destinations with a row of their own
    created          creation time in the report's footer; default: now
    """
    report = ReportFigures(
        title=title,
        created=created or datetime.now(UTC),
        since=None if since is None else minute_of(since),
        until=None if until is None else minute_of(until),
        state=state,
    )
    anomaly_rows = (
        [] if anomalies is None else _between(anomalies, report.since, report.until).to_pylist()
    )
    anomaly_rows.sort(key=lambda row: (row["severity"] != "critical", -row["minute"].timestamp()))
    report.anomalies, report.anomaly_count = tuple(anomaly_rows[:MAX_ANOMALIES]), len(anomaly_rows)
    rows = _between(gold.select(COLUMNS), report.since, report.until)
    counts: dict[str, int] = {}
    if rows.num_rows:
        batch = pa.concat_batches(rows.to_batches())
        _fill(report, batch, top)
        _, texts, numbers = _entries(batch["dead_letter_reasons"])
        counts = numbers.to_pandas().groupby(texts.to_pandas()).sum().to_dict()
    report.reasons = _reasons(counts, [] if dead_letters is None else dead_letters.to_pylist())
    return report


def _between(table: pa.Table, since: int | None, until: int | None) -> pa.Table:
    """Return the rows of a period; `until` is exclusive, None = no limit."""
    minute = _minutes(table["minute"])
    has_begun = minute >= (-np.inf if since is None else since)
    return table.filter(pa.array(has_begun & (minute < (np.inf if until is None else until))))


def _minutes(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return timestamps as minutes since 1970."""
    seconds = column.cast(pa.timestamp("s", "UTC"), safe=False).cast(pa.int64())
    minutes: NDArray[np.int64] = np.asarray(seconds) // MINUTE
    return minutes


def _sums(index: Any, values: Any, shape: int | tuple[int, int]) -> Counts:
    """Return the sums of the values that have the same index."""
    sums = np.zeros(shape, np.int64)
    np.add.at(sums, index, values)
    return sums


def _entries(maps: pa.MapArray) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """Return row, key and value of each entry of the maps."""
    offsets = np.asarray(maps.offsets)
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    row = np.repeat(np.arange(len(maps)), np.diff(offsets))
    return row, maps.keys.slice(start, length), maps.items.slice(start, length)


def _fill(report: ReportFigures, gold: pa.RecordBatch, top: int) -> None:
    """Set all figures that come from gold, of which there is at least one row."""
    minute = _minutes(gold["minute"])
    first, last = int(minute.min()), int(minute.max())
    report.since = first if report.since is None else report.since
    report.until = last + 1 if report.until is None else report.until
    bins = Bins.over(report.since, report.until - 1)
    row_bins = bins.index(minute)
    values = {name: np.asarray(gold[name]) for name in SUMMED}
    for name in SUMMED:
        setattr(report, name, int(values[name].sum()))
    per_minute = _sums(minute - first, values["published"], last - first + 1)
    report.peak, report.peak_at = int(per_minute.max()), first + int(per_minute.argmax())
    name_columns = [gold[name] for name in ("broker", "destination_kind", "destination")]
    report.brokers = len(name_columns[0].unique())
    encoded = pc.binary_join_element_wise(*name_columns, "\0").dictionary_encode()
    keys, owner = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    depths, latest = _depths(gold, owner, row_bins, minute, bins.count)
    report.backlog = sum(latest.values()) if latest else None
    sums = {name: _sums(owner, values[name], len(keys)) for name in SUMMED}
    sizes = np.maximum(sums["published"], sums["acknowledged"]).tolist()
    busiest = sorted(
        range(len(keys)), key=lambda index: (-max(sizes[index], latest.get(index, 0)), keys[index])
    )
    # those without a row of their own share the last one
    visible_count = min(top, len(keys))
    rank = np.full(len(keys), visible_count)
    rank[busiest[:visible_count]] = np.arange(visible_count)
    entry, bucket, count = _entries(gold["end_to_end"])
    latency = _sums((row_bins[entry], bucket), count, (bins.count, histogram.LAST + 1))
    report.latency = percentiles(latency.sum(axis=0))
    latencies = _sums((rank[owner][entry], bucket), count, (visible_count + 1, histogram.LAST + 1))
    arrivals = _sums((rank[owner], row_bins), values["published"], (visible_count + 1, bins.count))
    report.timeline = _timeline((report.since, report.until), gold, bins, row_bins, latency, depths)

    def destination(members: list[int], row: int, names: list[str]) -> DestinationFigures:
        backlogs = [latest[index] for index in members if index in latest]
        totals: Row = {name: int(column[members].sum()) for name, column in sums.items()}
        return DestinationFigures(
            broker=names[0],
            kind=names[1],
            name=names[2],
            arrivals=arrivals[row],
            latency=percentiles(latencies[row]),
            backlog=sum(backlogs) if backlogs else None,
            **totals,
        )

    report.queues = tuple(
        destination([index], row, keys[index].split("\0", 2))
        for row, index in enumerate(busiest[:visible_count])
    )
    report.other_count = len(keys) - visible_count
    if report.other_count:
        report.others = destination(busiest[visible_count:], visible_count, ["", "", ""])


def _timeline(
    period: tuple[int, int],
    gold: pa.RecordBatch,
    bins: Bins,
    row_bins: Counts,
    latency: Counts,
    depths: dict[str, Counts],
) -> Timeline:
    """Return the traffic of a period.

    period    first minute, and the minute after the last one
    row_bins  bin of each row
    """
    indices = pc.index_in(gold["protocol"], pa.array(list(PROTOCOLS)))
    protocol = np.asarray(indices.fill_null(len(PROTOCOLS) - 1))  # the last one is "other"
    arrivals = _sums(
        (protocol, row_bins), np.asarray(gold["published"]), (len(PROTOCOLS), bins.count)
    )
    edges = bins.start + bins.width * np.arange(bins.count + 1)
    return Timeline(
        bins=bins,
        arrivals={name: line for name, line in zip(PROTOCOLS, arrivals, strict=True) if line.any()},
        latency=latency,
        seconds=np.diff(edges.clip(*period)).astype(np.float64) * MINUTE,
        counts={name: _sums(row_bins, np.asarray(gold[name]), bins.count) for name in COUNTED}
        | depths,
    )


def _depths(
    gold: pa.RecordBatch, owner: Counts, row_bins: Counts, minute: Counts, bins: int
) -> tuple[dict[str, Counts], dict[int, int]]:
    """Return the lines of DEPTHS and each owner's latest backlog, both empty without any depth.

    A destination keeps the value of its latest depth; before its first one, it has the same
    value."""
    rows = (
        pd.DataFrame({"owner": owner, "bin": row_bins, "minute": minute})
        .assign(**{name: gold[name].to_pandas() for name in DEPTHS})
        .dropna(subset=["backlog"])
        .fillna(0)
        .sort_values("minute", kind="stable")
    )
    if rows.empty:
        return {}, {}
    rows = pd.concat([rows.drop_duplicates("owner").assign(bin=0), rows])
    latest = (
        rows.pivot_table(index="bin", columns="owner", values=[*DEPTHS], aggfunc="last")
        .reindex(range(bins))
        .ffill()
    )
    lines = {name: latest[name].sum(axis=1).to_numpy(np.int64) for name in DEPTHS}
    return lines, latest["backlog"].iloc[-1].astype(int).to_dict()


def _reasons(counts: dict[str, int], dead_letters: Sequence[Row]) -> tuple[Reason, ...]:
    """Return the reasons by descending frequency, each with its newest examples."""
    examples: dict[str, list[Row]] = {}
    for row in sorted(dead_letters, key=itemgetter("dead_lettered"), reverse=True):
        examples.setdefault(row["reason"] or NO_REASON, []).append(row)
    counts = {text: min(len(rows), MAX_EXAMPLES) for text, rows in examples.items()} | counts
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Reason(text, count, tuple(examples.get(text, [])[:MAX_EXAMPLES]))
        for text, count in ordered[:MAX_REASONS]
    )
