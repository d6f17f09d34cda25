from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols.msglite.mapping import (
    FOR_EVER,
    LAST_EXPIRATION,
    shown_body,
    shown_reply,
    shown_timeout,
    to_message,
)

NOW = 1_700_000_000_123
A = Address(Kind.QUEUE, "a")


def made(timeout: int, reply: bytes = b"") -> Message:
    return to_message(A, b"x", timeout, reply, Durability.NONE, NOW)


@given(st.integers(0, 2**63 - 1))
def test_the_senders_number_comes_out(timeout: int) -> None:
    message = made(timeout)
    assert NOW < message.expiration <= LAST_EXPIRATION
    assert shown_timeout(message) == timeout


def test_a_limit_of_the_destination_shows() -> None:
    for timeout in (60, 2**63 - 1):
        message = made(timeout)
        message.expiration = NOW + 5000
        assert shown_timeout(message) == 5
    message.expiration = 0
    assert shown_timeout(message) == FOR_EVER


@pytest.mark.parametrize(
    ("expiration", "shown"),
    [(0, FOR_EVER), (NOW + 1, 1), (NOW + 1000, 1), (NOW + 1001, 2), (NOW, 0), (NOW - 5000, 0)],
)
def test_the_life_of_a_foreign_message_is_rounded_up(expiration: int, shown: int) -> None:
    message = Message(A, b"", origin=Origin.PHPMQ, timestamp=NOW, expiration=expiration)
    assert shown_timeout(message) == shown


@given(st.binary(min_size=1).filter(lambda raw: not set(raw) & set(b" \t\r\n")))
def test_a_reply_address_comes_out_as_it_went_in(raw: bytes) -> None:
    assert shown_reply(made(1, raw)) == raw


@pytest.mark.parametrize(
    "address",
    [
        None,
        Address(Kind.TOPIC, "t"),
        *(Address(Kind.QUEUE, n) for n in ("", "a b", "a\r\nb", "\t")),
    ],
)
def test_a_reply_address_that_cannot_be_said_is_not_shown(address: Address | None) -> None:
    message = made(1)
    message.reply_to = address
    assert shown_reply(message) == b""


def test_bodies() -> None:
    for kind in BodyKind:
        message = Message(A, b"\xff{}", kind)
        assert shown_body(message) == (b"/3t9" if kind is BodyKind.OBJECT else b"\xff{}")
