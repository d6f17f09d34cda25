"""Conversion of Arrow rows to messages, and the reasons of invalid rows."""

from __future__ import annotations

import base64
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.message import BodyKind, Durability
from sluicemq.model.rows import (
    MAX_PROPERTIES_BYTES,
    MAX_TIME,
    Row,
    UnusableRow,
    decode,
    frame,
    frames,
    name_of,
    properties_of,
)
from sluicemq.pipeline.schema import TEXTS, TIME
from sluicemq.pipeline.sink.conversion import Converter, Values
from sluicemq.pipeline.sink.options import parse_options
from sluicemq.protocols.java import MAX_SIZE, loads_map

URL = {"url": "http://localhost:7680"}
TYPES = {
    "destination": pa.string(),
    "destination_kind": pa.string(),
    "body": pa.binary(),
    "body_kind": pa.string(),
    "properties": TEXTS,
    "property_types": TEXTS,
    "priority": pa.int32(),
    "ttl": pa.int64(),
    "expiration": TIME,
    "deliver_at": TIME,
    "message_id": pa.string(),
    "correlation_id": pa.string(),
    "reply_to": pa.string(),
    "type": pa.string(),
    "durability": pa.string(),
}


def convert(
    columns: dict[str, list[Any]], options: dict[str, str] | None = None, **types: pa.DataType
) -> list[Values]:
    """Convert a batch of these columns; `types` override the default types."""
    arrays = [pa.array(values, {**TYPES, **types}[name]) for name, values in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))
    column_indexes = {name: index for index, name in enumerate(columns)}
    return Converter(column_indexes, parse_options({**URL, **(options or {})})).convert(batch)


def received(rows: list[Values]) -> list[Row]:
    """Return the rows as the broker reads them."""
    (data,) = frames(memoryview(frame(rows)))
    return decode(data)


def faults(rows: list[Values]) -> dict[int, str]:
    """Return the reasons of invalid rows."""
    reasons = {}
    for number, row in enumerate(received(rows)):
        try:
            name_of(row.destination)
        except UnusableRow as reason_of_row:
            reasons[number] = str(reason_of_row)
    return reasons


def convert_valid_row(values: dict[str, Any], **types: pa.DataType) -> Row:
    """Convert one row, which must be valid."""
    row = {"destination": "q", "body": b"x", **values}
    batch = convert({name: [value] for name, value in row.items()}, **types)
    assert not faults(batch)
    return received(batch)[0]


def reason_of_row(values: dict[str, Any], **types: pa.DataType) -> str:
    """Return the reason why a row is invalid."""
    row = {"destination": "q", "body": b"x", **values}
    batch = convert({name: [value] for name, value in row.items()}, **types)
    assert list(faults(batch)) == [0]
    return faults(batch)[0]


def test_all_columns_of_row_are_converted() -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    row = convert_valid_row(
        {
            "destination": "news",
            "destination_kind": "topic",
            "body": b"{}",
            "body_kind": "json",
            "properties": [("a", "1"), ("b", "x")],
            "property_types": [("a", "integer")],
            "priority": 9,
            "ttl": 60_000,
            "expiration": moment,
            "deliver_at": datetime(2026, 2, 1, tzinfo=UTC),
            "message_id": "id",
            "correlation_id": "c",
            "reply_to": "topic:back",
            "type": "t",
            "durability": "lazy",
        }
    )
    assert name_of(row.destination) == "news"
    assert row.topic
    assert (row.body, row.body_kind, row.priority) == (b"{}", BodyKind.JSON, 9)
    assert (row.ttl, row.expiration) == (60_000, int(moment.timestamp() * 1000))
    assert row.deliver_at == 1_769_904_000_000
    assert (row.message_id, row.correlation_id, row.type) == ("id", "c", "t")
    assert (row.reply_to, row.reply_topic) == ("back", True)
    assert row.durability == Durability.LAZY
    assert properties_of(row.properties) == {"a": 1, "b": "x"}


def test_nulls_become_default_values() -> None:
    nulls = {name: None for name in TYPES if name not in ("destination", "body")}
    assert convert_valid_row(nulls) == convert_valid_row({})
    assert convert_valid_row({"body": None}).body_kind == BodyKind.NONE


def test_rows_are_as_short_as_their_columns() -> None:
    """Default values of the broker are not transferred."""
    assert [len(row) for row in convert({"destination": ["q"], "body": [b""]})] == [4]


def test_mixed_batch_keeps_rows_apart() -> None:
    batch = convert(
        {
            "destination": ["a", None, "b", "a"],
            "destination_kind": ["topic", "queue", None, "queue"],
            "body": [b"1", None, b"\xff", b"[4]"],
            "body_kind": [None, "none", "bytes", "json"],
            "priority": [None, 0, 9, 4],
        },
        {"destination": "usual"},
    )
    assert not faults(batch)
    assert [(name_of(row.destination), row.topic, row.body) for row in received(batch)] == [
        ("a", True, b"1"),
        ("usual", False, b""),
        ("b", False, b"\xff"),
        ("a", False, b"[4]"),
    ]
    assert [row.body_kind for row in received(batch)] == [3, 0, 3, 2]
    assert [row.priority for row in received(batch)] == [4, 0, 9, 4]


def test_option_destination_may_be_topic() -> None:
    rows = received(convert({"body": [b"x"]}, {"destination": "topic:news"}))
    assert [(name_of(row.destination), row.topic) for row in rows] == [("news", True)]
    batch = convert({"destination": ["q", None], "body": [b"", b""]}, {"destination": "topic:n"})
    assert [(name_of(row.destination), row.topic) for row in received(batch)] == [
        ("q", False),
        ("n", True),
    ]
    columns = {
        "destination": ["q", None, None, None],
        "destination_kind": [None, None, "queue", "topic"],
        "body": [b""] * 4,
    }
    batch = convert(columns, {"destination": "topic:n"})
    assert [row.topic for row in received(batch)] == [False, True, False, True]


def test_names_that_are_not_utf8_are_read_as_escaped_by_source() -> None:
    assert (
        name_of(convert_valid_row({"destination": r"a\xff\x80b"}).destination) == "a\udcff\udc80b"
    )
    assert name_of(convert_valid_row({"destination": r"a\x41\n"}).destination) == r"a\x41\n"


@pytest.mark.parametrize(
    ("column", "value", "kind", "expected"),
    [
        (pa.string(), "é", None, BodyKind.TEXT),
        (pa.large_string(), "é", "text", BodyKind.TEXT),
        (pa.string(), '{"a": 1}', "json", BodyKind.JSON),
        (pa.binary(), "é".encode(), "text", BodyKind.TEXT),
        (pa.binary(), b"\xff", None, BodyKind.BYTES),
        (pa.large_binary(), b"no java", "map", BodyKind.MAP),
        (pa.binary(), b"", "none", BodyKind.NONE),
        (pa.binary(), b"", "stream", BodyKind.STREAM),
    ],
)
def test_bodies_of_all_types_are_converted(
    column: pa.DataType, value: Any, kind: str | None, expected: BodyKind
) -> None:
    row = convert_valid_row({"body": value, "body_kind": kind}, body=column)
    assert row.body_kind == expected
    assert row.body == (value.encode() if isinstance(value, str) else value)


def test_map_is_map_message() -> None:
    row = convert_valid_row({"body": [("name", "wert"), ("nothing", None)]}, body=TEXTS)
    assert row.body_kind == BodyKind.MAP
    assert loads_map(row.body) == {"name": "wert", "nothing": None}


@pytest.mark.parametrize(
    ("values", "types", "reason"),
    [
        ({"destination": None}, {}, "has no destination"),
        ({"destination": ""}, {}, "has no destination"),
        ({"destination": "x" * 70_000}, {}, "has 70000 bytes"),
        ({"destination_kind": "stack"}, {}, "queue or topic, not 'stack'"),
        ({"body": "x", "body_kind": "map"}, {"body": pa.string()}, "cannot be of body_kind map"),
        ({"body": [("a", "b")], "body_kind": "text"}, {"body": TEXTS}, "cannot be of body_kind"),
        ({"body_kind": "xml"}, {}, "no body_kind 'xml'"),
        ({"body": None, "body_kind": "text"}, {}, "no body of body_kind text"),
        ({"priority": 10}, {}, "the priority must be 0 to 9, not 10"),
        ({"priority": -1}, {}, "the priority must be 0 to 9, not -1"),
        ({"ttl": -1}, {}, "ttl is negative"),
        ({"ttl": MAX_TIME + 1}, {}, "far too long"),
        ({"expiration": datetime(1969, 12, 31, tzinfo=UTC)}, {}, "expiration is before 1970"),
        ({"deliver_at": (MAX_TIME + 1) * 1000}, {}, "deliver_at is before 1970 or after 9999"),
        ({"durability": "twice"}, {}, "none, lazy or sync"),
        ({"properties": [("p", "x" * MAX_PROPERTIES_BYTES)]}, {}, "the properties have 1048"),
    ],
)
def test_invalid_rows_have_reason(
    values: dict[str, Any], types: dict[str, pa.DataType], reason: str
) -> None:
    assert reason in reason_of_row(values, **types)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("boolean", "FALSE", False),
        ("integer", "-9223372036854775808", -(1 << 63)),
        ("integer", "18446744073709551615", (1 << 64) - 1),
        ("real", "-0.0", -0.0),
        ("real", "1e400", float("inf")),
        ("text", "", ""),
        ("bytes", "/wA=", b"\xff\0"),
        ("null", "x", None),
        ("text", None, None),
    ],
)
def test_properties_of_all_types_are_converted(kind: str, text: str | None, value: object) -> None:
    row = convert_valid_row(
        {"properties": [("p", text)], "property_types": [("p", kind), ("other", "real")]}
    )
    assert properties_of(row.properties) == {"p": value}
    assert type((properties_of(row.properties) or {})["p"]) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "1"),
        ("integer", "1.0"),
        ("integer", "18446744073709551616"),
        ("integer", "1_0"),
        ("integer", "9" * 5000),
        ("real", "one"),
        ("bytes", "/w"),
        ("bytes", "é"),
        ("date", "2026-01-01"),
    ],
)
def test_invalid_properties_have_reason(kind: str, text: str) -> None:
    reason = reason_of_row({"properties": [("p", text)], "property_types": [("p", kind)]})
    assert reason.startswith("the property 'p' ")
    assert kind in reason


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats(allow_nan=False)
        | st.text()
        | st.binary()
        | st.none(),
        min_size=1,
    )
)
def test_any_properties_come_back(properties: dict[str, Any]) -> None:
    """Hostile names and values, formatted as by the source."""
    kinds = {bool: "boolean", int: "integer", float: "real", str: "text", bytes: "bytes"}

    def spelled(value: object) -> str | None:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, bool):
            return str(value).lower()
        return None if value is None else str(value)

    row = convert_valid_row(
        {
            "properties": [(name, spelled(value)) for name, value in properties.items()],
            "property_types": [
                (name, kinds.get(type(value), "null")) for name, value in properties.items()
            ],
        }
    )
    assert properties_of(row.properties) == properties


def test_maps_of_slice_are_its_own() -> None:
    """Slices of Arrow arrays share their values."""
    complete = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", "b"]),
            pa.array([b"", b""]),
            pa.array([[("p", "1")], [("q", "2")]], TEXTS),
            pa.array([[("p", "integer")], None], TEXTS),
        ],
        ["destination", "body", "properties", "property_types"],
    )
    column_indexes = {name: index for index, name in enumerate(complete.schema.names)}
    batch = Converter(column_indexes, parse_options(URL)).convert(complete.slice(1))
    assert properties_of(received(batch)[0].properties) == {"q": "2"}


def test_compressed_jmq_body_is_decompressed() -> None:
    """The flag of compression is not written back."""
    packed = zlib.compress(b"long " * 50)
    compressed = {
        "JMS_SUN_COMPRESS": ("true", "boolean"),
        "JMS_SUN_UNCOMPRESSED_SIZE": ("250", "integer"),
        "JMS_SUN_COMPRESSED_SIZE": (str(len(packed)), "integer"),
        "mine": ("x", "text"),
    }
    properties = {
        "properties": [(name, text) for name, (text, _) in compressed.items()],
        "property_types": [(name, kind) for name, (_, kind) in compressed.items()],
    }
    row = convert_valid_row({"body": packed, **properties})
    assert row.body == b"long " * 50
    assert properties_of(row.properties) == {"mine": "x"}
    lying = b"x" * len(packed)
    row = convert_valid_row({"body": lying, **properties})
    assert row.body == lying
    assert len(properties_of(row.properties) or {}) == 4


def test_body_that_is_too_large_is_truncated() -> None:
    body = b"<" + bytes(MAX_SIZE)
    assert convert_valid_row({"body": body[:-1]}).body == body[:-1]
    rows = convert({"destination": ["q", "q"], "body": [b"x", body], "priority": [1, 2]})
    assert faults(rows) == {1: "the body has 73400321 bytes, 73400320 are the most"}
    assert body.startswith(rows[1][2])
    assert len(rows[1][2]) == 65_536


def test_row_with_fault_keeps_what_could_be_converted() -> None:
    rows = convert(
        {
            "destination": ["orders", None, r"\xff"],
            "destination_kind": ["topic", None, None],
            "body": [b"{", b"y", b"z"],
            "body_kind": ["json", None, "xml"],
            "message_id": ["m", None, None],
            "properties": [[("p", "1"), ("q", "2")], None, None],
            "property_types": [[("p", "date"), ("q", "integer")], None, None],
        }
    )
    assert faults(rows) == {
        0: "the property 'p' has an unknown type: 'date'",
        1: "the row has no destination",
        2: "there is no body_kind 'xml'",
    }
    first, second, third = received(rows)
    assert (first.topic, first.body, first.body_kind) == (True, b"{", BodyKind.JSON)
    assert first.message_id == "m"
    assert properties_of(first.properties) == {"p": "1", "q": 2}
    names = []
    for row in (first, second, third):
        with pytest.raises(UnusableRow) as raised:
            name_of(row.destination)
        names.append(raised.value.name)
    assert names == ["orders", "", "\udcff"]
