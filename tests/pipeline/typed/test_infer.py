"""Inference of schemas, and the block of the definition file that it gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.typed.definition import Format, TypedTable, parse_definition
from sluicemq.pipeline.typed.infer import infer_schema, table_definition, table_name, write_inferred
from sluicemq.pipeline.typed.validation import check
from sluicemq.protocols.java import dumps_map
from tests.pipeline.jobs.events import Journal, frame

JSON = (
    b'{"id": 1, "amount": 2.5, "at": "2026-01-02T03:04:05Z", "tags": ["x"], "a-b": true,'
    b' "prices": [1.25, 100]}',
    b'{"id": 2, "amount": 10, "nothing": null, "inner": {"n": 1, "s": "t"}, "none": []}',
)


def events(spark: SparkSession, *bodies: bytes, kind: str = "bytes") -> DataFrame:
    journal = Journal()
    for body in bodies:
        journal.message(0, body, kind)
    return frame(spark, journal.rows)


def test_schema_of_json_is_inferred_and_accepted_as_definition(spark: SparkSession) -> None:
    inferred = infer_schema(events(spark, *JSON, b"no json"), "orders*")
    assert (inferred.format, inferred.sampled, inferred.readable) == (Format.JSON, 3, 2)
    text = table_definition(inferred, "orders*", "orders")
    definition = parse_definition(text)
    check(spark, definition)
    (table,) = definition.tables
    assert [line.strip(" ,") for line in table.schema.strip().split("\n")] == [
        "`a-b` BOOLEAN",
        "amount DECIMAL(18,1)",
        "at TIMESTAMP",
        "id BIGINT",
        "inner STRUCT<n: BIGINT, s: STRING>",
        "none ARRAY<STRING>",
        "nothing STRING",
        "prices ARRAY<DECIMAL(18,2)>",
        "tags ARRAY<STRING>",
    ]
    assert (table.name, table.destination, table.key) == ("orders", "orders*", ())


def test_names_that_table_cannot_have(spark: SparkSession) -> None:
    body = (
        b'{"_id": 1, "a b": 2, "id": 3, "ID": 4, "line\\n": 5, "inner": {"_x": 6, "y z": [7]}, '
        b'"c\\u0001": 8, "q\'\'\'": 9, "rest": {"q\'\'\'": 10}}'
    )
    inferred = infer_schema(events(spark, body), "orders")
    text = table_definition(inferred, "orders", "orders")
    definition = parse_definition(text)
    check(spark, definition)
    assert inferred.columns.simpleString() == "struct<ID:bigint,inner:string,rest:string>"
    assert [line for line in text.split("\n") if "left out" in line] == [
        f"# left out, because a table cannot have a column of this name: {name}"
        for name in ('"_id"', '"a b"', r'"c\u0001"', '"id"', r'"line\n"', "\"q'''\"")
    ]


def test_schema_of_map_bodies(spark: SparkSession) -> None:
    inferred = infer_schema(events(spark, dumps_map({"id": 1}), kind="map"), "orders")
    assert inferred.columns.simpleString() == "struct<id:bigint>"


def test_schema_of_csv_and_xml(spark: SparkSession) -> None:
    bodies = (b"1,2.5,a,", b"2,3,b,", b"," * 20_480)
    csv = infer_schema(events(spark, *bodies), "orders", Format.CSV)
    assert csv.columns.simpleString() == "struct<c0:int,c1:double,c2:string,c3:string>"
    xml = infer_schema(events(spark, b'<o id="7"><name>a</name><none/></o>'), "orders")
    assert xml.format is Format.XML
    assert xml.columns.simpleString() == "struct<id:bigint,name:string,none:string>"
    text = infer_schema(events(spark, b"plain", b"\xff"), "orders")
    assert (text.format, text.columns.names) == (Format.TEXT, ["body"])
    assert (text.sampled, text.readable) == (2, 1)


def test_nothing_to_infer_from(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="there are no messages of 'other'"):
        infer_schema(events(spark, *JSON), "other")
    with pytest.raises(ConfigurationError, match=r"none of the 1 messages of 'orders' .* is json"):
        infer_schema(events(spark, b"text"), "orders", Format.JSON)
    with pytest.raises(ConfigurationError, match=r"the 2 json messages of 'orders' .* no field"):
        infer_schema(events(spark, b"{}", b'{"_id": 1}'), "orders")


def test_tables_to_infer_are_written_to_file_beside_definition(
    spark: SparkSession, tmp_path: Path
) -> None:
    undeclared = TypedTable(name="sales", destination="orders")
    file = write_inferred(events(spark, *JSON), [undeclared], tmp_path / "pipeline.toml")
    assert file == tmp_path / "pipeline.inferred.toml"
    (table,) = parse_definition(file.read_text()).tables
    assert table.name == "sales"
    assert "id BIGINT" in table.schema


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ("orders*", "orders"),
        ("topic:Shop.EU/1", "shop_eu_1"),
        ("7*", "t_7"),
        ("*", "t"),
        ("messages", "messages_table"),
        ("x.quarantine", "x_quarantine_table"),
        ("a" * 200, "a" * 63),
    ],
)
def test_name_of_table(destination: str, name: str) -> None:
    assert table_name(destination) == name
    text = f'[[table]]\nname = "{name}"\ndestination = "{destination}"\nschema = "id INT"\n'
    assert parse_definition(text).tables[0].name == name
