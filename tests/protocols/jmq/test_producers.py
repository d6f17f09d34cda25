"""Sending messages, replies, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.access import ANONYMOUS
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.message import Durability
from sluicemq.protocols.channel import MAX_UNCONFIRMED
from sluicemq.protocols.java import Long, dumps_map
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import format_name
from sluicemq.protocols.jmq.packets import A, C, DestType, F, I, P, PacketType, Status
from sluicemq.protocols.jmq.wire import Limits, Packet
from tests.protocols.jmq.harness import DiskHarness, Harness, Peer, encode_sysid, status
from tests.support.broker import purge
from tests.support.sessions import RecordedAccess

H = PacketType


def produce(peer: Peer, name: str, topic: bool = False) -> int:
    reply = peer.request(H.ADD_PRODUCER, peer.destination_properties(name, topic), expect=Status.OK)
    number = reply.properties["JMQProducerID"]
    assert isinstance(number, int)
    return number


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-7_200_000, 7_200_000], ids=["behind", "ahead"])
def test_clock_of_client_is_ignored(tmp_path: Path, skew: int) -> None:
    harness = DiskHarness(tmp_path)
    harness.broker.destinations.declare(
        Address(Kind.QUEUE, "q"), DestinationSettings(message_ttl=3_600_000)
    )
    arrival, stamp = harness.clock.wall, harness.clock.wall + skew
    harness.connect().send("q", "a", sysid=encode_sysid(stamp, 1))
    harness = harness.restart()
    [delivery] = harness.queue("q").queue.browse()
    message = harness.broker.core.read(delivery)
    assert (message.arrival, message.timestamp) == (arrival, stamp)
    assert message.expiration == arrival + 3_600_000
    harness.run_event_loop(3_500_000)
    peer = harness.connect()
    peer.consume("q", peer.create_session())
    [packet] = peer.delivered()
    assert (packet.body, packet.timestamp) == (b"a", stamp)


# --- replies -------------------------------------------------------------------------------------


def test_replies_to_persistent_message_when_it_is_on_disk(harness: Harness, peer: Peer) -> None:
    peer.session.receive(peer.message("q", b"x", flags=P | A, consumer_id=5))
    assert peer.receive() == []
    assert harness.queue("q").waiting == 1
    harness.run_event_loop()
    [reply] = peer.receive()
    assert (reply.type, reply.consumer_id, status(reply)) == (H.SEND_REPLY, 5, Status.OK)


def test_replies_of_one_read_are_sent_together(harness: Harness, peer: Peer) -> None:
    data = b"".join(
        peer.message("q", b"x", flags=P | A, consumer_id=number) for number in range(1, 5)
    )
    peer.send_bytes(data)
    assert [reply.consumer_id for reply in peer.receive()] == [1, 2, 3, 4]


def test_no_reply_is_sent_unless_requested(harness: Harness, peer: Peer) -> None:
    peer.send_bytes(peer.message("q", b"x", flags=P))
    peer.send_bytes(peer.message("q", b"y", flags=0))
    assert peer.receive() == []
    assert harness.bodies("q") == [b"x", b"y"]
    peer.send_bytes(peer.message("mq.sys.dmq", b"z", flags=0))
    assert peer.receive() == []
    peer.send_bytes(peer.message("q", b"z", flags=A, consumer_id=-7))
    [reply] = peer.receive()
    assert (reply.consumer_id, status(reply)) == (-7, Status.OK)


def test_durability_of_persistent_and_other_messages(harness: Harness, peer: Peer) -> None:
    peer.send_bytes(peer.message("q", b"x", flags=P) + peer.message("q", b"y", flags=0))
    messages = [d.message for d in harness.queue("q").queue.browse()]
    assert [m.durability for m in messages if m] == [Durability.SYNC, Durability.NONE]
    lazy_peer = harness.connect(SessionOptions(durability=Durability.LAZY))
    lazy_peer.send_bytes(
        lazy_peer.message("r", b"x", flags=P) + lazy_peer.message("r", b"y", flags=0)
    )
    messages = [d.message for d in harness.queue("r").queue.browse()]
    assert [m.durability for m in messages if m] == [Durability.LAZY, Durability.LAZY]


@pytest.mark.parametrize("flags", [P | A, P])
def test_reading_pauses_while_disk_is_slow(harness: Harness, peer: Peer, flags: int) -> None:
    body = b"x" * (1 << 20)
    for number in range(17):
        peer.session.receive(peer.message("q", body, flags=flags, consumer_id=number))
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused


# --- refusals ------------------------------------------------------------------------------------


def test_destinations_that_refuse_all_producers(peer: Peer) -> None:
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("mq.sys.dmq"))
        == Status.CONFLICT
    )
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("mq.metrics.jvm", True))
        == Status.CONFLICT
    )
    peer.send("mq.sys.dmq", "x", expect=Status.FORBIDDEN)
    peer.send("", "x", expect=Status.BAD_REQUEST)
    peer.send("a\nb", "x", expect=Status.BAD_REQUEST)
    peer.send("n" * 1025, "x", expect=Status.BAD_REQUEST)
    peer.send("n" * 1024, "x")
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("a.*"))
        == Status.UNSUPPORTED_TYPE
    )
    assert peer.request_status(H.ADD_PRODUCER, {"JMQDestination": "q"}) == Status.BAD_REQUEST
    assert peer.request_status(H.DELETE_PRODUCER, {"JMQProducerID": Long(5)}) == Status.NOT_FOUND


@pytest.mark.parametrize("bits", [0, 3, DestType.TEMP])
def test_destination_type_must_be_queue_or_topic(peer: Peer, bits: int) -> None:
    properties = {"JMQDestination": "q", "JMQDestType": bits}
    assert peer.request_status(H.ADD_PRODUCER, properties) == Status.BAD_REQUEST


def test_queue_that_cannot_be_created_is_403() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False, auto_create_topics=False))
    peer = harness.connect()
    assert peer.request_status(H.ADD_PRODUCER, peer.destination_properties("q")) == Status.NOT_FOUND
    peer.send("q", "x", expect=Status.NOT_FOUND)
    harness.limit("q", DestinationSettings())
    peer.send("q", "x")
    assert peer.request_status(H.ADD_PRODUCER, peer.destination_properties("q")) == Status.OK


def test_sending_requires_produce_permission(harness: Harness) -> None:
    access = RecordedAccess("mine.*: produce", "theirs.*: consume")
    peer = harness.connect(access=access)
    assert peer.request_status(H.ADD_PRODUCER, peer.destination_properties("mine.a")) == Status.OK
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("theirs.a"))
        == Status.FORBIDDEN
    )
    peer.send("mine.a", "x")
    peer.send("theirs.a", "x", expect=Status.FORBIDDEN)
    assert access.denials == ["test anna produce theirs.a"] * 2
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("mine.>", True))
        == Status.OK
    )
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties("*", True))
        == Status.FORBIDDEN
    )


def test_destination_limits_refuse_messages(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, max_message_bytes=3))
    peer.send("q", "long", expect=Status.ENTITY_TOO_LARGE)
    peer.send("q", "one")
    peer.send("q", "two", expect=Status.RESOURCE_FULL)
    peer.send_bytes(peer.message("q", b"two", flags=0))
    assert peer.receive() == []
    assert harness.bodies("q") == [b"one"]


def test_stopping_broker_refuses_messages(harness: Harness, peer: Peer) -> None:
    harness.broker.stop()
    peer.send("q", "x", expect=Status.UNAVAILABLE)


def test_malformed_header_is_refused(harness: Harness, peer: Peer) -> None:
    packet = peer.message("q", b"x", flags=P | A, consumer_id=3)
    peer.send_bytes(packet.replace(b"\0\x01\0\x01q", b"\0\x01\x7fNq"))
    [reply] = peer.receive()
    assert (reply.type, status(reply)) == (H.SEND_REPLY, Status.BAD_REQUEST)
    assert harness.find("q") is None


def test_sending_recreates_removed_destination(harness: Harness, peer: Peer) -> None:
    peer.send("q", "a")
    harness.broker.remove(harness.queue("q"), force=True)
    peer.send("q", "b")
    assert harness.bodies("q") == [b"b"]


def test_number_of_cached_headers_is_limited(harness: Harness, peer: Peer) -> None:
    for number in range(1100):
        peer.send_bytes(peer.message("q", b"x", flags=0, correlation_id=str(number)))
    assert len(peer.session._producers._queues) == 1100 - 1024
    assert len(harness.bodies("q")) == 1100


# --- flow control --------------------------------------------------------------------------------


def resume_flows(packets: list[Packet]) -> list[dict[str, object]]:
    return [dict(p.properties) for p in packets if p.type == H.RESUME_FLOW]


def test_producer_requests_resume_flow(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(producer_flow=2))
    reply = peer.request(H.ADD_PRODUCER, peer.destination_properties("q"), expect=Status.OK)
    assert reply.properties["JMQSize"] == 2
    assert reply.properties["JMQDestinationID"] == "Q:q"
    producer = reply.properties["JMQProducerID"]
    assert isinstance(producer, int)
    peer.send_bytes(peer.message("q", b"a", flags=0, producer_id=producer))
    assert peer.receive() == []
    peer.send_bytes(peer.message("q", b"b", flags=C, producer_id=producer))
    [resumption] = resume_flows(peer.receive())
    assert (resumption["JMQProducerID"], resumption["JMQSize"]) == (producer, 2)


def test_producer_is_resumed_when_its_message_is_on_disk(harness: Harness, peer: Peer) -> None:
    producer = produce(peer, "q")
    peer.session.receive(peer.message("q", b"a", flags=C | P, producer_id=producer))
    assert peer.receive() == []
    harness.run_event_loop()
    assert len(resume_flows(peer.receive())) == 1


def test_producer_is_resumed_when_its_message_is_refused(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(max_packet_size=5_000))
    producer = produce(peer, "q")
    harness.limit("q", DestinationSettings(max_messages=1))
    peer.send("q", "one")
    peer.send_bytes(peer.message("q", b"two", flags=C, producer_id=producer))
    assert [resumption["JMQProducerID"] for resumption in resume_flows(peer.receive())] == [
        producer
    ]
    peer.send_bytes(peer.message("q", b"x" * 9_000, flags=C, producer_id=producer))
    assert [resumption["JMQProducerID"] for resumption in resume_flows(peer.receive())] == [
        producer
    ]


def test_connection_requests_resume_flow(peer: Peer) -> None:
    peer.send_bytes(peer.message("q", b"a", flags=F))
    assert resume_flows(peer.receive()) == [{"JMQSize": -1}]


def test_without_producer_flow_control(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(producer_flow=0))
    reply = peer.request(H.ADD_PRODUCER, peer.destination_properties("q"), expect=Status.OK)
    assert reply.properties["JMQSize"] == -1


def test_full_queue_blocks_its_producers(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer = produce(peer, "q")
    peer.send("q", "a")
    peer.send_bytes(peer.message("q", b"b", flags=P | A | C, consumer_id=9, producer_id=producer))
    assert peer.receive() == []
    assert harness.bodies("q") == [b"a"]
    peer.consume("q", peer.create_session(), size=1)  # makes room
    message, *packets = peer.receive()
    assert message.body == b"a"
    assert [p.consumer_id for p in packets if p.type == H.SEND_REPLY] == [9]
    assert len(resume_flows(packets)) == 1
    peer.acknowledge(message)
    assert harness.bodies("q") == [b"b"]


def test_removing_full_queue_unblocks_its_producers(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer.send("q", "a")
    peer.send_bytes(peer.message("q", b"b", flags=P | A, consumer_id=9))
    harness.broker.core.settings = EngineSettings(auto_create_queues=False)
    harness.broker.remove(harness.queue("q"), force=True)
    [reply] = peer.receive()
    assert (reply.consumer_id, status(reply)) == (9, Status.NOT_FOUND)


def test_message_to_wildcard_is_answered_once_all_topics_have_accepted_it(
    harness: Harness, peer: Peer
) -> None:
    limits = DestinationSettings(max_messages=1, overflow=Overflow.BLOCK)
    consumer = harness.connect()
    session = consumer.create_session()
    numbers = []
    for name in ("a.b", "a.c"):
        harness.broker.destinations.declare(Address(Kind.TOPIC, name), limits)
        numbers.append(consumer.consume(name, session, topic=True, size=0))
        peer.send(name, "old", topic=True)
    consumer.consume("a.d", session, topic=True)
    producer = produce(peer, "a.*", topic=True)
    flags = P | A | C
    data = peer.message("a.*", "new", True, flags, consumer_id=9, producer_id=producer)
    peer.send_bytes(data)
    assert consumer.texts() == ["new"]  # from a.d
    assert peer.receive() == []
    consumer.resume(numbers[0], 2)
    assert consumer.texts() == ["old", "new"]
    assert peer.receive() == []
    consumer.resume(numbers[1], 2)
    assert consumer.texts() == ["old", "new"]
    packets = peer.receive()
    assert [p.consumer_id for p in packets if p.type == H.SEND_REPLY] == [9]
    assert len(resume_flows(packets)) == 1


def test_blocked_messages_are_published_after_connection_closes(
    harness: Harness, peer: Peer
) -> None:
    """Messages that request no reply are published after the connection has closed."""
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer.send("q", "a")
    peer.send_bytes(peer.message("q", b"b", flags=P | A, consumer_id=9))
    peer.send_bytes(peer.message("q", b"c", flags=0))
    peer.drop()
    purge(harness.broker, harness.queue("q"))
    harness.run_event_loop()
    assert harness.bodies("q") == [b"c"]


@pytest.mark.parametrize("is_behind_request", [False, True])
def test_reading_pauses_while_too_many_large_messages_are_not_durable(
    harness: Harness, peer: Peer, is_behind_request: bool
) -> None:
    peer.create("q")
    message = data = peer.message("q", bytes(1 << 20))
    if is_behind_request:
        data += peer.encode_request(H.STOP)[1] * 2 + message
        harness.scan_time.limit = 1
    for _ in range(MAX_UNCONFIRMED // len(data) + 2):  # they are counted in steps of 1 MiB
        if peer.transport.paused:
            break
        harness.broker.scans.end_iteration()
        for start in range(0, len(data), 1 << 16):
            peer.session.receive(data[start : start + (1 << 16)])
        if is_behind_request:
            assert peer.session.buffered == len(message)
            harness.broker.scans.end_iteration()
            harness.broker.scans.run()
            assert peer.session.buffered == 0
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused


# --- resent messages -----------------------------------------------------------------------------


def test_resent_message_is_not_stored_twice(harness: Harness, peer: Peer) -> None:
    peer.send("q", *"abc")
    sysid = encode_sysid(1, 1)
    peer.send("q", "x", sysid=sysid, flags=P | I)
    peer.send("q", "x", sysid=sysid, flags=P | I, expect=Status.NOT_MODIFIED)
    peer.send("q", "y", flags=P | I)
    assert harness.bodies("q") == [b"a", b"b", b"c", b"x", b"y"]
    peer.send("q", "x", sysid=sysid)  # without the bit it is believed


def test_resent_message_that_is_unacked_is_not_stored_twice(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    sysid = encode_sysid(1, 1)
    peer.send("q", "x", sysid=sysid)
    peer.send("q", "x", sysid=sysid, flags=P | I, expect=Status.NOT_MODIFIED)
    [delivered] = peer.delivered()
    peer.acknowledge(delivered, transaction=peer.begin())
    peer.send("q", "x", sysid=sysid, flags=P | I, expect=Status.NOT_MODIFIED)
    assert not peer.delivered()


def test_resent_message_that_waits_for_disk_is_not_stored_twice(
    harness: Harness, peer: Peer
) -> None:
    sysid = encode_sysid(1, 1)
    peer.session.receive(peer.message("q", "x", flags=P | A, consumer_id=1, sysid=sysid))
    peer.session.receive(peer.message("q", "x", flags=P | A | I, consumer_id=2, sysid=sysid))
    assert peer.receive() == []
    harness.run_event_loop()
    assert [(reply.consumer_id, status(reply)) for reply in peer.receive()] == [(1, 200), (2, 200)]
    assert harness.bodies("q") == [b"x"]


def test_resent_message_that_is_delayed_is_not_stored_twice(harness: Harness, peer: Peer) -> None:
    sysid = encode_sysid(1, 1)
    due = harness.clock.wall + 1000
    peer.send("q", "x", sysid=sysid, delivery_time=due)
    for milliseconds in (0, 1000):
        harness.run_event_loop(milliseconds)
        again = {"sysid": sysid, "delivery_time": due, "flags": P | I}
        peer.send("q", "x", expect=Status.NOT_MODIFIED, **again)
    assert harness.bodies("q") == [b"x"]


def test_resent_message_of_durable_subscription_is_not_stored_twice(harness: Harness) -> None:
    peer = harness.connect(client_id="me")
    peer.consume("t", peer.create_session(), topic=True, JMQDurableName="d")
    sysid = encode_sysid(1, 1)
    peer.send("t", "x", topic=True, sysid=sysid)
    peer.send("t", "x", topic=True, sysid=sysid, flags=P | I, expect=Status.NOT_MODIFIED)


def test_long_duplicate_search_does_not_delay_other_clients(harness: Harness, peer: Peer) -> None:
    sysid = encode_sysid(1, 1)
    peer.send("q", "x", sysid=sysid)
    peer.send("q", *map(str, range(30)))
    harness.scan_time.limit = 4
    for number, name, message_id in (
        (71, "q", sysid),
        (72, "q", encode_sysid(1, 2)),
        (73, "r", b""),
    ):
        data = peer.message(name, b"y", flags=P | A | I, consumer_id=number, sysid=message_id)
        peer.session.receive(data)
    flushes = 0
    replies: list[tuple[int, object]] = []
    while len(replies) < 3:
        harness.broker.flush()
        flushes += 1
        replies += [(packet.consumer_id, status(packet)) for packet in peer.receive()]
    assert sorted(replies) == [(71, 304), (72, 200), (73, 200)]
    assert flushes > 5
    assert harness.queue("q").waiting == 32


def test_searches_of_refused_messages_are_not_kept(harness: Harness, peer: Peer) -> None:
    channel = peer.session._connection.channel
    harness.scan_time.limit = 1
    for _ in range(3):
        peer.send("q", "a", "b")
        peer.session.receive(peer.message("q", b"c", flags=P | I))
        harness.broker.remove(harness.queue("q"), force=True)
        channel.identity, identity = ANONYMOUS, channel.identity
        harness.run_event_loop()
        channel.identity = identity
    assert harness.find("q") is None
    assert len(peer.session._producers._search) <= 1


def test_duplicate_search_is_bounded(harness: Harness, peer: Peer) -> None:
    sysid = encode_sysid(1, 1)
    peer.send("q", "x", sysid=sysid)
    for _ in range(100):
        peer.send_bytes(peer.message("q", b"y", flags=P | I))
    peer.send("q", "x", sysid=sysid, flags=P | I)  # it has asked too often


# --- topics --------------------------------------------------------------------------------------


def test_queues_and_topics_of_one_name_are_separate(harness: Harness, peer: Peer) -> None:
    session = peer.create_session()
    peer.consume("x", session, topic=True)
    peer.send("x", "to the queue")
    assert peer.texts() == []
    peer.send("x", "to the topic", topic=True)
    assert peer.texts() == ["to the topic"]


def test_wildcard_message_reaches_every_matching_topic(harness: Harness, peer: Peer) -> None:
    for name in ("a.b", "a.c", "b.c"):
        harness.broker.destinations.topic(name)
    other = harness.connect()
    session = other.create_session()
    for name in ("a.b", "a.c", "b.c"):
        other.consume(name, session, topic=True)
    peer.send("a.*", "hello", topic=True, correlation_id="c")
    messages = other.delivered()
    assert [m.variable.destination for m in messages] == ["a.b", "a.c"]
    assert {m.variable.correlation_id for m in messages} == {"c"}
    assert len({m.sysid for m in messages}) == 2
    assert [m.body for m in messages] == [b"hello"] * 2
    other.acknowledge(*messages)
    peer.send("x.*", "unreceived", topic=True)
    assert harness.broker.destinations.find(Address(Kind.TOPIC, "x.*")) is None


def test_large_message_of_old_client_reaches_wildcard(harness: Harness, peer: Peer) -> None:
    """The current encoding of its properties exceeds the limit, the original does not."""
    peer.decoder.allow(Limits(properties=2 << 20))
    peer.consume("a.b", peer.create_session(), topic=True)
    names = [f"p{number:02}" for number in range(20)]
    table = dumps_map({"p": "x" * 60_000, **dict.fromkeys(names, "same")}, hashtable=True)
    # references to the third object of the stream, after the map and its first key
    table = table.replace(b"t\0\4same", b"\x71\0\x7e\0\3")
    message = bytearray(peer.message("a.*", table + b"body", True, A))
    message[4:6] = (200).to_bytes(2, "big")
    message[56:60] = len(table).to_bytes(4, "big")
    peer.send_bytes(bytes(message))
    [reply, delivery] = sorted(peer.receive(), key=lambda packet: -packet.type)
    assert status(reply) == Status.OK
    assert delivery.body == b"body"
    assert delivery.properties["p19"] == "x" * 60_000


def test_wildcard_messages_do_not_delay_other_clients(harness: Harness, peer: Peer) -> None:
    other = harness.connect()
    other.consume("a.b", other.create_session(), topic=True)
    harness.scan_time.limit = 2
    data = b"".join([peer.message("a.*", b"%d" % number, True, P) for number in range(9)])
    peer.session.receive(data)
    received: list[bytes] = []
    for _ in range(9):
        messages = other.delivered()
        assert len(messages) <= 3
        received += [message.body for message in messages]
        harness.broker.flush()
    assert received == [b"%d" % number for number in range(9)]


def test_wildcard_message_to_full_topic_is_refused(harness: Harness, peer: Peer) -> None:
    settings = DestinationSettings(max_message_bytes=1)
    harness.broker.destinations.declare(Address(Kind.TOPIC, "a.b"), settings)
    harness.broker.destinations.topic("a.c")
    other = harness.connect()
    other.consume("a.c", other.create_session(), topic=True)
    peer.send("a.*", "long", topic=True, expect=Status.ENTITY_TOO_LARGE)
    assert other.texts() == ["long"]


@pytest.mark.parametrize("name", ["a*", "a..*", "*.", ">.a"])
def test_names_that_are_not_wildcards(peer: Peer, name: str) -> None:
    peer.send(name, "x", topic=True, expect=Status.BAD_REQUEST)
    assert (
        peer.request_status(H.ADD_PRODUCER, peer.destination_properties(name, True))
        == Status.BAD_REQUEST
    )


@pytest.mark.parametrize("name", ["a*b", "a>", "*", "a b\n", "\x01"])
def test_queues_of_other_protocols_may_have_any_name(
    harness: Harness, peer: Peer, name: str
) -> None:
    wire_name = format_name(name)
    assert peer.create(wire_name) == Status.OK
    peer.consume(wire_name, peer.create_session())
    peer.send(wire_name, "x")
    [message] = peer.delivered()
    assert (message.variable.destination, message.body) == (wire_name, b"x")
    assert harness.queue(name).unacked == 1
    browse = peer.request(H.BROWSE, peer.destination_properties(wire_name), expect=Status.OK)
    assert browse.body == message.sysid


def test_permissions_apply_to_unescaped_queue_names(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("a>: produce"))
    peer.send(format_name("a>"), "x")


@pytest.mark.parametrize("name", ["a*", "a\nb", "\x01"])
def test_clients_escape_names_of_queues(peer: Peer, name: str) -> None:
    error = Status.UNSUPPORTED_TYPE if "*" in name else Status.BAD_REQUEST
    peer.send(name, "x", expect=error)
    assert peer.create(name) == error


def test_topic_with_invalid_wildcard_name_is_refused(peer: Peer) -> None:
    peer.send(format_name("a*b"), "x", topic=True, expect=Status.BAD_REQUEST)


def test_request_is_answered_on_temporary_queue(harness: Harness, peer: Peer) -> None:
    """A request from one connection is answered by another on the first one's temporary queue."""
    replies = "temporary_destination://queue/127.0.0.1/1234/1"
    assert peer.create(replies, temporary=True) == Status.OK
    session = peer.create_session()
    peer.consume(replies, session)
    peer.send("requests", "ask", reply_to=replies)
    server = harness.connect(access=RecordedAccess("requests: consume"))
    server.consume("requests", server.create_session())
    [request] = server.delivered()
    assert request.variable.reply_to == replies
    server.send(replies, "answer")  # takes no permission
    assert peer.texts() == ["answer"]
    peer.drop()
    server.send(replies, "too late", expect=Status.NOT_FOUND)
    assert (
        server.request_status(H.ADD_PRODUCER, server.destination_properties(replies))
        == Status.NOT_FOUND
    )
