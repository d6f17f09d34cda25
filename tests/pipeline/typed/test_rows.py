"""Typed rows of messages: values, reasons of the quarantine, keys, deletions, expectations."""

from __future__ import annotations

import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluicemq.model.destination import Address, Kind
from sluicemq.pipeline.delta import temporary_settings
from sluicemq.pipeline.schema import Event
from sluicemq.pipeline.source.options import parse_options
from sluicemq.pipeline.source.selection import Selection
from sluicemq.pipeline.typed.definition import Action, Expectation, Format, TypedTable
from sluicemq.pipeline.typed.rows import (
    LENIENT,
    STOPPED,
    TableCounts,
    count_columns,
    good_rows,
    newest_rows,
    quarantined_rows,
    selects,
    subscription,
    typed_rows,
)
from sluicemq.protocols.java import dumps_map
from tests.pipeline.jobs.events import Journal, at, frame

ORDER = "id BIGINT, amount DECIMAL(10,2), customer STRING"
UNPAIRED = "a text has an unpaired surrogate, such as \\ud800"


def table(schema: str = ORDER, **fields: Any) -> TypedTable:
    return TypedTable(**{"name": "orders", "destination": "orders*", "schema": schema} | fields)


def outcomes(
    spark: SparkSession, journal: Journal, of: TypedTable, java: bool = False
) -> tuple[DataFrame, list[dict[str, Any]], list[dict[str, Any]]]:
    """All rows; the good ones, and the quarantined ones."""
    columns = StructType.fromDDL(of.schema)
    rows = typed_rows(frame(spark, journal.rows).where(selects(of)), of, columns, "main", java)
    accepted = [row.asDict(True) for row in good_rows(rows, columns).orderBy("_sequence").collect()]
    quarantined = quarantined_rows(rows).orderBy("sequence").collect()
    return rows, accepted, [row.asDict() for row in quarantined]


def counted(rows: DataFrame, of: TypedTable) -> TableCounts:
    return TableCounts(**rows.agg(*count_columns(of)).collect()[0].asDict())


def reasons(
    spark: SparkSession, bodies: list[bytes], of: TypedTable, kind: str = "json"
) -> list[str | None]:
    """The reason of each body; None if it is good."""
    journal = Journal()
    for body in bodies:
        journal.message(0, body, kind)
    _, accepted, quarantined = outcomes(spark, journal, of)
    reason_by_sequence = {row["sequence"]: row["reason"] for row in quarantined}
    assert len(accepted) + len(quarantined) == len(bodies)
    return [reason_by_sequence.get(number + 1) for number in range(len(bodies))]


def test_row_has_declared_columns_and_metadata(spark: SparkSession) -> None:
    journal = Journal()
    body = b'{"id": 7, "amount": 12.5, "customer": "d\xc3\xbcrr", "more": 1}'
    number = journal.message(3, body, "json", message_id="sender's")
    rows, accepted, quarantined = outcomes(spark, journal, table())
    assert accepted == [
        {
            "id": 7,
            "amount": Decimal("12.50"),
            "customer": "dürr",
            "_broker": "main",
            "_sequence": number,
            "_destination": "orders",
            "_time": at(3).replace(tzinfo=None),
            "_message_id": "sender's",
        }
    ]
    assert quarantined == []
    counts = counted(rows, table())
    assert counts == TableCounts(messages=1, written=1, unknown_fields=1)


def test_all_types_of_columns(spark: SparkSession) -> None:
    schema = (
        "flag BOOLEAN, small INT, ratio DOUBLE, at TIMESTAMP, day DATE, scan BINARY, "
        "lines ARRAY<STRUCT<sku: STRING, count: BIGINT>>, labels MAP<STRING, STRING>"
    )
    journal = Journal()
    journal.message(
        0,
        b'{"flag": true, "small": 1, "ratio": 0.5, "at": "2026-01-02T03:04:05Z", '
        b'"day": "2026-01-02", "scan": "AP8=", "lines": [{"sku": "a", "count": 2}], '
        b'"labels": {"x": "y"}}',
        "json",
    )
    _, (row,), _ = outcomes(spark, journal, table(schema))
    assert [row[name] for name in ("flag", "small", "ratio")] == [True, 1, 0.5]
    assert row["at"] == datetime(2026, 1, 2, 3, 4, 5)
    assert (row["day"], row["scan"]) == (date(2026, 1, 2), bytearray(b"\0\xff"))
    assert (row["lines"], row["labels"]) == ([{"sku": "a", "count": 2}], {"x": "y"})


def test_columns_may_be_named_as_those_of_source(spark: SparkSession) -> None:
    journal = Journal()
    journal.message(0, b'{"body": 1, "sequence": 2, "Time": 3, "properties": 4}', "json")
    definition = table(
        "body INT, sequence INT, Time INT, properties INT, destination INT",
        expectations=(Expectation(name="a", check="body + sequence + time = 6"),),
        key=("sequence",),
    )
    rows, (row,), _ = outcomes(spark, journal, definition)
    assert [row[name] for name in ("body", "sequence", "Time", "properties")] == [1, 2, 3, 4]
    counts = counted(rows, definition)
    assert (counts.written, counts.failed) == (1, {"a": 0})


def test_json_that_is_accepted(spark: SparkSession) -> None:
    bodies = [
        b'{"id": 1}',
        b'{"id": 1} \r\n',
        b"{}",
        b'{"id": null, "customer": null}',
        b'{"customer": 5}',
        b'{"customer": {"a": 1}}',
        b'{"amount": 1.005}',
        b'{"amount": "12.5"}',
        '{"customer": "\ufffd"}'.encode(),
        b'{"other": {"a": 1, "a": 2}}',
        b'{"labels": {"a": {"b": "x"}, "b": null}}',
        rb'{"customer": "\ud83d\uDE00? \\ud800"}',
    ]
    columns = f"{ORDER}, labels MAP<STRING, MAP<STRING, STRING>>"
    expected = dict.fromkeys(bodies)
    assert dict(zip(bodies, reasons(spark, bodies, table(columns)), strict=True)) == expected


def test_json_that_is_quarantined_and_why(spark: SparkSession) -> None:
    schema = (
        f"{ORDER}, ratio DOUBLE, at TIMESTAMP, flag BOOLEAN, lines ARRAY<STRUCT<n: BIGINT>>, "
        "day DATE, days ARRAY<DATE>, labels MAP<STRING, BIGINT>, "
        "parts ARRAY<STRUCT<m: MAP<STRING, MAP<STRING, STRING>>>>"
    )
    expected = {
        b'{"id": "abc"}': "id: abc is not of type BIGINT",
        b'{"id": "12"}': "id: 12 is not of type BIGINT",
        b'{"id": 1.5, "amount": true}': "id: 1.5 is not of type BIGINT; "
        "amount: true is not of type DECIMAL(10,2)",
        b'{"id": 99999999999999999999}': "id: 99999999999999999999 is not of type BIGINT",
        b'{"amount": 123456789.5}': "amount: 1.234567895E8 is not of type DECIMAL(10,2)",
        b'{"ratio": 1e999}': 'ratio: "Infinity" is not of type DOUBLE',
        b'{"ratio": "NaN"}': "ratio: NaN is not of type DOUBLE",
        b'{"at": "soon"}': "at: soon is not of type TIMESTAMP",
        b'{"day": "20260131"}': "day: 20260131 is not of type DATE",
        b'{"days": ["2026-01-31", "-7"]}': "days: the value is not of type array<date>",
        b'{"flag": 1}': "flag: 1 is not of type BOOLEAN",
        b'{"lines": [{"n": "x"}]}': "lines: the value is not of type array<struct<n:bigint>>",
        b'{"id": 1} xyz': "there is text after the JSON object",
        b'{"id": 1}{"id": 2}': "there is text after the JSON object",
        b'{"id": 1},{"id": 2}': "there is text after the JSON object",
        b'{"id": 1}],"x":[1': "there is text after the JSON object",
        b'{"id": 1}]} tail': "there is text after the JSON object",
        b'{"id": 1, "id": 2}': "a field occurs more than once",
        b'{"id": 1, "x": 1, "x": 2}': "a field occurs more than once",
        b'{"labels": {"a": 1, "a": 1}}': "a field occurs more than once",
        b'{"parts": [null, {"m": {"a": {"b": "x", "b": "y"}}}]}': "a field occurs more than once",
        b'[{"id": 1}]': "the body is JSON, but no object",
        b"null": "the body is JSON, but no object",
        b"5": "the body is JSON, but no object",
        b'{"id": 1': "the body is not JSON",
        b"{'id': 1}": "the body is not JSON",
        b'{"ratio": NaN}': "the body is not JSON",
        b"": "the body is empty",
        b"  ": "the body is not JSON",
        b'{"customer": "a\xffb"}': "the body is not UTF-8",
        b'{"labels": {"a\xffb": 1}}': "the body is not UTF-8",
        b'{"parts": [{"m": {"a": {"b": "\xff"}}}]}': "the body is not UTF-8",
        rb'{"customer": "\ud800"}': UNPAIRED,
        rb'{"labels": {"\\\uDE00": 1}}': UNPAIRED,
        rb'{"customer": "\ud83d\ud83d\ude00"}': UNPAIRED,
        b'\xff{"id": 1}': "the body is not UTF-8",
        b'\xef\xbb\xbf{"id": 1}': "the body is not JSON",
    }
    assert dict(zip(expected, reasons(spark, [*expected], table(schema)), strict=True)) == expected


def test_numbers_out_of_range_within_value(spark: SparkSession) -> None:
    schema = "s STRUCT<n: INT, x: DOUBLE>, a ARRAY<ARRAY<FLOAT>>, m MAP<STRING, STRUCT<x: DOUBLE>>"
    expected = {
        b'{"s": {"x": 1.5}, "a": [[1, null], null], "m": {"k": {"x": 2}, "l": null}}': None,
        b'{"s": {"x": 1e999}}': "s: the value is not of type struct<n:int,x:double>",
        b'{"a": [[1], [1e39]]}': "a: the value is not of type array<array<float>>",
        b'{"m": {"k": {"x": -1e999}}}': "m: the value is not of type map<string,struct<x:double>>",
    }
    assert dict(zip(expected, reasons(spark, [*expected], table(schema)), strict=True)) == expected


def test_timestamps_that_spark_would_change(spark: SparkSession) -> None:
    misread = "a value for TIMESTAMP has no date, or is a number out of range"
    schema = "at TIMESTAMP, note STRING, amount DECIMAL(10,2), times ARRAY<TIMESTAMP>"
    json = {
        b'{"at": "2026-01-31T12:00:00Z", "note": "12:00 1767225600000000"}': None,
        b'{"at": "2026-01-31 12:00:00+02:00"}': None,
        b'{"at": 1767225600, "12:00": 1}': None,
        b'{"at": 253402300799}': None,
        b'{"at": 9223372036855, "amount": 1e99999999}': misread,
        b'{"at": -1767225600000000}': misread,
        b'{"at": "12:00"}': misread,
        b'{"at": " T1:30:15"}': misread,
        b'{"at": "2026-01-31T12:00:00Z", "times": [null, 1, "23:59"]}': misread,
    }
    assert dict(zip(json, reasons(spark, [*json], table(schema)), strict=True)) == json
    csv = {b"2026-01-31 12:00,12:00,1": None, b"12:00,,": misread}
    of = table("at TIMESTAMP, note STRING, amount DECIMAL(10,2)", format=Format.CSV)
    assert dict(zip(csv, reasons(spark, [*csv], of, "text"), strict=True)) == csv


def test_csv(spark: SparkSession) -> None:
    expected = {
        b"1,2.5,a": None,
        b'1,2.5,"a, b"\r\n': None,
        b'1,2.5,"a\nb"': None,
        b"1,,": None,
        b"x,2.5,a": "id: x is not of type BIGINT",
        b"1,99999999999,a": "amount: 99999999999 is not of type DECIMAL(10,2)",
        b"1,2.5": "the body does not have 3 fields",
        b"1,2.5,a,b": "the body does not have 3 fields",
        b"1,2.5,a\n2,3.5,b": "the body has more than one line",
        b'1,2.5,"a': "a quote is not closed",
        b"": "the body is empty",
        b"1,2.5,\xff": "the body is not UTF-8",
    }
    definition = table(format=Format.CSV)
    assert (
        dict(zip(expected, reasons(spark, [*expected], definition, "text"), strict=True))
        == expected
    )


def test_quotes_and_backslashes_of_csv(spark: SparkSession) -> None:
    journal = Journal()
    for body in (b'1,,"say ""hi"", ok"', b'2,,""""', b'3,,"a\\"', b"4,,a\\b", b'5,,5" x 6"'):
        journal.message(0, body, "text")
    _, accepted, quarantined = outcomes(spark, journal, table(format=Format.CSV))
    assert [row["customer"] for row in accepted] == ['say "hi", ok', '"', "a\\", "a\\b", '5" x 6"']
    assert quarantined == []


def test_csv_record_with_more_fields_than_spark_can_parse(spark: SparkSession) -> None:
    """One such message would end the pipeline, whenever it starts."""
    commas = b"," * 20_480
    expected = {
        b"1,2.5," + commas: "the body does not have 3 fields",
        b'1,2.5,a"' + commas + b'"': "the body does not have 3 fields",
        b'1,2.5,"' + commas + b'"': None,
        b'1,2.5,"' + commas + b'",' + commas: "the body does not have 3 fields",
    }
    actual = reasons(spark, [*expected], table(format=Format.CSV), "text")
    assert [*expected.values()] == actual


def test_xml(spark: SparkSession) -> None:
    expected = {
        b"<o><id>1</id><amount>2.5</amount><customer>a</customer></o>": None,
        b'<?xml version="1.0"?>\n<!-- c -->\n<o><id>1</id></o>\n': None,
        b'<o id="1"/>': None,
        b"<o><id>x</id></o>": "id: x is not of type BIGINT",
        b"<o><amount>99999999999</amount></o>": "amount: 99999999999 is not of type DECIMAL(10,2)",
        b"<o><id>1</id>": "the body is not one XML document",
        b"<o><id>1</id></o> tail": "the body is not one XML document",
        b"<o><id>1</id></o><p/> tail": "the body is not one XML document",
        b"<o><id>1</o>": "the body is not XML",
        b"text": "the body is not one XML document",
        b"<o><customer>\xff</customer></o>": "the body is not UTF-8",
        b'<!DOCTYPE o [<!ENTITY x SYSTEM "file:///etc/hostname">]><o>&x;</o>': (
            "the body is not one XML document"
        ),
    }
    definition = table(format=Format.XML)
    assert (
        dict(zip(expected, reasons(spark, [*expected], definition, "text"), strict=True))
        == expected
    )


def test_harmful_numbers_for_decimals(spark: SparkSession) -> None:
    """Each of these took minutes to hours, as Spark writes out all digits of a DECIMAL."""
    harmful = "a number for DECIMAL has an exponent of 5 digits, or 1,000 digits"
    json = {
        b'{"amount": 1e99999999}': 'amount: "Infinity" is not of type DECIMAL(10,2)',
        b'{"amount": 1e-99999999}': None,
        b'{"amount": "1e-99999999"}': harmful,
        b'{"amount": "1E+9,9999999"}': harmful,
        '{"amount": "1e\u0669\u0669\u0669\u0669\u0669\u0669"}'.encode(): harmful,
        b'{"amount": "%s"}' % (b"1" * 4_000_000): harmful,
        b'{"amount": 12345678.05, "customer": "1e99999999", "other": 1e99999999}': None,
        b'{"amount": 1e2, "customer": "1e99999999", "other": 1e99999999}': None,
        b'{"amount": 1e2, "customer": "1e99999999"} x': "there is text after the JSON object",
        b'{"amount": 1e2, "id": 1e99999999, "id": 2}': "a field occurs more than once",
    }
    assert dict(zip(json, reasons(spark, [*json], table()), strict=True)) == json
    nested = {
        b'{"a": [{"x": "1e-99999999"}]}': harmful,
        b'{"a": [{"x": "1e2", "y": "1e99999999"}, null]}': None,
        b'{"m": {"k": "1e99999999"}}': harmful,
        b'{"m": {"k": "1e9,9,99999"}}': harmful,
        '{"m": {"k": "1e\u0669\u0669\u0669\u0669\u0669\u0669"}}'.encode(): harmful,
    }
    schema = "a ARRAY<STRUCT<x: DECIMAL(10,2), y: STRING>>, m MAP<STRING, DECIMAL(10,2)>"
    assert dict(zip(nested, reasons(spark, [*nested], table(schema)), strict=True)) == nested
    csv = {
        b"1,1e99999999,a": harmful,
        b'1,"1e9,99,99999",a': harmful,
        b"1,1e-99999999,a": harmful,
        b"1,1e2,1e99999999": None,
    }
    of = table(format=Format.CSV)
    assert dict(zip(csv, reasons(spark, [*csv], of, "text"), strict=True)) == csv
    xml = {
        b"<o><amount>1e99999999</amount></o>": harmful,
        b'<o amount="1e-99999999"/>': harmful,
        b"<o><amount>1e2</amount><customer>1e99999999</customer></o>": None,
    }
    of = table(format=Format.XML)
    assert dict(zip(xml, reasons(spark, [*xml], of, "text"), strict=True)) == xml


def test_long_bodies_take_linear_time(spark: SparkSession) -> None:
    """Each of the first three took minutes, and the last one overflowed the stack."""
    xml = {
        b"<?a?>" * 200: "the body is not one XML document",
        b"<!--a-->" * 200: "the body is not one XML document",
        b"<!--a-->" * 20_000 + b"<r><id>1</id></r>": None,
    }
    csv = {b"1,2,a" + b"\n" * 1_000_000 + b"x": "the body has more than one line"}
    for format, expected in ((Format.XML, xml), (Format.CSV, csv)):
        actual = reasons(spark, [*expected], table(format=format))
        assert dict(zip(expected, actual, strict=True)) == expected


def test_attributes_and_elements_of_xml_are_columns(spark: SparkSession) -> None:
    journal = Journal()
    journal.message(0, b'<o id="7"><customer>a</customer></o>', "text")
    _, (row,), _ = outcomes(spark, journal, table(format=Format.XML))
    assert (row["id"], row["customer"], row["amount"]) == (7, "a", None)


def test_text(spark: SparkSession) -> None:
    definition = table("body STRING", format=Format.TEXT)
    assert reasons(spark, [b"any\ntext", b"\xff", b""], definition, "text") == [
        None,
        "the body is not UTF-8",
        "the body is empty",
    ]


def test_json_of_all_kinds_of_bodies_is_alike(spark: SparkSession) -> None:
    journal = Journal()
    json = b'{"id": 1, "amount": 2.5, "customer": "a"}'
    for kind, protocol in (("json", "vibemq"), ("bytes", "phpmq"), ("text", "jmq")):
        journal.message(0, json, kind, protocol=protocol)
    journal.message(0, dumps_map({"id": 1, "amount": 2.5, "customer": "a"}), "map", protocol="jmq")
    packed = zlib.compress(json)
    sizes = {"JMS_SUN_COMPRESSED_SIZE": str(len(packed)), "JMS_SUN_UNCOMPRESSED_SIZE": "41"}
    journal.message(0, packed, "text", protocol="jmq", properties=sizes)
    malformed = journal.message(0, b"no map at all", "map", protocol="jmq")
    object_ = journal.message(0, b"\xac\xed", "object", protocol="jmq")
    _, accepted, quarantined = outcomes(spark, journal, table(), java=True)
    assert [(row["id"], row["amount"], row["customer"]) for row in accepted] == [
        (1, Decimal("2.50"), "a")
    ] * 5
    assert {row["sequence"]: row["reason"] for row in quarantined} == {
        malformed: "the bytes are not a Java serialization stream",
        object_: "a body of the kind object is not json",
    }


# --- destinations, keys, expectations ------------------------------------------------------------


def test_pattern_selects_destinations_without_dead_letters(spark: SparkSession) -> None:
    journal = Journal()
    valid_body = b'{"id": 1}'
    numbers = {
        name: journal.message(0, valid_body, "json", destination=name)
        for name in ("orders", "orders.eu", "orders_eu", "other", "orders.dlq")
    }
    journal.message(0, valid_body, "json", destination="orders", destination_kind="topic")
    failed = journal.message(0, valid_body, "json", destination="failures")
    dead_letter = journal.dead_letter(0, numbers["orders"], "expired")
    journal.rows[-2]["destination"] = "orders-failed"  # a queue configured for dead letters
    journal.event(1, Event.DELIVERED, numbers["orders"])

    def selected(pattern: str) -> set[int]:
        definition = table(destination=pattern)
        return {row["_sequence"] for row in outcomes(spark, journal, definition)[1]}

    assert selected("orders*") == {numbers[name] for name in ("orders", "orders.eu", "orders_eu")}
    assert selected("orders_eu") == {numbers["orders_eu"]}
    assert selected("*.dlq") == {numbers["orders.dlq"]}
    assert selected("orders-failed") == {dead_letter}
    assert selected("fail*") == {failed}
    assert len(selected("topic:orders")) == 1


def test_source_reads_what_patterns_select() -> None:
    def read(*patterns: str) -> list[str]:
        options = parse_options({"path": ".", "subscribePattern": subscription(patterns)})
        names = ("orders", "orders, eu", "a.b", "acb")
        addresses = [Address(kind, name) for kind in Kind for name in names]
        selection = Selection(frozenset(options.events), options.destinations)
        allowed = zip(addresses, selection.allows(addresses), strict=True)
        return [str(address) for address, is_allowed in allowed if is_allowed]

    assert read("orders, eu") == ["orders, eu"]
    assert read("a.b", "topic:orders*") == ["a.b", "topic:orders", "topic:orders, eu"]
    assert read() == []


def test_expectations_decide_and_are_counted(spark: SparkSession) -> None:
    definition = table(
        expectations=(
            Expectation(name="positive", check="amount > 0", action=Action.QUARANTINE),
            Expectation(name="small", check="amount < 100", action=Action.QUARANTINE),
            Expectation(name="known", check="customer <> '?'", action=Action.DROP),
            Expectation(name="even", check="id % 2 = 0"),
            Expectation(name="inverse", check="1 / amount > 0", action=Action.WARN),
        )
    )
    journal = Journal()
    for body in (
        b'{"id": 2, "amount": 1, "customer": "a"}',
        b'{"id": 3, "amount": 1, "customer": "a"}',
        b'{"id": 4, "amount": 0, "customer": "a"}',
        b'{"id": 6, "customer": "a"}',
        b'{"id": 8, "amount": 1, "customer": "?"}',
        b'{"id": 10, "amount": 500, "customer": "?"}',
        b'{"id": "x"}',
    ):
        journal.message(0, body, "json")
    rows, accepted, quarantined = outcomes(spark, journal, definition)
    assert [row["id"] for row in accepted] == [2, 3]
    assert [(row["reason"], row["expectation"]) for row in quarantined] == [
        ("expectation failed: positive, inverse", ["positive", "inverse"]),
        (
            "expectation failed: positive, small, inverse",
            ["positive", "small", "inverse"],
        ),
        ("expectation failed: small, known", ["small", "known"]),
        ("id: x is not of type BIGINT", []),
    ]
    assert quarantined[0]["body"] == b'{"id": 4, "amount": 0, "customer": "a"}'
    counts = counted(rows, definition)
    assert counts == TableCounts(
        messages=7,
        written=2,
        dropped=1,
        quarantined=4,
        unparsed=1,
        first_quarantined=3,
        last_quarantined=7,
        failed={"positive": 2, "small": 2, "known": 2, "even": 1, "inverse": 2},
    )


def test_body_that_is_no_object_has_no_unknown_fields(spark: SparkSession) -> None:
    """Without spark.sql.ansi.enabled, the size of NULL is -1."""
    journal = Journal()
    for body in (b'{"id": 1, "x": 1}', b"hello", b"[1]"):
        journal.message(0, body, "json")
    with temporary_settings(spark, LENIENT):
        rows, _, _ = outcomes(spark, journal, table())
        assert counted(rows, table()).unknown_fields == 1


def test_failed_expectation_stops_batch(spark: SparkSession) -> None:
    definition = table(
        expectations=(Expectation(name="positive", check="amount > 0", action=Action.FAIL),)
    )
    journal = Journal()
    number = journal.message(0, b'{"id": 1, "amount": -1}', "json")
    with pytest.raises(PySparkException) as raised:
        outcomes(spark, journal, definition)
    text = f"{STOPPED} table orders: positive at message {number} of the destination orders"
    assert text in str(raised.value)


def test_null_key_is_quarantined(spark: SparkSession) -> None:
    definition = table(key=("id", "customer"))
    assert reasons(
        spark, [b'{"id": 1, "customer": "a"}', b'{"customer": "a"}', b'{"id": 1}'], definition
    ) == [None, "the key column id is null", "the key column customer is null"]
    # Delta stores an empty text in a column of partition_by as NULL, which no later key equals
    definition = table(key=("customer", "id"), partition_by=("customer", "id"))
    bodies = [b'{"id": 1, "customer": ""}', b'{"id": 1, "customer": "a"}']
    assert reasons(spark, bodies, definition) == ["the key column customer is null", None]


def test_newest_message_of_key_and_its_deletion(spark: SparkSession) -> None:
    definition = table(
        key=("id",),
        delete="amount IS NULL AND customer = '-'",
        expectations=(Expectation(name="positive", check="amount > 0", action=Action.QUARANTINE),),
    )
    journal = Journal()
    for body in (
        b'{"id": 1, "amount": 1, "customer": "old"}',
        b'{"id": 2, "amount": 1, "customer": "kept"}',
        b'{"id": 1, "amount": 2, "customer": "new"}',
        b'{"id": 3, "amount": 1, "customer": "deleted"}',
        b'{"id": 3, "customer": "-"}',
        b'{"id": 2, "amount": -1, "customer": "quarantined"}',
    ):
        journal.message(0, body, "json")
    rows, _, quarantined = outcomes(spark, journal, definition)
    newest = newest_rows(rows, definition, StructType.fromDDL(ORDER)).orderBy("id").collect()
    assert [(row["id"], row["customer"], row["_deleted"]) for row in newest] == [
        (1, "new", False),
        (2, "kept", False),
        (3, "-", True),
    ]
    assert [row["sequence"] for row in quarantined] == [6]
    assert quarantined[0]["time"].replace(tzinfo=UTC) == at(0)
