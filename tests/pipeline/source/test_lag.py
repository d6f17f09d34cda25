"""Lag of a query: records, bytes and time."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from sluicemq.journal import FileJournal
from sluicemq.journal.files import JOURNAL_NAME
from sluicemq.journal.format import size_at
from sluicemq.journal.reader import read_records
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.model.errors import RecordNotFound
from sluicemq.pipeline.source.journal_storage import DirectoryStorage
from sluicemq.pipeline.source.lag import Lag, LagCounter, lag_of
from sluicemq.pipeline.source.lag_listener import LagListener
from sluicemq.pipeline.source.offsets import Offset
from tests.journal.support import put, reopen
from tests.pipeline.source import support
from tests.pipeline.source.test_events import journal_in
from tests.pipeline.source.test_stream import stream_of
from tests.support.journal import read_from

STEPS = st.lists(st.sampled_from(["record", "seal", "restart"]), max_size=12)


@given(steps=STEPS, often=st.integers(1, 3))
def test_restarts_add_nothing_to_the_lag(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], often: int
) -> None:
    directory = tmp_path_factory.mktemp("data")
    (directory / JOURNAL_NAME).mkdir()
    journal = reopen(directory / JOURNAL_NAME)
    put(journal, b"first")
    for step in steps:
        if step == "record":
            for _ in range(often):
                put(journal)
        elif step == "seal":
            journal.seal()
        else:
            journal.close()
            journal = reopen(directory / JOURNAL_NAME)
            put(journal, b"after the restart")
    journal.sync()
    check(journal, DirectoryStorage(directory))
    journal.close()


def check(journal: FileJournal, storage: DirectoryStorage) -> None:
    sequences = [record.sequence for record in read_from(journal, 0)]
    state = storage.state()
    counter = LagCounter(storage)
    for sequence in (*sequences, state.next):
        lag = counter.lag(Offset(state.identity, sequence), state)
        expected = sum(1 for number in sequences if number >= sequence)
        if sequence in (*state.segments, state.next) or sequence > state.durable.segment:
            assert lag.records == expected, sequence
        else:  # a part of a sealed segment
            following = min(first for first in state.segments if first > sequence)
            segment_start = max(first for first in state.segments if first <= sequence)
            records = sum(1 for number in sequences if segment_start <= number < following)
            assert expected <= lag.records <= expected + records
        assert lag.bytes == unread_bytes(storage.path, sequence)


def unread_bytes(directory: Path, sequence: int) -> int:
    """Count unread bytes with a reader of single records."""
    return sum(
        size_at(segment.view, offset) + 7 & -8
        for segment, offset, record in read_records(directory)
        if record.sequence >= sequence
    )


def test_lag_of_stream(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        stream = stream_of(tmp_path)
        assert "lag" not in stream.reportLatestOffset()  # no offset has been asked for
        for _ in range(40):
            support.put(journal, support.message(b"x" * 200))
            journal.sync()
        end = stream.initialOffset()
        before = Lag(1000, 1 << 30)
        for _ in range(4):
            end = stream.latestOffset(end, ReadMaxRows(10))
            lag = Lag(**stream.reportLatestOffset()["lag"])
            assert lag.records <= before.records - 10
            assert lag.bytes <= before.bytes - 10 * 200
            before = lag
        assert before == Lag(0, 0, 0.0)
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        assert stream.reportLatestOffset()["lag"] == asdict(Lag())


def test_lag_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag in seconds starts at the first message of the next batch."""
    with journal_in(tmp_path) as journal:
        start = support.T0 // 1000
        for number in range(30):
            support.put(journal, support.message(timestamp=support.T0 + number * 1000))
            journal.sync()
        monkeypatch.setattr(time, "time", lambda: start + 100.5)
        for seal in (False, True):
            if seal:
                journal.seal()
                journal.sync()
            stream = stream_of(tmp_path, events="published")
            stream.latestOffset(stream.initialOffset(), ReadMaxRows(10))
            assert stream.reportLatestOffset()["lag"]["seconds"] == 90.5


def test_lag_is_unknown_if_records_were_removed(tmp_path: Path) -> None:
    with journal_in(tmp_path) as journal:
        for _ in range(40):
            support.put(journal, support.message(b"x" * 200))
            journal.sync()
        stream = stream_of(tmp_path)
        end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(3))
        segment_path(tmp_path, list_segments(tmp_path)[0]).unlink()
        storage = DirectoryStorage(tmp_path)
        with pytest.raises(RecordNotFound):
            LagCounter(storage).lag(Offset("", end["sequence"]), storage.state())
        assert "lag" not in stream.reportLatestOffset()


def progress(name: str | None, latest: object, run: str = "r1") -> QueryProgressEvent:
    source = SimpleNamespace(latestOffset=latest)
    fields = SimpleNamespace(id="q-id", runId=run, name=name, sources=[source])
    return cast("QueryProgressEvent", SimpleNamespace(progress=fields))


def test_metrics_of_listener() -> None:
    listener = LagListener()
    latest: dict[str, Any] = {"journal": "ab", "sequence": 9}
    latest["lag"] = {"records": 3, "bytes": 700, "seconds": 1.5}
    listener.onQueryProgress(progress('lake "1"', json.dumps(latest)))
    listener.onQueryProgress(progress(None, "{}", "r2"))  # a source of another kind
    registry = CollectorRegistry()
    registry.register(listener)
    lines = generate_latest(registry).decode().splitlines()
    labels = r'{journal="ab",query="lake \"1\""}'
    assert [line for line in lines if line[0] != "#"] == [
        f"sluicemq_source_lag_records{labels} 3.0",
        f"sluicemq_source_lag_bytes{labels} 700.0",
        f"sluicemq_source_lag_seconds{labels} 1.5",
    ]
    event = cast("QueryTerminatedEvent", SimpleNamespace(runId="r1"))
    listener.onQueryTerminated(event)
    assert listener.lags() == []


def test_lag_of_journal_is_that_of_source_furthest_behind() -> None:
    def latest(records: int) -> str:
        lag = {"records": records, "bytes": 100 * records, "seconds": 1.5}
        return json.dumps({"journal": "ab", "lag": lag})

    listener = LagListener()
    event: Any = progress("joined", latest(3))
    event.progress.sources += [SimpleNamespace(latestOffset=latest(n)) for n in (7, 5)]
    listener.onQueryProgress(event)
    assert [(query, report.lag.records) for query, report in listener.lags()] == [("joined", 7)]


@pytest.mark.parametrize(
    "latest",
    ["None", "no JSON", "5", "{}", '{"lag": 5}', '{"sequence": 3}', '{"journal": "ab", "lag": 5}'],
)
def test_progress_without_lag(latest: str) -> None:
    assert lag_of(latest) is None


def test_spark_reports_lag(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[str, Lag]] = []

    class Seeing(LagListener):
        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            super().onQueryProgress(event)
            seen.extend((query, report.lag) for query, report in self.lags())

    listener = Seeing()
    with journal_in(tmp_path) as journal:
        for _ in range(30):
            support.put(journal)
            journal.sync()
        spark.streams.addListener(listener)
        try:
            source = spark.readStream.format("sluicemq").option("startingOffsets", "earliest")
            query = (
                source.option("maxOffsetsPerTrigger", "10")
                .load(str(tmp_path))
                .writeStream.format("noop")
                .queryName("lagging")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            deadline = time.monotonic() + 20
            while (len(seen) < 3 or listener.lags()) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            spark.streams.removeListener(listener)
    assert [query for query, _ in seen[:3]] == ["lagging"] * 3
    records = [lag.records for _, lag in seen[:3]]
    assert records == sorted(records, reverse=True)
    assert records[0] >= 20
    assert records[1] >= 10
    assert seen[2][1] == Lag()
    assert listener.lags() == []  # the query has ended
