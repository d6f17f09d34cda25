"""Counts of each destination and minute."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluicemq.pipeline import histogram
from sluicemq.pipeline.jobs.gold import COMBINED
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.schema import GOLD, GOLD_KEYS, Event
from tests.pipeline.jobs.events import START, Journal, Row, at, frame, gold, merged, rows
from tests.pipeline.jobs.test_silver import event_histories
from tests.pipeline.latencies import ERROR, bucket_of


def build_gold(spark: SparkSession, journal: Journal, **options: Any) -> dict[tuple[Any, ...], Row]:
    gold_rows = rows(gold(frame(spark, journal.rows), "b", **options), GOLD, GOLD_KEYS)
    return {(row["destination"], row["protocol"], row["minute"]): row for row in gold_rows}


def test_counts_per_minute(spark: SparkSession) -> None:
    journal = Journal()
    for number in range(100):
        message = journal.message(number / 10, b"x" * number)
        journal.event(number / 10 + 0.5, Event.DELIVERED, message)
        if number < 90:
            journal.event(number / 10 + 0.5 + number / 1000, Event.ACKNOWLEDGED, message)
        else:
            journal.event(number / 10 + 1, Event.REDELIVERED, message)
            journal.dead_letter(number / 10 + 2, message, "expired" if number < 93 else "overflow")
    journal.depth(5, 11, 2)
    journal.depth(15, 7, 3)
    journal.event(61, Event.ACKNOWLEDGED, 999_999)
    gold_rows = build_gold(spark, journal)

    row = gold_rows["orders", "phpmq", START]
    assert (row["published"], row["published_bytes"]) == (100, sum(range(100)))
    assert (row["delivered"], row["redelivered"], row["acknowledged"]) == (100, 10, 90)
    assert (row["dead_lettered"], row["expired"], row["late_events"]) == (10, 0, 0)
    assert row["publish_rate"] == pytest.approx(100 / 60)
    assert row["acknowledge_rate"] == 1.5
    assert row["dead_letter_reasons"] == {"expired": 3, "overflow": 7}
    assert row["queueing"] == {bucket_of(500): 100}
    assert (row["queueing_max"], row["end_to_end_max"]) == (500, 589)
    latencies = sorted(500.0 + number for number in range(90))
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        expected = latencies[int(share * 90 + 0.999999) - 1]
        assert row[f"end_to_end_{name}"] == pytest.approx(expected, rel=ERROR)
        assert row[f"end_to_end_{name}"] == histogram.percentile(row["end_to_end"], share)
    assert (row["backlog"], row["consumers"]) == (None, None)
    depths = gold_rows["orders", "any", START]
    assert (depths["backlog"], depths["consumers"], depths["depth_time"]) == (7, 3, at(15))
    assert depths["published"] == 0
    assert depths["queueing_p50"] is None
    assert gold_rows["orders.dlq", "phpmq", START]["published"] == 10
    unknown_row = gold_rows["orders", "unknown", at(60)]
    assert (unknown_row["acknowledged"], unknown_row["end_to_end"]) == (1, {})
    assert len(gold_rows) == 4


def test_late_events_count_and_are_reported(spark: SparkSession) -> None:
    journal = Journal()
    for seconds in (-3601, -3600, 0):
        journal.message(seconds)
    gold_rows = build_gold(spark, journal, newest=START)
    assert sum(row["published"] for row in gold_rows.values()) == 3
    assert {key[2]: row["late_events"] for key, row in gold_rows.items()} == {
        at(-3660): 1,
        at(-3600): 0,
        at(0): 0,
    }
    always = build_gold(spark, journal, newest=START, watermark=timedelta(days=900_000))
    assert {row["late_events"] for row in always.values()} == {0}


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batches_in_any_order_give_the_same_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    events = data.draw(event_histories())
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(events), max_size=len(events)))
    frames = [
        gold(frame(spark, [row for row, part in zip(events, parts, strict=True) if part == n]), "b")
        for n in data.draw(st.permutations(range(3)))
    ]
    table = Lake(tmp_path_factory.mktemp("lake")).gold
    expected = rows(gold(frame(spark, events), "b"), GOLD, GOLD_KEYS)
    assert merged(frames, table, GOLD, COMBINED) == expected


def test_later_of_two_depths_applies(spark: SparkSession, tmp_path: Path) -> None:
    earlier, later = Journal(), Journal(100)
    earlier.depth(5, 100, 1)
    earlier.depth(5, 90, 1)
    later.depth(5, 80, 1)
    parts = [gold(frame(spark, journal.rows), "b") for journal in (earlier, later)]
    table = Lake(tmp_path).gold
    assert merged(parts, table, GOLD, COMBINED)[0]["backlog"] == 80
