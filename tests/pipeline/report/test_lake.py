"""The report of a lake on disk."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.delta import LakeTable, Tag
from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.report import report_lake
from sluicemq.pipeline.report.figures import BODY_CHARACTERS
from tests.pipeline.report.sample import (
    START,
    anomalies,
    anomaly,
    dead_letter,
    dead_letters,
    gold,
    row,
)

TAG = Tag("sluicemq/b1/0123", 1)


def fill(spark: SparkSession, table: LakeTable, rows: pa.Table, tag: Tag = TAG) -> None:
    table.append(spark.createDataFrame(rows), tag)


def test_report_of_all_tables(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "broker one")
    two_days = [row(minute, published=1, backlog=minute) for minute in (0, 5, 1500)]
    for broker, version in (("b1", 2), ("b2", 900), ("b1", 4)):
        fill(spark, lake.gold, gold(two_days.pop()), Tag(f"sluicemq/{broker}/0123", version))
    fill(spark, lake.anomalies, anomalies(anomaly()))
    # Two brokers use the same numbers; only one of the letters with each is an example.
    rows = [
        dead_letter(number, broker=broker, dead_lettered=START + timedelta(seconds=number))
        for number in range(20)
        for broker in ("b1", "b2")
    ]
    rows += [dead_letter(500, reason=None), dead_letter(501, dead_lettered=None, reason="alive")]
    fill(spark, lake.silver, dead_letters(*rows))
    steps: list[str] = []
    report = report_lake(
        spark, lake, tmp_path / "report.html", png=tmp_path / "png", progress=steps.append
    )
    assert report.title == "broker one"
    assert (report.published, report.backlog, report.anomaly_count) == (3, 1500, 1)
    newest, unknown_reason = report.reasons
    assert [example["message_sequence"] for example in newest.examples] == [19, 19, 18]
    assert [example["message_sequence"] for example in unknown_reason.examples] == [500]
    assert report.state is not None
    assert {table["name"]: table["rows"] for table in report.state.tables} == {
        "silver.messages": 42,
        "gold.traffic": 3,
        "gold.anomalies": 1,
    }
    assert [(broker, last) for broker, last, _ in report.state.progress] == [("b1", 4), ("b2", 900)]
    assert "broker one" in (tmp_path / "report.html").read_text()
    assert len(list((tmp_path / "png").iterdir())) == 2
    assert steps == ["state of the lake", "traffic", "page", "PNG charts"]


def test_report_contains_beginnings_of_bodies(spark: SparkSession, tmp_path: Path) -> None:
    bodies: dict[str, dict[str, object]] = {
        "hello": {"text": "hello", "original_destination": "elsewhere"},
        '{"a": 1}': {"json": '{"a": 1}'},
        "a: 1, b": {"map": [("a", "1"), ("b", None)], "json": '{"a": 1, "b": null}'},
        "00 ff": {"body": b"\x00\xff"},
        "x" * BODY_CHARACTERS: {"text": "x" * 1000},
        "ab" + 99 * " ab": {"body": b"\xab" * 1000},
        "": {"text": ""},
    }
    rows = [dead_letter(n, reason=str(n), **body) for n, body in enumerate(bodies.values())]
    lake = Lake(tmp_path / "lake")
    fill(spark, lake.silver, dead_letters(*rows, dead_letter(7, reason="7")))
    report = report_lake(spark, lake, tmp_path / "report.html")
    examples = [reason.examples[0] for reason in report.reasons]
    assert [example["beginning"] for example in examples] == [*bodies, None]
    assert [example["destination"] for example in examples] == ["elsewhere", *["orders"] * 7]


def test_report_of_period(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    fill(spark, lake.gold, gold(*(row(minute, published=1) for minute in range(10))))
    rows = [dead_letter(1), dead_letter(2, dead_lettered=START + timedelta(minutes=5))]
    fill(spark, lake.silver, dead_letters(*rows))
    report = report_lake(
        spark,
        lake,
        tmp_path / "report.html",
        since=START.replace(tzinfo=None) + timedelta(minutes=4, seconds=20),
        until=START + timedelta(minutes=7),
        top=1,
    )
    assert report.published == 3
    assert [example["message_sequence"] for example in report.reasons[0].examples] == [2]


def test_report_of_empty_lake(spark: SparkSession, tmp_path: Path) -> None:
    report = report_lake(spark, Lake(tmp_path), tmp_path / "report.html")
    assert report.state is None
    assert "No traffic in this lake yet" in (tmp_path / "report.html").read_text()


def test_missing_lake_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no lake in .*/nowhere"):
        report_lake(spark, Lake(tmp_path / "nowhere"), tmp_path / "report.html")


def test_period_that_ends_before_it_begins_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ends .* before it begins"):
        report_lake(spark, Lake(tmp_path), tmp_path / "report.html", since=START, until=START)
