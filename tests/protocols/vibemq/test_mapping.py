from __future__ import annotations

import json
from base64 import b64decode, b64encode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluicemq.model import dead_letters
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.identifiers import to_identifier
from sluicemq.model.message import BodyKind, Durability, Message, Origin, Property
from sluicemq.protocols import java
from sluicemq.protocols.msglite import mapping as msglite
from sluicemq.protocols.phpmq import session as phpmq
from sluicemq.protocols.transcoding import content
from sluicemq.protocols.vibemq import mapping, wire
from sluicemq.protocols.vibemq.wire import Decoder, Frame

NOW = 1_700_000_000_123
Q = Address(Kind.QUEUE, "q")
BROKER = bytes(range(8))


def published(
    payload: bytes = b"{}", headers: dict[str, str] | None = None, identity: str = "id"
) -> Message:
    """Return the message of a PUBLISH that has been encoded and decoded."""
    (frame,) = Decoder().feed(
        wire.encode(Frame(wire.PUBLISH, identity, "q", payload, headers or {}))
    )
    return mapping.to_message(Q, frame, Durability.SYNC, NOW)


def delivered(message: Message, attempts: int = 1, limit: int = wire.MAX_BODY) -> Frame:
    """Return the DELIVER frame that a client reads."""
    identity = mapping.wire_id(message, BROKER).encode()
    decoder = Decoder()
    (frame,) = decoder.feed(mapping.to_deliver(message, identity, b"q", attempts, limit))
    assert decoder.error is None
    return frame


def headers_of(message: Message) -> dict[str, str]:
    headers = dict(delivered(message, 7).headers)
    assert headers.pop("deliveryAttempts") == "7"
    return headers


def test_delivery_keeps_headers_of_publisher() -> None:
    message = published(headers={"priority": "high", "colour": "red", "x": "1"})
    message.native = mapping.with_headers(message, {"colour": "blue", "added": "é"})
    assert headers_of(message) == {"priority": "high", "colour": "blue", "x": "1", "added": "é"}


def foreign(
    body: bytes = b"{}",
    kind: BodyKind = BodyKind.JSON,
    origin: Origin = Origin.JMQ,
    properties: dict[str, Property] | None = None,
    priority: int = 4,
) -> Message:
    message = Message(
        Q, body, kind, origin, timestamp=NOW, properties=properties, priority=priority
    )
    message.sequence = 0xABC
    return message


# --- VibeMQ to VibeMQ --------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
known = st.sampled_from(
    ["priority", "correlationId", "replyTo", "content-encoding", "deadLetterReason", "failedAt"]
)
values = names | st.sampled_from(["base64", "topic:x", "topic:", "High", "3"])
headers = st.dictionaries(names | known, values, max_size=6)
payloads = st.sampled_from(
    [b"", b"{}", b' {"a" : 1.0} ', b'""', b'"YQ=="', b'"YQ"', b'"Y\\u0051=="']
)


@given(payloads, headers, names)
def test_what_comes_by_vibemq_leaves_byte_for_byte(
    payload: bytes, headers: dict[str, str], identity: str
) -> None:
    message = published(payload, headers, identity)
    for attempts in (1, 2):
        frame = delivered(message, attempts)
        assert frame[:4] == (wire.DELIVER, identity, "q", payload)
        assert dict(frame.headers) == headers | {"deliveryAttempts": str(attempts)}
        assert list(frame.headers)[:-1] == list(headers)


def test_delivery_attempts_of_publisher_are_overwritten() -> None:
    message = published(headers={"a": "1", "deliveryAttempts": "99", "b": "2"})
    assert list(delivered(message, 2).headers.items()) == [
        ("a", "1"),
        ("b", "2"),
        ("deliveryAttempts", "2"),
    ]


def test_headers_set_message_fields() -> None:
    message = published(
        b'{"a":1}',
        {"priority": "high", "x": "1", "correlationId": "c", "replyTo": "r", "timestamp": "now"},
    )
    assert (message.kind, message.body, message.origin) == (
        BodyKind.JSON,
        b'{"a":1}',
        Origin.VIBEMQ,
    )
    assert (message.priority, message.correlation_id, message.message_id) == (6, "c", "id")
    assert message.reply_to == Address(Kind.QUEUE, "r")
    assert message.properties == {"x": "1", "timestamp": "now"}
    assert (message.timestamp, message.durability) == (NOW, Durability.SYNC)


def test_message_without_payload_and_headers() -> None:
    message = published(b"")
    assert (message.kind, message.body, message.properties) == (BodyKind.NONE, b"", None)
    assert message.native == b""
    assert delivered(message).payload == b""


def test_null_is_payload() -> None:
    assert published(b"null").kind is BodyKind.JSON
    assert delivered(published(b"null")).payload == b"null"


@pytest.mark.parametrize(
    ("text", "priority"),
    [
        *(("Low", 1), ("NORMAL", 4), ("high", 6), ("Critical", 9)),
        *(("0", 1), ("1", 4), ("2", 6), ("3", 9)),
        *(("4", 4), ("-1", 4), ("urgent", 4), (" low ", 1), ("\u0660", 4)),
    ],
)
def test_priority_header_sets_priority(text: str, priority: int) -> None:
    assert published(headers={"priority": text}).priority == priority


def test_only_exact_header_is_priority() -> None:
    message = published(headers={"Priority": "High"})
    assert message.priority == 4
    assert message.properties == {"Priority": "High"}


def test_base64_payload_is_decoded_if_it_round_trips() -> None:
    body = bytes(range(256))
    payload = json.dumps(b64encode(body).decode()).encode()
    message = published(payload, {"content-encoding": "base64", "a": "b"})
    assert (message.kind, message.body) == (BodyKind.BYTES, body)
    assert message.properties == {"a": "b"}
    assert delivered(message).payload == payload
    for other in (b'"Y Q=="', b'"YR=="', b'"YQ"', b"[]", b'"', b"1", b"", b'"\xc3\xa4"'):
        message = published(other, {"content-encoding": "base64"})
        assert message.kind is (BodyKind.JSON if other else BodyKind.NONE)
        assert message.body == other
    assert published(payload, {"content-encoding": "gzip"}).kind is BodyKind.JSON
    assert published(payload).kind is BodyKind.JSON


def test_base64_payload_is_decoded_in_chunks() -> None:
    headers = {"content-encoding": "base64"}
    for size in (0, mapping.CHUNK * 3 // 4, mapping.CHUNK):
        body = bytes(size)
        message = published(b'"%b"' % b64encode(body), headers)
        assert (message.kind, message.body) == (BodyKind.BYTES, body)
    padded_chunk = b"A" * (mapping.CHUNK - 2) + b"=="
    assert published(b'"%bAAAA"' % padded_chunk, headers).kind is BodyKind.JSON


def test_client_cannot_make_its_message_dead_letter() -> None:
    message = published(headers={"deadLetterReason": "MessageExpired", "originalQueue": "x"})
    assert not dead_letters.is_dead_letter(message)
    assert headers_of(message) == {"deadLetterReason": "MessageExpired", "originalQueue": "x"}


def test_added_headers_are_omitted_above_frame_limit() -> None:
    message = published(b"1" * 100, {"a": "b"})
    size = wire.body_size(b"id", b"q", b"1" * 100, message.native)
    assert delivered(message, 1, size).headers == {"a": "b"}
    dead_letter = dead_letter_of(message)
    assert delivered(dead_letter, 1, size).headers == {"a": "b"}
    assert "deadLetterReason" in delivered(dead_letter, 1, size + 200).headers


# --- dead letters ------------------------------------------------------------------------------


def dead_letter_of(message: Message, reason: str = "max-attempts") -> Message:
    return dead_letters.dead_letter_of(message, "orders", reason, 3, NOW)


def test_dead_letter_headers_have_names_of_broker() -> None:
    assert set(mapping.DEAD_LETTER_HEADERS) == dead_letters.DEAD_LETTER_PROPERTIES


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("max-attempts", "MaxRetriesExceeded"),
        ("expired", "MessageExpired"),
        ("overflow", "QueueFull"),
        ("client", "client"),
    ],
)
@pytest.mark.parametrize("by_vibemq", [True, False])
def test_dead_letter_has_its_history(reason: str, expected: str, by_vibemq: bool) -> None:
    message = (
        published(b"[1]", {"a": "b", "deliveryAttempts": "8", "failedAt": "never", "c": "d"})
        if by_vibemq
        else foreign(b"[1]", properties={"a": "b", "c": "d"})
    )
    frame = delivered(dead_letter_of(message, reason), attempts=1)
    assert frame.payload == b"[1]"
    assert list(frame.headers.items()) == [
        ("a", "b"),
        ("c", "d"),
        ("deadLetterReason", expected),
        ("originalQueue", "orders"),
        ("deliveryAttempts", "3"),
        ("failedAt", "2023-11-14T22:13:20.123+00:00"),
    ]


@pytest.mark.parametrize("by_vibemq", [True, False])
def test_dead_letter_of_topic_names_its_subscription(by_vibemq: bool) -> None:
    dead_letter = dead_letter_of(published() if by_vibemq else foreign(b"[1]"))
    dead_letters.note_topic(dead_letter, "anna")
    assert delivered(dead_letter).headers == {
        "deadLetterReason": "MaxRetriesExceeded",
        "originalQueue": "orders",
        "deliveryAttempts": "3",
        "failedAt": "2023-11-14T22:13:20.123+00:00",
        "originalKind": "topic",
        "originalSubscription": "anna",
    }


# --- from other protocols ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "origin", "body", "payload", "encoded"),
    [
        (BodyKind.NONE, Origin.JMQ, b"", b"", False),
        (BodyKind.TEXT, Origin.JMQ, b"hello", b'"hello"', False),
        (BodyKind.TEXT, Origin.INTERNAL, b'{"a":1}', b'"{\\"a\\":1}"', False),
        (BodyKind.TEXT, Origin.JMQ, b'{"a":1}', b'{"a":1}', False),
        (BodyKind.TEXT, Origin.JMQ, b" [1, 2.0]", b" [1, 2.0]", False),
        (BodyKind.TEXT, Origin.JMQ, b"{a}", b'"{a}"', False),
        (BodyKind.TEXT, Origin.JMQ, b"1", b'"1"', False),
        (BodyKind.TEXT, Origin.JMQ, b'"a"', b'"\\"a\\""', False),
        (BodyKind.TEXT, Origin.JMQ, b"", b'""', False),
        (BodyKind.TEXT, Origin.JMQ, b"\xff", b'"/w=="', True),
        (BodyKind.TEXT, Origin.JMQ, "grüße\0".encode(), '"grüße\\u0000"'.encode(), False),
        (BodyKind.JSON, Origin.PHPMQ, b'{"a": 1}', b'{"a": 1}', False),
        (BodyKind.JSON, Origin.JMQ, b"{a}", b'"{a}"', False),
        (BodyKind.JSON, Origin.JMQ, b"", b'""', False),
        (BodyKind.BYTES, Origin.JMQ, b"hello", b'"aGVsbG8="', True),
        (BodyKind.BYTES, Origin.JMQ, b"", b'""', True),
        (BodyKind.BYTES, Origin.PHPMQ, b"hello", b'"hello"', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"[1]", b"[1]", False),
        (BodyKind.BYTES, Origin.MSGLITE, b' {"a": 1.0}\n', b' {"a": 1.0}\n', False),
        (BodyKind.BYTES, Origin.PHPMQ, b'{"a":"\\ud800"}', b'{"a":"\\ud800"}', False),
        (BodyKind.BYTES, Origin.PHPMQ, '{"ä":1}'.encode(), '{"ä":1}'.encode(), False),
        (BodyKind.BYTES, Origin.PHPMQ, b'{"a":1', b'"{\\"a\\":1"', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"[1,]", b'"[1,]"', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"[NaN]", b'"[NaN]"', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"[1] [2]", b'"[1] [2]"', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"[" * 64 + b"]" * 64, b"[" * 64 + b"]" * 64, False),
        (
            BodyKind.BYTES,
            Origin.PHPMQ,
            b"[" * 65 + b"]" * 65,
            b'"%b%b"' % (b"[" * 65, b"]" * 65),
            False,
        ),
        (BodyKind.BYTES, Origin.PHPMQ, b"[\xff]", b'"W/9d"', True),
        (BodyKind.BYTES, Origin.PHPMQ, b'"a"', b'"\\"a\\""', False),
        (BodyKind.BYTES, Origin.PHPMQ, b"5", b'"5"', False),
        (BodyKind.BYTES, Origin.INTERNAL, b"[1]", b'"[1]"', False),
        (BodyKind.BYTES, Origin.MSGLITE, b"", b'""', False),
        (BodyKind.BYTES, Origin.MSGLITE, b"\xff", b'"/w=="', True),
        (BodyKind.BYTES, Origin.INTERNAL, b"hello", b'"hello"', False),
        (BodyKind.MAP, Origin.JMQ, java.dumps_map({"a": 1}), b'{"a":1}', False),
        (BodyKind.STREAM, Origin.JMQ, java.dumps_stream([1, "x"]), b'[1,"x"]', False),
        (BodyKind.STREAM, Origin.JMQ, b"", b"[]", False),
        (BodyKind.MAP, Origin.JMQ, b"{}", b'"e30="', True),
        (BodyKind.STREAM, Origin.JMQ, b"[]", b'"W10="', True),
        (BodyKind.OBJECT, Origin.JMQ, b"\xac\xed", b'"rO0="', True),
        (BodyKind.OBJECT, Origin.JMQ, b"text", b'"dGV4dA=="', True),
    ],
)
def test_bodies_of_other_protocols(
    kind: BodyKind, origin: Origin, body: bytes, payload: bytes, encoded: bool
) -> None:
    message = foreign(body, kind, origin)
    frame = delivered(message)
    assert frame.payload == payload
    assert mapping.wire_payload(message) == (payload, encoded)
    expected = {"deliveryAttempts": "1"}
    if encoded:
        expected["content-encoding"] = "base64"
    assert frame.headers == expected


@pytest.mark.parametrize("origin", [Origin.PHPMQ, Origin.MSGLITE, Origin.JMQ])
def test_listener_may_deliver_all_text_as_strings(origin: Origin) -> None:
    kind = BodyKind.TEXT if origin is Origin.JMQ else BodyKind.BYTES
    message = foreign(b'{"a":1}', kind, origin)
    assert mapping.wire_payload(message, detect_json=False) == (b'"{\\"a\\":1}"', False)
    frame = mapping.to_deliver(message, b"i", b"q", 1, detect_json=False)
    assert b'"{\\"a\\":1}"' in frame
    # a message of kind JSON is no text
    map_message = foreign(java.dumps_map({"a": 1}), BodyKind.MAP, Origin.JMQ)
    assert mapping.wire_payload(map_message, detect_json=False) == (b'{"a":1}', False)


@given(st.sampled_from(BodyKind), st.sampled_from(Origin), st.binary(max_size=30))
def test_every_delivery_is_json(kind: BodyKind, origin: Origin, body: bytes) -> None:
    assume(origin is not Origin.VIBEMQ)  # its payloads are checked when they come in
    frame = delivered(foreign(body, kind, origin))
    if kind is BodyKind.NONE:
        assert frame.payload == b""
        return
    value = json.loads(frame.payload)
    if frame.headers.get("content-encoding"):
        assert b64decode(value) == body
    elif kind in (BodyKind.TEXT, BodyKind.BYTES) and isinstance(value, str):
        assert value.encode() == body


def test_properties_are_formatted_as_json() -> None:
    properties: dict[str, Property] = {
        "text": "x",
        "yes": True,
        "no": False,
        "int": -(10**30),
        "float": 1.5,
        "big": 1e22,
        "nan": float("nan"),
        "infinite": float("-inf"),
        "raw": b"\xff",
        "null": None,
        "empty": "",
        "": "nameless",
        "long": "x" * 65_536,
        "half": "\ud800",
        "ä": "ö",
    }
    assert headers_of(foreign(properties=properties)) == {
        "text": "x",
        "yes": "true",
        "no": "false",
        "int": "-1" + "0" * 30,
        "float": "1.5",
        "big": "1e+22",
        "nan": "NaN",
        "infinite": "-Infinity",
        "raw": "/w==",
        "ä": "ö",
    }


def test_property_does_not_replace_message_field() -> None:
    properties: dict[str, Property] = {
        "priority": "High",
        "correlationId": "x",
        "replyTo": "x",
        "JMSType": "x",
        "content-encoding": "base64",
        "content_HYPHEN_encoding": "base64",
        "JMS_SUN_COMPRESS": True,
        "JMS_SUN_UNCOMPRESSED_SIZE": 2,
        "JMS_SUN_COMPRESSED_SIZE": 9,
        "deliveryAttempts": 9,
    }
    message = foreign(properties=properties)
    assert headers_of(message) == mapping.wire_headers(message, encoded=False) == {}


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        *((priority, "Low") for priority in range(4)),
        (4, None),
        *((priority, "High") for priority in (5, 6, 7)),
        (8, "Critical"),
        (9, "Critical"),
    ],
)
def test_priority_is_delivered_as_header(priority: int, expected: str | None) -> None:
    assert headers_of(foreign(priority=priority)).get("priority") == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (Address(Kind.QUEUE, "r"), "r"),
        (Address(Kind.TOPIC, "r"), "topic:r"),
        (Address(Kind.QUEUE, "topic:r"), None),
        (Address(Kind.QUEUE, "\udcff"), None),
        (Address(Kind.QUEUE, ""), None),
        pytest.param(Address(Kind.TOPIC, "r" * 65_530), None, id="long topic"),
    ],
)
def test_reply_address_is_delivered_if_it_can_be_read_back(
    address: Address, expected: str | None
) -> None:
    message = foreign()
    message.reply_to = address
    headers = headers_of(message)
    assert headers.get("replyTo") == expected
    if expected is not None:
        assert published(headers=headers).reply_to == address


def test_correlation_id_is_delivered() -> None:
    message = foreign()
    message.correlation_id = "c"
    assert headers_of(message) == {"correlationId": "c"}


def test_type_survives_round_trip() -> None:
    message = foreign()
    message.type = "order"
    assert headers_of(message) == {"JMSType": "order"}
    returned = published(headers={"JMSType": "order"})
    assert (returned.type, returned.properties) == ("order", None)


def test_jms_properties_keep_their_names() -> None:
    properties: dict[str, Property] = {"content_HYPHEN_type": "x", "a_b": 1}
    assert headers_of(foreign(properties=properties)) == {"content-type": "x", "a_b": "1"}
    message = foreign(properties=properties, origin=Origin.INTERNAL)
    assert headers_of(message) == {"content_HYPHEN_type": "x", "a_b": "1"}


def test_ids_of_messages() -> None:
    message = foreign()
    assert mapping.wire_id(message, BROKER) == "0001020304050607" + "0000000000000abc"
    for invalid_id in ("\udcff", "x" * 65_536):
        message.message_id = invalid_id
        assert len(mapping.wire_id(message, BROKER)) == 32
    message.message_id = "ID:1-2-3"
    assert mapping.wire_id(message, BROKER) == "ID:1-2-3"


# --- round trips -------------------------------------------------------------------------------


def republished(message: Message) -> Message:
    """Publish payload and headers of a delivery again."""
    frame = delivered(message)
    return published(frame.payload, dict(frame.headers), frame.id)


@given(st.binary(max_size=40))
def test_bytes_of_jms_cross_vibemq_unharmed(body: bytes) -> None:
    returned = republished(foreign(body, BodyKind.BYTES))
    assert (returned.kind, returned.body) == (BodyKind.BYTES, body)


@given(st.binary(max_size=40))
def test_phpmq_and_msglite_through_vibemq(body: bytes) -> None:
    for message in (
        phpmq.to_message(Q, body, 0, Durability.SYNC, NOW),
        msglite.to_message(Q, body, 60, b"", Durability.SYNC, NOW),
    ):
        assert content(republished(message)) == body


@given(payloads.filter(bool), headers)
def test_vibemq_through_phpmq_and_msglite(payload: bytes, headers: dict[str, str]) -> None:
    message = published(payload, headers)
    value = json.loads(payload) if message.kind is BodyKind.JSON else None
    expected = payload
    if message.kind is not BodyKind.JSON:
        expected = message.body
    elif isinstance(value, str) and not any(
        "\ud800" <= character <= "\udfff" for character in value
    ):
        expected = value.encode()
    assert content(message) == expected


@given(st.binary(min_size=1, max_size=20).filter(lambda raw: not set(raw) & set(b" \t\r\n")))
def test_a_reply_address_of_msglite_through_vibemq(raw: bytes) -> None:
    message = msglite.to_message(Q, b"?", 60, raw, Durability.NONE, NOW)
    returned = republished(message)
    try:
        is_encodable = not raw.decode().startswith("topic:")
    except UnicodeDecodeError:
        is_encodable = False
    assert msglite.wire_reply(returned) == (raw if is_encodable else b"")


@given(
    st.dictionaries(names, names, max_size=5), st.sampled_from([1, 4, 6, 9]), st.text(max_size=5)
)
def test_text_properties_and_fields_come_back(
    properties: dict[str, str], priority: int, correlation_id: str
) -> None:
    reserved = {"priority", "correlationId", "replyTo", "content-encoding", "JMSType"}
    assume(not (reserved | {"deliveryAttempts", "deadLetterReason"}) & properties.keys())
    assume(correlation_id.isprintable())
    encoded: dict[str, Property] = {to_identifier(name): text for name, text in properties.items()}
    message = foreign(properties=encoded, priority=priority)
    message.correlation_id = correlation_id
    returned = republished(message)
    assert returned.properties == properties | {"deliveryAttempts": "1"}
    assert (returned.priority, returned.correlation_id) == (priority, correlation_id)


# --- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a", "Orders.eu-1_x", "größe", "日本語", "٣", "ä٣-1", "x" * 256, "ö" * 256]
)
def test_queue_names(name: str) -> None:
    assert mapping.is_queue_name(name)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "a\n", "ä\n", "topic:x", "x²", "äⅧ", "😀", "𝒜", "x" * 257, "ö" * 257]
)
def test_invalid_queue_names(name: str) -> None:
    assert not mapping.is_queue_name(name)


def test_limits_of_headers() -> None:
    mapping.check_headers({str(number): "1" for number in range(50)})
    mapping.check_headers({"a": "x" * 4096, "b": "😀" * 2048})
    for headers in (
        {str(number): "1" for number in range(51)},
        {"a": "x" * 4097},
        {"a": "😀" * 2048 + "x"},
    ):
        with pytest.raises(ProtocolError):
            mapping.check_headers(headers)
