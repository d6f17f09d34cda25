"""Batches into a lake: whatever is broken off, repeated or lost, each event counts once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.jobs import gold as gold_job
from sluicemq.pipeline.jobs import silver as silver_job
from sluicemq.pipeline.jobs.batch import LakeWriter
from sluicemq.pipeline.jobs.bronze import bronze, choose_named, named_of
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.rebuild import rebuild
from sluicemq.pipeline.jobs.schemas import BRONZE, GOLD, GOLD_KEYS, SILVER, SILVER_KEYS
from sluicemq.pipeline.schema import Event
from tests.pipeline.jobs.events import Journal, Row, frame, rows, sorted_rows

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


def contents(lake: Lake) -> tuple[list[Row], list[Row], list[Row]]:
    return (
        sorted_rows(lake.table("gold").read(), GOLD, GOLD_KEYS),
        sorted_rows(lake.table("silver").read(), SILVER, SILVER_KEYS),
        sorted_rows(lake.table("bronze").read(), BRONZE, ("sequence",)),
    )


class Broken(Exception):
    """A crash."""


def test_what_is_repeated_or_broken_off_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = traffic()
    lake = Lake(tmp_path / "lake", broker="b")
    lake.claim(JOURNAL)
    assert lake.reached(JOURNAL) is None
    LakeWriter(lake, JOURNAL).write(frame(spark, events[:50]))
    assert lake.reached(JOURNAL) == events[49]["sequence"]

    def fail(*_: object) -> None:
        raise Broken

    # crashes after gold; then a replay, which has to do without the writer's memory
    writer = LakeWriter(lake, JOURNAL)
    monkeypatch.setattr(LakeWriter, "_bronze", fail)
    with pytest.raises(Broken):
        writer.write(frame(spark, events[50:90]))
    monkeypatch.undo()
    assert lake.reached(JOURNAL) == events[49]["sequence"]
    assert lake.reached(JOURNAL, ["gold"]) == events[89]["sequence"]
    replayed = LakeWriter(lake, JOURNAL).write(frame(spark, events[50:90]))
    assert set(replayed.seconds) >= {"bronze", "silver"}

    # without a checkpoint, batches are cut otherwise
    writer = LakeWriter(lake, JOURNAL)
    writer.write(frame(spark, events[30:120]))
    done = writer.write(frame(spark, events[100:]))
    assert (done.rows, done.last) == (len(events) - 100, events[-1]["sequence"])
    done = writer.write(frame(spark, events[100:]))
    assert (done.rows, done.seconds.keys(), done.gold_committed) == (0, {"gold"}, None)

    whole = frame(spark, events)
    expected = (
        rows(gold_job.gold(whole, "b"), GOLD, GOLD_KEYS),
        rows(silver_job.silver(whole, "b"), SILVER, SILVER_KEYS),
        rows(bronze(whole, ["orders", "d0", "d1", "d2"], "b"), BRONZE, ("sequence",)),
    )
    found = contents(lake)
    assert found[:2] == expected[:2]
    plain = [{**row, "destination_partition": ""} for row in found[2]]
    assert plain == [{**row, "destination_partition": ""} for row in expected[2]]

    for name in ("gold", "silver"):
        lake.table(name).compact()
    reports: list[tuple[int, int]] = []
    count = rebuild(
        spark, lake, lambda step, total: reports.append((step.rows, total)), max_rows=60
    )
    assert count == len(events)
    assert reports[-1] == (len(events), len(events))
    assert contents(lake) == found
    assert lake.reached(JOURNAL) == events[-1]["sequence"]
    assert not lake.rebuilding.exists()


def test_a_lake_takes_one_journal_per_broker(tmp_path: Path) -> None:
    lake = Lake(tmp_path, broker="b")
    lake.claim(JOURNAL)
    lake.claim(JOURNAL)
    Lake(tmp_path, broker="c").claim("another")
    with pytest.raises(ConfigurationError, match=f"has the journal {JOURNAL}"):
        lake.claim("another")
    with pytest.raises(ConfigurationError, match="use --format delta"):
        Lake(tmp_path, "parquet", "b").claim(JOURNAL)
    with pytest.raises(ConfigurationError, match="--broker"):
        Lake(tmp_path, broker="../b")
    with pytest.raises(ConfigurationError, match="--format"):
        Lake(tmp_path, "orc")
    assert lake.brokers() == {"b": JOURNAL, "c": "another"}


def test_a_million_destinations_are_not_a_million_directories(spark: SparkSession) -> None:
    journal = Journal()
    names = [f"q{number}" for number in range(300)]
    hostile = ["../up", "a/b", "", "~00", "x" * 300, "grün", "con=1", "%2e"]
    for name in names + hostile:
        journal.message(0, destination=name)
    named = choose_named([], names + hostile, 10)
    assert named == set(sorted(names)[:10])
    assert choose_named(named, ["zz"], 10) == named
    assert choose_named(named, ["zz", "zz", "b/c"], 12) == named | {"zz"}
    found = rows(bronze(frame(spark, journal.rows), named, "b"), BRONZE, ("sequence",))
    partitions = {row["destination_partition"] for row in found}
    assert len(partitions) <= 10 + 256
    assert named_of(partitions) == named
    for row in found:
        assert (row["destination_partition"] == row["destination"]) == (row["destination"] in named)
