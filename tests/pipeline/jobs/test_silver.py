"""Rows of silver: decoded bodies, and the life cycle of messages."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sluicemq.pipeline.jobs.lake import Lake
from sluicemq.pipeline.jobs.silver import COMBINED, silver
from sluicemq.pipeline.schema import SILVER, SILVER_KEYS, Event
from sluicemq.protocols.java import Byte, Char, Float, Long, Short, dumps, dumps_map, dumps_stream
from tests.pipeline.jobs.events import Journal, Row, at, frame, merged, rows


def build_silver(spark: SparkSession, journal: Journal) -> dict[int, Row]:
    messages = rows(silver(frame(spark, journal.rows), "b"), SILVER, SILVER_KEYS)
    return {row["message_sequence"]: row for row in messages}


def test_bodies_are_decoded_by_their_kind(spark: SparkSession) -> None:
    journal = Journal()
    entries = {
        "flag": True,
        "byte": Byte(-1),
        "short": Short(2),
        "char": Char("é"),
        "int": 3,
        "long": Long(4),
        "float": Float(0.5),
        "double": 1e300,
        "text": "dürr",
        "bytes": b"\x00\xff",
        "nothing": None,
        "inner": {"a": 1},
    }
    text = journal.message(0, "grün".encode(), "text", protocol="jmq")
    json = journal.message(0, b'{"order": {"id": 7}}', "json", protocol="vibemq")
    plain_bytes = journal.message(0, b'{"order": {"id": 8}}', "bytes", protocol="phpmq")
    binary = journal.message(0, b"\xff\x00", "bytes", protocol="phpmq")
    opaque = journal.message(0, b"text of an undeclared kind", "bytes", protocol="jmq")
    map_ = journal.message(0, dumps_map(entries), "map", protocol="jmq")
    stream = journal.message(0, dumps_stream([1, "two", None, b"3"]), "stream", protocol="jmq")
    object_ = journal.message(0, dumps("an object"), "object", protocol="jmq")
    none = journal.message(0, b"", "none", protocol="vibemq")
    packed = zlib.compress(b"compressed " * 100)
    sizes = {"JMS_SUN_COMPRESSED_SIZE": str(len(packed)), "JMS_SUN_UNCOMPRESSED_SIZE": "1100"}
    small = journal.message(0, packed, "text", protocol="jmq", properties=sizes)
    forwarded = journal.message(
        0, b"sent on, not compressed", "text", protocol="jmq", properties=sizes
    )
    messages = build_silver(spark, journal)

    assert {row["decode_error"] for row in messages.values()} == {None}
    assert messages[text]["text"] == "grün"
    assert messages[json]["json"] == '{"order": {"id": 7}}'
    assert messages[json]["text"] is None
    assert messages[plain_bytes]["text"] == '{"order": {"id": 8}}'
    assert [messages[number]["body"] for number in (text, json, plain_bytes, none)] == [None] * 4
    assert (messages[binary]["body"], messages[binary]["text"]) == (b"\xff\x00", None)
    assert (messages[opaque]["body"], messages[opaque]["text"]) == (
        b"text of an undeclared kind",
        None,
    )
    assert messages[map_]["map"] == {
        "flag": "true",
        "byte": "-1",
        "short": "2",
        "char": "é",
        "int": "3",
        "long": "4",
        "float": "0.5",
        "double": "1e+300",
        "text": "dürr",
        "bytes": "AP8=",
        "nothing": None,
        "inner": '{"a":1}',
    }
    assert messages[map_]["map_types"] == {
        "flag": "boolean",
        "byte": "byte",
        "short": "short",
        "char": "character",
        "int": "integer",
        "long": "long",
        "float": "float",
        "double": "double",
        "text": "text",
        "bytes": "bytes",
        "nothing": "null",
        "inner": "map",
    }
    assert messages[map_]["body"] == dumps_map(entries)
    assert messages[stream]["values"] == ["1", "two", None, "Mw=="]
    assert messages[stream]["value_types"] == ["integer", "text", "null", "bytes"]
    assert messages[stream]["json"] == '[1,"two",null,"Mw=="]'
    assert messages[object_]["body"] == dumps("an object")
    assert (messages[small]["text"], messages[small]["body"]) == ("compressed " * 100, packed)
    assert messages[forwarded]["text"] == "sent on, not compressed"


def test_undecodable_body_is_kept_with_reason(spark: SparkSession) -> None:
    journal = Journal()
    properties = {"JMS_SUN_COMPRESSED_SIZE": "9"}
    cases = {
        (b"\xfftext", "text"): "the body is not UTF-8",
        (b"\xff{}", "json"): "the body is not UTF-8",
        (b"no map at all", "map"): "the bytes are not a Java serialization stream",
        (dumps("no map"), "map"): "the stream is not a map",
        (b"\xac\xed\x00\x05\x99", "stream"): "there is 0x99 where a value should begin",
        (b"surprise", "none"): "8 bytes where there should be none",
        (b"no zlib !", "text"): "a compressed body is broken: "
        "Error -3 while decompressing data: incorrect header check",
    }
    numbers = [
        journal.message(0, body, kind, protocol="jmq", properties=properties)
        for body, kind in cases
    ]
    malformed = journal.message(0, b'{"half": ', "json", protocol="vibemq")
    messages = build_silver(spark, journal)

    for number, ((body, kind), error) in zip(numbers, cases.items(), strict=True):
        row = messages[number]
        assert (row["body"], row["decode_error"], row["body_kind"]) == (body, error, kind)
        assert (row["text"], row["json"], row["map"], row["values"]) == (None,) * 4
    assert messages[malformed]["decode_error"] == "the body is not JSON"
    assert (messages[malformed]["text"], messages[malformed]["json"]) == ('{"half": ', None)


def test_life_cycle_of_message(spark: SparkSession) -> None:
    journal = Journal()
    acknowledged = journal.message(0, b"a")
    journal.event(1.5, Event.DELIVERED, acknowledged, attempts=1)
    journal.event(2, Event.ACKNOWLEDGED, acknowledged)
    dead = journal.message(3, b"b")
    journal.event(4, Event.DELIVERED, dead, attempts=1)
    journal.event(5, Event.REDELIVERED, dead, attempts=2)
    dead_letter = journal.dead_letter(6, dead, "max-attempts", 2)
    waits = journal.message(7, b"c")
    unacked = journal.message(8, b"d")
    journal.event(9, Event.DELIVERED, unacked, attempts=1)
    requeued = journal.message(10, b"e")
    journal.event(11, Event.DELIVERED, requeued, attempts=1)
    journal.event(12, Event.REQUEUED, requeued, attempts=1)
    journal.depth(13, 3, 1)
    journal.event(14, Event.ACKNOWLEDGED, 999_999)
    moved = journal.message(15, b"f")
    target = journal.message(16, b"f", destination="elsewhere")
    journal.event(16, Event.MOVED, moved)
    messages = build_silver(spark, journal)

    states = {number: row["state"] for number, row in messages.items()}
    assert states == {
        acknowledged: "acknowledged",
        dead: "dead-lettered",
        dead_letter: "ready",
        waits: "ready",
        unacked: "unacked",
        requeued: "ready",
        999_999: "acknowledged",
        moved: "moved",
        target: "ready",
    }
    assert messages[acknowledged]["queueing_ms"] == 1500
    assert messages[acknowledged]["end_to_end_ms"] == 2000
    assert messages[acknowledged]["events"] == 3
    row = messages[dead]
    assert (
        row["deliveries"],
        row["redeliveries"],
        row["attempts"],
        row["completed_deliveries"],
    ) == (2, 1, 2, 1)
    assert (row["first_delivered"], row["last_delivered"]) == (at(4), at(5))
    assert (row["dead_lettered"], row["reason"], row["moved_to_sequence"]) == (
        at(6),
        "max-attempts",
        dead_letter,
    )
    assert (messages[dead_letter]["original_destination"], messages[dead_letter]["reason"]) == (
        "orders",
        None,
    )
    assert messages[moved]["moved_to_sequence"] == target
    assert (messages[999_999]["published"], messages[999_999]["destination"]) == (None, "orders")


def test_relocated_message_is_one_row(spark: SparkSession) -> None:
    """The broker moved the record forward, so that the journal contains the message twice."""
    journal = Journal()
    for number in range(2):
        journal.message(0, b"%d" % number)
    events = [
        {**row, "sequence": row["sequence"] + 10, "event": "relocated"} for row in journal.rows
    ]
    journal.rows += events
    del journal.rows[0]
    journal.event(1, Event.DELIVERED, 1)
    messages = build_silver(spark, journal)
    assert {
        number: (row["text"], row["deliveries"], row["events"]) for number, row in messages.items()
    } == {1: ("0", 1, 2), 2: ("1", 0, 2)}


def test_subscriptions_of_topic_are_distinguished(spark: SparkSession) -> None:
    journal = Journal()
    news = journal.message(0, b"x", destination="news", destination_kind="topic")
    for subscription in (1, 2, 3):
        journal.event(1, Event.DELIVERED, news, subscription=subscription)
    journal.event(2, Event.REDELIVERED, news, subscription=2, attempts=2)
    journal.event(3, Event.ACKNOWLEDGED, news, subscription=1)
    journal.event(4, Event.EXPIRED, news, subscription=3)
    row = build_silver(spark, journal)[news]
    assert row["deliveries_by_subscription"] == {1: 1, 2: 2, 3: 1}
    assert row["completed_by_subscription"] == {1: 1, 3: 1}
    assert (row["state"], row["outcome"]) == ("unacked", "acknowledged")
    journal.event(5, Event.ACKNOWLEDGED, news, subscription=2)
    row = build_silver(spark, journal)[news]
    assert (row["state"], row["completed_deliveries"], row["deliveries"]) == ("acknowledged", 3, 4)


def test_columns_for_queries(spark: SparkSession) -> None:
    journal = Journal()
    properties = {"weight": "2.5", "word": "heavy"}
    journal.message(0, b'{"id": 7}', "json", protocol="vibemq", properties=properties)
    journal.message(1, b'{"id": 8}', protocol="phpmq")
    journal.message(2, dumps_map({"id": 9}), "map", protocol="jmq")
    journal.message(3, b"no JSON", protocol="phpmq")
    rows = silver(frame(spark, journal.rows), "b")
    # the expressions of docs/pipeline/jobs.md
    selected = rows.selectExpr(
        "coalesce(body, encode(coalesce(text, json), 'UTF-8')) AS body",
        "try_cast(properties['weight'] AS DOUBLE) AS weight",
        "try_cast(properties['word'] AS BIGINT) AS word",
    )
    ids = rows.selectExpr(
        "message_sequence",
        "variant_get(try_parse_json(coalesce(json, text)), '$.id', 'long') AS id",
    )
    assert sorted(map(tuple, ids.collect())) == [(1, 7), (2, 8), (3, 9), (4, None)]
    assert {bytes(row.body): (row.weight, row.word) for row in selected.collect()} == {
        b'{"id": 7}': (2.5, None),
        b'{"id": 8}': (None, None),
        dumps_map({"id": 9}): (None, None),
        b"no JSON": (None, None),
    }


@st.composite
def event_histories(draw: st.DrawFn) -> list[Row]:
    """Draw events of a few messages of a queue and a topic, some of them unknown."""
    journal = Journal()
    sequences = [-1, -2]
    ends = (Event.ACKNOWLEDGED, Event.EXPIRED, Event.DROPPED, Event.REQUEUED)
    lives = (Event.DELIVERED, Event.REDELIVERED, *ends)
    for number in range(draw(st.integers(1, 25))):
        seconds = number + draw(st.sampled_from((0, -5, 300)))
        kind = draw(st.sampled_from(("queue", "topic")))
        step = draw(st.sampled_from(("message", "event", "event", "dead-letter")))
        if step == "event":
            message = draw(st.sampled_from(sequences))
            fields = {"subscription": draw(st.integers(1, 3)), "attempts": draw(st.integers(1, 9))}
            journal.event(seconds, draw(st.sampled_from(lives)), message, **fields)
        elif step == "dead-letter" and len(sequences) > 2:
            journal.dead_letter(
                seconds, sequences[-1], draw(st.sampled_from(("expired", "overflow")))
            )
        else:
            sequences.append(journal.message(seconds, b"%d" % number, destination_kind=kind))
    return journal.rows


@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batches_in_any_order_give_the_same_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    events = data.draw(event_histories())
    parts = data.draw(st.lists(st.integers(0, 2), min_size=len(events), max_size=len(events)))
    frames = [
        silver(
            frame(spark, [row for row, part in zip(events, parts, strict=True) if part == n]), "b"
        )
        for n in data.draw(st.permutations(range(3)))
    ]
    table = Lake(tmp_path_factory.mktemp("lake")).silver
    expected = rows(silver(frame(spark, events), "b"), SILVER, SILVER_KEYS)
    assert merged(frames, table, SILVER, COMBINED) == expected
