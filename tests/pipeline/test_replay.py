"""Replay of messages of a table to a queue: in order, at a given speed, and once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sluicemq.broker.selectors import compile_selector
from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConfigurationError, RequestRefused
from sluicemq.model.message import BodyKind
from sluicemq.pipeline.replay import _split_by_window, _window, replay
from tests.pipeline.sink.published_messages import published

SILVER = """message_sequence bigint, destination string, destination_kind string,
    published timestamp, size bigint, body_kind string, body binary, text string, json string,
    priority int, properties map<string,string>, property_types map<string,string>,
    expiration timestamp"""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    listen = ["http://127.0.0.1:0"]
    with LocalBroker(tmp_path_factory.mktemp("broker"), listen) as broker:
        yield broker


@pytest.fixture(scope="module")
def url(broker: LocalBroker) -> str:
    return f"http://127.0.0.1:{broker.port('http')}"


@pytest.fixture(scope="module")
def data(broker: LocalBroker) -> Path:
    return broker.directory


def row(number: int, **values: Any) -> tuple[Any, ...]:
    """Return a row of silver."""
    defaults = {
        "message_sequence": number,
        "destination": "orders",
        "destination_kind": "queue",
        "published": LONG_AGO,
        "size": 1,
        "body_kind": "text",
        "text": str(number),
        "priority": number % 10,
        "properties": {"n": str(number), "odd": str(number % 2 == 1).lower()},
        "property_types": {"n": "integer", "odd": "boolean"},
        "expiration": LONG_AGO,
    }
    columns = [column.split()[0] for column in SILVER.replace("\n", " ").split(", ")]
    return tuple({**defaults, **values}.get(name) for name in columns)


@pytest.fixture(scope="module")
def silver(spark: SparkSession) -> DataFrame:
    """Messages 0 to 2999 in any order, and one of which only the end is known."""
    rows = [row(number * 7 % 3000) for number in range(3000)]
    return spark.createDataFrame([*rows, row(9999, size=None, body_kind=None, text=None)], SILVER)


def numbers(data: Path, queue: str) -> list[int]:
    """Return the bodies of the messages in a queue, in order."""
    return [int(message.body) for message in published(data, queue)]


def test_replays_in_order_and_unchanged(silver: DataFrame, url: str, data: Path) -> None:
    reports: list[tuple[int, int]] = []
    result = replay(
        silver, url, "again", progress=lambda sent, total: reports.append((sent, total))
    )
    assert (result.rows, result.written, result.already, result.bad) == (3000, 3000, 0, 0)
    assert reports[-1] == (3000, 3000)
    assert numbers(data, "again") == list(range(3000))
    message = published(data, "again")[13]
    assert (message.kind, message.priority, message.expiration) == (BodyKind.TEXT, 3, 0)
    assert message.properties == {"n": 13, "odd": True}


def test_messages_of_several_brokers_are_ordered_by_time(
    spark: SparkSession, url: str, data: Path
) -> None:
    times = {"berlin": [10, 30, 20, 50], "paris": [15, 25, 40]}
    rows = [
        (broker, *row(number, published=LONG_AGO + timedelta(seconds=moment), text=str(moment)))
        for broker, moments in times.items()
        for number, moment in enumerate(moments)
    ]
    frame = spark.createDataFrame(rows, f"broker string, {SILVER}")
    replay(frame, url, "brokers", speed=1000)
    # the clock of berlin went back
    assert numbers(data, "brokers") == [10, 15, 25, 30, 20, 40, 50]
    replay(frame.where("broker = 'berlin'"), url, "berlin")
    assert numbers(data, "berlin") == times["berlin"]


def test_bodies_are_read_from_any_column(spark: SparkSession, url: str, data: Path) -> None:
    rows = [
        row(1, body_kind="bytes", text=None, body=b"\xff"),
        row(2, body_kind="json", text=None, json="[2]"),
        row(3, body_kind="none", text=None),
        row(4, body_kind="text", text="é"),
    ]
    frame = spark.createDataFrame(rows, SILVER).withColumnRenamed("destination", "was")
    replay(frame.selectExpr("*", "'bodies' as destination"), url)
    bodies = [(message.kind.name, message.body) for message in published(data, "bodies")]
    assert bodies == [("BYTES", b"\xff"), ("JSON", b"[2]"), ("NONE", b""), ("TEXT", "é".encode())]


def test_replay_is_continued_by_its_name(silver: DataFrame, url: str, data: Path) -> None:
    """This includes interrupted and completed replays."""

    def break_off(sent: int, _: int) -> None:
        if sent > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(silver, url, "named", rate=5000, write_id="named", progress=break_off)
    before = len(published(data, "named"))
    assert 0 < before < 3000
    result = replay(silver, url, "named", rate=5000, write_id="named")
    assert (result.already, result.written) == (before, 3000 - before)
    assert numbers(data, "named") == list(range(3000))
    result = replay(silver, url, "named", rate=5000, write_id="named")
    assert (result.already, result.written) == (3000, 0)
    with pytest.raises(RequestRefused, match="has been written with other rows"):
        replay(silver.where("message_sequence < 5"), url, "named", rate=5000, write_id="named")


def test_replays_messages_of_selector(silver: DataFrame, url: str, data: Path) -> None:
    text = "odd = TRUE AND n BETWEEN 100 AND 200 AND JMSPriority > 6 AND JMSTimestamp > 0"
    make_predicate = partial(compile_selector, text)
    result = replay(
        silver.where("message_sequence < 150"), url, "selected", make_predicate=make_predicate
    )
    assert result.rows == 10
    assert numbers(data, "selected") == [n for n in range(100, 150) if n % 10 in (7, 9)]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate": 1, "speed": 1}, "not both"),
        ({"rate": 0}, "larger than 0"),
        ({"speed": -1}, "larger"),
        ({"rate": float("nan")}, "larger"),
    ],
)
def test_invalid_options_are_refused(
    silver: DataFrame, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        replay(silver, "http://localhost", **values)


def test_other_tables_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="needs rows of silver"):
        replay(spark.range(3), "http://localhost", "q")


def windows(
    spark: SparkSession, seconds: list[float | None], rate: float | None, speed: float | None
) -> list[int]:
    """Return the windows of messages with these times."""
    micros = [None if second is None else int(second * 1e6) for second in seconds]
    frame = spark.createDataFrame(list(enumerate(micros)), "message_sequence bigint, micros bigint")
    frame = frame.selectExpr("message_sequence", "timestamp_micros(micros) AS published")
    rows = frame.select("message_sequence", _window(rate, speed).alias("window"))
    return [row.window for row in rows.orderBy("message_sequence").collect()]


def test_rate_makes_windows(spark: SparkSession) -> None:
    assert windows(spark, [0] * 10, 20, None) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert windows(spark, [0] * 3, 4, None) == [0, 2, 5]
    assert windows(spark, [0, 5], None, None) == [0, 0]


def test_speed_keeps_pauses(spark: SparkSession) -> None:
    """Twice the speed halves the pauses; a clock that was set back causes none."""
    times = [None, 100, 100.05, None, 110, 90, None, 120, 120.5, 119]
    assert windows(spark, times, None, 2) == [0, 0, 0, 0, 50, 50, 50, 100, 102, 102]


def test_batch_is_divided_by_windows() -> None:
    batch = pa.RecordBatch.from_pydict({"body": list("abcde"), "_window": [2, 2, 5, 6, 6]})
    parts = _split_by_window(batch)
    assert [(window, "".join(part["body"].to_pylist())) for window, part in parts] == [
        (2, "ab"),
        (5, "c"),
        (6, "de"),
    ]
