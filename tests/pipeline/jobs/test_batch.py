"""Batches into a lake: each event counts once, also after interruptions and repetitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from deltalake import DeltaTable
from pyarrow.parquet import ParquetFile
from pyspark.sql import DataFrame, SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import LakeTable
from sluicemq.pipeline.jobs import silver as silver_job
from sluicemq.pipeline.jobs.batch import BatchResult, LakeWriter, bronze
from sluicemq.pipeline.jobs.lake import EVENT_LAYERS, Lake, journals
from sluicemq.pipeline.jobs.maintain import maintain, rebuild
from sluicemq.pipeline.schema import BRONZE, GOLD, GOLD_KEYS, SILVER, SILVER_KEYS, Event
from tests.pipeline.jobs.events import Journal, Row, frame, gold, rows

JOURNAL = "0123456789abcdef"


def traffic() -> list[Row]:
    journal = Journal()
    for number in range(40):
        message = journal.message(3 * number, b"%d" % number, destination=f"d{number % 3}")
        if number > 2:
            journal.event(3 * number + 1, Event.DELIVERED, message, attempts=1)
        if number % 5 == 4:
            journal.dead_letter(3 * number + 2, message, "overflow")
        elif number > 5:
            journal.event(3 * number + 2, Event.ACKNOWLEDGED, message - 2 * (number % 2))
        journal.depth(3 * number, number, 1)
    return journal.rows


def read_tables(spark: SparkSession, lake: Lake) -> tuple[list[Row], list[Row], list[Row]]:
    return (
        rows(lake.gold.read(spark), GOLD, GOLD_KEYS),
        rows(lake.silver.read(spark), SILVER, SILVER_KEYS),
        rows(lake.bronze.read(spark), BRONZE, ("sequence",)),
    )


def last_common_record(spark: SparkSession, lake: Lake, *layers: str) -> int:
    """Return the last record that all these layers contain; -1 if one of them is empty."""
    return min(
        lake.layer(layer).tagged_version(spark, lake.application(JOURNAL)) for layer in layers
    )


def stored_files(table: LakeTable) -> int:
    """Return the number of data files, also of those that no version has any more."""
    return sum("_delta_log" not in file.parts for file in Path(table.location).rglob("*.parquet"))


class SimulatedCrash(Exception):
    """Simulated crash."""


def test_interrupted_and_repeated_batches_count_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = traffic()
    last = events[-1]["sequence"]
    lake = Lake(tmp_path / "lake", broker="b")
    lake.check_journal(spark, JOURNAL)

    def write(writer: LakeWriter, start: int, stop: int) -> BatchResult:
        """Each event is a record of its own, numbered from 1."""
        return writer.write(frame(spark, events[start:stop]), start + 1, min(stop, last))

    def fail(*_: object) -> None:
        raise SimulatedCrash

    assert last_common_record(spark, lake, *EVENT_LAYERS) == -1
    write(LakeWriter(spark, lake, JOURNAL), 0, 50)
    assert last_common_record(spark, lake, *EVENT_LAYERS) == 50

    # crashes after gold; then a replay, which has to do without the writer's memory
    monkeypatch.setattr("sluicemq.pipeline.jobs.batch.bronze", fail)
    with pytest.raises(SimulatedCrash):
        write(LakeWriter(spark, lake, JOURNAL), 50, 90)
    monkeypatch.undo()
    assert last_common_record(spark, lake, *EVENT_LAYERS) == 50
    assert last_common_record(spark, lake, "gold") == 90
    # crashes after bronze
    monkeypatch.setattr(LakeWriter, "_silver", fail)
    with pytest.raises(SimulatedCrash):
        write(LakeWriter(spark, lake, JOURNAL), 50, 90)
    monkeypatch.undo()
    result = write(LakeWriter(spark, lake, JOURNAL), 50, 90)
    assert set(result.seconds) == {"silver"}
    assert result.rows == 40

    # without a checkpoint, batches are cut otherwise
    writer = LakeWriter(spark, lake, JOURNAL)
    write(writer, 30, 120)
    batch = write(writer, 100, last)
    assert (batch.rows, batch.last) == (last - 120, last)
    batch = write(writer, 100, last)
    assert (batch.rows, batch.seconds, batch.gold_committed) == (0, {}, None)

    all_events = frame(spark, events)
    tables = read_tables(spark, lake)
    assert tables == (
        rows(gold(all_events, "b"), GOLD, GOLD_KEYS),
        rows(silver_job.silver(all_events, "b"), SILVER, SILVER_KEYS),
        rows(bronze(all_events, "b"), BRONZE, ("sequence",)),
    )

    layers = [lake.layer(name) for name in ("bronze", "silver", "gold")]
    maintained: list[tuple[str, int, int]] = []
    versions = [table.version(spark) for table in layers]
    maintain(spark, lake, lambda *files: maintained.append(files))
    compacted = [(table.name, table.details(spark).numFiles) for table in layers]
    assert [(name, after) for name, _, after in maintained] == compacted
    # no other commit than that of OPTIMIZE: nothing is older than the retention
    optimized = [
        version + (before > after)
        for version, (_, before, after) in zip(versions, maintained, strict=True)
    ]
    assert [table.version(spark) for table in layers] == optimized
    maintained.clear()
    maintain(spark, lake, lambda *files: maintained.append(files), timedelta(0))
    assert maintained == [(name, files, files) for name, files in compacted]
    assert [(table.name, stored_files(table)) for table in layers] == compacted
    assert read_tables(spark, lake) == tables
    # other programs read the tables without Spark
    other = DeltaTable(lake.silver.location).to_pyarrow_table(columns=["message_sequence"])
    assert sorted(other["message_sequence"].to_pylist()) == [
        row["message_sequence"]
        for row in sorted(tables[1], key=lambda row: row["message_sequence"])
    ]

    reports: list[tuple[int, int]] = []
    count = rebuild(
        spark, lake, lambda step, total: reports.append((step.rows, total)), max_rows=60
    )
    assert count == len(events)
    assert reports[-1] == (len(events), len(events))
    assert read_tables(spark, lake) == tables
    assert last_common_record(spark, lake, *EVENT_LAYERS) == last


def test_batches_of_rebuild_are_limited_in_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(self: LakeWriter, events: DataFrame, first: int, last: int) -> BatchResult:
        """Write nothing: the test above writes what `rebuild` reads."""
        return BatchResult(last, rows=events.count())

    journal = Journal()
    for number in range(3):
        journal.message(number, b"body")
    for number, row in enumerate(journal.rows):  # blocks of their own
        row["sequence"] = row["message_sequence"] = 5000 * number + 1
    lake = Lake(tmp_path / "lake", broker="b")
    lake.check_journal(spark, JOURNAL)
    LakeWriter(spark, lake, JOURNAL, ["bronze"]).write(frame(spark, journal.rows), 1, 10_001)
    monkeypatch.setattr(LakeWriter, "write", count)

    def batches(max_bytes: int) -> list[int]:
        reports: list[int] = []
        rebuild(spark, lake, lambda step, total: reports.append(step.rows), max_bytes=max_bytes)
        return reports

    assert batches(8) == [2, 3]
    assert batches(3) == [1, 2, 3]  # at least a block each
    assert batches(12) == [3]


def test_rebuild_of_broker_without_events(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", broker="b")
    no_events = frame(spark, traffic()).where("false")
    LakeWriter(spark, lake, JOURNAL).write(no_events, 0, 5)
    with lake.write_lock(), pytest.raises(ConfigurationError, match="another process writes"):
        rebuild(spark, lake)
    assert lake.silver.exists(spark)
    assert rebuild(spark, lake) == 0
    assert last_common_record(spark, lake, *EVENT_LAYERS) == 5


def test_batch_interrupted_between_new_and_known_messages_is_completed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = traffic()
    last = events[-1]["sequence"]
    lake = Lake(tmp_path / "lake", broker="b")
    layers = ("bronze", "silver")

    def write(writer: LakeWriter, start: int, stop: int) -> BatchResult:
        return writer.write(frame(spark, events[start:stop]), start + 1, min(stop, last))

    def interrupt(start: int, stop: int) -> None:
        def fail(*_: object, **__: object) -> None:
            raise SimulatedCrash

        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "merge", fail)
            with pytest.raises(SimulatedCrash):
                write(LakeWriter(spark, lake, JOURNAL, layers), start, stop)

    write(LakeWriter(spark, lake, JOURNAL, layers), 0, 40)
    interrupt(40, 80)
    assert last_common_record(spark, lake, "silver") == 40
    # a shorter batch waits, a longer one completes it
    writer = LakeWriter(spark, lake, JOURNAL, layers)
    assert write(writer, 40, 60).seconds == {}
    assert last_common_record(spark, lake, "silver") == 40
    assert set(write(writer, 60, 102).seconds) == {"bronze", "silver"}
    assert last_common_record(spark, lake, "silver") == 102
    # the same batch completes it
    interrupt(102, 130)
    write(LakeWriter(spark, lake, JOURNAL, layers), 102, 130)
    write(LakeWriter(spark, lake, JOURNAL, layers), 130, last)
    expected = rows(silver_job.silver(frame(spark, events), "b"), SILVER, SILVER_KEYS)
    assert rows(lake.silver.read(spark), SILVER, SILVER_KEYS) == expected


def test_interrupted_batch_of_silver_without_bronze_is_not_shortened(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bronze, no table has the events of a shorter batch for a later one."""
    events = traffic()
    lake = Lake(tmp_path / "lake", broker="b")

    def write(stop: int) -> BatchResult:
        writer = LakeWriter(spark, lake, JOURNAL, ("silver",))
        return writer.write(frame(spark, events[40:stop]), 41, stop)

    LakeWriter(spark, lake, JOURNAL, ("silver",)).write(frame(spark, events[:40]), 0, 40)
    with monkeypatch.context() as patched:
        patched.setattr(LakeTable, "merge", mock.Mock(side_effect=SimulatedCrash))
        with pytest.raises(SimulatedCrash):
            write(80)
    with pytest.raises(ConfigurationError, match=r"record 60, .* up to 80: set --max-rows"):
        write(60)
    write(80)
    expected = rows(silver_job.silver(frame(spark, events[:80]), "b"), SILVER, SILVER_KEYS)
    assert rows(lake.silver.read(spark), SILVER, SILVER_KEYS) == expected


def test_merge_does_not_rewrite_messages_with_outcome(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal()
    lake = Lake(tmp_path / "lake", broker="b")
    writer = LakeWriter(spark, lake, JOURNAL, ["silver"])

    def write() -> dict[str, list[str | None]]:
        """Write all events as a batch. Returns the outcomes in each of the table's files."""
        first, last = journal.rows[0]["sequence"], journal.rows[-1]["sequence"]
        writer.write(frame(spark, journal.rows), first, last)
        journal.rows.clear()
        return {
            file: ParquetFile(file).read(["outcome"])["outcome"].to_pylist()
            for file in DeltaTable(lake.silver.location).file_uris()
        }

    journal.message(0, b"creates the table")
    write()
    messages = [journal.message(1, b"%d" % number) for number in range(6)]
    for message in messages[::2]:
        journal.event(2, Event.ACKNOWLEDGED, message)
    before = write()
    assert sorted(map(str, before.values())) == sorted(
        map(str, [["acknowledged"] * 3, [None] * 3, [None]])
    )
    for message in messages[1::2]:
        journal.event(3, Event.ACKNOWLEDGED, message)
    unchanged = before.keys() & write().keys()
    assert ["acknowledged"] * 3 in [before[file] for file in unchanged]
    assert [None] * 3 not in [before[file] for file in unchanged]


def test_merge_reads_only_files_that_may_have_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal()
    lake = Lake(tmp_path / "lake", broker="b")
    writer = LakeWriter(spark, lake, JOURNAL, ["gold", "silver"])

    def write() -> set[str]:
        """Write all events as a batch. Returns the files of both tables."""
        first, last = journal.rows[0]["sequence"], journal.rows[-1]["sequence"]
        writer.write(frame(spark, journal.rows), first, last)
        journal.rows.clear()
        tables = (lake.gold, lake.silver)
        return {file for table in tables for file in DeltaTable(table.location).file_uris()}

    journal.message(0, b"first day")
    before = write()
    message = journal.message(86_400, b"second day")
    assert before < write()
    for file in before:
        Path(file).unlink()
    journal.event(86_401, Event.ACKNOWLEDGED, message)
    assert before < write()


def test_number_of_tasks_can_be_limited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []
    append = LakeTable.append

    def observed(table: LakeTable, rows: DataFrame, *args: Any, **options: Any) -> None:
        tasks.append(rows.rdd.getNumPartitions())
        append(table, rows, *args, **options)

    monkeypatch.setattr(LakeTable, "append", observed)
    writer = LakeWriter(spark, Lake(tmp_path / "lake"), JOURNAL, ["bronze"], tasks=2)
    writer.write(frame(spark, traffic()).repartition(5), 1, 500)
    assert tasks == [2]


def test_silver_takes_only_its_own_new_events_from_bronze(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Bronze may be behind silver, and another broker may write to it between two batches."""
    events = traffic()
    lake, other = (Lake(tmp_path / "lake", broker=name) for name in "bc")

    def write(writer: LakeWriter, start: int, stop: int) -> None:
        writer.write(frame(spark, events[start:stop]), start + 1, stop)

    write(LakeWriter(spark, lake, JOURNAL, ["silver"]), 0, 30)
    writer = LakeWriter(spark, lake, JOURNAL, ["bronze", "silver"])
    write(writer, 0, 50)
    write(LakeWriter(spark, other, JOURNAL, ["bronze"]), 0, 70)
    write(writer, 50, 90)
    expected = rows(silver_job.silver(frame(spark, events[:90]), "b"), SILVER, SILVER_KEYS)
    assert rows(lake.silver.read(spark), SILVER, SILVER_KEYS) == expected


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which it is the next day already."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_time_zone_of_machine_is_irrelevant(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", broker="b")
    events = traffic()[:40]
    writer = LakeWriter(spark, lake, JOURNAL, ["gold"])
    for start in (0, 20):
        writer.write(frame(spark, events[start : start + 20]), start + 1, start + 20)
    expected = rows(gold(frame(spark, events), "b"), GOLD, GOLD_KEYS)
    assert rows(lake.gold.read(spark), GOLD, GOLD_KEYS) == expected


def test_repeated_commit_has_no_effect(spark: SparkSession, tmp_path: Path) -> None:
    """Two pipelines of one broker, a configuration error, write the same batch."""
    lake = Lake(tmp_path / "lake", broker="b")
    events = traffic()[:30]
    writers = [LakeWriter(spark, lake, JOURNAL) for _ in range(2)]
    for writer in writers:
        writer.write(frame(spark, events), 1, 30)
    all_events = frame(spark, events)
    assert read_tables(spark, lake) == (
        rows(gold(all_events, "b"), GOLD, GOLD_KEYS),
        rows(silver_job.silver(all_events, "b"), SILVER, SILVER_KEYS),
        rows(bronze(all_events, "b"), BRONZE, ("sequence",)),
    )


def test_batch_without_messages_advances_all_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise the checkpoint would be ahead of silver, and the slot would release its records."""
    lake = Lake(tmp_path / "lake", broker="b")
    writer = LakeWriter(spark, lake, JOURNAL)
    writer.write(frame(spark, traffic()[:3]), 1, 3)
    journal = Journal(4)
    journal.depth(1, 0, 1)
    writer.write(frame(spark, journal.rows), 4, 4)
    assert [last_common_record(spark, lake, layer) for layer in EVENT_LAYERS] == [4, 4, 4]
    relocated = {**traffic()[0], "sequence": 5, "event": "relocated"}
    writer.write(frame(spark, [relocated]), 5, 5)
    assert [last_common_record(spark, lake, layer) for layer in EVENT_LAYERS] == [5, 5, 5]


def test_lake_accepts_one_journal_per_broker(spark: SparkSession, tmp_path: Path) -> None:
    events = frame(spark, traffic()[:3])
    for broker, journal in (("b", JOURNAL), ("c", "another")):
        lake = Lake(tmp_path, broker)
        lake.check_journal(spark, journal)
        LakeWriter(spark, lake, journal, ["bronze"]).write(events, 1, 3)
    assert journals(lake.bronze.tags(spark)) == {"b": JOURNAL, "c": "another"}
    Lake(tmp_path, "b").check_journal(spark, JOURNAL)
    with pytest.raises(ConfigurationError, match=f"has the journal {JOURNAL}"):
        Lake(tmp_path, "b").check_journal(spark, "another")


@pytest.mark.parametrize(
    ("location", "broker", "error"),
    [
        ("/lake", "../b", "--broker"),
        ("s3://bucket/lake", "b", "write s3a:// for S3"),
        ("ftp://host/lake", "b", "none of the schemes file, s3a"),
        ("file://host/lake", "b", "is not of the form file:///path"),
        ("", "b", "--lake: '' is neither a directory"),
        ("/", "b", "--lake: '/' is neither a directory"),
    ],
)
def test_invalid_location_is_rejected(location: str, broker: str, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        Lake(location, broker)


def test_lake_is_directory_or_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Lake("lake").location == str(tmp_path / "lake")
    assert Lake("file:///a%20b/lake/").location == "/a b/lake"
    lake = Lake("s3a://bucket/lake/")
    assert lake.silver.location == "s3a://bucket/lake/silver/messages"
    assert lake.directory is None
