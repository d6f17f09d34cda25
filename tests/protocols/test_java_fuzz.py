from __future__ import annotations

import json
from struct import pack, unpack

from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.protocols import java
from sluicemq.protocols.java import Byte, Char, Float, Long, SerialError, Short

texts = st.text(st.characters(codec="utf-8"), max_size=12)
boxes = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.integers(-128, 127).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.floats(width=32, allow_nan=False).map(Float),
    st.floats(allow_nan=False),
    st.characters(codec="utf-8", max_codepoint=0xFFFF).map(Char),
    texts,
    st.binary(max_size=12),
)
maps = st.dictionaries(texts, boxes | st.dictionaries(texts, boxes, max_size=3), max_size=5)


def typed(value: object) -> object:
    if isinstance(value, dict):
        return {name: typed(inner) for name, inner in value.items()}
    return type(value), value


@given(maps)
def test_encoded_map_is_decoded_to_the_same_values(entries: dict[str, object]) -> None:
    assert typed(java.loads_map(java.dumps_map(entries))) == typed(entries)
    json.loads(java.json_of_map(java.dumps_map(entries)))


@given(st.lists(boxes, max_size=8))
def test_encoded_stream_is_decoded_to_the_same_values(values: list[object]) -> None:
    decoded = java.loads_stream(java.dumps_stream(values))
    assert [typed(value) for value in decoded] == [typed(value) for value in values]


@given(st.text(max_size=20))
def test_encoded_text_is_decoded_to_the_same_text(text: str) -> None:
    raw = java.encode_utf(text)
    assert 0 not in raw
    assert all(byte < 0xF0 for byte in raw)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert java.decode_utf(raw) == text
    java.decode_utf(raw).encode()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_in_json_is_the_same_float(value: float) -> None:
    [decoded] = json.loads(java.json_of_stream(java.dumps_stream([Float(value)])))
    assert unpack(">f", pack(">f", decoded))[0] == value


chunks = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([java.dumps(value)[4:] for value in (5, Long(5), "a", b"a", {}, True, None)]),
    st.sampled_from([b"\x71\0\x7e\0" + bytes([number]) for number in range(6)]),
    st.sampled_from([bytes([code]) for code in range(0x70, 0x7F)]),
    st.sampled_from([b"\x77\x08\0\0\0\x10\0\0\0\1", b"\x74\0\1k", b"\x7f\xff\xff\xff"]),
)
grown = st.lists(chunks, max_size=12).map(lambda parts: java.STREAM_HEADER + b"".join(parts))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    stream = bytearray(java.dumps_map(draw(maps)))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(4, len(stream) - 1))
        mutation = draw(st.integers(0, 2))
        if mutation == 0:
            stream[position] = draw(st.integers(0, 255))
        elif mutation == 1:
            del stream[position : position + draw(st.integers(1, 8))]
        else:
            stream[position:position] = draw(chunks)
        if len(stream) <= 5:
            break
    return bytes(stream)


@example(java.STREAM_HEADER + b"\x73" * 100)
@given(grown | damaged() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(stream: bytes) -> None:
    for load in (java.loads, java.loads_map, java.loads_stream):
        try:
            value = load(stream)
        except SerialError:
            continue
        if load is java.loads_map:
            assert isinstance(value, dict)
            encoded = java.dumps_map(value)
            assert java.json_of_map(encoded) == java.json_of_map(stream)
