"""Selectors of JMS consumers on messages of other protocols."""

from __future__ import annotations

import pytest

from sluicemq.broker import compile_selector
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Durability, Message
from sluicemq.protocols.phpmq import session as phpmq
from sluicemq.protocols.vibemq import mapping as vibemq
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame

QUEUE = Address(Kind.QUEUE, "q")


def vibemq_message(**headers: str) -> Message:
    frame = Frame(
        wire.PUBLISH, "id", "q", b"{}", {k.replace("__", "-"): v for k, v in headers.items()}
    )
    return vibemq.to_message(QUEUE, frame, Durability.SYNC, 1000)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("color = 'red'", True),
        ("color = 'blue'", False),
        ("color LIKE 'r_d' AND size IS NOT NULL", True),
        ("size = '5'", True),
        ("size = 5", False),  # headers are strings, which JMS does not compare with numbers
        ("content_HYPHEN_type = 'text/plain'", True),
        ("content_HYPHEN_type <> 'text/plain'", False),
        ("content_HYPHEN_type IN ('a', 'text/plain')", True),
        ("content_HYPHEN_length IS NULL", True),
        ("JMSPriority = 6 AND JMSCorrelationID = 'c' AND JMSType = 'order'", True),
        ("JMSMessageID = 'id'", True),
        ("JMSDeliveryMode = 'PERSISTENT' AND JMSTimestamp = 1000", True),
        ("correlationId IS NULL AND priority IS NULL", True),
    ],
)
def test_selectors_match_headers_of_vibemq(selector: str, selected: bool) -> None:
    message = vibemq_message(
        color="red",
        size="5",
        content__type="text/plain",
        priority="high",
        correlationId="c",
        JMSType="order",
    )
    assert compile_selector(selector)(message) is selected


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("JMSPriority = 4", True),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", True),
        ("JMSMessageID IS NULL AND JMSType IS NULL AND a IS NULL", True),
        ("a_HYPHEN_b = 'x'", False),
    ],
)
def test_selectors_match_messages_without_headers(selector: str, selected: bool) -> None:
    message = phpmq.to_message(QUEUE, b"x", 0, Durability.NONE, 1000)
    assert compile_selector(selector)(message) is selected


def test_property_with_exact_name_has_precedence() -> None:
    message = Message(QUEUE, b"", properties={"a-b": "header", "a_HYPHEN_b": "property"})
    assert compile_selector("a_HYPHEN_b = 'property'")(message)
