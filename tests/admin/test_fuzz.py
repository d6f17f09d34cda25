"""Parsers of requests and rows accept or reject any input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.admin.batches import PartReader
from sluicemq.admin.caller import is_trusted_host, read_authorization
from sluicemq.admin.endpoints import parameters
from sluicemq.admin.errors import ApiError
from sluicemq.admin.journal import read_range
from sluicemq.management.journal import WRITE_BATCH_PART, SegmentView
from sluicemq.model.access import ANONYMOUS, EVERYBODY
from sluicemq.model.destination import Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.rows import RowValues, frame
from tests.model.test_rows import ROWS

Parsed = TypeVar("Parsed")

NAMES = st.sampled_from(
    ["writer", "batch", "partition", "part", "final", "bad_rows", "dead_letter_queue", "more"]
)
TEXTS = st.one_of(
    st.text(), st.integers().map(str), st.sampled_from(["true", "0", "drop", "\ud800", "٣"])
)


def parse_or_error(parser: Callable[..., Parsed], *arguments: object) -> Parsed | ApiError:
    """Return the result of the parser, or the error that it raises."""
    try:
        return parser(*arguments)
    except ApiError as problem:
        return problem


@given(st.dictionaries(NAMES, TEXTS))
def test_parameters_are_parsed_or_rejected(query: dict[str, str]) -> None:
    complete = {"writer": "w", "batch": "0", "partition": "0", "part": "0", **query}
    request = parse_or_error(
        parameters,
        WRITE_BATCH_PART,
        {},
        complete,
    )
    if isinstance(request, ApiError):
        assert request.status == 400
        assert any(name in str(request) for name in query)
        return
    assert 0 <= request.batch < 1 << 63
    assert 0 <= request.partition < 1 << 20
    assert 0 <= request.part < 1 << 32
    assert 0 < len(request.writer) < 256
    assert request.bad_rows in ("fail", "drop", "dead-letter")


@given(
    st.one_of(st.text(), st.from_regex(r"bytes=[0-9]{0,20}-[0-9]{0,20}", fullmatch=True)),
    st.integers(0, 1 << 40),
)
def test_byte_ranges_are_parsed_or_rejected(header: str, size: int) -> None:
    byte_range = parse_or_error(read_range, header, SegmentView(1, size, False, 0))
    if isinstance(byte_range, ApiError):
        assert byte_range.status in (400, 416)
        return
    start, end, partial = byte_range
    assert 0 <= start <= end <= size
    assert partial == bool(header)
    assert start < end or not partial


@given(st.one_of(st.text(), st.binary().map(lambda raw: "Basic " + raw.hex())))
def test_credentials_are_parsed_or_rejected(header: str) -> None:
    credentials = parse_or_error(read_authorization, header)
    if isinstance(credentials, ApiError):
        assert credentials.status == 400
        return
    if credentials.token:
        assert header.endswith(credentials.token) or header.strip().endswith(credentials.token)
        assert not credentials.password


@given(st.text(), st.integers(0, 65_535))
def test_foreign_host_names_are_not_trusted(name: str, port: int) -> None:
    for header in (f"{name}.example", f"{name}.example:{port}", f"127.0.0.1.{name}x"):
        assert not is_trusted_host(header, "127.0.0.1")


@given(st.lists(ROWS, max_size=6))
def test_every_row_is_a_message_or_rejected(rows: list[RowValues]) -> None:
    reader = PartReader(EVERYBODY, 1_000, 64)
    reader.read(memoryview(frame(rows))[4:])
    assert len(reader.messages) == len(rows)
    for number, (address, message) in enumerate(reader.messages):
        values = rows[number]
        assert (address.kind is Kind.TOPIC, message.body) == (values[1], values[2])
        if number in reader.refused:
            continue
        assert 0 < len(address.name.encode("utf-8", "surrogateescape")) <= 64
        assert message.timestamp == (values[15] or 1_000)
        assert bool(message.expiration) == bool(values[5] or values[6])
    unauthenticated = PartReader(ANONYMOUS, 1_000, 64)
    unauthenticated.read(memoryview(frame(rows))[4:])
    assert sorted(unauthenticated.refused) == list(range(len(rows)))


@given(st.binary(), st.lists(ROWS, min_size=1, max_size=2), st.data())
def test_damaged_frames_raise_protocol_errors_only(
    noise: bytes, rows: list[RowValues], draw: st.DataObject
) -> None:
    damaged_rows = bytearray(msgspec.msgpack.encode(rows))
    damaged_rows[draw.draw(st.integers(0, len(damaged_rows) - 1))] ^= 1 << draw.draw(
        st.integers(0, 7)
    )
    for data in (noise, bytes(damaged_rows)):
        reader = PartReader(EVERYBODY, 1_000, 64)
        with suppress(ProtocolError):
            reader.read(memoryview(data))
