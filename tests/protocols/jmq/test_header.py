from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.jmq import fields
from sluicemq.protocols.jmq.fields import VariableHeader, decode_header, encode_header

NAMES = (
    "destination",
    "message_id",
    "correlation_id",
    "reply_to",
    "type",
    "destination_class",
    "reply_to_class",
)
NUMBERS = ("transaction_id", "producer_id", "delivery_time", "delivery_count")


def record(number: int, value: bytes) -> bytes:
    return pack(">hh", number, len(value)) + value


def header_fields(read: VariableHeader) -> dict[str, object]:
    return {name: getattr(read, name) for name in (*NAMES, *NUMBERS) if getattr(read, name)}


def test_decodes_header_of_java_client() -> None:
    raw = (
        record(9, pack(">q", 8950519415725204480))
        + record(10, pack(">q", 1795239283615))
        + record(1, b"dq")
        + record(6, b"com.sun.messaging.BasicQueue")
        + bytes(4)
    )
    assert header_fields(decode_header(raw)) == {
        "producer_id": 8950519415725204480,
        "delivery_time": 1795239283615,
        "destination": "dq",
        "destination_class": "com.sun.messaging.BasicQueue",
    }
    assert decode_header(raw).queue == Address(Kind.QUEUE, "dq")
    assert decode_header(raw).topic == Address(Kind.TOPIC, "dq")


def test_empty_header() -> None:
    for raw in (b"", b"\0\0", b"\0\0\0\0", b"\0", b"\0\0\xff\xff"):
        assert header_fields(decode_header(raw)) == {}
    assert encode_header() == b""


texts = st.text(st.characters(codec="utf-8"), max_size=10)
numbers = st.integers(-(2**63), 2**63 - 1)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, texts)),
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(NUMBERS[:3], numbers),
            "delivery_count": st.integers(-(2**31), 2**31 - 1),
        },
    ),
)
def test_encoded_header_is_decoded_to_the_same_fields(
    names: dict[str, str], given: dict[str, int]
) -> None:
    raw = encode_header(**names, **given)  # type: ignore[arg-type]
    assert len(raw) % 4 == 0
    header = decode_header(raw)
    for name in NAMES:
        assert getattr(header, name) == names.get(name)
    for name in NUMBERS:
        assert getattr(header, name) == given.get(name, 0)
    if not names and not any(given.values()) and "delivery_count" not in given:
        assert raw == b""
    else:
        assert raw.endswith(b"\0\0\0")


@given(st.lists(st.tuples(st.integers(0, 20), st.binary(max_size=9)), max_size=6), st.booleans())
def test_stored_header_begins_with_count_and_has_the_same_fields(
    records: list[tuple[int, bytes]], ended: bool
) -> None:
    raw = b"".join(record(number, value) for number, value in records) + bytes(4 * ended)
    try:
        header = decode_header(raw)
    except ProtocolError:
        return
    stored_header = header.stored
    assert stored_header.startswith(b"\0\x0b\0\4\0\0\0\0")
    assert len(stored_header) % 4 == 0
    reread = decode_header(stored_header)
    for name in NAMES:
        assert getattr(reread, name) == getattr(header, name)
    assert (reread.producer_id, reread.delivery_time) == (header.producer_id, header.delivery_time)
    assert (reread.transaction_id, reread.delivery_count) == (0, 0)
    assert reread.stored == stored_header


def test_unknown_records_are_preserved() -> None:
    raw = record(12, b"new") + record(-5, b"") + record(8, bytes(8)) + record(1, b"q")
    header = decode_header(raw)
    assert header.destination == "q"
    assert record(12, b"new") + record(-5, b"") + record(1, b"q") in header.stored


def test_data_after_end_is_ignored() -> None:
    for rest in (b"\0\0" + record(5, b"type"), b"\1"):  # a single byte has no type
        assert header_fields(decode_header(record(1, b"q") + rest)) == {"destination": "q"}


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\1",
        b"\0\1\0",
        b"\0\1\0\2q",
        b"\0\1\x7f\xffq",
        b"\0\1\xff\xffq",
        b"\0\1\x80\0",
        record(1, b"\xff"),
        record(7, b"\xc0"),
        record(8, bytes(7)),
        record(9, bytes(4)),
        record(10, b""),
        record(11, bytes(8)),
    ],
)
def test_inconsistent_header_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(raw)


def test_longest_string_is_encoded() -> None:
    longest = "q" * 32_767
    assert decode_header(encode_header(longest)).destination == longest
    with pytest.raises(ProtocolError):
        encode_header(longest + "q")
    with pytest.raises(ProtocolError):
        encode_header("é" * 16_384)


def test_large_header_is_not_cached() -> None:
    raw = encode_header("q" * 1000)
    assert decode_header(raw) is not decode_header(raw)
    small = encode_header("q")
    assert decode_header(small) is decode_header(small)


def test_names_with_lone_surrogates_are_encoded() -> None:
    assert b"\xff\xfe" in encode_header("a\udcff\udcfe")
    assert b"a?" in encode_header("a\ud800")
    assert "\U0001f600".encode() in encode_header("\U0001f600")


QUEUE = Address(Kind.QUEUE, "a")
TOPIC = Address(Kind.TOPIC, "a")


@pytest.mark.parametrize(
    ("name", "hint", "in_queue", "address"),
    [
        ("a", fields.QUEUE_CLASS, False, QUEUE),
        ("a", fields.TOPIC_CLASS, True, TOPIC),
        ("a", "com.sun.messaging.Topic", True, TOPIC),
        ("a", "com.sun.messaging.jmq.jmsclient.TemporaryQueueImpl", False, QUEUE),
        ("a", "com.sun.messaging.jmq.jmsclient.TemporaryTopicImpl", True, TOPIC),
        ("a", "com.Topic.example.MyQueue", False, QUEUE),
        ("a", None, True, QUEUE),
        ("a", None, False, TOPIC),
        ("a", "something", False, TOPIC),
        (None, fields.QUEUE_CLASS, True, None),
        ("", None, True, None),
    ],
)
def test_reply_destination(
    name: str | None, hint: str | None, in_queue: bool, address: Address | None
) -> None:
    header = decode_header(encode_header("q", reply_to=name, reply_to_class=hint))
    assert header.reply_address(in_queue) == address


def test_name_of_temporary_destination_has_its_kind() -> None:
    for prefix, kind in (
        (fields.TEMPORARY_QUEUE, Kind.QUEUE),
        (fields.TEMPORARY_TOPIC, Kind.TOPIC),
    ):
        header = decode_header(encode_header("q", reply_to=f"{prefix}1.2.3.4/5/6"))
        for in_queue in (True, False):
            assert header.reply_address(in_queue) == Address(kind, f"{prefix}1.2.3.4/5/6")
