from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols import java
from sluicemq.protocols.java import Byte, Float, Long, Short
from sluicemq.protocols.jmq.fields import (
    decode_properties,
    encode_properties,
    extend_block,
)
from sluicemq.protocols.jmq.packets import Status

texts = st.text(st.characters(codec="utf-8"), max_size=10)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(Float),
    texts,
    st.binary(max_size=10),
)
properties = st.dictionaries(texts.filter(bool), values, max_size=6)


def block(*entries: bytes, count: int | None = None, version: int = 1) -> bytes:
    return pack(">ii", version, len(entries) if count is None else count) + b"".join(entries)


def entry(name: bytes, tag: int, value: bytes) -> bytes:
    return pack(">H", len(name)) + name + pack(">h", tag) + value


def test_encodes_every_property_type() -> None:
    assert encode_properties(
        {
            "a": True,
            "b": Byte(-1),
            "c": Short(-2),
            "d": -3,
            "e": Long(-4),
            "f": Float(1.5),
            "g": 1.5,
            "h": "é",
            "i": 2**31,
            "j": Status.OK,
        }
    ) == block(
        entry(b"a", 1, b"\1"),
        entry(b"b", 2, b"\xff"),
        entry(b"c", 3, b"\xff\xfe"),
        entry(b"d", 4, b"\xff\xff\xff\xfd"),
        entry(b"e", 5, b"\xff\xff\xff\xff\xff\xff\xff\xfc"),
        entry(b"f", 6, b"\x3f\xc0\0\0"),
        entry(b"g", 7, b"\x3f\xf8\0\0\0\0\0\0"),
        entry(b"h", 8, b"\0\2\xc3\xa9"),
        entry(b"i", 5, b"\0\0\0\0\x80\0\0\0"),
        entry(b"j", 4, b"\0\0\0\xc8"),
    )


@given(properties)
def test_encoded_properties_are_decoded_to_the_same_values(sent: dict[str, object]) -> None:
    raw = encode_properties(sent)
    decoded = decode_properties(raw)
    assert decoded == sent
    assert list(decoded) == list(sent)
    # the journal's encoder accepts no subclasses
    assert {type(value) for value in decoded.values()} <= {bool, int, float, str, bytes}


def test_empty_properties_are_encoded_without_block() -> None:
    assert encode_properties({}) == b""
    assert decode_properties(b"") == {}
    assert decode_properties(block()) == {}


def test_empty_key_ends_block() -> None:
    first = entry(b"a", 1, b"\0")
    assert decode_properties(block(first, b"\0\0", b"anything")) == {"a": False}


def test_last_of_two_values_applies() -> None:
    assert decode_properties(block(entry(b"a", 2, b"\1"), entry(b"a", 2, b"\2"))) == {"a": 2}


def test_data_after_last_entry_is_ignored() -> None:
    assert decode_properties(block(entry(b"a", 1, b"\1")) + b"more") == {"a": True}


def test_modified_utf_8_and_proper_utf_8_are_read() -> None:
    for raw in ("\U0001f600".encode(), b"\xed\xa0\xbd\xed\xb8\x80"):
        value = pack(">H", len(raw)) + raw
        assert decode_properties(block(entry(raw, 8, value))) == {"\U0001f600": "\U0001f600"}
    assert b"\xed\xa0\xbd\xed\xb8\x80" in encode_properties({"a": "\U0001f600"})


@pytest.mark.parametrize(
    ("stream", "value"),
    [
        (java.dumps("text"), "text"),
        (java.dumps(Long(5)) + b"garbage", 5),
        (java.dumps(None), None),
        (java.dumps(b"\1\2"), b"\1\2"),
        (java.dumps({"a": 1}), java.dumps({"a": 1})),
        (b"no stream", b"no stream"),
        (b"", b""),
    ],
)
def test_decodes_other_property_types(stream: bytes, value: object) -> None:
    decoded = decode_properties(block(entry(b"a", 9, pack(">i", len(stream)) + stream)))
    assert decoded == {"a": value}
    assert type(decoded["a"]) is type(value)


_ONE = entry(b"a", 4, b"\0\0\0\1")


@pytest.mark.parametrize(
    "raw",
    [
        b"\0",
        b"\0\0\0\1\0\0\0",
        block(_ONE, version=0),
        block(_ONE, version=2),
        block(_ONE, count=-1),
        block(_ONE, count=2),
        block(_ONE, count=0x7FFFFFFF),
        *(block(_ONE)[:size] for size in range(9, 8 + len(_ONE))),
        block(b"\0\1"),
        block(b"\xff\xffa"),
        block(entry(b"a", 0, b"")),
        block(entry(b"a", 10, b"\0\0\0\0")),
        block(entry(b"a", -1, b"")),
        block(entry(b"a", 0x108, b"\0\0")),
        block(entry(b"a", 8, b"\0")),
        block(entry(b"a", 8, b"\0\2a")),
        block(entry(b"a", 8, b"\xff\xffa")),
        block(entry(b"a", 8, b"\0\1\xff")),
        block(entry(b"\xff", 8, b"\0\0")),
        block(entry(b"a", 9, b"\0\0\0")),
        block(entry(b"a", 9, b"\0\0\0\2a")),
        block(entry(b"a", 9, b"\xff\xff\xff\xff")),
        block(entry(b"a", 9, b"\x7f\xff\xff\xff")),
        block(entry(b"a", 1, b"")),
        block(entry(b"a", 7, b"\0\0\0\0\0\0\0")),
    ],
)
def test_inconsistent_block_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_properties(raw)


@pytest.mark.parametrize(
    "given",
    [
        {"": 1},
        {"k" * 65_536: 1},
        {"k": "v" * 65_536},
        {"k": "\0" * 32_768},
        {"k": 2**63},
        {"k": Byte(128)},
        {"k": Short(2**15)},
        {"k": Long(-(2**63) - 1)},
        {"k": Float(1e39)},
        {"k": None},
        {"k": []},
    ],
)
def test_values_that_block_cannot_hold_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        encode_properties(given)


def test_longest_strings_are_encoded() -> None:
    longest: dict[str, object] = {"k" * 65_535: "v" * 65_535}
    assert decode_properties(encode_properties(longest)) == longest


def test_extending_block_keeps_existing_properties() -> None:
    raw = block(_ONE, entry(b"b", 3, b"\0\7"), b"\0\0 the end", count=9)
    longer = extend_block(raw, {"b": "new", "c": Long(1)})
    assert longer == block(
        _ONE,
        entry(b"b", 3, b"\0\7"),
        entry(b"b", 8, b"\0\3new"),
        entry(b"c", 5, b"\0\0\0\0\0\0\0\1"),
    )
    assert decode_properties(longer) == {"a": 1, "b": "new", "c": 1}
    assert extend_block(b"", {"a": 1}) == block(_ONE)


@given(properties, properties)
def test_extending_is_as_writing_all_at_once(
    first: dict[str, object], second: dict[str, object]
) -> None:
    longer = extend_block(encode_properties(first), second)
    assert decode_properties(longer) == {**first, **second}
