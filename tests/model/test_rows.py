"""Encoding of rows: the broker decodes exactly the rows that a writer encoded."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import Property
from sluicemq.model.rows import (
    DIGEST_MASK,
    FRAME_ROWS,
    MAX_NAME_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TIME,
    Row,
    RowValues,
    announced_rows,
    decode,
    digest,
    encode,
    frame,
    frames,
    name_of,
    properties_of,
    row,
)

TEXT = st.text(st.characters(codec="utf-8"))
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
TIMES = st.integers(0, MAX_TIME)
SCALARS: st.SearchStrategy[Property] = st.one_of(
    st.booleans(), INTEGERS, st.floats(allow_nan=False), TEXT, st.binary(), st.none()
)
ROWS = st.builds(
    row,
    st.one_of(TEXT, st.binary(min_size=1).filter(lambda raw: not is_text(raw))),
    st.binary(),
    topic=st.booleans(),
    body_kind=st.integers(0, 6),
    priority=st.integers(0, 9),
    ttl=TIMES,
    expiration=TIMES,
    deliver_at=TIMES,
    message_id=TEXT,
    correlation_id=TEXT,
    reply_to=st.none() | TEXT,
    reply_topic=st.booleans(),
    type=TEXT,
    durability=st.integers(0, 2),
    properties=st.none() | st.dictionaries(TEXT, SCALARS),
    timestamp=TIMES,
)


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def values(read: Row) -> RowValues:
    """Return the fields as the writer set them."""
    fields = [getattr(read, name) for name in Row.__struct_fields__]
    name = name_of(read.destination)
    fields[0] = name.encode("utf-8", "surrogateescape")
    fields[Row.__struct_fields__.index("properties")] = properties_of(read.properties)
    return tuple(fields)


def raw_name(fields: RowValues) -> RowValues:
    name = fields[0]
    return (name if isinstance(name, bytes) else name.encode(), *fields[1:])


@given(st.lists(ROWS, max_size=5))
def test_encoded_rows_are_decoded(rows: list[RowValues]) -> None:
    data = b"".join(encode(rows))
    decoded_rows = [item for piece in frames(memoryview(data)) for item in decode(piece)]
    assert [values(item) for item in decoded_rows] == [raw_name(item) for item in rows]


def test_frames_are_bounded_and_have_their_row_count() -> None:
    rows = [row("q", bytes(100))] * 3000
    parts = list(frames(memoryview(b"".join(encode(rows)))))
    counts = [announced_rows(part) for part in parts]
    assert sum(counts) == 3000
    assert max(counts) <= FRAME_ROWS // 2
    assert counts == [len(decode(part)) for part in parts]
    parts_of_large = list(encode([row("q", bytes(1_000_000))] * 3))
    assert len(parts_of_large) == 3


def test_shorter_and_longer_rows() -> None:
    """Rows of other versions are decoded."""
    [short_row] = decode(frame([["q"]])[4:])
    assert values(short_row) == raw_name(row("q"))
    [long_row] = decode(frame([[*row("q", b"x"), "more", {}]])[4:])
    assert values(long_row) == raw_name(row("q", b"x"))


@given(st.binary())
def test_any_bytes_are_rows_or_rejected(data: bytes) -> None:
    for decoder in (decode, lambda content: list(map(decode, frames(memoryview(content))))):
        with suppress(ProtocolError):
            decoder(data)


@given(ROWS, st.data())
def test_a_damaged_row_is_valid_or_rejected(fields: RowValues, draw: st.DataObject) -> None:
    data = bytearray(frame([fields]))
    for _ in range(3):
        index = draw.draw(st.integers(0, len(data) - 1))
        data[index] = draw.draw(st.integers(0, 255))
    try:
        for piece in frames(memoryview(data)):
            for decoded_row in decode(piece):
                name_of(decoded_row.destination)
                properties_of(decoded_row.properties)
    except ProtocolError:
        pass


DEEP = b"\x91" * 60_000 + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"\x91\x91" + DEEP,
        b"\x91\x92\xa1q" + DEEP,
        b"\x91\x91\xa1q" * 2,
        b"\x91\x90",
        b"\xc0",
        b"",
    ],
)
def test_invalid_rows_are_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        [name_of(decoded_row.destination) for decoded_row in decode(data)]


def test_limits() -> None:
    with pytest.raises(FrameTooLarge, match="1025 rows"):
        decode(frame([["q"]] * (FRAME_ROWS + 1))[4:])
    with pytest.raises(FrameTooLarge, match="4294967295 rows"):
        decode(b"\xdd\xff\xff\xff\xff")
    with pytest.raises(ProtocolError, match="far too long"):
        name_of(msgspec.msgpack.encode("x" * MAX_NAME_BYTES))
    oversized = msgspec.Raw(msgspec.msgpack.encode({"a": "x" * MAX_PROPERTIES_BYTES}))
    with pytest.raises(ProtocolError, match="more than"):
        properties_of(oversized)
    several: tuple[object, ...] = ({"a": {}}, {"a": []}, {1: 1}, [], 5)
    for invalid in several:
        with pytest.raises(ProtocolError, match="not a map of scalars"):
            properties_of(msgspec.Raw(msgspec.msgpack.encode(invalid)))


def digest_of(rows: Iterable[RowValues]) -> int:
    """Return the digest of rows in their default frames."""
    parts = (digest(data) for encoded in encode(rows) for data in frames(memoryview(encoded)))
    return sum(parts) & DIGEST_MASK


@given(st.lists(ROWS, max_size=8), st.data())
def test_digest_is_independent_of_order_and_frames(
    rows: list[RowValues], draw: st.DataObject
) -> None:
    shuffled = draw.draw(st.permutations(rows))
    cut = draw.draw(st.integers(0, len(rows)))
    assert digest_of(rows) == (digest_of(shuffled[:cut]) + digest_of(shuffled[cut:])) & DIGEST_MASK


def test_digest_differs_for_different_rows() -> None:
    rows = [row("q", b"%d" % number, message_id=f"id{number}") for number in range(2000)]
    distinct_digests = {digest_of([item]) for item in rows} | {digest_of([]), digest_of(rows)}
    assert len(distinct_digests) == len(rows) + 2
    exchanged = [
        [row("q", b"a", message_id=first), row("q", b"b", message_id=second)]
        for number in range(500)
        for first, second in [(f"{number}", f"{number ^ 1}"), (f"{number ^ 1}", f"{number}")]
    ]
    digests = [digest_of(pair) for pair in exchanged]
    assert all(a != b for a, b in zip(digests[::2], digests[1::2], strict=True))
    assert digest_of(rows[:1]) != digest_of(rows[:1] * 2)


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x92\x01", b"\x91"])
def test_digest_of_no_rows(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not an array of rows"):
        digest(data)
