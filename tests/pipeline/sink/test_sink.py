"""format("sluicemq") as a sink, by Spark and a broker."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from sluicemq.cli.local import LocalBroker
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Message
from sluicemq.protocols.java import loads_map
from tests.pipeline.sink.published_messages import published
from tests.protocols.sockets import unused_port

ROW = """destination string, destination_kind string, body binary, body_kind string,
    properties map<string,string>, property_types map<string,string>, priority int, ttl bigint,
    expiration timestamp, deliver_at timestamp, message_id string, correlation_id string,
    reply_to string, type string, durability string"""


def write(frame: DataFrame, url: str, **options: str) -> None:
    """Write to the broker."""
    writer = frame.write.format("sluicemq").mode("append").option("url", url)
    writer.options(**options).save()


def numbers(messages: list[Message]) -> list[int]:
    """Return the bodies as numbers."""
    return [int(message.body) for message in messages]


def test_writes_every_column(spark: SparkSession, url: str, data: Path, queue: str) -> None:
    expiration = datetime(2100, 1, 1, tzinfo=UTC)
    properties = {
        "truth": ("true", "boolean"),
        "n": ("-9223372036854775808", "integer"),
        "real": ("-1.5e-300", "real"),
        "text": ("", "text"),
        "raw": ("/wA=", "bytes"),
        "nothing": (None, "null"),
        "\0 ' 😀\n.-x": ("\0\u2028", "text"),
        "": ("empty name", "text"),
    }
    row = (
        queue,
        "topic",
        b'{"a": [1]}',
        "json",
        {name: text for name, (text, _) in properties.items()},
        {name: kind for name, (_, kind) in properties.items()},
        9,
        None,
        expiration,
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        "id-1",
        "c-1",
        "topic:answers",
        "order",
        "sync",
    )
    write(spark.createDataFrame([row], ROW), url)
    (message,) = published(data, f"topic:{queue}")
    assert (message.body, message.kind, message.priority) == (b'{"a": [1]}', BodyKind.JSON, 9)
    assert message.expiration == int(expiration.timestamp() * 1000)
    assert message.deliver_at == 1_767_268_800_000
    assert (message.message_id, message.correlation_id, message.type) == ("id-1", "c-1", "order")
    assert message.reply_to == Address(Kind.TOPIC, "answers")
    assert message.properties == {
        "truth": True,
        "n": -(1 << 63),
        "real": -1.5e-300,
        "text": "",
        "raw": b"\xff\0",
        "nothing": None,
        "\0 ' 😀\n.-x": "\0\u2028",
        "": "empty name",
    }


def test_bodies_of_each_type(spark: SparkSession, url: str, data: Path, queue: str) -> None:
    for expression in ("'é'", "X'ff00'", "map('name', 'wert', 'none', null)", "null"):
        write(spark.sql(f"select {expression} as body"), url, destination=queue)
    text, raw, entries, empty = published(data, queue)
    assert (text.kind, text.body) == (BodyKind.TEXT, "é".encode())
    assert (raw.kind, raw.body) == (BodyKind.BYTES, b"\xff\0")
    assert entries.kind is BodyKind.MAP
    assert loads_map(entries.body) == {"name": "wert", "none": None}
    assert (empty.kind, empty.body) == (BodyKind.NONE, b"")


def test_rows_of_partition_keep_their_order(
    spark: SparkSession, url: str, data: Path, queue: str
) -> None:
    frame = spark.range(0, 9000, 1, 2).selectExpr("string(id) as body")
    write(frame, url, destination=queue, transactionRows="1000")
    sequence = numbers(published(data, queue))
    assert sorted(sequence) == list(range(9000))
    assert [n for n in sequence if n < 4500] == list(range(4500))
    assert [n for n in sequence if n >= 4500] == list(range(4500, 9000))


def test_write_id_is_written_once(spark: SparkSession, url: str, data: Path, queue: str) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr(f"'{queue}' as destination", "string(id) as body")
    for batch in ("0", "1", "1", "0"):
        write(frame, url, writeId=queue, batchId=batch)
    assert sorted(numbers(published(data, queue))) == sorted(2 * list(range(100)))
    write(frame, url)
    write(frame, url)
    assert len(published(data, queue)) == 400


def test_write_id_with_other_rows_is_conflict(
    spark: SparkSession, url: str, data: Path, queue: str
) -> None:
    frame = spark.range(0, 100, 1, 2).selectExpr("string(id) as body")
    write(frame, url, destination=queue, writeId=queue)
    write(frame.sortWithinPartitions(frame.body.desc()), url, destination=queue, writeId=queue)
    other_rows = spark.range(100, 200, 1, 2).selectExpr("string(id) as body")
    with pytest.raises(PySparkException, match="written with other rows before"):
        write(other_rows, url, destination=queue, writeId=queue)
    assert sorted(numbers(published(data, queue))) == list(range(100))


def test_views_and_tables_in_sql(
    spark: SparkSession, url: str, data: Path, queue: str, tmp_path: Path
) -> None:
    # Delta's catalog, which is the session's, has no tables of Python data sources.
    spark = spark.newSession()
    spark.conf.unset("spark.sql.catalog.spark_catalog")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW answers USING sluicemq "
        f"OPTIONS (url '{url}', destination '{queue}')"
    )
    spark.sql("INSERT INTO answers (body, priority) VALUES ('1', 7), ('2', null)")
    spark.sql(f"CREATE DATABASE tables LOCATION '{tmp_path}'")
    try:
        spark.sql(
            f"CREATE TABLE tables.events USING sluicemq OPTIONS (url '{url}', destinations 'x') "
            "COMMENT 'what happened' TBLPROPERTIES ('team' = 'warehouse')"
        )
        (result,) = spark.sql(
            f"SELECT count(*) FROM tables.events WITH (url = '{url}', destinations = '{queue}')"
        ).collect()
        assert tuple(result) == (2,)
        reader = spark.read.option("url", url).option("destinations", queue)
        events = reader.table("tables.events")
        assert [events.count(), events.where("priority = 7").count(), events.count()] == [2, 1, 2]
        with pytest.raises(PySparkException, match="only in CREATE TABLE"):
            spark.table("tables.events").count()
        spark.sql("INSERT INTO answers (body) VALUES ('3')")
        assert reader.table("tables.events").count() == 3
    finally:
        spark.sql("DROP DATABASE tables CASCADE")
        spark.catalog.dropTempView("answers")
    assert sorted(message.priority for message in published(data, queue)) == [4, 4, 7]


def failing_once(after: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes batches on, but fails in a task's first attempt."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == after and context.attemptNumber() == 0:
                raise RuntimeError("the task breaks off")
            yield batch

    return pass_on


def test_repeated_task_writes_rows_once(
    spark: SparkSession, url: str, data: Path, queue: str
) -> None:
    """What its first attempt has written is not written again, and nothing is missing; what is
    cut off in the middle of a part, which a writer cannot tell from the end, is not the end."""
    frame = spark.range(0, 30_000, 1, 2).selectExpr("string(id) as body")
    failing = frame.mapInArrow(failing_once(2), "body string")
    write(failing, url, destination=queue, transactionRows="1000")
    assert sorted(numbers(published(data, queue))) == list(range(30_000))


def run(frame: DataFrame, url: str, queue: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Run a stream over all available rows."""
    writer = frame.writeStream.format("sluicemq").option("url", url).option("destination", queue)
    writer = writer.option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_repeated_batch_of_stream_is_written_once(
    spark: SparkSession, url: str, data: Path, queue: str, tmp_path: Path
) -> None:
    """The driver ends after the sink has written, before Spark records it."""
    numbered = spark.range(0, 3000, 1, 3).selectExpr("string(id) as body")
    numbered.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1)
    frame = stream.parquet(str(tmp_path / "rows"))
    checkpoint = tmp_path / "checkpoint"
    run(frame, url, queue, checkpoint)
    assert sorted(numbers(published(data, queue))) == list(range(3000))
    for file in (checkpoint / "commits").glob("*2*"):
        file.unlink()
    query = run(frame, url, queue, checkpoint)
    assert [progress["batchId"] for progress in query.recentProgress] == [2]
    assert sorted(numbers(published(data, queue))) == list(range(3000))


def test_restored_checkpoint_is_conflict(
    spark: SparkSession, url: str, data: Path, queue: str, tmp_path: Path
) -> None:
    """Its batches may contain other rows than those written under their numbers."""
    files = tmp_path / "rows"
    checkpoint = tmp_path / "checkpoint"
    stream = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1)
    for number in range(3):
        spark.sql(f"select '{number}' as body").write.mode("append").parquet(str(files))
        run(stream.parquet(str(files)), url, queue, checkpoint)
        if number == 0:
            shutil.copytree(checkpoint, tmp_path / "backup")
    with pytest.raises(PySparkException, match="which has written up to batch 2"):
        run(stream.parquet(str(files)), url, queue, tmp_path / "backup")
    assert numbers(published(data, queue)) == [0, 1, 2]


BAD = """select * from values
    ('good', 'text', 4), ('{', 'json', 4), ('good', 'text', 12), ('{}', 'json', 0)
    as (body, body_kind, priority)"""


def test_invalid_rows_fail_write(spark: SparkSession, url: str, data: Path, queue: str) -> None:
    with pytest.raises(PySparkException, match="the first of them is row 1: the body is not JSON"):
        write(spark.sql(BAD).coalesce(1), url, destination=queue)
    assert published(data, queue) == []


def test_invalid_rows_are_dropped(spark: SparkSession, url: str, data: Path, queue: str) -> None:
    write(spark.sql(BAD), url, destination=queue, badRows="drop")
    assert {message.body for message in published(data, queue)} == {b"good", b"{}"}


def test_invalid_rows_become_dead_letters(
    spark: SparkSession, url: str, data: Path, queue: str
) -> None:
    """Those that the sink finds, and those that only the broker knows, once however often."""
    long = "x" * 2000  # longer than names may be with this broker
    frame = spark.sql(BAD).selectExpr("*", f"if(body = '{{}}', '{long}', '{queue}') as destination")
    dead_letter_queue = f"{queue}.dlq"
    for _ in range(2):
        write(frame, url, badRows="dead-letter", deadLetterQueue=dead_letter_queue, writeId=queue)
    assert [message.body for message in published(data, queue)] == [b"good"]
    dead_letters = {m.body: m.properties or {} for m in published(data, dead_letter_queue)}
    assert len(published(data, dead_letter_queue)) == 3
    assert set(dead_letters) == {b"{", b"good", b"{}"}
    assert str(dead_letters[b"{"]["deadLetterReason"]).startswith("the body is not JSON")
    assert dead_letters[b"good"]["deadLetterReason"] == "the priority must be 0 to 9, not 12"
    assert "this one 2000" in str(dead_letters[b"{}"]["deadLetterReason"])
    assert dead_letters[b"good"]["originalQueue"] == queue
    assert dead_letters[b"{}"]["originalQueue"] == long


def test_columns_are_checked_before_anything_is_written(spark: SparkSession, url: str) -> None:
    with pytest.raises(PySparkException, match="there is no column value") as raised:
        write(spark.sql("select 'q' as destination, 'x' as value"), url, token="geheim")
    assert "geheim" not in str(raised.value)


def test_secrets_are_not_printed(
    spark: SparkSession, url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Secrets appear neither in plans nor in errors."""
    numbered = spark.range(3).selectExpr("string(id) as body")
    numbered.write.parquet(str(tmp_path / "rows"))
    frame = spark.readStream.schema("body string").parquet(str(tmp_path / "rows"))
    query = run(frame, url, "secrets", tmp_path / "checkpoint", user="me", password="geheim")
    query.explain(extended=True)
    output = capfd.readouterr().out
    assert "Write" in output
    assert "geheim" not in output
    with pytest.raises(PySparkException) as raised:
        write(numbered, "http://127.0.0.1:9", user="me", token="geheim", destination="q")
    assert "geheim" not in str(raised.value)


def test_write_survives_killed_broker(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 during a write; the tasks wait and continue, without duplicates."""
    port = unused_port()
    listen = [f"http://127.0.0.1:{port}"]
    with LocalBroker(tmp_path, listen) as broker:
        restarted = LocalBroker(tmp_path, listen)

        def restart() -> None:
            while len(published(tmp_path)) < 5000 and not done.is_set():
                pass
            broker.kill()
            restarted.start()

        done = threading.Event()
        restarter = threading.Thread(target=restart)
        restarter.start()
        frame = spark.range(0, 60_000, 1, 2).selectExpr("string(id) as body")
        try:
            write(frame, f"http://127.0.0.1:{port}", destination="q", transactionRows="500")
        finally:
            done.set()
            restarter.join()
            restarted.stop()
    assert sorted(numbers(published(tmp_path))) == list(range(60_000))


def test_unreachable_broker_is_error(spark: SparkSession) -> None:
    frame = spark.sql("select 'x' as body")
    with pytest.raises(PySparkException, match=r"no answer from the broker at http://127\.0\.0\.1"):
        write(frame, "http://127.0.0.1:9", destination="q", retryTimeout="0")
