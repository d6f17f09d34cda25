from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import Address, Kind
from sluicemq.protocols.jmq.fields import (
    QUEUE_CLASS,
    TEMPORARY_QUEUE,
    TEMPORARY_QUEUE_CLASS,
    TEMPORARY_TOPIC,
    TEMPORARY_TOPIC_CLASS,
    TOPIC_CLASS,
    class_of,
    decode_header,
    encode_header,
    format_name,
    read_name,
)


@pytest.mark.parametrize(
    ("name", "wire_name"),
    [
        ("orders.eu_1$", "orders.eu_1$"),
        ("orders-eu", "orders_HYPHEN_eu"),
        ("4C1E0F2A.1F", "_x0034_C1E0F2A.1F"),
        ("a b", "a_x0020_b"),
        ("mq.sys.dmq", "mq.sys.dmq"),
        (f"{TEMPORARY_QUEUE}me_HYPHEN_1/4711/1", f"{TEMPORARY_QUEUE}me_HYPHEN_1/4711/1"),
        ("", ""),
    ],
)
def test_escapes_names(name: str, wire_name: str) -> None:
    assert format_name(name) == wire_name
    assert read_name(wire_name) == name


@given(st.text(), st.sampled_from(Kind), st.sampled_from(["", TEMPORARY_QUEUE, TEMPORARY_TOPIC]))
def test_every_name_survives_a_header(name: str, kind: Kind, prefix: str) -> None:
    address = Address(kind, prefix + name)
    wire_name = format_name(address.name)
    raw = encode_header(wire_name, reply_to=wire_name, reply_to_class=class_of(address))
    header = decode_header(raw)
    is_java_string = not any("\ud800" <= character <= "\udfff" for character in wire_name)
    if is_java_string:
        assert header.queue == (Kind.QUEUE, address.name)
        assert header.topic == (Kind.TOPIC, address.name)
        assert header.reply_address(kind is Kind.TOPIC) == (address if address.name else None)


def test_destination_classes() -> None:
    for kind, permanent, prefix, temporary in (
        (Kind.QUEUE, QUEUE_CLASS, TEMPORARY_QUEUE, TEMPORARY_QUEUE_CLASS),
        (Kind.TOPIC, TOPIC_CLASS, TEMPORARY_TOPIC, TEMPORARY_TOPIC_CLASS),
    ):
        assert class_of(Address(kind, "a")) == permanent
        assert class_of(Address(kind, f"{prefix}1")) == temporary
