from __future__ import annotations

import json
import math
import re
import tracemalloc
import zlib
from struct import pack

import pytest

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import BodyKind
from sluicemq.protocols import java
from sluicemq.protocols.java import Byte, Char, Float, Long, SerialError, Short

HEADER = b"\xac\xed\x00\x05"
INTEGER = bytes.fromhex(
    "737200116a6176612e6c616e672e496e746567657212e2a0a4f781873802000149000576616c7565"
    "787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870"
)
"""An object of the class Integer, without its value."""
MAP = bytes.fromhex(
    "737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f72"
    "4900097468726573686f6c6478703f4000000000000c"
)
"""An object of the class HashMap, up to its block data."""

WRITTEN_BY_JAVA = bytes.fromhex(
    "aced000574000473616d6571007e0000737200116a6176612e6c616e672e496e746567657212e2a0a4f7818738"
    "02000149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b020000787000"
    "0000057371007e00010000000679737200116a6176612e6c616e672e496e746567657212e2a0a4f78187380200"
    "0149000576616c7565787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870000000"
    "077372000e6a6176612e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c75657871007e000100"
    "00000000000008757200025b42acf317f8060854e0020000787000000002010271007e000670737200136a6176"
    "612e6c616e672e436861726163746572348b47d96b1a267802000143000576616c756578700063737200116a61"
    "76612e6c616e672e426f6f6c65616ecd207280d59cfaee0200015a000576616c75657870017372000f6a617661"
    "2e6c616e672e466c6f6174daedc9a2db3cf0ec02000146000576616c75657871007e00013dcccccd7372000f6a"
    "6176612e6c616e672e53686f7274684d37133460da5202000153000576616c75657871007e0001fffe7372000e"
    "6a6176612e6c616e672e427974659c4e6084ee50f51c02000142000576616c75657871007e0001fd737200106a"
    "6176612e6c616e672e446f75626c6580b3c24a296bfb0402000144000576616c75657871007e00017e37e43c88"
    "00759c74000961c080eda0bdedb880"
)
"""By ObjectOutputStream of Java 17, with a reset before the 7."""
MAP_WRITTEN_BY_JAVA = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f61644661"
    "63746f724900097468726573686f6c6478703f4000000000000c770800000010000000037400036f6e65737200"
    "136a6176612e7574696c2e486173687461626c6513bb0f25214ae4b803000246000a6c6f6164466163746f7249"
    "00097468726573686f6c6478703f4000000000000877080000000b000000017400016e737200116a6176612e6c"
    "616e672e496e746567657212e2a0a4f781873802000149000576616c7565787200106a6176612e6c616e672e4e"
    "756d62657286ac951d0b94e08b0200007870000000017874000374776f71007e000474000574687265657078"
)


def typed(values: list[java.Value]) -> list[tuple[type, java.Value]]:
    return [(type(value), value) for value in values]


# --- reading -------------------------------------------------------------------------------------


def test_reads_values_written_by_java() -> None:
    assert typed(java.loads_stream(WRITTEN_BY_JAVA)) == typed(
        [
            "same",
            "same",
            5,
            6,
            7,
            Long(8),
            b"\1\2",
            b"\1\2",
            None,
            Char("c"),
            True,
            Float(0.10000000149011612),
            Short(-2),
            Byte(-3),
            1e300,
            "a\0\U0001f600",
        ]
    )


def test_reads_map_written_by_java() -> None:
    value = java.loads_map(MAP_WRITTEN_BY_JAVA)
    assert value == {"one": {"n": 1}, "two": {"n": 1}, "three": None}


def test_reads_long_strings_and_long_block_data() -> None:
    text = HEADER + b"\x7c" + pack(">Q", 70_000) + b"a" * 70_000
    assert java.loads(text) == "a" * 70_000
    entries = HEADER + MAP + b"\x7a\0\0\0\x08" + pack(">ii", 16, 1) + b"\x74\0\1k\x70\x78"
    assert java.loads_map(entries) == {"k": None}


def test_data_after_value_is_ignored() -> None:
    assert java.loads(HEADER + b"\x74\0\2hi\xff\xff") == "hi"


def test_resets_precede_value_and_clear_references() -> None:
    assert java.loads(HEADER + b"\x79\x79\x74\0\1a") == "a"
    assert java.loads_stream(HEADER + b"\x74\0\1a\x79") == ["a"]
    with pytest.raises(SerialError, match="does not exist"):
        java.loads_stream(HEADER + b"\x74\0\1a\x79\x71\0\x7e\0\0")


def test_string_in_proper_utf_8_is_read() -> None:
    raw = "a\U0001f600".encode()
    assert java.loads(HEADER + b"\x74\0\5" + raw) == "a\U0001f600"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xed\xa0\xbd", "\ufffd"),
        (b"\xed\xb8\x80\xed\xa0\xbd", "\ufffd\ufffd"),
        (b"\xed\xa0\xbd\xed\xa0\xbd\xed\xb8\x80", "\ufffd\U0001f600"),
        (b"\xed\xa0\xbda", "\ufffda"),
        (b"\xed\x9f\xbf\xee\x80\x80\xed\xa0\xbd", "\ud7ff\ue000\ufffd"),
        (b"a\xc0\x80b", "a\0b"),
        (b"", ""),
    ],
)
def test_modified_utf_8(raw: bytes, text: str) -> None:
    assert java.decode_utf(raw) == text


@pytest.mark.parametrize(
    "raw", [b"\xff", b"\xc0\x81", b"\xe2\x82", b"\x80", b"\xf8\x88\x80\x80", b"\xe2\xed\xa0\x80"]
)
def test_malformed_utf_8_is_refused(raw: bytes) -> None:
    with pytest.raises(SerialError, match="not UTF-8"):
        java.decode_utf(raw)


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\xac\xed\x00",
        b"\xac\xed\x00\x04\x70",
        HEADER,
        HEADER + b"\x71",
        HEADER + b"\x71\0\x7e\0\0",
        HEADER + b"\x71\0\0\0\0",
        HEADER + b"\x74\0\2h",
        HEADER + b"\x7c\xff\xff\xff\xff\xff\xff\xff\xff",
        HEADER + b"\x77\1a",
        HEADER + b"\x78",
        HEADER + b"\x7b",
        HEADER + b"\x7e",
        HEADER + INTEGER,
        HEADER + INTEGER + b"\0\0\0",
        HEADER + b"\x73\x70",
        HEADER + b"\x76" + INTEGER[1:],
        HEADER + INTEGER.replace(b"\x12\xe2", b"\x12\xe3") + bytes(4),
        HEADER + INTEGER.replace(b"\2\0\1I", b"\3\0\1I") + bytes(4),
        HEADER + INTEGER.replace(b"I\0\5value", b"J\0\5value") + bytes(8),
        HEADER + INTEGER.replace(b"java.lang.Integer", b"java.lang.Runtime") + bytes(4),
        HEADER + INTEGER[:-1] + b"\x71\0\x7e\0\0" + bytes(4),
        HEADER + b"\x73" + INTEGER[INTEGER.index(b"\x78\x72") + 1 :] + bytes(4),
        HEADER + b"\x75\x72\0\2[Jacf317f8060854e0",
        HEADER + MAP,
        HEADER + MAP + b"\x77\4\0\0\0\0\x78",
        HEADER + MAP + b"\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, -1) + b"\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 0x7FFFFFFF) + b"\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 1) + b"\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 0) + b"\x70\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 1) + b"\x70\x70\x78",
        HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 1) + b"\x74\0\1k\x79\x70\x78",
    ],
)
def test_malformed_values_are_refused(stream: bytes) -> None:
    with pytest.raises(SerialError):
        java.loads(stream)


def test_array_size_is_limited_by_its_bytes() -> None:
    stream = java.dumps(b"ab")[:-6]
    for size in (-1, 3, 0x7FFFFFFF):
        with pytest.raises(SerialError):
            java.loads(stream + pack(">i", size) + b"ab")
    assert java.loads(stream + pack(">i", 1) + b"ab") == b"a"


def test_map_that_contains_itself_is_refused() -> None:
    stream = HEADER + MAP + b"\x77\x08" + pack(">ii", 16, 1) + b"\x74\0\1k\x71\0\x7e\0\1\x78"
    with pytest.raises(SerialError, match="does not exist"):
        java.loads(stream)


def test_chain_of_superclasses_is_validated() -> None:
    chained = INTEGER[1 : INTEGER.index(b"\x78\x72") + 1] * 100_000
    with pytest.raises(SerialError):
        java.loads(HEADER + b"\x73" + chained)


def test_reference_of_another_type_is_refused() -> None:
    value_as_class = HEADER + b"\x74\0\1a" + b"\x73\x71\0\x7e\0\0" + bytes(4)
    class_as_value = HEADER + INTEGER + bytes(4) + b"\x71\0\x7e\0\0"
    for stream in (value_as_class, class_as_value):
        with pytest.raises(SerialError):
            java.loads_stream(stream)


def test_maps_are_nested_two_levels_at_most() -> None:
    inner: dict[str, object] = {"b": 1}
    assert java.loads(java.dumps({"a": inner})) == {"a": inner}
    level_one = java.dumps({"b": None})[len(HEADER) :]
    assert level_one.endswith(b"\x70\x78")
    level_two = level_one[:-2] + level_one + b"\x78"
    level_three = HEADER + level_one[:-2] + level_two + b"\x78"
    assert java.loads(HEADER + level_two) == {"b": {"b": None}}
    with pytest.raises(SerialError, match="map"):
        java.loads(level_three)
    with pytest.raises(SerialError, match="map"):
        java.loads_stream(HEADER + level_one)


def test_reference_to_map_counts_its_depth() -> None:
    head = MAP + b"\x77\x08"
    reference = MAP[:1] + b"\x71\0\x7e\0\0" + MAP[-8:] + b"\x77\x08"
    # {a: {}, b: {c: the {} of a}}
    stream = (
        HEADER
        + head
        + pack(">ii", 16, 2)
        + b"\x74\0\1a"
        + reference
        + pack(">ii", 16, 0)
        + b"\x78\x74\0\1b"
        + reference
        + pack(">ii", 16, 1)
        + b"\x74\0\1c\x71\0\x7e\0\3\x78\x78"
    )
    with pytest.raises(SerialError, match="map"):
        java.loads(stream)


def limit(monkeypatch: pytest.MonkeyPatch, entries: int, size: int) -> None:
    monkeypatch.setattr(java, "MAX_ENTRIES", entries)
    monkeypatch.setattr(java, "MAX_SIZE", size)


def test_limits_of_entries_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = java.dumps_stream(["ab", 1, 2])
    limit(monkeypatch, entries=3, size=200)
    assert java.loads_stream(stream) == ["ab", 1, 2]
    for entries, size in ((2, 200), (3, 1)):
        limit(monkeypatch, entries, size)
        with pytest.raises(SerialError, match="too"):
            java.loads_stream(stream)
        assert java.loads_stream(stream, limited=False) == ["ab", 1, 2]


def test_entries_limit_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "MAX_ENTRIES", 8)
    # each value describes its class and the parent of that again
    reader = java._ValueReader(HEADER + (INTEGER + bytes(4)) * 9)
    reader.header()
    with pytest.raises(SerialError, match="too many"):
        assert [reader.value(0) for _ in range(9)]
    assert len(reader.handles) == 8 * 3


def test_time_of_unlimited_reading_is_proportional_to_stream() -> None:
    inner = {str(number): None for number in range(100)}
    stream = java.dumps({"a": inner} | {f"b{number}": None for number in range(10, 60)})
    references = re.sub(rb"(b\d\d)\x70", lambda match: match[1] + b"\x71\0\x7e\0\3", stream)
    assert java.loads_map(references)["b59"] == inner
    with pytest.raises(SerialError, match="too many"):
        java.loads_map(references, limited=False)


def test_references_count_as_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = b"\x71\0\x7e\0\0"
    text = HEADER + b"\x74\0\x64" + b"a" * 100
    monkeypatch.setattr(java, "MAX_SIZE", 1000)
    assert len(java.loads_stream(text + reference * 9)) == 10
    with pytest.raises(SerialError, match="too large"):
        java.loads_stream(text + reference * 10)
    monkeypatch.undo()
    inner = {str(number): None for number in range(100)}
    stream = java.dumps({"a": inner, "b": None})
    assert stream.endswith(b"\x70\x78")
    twice = stream[:-2] + b"\x71\0\x7e\0\3\x78"
    assert java.loads_map(twice) == {"a": inner, "b": inner}
    monkeypatch.setattr(java, "MAX_ENTRIES", 310)
    assert len(java.loads_map(stream)) == 2
    monkeypatch.setattr(java, "MAX_ENTRIES", 300)
    with pytest.raises(SerialError, match="too many"):
        java.loads_map(twice)


def test_references_do_not_multiply_size_of_stream() -> None:
    reference = b"\x71\0\x7e\0\0"
    text = HEADER + b"\x74" + pack(">H", 60_000) + b"a" * 60_000
    assert len(java.loads_stream(text + reference * 60)) == 61
    with pytest.raises(SerialError, match="too large"):
        java.loads_stream(text + reference * 80)
    assert len(java.loads_stream(text + reference * 80, limited=False)) == 81


def test_resets_are_counted() -> None:
    with pytest.raises(SerialError, match="too many"):
        java.loads_stream(HEADER + b"\x79" * 200_000)


def test_lone_surrogate_as_character() -> None:
    stream = bytearray(java.dumps(Char("x")))
    stream[-2:] = b"\xd8\0"
    assert java.loads(bytes(stream)) == "\ufffd"


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stream"),
    [
        (5, HEADER + INTEGER + b"\0\0\0\5"),
        ("hi", HEADER + b"\x74\0\2hi"),
        (
            b"\1\2",
            HEADER + bytes.fromhex("757200025b42acf317f8060854e00200007870000000020102"),
        ),
        (None, HEADER + b"\x70"),
        (
            {},
            HEADER + MAP[:-4] + bytes(4) + bytes.fromhex("7708000000100000000078"),
        ),
    ],
)
def test_serializes_values(value: java.Value, stream: bytes) -> None:
    assert java.dumps(value) == stream


def test_class_is_described_once() -> None:
    assert java.dumps_stream([5, 6]) == (
        HEADER + INTEGER + b"\0\0\0\5" + b"\x73\x71\0\x7e\0\0" + b"\0\0\0\6"
    )


def test_integers_have_smallest_type() -> None:
    values = [2**31 - 1, 2**31, -(2**31), -(2**31) - 1]
    decoded = java.loads_stream(java.dumps_stream(values))
    assert typed(decoded) == typed([2**31 - 1, Long(2**31), -(2**31), Long(-(2**31) - 1)])


def test_enumeration_is_written_as_int() -> None:
    assert java.loads(java.dumps(BodyKind.MAP)) == 4


@pytest.mark.parametrize(
    "value",
    [
        Byte(128),
        Short(-32_769),
        2**63,
        pytest.param(1 << 20_000, id="of more digits than are shown"),
        Long(2**63),
        Float(1e39),
        Char("ab"),
        Char(""),
        Char("\U0001f600"),
        [],
        object(),
        {"a": {"b": {}}},
        {"a": []},
        {1: 2},
        {Char("a"): 2},
    ],
)
def test_values_that_cannot_be_written_are_refused(value: object) -> None:
    with pytest.raises(SerialError):
        java.dumps(value)


def test_writes_hashtable() -> None:
    table = java.dumps_map({"a": Long(1), "b": {"c": "d"}}, hashtable=True)
    assert b"Hashtable" in table
    assert b"HashMap" not in table
    assert java.loads_map(table) == {"a": 1, "b": {"c": "d"}}
    with pytest.raises(SerialError, match="null"):
        java.dumps_map({"a": None}, hashtable=True)


def test_map_has_as_many_buckets_as_in_java() -> None:
    for size, buckets in ((0, 16), (12, 16), (13, 32), (24, 32), (25, 64)):
        stream = java.dumps_map({str(number): None for number in range(size)})
        position = stream.index(b"\x77\x08") + 2
        assert int.from_bytes(stream[position : position + 4], "big") == buckets


def test_stream_contains_no_map() -> None:
    with pytest.raises(SerialError):
        java.dumps_stream([{}])
    with pytest.raises(SerialError):
        java.loads_map(java.dumps("text"))


# --- bodies for other protocols ------------------------------------------------------------------


def test_converts_map_to_json() -> None:
    body = java.dumps_map(
        {
            "long": Long(2**63 - 1),
            "char": Char("c"),
            "bytes": b"abc",
            "float": Float(0.1),
            "double": 0.1,
            "none": None,
            "yes": True,
            "nan": math.nan,
            "up": math.inf,
            "down": Float(-math.inf),
            "map": {"byte": Byte(-1)},
        }
    )
    assert json.loads(java.json_of_map(body)) == {
        "long": 2**63 - 1,
        "char": "c",
        "bytes": "YWJj",
        "float": 0.1,
        "double": 0.1,
        "none": None,
        "yes": True,
        "nan": "NaN",
        "up": "Infinity",
        "down": "-Infinity",
        "map": {"byte": -1},
    }


def test_converts_stream_to_json() -> None:
    assert (
        java.json_of_stream(java.dumps_stream([1, Short(2), "a", b"\xff"])) == b'[1,2,"a","/w=="]'
    )
    assert java.json_of_stream(b"") == b"[]"


def test_inflates_bodies() -> None:
    body = zlib.compress(b"a" * 1000)
    assert java.inflate(body, 1000, 1000) == b"a" * 1000
    assert java.inflate(body, None, 1000) == b"a" * 1000
    assert java.inflate(zlib.compress(b""), 0, 0) == b""
    with pytest.raises(FrameTooLarge):
        java.inflate(body, 1000, 999)
    for compressed, size in ((body, 999), (body[:-1], 1000), (b"x" + body, 1000), (b"", None)):
        with pytest.raises(ProtocolError):
            java.inflate(compressed, size, 10_000)


def test_body_above_limit_is_not_converted() -> None:
    body = zlib.compress(bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(FrameTooLarge):
            java.inflate(body, None, 1000)
        with pytest.raises(ProtocolError, match="more than 1000 bytes, its stated size"):
            java.inflate(body, 1000, 100_000_000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
