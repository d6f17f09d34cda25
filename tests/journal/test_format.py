"""The record format, byte by byte and by property."""

from __future__ import annotations

import struct
import zlib
from inspect import isdatadescriptor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.journal.format import (
    DEPTH,
    UNIT_END,
    Record,
    RecordType,
    decode_address,
    decode_deliveries,
    decode_depth,
    decode_message,
    decode_record,
    encode_address,
    encode_completed,
    encode_meta,
    encode_record,
    encode_redelivered,
    record_size,
)
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import JournalDamaged
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from tests.journal.support import ORDERS

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
properties = st.dictionaries(
    text,
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text, st.binary()
    ),
    max_size=5,
)


def test_bytes_of_message_record() -> None:
    parts = encode_record(
        RecordType.MESSAGE,
        0x0102030405060708,
        1_700_000_000_000_000,
        b"hello",
        expiration=1_700_000_060_000,
        destination=7,
        priority=4,
        origin=Origin.PHPMQ,
        kind=BodyKind.TEXT,
        durability=Durability.SYNC,
        references=1,
    )
    expected = bytes.fromhex(
        "3d000000"  # size: 56 + 5
        "00000000"  # CRC, filled in below
        "0807060504030201"  # sequence
        "00401e18240a0600"  # time, µs
        "6052e6cf8b010000"  # expiration, ms
        "0000000000000000"  # reference
        "07000000"  # destination
        "01"  # MESSAGE
        "01"  # UNIT_END
        "04"  # priority
        "01"  # PHPMQ
        "01"  # TEXT
        "02"  # SYNC
        "0100"  # references
        "38000000"  # the body starts at 56
        "68656c6c6f"  # hello
        "000000"  # padding to 64
    )
    expected = expected[:4] + struct.pack("<I", zlib.crc32(expected[8:61])) + expected[8:]
    assert b"".join(parts) == expected


@given(
    st.sampled_from(list(RecordType)), u64, i64, st.binary(max_size=50), st.binary(max_size=50), u64
)
def test_records_come_back_as_they_were(
    type: RecordType, sequence: int, time: int, meta: bytes, body: bytes, reference: int
) -> None:
    encoded = encode_record(type, sequence, time, body, meta=meta, reference=reference)
    data = b"".join(encoded)
    assert len(data) % 8 == 0
    view = memoryview(b"12345678" + data)
    size = record_size(view, 8)
    assert size == len(encoded[0]) + len(encoded[1])
    expected = Record(sequence, type, time, 0, reference, 0, UNIT_END, 0, 0, 0, 0, 0, meta, body)
    assert decode_record(view, 8, size) == expected


@given(st.binary(max_size=30), st.data())
def test_a_record_with_any_bit_flipped_is_no_record(body: bytes, data: st.DataObject) -> None:
    record = bytearray(b"".join(encode_record(RecordType.MESSAGE, 1, 2, body)))
    bit = data.draw(st.integers(0, len(record) * 8 - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert record_size(memoryview(record), 0) == 0


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_make_the_reader_fail(data: bytes, offset: int) -> None:
    assert record_size(memoryview(data), offset) >= 0


@given(
    text, text, text, st.none() | properties, st.binary(), st.lists(st.integers(1, 2**32 - 1)), i64,
    st.none() | st.tuples(st.sampled_from(Kind), text), st.sampled_from([4, 5, 6]),
)  # fmt: skip
def test_messages_come_back_with_every_field(
    message_id: str,
    correlation_id: str,
    type: str,
    properties: dict[str, object] | None,
    native: bytes,
    routes: list[int],
    deliver_at: int,
    reply_to: tuple[Kind, str] | None,
    arrival: int,
) -> None:
    message = Message(
        ORDERS,
        b"body",
        BodyKind.MAP,
        Origin.JMQ,
        Durability.LAZY,
        5,
        6,
        9,
        deliver_at,
        message_id,
        correlation_id,
        Address(*reply_to) if reply_to else None,
        type,
        properties,
        native,
    )
    message.routes = tuple(routes)
    message.arrival = arrival
    record = Record(
        77, 1, arrival * 1000, 6, 0, 3, 1, 9, message.origin, message.kind, message.durability, 1,
        encode_meta(message), b"body",
    )  # fmt: skip
    decoded = decode_message(record, ORDERS)
    # read off the class and not off `__slots__`, which the compiled build does not have
    fields = [name for name, kind in vars(Message).items() if isdatadescriptor(kind)]
    assert len(fields) == 21
    for name in fields:
        if name not in ("sequence", "properties"):
            assert getattr(decoded, name) == getattr(message, name), name
    assert decoded.sequence == 77
    assert (decoded.properties or None) == (message.properties or None)


def test_message_without_metadata_has_empty_meta_field() -> None:
    assert encode_meta(Message(ORDERS, b"x")) == b""


@given(st.binary(min_size=1, max_size=60))
def test_meta_data_that_is_none_is_damage(meta: bytes) -> None:
    record = Record(1, 1, 0, 0, 0, 1, 1, 4, 0, 3, 2, 1, meta, b"")
    try:
        message = decode_message(record, ORDERS)
    except JournalDamaged:
        return
    assert message.body == b""


@pytest.mark.parametrize("reply_to", [{"no": "array"}, [9, "of no kind"], [], 7])
def test_invalid_reply_address_is_damage(reply_to: object) -> None:
    meta = msgspec.msgpack.encode(["", "", reply_to, "", None, b"", [], 0])
    with pytest.raises(JournalDamaged, match="meta data"):
        decode_message(Record(1, 1, 0, 0, 0, 1, 1, 4, 0, 3, 2, 1, meta, b""), ORDERS)


@pytest.mark.parametrize(
    ("field", "value"), [("kind", 99), ("origin", 99), ("durability", 9), ("priority", 10)]
)
def test_invalid_header_is_damage(field: str, value: int) -> None:
    record = Record(1, 1, 0, 0, 0, 1, 1, 4, 0, 3, 2, 1, b"", b"")
    with pytest.raises(JournalDamaged, match="header"):
        decode_message(record._replace(**{field: value}), ORDERS)


@given(st.integers(0, 2**32 - 1), st.lists(u64, max_size=20))
def test_settlements_come_back(subscription: int, sequences: list[int]) -> None:
    body = encode_completed(subscription, sequences)
    assert decode_deliveries(body) == (subscription, sequences, [])


@given(st.binary(max_size=40))
def test_settlements_that_are_none_are_damage(body: bytes) -> None:
    try:
        subscription, sequences, attempts = decode_deliveries(body)
    except JournalDamaged:
        return
    assert encode_redelivered(subscription, sequences, attempts) == body


@given(st.sampled_from(Kind), st.binary(max_size=20))
def test_destination_names_may_be_any_bytes(kind: Kind, name: bytes) -> None:
    address = Address(kind, name.decode("utf-8", "surrogateescape"))
    assert decode_address(encode_address(address)) == address


@pytest.mark.parametrize("body", [b"", b"\x00x", b"\x09x"])
def test_invalid_destination_kind_is_damage(body: bytes) -> None:
    with pytest.raises(JournalDamaged):
        decode_address(body)


def test_bytes_of_delivery_and_depth_records() -> None:
    """Readers in other processes map these bytes directly."""
    single = encode_completed(7, [0x0102030405060708])
    assert single.hex() == "07000000" + "01000000" + "0807060504030201"
    zeros = 14 * "0"
    pair = "07000000" + "02000000" + "01" + zeros + "02" + zeros
    assert encode_completed(7, [1, 2]).hex() == pair
    assert encode_completed(7, []).hex() == "07000000" + "00000000"
    redelivered = encode_redelivered(7, [1, 2], [3, 4])
    assert redelivered == encode_completed(7, [1, 2]) + bytes.fromhex("03000000" + "04000000")
    assert DEPTH.pack(1, 2, 3, 0).hex() == "01" + zeros + "02" + zeros + "03" + zeros


@given(st.integers(0, 2**32 - 1), st.lists(st.tuples(u64, st.integers(0, 2**32 - 1)), max_size=9))
def test_redeliveries_come_back_as_they_were(
    subscription: int, counted: list[tuple[int, int]]
) -> None:
    sequences, attempts = [s for s, _ in counted], [a for _, a in counted]
    body = encode_redelivered(subscription, sequences, attempts)
    assert decode_deliveries(body) == (subscription, sequences, attempts)
    record = Record(1, RecordType.REDELIVERED, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, b"", body)
    assert record.lists_messages
    assert (record.subscription, record.sequences) == (subscription, sequences)


@pytest.mark.parametrize("body", [b"", b"1234567", encode_redelivered(1, [2], [3]) + b"\0"])
def test_redeliveries_of_inconsistent_length_are_damage(body: bytes) -> None:
    with pytest.raises(JournalDamaged, match="announces"):
        decode_deliveries(body)


def test_depth_record_of_another_length_is_damage() -> None:
    assert decode_depth(DEPTH.pack(1, 2, 3, 0)) == (1, 2, 3)
    with pytest.raises(JournalDamaged, match="not 24"):
        decode_depth(DEPTH.pack(1, 2, 3, 0)[:-1])
