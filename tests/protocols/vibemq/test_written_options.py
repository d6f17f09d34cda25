"""Options of CreateQueue that mean nothing: accepted, read back as they were written, enforced as
something that can be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.protocols.vibemq import queues, wire
from sluicemq.protocols.vibemq.queues import MAX_TICKS, MIN_TICKS, WrittenOptions
from tests.protocols.vibemq.harness import Harness

ORIGINAL = {
    "deliveryMode": 0,
    "maxSize": 10_000,
    "enableDeadLetterQueue": False,
    "overflowStrategy": 0,
    "maxRetryAttempts": 3,
}
"""The original's report of a queue that was created without options."""
LONGEST_MS = 922_337_203_685_478
"""10675199.02:48:05.4775807, rounded up."""


def ttl(milliseconds: int) -> dict[str, object]:
    return {"message_ttl": milliseconds}


VECTORS: list[tuple[dict[str, Any], dict[str, Any], dict[str, object]]] = [
    ({}, {}, {"max_messages": 10_000, "overflow": Overflow.DROP_OLDEST, "max_attempts": 3}),
    ({"messageTtl": None}, {}, ttl(0)),
    ({"messageTtl": "00:00:00"}, {"messageTtl": "00:00:00"}, ttl(0)),
    ({"messageTtl": "-0.00:00:00"}, {"messageTtl": "00:00:00"}, ttl(0)),
    ({"messageTtl": "00:00:00.0000001"}, {"messageTtl": "00:00:00.0000001"}, ttl(1)),
    ({"messageTtl": "00:00:01.2345678"}, {"messageTtl": "00:00:01.2345678"}, ttl(1235)),
    ({"messageTtl": "-00:00:00.0010000"}, {"messageTtl": "-00:00:00.0010000"}, ttl(0)),
    ({"messageTtl": "-00:00:01"}, {"messageTtl": "-00:00:01"}, ttl(0)),
    ({"messageTtl": "-1.02:03:04.5"}, {"messageTtl": "-1.02:03:04.5000000"}, ttl(0)),
    (
        {"messageTtl": "10675199.02:48:05.4775807"},
        {"messageTtl": "10675199.02:48:05.4775807"},
        ttl(LONGEST_MS),
    ),
    (
        {"messageTtl": "-10675199.02:48:05.4775808"},
        {"messageTtl": "-10675199.02:48:05.4775808"},
        ttl(0),
    ),
    ({"messageTtl": "00:00:01.5"}, {"messageTtl": "00:00:01.5000000"}, ttl(1500)),
    ({"messageTtl": "00:00:01.0000000"}, {"messageTtl": "00:00:01"}, ttl(1000)),
    ({"messageTtl": "1.00:00:00"}, {"messageTtl": "1.00:00:00"}, ttl(86_400_000)),
    ({"messageTtl": "01.00:00:00"}, {"messageTtl": "1.00:00:00"}, ttl(86_400_000)),
    ({"messageTtl": "1:2:3"}, {"messageTtl": "01:02:03"}, ttl(3_723_000)),
    ({"messageTtl": "10:00"}, {"messageTtl": "10:00:00"}, ttl(36_000_000)),
    ({"maxQueueSize": 0}, {"maxSize": 0}, {"max_messages": 1}),
    ({"maxQueueSize": -1}, {"maxSize": -1}, {"max_messages": 1}),
    ({"maxQueueSize": -(2**31)}, {"maxSize": -(2**31)}, {"max_messages": 1}),
    ({"maxQueueSize": 5}, {"maxSize": 5}, {"max_messages": 5}),
    ({"maxQueueSize": 2**31 - 1}, {"maxSize": 2**31 - 1}, {"max_messages": 0}),
    ({"maxRetryAttempts": 0}, {"maxRetryAttempts": 0}, {"max_attempts": 1}),
    ({"maxRetryAttempts": -1}, {"maxRetryAttempts": -1}, {"max_attempts": 1}),
    ({"maxRetryAttempts": 2**31 - 1}, {"maxRetryAttempts": 2**31 - 1}, {"max_attempts": 0}),
    ({"mode": -1}, {"deliveryMode": -1}, {"priority_ordering": False}),
    ({"mode": 5}, {"deliveryMode": 5}, {"priority_ordering": False}),
    ({"mode": 2**31 - 1}, {"deliveryMode": 2**31 - 1}, {"priority_ordering": False}),
    ({"overflowStrategy": -1}, {"overflowStrategy": -1}, {"overflow": Overflow.REJECT}),
    ({"overflowStrategy": 99}, {"overflowStrategy": 99}, {"overflow": Overflow.REJECT}),
    ({"deadLetterQueueName": ""}, {"deadLetterQueueName": ""}, {"dead_letter_queue": ""}),
    ({"deadLetterQueueName": "ü"}, {"deadLetterQueueName": "ü"}, {"dead_letter_queue": "ü"}),
    ({"deadLetterQueueName": "a b"}, {"deadLetterQueueName": "a b"}, {"dead_letter_queue": "a b"}),
    ({"deadLetterQueueName": "\n"}, {"deadLetterQueueName": "\n"}, {"dead_letter_queue": ""}),
    ({"deadLetterQueueName": "\0"}, {"deadLetterQueueName": "\0"}, {"dead_letter_queue": ""}),
    (
        {"deadLetterQueueName": "temporary_destination://x"},
        {"deadLetterQueueName": "temporary_destination://x"},
        {"dead_letter_queue": ""},
    ),
    (
        {"deadLetterQueueName": "x" * 3000},
        {"deadLetterQueueName": "x" * 3000},
        {"dead_letter_queue": ""},
    ),
    (
        {"deadLetterQueueName": "a b", "enableDeadLetterQueue": True},
        {"deadLetterQueueName": "a b", "enableDeadLetterQueue": True},
        {"dead_letter_queue": "a b", "dead_letter": True},
    ),
    (
        {"deadLetterQueueName": "", "enableDeadLetterQueue": True},
        {"deadLetterQueueName": "", "enableDeadLetterQueue": True},
        {"dead_letter_queue": "", "dead_letter": True},
    ),
]


@pytest.mark.parametrize(("options", "changed", "settings"), VECTORS)
def test_reports_of_original(
    harness: Harness, options: Any, changed: dict[str, Any], settings: dict[str, Any]
) -> None:
    """`changed` has the fields of the original server (1.8.0) that differ from ORIGINAL."""
    peer = harness.connect()
    peer.create("q", **options)
    info = peer.info("q")
    own_fields = {
        "name",
        "messageCount",
        "subscriberCount",
        "createdAt",
        "unackedCount",
        "createdBy",
    }
    original = {
        key: value
        for key, value in info.items()
        if key not in own_fields and not key.startswith("effective")
    }
    assert original == ORIGINAL | changed
    settings_read = harness.destination("q").settings
    assert {name: getattr(settings_read, name) for name in settings} == settings


@pytest.mark.parametrize("name", ["a\nb", "\0", "temporary_destination://x", "x" * 1025, "ü" * 513])
def test_dead_letters_need_name_that_queue_can_have(harness: Harness, name: str) -> None:
    peer = harness.connect()
    options = {"deadLetterQueueName": name, "enableDeadLetterQueue": True}
    assert peer.error(wire.CREATE_QUEUE, "q", options) == "INVALID_MESSAGE"
    assert not harness.broker.destinations


def test_odd_values_are_enforced_as_something_that_can_be(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", mode=9, maxQueueSize=-5, overflowStrategy=9, messageTtl="-00:00:01")
    peer.publish("q", "1")
    assert peer.error(wire.PUBLISH, "q", "2") == "QUEUE_FULL"
    harness.run_event_loop(10**9)
    assert peer.subscribe("q") == ["1"]


def test_tick_is_millisecond(harness: Harness) -> None:
    peer = harness.connect()
    peer.create("q", messageTtl="00:00:00.0000001")
    peer.publish("q", "1")
    assert harness.destination("q").waiting == 1
    harness.run_event_loop(2)
    assert peer.subscribe("q") == []


@pytest.mark.parametrize("message_ttl", [1, 1500, LONGEST_MS])
def test_longest_life_does_not_end(harness: Harness, message_ttl: int) -> None:
    harness.limit("q", DestinationSettings(message_ttl=message_ttl))
    peer = harness.connect()
    peer.publish("q", "1")
    harness.run_event_loop(1600)
    assert (peer.subscribe("q") == ["1"]) == (message_ttl == LONGEST_MS)


spans = st.integers(MIN_TICKS, MAX_TICKS) | st.integers(-10_000, 10**12)
numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 6)
written = st.builds(
    WrittenOptions,
    st.none() | numbers,
    st.none() | numbers,
    st.none() | spans,
    st.none() | st.booleans(),
    st.none() | st.text(max_size=10),
    st.none() | numbers,
    st.none() | numbers,
)


@given(written)
def test_whatever_is_written_is_read_back(given: WrittenOptions) -> None:
    fields = {
        "mode": given.mode,
        "maxQueueSize": given.max_queue_size,
        "messageTtl": None if given.ttl_ticks is None else queues.format_span(given.ttl_ticks),
        "enableDeadLetterQueue": given.dead_letter,
        "deadLetterQueueName": given.dead_letter_queue,
        "overflowStrategy": given.overflow,
        "maxRetryAttempts": given.max_retry_attempts,
    }
    name = given.dead_letter_queue
    if given.dead_letter and name and not queues.can_be_queue(name):
        return
    harness = Harness()
    peer = harness.connect()
    peer.create("q", **fields)
    destination = harness.destination("q")
    defaults = queues.QueueOptions().written
    expected = WrittenOptions(
        *(
            value if value is not None else default
            for value, default in zip(given, defaults, strict=True)
        )
    )
    assert WrittenOptions.of(destination) == expected
    json.loads(queues.info(destination, True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-02-18T10:00:00.1234567Z", (1_771_408_800_123, 4567)),
        ("2026-02-18T10:00:00.1Z", (1_771_408_800_100, 0)),
        ("2026-02-18T10:00:00Z", (1_771_408_800_000, 0)),
        ("2026-02-18T10:00:00.1234567+00:00", (1_771_408_800_123, 4567)),
        ("0001-01-01T00:00:00Z", None),
        ("2026-02-30T10:00:00Z", None),
        ("2026-02-18", None),
        ("", None),
    ],
)
def test_times_of_creation(text: str, expected: tuple[int, int] | None) -> None:
    assert queues.read_creation(text) == expected
