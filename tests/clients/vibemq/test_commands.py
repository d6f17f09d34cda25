from __future__ import annotations

from contextlib import suppress
from typing import cast

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.clients.vibemq import VibeMQMessage, commands
from sluicemq.clients.vibemq.connection import ClientConnection
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.queues import (
    Mode,
    QueueOptions,
    Strategy,
    WrittenOptions,
    read_written,
)
from sluicemq.protocols.vibemq.wire import Decoder, Frame


def received(frame: Frame) -> VibeMQMessage:
    return VibeMQMessage(cast(ClientConnection, None), frame)


options = st.builds(
    QueueOptions,
    st.sampled_from(Mode),
    st.integers(1, 2**31 - 1),
    st.integers(0, 10**12),
    st.booleans(),
    st.sampled_from(["", "dead"]),
    st.sampled_from(Strategy),
    st.integers(1, 2**31 - 1),
)


@given(st.binary(max_size=30) | st.text().map(lambda text: text.encode("utf-8", "replace")))
@example(b'"x"')
@example(b' "x" ')
@example(b"1")
@example(b"[1,]")
@example(b'{"a": 1.0}')
@example(b'"\\ud800"')
@example(b"\xef\xbb\xbf1")
@example(b"\x0b1")
def test_any_body_comes_back(body: bytes) -> None:
    payload, headers = commands.payload_of(body)
    (frame,) = Decoder().feed(commands.encode_publish("id", "q", payload, headers))
    assert received(frame).text == body


def test_json_is_sent_unchanged() -> None:
    for body in (b'{"a": 1.0}', b" [1e400] ", b"null", b"9" * 5000):
        payload, headers = commands.payload_of(body)
        assert payload == msgspec.Raw(body)
        assert not headers


@pytest.mark.parametrize("payload", [b'"\\ud800"', b'"x', b'"', b"", b"[", b"1"])
def test_payload_that_is_no_text_is_returned_unchanged(payload: bytes) -> None:
    assert received(Frame(wire.DELIVER, "i", "q", payload)).text == payload


@pytest.mark.parametrize("attempts", ["", "x", "-1", "\u0663", "1" * 5000])
def test_attempts_that_are_no_number(attempts: str) -> None:
    headers = {"deliveryAttempts": attempts}
    assert received(Frame(wire.DELIVER, "i", headers=headers)).attempts == 0


@given(options)
def test_options_reach_the_broker(options: QueueOptions) -> None:
    frame = commands.create_queue("i", "q", options)
    assert read_written(frame.payload, frame.headers).options() == options


DLQ = WrittenOptions(dead_letter=True)
NONE, SECOND, TWO = (
    WrittenOptions(),
    WrittenOptions(ttl_ticks=10**7),
    WrittenOptions(ttl_ticks=2 * 10**7),
)
ZERO, INFINITE = WrittenOptions(ttl_ticks=0), WrittenOptions(ttl_ticks=-10_000)
REDIRECT = WrittenOptions(overflow=3)


@pytest.mark.parametrize(
    ("declared", "found", "conflict"),
    [
        # modes: also unknown ones
        (NONE._replace(mode=1), NONE._replace(mode=0), "mode"),
        (NONE._replace(mode=9), NONE._replace(mode=0), "mode"),
        (NONE._replace(mode=9), NONE._replace(mode=9), ""),
        # a life that the declaration introduces or shortens
        (NONE, NONE, ""),
        (NONE, SECOND, ""),
        (NONE, ZERO, ""),
        (SECOND, NONE, "live"),
        (SECOND, SECOND, ""),
        (SECOND, TWO, "live"),
        (TWO, SECOND, ""),
        (SECOND._replace(ttl_ticks=10**7 - 1), SECOND, "live"),
        (ZERO, NONE, "live"),
        (ZERO, INFINITE, ""),
        (ZERO, SECOND, "live"),
        (INFINITE, NONE, "live"),
        (INFINITE, INFINITE, ""),
        (INFINITE, ZERO, "live"),
        (SECOND, INFINITE, ""),
        (SECOND, ZERO, ""),
        # dead letters that the declaration switches off
        (NONE, DLQ, "keeps dead letters"),
        (DLQ, NONE, ""),
        (DLQ, DLQ, ""),
        # names count if both keep dead letters, and null is not the empty one
        (DLQ._replace(dead_letter_queue="x"), DLQ, "dead-letter queue"),
        (DLQ, DLQ._replace(dead_letter_queue="x"), "dead-letter queue"),
        (DLQ, DLQ._replace(dead_letter_queue=""), "dead-letter queue"),
        (
            DLQ._replace(dead_letter_queue="x"),
            DLQ._replace(dead_letter_queue="X"),
            "dead-letter queue",
        ),
        (DLQ._replace(dead_letter_queue="x"), DLQ._replace(dead_letter_queue="x"), ""),
        (NONE._replace(dead_letter_queue="x"), NONE, ""),
        (DLQ._replace(dead_letter_queue="x"), NONE._replace(dead_letter_queue="y"), ""),
        # an overflow to dead letters that are not kept
        (REDIRECT, NONE._replace(overflow=0), "overflow"),
        (REDIRECT, NONE._replace(overflow=4), "overflow"),
        (REDIRECT._replace(dead_letter=True), NONE._replace(overflow=0), "overflow"),
        (REDIRECT._replace(dead_letter=True), DLQ._replace(overflow=0), ""),
        (REDIRECT, REDIRECT, ""),
        (NONE._replace(overflow=0), REDIRECT, ""),
        (NONE._replace(overflow=4), NONE._replace(overflow=1), ""),
        # fields that may differ
        (NONE._replace(max_queue_size=1), NONE._replace(max_queue_size=2), ""),
        (NONE._replace(max_queue_size=2), NONE._replace(max_queue_size=1), ""),
        (NONE._replace(max_retry_attempts=1), NONE._replace(max_retry_attempts=9), ""),
    ],
)
def test_conflicts_equal_those_of_net_client(
    declared: WrittenOptions, found: WrittenOptions, conflict: str
) -> None:
    """The table is that of the .NET client 1.8.0, which distinguishes soft and hard conflicts."""
    differences = commands.conflicts(declared, found)
    assert len(differences) == (1 if conflict else 0)
    assert conflict in "".join(differences)


@given(options)
def test_a_queue_does_not_conflict_with_its_own_declaration(options: QueueOptions) -> None:
    assert commands.conflicts(options.written, options.written) == []


KEYS = [
    "name",
    "messageCount",
    "subscriberCount",
    "deliveryMode",
    "maxSize",
    "createdAt",
    "messageTtl",
    "username",
    "isSuperuser",
    "queuePattern",
    "operations",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=8,
        )
    ),
)


@given(st.binary(max_size=20) | values.map(msgspec.json.encode))
def test_malformed_answers_are_reported_as_lost_connections(payload: bytes) -> None:
    answer = Frame(wire.QUEUE_INFO, "i", payload=payload)
    for function in (
        commands.read_info,
        commands.read_names,
    ):
        with suppress(ConnectionLost):  # and nothing else
            function(answer)
