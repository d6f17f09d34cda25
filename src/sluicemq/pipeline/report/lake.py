"""Report of a lake: finds its tables, reads the required rows and writes the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.report.build import MOST_EXAMPLES, MOST_REASONS, TOP, build
from sluicemq.pipeline.report.figures import LakeState, LakeTable, Progress, ReportFigures
from sluicemq.pipeline.report.gold import Read
from sluicemq.pipeline.report.page import write
from sluicemq.pipeline.report.scale import MINUTE, minute_of
from sluicemq.pipeline.schema import TIME
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.tables import KINDS, Commit, Table, table
from sluicemq.pipeline.tables.reading import dataset

TABLES: Final = ("bronze", "silver", "gold", "anomalies")
DEAD_LETTER_COLUMNS: Final = (
    "broker",
    "message_sequence",
    "destination",
    "dead_lettered",
    "reason",
    "deliveries",
    "size",
    "text",
    "json",
    "map",
    "body",
)
"""Columns of silver for the examples of dead dead_letters."""
_CHOICE: Final = ("broker", "message_sequence", "dead_lettered", "reason")


def report_lake(
    lake: str | os.PathLike[str],
    out: Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    png: Path | None = None,
    kind: str | None = None,
    top: int = TOP,
    title: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    source: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ReportFigures:
    """Write the report of a lake to `out`, and its charts into the directory `png` if given.

    lake          directory or URI of gold, silver and anomalies; missing tables are left out, and
                  without any traffic the report has instructions
    since, until  limits of the period, to the minute, UTC if without a zone; `until` is exclusive
    kind          format of the tables; detected unless given
    top           number of destinations with a row of their own, >= 1
    title         title of the report; default: the name of the lake
    source        source options with a journal's location (path, or url and credentials), to
                  count the records that the lake does not have yet
    progress      called with the name of each step before it begins

    Raises ConfigurationError if there is no such directory, the period is empty or `source` has
    no journal; ClientError if a broker does not answer.
    """
    since, until = _whole(since), _whole(until)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(f"the period ends ({until}) before it begins ({since})")
    root = os.fspath(lake).rstrip("/")
    if "://" not in root and not Path(root).is_dir():
        raise ConfigurationError(
            f"there is no lake in {root}. `sluicemq pipeline run --lake {root}` or `sluicemq "
            f"pipeline backfill --lake {root}` makes one"
        )
    report_step = progress or (lambda _: None)
    kind = kind or _kind(root, storage_options)
    tables = {
        name: table(kind, f"{root}/{name}", storage_options=storage_options) for name in TABLES
    }
    present = {name: each for name, each in tables.items() if each.exists()}
    report_step("how far the pipeline is")
    state = _state(kind, present, source) if present else None
    report_step("traffic")
    found, dead_letters = None, None
    if "anomalies" in present:
        found = present["anomalies"].read()
    if "silver" in present:
        dead_letters = _dead_letters(present["silver"], _within("dead_lettered", since, until))
    report = build(
        _reader(present["gold"], _within("minute", since, until))
        if "gold" in present
        else _nothing,
        found,
        dead_letters,
        state=state,
        title=title or Path(root).name or "SluiceMQ",
        since=since,
        until=until,
        top=top,
    )
    report_step("the page")
    write(report, out)
    if png is not None:
        report_step("the pictures")
        from sluicemq.pipeline.report.png import write_pngs  # takes a second to import

        write_pngs(report, png)
    return report


def _whole(time: datetime | None) -> datetime | None:
    """Return the start of the minute."""
    return None if time is None else datetime.fromtimestamp(minute_of(time) * MINUTE, UTC)


def _kind(root: str, options: Mapping[str, str] | None) -> str:
    """Return the format of the existing tables; any for an empty lake."""
    for kind in KINDS:
        if any(table(kind, f"{root}/{name}", storage_options=options).exists() for name in TABLES):
            return kind
    return KINDS[0]


def _within(column: str, since: datetime | None, until: datetime | None) -> pc.Expression:
    """Return a filter for rows with a value in that period."""
    chosen = pc.field(column).is_valid()
    if since is not None:
        chosen &= pc.field(column) >= pa.scalar(since, TIME)
    if until is not None:
        chosen &= pc.field(column) < pa.scalar(until, TIME)
    return chosen


def _nothing(_: Sequence[str]) -> list[pa.RecordBatch]:
    return []


def _reader(gold: Table, chosen: pc.Expression) -> Read:
    """Return a reader of one version of the table."""
    rows = dataset(gold.storage, gold.snapshot())
    return lambda columns: rows.to_batches(columns=list(columns), filter=chosen)


def _dead_letters(silver: Table, chosen: pc.Expression) -> pa.Table:
    """Return the newest examples of the most frequent reasons; only their bodies are read."""
    rows = dataset(silver.storage, silver.snapshot())
    all_of_them = rows.to_table(columns=list(_CHOICE), filter=chosen)
    picked = _newest(all_of_them)
    messages = picked["message_sequence"].combine_chunks()
    chosen &= pc.field("message_sequence").isin(messages)
    # another broker's message with the same number may be included; `build` takes the newest
    return rows.to_table(columns=list(DEAD_LETTER_COLUMNS), filter=chosen)


def _newest(dead_letters: pa.Table) -> pa.Table:
    """Return at most MOST_EXAMPLES rows of each of the MOST_REASONS most frequent reasons."""
    code = np.asarray(
        dead_letters["reason"].combine_chunks().fill_null("").dictionary_encode().indices
    )
    counts = np.bincount(code)
    frequent = np.argsort(-counts, kind="stable")[:MOST_REASONS]
    time = np.asarray(dead_letters["dead_lettered"].cast(pa.int64()))
    order = np.lexsort((-time, code))
    sorted_code = code[order]
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(order)) - starts[sorted_code]
    keep = (rank < MOST_EXAMPLES) & np.isin(sorted_code, frequent)
    return dead_letters.take(pa.array(order[keep]))


def _state(kind: str, tables: Mapping[str, Table], source: Mapping[str, str] | None) -> LakeState:
    described = []
    commits: list[Commit] = []
    for name, each in tables.items():
        files = each.files()
        history = each.history()
        described.append(
            LakeTable(
                name=name,
                rows=sum(file.rows for file in files),
                files=len(files),
                size=sum(file.size for file in files),
                version=history[0].version if history else None,
                changed=history[0].time if history else None,
            )
        )
        if name == "gold":
            commits = history
    return LakeState(kind, tuple(described), _progress(commits, source))


def _progress(commits: Sequence[Commit], source: Mapping[str, str] | None) -> tuple[Progress, ...]:
    """Return each journal's progress from the tags of gold's commits, the latest first."""
    latest: dict[str, tuple[int, datetime]] = {}
    for commit in commits:
        for application, last in commit.tags.items():
            latest.setdefault(application, (last, commit.time))
    identity, after = "", 0
    if source is not None:
        state = connect(parse_options(source)).state()
        identity, after = state.identity, state.next
    found = []
    for application, (last, time) in sorted(latest.items()):
        _, broker, journal = (*application.split("/"), "", "")[:3]
        behind = max(0, after - 1 - last) if journal and journal == identity else None
        found.append(Progress(broker or application, last, time, behind))
    return tuple(found)
