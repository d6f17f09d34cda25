"""Rows of Arrow become messages, or faults that say why not."""

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
    """A batch of these columns; `types` are other ones than usual."""
    arrays = [pa.array(values, {**TYPES, **types}[name]) for name, values in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, list(columns))
    column_indexes = {name: index for index, name in enumerate(columns)}
    return Converter(column_indexes, parse_options({**URL, **(options or {})})).convert(batch)


def received(rows: list[Values]) -> list[Row]:
    """The rows as the broker reads them."""
    (data,) = frames(memoryview(frame(rows)))
    return decode(data)


def faults(rows: list[Values]) -> dict[int, str]:
    """The reasons of the rows that are no messages."""
    reasons = {}
    for number, row in enumerate(received(rows)):
        try:
            name_of(row.destination)
        except UnusableRow as fault:
            reasons[number] = str(fault)
    return reasons


def only(values: dict[str, Any], **types: pa.DataType) -> Row:
    """The one row of these values, which has no fault."""
    row = {"destination": "q", "body": b"x", **values}
    batch = convert({name: [value] for name, value in row.items()}, **types)
    assert not faults(batch)
    return received(batch)[0]


def fault(values: dict[str, Any], **types: pa.DataType) -> str:
    """Why the one row of these values is no message."""
    row = {"destination": "q", "body": b"x", **values}
    batch = convert({name: [value] for name, value in row.items()}, **types)
    assert list(faults(batch)) == [0]
    return faults(batch)[0]


def test_everything_that_a_row_can_say() -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
    row = only(
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


def test_nulls_are_what_a_message_usually_is() -> None:
    nulls = {name: None for name in TYPES if name not in ("destination", "body")}
    assert only(nulls) == only({})
    assert only({"body": None}).body_kind == BodyKind.NONE


def test_rows_are_as_short_as_their_columns() -> None:
    """What the broker fills in by itself need not travel."""
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


def test_the_option_destination_may_be_a_topic() -> None:
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


def test_names_that_are_not_utf8_as_the_source_spells_them() -> None:
    assert name_of(only({"destination": r"a\xff\x80b"}).destination) == "a\udcff\udc80b"
    assert name_of(only({"destination": r"a\x41\n"}).destination) == r"a\x41\n"


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
def test_bodies(column: pa.DataType, value: Any, kind: str | None, expected: BodyKind) -> None:
    row = only({"body": value, "body_kind": kind}, body=column)
    assert row.body_kind == expected
    assert row.body == (value.encode() if isinstance(value, str) else value)


def test_a_map_is_a_map_message() -> None:
    row = only({"body": [("name", "wert"), ("nothing", None)]}, body=TEXTS)
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
def test_faults(values: dict[str, Any], types: dict[str, pa.DataType], reason: str) -> None:
    assert reason in fault(values, **types)


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
def test_properties(kind: str, text: str | None, value: object) -> None:
    row = only({"properties": [("p", text)], "property_types": [("p", kind), ("other", "real")]})
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
def test_properties_that_are_not_what_they_say(kind: str, text: str) -> None:
    reason = fault({"properties": [("p", text)], "property_types": [("p", kind)]})
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
    """Names and values however hostile, spelled as the source spells them."""
    kinds = {bool: "boolean", int: "integer", float: "real", str: "text", bytes: "bytes"}

    def spelled(value: object) -> str | None:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, bool):
            return str(value).lower()
        return None if value is None else str(value)

    row = only(
        {
            "properties": [(name, spelled(value)) for name, value in properties.items()],
            "property_types": [
                (name, kinds.get(type(value), "null")) for name, value in properties.items()
            ],
        }
    )
    assert properties_of(row.properties) == properties


def test_maps_of_a_slice_are_its_own() -> None:
    """Arrow's slices share the values of the whole."""
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


def test_what_a_jmq_client_had_compressed_becomes_plain() -> None:
    """The mark in the frame, by which a client would know, is not written back."""
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
    row = only({"body": packed, **properties})
    assert row.body == b"long " * 50
    assert properties_of(row.properties) == {"mine": "x"}
    lying = b"x" * len(packed)
    row = only({"body": lying, **properties})
    assert row.body == lying
    assert len(properties_of(row.properties) or {}) == 4


def test_a_body_that_is_too_large_is_truncated() -> None:
    body = b"<" + bytes(MAX_SIZE)
    assert only({"body": body[:-1]}).body == body[:-1]
    rows = convert({"destination": ["q", "q"], "body": [b"x", body], "priority": [1, 2]})
    assert faults(rows) == {1: "the body has 73400321 bytes, 73400320 are the most"}
    assert body.startswith(rows[1][2])
    assert len(rows[1][2]) == 65_536


def test_a_row_with_a_fault_keeps_what_could_be_converted() -> None:
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
