"""Computation of a report's figures from the tables of a lake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluicemq.pipeline.report import gold as reading
from sluicemq.pipeline.report.figures import (
    Anomaly,
    Counts,
    DestinationFigures,
    Example,
    LakeState,
    Percentiles,
    Reason,
    ReportFigures,
    Timeline,
)
from sluicemq.pipeline.report.gold import DEPTHS, DESTINATION, SUMMED, Read, Sums
from sluicemq.pipeline.report.palette import PROTOCOLS
from sluicemq.pipeline.report.scale import MINUTE, Bins, minute_of

BINS: Final = 192
"""Maximum number of time bins: a chart is about 900 pixels wide."""
SPARK_BINS: Final = 44
TOP: Final = 25
"""Number of destinations with a row of their own."""
MOST_REASONS: Final = 20
MOST_EXAMPLES: Final = 3
"""Maximum number of examples of each reason."""
MOST_ANOMALIES: Final = 50
BODY_CHARACTERS: Final = 300
NO_REASON: Final = "no reason known"
OLDEST: Final = datetime.min.replace(tzinfo=UTC)


def build(
    gold: pa.Table | Read,
    anomalies: pa.Table | None = None,
    dead_letters: pa.Table | None = None,
    *,
    state: LakeState | None = None,
    title: str = "SluiceMQ",
    since: datetime | None = None,
    until: datetime | None = None,
    top: int = TOP,
    made: datetime | None = None,
) -> ReportFigures:
    """Compute the figures of a report.

    gold          rows of a gold table (pipeline/jobs/schemas.py) in any order, in memory or as a
                  function that reads given columns
    anomalies     rows of the table of anomalies
    dead_letters  rows of silver for the examples, of dead-lettered messages; columns may be
                  missing
    since, until  limits of the period, to the minute, UTC if without a zone; `until` is
                  exclusive. None = all rows
    top           number of destinations with a row of their own
    made          creation time in the report's footer; default: now
    """
    first = None if since is None else minute_of(since)
    end = None if until is None else minute_of(until)
    read = reading.between(gold if callable(gold) else reading.rows_of(gold), first, end)
    report = ReportFigures(
        title=title, made=made or datetime.now(UTC), since=first, until=end, state=state
    )
    found = reading.sums(read)
    if found is not None:
        _fill(report, read, found, top)
    if anomalies is not None:
        limited = reading.between(reading.rows_of(anomalies), first, end)
        _add_anomalies(report, limited(anomalies.column_names))
    counts = {} if found is None else dict(zip(*found.reasons.to_pydict().values(), strict=True))
    report.reasons = _reasons(counts, [] if dead_letters is None else dead_letters.to_pylist())
    return report


def _fill(report: ReportFigures, read: Read, found: Sums, top: int) -> None:
    """Set all figures that come from gold."""
    minute = reading.minutes(found.flows["minute"])
    report.since = int(minute.min()) if report.since is None else report.since
    report.until = int(minute.max()) + 1 if report.until is None else report.until
    for name in SUMMED:
        setattr(report, name, pc.sum(found.flows[name]).as_py())
    bins = Bins.over(report.since, report.until - 1, BINS)
    own = Bins.over(report.since, report.until - 1, SPARK_BINS)
    busy = _busiest(found)
    top_rows = busy.slice(0, top)
    details = reading.details(read, bins, _one(reading.keys(top_rows)), own)
    report.timeline = _timeline(found, details.latency, bins, report.since, report.until)
    published = np.asarray(found.flows["published"])
    per_minute = np.bincount(minute - report.since, weights=published).astype(np.int64)
    report.peak, report.peak_at = int(per_minute.max()), report.since + int(per_minute.argmax())
    depth_time = busy["backlog"].drop_null()
    report.backlog = pc.sum(depth_time).as_py()
    report.latency = Percentiles.of(details.latency.sum(axis=0))
    report.queues = tuple(
        _queue(row, details.queues[index], details.arrivals[index])
        for index, row in enumerate(top_rows.to_pylist())
    )
    rest = busy.slice(top)
    report.other_count = rest.num_rows
    if rest.num_rows:
        sums = {name: pc.sum(rest[name]).as_py() for name in (*SUMMED, *DEPTHS)}
        named = {"broker": "", "destination": "", "destination_kind": ""}
        report.others = _queue({**sums, **named}, details.queues[-1], details.arrivals[-1])
    report.brokers = len(pc.unique(busy["broker"]))


def _busiest(found: Sums) -> pa.Table:
    """Return all destinations by descending traffic, with sums and latest depths or null."""
    rows, depths = found.destinations, found.depths
    place = pc.index_in(_one(reading.keys(rows)), value_set=depths.keys)
    latest = pa.array(depths.latest()).take(place)
    for name in DEPTHS:
        rows = rows.append_column(name, pa.array(depths.values[name]).take(latest))
    busy = pc.max_element_wise(rows["published"], rows["acknowledged"], rows["backlog"])
    order = [("busy", "descending"), *((name, "ascending") for name in DESTINATION)]
    return rows.append_column("busy", busy).sort_by(order)


def _timeline(found: Sums, latency: Counts, bins: Bins, since: int, until: int) -> Timeline:
    at = bins.index(reading.minutes(found.flows["minute"]))

    def line(rows: Any, name: str) -> Counts:
        values = np.zeros(bins.count, np.int64)
        np.add.at(values, at[rows], np.asarray(found.flows[name])[rows])
        return values

    everything = slice(None)
    names = found.flows["protocol"].to_pylist()
    protocols = np.array([name if name in PROTOCOLS else "other" for name in names])
    arrivals = {name: line(protocols == name, "published") for name in PROTOCOLS}
    starts = bins.start + bins.width * np.arange(bins.count)
    covered = np.minimum(starts + bins.width, until) - np.maximum(starts, since)
    depth_time = len(found.depths) > 0
    return Timeline(
        bins=bins,
        arrivals={name: values for name, values in arrivals.items() if values.any()},
        acknowledged=line(everything, "acknowledged"),
        redelivered=line(everything, "redelivered"),
        expired=line(everything, "expired"),
        dead_lettered=line(everything, "dead_lettered"),
        latency=latency,
        backlog=found.depths.level("backlog", bins) if depth_time else None,
        unacked=found.depths.level("unacked", bins) if depth_time else None,
        seconds=covered.astype(np.float64) * MINUTE,
    )


def _queue(row: dict[str, Any], latency: Counts, arrivals: Counts) -> DestinationFigures:
    return DestinationFigures(
        broker=row["broker"],
        name=row["destination"],
        kind=row["destination_kind"],
        consumers=row["consumers"],
        backlog=row["backlog"],
        latency=Percentiles.of(latency),
        arrivals=arrivals,
        **{name: row[name] for name in SUMMED},
    )


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _add_anomalies(report: ReportFigures, batches: Iterable[pa.RecordBatch]) -> None:
    """Add the anomalies by descending severity, then by descending time."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["severity"] != "critical", -row["minute"].timestamp()))
    report.anomaly_count = len(rows)
    report.anomalies = tuple(
        Anomaly(
            kind=row["kind"],
            severity=row["severity"],
            broker=row["broker"],
            destination=row["destination"],
            destination_kind=row["destination_kind"],
            time=row["minute"],
            message=row["message_sequence"],
            evidence=row["evidence"],
            figures=row["details"],
        )
        for row in rows[:MOST_ANOMALIES]
    )


def _reasons(
    counts: Mapping[str, int], dead_letters: Iterable[dict[str, Any]]
) -> tuple[Reason, ...]:
    """Return the reasons by descending frequency, each with its newest examples."""
    examples: dict[str, list[Example]] = {}
    newest = sorted(dead_letters, key=lambda row: row.get("dead_lettered") or OLDEST, reverse=True)
    for row in newest:
        of_reason = examples.setdefault(row.get("reason") or NO_REASON, [])
        if len(of_reason) < MOST_EXAMPLES:
            of_reason.append(_example(row))
    counts = {**{reason: len(found) for reason, found in examples.items()}, **counts}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Reason(reason, count, tuple(examples.get(reason, ())))
        for reason, count in ordered[:MOST_REASONS]
    )


def _example(row: dict[str, Any]) -> Example:
    return Example(
        broker=row.get("broker") or "",
        message=row["message_sequence"],
        destination=row.get("original_destination") or row.get("destination") or "",
        time=row.get("dead_lettered"),
        deliveries=row.get("deliveries"),
        size=row.get("size"),
        body=_beginning(row),
    )


def _beginning(row: dict[str, Any]) -> str | None:
    """Return the beginning of the body as text; bytes in hexadecimal."""
    text = row.get("text") or row.get("json")
    if row.get("map"):
        text = ", ".join(f"{key}: {value}" for key, value in row["map"])
    if text is None and row.get("body") is not None:
        return bytes(row["body"][: BODY_CHARACTERS // 3]).hex(" ")
    return None if text is None else str(text)[: BODY_CHARACTERS + 1]
