"""Bodies of messages as clients of other protocols read them."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest

from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import FrameTooLarge, ProtocolError
from sluicemq.model.message import UNCOMPRESSED_SIZE, BodyKind, Message, Origin
from sluicemq.protocols.java import MAX_SIZE, dumps_stream
from sluicemq.protocols.transcoding import content, conversion_memory, expanded, expanded_size


def message(flags: int, body: bytes, origin: Origin = Origin.JMQ) -> Message:
    native = bytes(62) + flags.to_bytes(2, "big") + bytes(16)
    properties: dict[str, bool | int | float | str | bytes | None] = {UNCOMPRESSED_SIZE: 3}
    return Message(
        Address(Kind.QUEUE, "q"), body, origin=origin, properties=properties, native=native
    )


def test_body_of_compressed_message_is_inflated() -> None:
    body = zlib.compress(b"abc")
    assert expanded(message(0x0405, body)) == b"abc"
    assert expanded(message(0x0305, body)) == body
    assert expanded(message(0x0405, body, Origin.VIBEMQ)) == body
    with pytest.raises(ProtocolError):
        expanded(message(0x0400, zlib.compress(b"abcd")))
    with pytest.raises(FrameTooLarge):
        expanded(message(0x0400, body), 2)


@pytest.mark.parametrize(
    ("flags", "stated", "expected"),
    [(0x0305, 9, 3), (0x0405, 9, 9), (0x0405, -1, 0), (0x0405, 1 << 40, MAX_SIZE)],
)
def test_size_of_inflated_body_is_known_without_inflating(
    flags: int, stated: int, expected: int
) -> None:
    published = message(flags, b"abc")
    published.properties = {UNCOMPRESSED_SIZE: stated}
    assert expanded_size(published) == expected


@pytest.mark.parametrize(
    ("unit", "end", "factor"),
    [
        ("a", "", 1),
        ("ä", "", 1),
        ("中", "", 1),
        ("a\n", "", 1),
        ("a", "😀", 3),
        ("\x01", "", 3),
        ("\x01", "😀", 3),
    ],
)
@pytest.mark.parametrize("size", [100_000, 140_000])
def test_conversion_needs_estimated_memory(unit: str, end: str, factor: int, size: int) -> None:
    text = unit * (size // len(unit.encode())) + end
    converted = message(0, dumps_stream([text, text + "."]))
    converted.kind = BodyKind.STREAM
    tracemalloc.start()
    try:
        content(converted)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # the stream is in memory already
    assert peak + len(converted.body) <= factor * conversion_memory(converted)


def test_compressed_message_without_stated_size_may_have_maximum_size() -> None:
    published = message(0x0405, b"abc")
    published.properties = None
    assert expanded_size(published) == MAX_SIZE


@pytest.mark.parametrize("kind", BodyKind)
@pytest.mark.parametrize("origin", Origin)
def test_body_is_content_except_java_serializations(kind: BodyKind, origin: Origin) -> None:
    message = Message(Address(Kind.QUEUE, "q"), b"\xff{}", kind, origin)
    assert content(message) == (b"/3t9" if kind >= BodyKind.MAP else b"\xff{}")
