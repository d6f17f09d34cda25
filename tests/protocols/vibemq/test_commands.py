from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.vibemq import commands, wire
from sluicemq.protocols.vibemq.queues import Mode, Options, Strategy, read_options
from sluicemq.protocols.vibemq.wire import Decoder, Frame

options = st.builds(
    Options,
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
    assert commands.Received(frame).text == body


def test_json_is_sent_as_it_is() -> None:
    for body in (b'{"a": 1.0}', b" [1e400] ", b"null", b"9" * 5000):
        payload, headers = commands.payload_of(body)
        assert payload == msgspec.Raw(body)
        assert not headers


@pytest.mark.parametrize("payload", [b'"\\ud800"', b'"x', b'"', b"", b"[", b"1"])
def test_what_is_no_text_is_shown_as_it_is(payload: bytes) -> None:
    assert commands.Received(Frame(wire.DELIVER, "i", "q", payload)).text == payload


@pytest.mark.parametrize("attempts", ["", "x", "-1", "\u0663", "1" * 5000])
def test_attempts_that_are_no_number(attempts: str) -> None:
    headers = {"deliveryAttempts": attempts}
    assert commands.Received(Frame(wire.DELIVER, "i", headers=headers)).attempts == 0


@given(options)
def test_options_reach_the_broker(options: Options) -> None:
    frame = commands.create_queue("i", "q", options)
    assert read_options(frame.payload, frame.headers) == options


@given(options, options)
def test_conflicts_are_what_can_cost_messages(wanted: Options, found: Options) -> None:
    harmless = found._replace(
        mode=wanted.mode,
        dead_letter_queue=wanted.dead_letter_queue,
        message_ttl=wanted.message_ttl,
        dead_letter=True,
    )
    assert commands.conflicts(wanted, harmless) == []
    assert commands.conflicts(wanted, harmless._replace(message_ttl=0)) == []
    shorter = wanted.message_ttl - 1 if wanted.message_ttl > 1 else wanted.message_ttl + 1
    if wanted.message_ttl != 1:
        assert commands.conflicts(wanted, harmless._replace(message_ttl=shorter))
    if found.mode is not wanted.mode:
        assert commands.conflicts(wanted, harmless._replace(mode=found.mode))


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
def test_answers_without_sense_are_told_as_such(payload: bytes) -> None:
    answer = Frame(wire.QUEUE_INFO, "i", payload=payload)
    for read in (
        commands.read_info,
        commands.read_names,
        commands.read_users,
        commands.read_grants,
    ):
        with suppress(ConnectionLost):  # and nothing else
            read(answer)
