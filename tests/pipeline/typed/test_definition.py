"""Parsing of pipeline.toml: values, defaults, and every error with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluicemq.model.errors import ConfigurationError
from sluicemq.pipeline.typed.definition import (
    Action,
    Definition,
    DefinitionError,
    Format,
    Refresh,
    TypedTable,
    load_definition,
    parse_definition,
)

COMPLETE = """\
[[table]]
name = "orders"
destination = "orders*"
format = "json"
schema = "id BIGINT, amount DECIMAL(10,2), customer STRING"
key = ["id"]
delete = "amount IS NULL AND customer = '-'"
partition_by = ["customer"]

[[table.expect]]
name = "positive amount"
check = "amount > 0"
action = "quarantine"

[[table.expect]]
name = "has a customer"
check = "customer IS NOT NULL"

[[table]]
name = "notes"
destination = "topic:notes"
format = "text"
schema = "note STRING"

[[gold]]
name = "turnover"
sql = "SELECT customer, sum(amount) AS amount FROM silver.orders GROUP BY customer"
keys = ["customer"]
refresh = "incremental"
"""


def problems(text: str, path: Path = Path("pipeline.toml")) -> list[str]:
    with pytest.raises(DefinitionError) as raised:
        parse_definition(text, path)
    return str(raised.value).split("\n")


def table(body: str) -> str:
    return f'[[table]]\nname = "orders"\ndestination = "orders"\nschema = "id BIGINT"\n{body}'


def test_complete_definition_is_parsed() -> None:
    definition = parse_definition(COMPLETE)
    orders, notes = definition.tables
    assert (orders.name, orders.destination, orders.format) == ("orders", "orders*", Format.JSON)
    assert orders.schema == "id BIGINT, amount DECIMAL(10,2), customer STRING"
    assert (orders.key, orders.partition_by) == (("id",), ("customer",))
    assert orders.delete == "amount IS NULL AND customer = '-'"
    positive, customer = orders.expectations
    assert (positive.name, positive.check) == ("positive amount", "amount > 0")
    assert (positive.action, customer.action) == (Action.QUARANTINE, Action.WARN)
    assert (orders.line, positive.line, notes.line) == (1, 10, 19)
    assert (notes.format, notes.key, notes.expectations) == (Format.TEXT, (), ())
    (turnover,) = definition.gold
    assert (turnover.name, turnover.keys) == ("turnover", ("customer",))
    assert turnover.refresh is Refresh.INCREMENTAL


def test_empty_file_defines_nothing() -> None:
    assert parse_definition("") == Definition()


def test_all_errors_are_reported_at_once_with_their_lines() -> None:
    text = """\
[[table]]
name = "Orders"
destinaton = "orders"
format = "jason"
schema = ""
key = "id"

[[table.expect]]
name = "a"
check = 5
action = "explode"

[[table]]
name = "messages"
destination = "x"
schema = "id BIGINT"
delete = "id < 0"

[[gold]]
name = "turnover"
refresh = "incremental"

[pipline]
"""
    assert problems(text) == [
        "pipeline.toml:1: table 'Orders': destination is missing: add destination = \"...\"",
        "pipeline.toml:2: table 'Orders': name must be a text of up to 63 letters "
        "a-z, digits and _ "
        "that begins with a letter",
        "pipeline.toml:3: table 'Orders': there is no key 'destinaton'; did you mean destination?",
        "pipeline.toml:4: table 'Orders': there is no format 'jason'; did you mean json?",
        "pipeline.toml:5: table 'Orders': schema must be a text in quotes that is not empty",
        "pipeline.toml:6: table 'Orders': key must be a list of different texts such as [\"id\"]",
        "pipeline.toml:10: table 'Orders', expectation 'a': check must be a text "
        "in quotes that is not empty",
        "pipeline.toml:11: table 'Orders', expectation 'a': there is no action 'explode'; "
        "there are warn, drop, quarantine, fail",
        "pipeline.toml:14: table 'messages': the pipeline itself writes a table of this name",
        "pipeline.toml:17: table 'messages': delete needs a key: without one no row is ever "
        "replaced",
        "pipeline.toml:19: gold table 'turnover': keys is missing: add keys = [\"...\"]",
        "pipeline.toml:19: gold table 'turnover': sql is missing: add sql = \"...\"",
        "pipeline.toml:23: pipeline.toml: there is no key 'pipline'; there are table, gold",
    ]


def test_syntax_error_has_its_line() -> None:
    (problem,) = problems('[[table]]\nname = "orders\n')
    assert problem.startswith("pipeline.toml: this is not TOML: ")
    assert "line 2" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (table('key = ["id", "id"]'), ":5: table 'orders': key must be a list of different texts"),
        (table("key = [1]"), ":5: table 'orders': key must be a list of different texts"),
        (
            table("").replace('destination = "orders"', 'destination = "topic:"'),
            ":3: table 'orders': the pattern, without topic:, has 1 to 256 characters",
        ),
        (
            table('expect = "x"'),
            ":5: table 'orders': expect must be an array of tables: write it as [[table.expect]]",
        ),
        (
            '[table]\nname = "a"',
            ":1: pipeline.toml: table must be an array of tables: write it as [[table]]",
        ),
        (
            table('schema_file = "a.json"'),
            ":5: table 'orders': a table has either schema = \"id BIGINT, ...\", or",
        ),
        (
            '[[table]]\nname = "orders"\ndestination = "orders"',
            ":1: table 'orders': a table has either schema = \"id BIGINT, ...\", or schema = "
            '"infer", or schema_file = "FILE.json"',
        ),
        (
            table('delete = " "'),
            ":5: table 'orders': delete must be a text in quotes that is not empty",
        ),
        (
            '[[table]]\nname = 5\ndestination = "a"\nschema = "infer"',
            ":2: table 5: name must be a text of up to 63 letters a-z",
        ),
        (
            '[[table]]\nname = "a_quarantine"\ndestination = "a"\nschema = "infer"',
            ":2: table 'a_quarantine': names that end in _quarantine or _tombstones are reserved",
        ),
        (
            '[[gold]]\nname = "traffic"\nsql = "SELECT 1"',
            ":2: gold table 'traffic': the pipeline itself writes a table of this name",
        ),
    ],
)
def test_error_names_line_and_reason(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"pipeline.toml{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (table("") + "\n" + table(""), ("1: table 'orders'", "6: table 'orders'")),
        (
            table('[[table.expect]]\nname="a"\ncheck="1"\n[[table.expect]]\nname="a"\ncheck="1"\n'),
            ("5: table 'orders': expectation 'a'", "8: table 'orders': expectation 'a'"),
        ),
    ],
)
def test_each_of_equal_names_is_reported(text: str, expected: tuple[str, ...]) -> None:
    assert problems(text) == [
        f"pipeline.toml:{start} is defined more than once" for start in expected
    ]


@pytest.mark.parametrize(
    ("destination", "expected"),
    [
        ("orders*", False),
        ("*", False),
        ("orders", True),
        ("orders.dlq", True),
        ("*.dlq", True),
        ("mq.sys.dmq", True),
        ("orders.dlq*", False),
    ],
)
def test_only_exact_names_and_dlq_patterns_name_dead_letters(
    destination: str, expected: bool
) -> None:
    assert TypedTable(name="a", destination=destination).names_dead_letters is expected


def test_missing_file_names_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist: create it, or name another"):
        load_definition(tmp_path / "pipeline.toml")


# --- JSON Schema ---------------------------------------------------------------------------------


def with_schema(directory: Path, schema: object) -> Path:
    (directory / "orders.json").write_text(json.dumps(schema))
    file = directory / "pipeline.toml"
    file.write_text(
        '[[table]]\nname = "orders"\ndestination = "orders"\nschema_file = "orders.json"\n'
    )
    return file


def test_json_schema_becomes_columns(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "required": ["id"],
        "$defs": {"money": {"type": "number", "multipleOf": 0.01, "minimum": 0}},
        "properties": {
            "id": {"type": "integer"},
            "amount": {"$ref": "#/$defs/money"},
            "ratio": {"type": ["number", "null"], "multipleOf": 0.25},
            "paid": {"type": "boolean"},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "scan": {"type": "string", "contentEncoding": "base64"},
            "state": {"enum": ["new", "paid"]},
            "lines": {
                "type": "array",
                "items": {"properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}},
            },
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "a`b": {"type": "string", "maxLength": 5},
        },
    }
    (orders,) = load_definition(with_schema(tmp_path, schema)).tables
    assert orders.schema == (
        "STRUCT<`id`: BIGINT, `amount`: DECIMAL(38, 2), `ratio`: DOUBLE, `paid`: BOOLEAN, "
        "`at`: TIMESTAMP, `day`: DATE, `scan`: BINARY, `state`: STRING, "
        "`lines`: ARRAY<STRUCT<`sku`: STRING, `count`: BIGINT>>, `labels`: MAP<STRING, STRING>, "
        "`a``b`: STRING>"
    )


def test_unsupported_json_schema_is_reported_with_every_place(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            "b": {"type": ["string", "integer"]},
            "c": {"type": "array", "items": [{"type": "string"}]},
            "d": {"type": "object"},
            "e": {"$ref": "other.json"},
            "f": {"$ref": "#/$defs/node"},
            "g": {},
            "h": {"$ref": "#/$defs/leaf"},
            "i": 5,
        },
        "$defs": {
            "node": {"properties": {"l": {"$ref": "#/$defs/node"}, "r": {"$ref": "#/$defs/node"}}}
        },
    }
    file = with_schema(tmp_path, schema)
    with pytest.raises(DefinitionError) as raised:
        load_definition(file)
    text = str(raised.value)
    start = f"{file}:4: table 'orders': {tmp_path / 'orders.json'}: "
    for expected in (
        "#/properties/a: oneOf is not supported: declare one type, or STRING in schema = ...",
        "#/properties/b: type ['string', 'integer']: a column has exactly one type besides null",
        "#/properties/c: items is a list (a tuple): give one schema for all items",
        "#/properties/d: an object without properties: name its properties",
        "#/properties/e: $ref 'other.json': only references into the same file",
        "#/properties/f/properties/r: $ref '#/$defs/node' is recursive: a table has no such type",
        "#/properties/g: type is missing",
        "#/properties/h: $ref '#/$defs/leaf': the file has no such schema",
        "#/properties/i: a schema must be an object",
    ):
        assert start + expected in text


def test_schema_file_that_is_missing_or_no_object(tmp_path: Path) -> None:
    file = with_schema(tmp_path, {"type": "string"})
    with pytest.raises(DefinitionError, match="a table needs a schema of type object"):
        load_definition(file)
    (tmp_path / "orders.json").unlink()
    with pytest.raises(DefinitionError, match=r"orders\.json: .*No such file"):
        load_definition(file)
