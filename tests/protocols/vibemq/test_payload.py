from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.vibemq.mapping import MAX_DEPTH, check_payload, check_payload_in_chunks


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


ACCEPTED = [
    b"null",
    b" \t\r\n[ ] \t\r\n",
    b"-0",
    b"0.0",
    b"1E+5",
    b"1e400",
    b"1e-999999",
    b"9" * 5000,
    b"-" + b"9" * 5000,
    b"1." + b"0" * 5000,
    b'{"a":1,"a":2}',
    b'"\\/\\u0041\\b"',
    b'"\x7f"',
    '"grüße 日本 😀"'.encode(),
    b'"\\ud83d\\ude00"',
    b'"\\ud800"',
    b'["\\uDFFF", "\\udc00\\uD800", "\\\\ud800"]',
    b'"\\\\\\ud800"',
    nested(MAX_DEPTH, b"[", b"]"),
    nested(MAX_DEPTH, b'{"a":', b"}"),
    nested(MAX_DEPTH // 2, b'{"]":[', b"]}"),
    b"[" + b"[]," * 10_000 + b"{}]",
    b"[[]," + nested(MAX_DEPTH - 1, b"[", b"]") + b"]",
    b'"%b"' % (b"[{" * 1000),
    b'["\\"[", "%b\\\\", "\\\\\\"%b"]' % (b"[" * 100, b"{" * 100),
]

REFUSED = [
    b"",
    b" ",
    b"NaN",
    b"[Infinity]",
    b"-Infinity",
    b"01",
    b"[-01]",
    b"1.",
    b".5",
    b"+1",
    b"-",
    b"1e",
    b"1e+",
    b"0x10",
    b"[1,]",
    b'{"a":1,}',
    b"[,]",
    b"[1 2]",
    b"1 2",
    b"1,",
    b"[]]",
    b"[",
    b"]",
    b"//c\n1",
    b"/*c*/1",
    b"1//c",
    b"\xef\xbb\xbf1",
    b"1\x00",
    b"\x0b1",
    b"\xc2\xa01",
    b'"\t"',
    b'"\x00"',
    b'"\x1f"',
    b'["a\x01"]',
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\xe2\x82"',
    b'{"\xff":1}',
    b'"\\x41"',
    b'"\\u12"',
    b'"\\u12g4"',
    b'"\\ud8"',
    b'"\\ud80g"',
    b'"\\ud800',
    b'["\\ud800",]',
    b'["\\ud800", NaN]',
    b'"\\ud800\xff"',
    b'"\\"',
    b"'a'",
    b"{a:1}",
    b"{1:1}",
    b'{"a" 1}',
    b'{"a":}',
    b"tru",
    b"True",
    b"nullx",
    nested(MAX_DEPTH + 1, b"[", b"]"),
    nested(MAX_DEPTH + 1, b'{"a":', b"}"),
    nested(MAX_DEPTH // 2, b'{"]":[', b"]}").replace(b"1", b"[1]"),
    nested(MAX_DEPTH + 1, b'{"\\\\":', b"}"),
    b"[[]," + nested(MAX_DEPTH, b"[", b"]") + b"]",
    nested(100_000, b"[", b"]"),
    b"[" * 200_000,
    b'{"a":' * 200_000,
]


@pytest.mark.parametrize("payload", ACCEPTED, ids=lambda payload: repr(payload[:30]))
def test_valid_json_is_accepted(payload: bytes) -> None:
    check_payload(payload)


@pytest.mark.parametrize("payload", REFUSED, ids=lambda payload: repr(payload[:30]))
def test_invalid_json_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        check_payload(payload)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_validation_does_not_depend_on_fragmentation(size: int) -> None:
    for payload in ACCEPTED:
        check_payload_in_chunks(payload, size)
    for payload in REFUSED:
        with pytest.raises(ProtocolError):
            check_payload_in_chunks(payload, size)


@pytest.mark.parametrize("payload", [b"[,1,2]", b"{,}", b'{"a":1,,"b":2}', b"[1}, 2]", b"[1,2},3]"])
def test_invalid_json_is_refused_in_fragments(payload: bytes) -> None:
    for size in range(1, 8):
        with pytest.raises(ProtocolError):
            check_payload_in_chunks(payload, size)


def test_error_names_reason() -> None:
    for payload, reason in ((b"[1,]", "not JSON"), (b'"\xff"', "not UTF-8"), (b"[" * 65, "deeper")):
        with pytest.raises(ProtocolError, match=reason):
            check_payload(payload)


def acceptable(payload: bytes) -> bool:
    """Validate with Python's parser, and reject its extensions of the standard."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        text = payload.decode()
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return depth(value) <= MAX_DEPTH


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_all_json_is_accepted(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    check_payload(text.encode("utf-8", "surrogatepass" if ascii_only else "strict"))


tokens = st.sampled_from(
    [
        *rb'[ ] { } " , : \ \u d800 0 1 - . e null true NaN / a "" []'.split(),
        *(b" ", b"\n", b"\xc3\xa4", b"\xff", b"\x00"),
    ]
)


@given(
    st.lists(tokens, max_size=30).map(b"".join)
    | st.lists(tokens, max_size=12).map(lambda parts: b"[" * 60 + b"".join(parts) + b"]" * 60)
    | st.binary(max_size=20)
)
@example(b"\xef\xbb\xbf[]")
def test_the_verdict_is_the_standards(payload: bytes) -> None:
    if b"\x00" in payload[:2] or payload[:2] == b"":
        expected = False  # json.loads would take it for UTF-16
    else:
        expected = acceptable(payload)
    try:
        check_payload(payload)
    except ProtocolError:
        assert not expected
    else:
        assert expected
    for size in (1, 5):
        try:
            check_payload_in_chunks(payload, size)
        except ProtocolError:
            assert not expected
        else:
            assert expected
