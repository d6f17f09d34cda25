"""Each anomaly is detected, and not in similar data without it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.sql import DataFrame, SparkSession

from sluicemq.pipeline.delta import LakeTable, Tag
from sluicemq.pipeline.jobs.anomalies import anomalies
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.maintain import find_anomalies
from sluicemq.pipeline.jobs.silver import silver
from sluicemq.pipeline.schema import ANOMALIES, GOLD, Event
from tests.pipeline.jobs.events import START, Journal, Row, at, frame, gold, sorted_rows
from tests.pipeline.latencies import bucket_of


def build_tables(
    spark: SparkSession, journal: Journal, more: list[Row] | None = None
) -> tuple[DataFrame, DataFrame]:
    """Return gold and silver."""
    events = frame(spark, journal.rows)
    gold_tables = [gold(events, "b").toArrow().cast(GOLD), pa.Table.from_pylist(more or [], GOLD)]
    gold_rows = spark.createDataFrame(pa.concat_tables(gold_tables))
    return gold_rows, spark.createDataFrame(silver(events, "b").toArrow())


def compute_anomalies(spark: SparkSession, journal: Journal) -> list[Row]:
    table = anomalies(*build_tables(spark, journal)).toArrow()
    assert table.schema.names == ANOMALIES.names
    return sorted_rows(table, ANOMALIES, ("kind", "destination"))


def find_anomalies_in_lake(
    spark: SparkSession, path: Path, journal: Journal, more: list[Row] | None = None
) -> list[Row]:
    lake = Lake(path)
    gold_rows, silver_rows = build_tables(spark, journal, more)
    lake.gold.append(gold_rows, Tag("test", 1))
    lake.silver.append(silver_rows, Tag("test", 1))
    number = find_anomalies(spark, lake)
    anomaly_rows = sorted_rows(
        lake.anomalies.read(spark).toArrow(), ANOMALIES, ("kind", "destination")
    )
    assert len(anomaly_rows) == number
    return anomaly_rows


def test_stalled_queue_is_detected(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal()
    waits = []
    for minute in range(40):
        seconds = 60 * minute
        stuck = journal.message(seconds, destination="stuck")
        if minute < 10:
            journal.event(seconds + 1, Event.DELIVERED, stuck)
            journal.event(seconds + 2, Event.ACKNOWLEDGED, stuck)
        else:
            waits.append(stuck)
        waiting = max(0, minute - 9)
        journal.depth(seconds + 3, waiting, 1, destination="stuck")
        # the same backlog, but something is acknowledged
        healthy = journal.message(seconds, destination="healthy")
        journal.event(seconds + 2, Event.ACKNOWLEDGED, healthy)
        journal.depth(seconds + 3, 500, 1, destination="healthy")
        # nothing is acknowledged, because nothing waits
        journal.depth(seconds + 3, 0, 1, destination="idle")
        # stuck, but not for long enough
        if minute > 30:
            journal.depth(seconds + 3, 5, 1, destination="new")
    (row,) = find_anomalies_in_lake(spark, tmp_path, journal)
    assert find_anomalies(spark, Lake(tmp_path)) == 1
    assert Lake(tmp_path).anomalies.read(spark).count() == 1  # the row was updated
    assert (row["kind"], row["destination"], row["severity"]) == (
        "stuck-queue",
        "stuck",
        "critical",
    )
    assert (row["minute"], row["detected"]) == (at(600), at(39 * 60))
    details = json.loads(row["details"])
    assert details.pop("oldest") == waits[:5]
    assert details == {
        "minutes": 29,
        "ready": 30,
        "ready_at_first": 1,
        "published": 30,
        "consumers": 1,
    }
    assert "for 29 minutes while 30 messages wait" in row["evidence"]


def test_redelivery_loop_is_detected(spark: SparkSession) -> None:
    journal = Journal()

    def add_attempts(times: int) -> int:
        message = journal.message(0)
        journal.event(1, Event.DELIVERED, message, attempts=1)
        for attempt in range(2, times + 1):
            journal.event(attempt, Event.REDELIVERED, message, attempts=attempt)
        return message

    redelivered = add_attempts(7)
    dead_lettered = add_attempts(5)
    dead_letter = journal.dead_letter(100, dead_lettered, "max-attempts", 5)
    acknowledged = add_attempts(9)
    journal.event(100, Event.ACKNOWLEDGED, acknowledged)
    add_attempts(4)
    expired = journal.message(0)
    journal.dead_letter(101, expired, "expired", 0)
    anomaly_rows = {row["message_sequence"]: row for row in compute_anomalies(spark, journal)}
    assert set(anomaly_rows) == {redelivered, dead_lettered}
    assert {row["kind"] for row in anomaly_rows.values()} == {"poison-message"}
    assert (anomaly_rows[redelivered]["severity"], anomaly_rows[dead_lettered]["severity"]) == (
        "critical",
        "warning",
    )
    assert anomaly_rows[dead_lettered]["evidence"] == (
        f"message {dead_lettered} was delivered 5 times and is dead-lettered: max-attempts"
    )
    assert json.loads(anomaly_rows[dead_lettered]["details"])["moved_to_sequence"] == dead_letter
    assert len({row["id"] for row in anomaly_rows.values()}) == 2


def test_anomalies_are_stored_in_spite_of_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipelines of several brokers store theirs in the same table at the same time."""
    journal = Journal()
    poison = journal.message(0, destination="orders")
    for attempt in range(1, 7):
        journal.event(attempt, Event.REDELIVERED, poison, attempts=attempt)
    conflicts = [ConcurrentAppendException("another MERGE") for _ in range(2)]
    merge = LakeTable.merge

    def contended(self: LakeTable, rows: DataFrame) -> None:
        if conflicts:
            raise conflicts.pop()
        merge(self, rows)

    monkeypatch.setattr(LakeTable, "merge", contended)
    (row,) = find_anomalies_in_lake(spark, tmp_path, journal)
    assert (row["kind"], row["message_sequence"]) == ("poison-message", poison)


def test_latency_regression_is_detected(spark: SparkSession, tmp_path: Path) -> None:
    def minute(destination: str, days: int, latencies: dict[float, int]) -> Row:
        histogram = {bucket_of(ms): count for ms, count in latencies.items()}
        row: dict[str, Any] = dict.fromkeys(GOLD.names)
        row |= {name: 0 for name in GOLD.names if not GOLD.field(name).nullable}
        row |= {"broker": "b", "destination": destination, "destination_kind": "queue"}
        row |= {"minute": START + timedelta(days=days), "protocol": "jmq", "queueing": []}
        row |= {"day": row["minute"].date(), "dead_letter_reasons": []}
        return row | {"end_to_end": list(histogram.items())}

    fast, slow = {10.0: 900, 20.0: 100}, {10.0: 100, 40.0: 900}
    minutes = [
        minute("slow", 0, fast),
        minute("slow", 7, slow),
        # as always
        minute("steady", 0, fast),
        minute("steady", 7, {10.0: 890, 20.0: 110}),
        # too few to tell
        minute("rare", 0, {10.0: 9, 20.0: 1}),
        minute("rare", 7, {10.0: 1, 40.0: 9}),
        # another weekday
        minute("other", 0, fast),
        minute("other", 6, slow),
        # faster
        minute("better", 0, slow),
        minute("better", 7, fast),
        # a few stragglers more: the percentile leaps, the distribution is the same
        minute("tail", 0, {10.0: 960, 100.0: 40}),
        minute("tail", 7, {10.0: 940, 100.0: 60}),
    ]
    journal = Journal()
    journal.depth(0, 0, 1)
    (row,) = find_anomalies_in_lake(spark, tmp_path, journal, minutes)
    assert (row["kind"], row["destination"]) == ("latency-regression", "slow")
    assert (row["minute"], row["severity"]) == (START + timedelta(days=7), "warning")
    details = json.loads(row["details"])
    assert (details["samples"], details["samples_before"]) == (1000, 1000)
    assert details["distance"] == 0.9
    assert "a week ago within" in row["evidence"]
