"""Large frames: read in another thread, sent compressed, skipped, declined."""

from __future__ import annotations

import json
import random
import zlib
from base64 import b64encode

import pytest

from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import UNCOMPRESSED_SIZE, BodyKind, Message, Origin
from sluicemq.protocols import java
from sluicemq.protocols.jmq import wire as jmq_wire
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.packets import PacketType, Q, Z
from sluicemq.protocols.offload import MAX_RUNNING_JOBS
from sluicemq.protocols.vibemq import consumers, mapping, wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.connection import SessionOptions
from sluicemq.protocols.vibemq.large import LargeKey, encode_large
from sluicemq.protocols.vibemq.session import MAX_UNPACKED_BYTES
from sluicemq.protocols.vibemq.wire import Decoder, Frame, Limits
from tests.protocols.vibemq.harness import Harness, Peer

ORDERS = json.dumps(
    [{"id": n, "name": f"order {n}", "price": n * 7} for n in range(30_000)]
).encode()
"""1.4 MB."""
NOISE = b'"%b"' % random.Random(1).randbytes(1_500_000).hex().encode()[:2_500_000]
"""JSON that no compression brings below a megabyte."""


def compressed_publish(
    payload: bytes, identity: str = "m", algorithm: Compression = Compression.BROTLI
) -> bytes:
    frame = Frame(wire.PUBLISH, identity, "q", payload)
    return wire.compressed(wire.encode(frame, limit=wire.MAX_UNPACKED), algorithm)


def read(peer: Peer) -> list[Frame]:
    """Return the frames read by a client that unpacks up to one MiB, like the .NET client."""
    decoder = Decoder(Limits(frame=wire.MAX_BODY, unpacked=wire.MAX_UNPACKED))
    frames = decoder.feed(peer.transport.take_written())
    assert decoder.error is None
    assert not decoder.incomplete
    return frames


def compressing(harness: Harness, names: str = "brotli,gzip") -> Peer:
    options = SessionOptions(window_bytes=1 << 24)
    return harness.connect(options, **{"supported-compression": names})


def publish(harness: Harness, payload: bytes, queue: str = "q") -> Message:
    destination = harness.broker.destinations.queue(queue)
    message = Message(destination.address, payload, BodyKind.JSON, Origin.VIBEMQ)
    harness.broker.publish(destination, message)
    harness.run_until_idle()
    return message


def publish_large(harness: Harness) -> None:
    """Publish ORDERS as `m`; `run_until_idle` runs the jobs of the other threads."""
    publisher = harness.connect()
    publisher.session.receive(compressed_publish(ORDERS))
    harness.run_event_loop()
    harness.background.run()
    harness.run_event_loop()
    assert [frame.id for frame in read(publisher)] == ["m"]


# --- receiving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [Compression.GZIP, Compression.BROTLI])
def test_large_list_is_published_compressed(harness: Harness, algorithm: Compression) -> None:
    assert len(ORDERS) > 1_400_000
    peer = compressing(harness)
    peer.session.receive(compressed_publish(ORDERS, algorithm=algorithm))
    assert peer.transport.paused
    harness.run_until_idle()
    [response] = read(peer)
    assert (response.type, response.id) == (wire.PUBLISH_ACK, "m")
    assert harness.bodies("q") == [ORDERS]
    assert not peer.transport.paused
    assert peer.session.buffered == 0
    assert harness.memory.reserved == 0


def test_frames_around_large_one_keep_their_order(harness: Harness) -> None:
    peer = compressing(harness)
    small = [wire.encode(Frame(wire.PUBLISH, str(n), "q", b"%d" % n)) for n in range(4)]
    peer.session.receive(
        small[0]
        + compressed_publish(ORDERS)
        + small[1]
        + compressed_publish(ORDERS, "m2")
        + small[2]
    )
    harness.run_event_loop()
    assert harness.bodies("q") == [b"0"]
    assert peer.transport.paused
    peer.session.receive(small[3])
    harness.run_until_idle()
    assert [frame.id for frame in read(peer)] == ["0", "m", "1", "m2", "2", "3"]


def test_large_plain_payload_is_checked_off_event_loop(harness: Harness) -> None:
    peer = harness.connect()
    content = b'"%b"' % (b"x" * 300_000)
    for number, payload in enumerate((content, content[:-1])):
        peer.session.receive(wire.encode(Frame(wire.PUBLISH, str(number), "q", payload)))
        harness.run_event_loop()
        assert harness.background.jobs
        harness.run_until_idle()
    response, error = read(peer)
    assert (response.type, response.id) == (wire.PUBLISH_ACK, "0")
    assert (error.type, error.id, error.error_code) == (wire.ERROR, "1", "INVALID_MESSAGE")
    assert peer.request(wire.PING).type == wire.PONG
    assert harness.bodies("q") == [content]


@pytest.mark.parametrize(("padding", "kind"), [("", BodyKind.BYTES), ("=", BodyKind.JSON)])
def test_large_base64_payload_is_decoded_off_event_loop(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, padding: str, kind: BodyKind
) -> None:
    peer = harness.connect()
    body = bytes(300_000)
    payload = b'"%b%b"' % (b64encode(body), padding.encode())
    headers = {"content-encoding": "base64"}
    peer.session.receive(wire.encode(Frame(wire.PUBLISH, "m", "q", payload, headers)))
    harness.run_event_loop()
    harness.background.run()
    monkeypatch.setattr(mapping, "b64decode", None)  # no further call is allowed
    harness.run_event_loop()
    [response] = read(peer)
    assert response.type == wire.PUBLISH_ACK
    [delivery] = harness.destination("q").queue.browse()
    assert delivery.message is not None
    assert delivery.message.kind is kind
    assert delivery.message.body == (body if kind is BodyKind.BYTES else payload)


def test_large_request_other_than_publish_is_refused(harness: Harness) -> None:
    peer = harness.connect()
    payload = b'{"maxQueueSize":5,"x":"%b"}' % (b"x" * 300_000)
    peer.session.receive(wire.encode(Frame(wire.CREATE_QUEUE, "c", "q", payload)))
    harness.run_until_idle()
    [error] = read(peer)
    assert (error.id, error.error_code) == ("c", "INVALID_MESSAGE")
    assert harness.find("q") is None
    assert peer.transport.open


def test_plain_frame_above_limit_is_skipped(harness: Harness) -> None:
    peer = harness.connect()
    data = wire.encode(Frame(wire.PUBLISH, "big", "q", ORDERS), limit=wire.MAX_UNPACKED)
    for position in range(0, len(data), 100_000):
        peer.session.receive(data[position : position + 100_000])
        assert peer.session.buffered <= 1
    [error] = read(peer)
    assert (error.type, error.id, error.error_code) == (wire.ERROR, "big", "INVALID_MESSAGE")
    assert "1048576" in error.error_message
    peer.publish("q", "next")
    assert harness.bodies("q") == [b'"next"']


def test_plain_frame_above_unpacked_limit_is_skipped(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(unpacked=1000))
    peer.send_bytes(wire.encode(Frame(wire.PUBLISH, "big", "q", b'"%b"' % (b"x" * 2000))))
    assert peer.frames()[0].id == "big"
    peer.publish("q", "next")


def test_compressed_frame_above_unpacked_limit_ends_connection(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(unpacked=1_000_000))
    peer.session.receive(compressed_publish(ORDERS))
    harness.run_until_idle()
    [error] = read(peer)
    assert error.error_code == "INVALID_MESSAGE"
    assert error.id
    assert "1000000" in error.error_message
    assert not peer.transport.open
    assert harness.find("q") is None
    assert harness.memory.reserved == 0


def test_compressed_frame_above_frame_limit_ends_connection(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_bytes((wire.MAX_BODY + 1).to_bytes(4, "big") + b"\2")
    assert peer.frames()[0].error_code == "INVALID_MESSAGE"
    assert not peer.transport.open


def test_compressed_frame_before_login_is_refused(harness: Harness) -> None:
    peer = harness.open_connection()
    frame = Frame(wire.CONNECT, "hello", headers={"x": "y" * 4000})
    peer.send_bytes(wire.compressed(wire.encode(frame), Compression.BROTLI))
    [error] = peer.frames()
    assert "before the login" in error.error_message
    assert not peer.transport.open


def test_bombs_are_unpacked_few_at_time_and_only_with_memory(harness: Harness) -> None:
    bomb = compressed_publish(b'"%b"' % bytes(40_000_000))
    assert len(bomb) < 10_000
    peers = [harness.connect() for _ in range(3 * MAX_RUNNING_JOBS)]
    full_size = 2 * wire.MAX_UNPACKED
    harness.memory.limit = 3 * full_size // 2
    for peer in peers:
        peer.session.receive(bomb)
    highest = 0
    for _ in range(100):
        harness.run_event_loop()
        assert len(harness.background.jobs) <= MAX_RUNNING_JOBS
        highest = max(highest, harness.memory.reserved)
        harness.background.run()
    assert full_size <= highest <= harness.memory.limit
    assert harness.memory.reserved == 0
    for peer in peers:
        assert read(peer)[0].error_code == "INVALID_MESSAGE"  # control characters
        assert peer.transport.open


def test_moderate_frame_reserves_little_memory(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(compressed_publish(ORDERS))
    harness.run_event_loop()
    assert harness.memory.reserved == 2 * MAX_UNPACKED_BYTES


def test_connection_that_closes_meanwhile(harness: Harness) -> None:
    peers = [harness.connect() for _ in range(4)]
    for peer in peers:
        peer.session.receive(compressed_publish(ORDERS))
    harness.run_event_loop()
    assert len(harness.background.jobs) == MAX_RUNNING_JOBS
    for peer in peers:
        peer.drop()
        assert peer.session.buffered == 0
    harness.run_until_idle()
    assert harness.find("q") is None
    assert harness.memory.reserved == 0


def test_end_of_input_waits_for_large_frame(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(
        compressed_publish(ORDERS) + wire.encode(Frame(wire.PUBLISH, "last", "q", b"1"))
    )
    peer.session.end_of_input()
    harness.run_until_idle()
    assert [frame.id for frame in read(peer)] == ["m", "last"]
    assert peer.transport.close_reason == ""


def test_shutdown_does_not_wait_for_large_frame(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(compressed_publish(ORDERS))
    harness.run_event_loop()
    peer.session.disconnect("the broker stops", stopping=True)
    harness.run_until_idle()
    assert [frame.type for frame in read(peer)] == [wire.DISCONNECT]
    assert harness.find("q") is None


# --- sending -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["gzip", "brotli"])
def test_large_message_is_delivered_compressed(harness: Harness, names: str) -> None:
    publish(harness, ORDERS)
    publish(harness, b"1")
    peer = compressing(harness, names)
    peer.subscribe("q")
    harness.run_until_idle()
    large_message, small = read(peer)
    assert large_message.payload == ORDERS
    assert large_message.headers["deliveryAttempts"] == "1"
    assert small.payload == b"1"
    peer.acknowledge(large_message.id, small.id)
    assert harness.bodies("q") == []


def test_messages_after_large_message_wait_for_it(harness: Harness) -> None:
    peer = compressing(harness)
    peer.subscribe("q")
    publishing = harness.connect()
    publishing.session.receive(compressed_publish(ORDERS))
    harness.run_until_idle()
    read(publishing)
    publishing.publish("q", "small")
    harness.run_until_idle()
    assert [frame.id for frame in read(peer)] == ["m", "small"]


def test_redelivery_of_large_message_that_was_not_sent_counts_no_attempt(harness: Harness) -> None:
    peer = compressing(harness)
    peer.create("q", maxRetryAttempts=2)
    publish(harness, ORDERS)
    peer.subscribe("q")
    harness.run_until_idle()
    assert read(peer)[0].headers["deliveryAttempts"] == "1"
    harness.run_event_loop(30_000)  # its timeout
    assert len(harness.background.jobs) == 1
    peer.drop()
    other = compressing(harness)
    other.subscribe("q")
    harness.run_until_idle()
    assert read(other)[0].headers["deliveryAttempts"] == "2"


def test_message_with_large_headers_is_compressed_off_event_loop(harness: Harness) -> None:
    headers = {f"{number}-{'x' * 60_000}": "v" for number in range(50)}
    publisher = compressing(harness)
    frame = Frame(wire.PUBLISH, "m", "q", b"1", headers)
    data = wire.encode(frame, limit=wire.MAX_UNPACKED)
    publisher.session.receive(wire.compressed(data, Compression.BROTLI))
    harness.run_until_idle()
    peer = compressing(harness)
    peer.subscribe("q")
    assert (peer.more, len(harness.background.jobs)) == ([], 1)
    harness.run_until_idle()
    [delivered] = read(peer)
    assert delivered.headers == {**headers, "deliveryAttempts": "1"}


@pytest.mark.parametrize(("size", "jobs"), [(1000, 0), (2_000_000, 1)])
def test_compressed_message_of_jms_client_is_unpacked_off_event_loop_if_large(
    harness: Harness, size: int, jobs: int
) -> None:
    text = b"x" * size
    properties = {UNCOMPRESSED_SIZE: size}
    header = encode_header("q")
    data = jmq_wire.encode_packet(
        PacketType.TEXT_MESSAGE, Q | Z, 0, properties, header, zlib.compress(text)
    )
    [packet] = jmq_wire.Decoder().feed(data)
    harness.broker.publish(harness.broker.destinations.queue("q"), message_of(packet))
    harness.run_event_loop()
    peer = compressing(harness)
    peer.session.receive(wire.encode(Frame(wire.SUBSCRIBE, "s", "q")))
    assert len(harness.background.jobs) == jobs
    harness.run_until_idle()
    [_, delivered] = read(peer)
    assert delivered.payload == b'"%b"' % text


@pytest.mark.parametrize(("entries", "jobs"), [(100, 0), (2000, 1)])
def test_map_of_jms_client_is_converted_off_event_loop_if_that_takes_long(
    harness: Harness, entries: int, jobs: int
) -> None:
    values = {f"key {number}": number for number in range(entries)}
    queue = harness.broker.destinations.queue("q")
    body = java.dumps_map(values)
    harness.broker.publish(queue, Message(queue.address, body, BodyKind.MAP, Origin.JMQ))
    peer = harness.connect()
    peer.session.receive(wire.encode(Frame(wire.SUBSCRIBE, "s", "q")))
    assert len(harness.background.jobs) == jobs
    harness.run_until_idle()
    [_, delivered] = peer.frames()
    assert json.loads(delivered.payload) == values


def test_message_is_compressed_once_for_all_subscribers(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences: list[int] = []

    def counted(message: Message, identity: bytes, key: LargeKey, threshold: int) -> bytes:
        sequences.append(key.sequence)
        return encode_large(message, identity, key, threshold)

    monkeypatch.setattr(consumers, "encode_large", counted)
    owner = compressing(harness)
    owner.create("q", mode=1)
    peers = [compressing(harness) for _ in range(5)]
    for peer in peers:
        peer.subscribe("q")
    owner.session.receive(compressed_publish(ORDERS))
    harness.run_until_idle()
    for peer in peers:
        [frame] = read(peer)
        assert frame.payload == ORDERS
    assert len(sequences) == 1


def test_message_waits_for_consumer_that_can_take_it(harness: Harness) -> None:
    uncompressed = harness.connect()
    uncompressed.subscribe("q")
    consumer = compressing(harness)
    consumer.subscribe("q")
    consumer.stop_reading()
    publish(harness, ORDERS)
    publish(harness, b"1")
    assert [frame.payload for frame in read(uncompressed)] == [b"1"]
    assert harness.bodies("q") == [ORDERS, b"1"]
    consumer.read_again()
    harness.run_until_idle()
    [frame] = read(consumer)
    assert frame.payload == ORDERS
    assert frame.headers["deliveryAttempts"] == "1"
    assert read(uncompressed) == []


def test_skipped_message_is_given_to_consumer_that_comes(harness: Harness) -> None:
    uncompressed = harness.connect()
    uncompressed.subscribe("q")
    former = compressing(harness)
    former.subscribe("q")
    former.stop_reading()
    publish(harness, ORDERS)
    former.drop()
    harness.run_until_idle()
    assert harness.bodies("q") == [ORDERS]
    consumer = compressing(harness)
    consumer.subscribe("q")
    harness.run_until_idle()
    assert [frame.payload for frame in read(consumer)] == [ORDERS]


def test_skipping_does_not_spin(harness: Harness) -> None:
    """Each message is tried once for each kind of consumer, not once in each iteration."""
    uncompressed = [harness.connect() for _ in range(3)]
    for peer in uncompressed:
        peer.subscribe("q")
    consumer = compressing(harness)
    consumer.subscribe("q")
    consumer.stop_reading()
    for _ in range(5):
        publish(harness, ORDERS)
    destination = harness.find("q")
    assert destination is not None
    before = destination.statistics.delivered
    for _ in range(10):
        publish(harness, b"1")
    assert destination.statistics.delivered == before + 10
    assert sum(len(read(peer)) for peer in uncompressed) == 10
    assert destination.queue.ready == 5


def test_message_that_no_consumer_can_take_is_dead_lettered(harness: Harness) -> None:
    peer = compressing(harness)
    peer.subscribe("q")
    other = harness.connect()
    other.subscribe("q")
    publish(harness, NOISE)
    publish(harness, b"1")
    publish(harness, NOISE)
    assert harness.bodies("q.dlq") == [NOISE, NOISE]
    assert [frame.payload for frame in read(peer) + read(other)] == [b"1"]
    dead_letters = harness.find("q.dlq")
    assert dead_letters is not None
    for delivery in dead_letters.queue.browse():
        assert delivery.message is not None
        assert (delivery.message.properties or {})["deadLetterReason"] == "TooLargeForVibeMQ"


def test_message_with_more_headers_than_a_frame_can_have_is_dead_lettered(
    harness: Harness,
) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    destination = harness.destination("q")
    message = Message(destination.address, b"x", BodyKind.TEXT, Origin.INTERNAL)
    message.properties = dict.fromkeys(map(str, range(wire.MAX_STRING + 1)), True)
    harness.broker.publish(destination, message)
    harness.run_until_idle()
    assert peer.frames() == []
    assert harness.bodies("q.dlq") == [b"x"]


def test_message_whose_stored_headers_are_damaged_is_not_taken_for_too_large() -> None:
    message = Message(Address(Kind.QUEUE, "q"), b"1", BodyKind.JSON, Origin.VIBEMQ)
    message.properties = {"deadLetterReason": "expired"}
    message.native = b"\0\1\0\5tr"
    with pytest.raises(ProtocolError, match="ends within"):
        encode_large(message, b"id", LargeKey(1, b"q", 1, Compression.NONE), 0)


def test_dead_letter_that_no_consumer_can_take_stays(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    publish(harness, ORDERS)
    assert harness.bodies("q.dlq") == [ORDERS]
    reader = harness.connect()
    reader.subscribe("q.dlq")
    harness.run_until_idle()
    reader.drop()
    harness.run_until_idle()
    assert harness.bodies("q.dlq") == [ORDERS]
    assert read(reader) == []
    dead_letters = harness.find("q.dlq")
    assert dead_letters is not None
    assert dead_letters.queue.ready == 1
    consumer = compressing(harness)
    consumer.subscribe("q.dlq")
    harness.run_until_idle()
    assert [frame.payload for frame in read(consumer)] == [ORDERS]


def test_consumer_that_leaves_gives_back_what_was_being_compressed(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_attempts=1))
    publish(harness, ORDERS)
    publish(harness, b"1")
    peer = compressing(harness)
    peer.subscribe("q")
    harness.run_event_loop()
    assert harness.background.jobs
    peer.drop()
    harness.run_until_idle()
    assert harness.bodies("q") == [ORDERS, b"1"]
    assert harness.memory.reserved == 0
    other = compressing(harness)
    other.subscribe("q")
    harness.run_until_idle()
    received = other.more + read(other)
    assert [frame.headers["deliveryAttempts"] for frame in received] == ["1", "1"]


LARGE_TEXT = b'"%b"' % (b"x" * 300_000)
"""Three of these are dispatched together."""


def test_nothing_more_is_encoded_for_client_that_does_not_read(harness: Harness) -> None:
    for _ in range(3):
        publish(harness, LARGE_TEXT)
    peer = compressing(harness)
    peer.subscribe("q")
    assert harness.background.jobs
    peer.stop_reading()
    harness.run_until_idle()
    destination = harness.destination("q")
    assert peer.frames() == []
    assert (destination.queue.ready, destination.unacked) == (3, 0)
    peer.read_again()
    harness.run_until_idle()
    assert [frame.headers["deliveryAttempts"] for frame in read(peer)] == ["1"] * 3


def test_window_of_silent_client_stays_small_if_large_messages_return(harness: Harness) -> None:
    options = SessionOptions(ack_timeout=1000, window_bytes=1 << 24)
    peer = harness.connect(options, **{"supported-compression": "gzip"})
    peer.subscribe("q")
    peer.publish("q", "small")
    destination = harness.destination("q")
    for _ in range(3):
        message = Message(destination.address, LARGE_TEXT, BodyKind.JSON, Origin.VIBEMQ)
        harness.broker.publish(destination, message)
    harness.run_event_loop()
    harness.run_event_loop(1000)
    peer.stop_reading()
    harness.run_until_idle()
    peer.read_again()
    harness.run_until_idle()
    assert (destination.queue.ready, destination.unacked) == (3, 1)


def test_short_maps_are_converted_few_at_time(harness: Harness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    destination = harness.destination("q")
    body = java.dumps_map({f"key {number}": number for number in range(100)})
    for _ in range(20):
        message = Message(destination.address, body, BodyKind.MAP, Origin.JMQ)
        harness.broker.publish(destination, message)
    harness.run_event_loop()
    count = len(read(peer))
    assert 0 < count < 10
    harness.run_until_idle()
    assert count + len(read(peer)) == 20


# --- acknowledgement timeouts --------------------------------------------------------------------


def test_timeout_runs_from_sending_of_compressed_message(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(ack_timeout=1000), **{"supported-compression": "gzip"})
    peer.subscribe("q")
    publish_large(harness)
    harness.run_event_loop(1500)
    harness.run_until_idle()
    harness.run_event_loop(999)
    assert [frame.headers["deliveryAttempts"] for frame in read(peer)] == ["1"]
    harness.run_event_loop(1)
    harness.run_until_idle()
    assert [frame.headers["deliveryAttempts"] for frame in read(peer)] == ["2"]


def test_redelivery_waits_once_behind_message_that_is_being_compressed(harness: Harness) -> None:
    options = SessionOptions(ack_timeout=1000, window_bytes=1 << 24)
    peer = harness.connect(options, **{"supported-compression": "gzip"})
    peer.subscribe("q")
    peer.publish("q", "small")
    publish_large(harness)
    for _ in range(3):
        harness.run_event_loop(1000)
    harness.run_until_idle()
    assert [frame.id for frame in read(peer)] == ["m"]
    frames = peer.acknowledge("m")
    assert [(frame.id, frame.headers["deliveryAttempts"]) for frame in frames] == [("small", "2")]
