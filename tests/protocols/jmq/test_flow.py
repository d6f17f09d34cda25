"""Flow control: the number of messages sent before the client resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import INT_BLOCK, encode_blocks
from sluicemq.protocols.jmq.packets import AckMode, C, F, PacketType, R, Status
from sluicemq.protocols.jmq.session import MANY_CONSUMERS
from sluicemq.protocols.jmq.wire import Packet, encode_packet
from tests.protocols.jmq.harness import Harness, Peer, encode_sysid, login, status
from tests.support.broker import purge

H = PacketType


def delivery_counts(peer: Peer) -> list[int]:
    """Return the delivery counts of the messages received."""
    return [packet.variable.delivery_count for packet in peer.delivered()]


# --- flow control --------------------------------------------------------------------------------


def test_consumer_receives_as_many_messages_as_requested(peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=3)
    peer.send("q", *"abcdefg")
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b", b"c"]
    assert [bool(m.flags & C) for m in messages] == [False, False, True]
    peer.acknowledge(*messages)
    assert peer.texts() == []  # acknowledging is not asking for more
    peer.resume(consumer, 2)
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"d", b"e"]
    assert [bool(m.flags & C) for m in messages] == [False, True]
    peer.resume(consumer, 0)
    assert peer.texts() == []
    peer.resume(consumer, -1)
    assert peer.texts() == ["f", "g"]


def test_resume_flow_sets_new_limit(peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=10)
    peer.resume(consumer, 2)
    peer.send("q", *"abc")
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b"]
    assert messages[1].flags & C


def test_prefetch_is_capped_by_broker(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(prefetch=2))
    session = peer.create_session()
    properties = {**peer.destination_properties("q"), "JMQSessionID": Long(session)}
    reply = peer.request(H.ADD_CONSUMER, {**properties, "JMQSize": 100}, expect=Status.OK)
    assert reply.properties["JMQSize"] == 2
    peer.send("q", *"abc")
    assert peer.texts() == ["a", "b"]
    consumer = reply.properties["JMQConsumerID"]
    assert isinstance(consumer, int)
    peer.send("q", *"def")
    peer.resume(consumer, 100)
    assert peer.texts() == ["c", "d"]


def test_unlimited_consumer_is_limited_by_broker(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(prefetch=2))
    peer.consume("q", peer.create_session(), size=-1)
    peer.send("q", *"abc")
    assert peer.texts() == ["a", "b"]


def test_client_without_consumer_flow_control(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(prefetch=2))
    peer.consume("q", peer.create_session(), size=None)
    peer.send("q", *"abc")
    messages = peer.delivered()
    assert len(messages) == 3
    assert not any(m.flags & C for m in messages)


def test_messages_beyond_prefetch_go_to_other_consumers(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session(), size=1)
    other = harness.connect()
    other.consume("q", other.create_session())
    peer.send("q", *"abcd")
    assert peer.texts() + other.texts() == ["a", *"bcd"]


@pytest.mark.parametrize("name", ["JMQSize", "JMQRBufferSize"])
def test_connection_flow_control(harness: Harness, name: str) -> None:
    settings: dict[str, Any] = {name: 3}
    peer = harness.connect(**settings)
    session = peer.create_session()
    peer.consume("a", session)
    peer.consume("b", session, size=2)
    peer.send("a", "1")
    peer.send("b", "2", "3", "4")
    peer.send("a", "5", "6")
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"1", b"2", b"3"]
    assert [m.flags & (C | F) for m in messages] == [0, 0, C | F]
    peer.send_packet(H.RESUME_FLOW)  # like the Java client: without properties
    assert peer.texts() == ["5", "6"]
    peer.send("a", "7", "8")
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"7"]
    assert messages[0].flags & F
    peer.send_packet(H.RESUME_FLOW, {"JMQSize": 1})
    [message] = peer.delivered()
    assert message.flags & F
    peer.send("a", "9", "0")
    assert peer.texts() == []
    peer.send_packet(H.RESUME_FLOW, {"JMQSize": -1})
    assert peer.texts() == ["9", "0"]


def test_backlog_is_sent_in_slices(harness: Harness) -> None:
    """One event loop iteration dispatches more than the connection may send."""
    peer = harness.connect(JMQSize=3)
    peer.send("q", *"abcdefgh")
    peer.consume("q", peer.create_session())
    received = []
    for size in (3, 3, 2):
        messages = peer.delivered()
        assert len(messages) == size
        assert bool(messages[-1].flags & F) == (size == 3)
        received += messages
        peer.send_packet(H.RESUME_FLOW)
    assert b"".join(m.body for m in received) == b"abcdefgh"
    peer.acknowledge(*received)
    assert harness.queue("q").unacked == 0


@pytest.mark.parametrize("transacted", [False, True])
@pytest.mark.parametrize("sysid", [b"", encode_sysid(1, 1)], ids=["own ids", "one id"])
def test_unacked_messages_of_connection_are_limited(
    harness: Harness, transacted: bool, sysid: bytes
) -> None:
    peer = harness.connect(SessionOptions(max_unacked=5))
    consumer = peer.consume("q", peer.create_session(), size=3)
    transaction = peer.begin() if transacted else 0
    peer.send("q", *"abcdefgh", sysid=sysid)
    messages = peer.delivered()
    peer.resume(consumer, 3)
    messages += peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b", b"c", b"d", b"e", b"f"]
    peer.resume(consumer, 3)
    assert peer.delivered() == []
    peer.acknowledge(messages[0], transaction=transaction)
    assert peer.delivered() == []
    peer.acknowledge(messages[1], transaction=transaction)
    assert peer.texts() == ["g", "h"]


def test_unacked_limit_holds_after_resume_flow(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(max_unacked=2), JMQSize=2)
    peer.send("q", *"abcd")
    peer.consume("q", peer.create_session())
    messages = peer.delivered()
    peer.send_packet(H.RESUME_FLOW)
    assert peer.delivered() == []
    peer.acknowledge(messages[0])
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"c", b"d"]
    peer.send_packet(H.RESUME_FLOW)
    peer.send("q", "e")
    assert peer.delivered() == []
    peer.acknowledge(*messages)
    assert peer.texts() == ["e"]


def test_unacked_limit_does_not_count_messages_of_deleted_queue(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(max_unacked=2))
    peer.consume("q", peer.create_session())
    peer.send("q", *"abc")
    assert peer.texts() == ["a", "b"]
    harness.broker.remove(harness.queue("q"), force=True)
    peer.send("q", "d")
    assert peer.texts() == ["d"]


def test_unacked_limit_does_not_count_messages_of_deleted_topic(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(max_unacked=2))
    peer.create("t.a", topic=True)
    peer.create("t.b", topic=True)
    peer.consume("t.*", peer.create_session(), topic=True)
    peer.send("t.a", *"ab", topic=True)
    assert peer.texts() == ["a", "b"]
    harness.broker.remove(harness.topic("t.a"), force=True)
    peer.send("t.b", "c", topic=True)
    assert peer.texts() == ["c"]


def test_message_that_ends_before_it_is_written_is_not_sent(harness: Harness) -> None:
    peer = harness.connect(JMQSize=1)
    peer.send("q", *"abc")
    peer.consume("q", peer.create_session())
    [message] = peer.delivered()
    purge(harness.broker, harness.queue("q"), unacked=True)
    peer.acknowledge(message)
    peer.send_packet(H.RESUME_FLOW)
    assert peer.delivered() == []
    peer.send("q", "d")
    assert peer.texts() == ["d"]


def test_safe_mode_delivers_one_message_at_time(harness: Harness) -> None:
    peer = harness.connect(JMQSafeMode=True)
    session = peer.create_session()
    peer.send("a", "1", "2")
    peer.send("b", "3")
    peer.consume("a", session)
    peer.consume("b", session)
    bodies = []
    for _ in range(3):
        [message] = peer.delivered()
        bodies.append(message.body)
        peer.acknowledge(message)
    assert sorted(bodies) == [b"1", b"2", b"3"]
    peer.send("a", "4", "5")
    [message] = peer.delivered()
    peer.redeliver(message, attempted=True)
    [redelivered] = peer.delivered()
    assert redelivered.sysid == message.sysid


@pytest.mark.parametrize("kind", [H.RESUME_FLOW, H.ACKNOWLEDGE, H.REDELIVER])
def test_flow_of_many_consumers_does_not_delay_other_clients(harness: Harness, kind: int) -> None:
    """Each request pauses and resumes all consumers of the connection."""
    safe = kind != H.RESUME_FLOW
    peer = harness.connect(JMQSafeMode=safe, JMQSize=0 if safe else 1)
    session = peer.create_session()
    sysids = [encode_sysid(1, number) for number in range(20)]
    for sysid in sysids:
        peer.send("q", "x", sysid=sysid)
    for _ in range(MANY_CONSUMERS):
        peer.consume("other", session)
    consumer = peer.consume("q", session)
    assert len(peer.delivered()) == 1
    requests = [encode_packet(H.RESUME_FLOW, properties={"JMQSize": 1}) for _ in sysids]
    if safe:
        bodies = [encode_blocks([(consumer, sysid)]) for sysid in sysids]
        requests = [encode_packet(kind, body=body) for body in bodies]
    if kind == H.REDELIVER:
        requests = requests[:1] * len(requests)
    harness.scan_time.limit = 2
    peer.session.receive(b"".join(requests))
    assert 0 < len(peer.delivered()) < 5
    harness.run_event_loop()
    assert len(peer.delivered()) > 14


def test_flow_of_consumers_added_in_same_read_does_not_delay_other_clients(
    harness: Harness,
) -> None:
    peer = harness.connect(JMQSize=1)
    session = peer.create_session()
    peer.send("q", *["x"] * 20)
    peer.consume("q", session)
    assert len(peer.delivered()) == 1
    properties = {**peer.destination_properties("other"), "JMQSessionID": Long(session)}
    addition = encode_packet(H.ADD_CONSUMER, properties=properties)
    resumption = encode_packet(H.RESUME_FLOW, properties={"JMQSize": 1})
    harness.scan_time.limit = MANY_CONSUMERS + 2
    peer.session.receive(addition * MANY_CONSUMERS + resumption * 19)
    assert 0 < len(peer.delivered()) < 5


def test_safe_mode_requested_in_same_read_does_not_delay_other_clients(harness: Harness) -> None:
    sysids = [encode_sysid(1, number) for number in range(20)]
    sender = harness.connect()
    for sysid in sysids:
        sender.send("q", "x", sysid=sysid)
    peer = harness.connect_without_hello()
    packets = [
        encode_packet(H.HELLO, properties={"JMQProtocolLevel": 100, "JMQSafeMode": True}),
        encode_packet(H.AUTHENTICATE, body=login("anna", "secret")),
        encode_packet(H.START),
    ]
    for number in range(MANY_CONSUMERS + 1):
        destination = peer.destination_properties("other" if number else "q")
        packets.append(
            encode_packet(H.ADD_CONSUMER, properties={**destination, "JMQConsumerID": number})
        )
    bodies = [encode_blocks([(0, sysid)], INT_BLOCK) for sysid in sysids]
    packets += [encode_packet(H.ACKNOWLEDGE, body=body) for body in bodies]
    harness.scan_time.limit = MANY_CONSUMERS + 3
    peer.session.receive(b"".join(packets))
    assert 0 < sum(packet.is_message for packet in peer.receive()) < 5


def test_safe_mode_continues_after_message_that_ended_in_transaction(harness: Harness) -> None:
    peer = harness.connect(JMQSafeMode=True)
    peer.consume("q", peer.create_session())
    peer.send("q", "1")
    [message] = peer.delivered()
    purge(harness.broker, harness.queue("q"), unacked=True)
    peer.send("q", "2")
    assert peer.delivered() == []
    transaction = peer.begin()
    peer.acknowledge(message, transaction=transaction)
    [following] = peer.delivered()
    assert following.body == b"2"


def close_first(peer: Peer, session: int, consumer: int) -> None:
    peer.close_consumer(consumer)


def destroy_session(peer: Peer, session: int, consumer: int) -> None:
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)


def unsubscribe(peer: Peer, session: int, consumer: int) -> None:
    [subscription] = peer.harness.topic("t").subscriptions.values()
    peer.harness.broker.unsubscribe(subscription)
    peer.harness.run_event_loop()


@pytest.mark.parametrize("end", [close_first, destroy_session, unsubscribe])
def test_safe_mode_continues_after_end_of_consumer(
    harness: Harness, end: Callable[[Peer, int, int], None]
) -> None:
    peer = harness.connect(JMQSafeMode=True)
    session = peer.create_session()
    consumer = peer.consume("t", session, topic=True)
    other = peer.consume("q", peer.create_session())
    peer.send("t", "1", topic=True)
    peer.send("q", "2")
    assert peer.texts() == ["1"]
    end(peer, session, consumer)
    [message] = peer.delivered()
    assert (message.consumer_id, message.body) == (other, b"2")
    peer.send("q", "3")
    assert peer.delivered() == []
    peer.acknowledge(message)
    assert peer.texts() == ["3"]


def test_safe_mode_delivers_nothing_to_session_that_ends(harness: Harness) -> None:
    peer = harness.connect(JMQSafeMode=True)
    session = peer.create_session()
    peer.consume("q", session)
    peer.send("q", "a", "b")
    assert peer.texts() == ["a"]
    peer.consume("q", session)
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    assert peer.delivered() == []
    other = harness.connect()
    other.consume("q", other.create_session())
    assert [(m.body, m.flags & R) for m in other.delivered()] == [(b"a", R), (b"b", 0)]


def test_safe_mode_continues_after_recover_of_message_that_ended(harness: Harness) -> None:
    peer = harness.connect(JMQSafeMode=True)
    peer.consume("q", peer.create_session())
    peer.send("q", "1")
    [message] = peer.delivered()
    purge(harness.broker, harness.queue("q"), unacked=True)
    peer.redeliver(message, attempted=True)
    peer.send("q", "2")
    assert peer.texts() == ["2"]


def test_safe_mode_continues_without_acknowledgements(harness: Harness) -> None:
    peer = harness.connect(JMQSafeMode=True)
    peer.consume("q", peer.create_session(AckMode.NO_ACK))
    peer.send("q", "1", "2", "3")
    assert peer.texts() == ["1", "2", "3"]


@pytest.mark.parametrize("group", [1, 100, 250])
def test_all_consumers_of_connection_are_served(harness: Harness, group: int) -> None:
    """The window of the Java client: 100 messages per connection, then RESUME_FLOW."""
    peer = harness.connect(JMQRBufferSize=100)
    received = {peer.consume("q", peer.create_session()): 0 for _ in range(500)}
    sender = harness.connect()
    for _ in range(1000 // group):
        sender.send_bytes(b"".join(sender.message("q", b"x") for _ in range(group)))
        while messages := peer.delivered():
            for message in messages:
                received[message.consumer_id] += 1
                if message.flags & F:
                    peer.send_packet(H.RESUME_FLOW)
            peer.acknowledge(*messages)
    assert set(received.values()) <= {1, 2, 3}


def test_all_consumers_are_served_when_client_reads_slowly(harness: Harness) -> None:
    peer = harness.connect()
    received = {peer.consume("q", peer.create_session()): 0 for _ in range(4)}
    sender = harness.connect()
    for _ in range(4):
        sender.send("q", "x")
        [message] = peer.delivered()
        received[message.consumer_id] += 1
        peer.stop_reading()
        peer.read_again()
    assert set(received.values()) == {1}


# --- flow control by bytes -----------------------------------------------------------------------


def size_of(message: Packet) -> int:
    """Return the size of the packet that the broker has sent."""
    return int.from_bytes(message.head[8:12], "big")


@pytest.fixture
def size(harness: Harness) -> int:
    """Size of a delivery with a text of one character."""
    peer = harness.connect()
    peer.consume("m", peer.create_session(AckMode.NO_ACK))
    peer.send("m", "x")
    [message] = peer.delivered()
    return size_of(message)


def marks(messages: list[Packet], flag: int) -> list[bool]:
    return [bool(message.flags & flag) for message in messages]


def test_consumer_receives_as_many_bytes_as_requested(harness: Harness) -> None:
    peer = harness.connect()
    peer.send("q", *"abcdefgh")
    session = peer.create_session()
    properties = {
        **peer.destination_properties("q"),
        "JMQSessionID": Long(session),
        "JMQSize": 1000,
    }
    reply = peer.request(H.ADD_CONSUMER, {**properties, "JMQBytes": Long(300)}, expect=Status.OK)
    assert reply.properties["JMQBytes"] == 300
    consumer = reply.properties["JMQConsumerID"]
    messages = peer.delivered()
    sizes = [size_of(message) for message in messages]
    assert sum(sizes[:-1]) < 300 <= sum(sizes)
    assert marks(messages, C) == [False] * (len(messages) - 1) + [True]
    assert not any(marks(messages, F))
    peer.acknowledge(*messages)
    assert peer.texts() == []
    resume: dict[str, object] = {"JMQConsumerID": consumer, "JMQSize": 1000}
    peer.send_packet(H.RESUME_FLOW, resume)  # as many bytes again
    redelivered = peer.delivered()
    assert len(redelivered) == len(messages)
    peer.send_packet(H.RESUME_FLOW, {**resume, "JMQBytes": Long(1)})
    assert marks(peer.delivered(), C) == [True]
    peer.send_packet(H.RESUME_FLOW, {**resume, "JMQBytes": Long(0)})
    assert peer.delivered() == []
    peer.send_packet(H.RESUME_FLOW, {**resume, "JMQBytes": Long(-1)})
    rest = peer.delivered()
    assert len(messages) + len(redelivered) + 1 + len(rest) == 8
    assert not any(marks(rest, C))


def test_messages_that_exceed_bytes_wait_in_order(harness: Harness) -> None:
    peer = harness.connect()
    session = peer.create_session()
    consumer = peer.consume("q", session, JMQBytes=Long(1))
    other = harness.connect()
    for text in "abc":
        other.send("q", text)
    assert peer.texts() == ["a"]
    for text in "bc":
        peer.resume(consumer, 1000)
        assert peer.texts() == [text]


@pytest.mark.parametrize("later", [False, True])
def test_connection_receives_as_many_bytes_as_requested(
    harness: Harness, size: int, later: bool
) -> None:
    limit: dict[str, Any] = {"JMQBytes": Long(2 * size)}
    peer = harness.connect(**({} if later else limit))
    if later:
        peer.send_packet(H.RESUME_FLOW, limit)
    session = peer.create_session()
    peer.consume("q", session)
    peer.consume("r", session)
    for name, text in ("q", "a"), ("r", "b"), ("q", "c"), ("r", "d"):
        peer.send(name, text)
    messages = peer.delivered()
    assert [m.body for m in messages] == [b"a", b"b"]
    assert marks(messages, F) == [False, True]
    assert not any(marks(messages, C))
    peer.send_packet(H.RESUME_FLOW)
    messages = peer.delivered()
    assert {m.body for m in messages} == {b"c", b"d"}
    assert marks(messages, F) == [False, True]


def test_connection_with_byte_limit_of_0_receives_nothing(harness: Harness) -> None:
    peer = harness.connect(JMQBytes=Long(0))
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    assert peer.delivered() == []
    peer.send_packet(H.RESUME_FLOW, {"JMQBytes": Long(-1)})
    assert peer.texts() == ["a"]


def test_message_above_size_limit_of_client_is_dead_lettered(harness: Harness, size: int) -> None:
    peer = harness.connect(JMQMaxMsgBytes=Long(size + 9))
    peer.consume("q", peer.create_session())
    peer.send("q", "a", "b" * 100, "c" * 10)
    harness.run_event_loop()
    assert peer.texts() == ["a", "c" * 10]
    assert harness.bodies("mq.sys.dmq") == [b"b" * 100]
    peer.consume("mq.sys.dmq", peer.create_session())
    peer.send_packet(H.RESUME_FLOW, {"JMQMaxMsgBytes": Long(-1)})


def test_message_above_size_limit_of_client_goes_to_another(harness: Harness, size: int) -> None:
    small_consumer = harness.connect()
    small_consumer.consume("q", small_consumer.create_session())
    small_consumer.send_packet(H.RESUME_FLOW, {"JMQMaxMsgBytes": Long(size)})
    consumer = harness.connect()
    consumer.consume("q", consumer.create_session())
    sender = harness.connect()
    for number in range(4):
        sender.send("q", f"{number}" * 100)
        harness.run_event_loop()
    assert small_consumer.texts() == []
    assert consumer.texts() == [f"{number}" * 100 for number in range(4)]
    small_consumer.send_packet(H.RESUME_FLOW, {"JMQMaxMsgBytes": Long(0)})  # any size
    consumer.drop()
    sender.send("q", "x" * 100)
    harness.run_event_loop()
    assert "x" * 100 in small_consumer.texts()


def test_byte_limit_that_is_not_number_is_refused(harness: Harness) -> None:
    peer = harness.connect()
    properties = {**peer.destination_properties("q"), "JMQSize": 10}
    assert (
        peer.request_status(H.ADD_CONSUMER, {**properties, "JMQBytes": "many"})
        == Status.BAD_REQUEST
    )
    assert harness.connect().transport.open
    arriving = harness.connect_without_hello()
    assert status(arriving.hello(JMQMaxMsgBytes="all")) == Status.BAD_REQUEST
