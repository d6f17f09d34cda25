"""Round trips in all twelve directions: a message is sent by one protocol, received and forwarded
by another, and received by the first. Fields that docs/crossing.md lists as preserved are equal."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.model.identifiers import to_identifier
from sluicemq.model.message import BodyKind
from sluicemq.protocols import java
from tests.transcoding.converters import (
    BYTES,
    JMS,
    MAP,
    MSGLITE,
    NONE,
    OBJECT,
    PHPMQ,
    STREAM,
    TEXT,
    VIBEMQ,
    ClientMessage,
    Converter,
    jms_text,
    round_trip_via,
    with_sequence,
)

plain_text = st.text(st.characters(codec="utf-8"), max_size=30)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain_text, inner, max_size=3),
    max_leaves=6,
)
text_bodies = (
    plain_text
    | json_values.map(json.dumps)
    | st.sampled_from(["", " ", "{", "[]", ' {"a": 1.0} ', '"', '"x"', "null", "1", "\0", "é"])
)
bodies = st.binary(max_size=40) | text_bodies.map(str.encode)
fields = st.fixed_dictionaries(
    {
        "priority": st.sampled_from([1, 4, 6, 9]),
        "correlation": plain_text,
        "jms_type": plain_text,
        "reply_to": st.none()
        | st.builds(
            Address,
            st.sampled_from(Kind),
            plain_text.filter(lambda name: name and not name.startswith("topic:")),
        ),
    }
)
RESERVED_HEADERS = {
    "priority",
    "correlationId",
    "replyTo",
    "JMSType",
    "content-encoding",
    "deadLetterReason",
}
header_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    ["content-type", "a.b", "a_HYPHEN_b", "2nd", "x-1", "größe", "_x0041_", "JMSXGroupID"]
)
headers = st.dictionaries(
    header_names.filter(lambda name: name not in RESERVED_HEADERS | {"deliveryAttempts"}),
    plain_text.filter(bool),
    max_size=4,
)
numbers = st.integers(-(2**63), 2**63 - 1)
java_values = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text
)


def is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- from PHPMQ and msglite ----------------------------------------------------------------------


@pytest.mark.parametrize("other", [PHPMQ, MSGLITE])
@pytest.mark.parametrize("sender", [PHPMQ, MSGLITE])
@given(body=bodies, ttl_seconds=st.integers(1, 10**9))
def test_round_trip_between_phpmq_and_msglite(
    sender: Converter, other: Converter, body: bytes, ttl_seconds: int
) -> None:
    assert round_trip_via(
        sender, other, ClientMessage(body, ttl_seconds=ttl_seconds)
    ) == ClientMessage(body, ttl_seconds=ttl_seconds)


@pytest.mark.parametrize("sender", [PHPMQ, MSGLITE])
@given(body=bodies, ttl_seconds=st.integers(1, 10**9))
def test_round_trip_from_phpmq_or_msglite_via_jms(
    sender: Converter, body: bytes, ttl_seconds: int
) -> None:
    transcoded = JMS.to_client(
        with_sequence(sender.to_broker(ClientMessage(body, ttl_seconds=ttl_seconds)))
    )
    if is_text(body):
        assert (transcoded.type, transcoded.body) == (TEXT, body.decode())
    else:
        assert (transcoded.type, transcoded.body) == (BYTES, body)
    assert (transcoded.priority, transcoded.ttl_seconds) == (4, ttl_seconds)
    assert round_trip_via(
        sender, JMS, ClientMessage(body, ttl_seconds=ttl_seconds)
    ) == ClientMessage(body, ttl_seconds=ttl_seconds)


@pytest.mark.parametrize("sender", [PHPMQ, MSGLITE])
@given(body=bodies)
def test_round_trip_from_phpmq_or_msglite_via_vibemq(sender: Converter, body: bytes) -> None:
    assert round_trip_via(sender, VIBEMQ, ClientMessage(body)).body == body


@pytest.mark.parametrize("sender", [PHPMQ, MSGLITE])
@given(value=json_values.filter(lambda value: isinstance(value, list | dict)), ascii=st.booleans())
def test_json_of_phpmq_and_msglite_is_json_in_vibemq(
    sender: Converter, value: Any, ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii, indent=1).encode()
    transcoded = VIBEMQ.to_client(with_sequence(sender.to_broker(ClientMessage(body))))
    assert (transcoded.body, transcoded.properties) == (body, {})
    # the same after forwarding by a third protocol
    for converter in (PHPMQ, MSGLITE, JMS):
        transcoded_again = converter.to_client(with_sequence(VIBEMQ.to_broker(transcoded)))
        assert VIBEMQ.to_client(with_sequence(converter.to_broker(transcoded_again))).body == body


blanks = st.characters(codec="utf-8", exclude_characters=" \t\r\n")
address_names = st.text(blanks, min_size=1, max_size=12).filter(
    lambda name: not name.startswith("topic:")
)


@given(address_names, plain_text)
def test_msglite_reply_address_round_trip(name: str, correlation: str) -> None:
    request = ClientMessage(b"?", reply_to=Address(Kind.QUEUE, name), correlation=correlation)
    for converter in (MSGLITE, VIBEMQ, JMS):
        result = round_trip_via(MSGLITE, converter, request)
        assert result.reply_to == request.reply_to
        # JMS adds an id to correlate the reply
        assert result.correlation == correlation or (converter is JMS and not correlation)


def test_messages_without_expiration_never_expire() -> None:
    for converter in (PHPMQ, JMS):
        assert round_trip_via(PHPMQ, converter, ClientMessage(b"")).ttl_seconds == 0
    assert (
        round_trip_via(MSGLITE, PHPMQ, ClientMessage(b"")).ttl_seconds == 0
    )  # msglite expresses no expiration as 68 years
    assert (
        JMS.to_client(with_sequence(MSGLITE.to_broker(ClientMessage(b"")))).ttl_seconds == 2**31 - 1
    )


# --- from VibeMQ ---------------------------------------------------------------------------------


@given(st.recursive(plain_text, lambda inner: st.lists(inner, max_size=2), max_leaves=3))
def test_vibemq_strings_and_arrays_via_jms(value: Any) -> None:
    payload = json.dumps(value).encode()
    returned_body = round_trip_via(VIBEMQ, JMS, ClientMessage(payload)).body
    assert json.loads(returned_body) == value
    if isinstance(value, list):
        assert returned_body == payload


@given(json_values)
def test_vibemq_json_via_jms(value: Any) -> None:
    payload = json.dumps(value).encode()
    transcoded = JMS.to_client(with_sequence(VIBEMQ.to_broker(ClientMessage(payload))))
    assert (transcoded.type, transcoded.body) == (
        TEXT,
        value if isinstance(value, str) else payload.decode(),
    )
    returned_body = json.loads(round_trip_via(VIBEMQ, JMS, ClientMessage(payload)).body)
    if isinstance(value, str | list | dict):
        assert returned_body == value
    else:
        assert returned_body == payload.decode()  # numbers are text in JMS


@given(headers, fields)
def test_vibemq_headers_via_jms(properties: dict[str, Any], message_fields: Any) -> None:
    client_message = ClientMessage(b"{}", properties=properties, **message_fields)
    transcoded = JMS.to_client(with_sequence(VIBEMQ.to_broker(client_message)))
    assert transcoded.properties == {to_identifier(name): text for name, text in properties.items()}
    assert {name: getattr(transcoded, name) for name in message_fields} == message_fields
    assert round_trip_via(VIBEMQ, JMS, client_message) == client_message


@given(st.binary(max_size=40))
def test_vibemq_bytes_via_any_protocol(body: bytes) -> None:
    payload = b'"%b"' % b64encode(body)
    client_message = ClientMessage(payload, properties={"content-encoding": "base64"})
    transcoded = JMS.to_client(with_sequence(VIBEMQ.to_broker(client_message)))
    assert (transcoded.type, transcoded.body) == (BYTES, body)
    assert round_trip_via(VIBEMQ, JMS, client_message) == client_message
    for converter in (PHPMQ, MSGLITE):
        assert converter.to_client(with_sequence(VIBEMQ.to_broker(client_message))).body == body
        result = round_trip_via(VIBEMQ, converter, client_message)
        if is_text(body):
            # text is a string, or an object or array if it is one
            assert result.properties == {}
            assert result.body == body or json.loads(result.body) == body.decode()
        else:
            assert result == client_message


@pytest.mark.parametrize("other", [PHPMQ, MSGLITE])
@given(json_values)
def test_vibemq_json_via_phpmq_and_msglite(other: Converter, value: Any) -> None:
    payload = json.dumps(value).encode()
    transcoded = other.to_client(with_sequence(VIBEMQ.to_broker(ClientMessage(payload))))
    returned_body = round_trip_via(VIBEMQ, other, ClientMessage(payload)).body
    if isinstance(value, str):
        assert transcoded.body == value.encode()
        # text that is a JSON object or array is delivered as such
        assert json.loads(returned_body) == value or returned_body == value.encode()
    else:
        assert transcoded.body == payload
        if isinstance(value, list | dict):
            assert returned_body == payload
        else:  # numbers are text in these protocols
            assert json.loads(returned_body) == payload.decode()


@pytest.mark.parametrize("other", [PHPMQ, MSGLITE, JMS])
@pytest.mark.parametrize("payload", [b'"\\ud800"', b'"a\\uDC00b"'])
def test_unpaired_surrogate_is_delivered_as_json(other: Converter, payload: bytes) -> None:
    body = other.to_client(with_sequence(VIBEMQ.to_broker(ClientMessage(payload)))).body
    assert body == (payload.decode() if other is JMS else payload)


def test_empty_vibemq_payload_via_jms() -> None:
    assert JMS.to_client(with_sequence(VIBEMQ.to_broker(ClientMessage(b"")))).type == NONE
    assert round_trip_via(VIBEMQ, JMS, ClientMessage(b"")) == ClientMessage(b"")


# --- from JMS ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [PHPMQ, MSGLITE, VIBEMQ])
@given(text_bodies)
def test_jms_text_via_any_protocol(other: Converter, text: str) -> None:
    result = round_trip_via(JMS, other, jms_text(text))
    assert (result.type, result.body) == (TEXT, text)


@given(st.binary(max_size=40))
def test_jms_bytes_via_any_protocol(body: bytes) -> None:
    client_message = ClientMessage(body, BYTES)
    assert round_trip_via(JMS, VIBEMQ, client_message) == client_message
    for converter in (PHPMQ, MSGLITE):
        result = round_trip_via(JMS, converter, client_message)
        if is_text(body):
            assert (result.type, result.body) == (TEXT, body.decode())
        else:
            assert (result.type, result.body) == (BYTES, body)


@given(st.dictionaries(plain_text.filter(bool), java_values, max_size=5), st.lists(java_values))
def test_jms_maps_and_streams_become_json(entries: dict[str, Any], values: list[Any]) -> None:
    for client_message, expected in (
        (ClientMessage(entries, MAP), entries),
        (ClientMessage(values, STREAM), values),
    ):
        for converter in (PHPMQ, MSGLITE, VIBEMQ):
            transcoded = converter.to_client(with_sequence(JMS.to_broker(client_message)))
            assert json.loads(transcoded.body) == expected
            result = round_trip_via(JMS, converter, client_message)
            assert result.type == TEXT
            assert json.loads(result.body) == expected


@given(st.binary(max_size=40))
def test_jms_objects_become_bytes(body: bytes) -> None:
    client_message = ClientMessage(body, OBJECT)
    for converter in (PHPMQ, MSGLITE):
        assert converter.to_client(with_sequence(JMS.to_broker(client_message))).body == b64encode(
            body
        )
    transcoded = VIBEMQ.to_client(with_sequence(JMS.to_broker(client_message)))
    assert (json.loads(transcoded.body).encode(), transcoded.properties) == (
        b64encode(body),
        {"content-encoding": "base64"},
    )
    assert round_trip_via(JMS, VIBEMQ, client_message) == ClientMessage(body, BYTES)


@given(headers, fields)
def test_jms_properties_via_vibemq(properties: dict[str, Any], message_fields: Any) -> None:
    identifiers = {to_identifier(name): text for name, text in properties.items()}
    client_message = jms_text("text", properties=identifiers, **message_fields)
    transcoded = VIBEMQ.to_client(with_sequence(JMS.to_broker(client_message)))
    assert transcoded.properties == properties
    assert round_trip_via(JMS, VIBEMQ, client_message) == client_message


@pytest.mark.parametrize("priority", range(10))
def test_jms_priority_via_vibemq(priority: int) -> None:
    result = round_trip_via(JMS, VIBEMQ, jms_text("", priority=priority))
    assert result.priority == (1, 1, 1, 1, 4, 6, 6, 6, 9, 9)[priority]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (java.Byte(1), "1"),
        (java.Short(-300), "-300"),
        (5, "5"),
        (java.Long(7), "7"),
        (2**40, str(2**40)),
        (1.5, "1.5"),
        (java.Float(0.5), "0.5"),
        (float("nan"), "NaN"),
        ("x", "x"),
    ],
)
def test_typed_jms_properties_become_text(value: Any, expected: str) -> None:
    client_message = jms_text("", properties={"p": value})
    assert VIBEMQ.to_client(with_sequence(JMS.to_broker(client_message))).properties == {
        "p": expected
    }
    assert round_trip_via(JMS, VIBEMQ, client_message).properties == {"p": expected}


@given(st.integers(1, 10**9), st.sampled_from([PHPMQ, MSGLITE]))
def test_jms_expiration_via_phpmq_and_msglite(ttl_seconds: int, other: Converter) -> None:
    assert (
        round_trip_via(JMS, other, jms_text("x", ttl_seconds=ttl_seconds)).ttl_seconds
        == ttl_seconds
    )


def test_jms_message_without_body_has_an_empty_body() -> None:
    client_message = ClientMessage(b"", NONE)
    assert VIBEMQ.to_client(with_sequence(JMS.to_broker(client_message))).body == b""
    assert round_trip_via(JMS, VIBEMQ, client_message) == client_message
    for converter in (PHPMQ, MSGLITE):
        assert converter.to_client(with_sequence(JMS.to_broker(client_message))).body == b""


def test_body_kinds_of_jms_messages() -> None:
    kinds = {
        MAP: BodyKind.MAP,
        STREAM: BodyKind.STREAM,
        OBJECT: BodyKind.OBJECT,
        TEXT: BodyKind.TEXT,
    }
    client_message = {MAP: {}, STREAM: [], OBJECT: b"", TEXT: ""}
    for type, kind in kinds.items():
        assert JMS.to_broker(ClientMessage(client_message[type], type)).kind is kind


# --- paths of several protocols ------------------------------------------------------------------


@given(
    st.sampled_from([PHPMQ, MSGLITE, VIBEMQ]),
    st.lists(st.sampled_from([PHPMQ, MSGLITE, VIBEMQ, JMS]), max_size=5),
    json_values.filter(lambda value: isinstance(value, list | dict)),
    st.booleans(),
)
def test_json_survives_any_path(
    sender: Converter, path: list[Converter], value: Any, ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    assert round_trip_through(sender, ClientMessage(body), path).body == body


@given(
    st.sampled_from([PHPMQ, MSGLITE, VIBEMQ, JMS]),
    st.lists(st.sampled_from([PHPMQ, MSGLITE, VIBEMQ, JMS]), max_size=5),
    text_bodies.filter(
        lambda text: bool(text) and not text.lstrip(" \t\r\n").startswith(("{", "["))
    ),
)
def test_other_text_survives_any_path(sender: Converter, path: list[Converter], text: str) -> None:
    forms = {
        id(VIBEMQ): ClientMessage(json.dumps(text).encode()),
        id(JMS): jms_text(text),
    }
    result = round_trip_through(sender, forms.get(id(sender), ClientMessage(text.encode())), path)
    if sender is VIBEMQ:
        assert json.loads(result.body) == text
    else:
        assert result.body == (text if sender is JMS else text.encode())


def round_trip_through(
    sender: Converter, client_message: ClientMessage, path: list[Converter]
) -> ClientMessage:
    """Send a message by one protocol, forward it by each of `path`, and receive it by the first."""
    message = with_sequence(sender.to_broker(client_message))
    for converter in path:
        message = with_sequence(converter.to_broker(converter.to_client(message)))
    return sender.to_client(message)
