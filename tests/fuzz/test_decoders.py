"""Decoders of untrusted bytes: damaged conversations in both directions and any fragmentation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluicemq.model.errors import ProtocolError
from sluicemq.protocols.java import loads_map, loads_stream
from sluicemq.protocols.jmq import wire as jmq_wire
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.msglite import http
from sluicemq.protocols.msglite import wire as msglite_wire
from sluicemq.protocols.phpmq import wire as phpmq_wire
from sluicemq.server.session_factories import HTTP_METHODS, detect_jmq_protocol, detect_protocol
from tests.fuzz import corpus
from tests.fuzz import jmq as jmq_corpus
from tests.fuzz.mutations import mutate

seeds = st.randoms(use_true_random=False)
MANY = settings(max_examples=4 * settings.default.max_examples)


class Result(NamedTuple):
    """Final result of a decoder, which must not depend on fragmentation."""

    frames: list[Any]
    error: str
    incomplete: bool


def phpmq(kinds: frozenset[int], chunks: list[bytes]) -> Result:
    decoder = phpmq_wire.Decoder(phpmq_wire.Limits(body=1000), kinds)
    frames = [frame for piece in chunks for frame in decoder.feed(piece)]
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)
    for _, queue, content, message_id, number in frames:
        assert 0 < len(queue) <= 1024
        assert len(content) <= 1000
        assert len(message_id) <= 64
        assert -1 <= number < 10**20
    return Result(frames, str(decoder.error), decoder.error is None and decoder.incomplete)


def msglite(kinds: frozenset[int], chunks: list[bytes]) -> Result:
    decoder = msglite_wire.Decoder(msglite_wire.Limits(line=2000, body=1000), kinds)
    frames = [frame for piece in chunks for frame in decoder.feed(piece)]
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)
    for kind, timeout, addresses, body in frames:
        assert kind in kinds
        assert 0 <= timeout <= msglite_wire.MAX_TIMEOUT
        assert len(addresses) <= msglite_wire.MAX_ADDRESSES
        assert all(map(msglite_wire.is_address, addresses))
        assert len(body) <= 1000
    return Result(frames, str(decoder.error), decoder.error is None and decoder.incomplete)


def jmq(chunks: list[bytes]) -> Result:
    """Decode packets and their lazily decoded parts."""
    decoder = jmq_wire.Decoder(jmq_wire.Limits(packet=4000, header=1000, properties=2000))
    frames: list[Any] = []
    for piece in chunks:
        for packet in decoder.feed(piece):
            if isinstance(packet, jmq_wire.Oversized):
                assert packet.size > 1000
                header_fields = (packet.type, packet.flags, packet.consumer_id, packet.size)
                frames.append((*header_fields, packet.header))
                continue
            assert len(packet.head) + len(packet.body) <= 4000
            assert len(packet.sysid) == 32
            frames.append((packet.head, packet.body, *_looked_into(packet)))
    assert decoder.error is None or isinstance(decoder.error, ProtocolError)
    return Result(frames, str(decoder.error), decoder.error is None and decoder.incomplete)


def _looked_into(packet: jmq_wire.Packet) -> list[str]:
    """Return the parts of a packet as text, or their errors."""
    readers: list[Callable[[], object]] = [
        lambda: sorted(map(str, packet.properties.items())),
        lambda: packet.variable.stored,
    ]
    if packet.is_message:
        readers.append(lambda: message_of(packet).native)
    if packet.type == PacketType.MAP_MESSAGE:
        readers.append(lambda: loads_map(packet.body))
    if packet.type == PacketType.STREAM_MESSAGE:
        readers.append(lambda: loads_stream(packet.body))
    results = []
    for reader in readers:
        try:
            results.append(repr(reader()))
        except ProtocolError as error:
            results.append(str(error))
    return results


def request(chunks: list[bytes]) -> Result:
    reader = http.RequestReader(1000)
    with patch.multiple(http, MAX_LINE=300, MAX_LINES=10):
        for piece in chunks:
            reader.feed(piece)
        reader.end()
    assert reader.error is None or isinstance(reader.error, ProtocolError)
    assert (reader.request is None) != (reader.error is None)
    if reader.request is not None:
        assert len(reader.request.body) <= 1000
    return Result([reader.request], str(reader.error), False)


Decode = Callable[[list[bytes]], Result]
DECODERS: dict[str, tuple[corpus.Conversation, Decode]] = {
    "phpmq client": (corpus.phpmq, lambda chunks: phpmq(phpmq_wire.FROM_CLIENT, chunks)),
    "phpmq broker": (corpus.phpmq_broker, lambda chunks: phpmq(phpmq_wire.FROM_SERVER, chunks)),
    "msglite client": (corpus.msglite, lambda chunks: msglite(msglite_wire.FROM_CLIENT, chunks)),
    "msglite broker": (
        corpus.msglite_broker,
        lambda chunks: msglite(msglite_wire.FROM_SERVER, chunks),
    ),
    "jmq client": (jmq_corpus.client, jmq),
    "jmq broker": (jmq_corpus.broker, jmq),
    "http": (corpus.http, request),
}


@pytest.mark.parametrize("name", DECODERS)
@MANY
@given(chance=seeds)
def test_what_is_valid_is_taken(name: str, chance: Random) -> None:
    conversation, decode = DECODERS[name]
    frames = conversation(chance)
    result = decode([b"".join(frames)])
    assert result.error == "None"
    assert not result.incomplete
    assert len(result.frames) == (1 if name == "http" else len(frames))


@pytest.mark.parametrize("name", DECODERS)
@MANY
@given(chance=seeds)
def test_damage_is_read_the_same_way_however_it_is_cut(name: str, chance: Random) -> None:
    conversation, decode = DECODERS[name]
    data = b"".join(mutate(chance, conversation(chance)))
    expected = decode([data])
    cuts = sorted(
        {0, len(data), *(chance.randint(0, len(data)) for _ in range(chance.randint(0, 9)))}
    )
    assert decode([data[a:b] for a, b in pairwise(cuts)]) == expected
    assert decode([data[position : position + 1] for position in range(len(data))]) == expected


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=200), step=st.integers(1, 50))
def test_noise_is_read_the_same_way_however_it_is_cut(name: str, data: bytes, step: int) -> None:
    _, decode = DECODERS[name]
    chunks = [data[position : position + step] for position in range(0, len(data), step)]
    assert decode(chunks) == decode([data])


@pytest.mark.parametrize("detect", [detect_protocol, detect_jmq_protocol])
@given(data=st.binary(max_size=6))
def test_a_protocol_that_is_recognised_stays_so(
    detect: Callable[[bytes], str | None], data: bytes
) -> None:
    answers = [detect(data[:length]) for length in range(len(data) + 1)]
    known_answers = [answer for answer in answers if answer is not None]
    assert len(set(known_answers)) <= 1
    method = any(name.startswith(data[:2]) for name in HTTP_METHODS)
    assert detect(data[:2]) is not None or len(data) < 2 or method


@pytest.mark.parametrize(
    ("name", "conversation"),
    [
        ("phpmq", corpus.phpmq),
        ("msglite", corpus.msglite),
        ("jmq", jmq_corpus.client),
        ("jmq-portmapper", jmq_corpus.port_mapper),
    ],
)
@given(chance=seeds)
def test_what_clients_begin_with_is_recognised(
    name: str, conversation: corpus.Conversation, chance: Random
) -> None:
    stream = b"".join(conversation(chance))
    assume(stream)  # without input no protocol is detected
    assert detect_protocol(stream) == name
