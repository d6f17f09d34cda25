from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import LAST_TIME, BodyKind, Durability, Origin
from sluicemq.protocols.phpmq.session import to_message
from sluicemq.protocols.phpmq.wire import (
    MessageIds,
    expiration_after,
    seconds_left,
)

IDS = MessageIds(bytes.fromhex("d7e7f68761d34838"))
NOW = 1_700_000_000_000


def test_id_has_32_lower_case_hex_digits() -> None:
    assert IDS.encode(0xABC) == b"d7e7f68761d348380000000000000abc"


@given(st.integers(1, 2**64 - 1))
def test_ids_name_their_sequence_number(sequence: int) -> None:
    assert IDS.decode(IDS.encode(sequence)) == sequence


@pytest.mark.parametrize(
    "message_id",
    [
        b"",
        b"d7e7f68761d348380000000000000AbC",
        b"D7E7F68761D348380000000000000abc",
        b"d7e7f68761d348380000000000000ab",
        b"d7e7f68761d348380000000000000abc0",
        b"d7e7f68761d34838-000000000000abc",
        b"d7e7f68761d34838+000000000000abc",
        b"d7e7f68761d34838 000000000000abc",
        b"d7e7f68761d348380x00000000000abc",
        b"d7e7f68761d348380_0000000000abc0",
        b"d7e7f68761d348370000000000000abc",
    ],
)
def test_other_spellings_and_other_brokers_ids_are_unknown(message_id: bytes) -> None:
    assert IDS.decode(message_id) == 0


@given(st.binary(max_size=64))
def test_any_bytes_are_an_id_or_unknown(message_id: bytes) -> None:
    sequence = IDS.decode(message_id)
    assert sequence == 0 or IDS.encode(sequence) == message_id


def test_time_to_live() -> None:
    assert expiration_after(0, NOW) == 0
    assert expiration_after(3600, NOW) == NOW + 3_600_000
    assert expiration_after(10**20 - 1, NOW) == LAST_TIME


@pytest.mark.parametrize(
    ("left", "expected"), [(3_300_000, 3300), (1001, 2), (1000, 1), (400, 1), (0, 1), (-5000, 1)]
)
def test_remaining_time_is_rounded_up_and_never_encoded_as_unlimited(
    left: int, expected: int
) -> None:
    assert seconds_left(NOW + left, NOW) == expected


def test_no_expiration_is_encoded_as_zero() -> None:
    assert seconds_left(0, NOW) == 0


def test_send_becomes_message() -> None:
    address = Address(Kind.QUEUE, "Foo")
    message = to_message(address, b"\xff", 10, Durability.LAZY, NOW)
    assert message.destination == address
    assert message.body == b"\xff"
    assert message.kind is BodyKind.BYTES
    assert message.origin is Origin.PHPMQ
    assert message.durability is Durability.LAZY
    assert (message.timestamp, message.expiration) == (NOW, NOW + 10_000)
    assert message.priority == 4
