"""The report of a lake on disk."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.report import report_lake
from sluicemq.pipeline.source.connect import connect
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.tables import KINDS, table
from tests.pipeline.report.sample import (
    START,
    anomalies,
    anomaly,
    dead_letter,
    dead_letters,
    gold,
    row,
)
from tests.pipeline.source.support import put
from tests.pipeline.source.test_events import journal_in


def fill(lake: Path, kind: str, name: str, rows: pa.Table, version: int = 3) -> None:
    partitions = ("day",) if name == "gold" else ()
    made = table(kind, lake / name, partitions=partitions)
    made.append(rows, application="sluicemq/hamburg/0123", version=version)


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    lake = tmp_path / "broker one"
    two_days = [row(minute, published=1, backlog=minute) for minute in (0, 5, 1500)]
    fill(lake, kind, "gold", gold(*two_days))
    fill(lake, kind, "anomalies", anomalies(anomaly()))
    # Two brokers use the same numbers; only one of the letters with each is an example.
    rows = [
        dead_letter(number, broker=broker, dead_lettered=START + timedelta(seconds=number))
        for number in range(20)
        for broker in ("b1", "b2")
    ]
    rows += [dead_letter(500, reason=None), dead_letter(501, dead_lettered=None, reason="alive")]
    fill(lake, kind, "silver", dead_letters(*rows))
    steps: list[str] = []
    report = report_lake(
        lake, tmp_path / "report.html", png=tmp_path / "png", progress=steps.append
    )
    assert report.title == "broker one"
    assert (report.published, report.backlog, report.anomaly_count) == (3, 1500, 1)
    newest, unknown = report.reasons
    assert [example.message for example in newest.examples] == [19, 19, 18]
    assert [example.message for example in unknown.examples] == [500]
    assert report.state is not None
    assert report.state.kind == kind
    assert {each.name: each.rows for each in report.state.tables} == {
        "silver": 42,
        "gold": 3,
        "anomalies": 1,
    }
    assert [(each.broker, each.last, each.behind) for each in report.state.progress] == [
        ("hamburg", 3, None)
    ]
    assert "broker one" in (tmp_path / "report.html").read_text()
    assert len(list((tmp_path / "png").iterdir())) == 2
    assert steps == ["how far the pipeline is", "traffic", "the page", "the pictures"]


def test_how_much_of_a_journal_the_lake_lacks(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    records = 7
    with journal_in(data / "journal") as journal:
        for _ in range(records):
            put(journal)
        journal.sync()
    source = {"path": str(data)}
    state = connect(parse_options(source)).state()
    identity, last = state.identity, state.next - 1
    made = table("delta", lake / "gold", partitions=("day",))
    made.append(gold(row(published=1)), application=f"sluicemq/b1/{identity}", version=2)
    made.append(gold(row(published=1)), application="sluicemq/b2/fedcba", version=900)
    made.append(gold(row(published=1)), application=f"sluicemq/b1/{identity}", version=4)
    report = report_lake(lake, tmp_path / "report.html", source=source)
    assert report.state is not None
    assert last >= records
    assert [(each.broker, each.last, each.behind) for each in report.state.progress] == [
        ("b1", 4, last - 4),
        ("b2", 900, None),
    ]
    page = (tmp_path / "report.html").read_text()
    assert f"its journal holds {last - 4} more records" in page


def test_of_a_period(tmp_path: Path) -> None:
    fill(tmp_path, "delta", "gold", gold(*(row(minute, published=1) for minute in range(10))))
    rows = [dead_letter(1), dead_letter(2, dead_lettered=START + timedelta(minutes=5))]
    fill(tmp_path, "delta", "silver", dead_letters(*rows))
    report = report_lake(
        tmp_path,
        tmp_path / "report.html",
        since=START.replace(tzinfo=None) + timedelta(minutes=4, seconds=20),
        until=START + timedelta(minutes=7),
        top=1,
    )
    assert report.published == 3
    assert [example.message for example in report.reasons[0].examples] == [2]


def test_of_an_empty_lake(tmp_path: Path) -> None:
    report = report_lake(tmp_path, tmp_path / "report.html")
    assert report.state is None
    assert "No traffic in this lake yet" in (tmp_path / "report.html").read_text()


def test_a_missing_lake_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no lake in .*/nowhere"):
        report_lake(tmp_path / "nowhere", tmp_path / "report.html")


def test_a_period_that_ends_before_it_begins_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ends .* before it begins"):
        report_lake(tmp_path, tmp_path / "report.html", since=START, until=START)
