"""The source in Spark: by name, as a batch, and as a stream that is stopped and continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sluicemq.journal import FileJournal
from sluicemq.journal.segment import list_segments, segment_path
from sluicemq.journal.slots import Slots
from tests.pipeline.source import support
from tests.pipeline.source.support import message, naive_rows, only, put
from tests.pipeline.source.test_events import journal_in

ROUNDS = 6


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    with journal_in(tmp_path / "data" / "journal") as journal:
        for _ in range(ROUNDS):
            fill(journal)
        yield journal


def fill(journal: FileJournal) -> None:
    """Ten messages, five of them delivered."""
    content = message(b"\xff" * 200, properties={"tall": True, "n": 5}, reply_to=support.ORDERS)
    numbers = [put(journal, content) for _ in range(10)]
    support.deliver(journal, numbers[:5])
    journal.sync()


@pytest.fixture
def data(tmp_path: Path, journal: FileJournal) -> str:
    return str(tmp_path / "data")


def test_batch(spark: SparkSession, data: str) -> None:
    frame = spark.read.format("sluicemq").options(events="*", includeHeaders="true").load(data)
    rows = [row.asDict() for row in frame.orderBy("sequence", "record_index").collect()]
    expected = naive_rows(Path(data) / "journal")
    names = [name for name in expected[0] if name not in ("time", "published")]
    for row in rows:
        row["body"] = bytes(row["body"]) if row["body"] is not None else None
    assert only(rows, *names) == only(expected, *names)
    # without a zone, in the session's, which is UTC
    assert rows[0]["time"] == expected[0]["time"].replace(tzinfo=None)

    filtered = frame.where("destination = 'orders' and event = 'delivered' and sequence > 20")
    selected = [r for r in expected if r["event"] == "delivered" and r["sequence"] > 20]
    assert filtered.count() == len(selected)
    narrow = spark.read.format("sluicemq").schema("body binary, sequence bigint").load(data)
    assert narrow.selectExpr("sum(length(body))").first()[0] == ROUNDS * 10 * 200


@pytest.fixture(params=["true", "false"])
def push_down(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark's setting by which a filtered read leaves its plan with the DataFrame."""
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    spark.conf.set(setting, request.param)
    yield
    spark.conf.set(setting, before)


@pytest.mark.usefixtures("push_down")
def test_filter_leaves_dataframe_and_view_whole(spark: SparkSession, data: str) -> None:
    frame = spark.read.format("sluicemq").option("events", "*").load(data)
    filtered = frame.where("event = 'delivered' and destination = 'orders'")
    total, matching = ROUNDS * 15, ROUNDS * 5
    assert [frame.count(), filtered.count(), frame.count()] == [total, matching, total]
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW events USING sluicemq "
        f"OPTIONS (path '{data}', events '*')"
    )
    counts = spark.sql(
        "SELECT event, count(*) FROM events WHERE event = 'delivered' GROUP BY event UNION ALL "
        "SELECT event, count(*) FROM events WHERE event = 'published' GROUP BY event"
    )
    assert sorted(map(tuple, counts.collect())) == [
        ("delivered", ROUNDS * 5),
        ("published", ROUNDS * 10),
    ]
    assert spark.table("events").count() == ROUNDS * 15


def test_next_read_sees_new_messages(spark: SparkSession, data: str, journal: FileJournal) -> None:
    """Spark plans a DataFrame once, as with files: it stays what it was at its first action."""
    reader = spark.read.format("sluicemq")
    frame = reader.load(data)
    assert frame.count() == ROUNDS * 10
    fill(journal)
    assert reader.load(data).count() == (ROUNDS + 1) * 10
    assert frame.count() == ROUNDS * 10


def test_errors_reach_user(spark: SparkSession, data: str) -> None:
    with pytest.raises(PySparkException, match=r"startingoffset.*startingOffsets"):
        spark.read.format("sluicemq").option("startingOffset", "1").load(data)
    first = list_segments(Path(data) / "journal")[0]
    path = segment_path(Path(data) / "journal", first)
    with path.open("r+b") as file:
        file.seek(300)
        file.write(b"damage")
    with pytest.raises(PySparkException, match=rf"{path.name}, offset"):
        spark.read.format("sluicemq").load(data).collect()


def collect_stream(
    source: DataFrame, checkpoint: Path, found: list[tuple[int, int]]
) -> Callable[[], StreamingQuery]:
    """Starts a query that adds number and item of each row to `found`, and ends by itself."""

    def collect(frame: DataFrame, number: int) -> None:
        found.extend(sorted((row["sequence"], row["record_index"]) for row in frame.collect()))

    def start() -> StreamingQuery:
        return (
            source.select("sequence", "record_index")
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    return start


def test_stream(spark: SparkSession, data: str, journal: FileJournal, tmp_path: Path) -> None:
    options = {"path": data, "events": "*", "slot": "lake", "startingOffsets": "earliest"}
    source = spark.readStream.format("sluicemq").options(**options, maxOffsetsPerTrigger="40")
    rows: list[tuple[int, int]] = []
    start = collect_stream(source.load(), tmp_path / "checkpoint", rows)
    query = start()
    query.awaitTermination()
    expected = only(naive_rows(Path(data) / "journal"), "sequence", "record_index")
    assert rows == expected
    progress = query.recentProgress
    assert [batch.numInputRows for batch in progress if batch.numInputRows] == [40, 40, 10]
    assert '"sequence"' in progress[-1].sources[0].latestOffset
    slots = Slots(Path(data) / "journal")
    assert slots.get("lake").position >= expected[-1][0]

    fill(journal)
    query = start()
    query.awaitTermination()
    assert rows == only(naive_rows(Path(data) / "journal"), "sequence", "record_index")
    assert slots.get("lake").position >= rows[-1][0]
