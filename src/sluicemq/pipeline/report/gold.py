"""Reader of a gold table for a report, in chunks and with the required columns only.

The table is read twice: first the sums, which give the period and the busiest destinations, then
the histograms of these. So memory does not grow with the number of destinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sluicemq.pipeline import histogram
from sluicemq.pipeline.report.figures import Counts
from sluicemq.pipeline.report.scale import MINUTE, Bins

Read = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Returns the given columns of all rows, in chunks; may be called repeatedly."""

DESTINATION: Final = ("broker", "destination_kind", "destination")
SUMMED: Final = (
    "published",
    "published_bytes",
    "acknowledged",
    "redelivered",
    "expired",
    "dead_lettered",
    "late_events",
)
DEPTHS: Final = ("backlog", "unacked", "consumers")
LATENCY: Final = "end_to_end"
REASONS: Final = "dead_letter_reasons"
FOLD_ROWS: Final = 500_000
"""Number of partial sums beyond which they are aggregated."""
_TICKS: Final = MINUTE * 1_000_000
"""Microseconds of a minute."""


@dataclass(frozen=True, slots=True)
class Depths:
    """All depth events, by destination and then by time.

    They are stored compactly, because a report reads more depth events than other rows.

    keys    keys of destinations, see `keys`
    code    index of each event's destination in `keys`
    minute  minutes since 1970
    values  GAUGES
    """

    keys: pa.Array
    code: NDArray[np.int32]
    minute: NDArray[np.int32]
    values: dict[str, NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.code)

    def latest(self) -> NDArray[np.int64]:
        """Return the index of the latest depth of each destination in `keys`."""
        return np.flatnonzero(np.diff(self.code, append=-1))

    def level(self, name: str, bins: Bins) -> Counts:
        """Return the sum of a depth over all destinations at the end of each bin.

        A destination keeps the value of its latest depth; before its first one, it has the same
        value."""
        value = self.values[name]
        first = np.diff(self.code, prepend=-1) != 0
        change = np.where(first, value, np.diff(value, prepend=0))
        line = np.zeros(bins.count, np.int64)
        np.add.at(line, np.where(first, 0, bins.index(self.minute.astype(np.int64))), change)
        return np.cumsum(line)


@dataclass(frozen=True, slots=True)
class Sums:
    """Result of the first pass.

    flows         SUMMED per minute and protocol
    destinations  SUMMED per DESTINATION
    reasons       reason, count
    """

    flows: pa.Table
    destinations: pa.Table
    reasons: pa.Table
    depths: Depths


@dataclass(frozen=True, slots=True)
class Details:
    """Result of the second pass.

    The last row of `queues` and `arrivals` is the sum of all destinations that were not requested.

    latency   bins x buckets
    queues    destinations x buckets
    arrivals  destinations x bins of their own: published messages
    """

    latency: Counts
    queues: Counts
    arrivals: Counts


def rows_of(table: pa.Table) -> Read:
    """Return a reader of a table in memory."""
    return lambda columns: table.select(list(columns)).to_batches()


def between(read: Read, since: int | None, until: int | None) -> Read:
    """Restrict a reader to minutes since 1970; `until` is exclusive, None = no limit."""

    def limited(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in read(columns):
            minute = minutes(batch.column("minute"))
            chosen = np.ones(len(minute), bool)
            if since is not None:
                chosen &= minute >= since
            if until is not None:
                chosen &= minute < until
            yield batch if chosen.all() else batch.filter(pa.array(chosen))

    return limited


def sums(read: Read) -> Sums | None:
    """Run the first pass; None if there is no row."""
    flows = _Folding(("minute", "protocol"), SUMMED)
    destinations = _Folding(DESTINATION, SUMMED)
    reasons = _Folding(("reason",), ("count",))
    depths = _Gauging()
    empty = True
    for batch in read((*DESTINATION, "minute", "protocol", *SUMMED, *DEPTHS, REASONS)):
        if not batch.num_rows:
            continue
        empty = False
        rows = pa.Table.from_batches([batch])
        flows.add(rows)
        destinations.add(rows)
        depths.add(batch)
        _, reason, count = _entries(batch.column(REASONS))
        reasons.add(pa.table({"reason": reason, "count": count}))
    if empty:
        return None
    return Sums(flows.total(), destinations.total(), reasons.total(), depths.all())


def details(read: Read, bins: Bins, requested: pa.Array, own: Bins) -> Details:
    """Run the second pass.

    `requested` has keys of destinations, see `keys`; `own` has the bins of their arrivals."""
    latency = np.zeros((bins.count, histogram.LAST + 1), np.int64)
    queues = np.zeros((len(requested) + 1, histogram.LAST + 1), np.int64)
    arrivals = np.zeros((len(requested) + 1, own.count), np.int64)
    for batch in read((*DESTINATION, "minute", "published", LATENCY)):
        minute = minutes(batch.column("minute"))
        found = pc.index_in(keys(batch), value_set=requested).fill_null(len(requested))
        queue = found.to_numpy(zero_copy_only=False)
        published = batch.column("published").to_numpy(zero_copy_only=False)
        np.add.at(arrivals, (queue, own.index(minute)), published)
        row, bucket, count = _entries(batch.column(LATENCY))
        buckets, counts = np.asarray(bucket), np.asarray(count)
        np.add.at(latency, (bins.index(minute[row]), buckets), counts)
        np.add.at(queues, (queue[row], buckets), counts)
    return Details(latency, queues, arrivals)


def keys(rows: pa.RecordBatch | pa.Table) -> pa.Array:
    """Return each row's destination as one text."""
    return pc.binary_join_element_wise(*(rows.column(name) for name in DESTINATION), "\0")


def minutes(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return timestamps as minutes since 1970."""
    ticks: NDArray[np.int64] = np.asarray(column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()))
    return ticks // _TICKS


class _Gauging:
    """Collects depth events from chunks."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._parts: list[tuple[NDArray[np.int64], ...]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        depth_time = rows.filter(pc.is_valid(rows.column("backlog")))
        encoded = keys(depth_time).dictionary_encode()
        codes = self._codes
        known = [codes.setdefault(key, len(codes)) for key in encoded.dictionary.to_pylist()]
        code = np.array(known, np.int32)[np.asarray(encoded.indices)]
        values = (np.asarray(depth_time.column(name).fill_null(0)) for name in DEPTHS)
        self._parts.append((code, minutes(depth_time.column("minute")).astype(np.int32), *values))

    def all(self) -> Depths:
        code, minute, *values = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        self._parts.clear()
        order = np.lexsort((minute, code))
        ordered = {name: each[order] for name, each in zip(DEPTHS, values, strict=True)}
        return Depths(pa.array(self._codes, pa.string()), code[order], minute[order], ordered)


class _Folding:
    """Sums columns per key over chunks."""

    def __init__(self, by: Sequence[str], values: Sequence[str]) -> None:
        self._by, self._values = list(by), list(values)
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.Table) -> None:
        part = self._summed(rows)
        self._parts.append(part)
        self._rows += part.num_rows
        if self._rows > FOLD_ROWS and len(self._parts) > 1:
            self._parts = [self.total()]
            # the sums of many destinations are not aggregated again for each chunk
            self._rows = 0

    def total(self) -> pa.Table:
        return self._summed(pa.concat_tables(self._parts))

    def _summed(self, rows: pa.Table) -> pa.Table:
        grouped = rows.select([*self._by, *self._values]).group_by(self._by)
        summed = grouped.aggregate([(name, "sum") for name in self._values])
        return summed.rename_columns([*self._by, *self._values])


def _entries(maps: pa.MapArray) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """Return row, key and value of each entry of the maps."""
    offsets = np.asarray(maps.offsets)
    start, length = int(offsets[0]), int(offsets[-1] - offsets[0])
    row = np.repeat(np.arange(len(maps)), np.diff(offsets))
    return row, maps.keys.slice(start, length), maps.items.slice(start, length)
