"""Selections of a read, and the segments that it skips because of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyspark.sql.types import StructType
from zlib_ng import zlib_ng

from sluicemq.journal.segment import TRAILER_BYTES
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.source import plan, records
from sluicemq.pipeline.source.journal_storage import DirectoryStorage
from sluicemq.pipeline.source.options import arrow_columns, parse_options
from sluicemq.pipeline.source.readers import BatchReader
from sluicemq.pipeline.source.reading import TaskRanges
from tests.pipeline.source import support
from tests.pipeline.source.support import (
    T0,
    Row,
    message,
    moment,
    naive_rows,
    options_of,
    put,
    read,
    reader_of,
    rows_of,
    table_of,
)
from tests.pipeline.source.test_events import journal_in

TOPIC = Address(Kind.TOPIC, "news")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One hour per segment, queues q0 to q9 in turn, and another queue in the third segment."""
    directory = tmp_path_factory.mktemp("selection")
    with journal_in(directory) as journal:
        for hour in range(6):
            numbers = []
            for number in range(30):
                address = Address(Kind.QUEUE, f"q{number % 10}")
                if hour == 2 and number == 4:
                    address = Address(Kind.QUEUE, "rare")
                elif number == 5:
                    address = TOPIC
                time = T0 + hour * 3_600_000 + number
                numbers.append(put(journal, message(b"b", address, timestamp=time)))
            if hour == 4:
                support.complete(journal, numbers[:5])
                support.requeue(journal, numbers[6], 2)
            journal.seal()
            journal.sync()
    return directory


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Segments that tasks have opened."""
    segments: list[int] = []
    original = DirectoryStorage.open

    def counting(self: DirectoryStorage, first: int, end: int = 0) -> object:
        segments.append(first)
        return original(self, first, end)

    monkeypatch.setattr(DirectoryStorage, "open", counting)
    return segments


def tasks_open(reader: BatchReader, opened: list[int]) -> tuple[list[Row], int]:
    """Return the rows, and the number of segments that the tasks opened."""
    shares = [share for share in reader.partitions() if isinstance(share, TaskRanges)]
    opened.clear()
    rows = []
    for share in shares:
        for batch in reader.read(share):
            rows += batch.to_pylist()
    return rows, len(set(opened))


@pytest.mark.parametrize(
    ("given", "segments"),
    [
        ({"destinations": "rare"}, 1),
        ({"destinations": "r*e, nothing"}, 1),
        ({"destinations": "q1"}, 6),
        ({"startingtimestamp": str(T0 + 5 * 3_600_000)}, 1),
        ({"endingtimestamp": str(T0 + 3_600_000)}, 1),
        ({"startingtimestamp": "2023-11-15T01:13:20Z", "endingtimestamp": "2023-11-15T02"}, 1),
        ({"events": "acknowledged"}, 1),
        ({"events": "requeued,dropped"}, 1),
        ({"events": "depth"}, 0),
    ],
    ids=str,
)
def test_segments_are_skipped(
    directory: Path, opened: list[int], given: dict[str, str], segments: int
) -> None:
    rows, count = tasks_open(reader_of(directory, **{"events": "*", **given}), opened)
    assert bool(rows) == (segments > 0)
    # the one that is being written has no index: it is looked at unless the time excludes it
    assert count - segments in (0, 1)


def test_task_reads_few_records_without_checking_whole_segment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(directory, destinations="rare", events="published")
    (share,) = reader.partitions()
    checked: list[int] = []
    original = zlib_ng.crc32

    def counting(data: memoryview) -> int:
        checked.append(len(data))
        return original(data)

    monkeypatch.setattr(zlib_ng, "crc32", counting)
    (batch,) = reader.read(share)
    assert batch.num_rows == 1
    segments = directory.rglob("*.segment")
    assert {path.stat().st_size - TRAILER_BYTES for path in segments}.isdisjoint(checked)


def test_selects_destinations(directory: Path) -> None:
    rows = naive_rows(directory)

    def selected(pattern: str) -> set[tuple[str, str]]:
        return {
            (row["destination_kind"], row["destination"])
            for row in read(directory, destinations=pattern)
        }

    assert selected("topic:*") == {("topic", "news")}
    assert selected("q1,q2") == {("queue", "q1"), ("queue", "q2")}
    assert selected("*") == {(row["destination_kind"], row["destination"]) for row in rows}
    assert selected("news") == set()


def test_tasks_share_journal(directory: Path) -> None:
    rows = naive_rows(directory)
    for minimum in (1, 2, 7, 50):
        reader = reader_of(directory, minpartitions=str(minimum))
        shares = reader.partitions()
        assert len(shares) <= minimum
        assert len(shares) >= min(minimum, 5)
        assert rows_of(table_of(reader)) == rows


@pytest.mark.parametrize("samples", [1, 3, 7])
def test_tasks_share_journal_that_is_weighed_by_samples(
    directory: Path, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    monkeypatch.setattr(plan, "SAMPLES", samples)
    rows = naive_rows(directory)
    for minimum in (1, 2, 7):
        reader = reader_of(directory, minpartitions=str(minimum))
        assert len(reader.partitions()) > 1 or minimum == 1
        assert rows_of(table_of(reader)) == rows
    # the sample lacks it
    (rare_row,) = read(directory, destinations="rare", events="published")
    assert rare_row in rows


def test_selects_destinations_with_small_and_large_numbers() -> None:
    addresses = [Address(Kind.QUEUE, "a"), Address(Kind.TOPIC, "b")]
    for numbers in ([3, 7], [3, records.TABLE_NUMBERS], [records.TABLE_NUMBERS, 1 << 31]):
        lookup = records.Names(dict(zip(numbers, addresses, strict=True)))
        column = np.array([numbers[1], 0, numbers[0], numbers[1] + 1, 5], np.uint32)
        for text, expected in (
            (records.name_of, ["b", None, "a", None, None]),
            (records.kind_of, ["topic", None, "queue", None, None]),
            (records.full_name, ["topic:b", None, "a", None, None]),
        ):
            assert lookup.texts(column, text).to_pylist() == expected
        assert lookup.missing(column) == {numbers[1] + 1, 5}
        bounds = lookup.bounds(column, {"topic:b": 9}, 1)
        assert bounds.tolist() == [9, 1, 1, 1, 1]


def test_reads_requested_columns(directory: Path) -> None:
    rows = naive_rows(directory)
    schema = StructType().add("body", "binary").add("sequence", "long")
    schema = schema.add("published", "timestamp")
    reader = BatchReader(options_of(directory), arrow_columns(schema))
    assert table_of(reader).to_pylist() == [
        {name: row[name] for name in ("body", "sequence", "published")} for row in rows
    ]
    assert list(read(directory, columns="size,event")[0]) == ["event", "size"]


@pytest.mark.parametrize(
    ("column", "type"), [("sequence", "integer"), ("time", "timestamp_ntz"), ("nothing", "string")]
)
def test_unknown_columns_are_refused(column: str, type: str) -> None:
    with pytest.raises(ConfigurationError, match=column):
        arrow_columns(StructType().add(column, type))


def test_schema_without_columns_is_refused() -> None:
    """A batch without columns has no rows, so that a count would be 0."""
    with pytest.raises(ConfigurationError, match="no columns: name one, such as sequence"):
        arrow_columns(StructType())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"path": "/x", "url": "http://x"}, "one of them"),
        ({}, "one of them"),
        ({"startingoffset": "1"}, "startingoffset.*startingOffsets"),
        ({"startingoffsets": "soon"}, "startingOffsets: 'soon'"),
        ({"startingtimestamp": "soon"}, "startingTimestamp: 'soon'"),
        ({"maxoffsetspertrigger": "0"}, "maxOffsetsPerTrigger: '0'"),
        ({"failondataloss": "perhaps"}, "failOnDataLoss: 'perhaps'"),
        ({"events": "published,sent"}, "'sent' is none"),
        ({"columns": "sequence,size,weight"}, "no column 'weight'"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(given: dict[str, str], says: str) -> None:
    location = {} if not given or "path" in given else {"path": "/x"}
    with pytest.raises(ConfigurationError, match=says):
        parse_options({**location, **given})


def test_missing_directory_is_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a directory"):
        reader_of(tmp_path / "nothing")


def test_selects_times(directory: Path) -> None:
    rows = naive_rows(directory)
    times = [(T0 + 3_600_000 + 7) * 1000, (T0 + 2 * 3_600_000) * 1000]
    start, end = (
        next(row["sequence"] for row in rows if row["time"] >= moment(time)) for time in times
    )
    options = {"startingtimestamp": str(times[0] // 1000), "endingtimestamp": str(times[1] // 1000)}
    assert read(directory, startingtimestamp=options["startingtimestamp"]) == [
        row for row in rows if row["sequence"] >= start
    ]
    assert read(directory, **options) == [row for row in rows if start <= row["sequence"] < end]
