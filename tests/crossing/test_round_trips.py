"""Messages sent by one protocol, received and sent on by another, and received by the first: in
all twelve directions, the fields that docs/crossing.md lists as preserved are equal."""

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
from tests.crossing.faces import (
    BYTES,
    JMS,
    MAP,
    MSGLITE,
    NONE,
    OBJECT,
    PHP,
    STREAM,
    TEXT,
    VIBE,
    ClientMessage,
    Face,
    by_way_of,
    jms_text,
    stored,
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
texts = (
    plain_text
    | json_values.map(json.dumps)
    | st.sampled_from(["", " ", "{", "[]", ' {"a": 1.0} ', '"', '"x"', "null", "1", "\0", "é"])
)
bodies = st.binary(max_size=40) | texts.map(str.encode)
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
taken = {"priority", "correlationId", "replyTo", "JMSType", "content-encoding", "deadLetterReason"}
header_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    ["content-type", "a.b", "a_HYPHEN_b", "2nd", "x-1", "größe", "_x0041_", "JMSXGroupID"]
)
headers = st.dictionaries(
    header_names.filter(lambda name: name not in taken | {"deliveryAttempts"}),
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


@pytest.mark.parametrize("other", [PHP, MSGLITE])
@pytest.mark.parametrize("sender", [PHP, MSGLITE])
@given(body=bodies, life=st.integers(1, 10**9))
def test_between_phpmq_and_msglite(sender: Face, other: Face, body: bytes, life: int) -> None:
    assert by_way_of(sender, other, ClientMessage(body, life=life)) == ClientMessage(
        body, life=life
    )


@pytest.mark.parametrize("sender", [PHP, MSGLITE])
@given(body=bodies, life=st.integers(1, 10**9))
def test_from_phpmq_or_msglite_by_way_of_jms(sender: Face, body: bytes, life: int) -> None:
    transcoded = JMS.received(stored(sender.sent(ClientMessage(body, life=life))))
    if is_text(body):
        assert (transcoded.type, transcoded.body) == (TEXT, body.decode())
    else:
        assert (transcoded.type, transcoded.body) == (BYTES, body)
    assert (transcoded.priority, transcoded.life) == (4, life)
    assert by_way_of(sender, JMS, ClientMessage(body, life=life)) == ClientMessage(body, life=life)


@pytest.mark.parametrize("sender", [PHP, MSGLITE])
@given(body=bodies)
def test_from_phpmq_or_msglite_by_way_of_vibemq(sender: Face, body: bytes) -> None:
    assert by_way_of(sender, VIBE, ClientMessage(body)).body == body


@pytest.mark.parametrize("sender", [PHP, MSGLITE])
@given(value=json_values.filter(lambda value: isinstance(value, list | dict)), ascii=st.booleans())
def test_objects_and_arrays_of_phpmq_and_msglite_are_json_to_vibemq(
    sender: Face, value: Any, ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii, indent=1).encode()
    transcoded = VIBE.received(stored(sender.sent(ClientMessage(body))))
    assert (transcoded.body, transcoded.properties) == (body, {})
    # the same through a third protocol
    for face in (PHP, MSGLITE, JMS):
        transcoded_again = face.received(stored(VIBE.sent(transcoded)))
        assert VIBE.received(stored(face.sent(transcoded_again))).body == body


blanks = st.characters(codec="utf-8", exclude_characters=" \t\r\n")
names = st.text(blanks, min_size=1, max_size=12).filter(lambda name: not name.startswith("topic:"))


@given(names, plain_text)
def test_a_reply_address_of_msglite_comes_back(name: str, correlation: str) -> None:
    question = ClientMessage(b"?", reply_to=Address(Kind.QUEUE, name), correlation=correlation)
    for face in (MSGLITE, VIBE, JMS):
        returned = by_way_of(MSGLITE, face, question)
        assert returned.reply_to == question.reply_to
        # JMS adds an id by which the answer is correlated
        assert returned.correlation == correlation or (face is JMS and not correlation)


def test_messages_without_expiration() -> None:
    for face in (PHP, JMS):
        assert by_way_of(PHP, face, ClientMessage(b"")).life == 0
    assert by_way_of(MSGLITE, PHP, ClientMessage(b"")).life == 0  # msglite expresses it as 68 years
    assert JMS.received(stored(MSGLITE.sent(ClientMessage(b"")))).life == 2**31 - 1


# --- from VibeMQ ---------------------------------------------------------------------------------


@given(st.recursive(plain_text, lambda inner: st.lists(inner, max_size=2), max_leaves=3))
def test_strings_and_arrays_of_vibemq_by_way_of_jms(value: Any) -> None:
    payload = json.dumps(value).encode()
    returned_body = by_way_of(VIBE, JMS, ClientMessage(payload)).body
    assert json.loads(returned_body) == value
    if isinstance(value, list):
        assert returned_body == payload


@given(json_values)
def test_json_of_vibemq_by_way_of_jms(value: Any) -> None:
    payload = json.dumps(value).encode()
    transcoded = JMS.received(stored(VIBE.sent(ClientMessage(payload))))
    assert (transcoded.type, transcoded.body) == (
        TEXT,
        value if isinstance(value, str) else payload.decode(),
    )
    returned_body = json.loads(by_way_of(VIBE, JMS, ClientMessage(payload)).body)
    if isinstance(value, str | list | dict):
        assert returned_body == value
    else:
        assert returned_body == payload.decode()  # JMS has one kind of text, and a number is that


@given(headers, fields)
def test_headers_of_vibemq_by_way_of_jms(properties: dict[str, Any], message_fields: Any) -> None:
    client_message = ClientMessage(b"{}", properties=properties, **message_fields)
    transcoded = JMS.received(stored(VIBE.sent(client_message)))
    assert transcoded.properties == {to_identifier(name): text for name, text in properties.items()}
    assert {name: getattr(transcoded, name) for name in message_fields} == message_fields
    assert by_way_of(VIBE, JMS, client_message) == client_message


@given(st.binary(max_size=40))
def test_bytes_of_vibemq_by_any_way(body: bytes) -> None:
    payload = b'"%b"' % b64encode(body)
    client_message = ClientMessage(payload, properties={"content-encoding": "base64"})
    transcoded = JMS.received(stored(VIBE.sent(client_message)))
    assert (transcoded.type, transcoded.body) == (BYTES, body)
    assert by_way_of(VIBE, JMS, client_message) == client_message
    for face in (PHP, MSGLITE):
        assert face.received(stored(VIBE.sent(client_message))).body == body
        returned = by_way_of(VIBE, face, client_message)
        if is_text(body):
            # text, or what it spells if that is an object or array
            assert returned.properties == {}
            assert returned.body == body or json.loads(returned.body) == body.decode()
        else:
            assert returned == client_message


@pytest.mark.parametrize("other", [PHP, MSGLITE])
@given(json_values)
def test_json_of_vibemq_by_way_of_phpmq_and_msglite(other: Face, value: Any) -> None:
    payload = json.dumps(value).encode()
    transcoded = other.received(stored(VIBE.sent(ClientMessage(payload))))
    returned_body = by_way_of(VIBE, other, ClientMessage(payload)).body
    if isinstance(value, str):
        assert transcoded.body == value.encode()
        # text that happens to be an object or array has become that
        assert json.loads(returned_body) == value or returned_body == value.encode()
    else:
        assert transcoded.body == payload
        if isinstance(value, list | dict):
            assert returned_body == payload
        else:  # these protocols have one kind of text, and a number is that
            assert json.loads(returned_body) == payload.decode()


@pytest.mark.parametrize("other", [PHP, MSGLITE, JMS])
@pytest.mark.parametrize("payload", [b'"\\ud800"', b'"a\\uDC00b"'])
def test_half_a_surrogate_pair_leaves_as_json(other: Face, payload: bytes) -> None:
    body = other.received(stored(VIBE.sent(ClientMessage(payload)))).body
    assert body == (payload.decode() if other is JMS else payload)


def test_nothing_of_vibemq_by_way_of_jms() -> None:
    assert JMS.received(stored(VIBE.sent(ClientMessage(b"")))).type == NONE
    assert by_way_of(VIBE, JMS, ClientMessage(b"")) == ClientMessage(b"")


# --- from JMS ------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [PHP, MSGLITE, VIBE])
@given(texts)
def test_text_of_jms_by_any_way(other: Face, text: str) -> None:
    returned = by_way_of(JMS, other, jms_text(text))
    assert (returned.type, returned.body) == (TEXT, text)


@given(st.binary(max_size=40))
def test_bytes_of_jms_by_any_way(body: bytes) -> None:
    client_message = ClientMessage(body, BYTES)
    assert by_way_of(JMS, VIBE, client_message) == client_message
    for face in (PHP, MSGLITE):
        returned = by_way_of(JMS, face, client_message)
        if is_text(body):
            assert (returned.type, returned.body) == (TEXT, body.decode())
        else:
            assert (returned.type, returned.body) == (BYTES, body)


@given(st.dictionaries(plain_text.filter(bool), java_values, max_size=5), st.lists(java_values))
def test_maps_and_streams_of_jms_become_json(entries: dict[str, Any], values: list[Any]) -> None:
    for client_message, expected in (
        (ClientMessage(entries, MAP), entries),
        (ClientMessage(values, STREAM), values),
    ):
        for face in (PHP, MSGLITE, VIBE):
            transcoded = face.received(stored(JMS.sent(client_message)))
            assert json.loads(transcoded.body) == expected
            returned = by_way_of(JMS, face, client_message)
            assert returned.type == TEXT
            assert json.loads(returned.body) == expected


@given(st.binary(max_size=40))
def test_objects_of_jms_become_bytes(body: bytes) -> None:
    client_message = ClientMessage(body, OBJECT)
    for face in (PHP, MSGLITE):
        assert face.received(stored(JMS.sent(client_message))).body == b64encode(body)
    transcoded = VIBE.received(stored(JMS.sent(client_message)))
    assert (json.loads(transcoded.body).encode(), transcoded.properties) == (
        b64encode(body),
        {"content-encoding": "base64"},
    )
    assert by_way_of(JMS, VIBE, client_message) == ClientMessage(body, BYTES)


@given(headers, fields)
def test_properties_of_jms_by_way_of_vibemq(
    properties: dict[str, Any], message_fields: Any
) -> None:
    identifiers = {to_identifier(name): text for name, text in properties.items()}
    client_message = jms_text("text", properties=identifiers, **message_fields)
    transcoded = VIBE.received(stored(JMS.sent(client_message)))
    assert transcoded.properties == properties
    assert by_way_of(JMS, VIBE, client_message) == client_message


@pytest.mark.parametrize("priority", range(10))
def test_a_priority_of_jms_by_way_of_vibemq(priority: int) -> None:
    returned = by_way_of(JMS, VIBE, jms_text("", priority=priority))
    assert returned.priority == (1, 1, 1, 1, 4, 6, 6, 6, 9, 9)[priority]


@pytest.mark.parametrize(
    ("value", "spelled"),
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
def test_typed_properties_of_jms_become_text(value: Any, spelled: str) -> None:
    client_message = jms_text("", properties={"p": value})
    assert VIBE.received(stored(JMS.sent(client_message))).properties == {"p": spelled}
    assert by_way_of(JMS, VIBE, client_message).properties == {"p": spelled}


@given(st.integers(1, 10**9), st.sampled_from([PHP, MSGLITE]))
def test_the_life_of_a_jms_message(life: int, other: Face) -> None:
    assert by_way_of(JMS, other, jms_text("x", life=life)).life == life


def test_nothing_of_jms() -> None:
    client_message = ClientMessage(b"", NONE)
    assert VIBE.received(stored(JMS.sent(client_message))).body == b""
    assert by_way_of(JMS, VIBE, client_message) == client_message
    for face in (PHP, MSGLITE):
        assert face.received(stored(JMS.sent(client_message))).body == b""


def test_kinds_of_bodies() -> None:
    kinds = {
        MAP: BodyKind.MAP,
        STREAM: BodyKind.STREAM,
        OBJECT: BodyKind.OBJECT,
        TEXT: BodyKind.TEXT,
    }
    client_message = {MAP: {}, STREAM: [], OBJECT: b"", TEXT: ""}
    for type, kind in kinds.items():
        assert JMS.sent(ClientMessage(client_message[type], type)).kind is kind


# --- any way -------------------------------------------------------------------------------------


@given(
    st.sampled_from([PHP, MSGLITE, VIBE]),
    st.lists(st.sampled_from([PHP, MSGLITE, VIBE, JMS]), max_size=5),
    json_values.filter(lambda value: isinstance(value, list | dict)),
    st.booleans(),
)
def test_objects_and_arrays_survive_any_way(
    sender: Face, way: list[Face], value: Any, ascii: bool
) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    assert sent_on(sender, ClientMessage(body), way).body == body


@given(
    st.sampled_from([PHP, MSGLITE, VIBE, JMS]),
    st.lists(st.sampled_from([PHP, MSGLITE, VIBE, JMS]), max_size=5),
    texts.filter(lambda text: bool(text) and not text.lstrip(" \t\r\n").startswith(("{", "["))),
)
def test_text_that_is_no_object_and_no_array_survives_any_way(
    sender: Face, way: list[Face], text: str
) -> None:
    forms = {
        id(VIBE): ClientMessage(json.dumps(text).encode()),
        id(JMS): jms_text(text),
    }
    returned = sent_on(sender, forms.get(id(sender), ClientMessage(text.encode())), way)
    if sender is VIBE:
        assert json.loads(returned.body) == text
    else:
        assert returned.body == (text if sender is JMS else text.encode())


def sent_on(sender: Face, client_message: ClientMessage, way: list[Face]) -> ClientMessage:
    """Send, receive and send on by each of some protocols, then receive by the first."""
    message = stored(sender.sent(client_message))
    for face in way:
        message = stored(face.sent(face.received(message)))
    return sender.received(message)
