"""Bodies of JMS clients: compressed, serialized by Java, damaged or hostile."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols import java, transcoding
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.mapping import encode_delivery
from sluicemq.protocols.jmq.packets import PacketType, Q, Z
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from tests.transcoding.converters import (
    ADDRESS,
    BYTES,
    IDENTITY,
    JMS,
    MAP,
    MSGLITE,
    OBJECT,
    PHPMQ,
    STREAM,
    TEXT,
    VIBEMQ,
    ClientMessage,
    read_packet,
    with_sequence,
)


def message_with_body(
    body: bytes, type: PacketType, flags: int = 0, properties: dict[str, Any] | None = None
) -> Message:
    """Return the message of a packet with arbitrary contents."""
    return JMS.message_of(
        encode_packet(type, Q | flags, 0, properties or {}, encode_header("q"), body)
    )


def compressed(body: bytes, type: PacketType, size: object = None, **more: Any) -> Message:
    """Return a message that is compressed like those of the Java client."""
    compressed_body = zlib.compress(body)
    properties = {
        "JMS_SUN_COMPRESS": True,
        "JMS_SUN_UNCOMPRESSED_SIZE": len(body) if size is None else size,
        "JMS_SUN_COMPRESSED_SIZE": len(compressed_body),
    }
    return message_with_body(compressed_body, type, Z, properties | more)


def encode_for_jms(message: Message) -> Packet:
    """Return the packet that a JMS client receives."""
    return read_packet(b"".join(encode_delivery(message, 1, 0, 1, IDENTITY)))


@given(st.text(st.characters(codec="utf-8")))
def test_compressed_text_is_decompressed(text: str) -> None:
    message = with_sequence(compressed(text.encode(), TEXT, color="red"))
    assert PHPMQ.to_client(message).body == MSGLITE.to_client(message).body == text.encode()
    transcoded = VIBEMQ.to_client(message)
    if not text.lstrip().startswith(("{", "[")):
        assert json.loads(transcoded.body) == text
    assert transcoded.properties == {"color": "red"}


@pytest.mark.parametrize(
    ("type", "body", "expected"),
    [
        (MAP, java.dumps_map({"a": 1, "b": b"\xff"}), b'{"a":1,"b":"/w=="}'),
        (STREAM, java.dumps_stream([1, None, "x"]), b'[1,null,"x"]'),
        (OBJECT, b"\xac\xed", b"rO0="),
        (BYTES, b"\xff\0", b"\xff\0"),
        (TEXT, b'{"a":1}', b'{"a":1}'),
    ],
)
def test_compressed_bodies_of_all_kinds_are_transcoded(
    type: PacketType, body: bytes, expected: bytes
) -> None:
    message = with_sequence(compressed(body, type))
    assert PHPMQ.to_client(message).body == MSGLITE.to_client(message).body == expected
    if type in (MAP, STREAM, TEXT):
        assert VIBEMQ.to_client(message).body == expected


def test_compressed_body_is_delivered_unchanged_to_jms() -> None:
    message = with_sequence(compressed(b"text" * 100, TEXT))
    packet = encode_for_jms(message)
    assert packet.flags & Z
    assert zlib.decompress(packet.body) == b"text" * 100
    assert packet.properties["JMS_SUN_UNCOMPRESSED_SIZE"] == 400


@pytest.mark.parametrize("size", [3, 5, -1, 0])
def test_compressed_body_with_wrong_size_stays_compressed(size: int) -> None:
    message = with_sequence(compressed(b"text", TEXT, size))
    for converter in (PHPMQ, MSGLITE):
        assert b64decode(converter.to_client(message).body) == message.body
    transcoded = VIBEMQ.to_client(message)
    assert transcoded.properties == {"content-encoding": "base64"}
    assert b64decode(json.loads(transcoded.body)) == message.body


@pytest.mark.parametrize(
    "body", [b"", b"no zlib", zlib.compress(b"text")[:-1], zlib.compress(bytes(1000))[:10]]
)
def test_damaged_compressed_body_is_unchanged(body: bytes) -> None:
    message = with_sequence(message_with_body(body, TEXT, Z, {"JMS_SUN_UNCOMPRESSED_SIZE": 4}))
    assert b64decode(PHPMQ.to_client(message).body) == body


def test_body_larger_than_packet_limit_is_not_decompressed() -> None:
    compressed_body = zlib.compress(bytes(java.MAX_SIZE + 1), 9)
    message = with_sequence(
        message_with_body(
            compressed_body, BYTES, Z, {"JMS_SUN_UNCOMPRESSED_SIZE": java.MAX_SIZE + 1}
        )
    )
    assert b64decode(PHPMQ.to_client(message).body) == compressed_body


def test_compression_properties_without_flag_are_ignored() -> None:
    properties = {"JMS_SUN_COMPRESS": True, "JMS_SUN_UNCOMPRESSED_SIZE": 4}
    assert (
        PHPMQ.to_client(with_sequence(message_with_body(b"text", TEXT, 0, properties))).body
        == b"text"
    )


@pytest.mark.parametrize("type", [MAP, STREAM])
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        java.STREAM_HEADER + b"\x73\x72",
        java.dumps("no map")[:-1],
        java.dumps_map({"a": 1})[:-1],
        java.STREAM_HEADER + b"\x73\x72\0\x0fjava.io.Unknown" + bytes(8) + b"\x02\0\0\x78\x70",
    ],
)
def test_invalid_map_or_stream_becomes_object(type: PacketType, body: bytes) -> None:
    message = with_sequence(message_with_body(body, type))
    assert b64decode(PHPMQ.to_client(message).body) == body
    transcoded = VIBEMQ.to_client(message)
    assert b64decode(json.loads(transcoded.body)) == body
    assert transcoded.properties == {"content-encoding": "base64"}


@given(
    st.sampled_from([TEXT, BYTES, MAP, STREAM, OBJECT]),
    st.sampled_from([0, Z]),
    st.binary(max_size=60) | st.binary(max_size=60).map(java.STREAM_HEADER.__add__),
    st.dictionaries(st.sampled_from(sorted(transcoding.COMPRESSION)), st.integers(-9, 99)),
)
def test_any_jms_message_can_be_transcoded(
    type: PacketType, flags: int, body: bytes, properties: dict[str, Any]
) -> None:
    message = with_sequence(message_with_body(body, type, flags, properties))
    kind, _ = transcoding.plain_body(message)
    assert kind < BodyKind.MAP or kind is BodyKind.OBJECT
    transcoded = VIBEMQ.to_client(message)
    json.loads(transcoded.body)
    assert not set(transcoded.properties) - {"content-encoding"}
    PHPMQ.to_client(message)
    MSGLITE.to_client(message)
    # all protocols can read a message that the VibeMQ client forwards
    JMS.to_client(with_sequence(VIBEMQ.to_broker(transcoded)))


@given(st.sampled_from(Origin), st.sampled_from(BodyKind), st.binary(max_size=40))
def test_any_message_of_any_origin_can_be_transcoded_to_jms(
    origin: Origin, kind: BodyKind, body: bytes
) -> None:
    message = with_sequence(Message(ADDRESS, body, kind, origin))
    packet = encode_for_jms(message)
    if packet.type == TEXT:
        packet.body.decode()


def test_metrics_message_is_json_in_other_protocols() -> None:
    body = java.dumps_map({"numMsgs": java.Long(3)}, hashtable=True)
    message = with_sequence(Message(ADDRESS, body, BodyKind.MAP, Origin.INTERNAL))
    assert PHPMQ.to_client(message).body == VIBEMQ.to_client(message).body == b'{"numMsgs":3}'
    assert JMS.to_client(message) == ClientMessage({"numMsgs": 3}, MAP)
