from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Message, Origin
from sluicemq.protocols.msglite.mapping import (
    NO_EXPIRY,
    read_address,
    to_message,
    wire_reply,
    wire_timeout,
)

NOW = 1_700_000_000_123
A = Address(Kind.QUEUE, "a")


def made(timeout: int, reply: bytes = b"") -> Message:
    return to_message(A, b"x", timeout, reply, Durability.NONE, NOW)


@given(st.integers(0, 2**63 - 1))
def test_the_senders_number_comes_out(timeout: int) -> None:
    message = made(timeout)
    assert NOW < message.expiration <= LAST_TIME
    assert wire_timeout(message) == timeout


def test_message_ttl_of_destination_shortens_timeout() -> None:
    for timeout in (60, 2**63 - 1):
        message = made(timeout)
        message.expiration = NOW + 5000
        assert wire_timeout(message) == 5
    message.expiration = 0
    assert wire_timeout(message) == NO_EXPIRY


@pytest.mark.parametrize(
    ("expiration", "expected"),
    [(0, NO_EXPIRY), (NOW + 1, 1), (NOW + 1000, 1), (NOW + 1001, 2), (NOW, 0), (NOW - 5000, 0)],
)
def test_life_of_foreign_message_is_rounded_up(expiration: int, expected: int) -> None:
    message = Message(A, b"", origin=Origin.PHPMQ, timestamp=NOW, expiration=expiration)
    assert wire_timeout(message) == expected


@given(st.binary(min_size=1).filter(lambda raw: not set(raw) & set(b" \t\r\n")))
def test_a_reply_address_comes_out_as_it_went_in(raw: bytes) -> None:
    assert wire_reply(made(1, raw)) == raw


def request_from(
    address: Address | None, correlation: str = "", origin: Origin = Origin.JMQ
) -> Message:
    message = Message(A, b"?", BodyKind.TEXT, origin, reply_to=address)
    message.correlation_id = correlation
    return message


@pytest.mark.parametrize("address", [None, Address(Kind.QUEUE, "")])
def test_message_without_reply_address_has_none(address: Address | None) -> None:
    assert wire_reply(request_from(address, "c")) == b""


@pytest.mark.parametrize(
    ("address", "correlation", "expected"),
    [
        (Address(Kind.QUEUE, "q"), "", b"q"),
        (Address(Kind.QUEUE, "q"), "c-1", b"reply:queue:q:c-1"),
        (Address(Kind.QUEUE, "q"), "a b:c", b"reply:queue:q:a%20b%3Ac"),
        (Address(Kind.TOPIC, "t"), "", b"reply:topic:t:"),
        (Address(Kind.QUEUE, "a b"), "", b"reply:queue:a%20b:"),
        (Address(Kind.QUEUE, "a\r\nb"), "", b"reply:queue:a%0D%0Ab:"),
        (Address(Kind.QUEUE, "reply:queue:x:y"), "", b"reply:queue:reply%3Aqueue%3Ax%3Ay:"),
        (Address(Kind.QUEUE, "reply:queue:x:"), "", b"reply:queue:x:"),
        (Address(Kind.QUEUE, "\udcff"), "\ud800", b"reply:queue:%FF:%ED%A0%80"),
    ],
)
def test_reply_address_contains_destination_and_correlation_id(
    address: Address, correlation: str, expected: bytes
) -> None:
    assert wire_reply(request_from(address, correlation)) == expected
    assert read_address(expected) == (address, correlation)


def test_reply_address_too_long_for_line_is_omitted() -> None:
    queue = Address(Kind.QUEUE, "q")
    assert len(wire_reply(request_from(queue, "ö" * 9_900))) == 6 * 9_900 + len("reply:queue:q:")
    assert wire_reply(request_from(queue, "ö" * 10_000)) == b""


def test_reply_to_jms_is_correlated_by_message_id() -> None:
    request = request_from(Address(Kind.QUEUE, "q"))
    request.message_id = "ID:1"
    assert wire_reply(request) == b"reply:queue:q:ID%3A1"
    request.correlation_id = "c"
    assert wire_reply(request) == b"reply:queue:q:c"
    request = request_from(Address(Kind.QUEUE, "q"), origin=Origin.VIBEMQ)
    request.message_id = "published"
    assert wire_reply(request) == b"q"


@given(
    st.sampled_from(Kind),
    st.binary(min_size=1).map(decode_name),
    st.text(st.characters()),
)
def test_every_address_and_correlation_id_can_be_encoded(
    kind: Kind, name: str, correlation: str
) -> None:
    address = Address(kind, name)
    raw = wire_reply(request_from(address, correlation))
    assert not set(raw) & set(b" \t\r\n")
    assert read_address(raw) == (address, correlation)
    message = made(1, raw)
    assert (message.reply_to, message.correlation_id) == (address, correlation)
    assert wire_reply(message) == raw


@given(st.sampled_from([b"reply:queue:", b"reply:topic:"]), st.binary())
def test_any_address_comes_out_as_it_went_in(start: bytes, rest: bytes) -> None:
    raw = start + rest.translate(None, b" \t\r\n")
    assert wire_reply(made(1, raw)) == raw


@pytest.mark.parametrize(
    "name",
    [
        b"reply:",
        b"reply:queue:a",
        b"reply:queue::c",
        b"reply:stack:a:c",
        b"reply:queue:a%2:c",
        b"reply:queue:a%2fb:c",
        b"reply:queue:%61:c",
        b"reply:queue:a:%FF",
        b"reply:queue:a:c:d",
        b"reply:queue:a:",
        b"reply:queue:reply%3Aqueue%3Aa%3A:",
        b"replies",
    ],
)
def test_malformed_reply_addresses_are_queue_names(name: bytes) -> None:
    assert read_address(name) == (Address(Kind.QUEUE, name.decode()), "")
    assert wire_reply(made(1, name)) == name
