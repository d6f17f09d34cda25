"""Computation of a report's figures from the tables of a lake."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report.figures import (
    MINUTE,
    PROTOCOLS,
    Bins,
    Counts,
    DestinationFigures,
    LakeState,
    Percentiles,
    Reason,
    ReportFigures,
    Row,
    Timeline,
    minute_of,
)

SUMMED: Final = (
    "published",
    "published_bytes",
    "acknowledged",
    "redelivered",
    "expired",
    "dead_lettered",
    "late_events",
)
DEPTHS: Final = ("backlog", "unacked")
COLUMNS: Final = (
    *("broker", "destination_kind", "destination", "minute", "protocol"),
    *SUMMED,
    *DEPTHS,
    *("end_to_end", "dead_letter_reasons"),
)
"""Columns of gold that a report needs."""
TOP: Final = 25
"""Number of destinations with a row of their own."""
MAX_REASONS: Final = 20
MAX_EXAMPLES: Final = 3
"""Maximum number of examples of each reason."""
MAX_ANOMALIES: Final = 50
BODY_CHARACTERS: Final = 300
NO_REASON: Final = "no reason known"
OLDEST: Final = datetime.min.replace(tzinfo=UTC)


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
    made: datetime | None = None,
) -> ReportFigures:
    """Compute the figures of a report.

    gold          rows of a gold table (pipeline/jobs/schemas.py) in any order
    anomalies     rows of the table of anomalies
    dead_letters  rows of silver for the examples, of dead-lettered messages; columns may be
                  missing
    since, until  limits of the period, to the minute, UTC if without a zone; `until` is
                  exclusive. None = all rows
    top           number of destinations with a row of their own
    made          creation time in the report's footer; default: now
    """
    report = ReportFigures(
        title=title,
        made=made or datetime.now(UTC),
        since=None if since is None else minute_of(since),
        until=None if until is None else minute_of(until),
        state=state,
    )
    found = [] if anomalies is None else _between(anomalies, report.since, report.until).to_pylist()
    found.sort(key=lambda row: (row["severity"] != "critical", -row["minute"].timestamp()))
    report.anomalies, report.anomaly_count = tuple(found[:MAX_ANOMALIES]), len(found)
    rows = _between(gold.select(COLUMNS), report.since, report.until)
    counts: dict[str, int] = {}
    if rows.num_rows:
        batch = pa.concat_batches(rows.to_batches())
        _fill(report, batch, top)
        _, reason, number = _entries(batch["dead_letter_reasons"])
        reasons = pa.table({"reason": reason, "count": number}).group_by("reason")
        summed = reasons.aggregate([("count", "sum")])
        counts = dict(
            zip(*(summed[name].to_pylist() for name in ("reason", "count_sum")), strict=True)
        )
    report.reasons = _reasons(counts, [] if dead_letters is None else dead_letters.to_pylist())
    return report


def _between(table: pa.Table, since: int | None, until: int | None) -> pa.Table:
    """Return the rows of a period; `until` is exclusive, None = no limit."""
    minute = _minutes(table["minute"])
    chosen = np.ones(len(minute), bool)
    if since is not None:
        chosen &= minute >= since
    if until is not None:
        chosen &= minute < until
    return table.filter(pa.array(chosen))


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
    report.since = int(minute.min()) if report.since is None else report.since
    report.until = int(minute.max()) + 1 if report.until is None else report.until
    bins = Bins.over(report.since, report.until - 1)
    at = bins.index(minute)
    values = {name: np.asarray(gold[name]) for name in SUMMED}
    for name in SUMMED:
        setattr(report, name, int(values[name].sum()))
    per_minute = _sums(minute - report.since, values["published"], report.until - report.since)
    report.peak, report.peak_at = int(per_minute.max()), report.since + int(per_minute.argmax())
    named = [gold[name] for name in ("broker", "destination_kind", "destination")]
    report.brokers = len(named[0].unique())
    encoded = pc.binary_join_element_wise(*named, "\0").dictionary_encode()
    keys, owner = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    depths, latest = _depths(gold, owner, at, minute, bins.count)
    report.backlog = sum(latest.values()) if latest else None
    sums = {name: _sums(owner, values[name], len(keys)) for name in SUMMED}
    sizes = np.maximum(sums["published"], sums["acknowledged"]).tolist()
    busiest = sorted(
        range(len(keys)), key=lambda each: (-max(sizes[each], latest.get(each, 0)), keys[each])
    )
    # those without a row of their own share the last one
    shown = min(top, len(keys))
    rank = np.full(len(keys), shown)
    rank[busiest[:shown]] = np.arange(shown)
    entry, bucket, count = _entries(gold["end_to_end"])
    latency = _sums((at[entry], bucket), count, (bins.count, histogram.LAST + 1))
    report.latency = Percentiles.of(latency.sum(axis=0))
    latencies = _sums((rank[owner][entry], bucket), count, (shown + 1, histogram.LAST + 1))
    arrivals = _sums((rank[owner], at), values["published"], (shown + 1, bins.count))
    report.timeline = _timeline(report, gold, bins, latency, depths)

    def destination(members: list[int], row: int, names: list[str]) -> DestinationFigures:
        backlogs = [latest[each] for each in members if each in latest]
        totals: Row = {name: int(column[members].sum()) for name, column in sums.items()}
        return DestinationFigures(
            broker=names[0],
            kind=names[1],
            name=names[2],
            arrivals=arrivals[row],
            latency=Percentiles.of(latencies[row]),
            backlog=sum(backlogs) if backlogs else None,
            **totals,
        )

    _, first = np.unique(owner, return_index=True)
    report.queues = tuple(
        destination([each], row, [column[int(first[each])].as_py() for column in named])
        for row, each in enumerate(busiest[:shown])
    )
    report.other_count = len(keys) - shown
    if report.other_count:
        report.others = destination(busiest[shown:], shown, ["", "", ""])


def _timeline(
    report: ReportFigures, gold: pa.RecordBatch, bins: Bins, latency: Counts, depths: Row
) -> Timeline:
    """Return the traffic of a period that is known."""
    assert report.since is not None
    assert report.until is not None
    at = bins.index(_minutes(gold["minute"]))
    names = gold["protocol"].to_pylist()
    protocol = np.array([name if name in PROTOCOLS else "other" for name in names])
    arrivals = {}
    for name in PROTOCOLS:
        mine = protocol == name
        arrivals[name] = _sums(at[mine], np.asarray(gold["published"])[mine], bins.count)
    starts = bins.start + bins.width * np.arange(bins.count)
    covered = np.minimum(starts + bins.width, report.until) - np.maximum(starts, report.since)
    counted = ("acknowledged", "redelivered", "expired", "dead_lettered")
    return Timeline(
        bins=bins,
        arrivals={name: line for name, line in arrivals.items() if line.any()},
        latency=latency,
        seconds=covered.astype(np.float64) * MINUTE,
        **{name: _sums(at, np.asarray(gold[name]), bins.count) for name in counted},
        **depths,
    )


def _depths(
    gold: pa.RecordBatch, owner: Counts, at: Counts, minute: Counts, bins: int
) -> tuple[Row, dict[int, int]]:
    """Return the lines of DEPTHS, None without any depth, and each owner's latest backlog.

    A destination keeps the value of its latest depth; before its first one, it has the same
    value."""
    measured = np.flatnonzero(gold["backlog"].is_valid())
    if not len(measured):
        return dict.fromkeys(DEPTHS), {}
    measured = measured[np.lexsort((minute[measured], owner[measured]))]
    owner = owner[measured]
    is_first = np.diff(owner, prepend=-1) != 0
    is_last = np.diff(owner, append=-1) != 0
    places = np.where(is_first, 0, at[measured])
    values = {name: np.asarray(gold[name].fill_null(0))[measured] for name in DEPTHS}
    lines = {}
    for name, value in values.items():
        change = np.where(is_first, value, np.diff(value, prepend=0))
        lines[name] = np.cumsum(_sums(places, change, bins))
    newest = values["backlog"][is_last].tolist()
    return lines, dict(zip(owner[is_last].tolist(), newest, strict=True))


def _reasons(counts: dict[str, int], dead_letters: Sequence[Row]) -> tuple[Reason, ...]:
    """Return the reasons by descending frequency, each with its newest examples."""
    examples: dict[str, list[Row]] = {}
    for row in sorted(
        dead_letters, key=lambda row: row.get("dead_lettered") or OLDEST, reverse=True
    ):
        examples.setdefault(row.get("reason") or NO_REASON, []).append(row)
    counts = {text: min(len(rows), MAX_EXAMPLES) for text, rows in examples.items()} | counts
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Reason(text, count, tuple(map(_example, examples.get(text, [])[:MAX_EXAMPLES])))
        for text, count in ordered[:MAX_REASONS]
    )


def _example(row: Row) -> Row:
    """Return a dead letter with the beginning of its body as text; bytes in hexadecimal."""
    text = row.get("text") or row.get("json")
    if row.get("map"):
        text = ", ".join(f"{key}: {value}" for key, value in row["map"])
    if text is None and row.get("body") is not None:
        text = bytes(row["body"][: BODY_CHARACTERS // 3]).hex(" ")
    destination = row.get("original_destination") or row.get("destination") or ""
    beginning = None if text is None else str(text)[: BODY_CHARACTERS + 1]
    return row | {"destination": destination, "beginning": beginning}
