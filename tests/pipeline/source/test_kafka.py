"""Options and columns of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from sluicemq.journal import FileJournal
from sluicemq.journal.slots import Slots
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.source import readers
from sluicemq.pipeline.source.options import (
    SourceOptions,
    arrow_columns,
    check_batch,
    check_stream,
    parse_options,
    requested_columns,
)
from sluicemq.pipeline.source.readers import BatchReader, StreamReader
from tests.pipeline.source.support import (
    ORDERS,
    T0,
    Row,
    complete,
    message,
    naive_rows,
    options_of,
    put,
    read,
    table_of,
)
from tests.pipeline.source.test_events import journal_in
from tests.pipeline.source.test_stream import batch, batches

INVOICES = Address(Kind.QUEUE, "invoices.eu")
NEWS = Address(Kind.TOPIC, "news")
EVERY = (ORDERS, INVOICES, NEWS)
SECOND = 1000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    """Ninety messages in several segments: in turn to two queues and a topic, one each second."""
    with journal_in(tmp_path) as journal:
        for number in range(90):
            body = b"%0200d" % number
            put(journal, message(body, EVERY[number % 3], timestamp=T0 + number * SECOND))
            if number % 10 == 9:
                journal.sync()
        yield journal


@pytest.fixture
def numbers(journal: FileJournal, tmp_path: Path) -> dict[str, list[int]]:
    """Sequence numbers of the messages of each destination."""
    sequences: dict[str, list[int]] = {}
    for row in naive_rows(tmp_path):
        prefix = "topic:" if row["destination_kind"] == "topic" else ""
        sequences.setdefault(prefix + row["destination"], []).append(row["sequence"])
    return sequences


def parsed(**given: str) -> SourceOptions:
    return parse_options({"path": "/x", **given})


def sequences(rows: list[Row]) -> list[int]:
    return [row["sequence"] for row in rows]


def stream_of(directory: Path, **given: str) -> StreamReader:
    options = options_of(directory, **given)
    return StreamReader(options, arrow_columns(requested_columns(options)))


# --- subscriptions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": "orders, topic:news"}, ["orders", "topic:news"]),
        ({"subscribe": "news"}, []),
        ({"subscribepattern": r"(topic:)?(orders|new.)"}, ["orders", "topic:news"]),
        ({"subscribepattern": r"inv"}, []),  # the whole name must match, as in Kafka
        ({"subscribepattern": r"invoices\..*"}, ["invoices.eu"]),
        ({"assign": '{"invoices.eu":[0]}'}, ["invoices.eu"]),
    ],
    ids=str,
)
def test_subscriptions(
    tmp_path: Path, numbers: dict[str, list[int]], given: dict[str, str], expected: list[str]
) -> None:
    matching = sorted(sequence for name in expected for sequence in numbers[name])
    assert sequences(read(tmp_path, **given)) == matching


# --- offsets -------------------------------------------------------------------------------------


def offsets(**by_name: int) -> str:
    names = {"invoices": "invoices.eu", "news": "topic:news"}
    return json.dumps({names.get(name, name): {"0": n} for name, n in by_name.items()})


def test_offsets_by_destination(tmp_path: Path, numbers: dict[str, list[int]]) -> None:
    orders, news = numbers["orders"], numbers["topic:news"]
    rows = read(
        tmp_path,
        subscribe="orders,topic:news",
        startingoffsets=offsets(orders=orders[10], news=-2),
        endingoffsets=offsets(orders=-1, news=news[7]),
    )
    assert sequences(rows) == sorted(orders[10:] + news[:7])


def test_destinations_that_pattern_adds(tmp_path: Path, numbers: dict[str, list[int]]) -> None:
    """Other destinations are read from the earliest to the latest record."""
    orders = numbers["orders"]
    rows = read(
        tmp_path,
        startingoffsets=offsets(orders=orders[10]),
        endingoffsets=offsets(orders=orders[20]),
    )
    matching = numbers["invoices.eu"] + numbers["topic:news"]
    assert sequences(rows) == sorted(orders[10:20] + matching)


def test_times_by_destination(tmp_path: Path, numbers: dict[str, list[int]]) -> None:
    orders, invoices = numbers["orders"], numbers["invoices.eu"]
    times = {
        "startingoffsetsbytimestamp": offsets(orders=T0 + 30 * SECOND, invoices=0),
        "endingoffsetsbytimestamp": offsets(orders=T0 + 60 * SECOND, invoices=T0 + 10 * SECOND),
    }
    rows = read(tmp_path, subscribe="orders,invoices.eu", **times)
    assert sequences(rows) == sorted(orders[10:20] + invoices[:3])


def test_stream_remembers_where_destinations_start(
    tmp_path: Path, numbers: dict[str, list[int]], journal: FileJournal
) -> None:
    orders, news = numbers["orders"], numbers["topic:news"]
    destinations = {"subscribe": "orders,topic:news"}
    first = stream_of(
        tmp_path, **destinations, startingoffsets=offsets(orders=orders[3], news=news[20])
    )
    start = first.initialOffset()
    assert start["sequence"] == orders[3]
    end = first.latestOffset(start, ReadMaxRows(10))
    first_rows = batch(first, start, end)
    assert sequences(first_rows) == orders[3:13]
    # the options of a query that goes on do not move it, as in Spark's Kafka source
    restarted = stream_of(tmp_path, **destinations, startingoffsets="earliest")
    added = put(journal, message(address=NEWS))
    journal.sync()
    rest = [row for part in batches(restarted, ReadMaxRows(10), end) for row in part]
    assert sequences(rest) == [*sorted(orders[13:] + news[20:]), added]
    last = restarted.latestOffset(end, ReadAllAvailable())
    assert "starts" in end
    assert "starts" not in last


def test_stream_that_starts_with_latest_of_one_destination(
    tmp_path: Path, journal: FileJournal
) -> None:
    stream = stream_of(tmp_path, subscribe="orders", startingoffsets=offsets(orders=-1))
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    sequence = put(journal)
    journal.sync()
    assert sequences(batch(stream, start, stream.latestOffset(start, ReadAllAvailable()))) == [
        sequence
    ]


def test_removed_records_of_destination(tmp_path: Path, numbers: dict[str, list[int]]) -> None:
    first = min(path for path in tmp_path.glob("*.segment"))
    first.unlink()
    rows = read(tmp_path, subscribe="orders", startingoffsets=offsets(orders=-2))
    assert rows
    with pytest.raises(Exception, match="are gone"):
        read(tmp_path, subscribe="orders", startingoffsets=offsets(orders=2))


# --- invalid options ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign: they contradict"),
        ({"subscribe": "a", "destinations": "b"}, "destinations and subscribe: they contradict"),
        ({"slot": "a", "kafka.group.id": "b"}, "slot and kafka.group.id: they contradict"),
        (
            {"startingoffsets": "1", "startingtimestamp": "1"},
            "startingOffsets and startingTimestamp: they contradict",
        ),
        ({"subscribe": " , "}, "subscribe: it has no destination"),
        ({"destinations": ","}, "destinations: it has no destination"),
        ({"events": " "}, "events: it has no event"),
        ({"subscribe": "orders.*"}, "is a pattern, but here are names"),
        ({"subscribepattern": "("}, "subscribePattern: '\\(' is not a regular expression"),
        ({"subscribepattern": ""}, "subscribePattern: it is empty"),
        ({"assign": "orders"}, "assign: 'orders' is not JSON"),
        ({"assign": "[]"}, "assign: '\\[\\]' is not JSON such as"),
        ({"assign": "{}"}, "assign: '{}' is not JSON such as"),
        ({"assign": '{"a":[0,1]}'}, r"\[0,1\].* of each destination must be \[0\]"),
        ({"assign": '{"a":[false]}'}, r"\[false\].* of each destination must be \[0\]"),
        ({"startingoffsets": "-5"}, "startingOffsets: '-5' is neither earliest, latest"),
        ({"startingoffsets": "{}"}, "startingOffsets: '{}' is neither earliest, latest"),
        (
            {"startingoffsets": '{"orders":{"0":9223372036854775808}}'},
            "is neither earliest, latest",
        ),
        (
            {"maxoffsetspertrigger": "9223372036854775808"},
            "is not a whole number from 1 to 9223372036854775807",
        ),
        ({"startingoffsets": '{"a":{"1":5}}'}, '"1":5.*A destination has the partition 0 only'),
        ({"startingoffsets": '{"a":{"0":5,"1":5}}'}, "A destination has the partition 0 only"),
        ({"startingoffsets": '{"a":{"0":"5"}}'}, '"0":"5".*must be a whole number'),
        ({"startingoffsets": '{"a":{"0":-3}}'}, '"0":-3.*where -2 is earliest and -1 latest'),
        ({"startingoffsets": '{"a":{"0":true}}'}, '"0":true.*must be a whole number'),
        (
            {"subscribe": "a,b", "startingoffsets": '{"a":{"0":5}}'},
            "startingOffsets: it lacks b",
        ),
        (
            {"assign": '{"a":[0]}', "endingoffsetsbytimestamp": '{"a":{"0":5},"c":{"0":5}}'},
            "endingOffsetsByTimestamp: it names c",
        ),
        ({"startingoffsetsbytimestamp": "5"}, "startingOffsetsByTimestamp: '5' is not JSON with"),
        ({"startingoffsetsbytimestamp": '{"a":{"0":1.5}}'}, "timestamp must be a whole"),
        ({"maxtriggerdelay": "soon"}, "maxTriggerDelay: 'soon' is not a duration"),
        (
            {"minoffsetspertrigger": "10", "maxoffsetspertrigger": "5"},
            "minOffsetsPerTrigger and maxOffsetsPerTrigger",
        ),
        ({"kafka.bootstrap.servers": "h:9092"}, "kafka.bootstrap.servers.*give the option url"),
        ({"kafka.security.protocol": "SSL"}, "belongs to Kafka"),
        ({"groupidprefix": "x"}, "belongs to Kafka"),
        ({"shape": "rows"}, "shape: 'rows' is none of events, kafka"),
        ({"shape": "kafka", "events": "*"}, "shape and events"),
        ({"shape": "kafka", "columns": "body"}, "no column 'body', but key, value"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parsed(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingoffsets": "latest"}, "startingOffsets: latest leaves nothing"),
        ({"startingoffsets": '{"a":{"0":-1}}'}, "startingOffsets: latest leaves nothing"),
        ({"endingoffsets": "earliest"}, "endingOffsets: earliest leaves nothing"),
        ({"endingoffsets": '{"a":{"0":-2}}'}, "endingOffsets: earliest leaves nothing"),
    ],
    ids=str,
)
def test_invalid_options_of_batch_are_refused(given: dict[str, str], says: str) -> None:
    options = parsed(**given)
    with pytest.raises(ConfigurationError, match=says):
        check_batch(options, ())


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_ending_options_are_refused_for_streams(name: str) -> None:
    text = '{"a":{"0":5}}' if name == "endingOffsetsByTimestamp" else "5"
    options = parsed(**{name: text})
    check_batch(options, ())
    with pytest.raises(ConfigurationError, match=f"a stream has no end: .*{name}"):
        check_stream(options)


def test_options_of_streams_are_ignored_in_batch(caplog: pytest.LogCaptureFixture) -> None:
    for given, named in (
        ({"maxoffsetspertrigger": "5", "slot": "lake"}, "maxOffsetsPerTrigger and option slot"),
        ({"maxtriggerdelay": "1m", "slotlimitbytes": "5"}, "maxTriggerDelay and option slotLimit"),
        ({"kafka.group.id": "lake"}, "batch: option kafka.group.id."),
    ):
        check_batch(parsed(**given), given)
        assert named in caplog.text


def test_options_without_effect_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    check_stream(parsed(slot="lake", slotlimitbytes="5"))
    check_stream(parsed(minoffsetspertrigger="5", maxtriggerdelay="1m"))
    assert not caplog.text
    check_stream(parsed(maxtriggerdelay="1m"))  # no error: Kafka's source ignores it, too
    assert "maxTriggerDelay has no effect without minOffsetsPerTrigger" in caplog.text
    with pytest.raises(ConfigurationError, match=r"slotLimitBytes: .* give the option slot"):
        check_stream(parsed(slotlimitbytes="5"))


# --- triggers -----------------------------------------------------------------------------------


def test_stream_waits_for_enough_rows(
    tmp_path: Path, journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(readers.time, "monotonic", lambda: now[0])
    stream = stream_of(
        tmp_path, subscribe="orders", minoffsetspertrigger="3", maxtriggerdelay="60s"
    )
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMinRows(3)
    start = stream.initialOffset()
    put(journal)
    journal.sync()
    end = stream.latestOffset(start, limit)  # the first one does not wait
    assert len(batch(stream, start, end)) == 1
    for _ in range(2):
        put(journal)
        put(journal, message(address=NEWS))  # is not subscribed to
        journal.sync()
        assert stream.latestOffset(end, limit) == end
        report = stream.reportLatestOffset()
        assert report["lag"]["records"] > 0
    put(journal)
    journal.sync()
    start, end = end, stream.latestOffset(end, limit)
    assert len(batch(stream, start, end)) == 3
    # a trigger that wants everything does not wait, nor does a query when the time is over
    put(journal)
    journal.sync()
    assert stream.latestOffset(end, limit) == end
    assert stream.latestOffset(end, ReadAllAvailable()) != end
    now[0] += 60
    assert len(batch(stream, end, stream.latestOffset(end, limit))) == 1


def test_full_micro_batch_does_not_wait(tmp_path: Path, journal: FileJournal) -> None:
    """Otherwise a stream of large bodies could not read more than that per `maxTriggerDelay`."""
    stream = stream_of(
        tmp_path,
        subscribe="orders",
        minoffsetspertrigger="100",
        maxoffsetspertrigger="100",
        maxbytespertrigger="1000",
    )
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    start = stream.initialOffset()
    put(journal)
    journal.sync()
    end = stream.latestOffset(start, limit)  # the first one does not wait
    for size, sent in ((300, 1), (300, 2), (500, 3)):
        put(journal, message(bytes(size)))
        journal.sync()
        ready = stream.latestOffset(end, limit)
        assert (ready != end) == (sent == 3)
    assert 0 < len(batch(stream, end, ready)) < 3


def test_available_now_does_not_wait(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(
        tmp_path,
        startingoffsets="earliest",
        minoffsetspertrigger="40",
        maxoffsetspertrigger="40",
    )
    assert stream.getDefaultReadLimit() == ReadMaxRows(40)
    stream.prepareForTriggerAvailableNow()
    assert [len(part) for part in batches(stream, ReadMaxRows(40))] == [40, 40, 10]


def test_group_id_is_slot(tmp_path: Path, journal: FileJournal) -> None:
    stream = stream_of(tmp_path, **{"kafka.group.id": "warehouse", "startingoffsets": "earliest"})
    stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert Slots(tmp_path).get("warehouse").position == 0


# --- columns --------------------------------------------------------------------------------------


def kafka_rows(directory: Path, **given: str) -> list[dict[str, Any]]:
    options = options_of(directory, events="", shape="kafka", **given)
    reader = BatchReader(options, arrow_columns(requested_columns(options), options.shape))
    rows: list[dict[str, Any]] = table_of(reader).to_pylist()
    return rows


def test_kafka_columns(tmp_path: Path, journal: FileJournal) -> None:
    properties = {"tall": True, "n": 5, "raw": b"\xff\x00", "text": "é", "none": None}
    number = put(
        journal, message(b"\xff", NEWS, properties=properties, correlation_id="c-1", timestamp=T0)
    )
    journal.sync()
    *preceding, row = kafka_rows(tmp_path)
    assert len(preceding) == 90
    assert row["headers"] == [
        {"key": "tall", "value": b"true"},
        {"key": "n", "value": b"5"},
        {"key": "raw", "value": b"\xff\x00"},
        {"key": "text", "value": "é".encode()},
        {"key": "none", "value": None},
    ]
    expected = naive_rows(tmp_path)[-1]
    assert {name: row[name] for name in row if name != "headers"} == {
        "key": b"c-1",
        "value": b"\xff",
        "topic": "topic:news",
        "partition": 0,
        "offset": number,
        "timestamp": expected["time"],
        "timestampType": 1,
    }
    assert (preceding[0]["key"], preceding[0]["headers"]) == (None, None)
    assert "headers" not in kafka_rows(tmp_path, includeheaders="")[0]
    assert list(kafka_rows(tmp_path, columns="value,offset")[0]) == ["value", "offset"]


def test_kafka_shape_has_published_messages_only(tmp_path: Path, journal: FileJournal) -> None:
    complete(journal, [put(journal)])
    journal.sync()
    assert len(kafka_rows(tmp_path)) == len(
        naive_rows(tmp_path, lambda row: row["event"] == "published")
    )


def orders_by_topic(messages: DataFrame) -> DataFrame:
    """Code written for `format("kafka")`, without knowledge of SluiceMQ."""
    return (
        messages.select(
            f.col("key").cast("string").alias("key"),
            f.from_json(f.col("value").cast("string"), "amount int").alias("order"),
            "topic",
            "partition",
            "offset",
            "timestamp",
            f.expr("filter(headers, h -> h.key = 'region')[0].value")
            .cast("string")
            .alias("region"),
        )
        .where("timestampType = 1")
        .groupBy("topic", "region", "partition")
        .agg(
            f.sum("order.amount").alias("amount"),
            f.max("offset").alias("offset"),
            f.max("timestamp").alias("timestamp"),
            f.min("key").alias("key"),
        )
        .orderBy("topic", "region")
    )


KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)
"""Of `format("kafka")` with includeHeaders, from Spark's documentation."""


def test_code_for_kafka_runs_unchanged(
    spark: SparkSession, tmp_path: Path, journal: FileJournal
) -> None:
    expected = []
    for number, region in enumerate(["eu", "us", "eu"]):
        body = b'{"amount": %d}' % (number + 1)
        order = message(body, ORDERS, properties={"region": region}, correlation_id=f"k{number}")
        expected.append((f"k{number}".encode(), body, put(journal, order), region))
    journal.sync()
    source = spark.read.format("sluicemq").option("shape", "kafka").option("subscribe", "orders")
    source = source.option("startingOffsets", offsets(orders=expected[0][2]))
    ours = source.option("includeHeaders", "true").load(str(tmp_path))
    time = naive_rows(tmp_path)[-1]["time"].replace(tzinfo=None)
    kafka_frame = spark.createDataFrame(
        [
            (key, body, "orders", 0, number, time, 1, [("region", region.encode())])
            for key, body, number, region in expected
        ],
        KAFKA_SCHEMA,
    )
    assert ours.schema.simpleString() == kafka_frame.schema.simpleString()
    rows = [tuple(row) for row in orders_by_topic(ours).collect()]
    assert rows == [tuple(row) for row in orders_by_topic(kafka_frame).collect()]
    assert [(row[1], row[3]) for row in rows] == [("eu", 4), ("us", 2)]


def test_errors_of_streams_reach_user(
    spark: SparkSession, tmp_path: Path, journal: FileJournal
) -> None:
    source = spark.readStream.format("sluicemq").option("endingOffsets", "5")
    with pytest.raises(PySparkException, match="a stream has no end"):
        source.load(str(tmp_path)).writeStream.format("noop").trigger(
            availableNow=True
        ).start().awaitTermination()
