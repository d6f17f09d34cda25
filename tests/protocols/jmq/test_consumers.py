"""Deliveries to consumers, acknowledgements, and the consumers of a connection that ends."""

from __future__ import annotations

from typing import Any

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.model.dead_letters import origin_of
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import ProtocolError
from sluicemq.model.message import Message
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import consumers
from sluicemq.protocols.jmq.consumer_commands import BATCH
from sluicemq.protocols.jmq.fields import INT_BLOCK, class_of, encode_blocks, encode_header
from sluicemq.protocols.jmq.mapping import Chunks, encode_delivery, sysid_of
from sluicemq.protocols.jmq.packets import AckMode, DestType, I, P, PacketType, Q, R, Status
from sluicemq.protocols.jmq.wire import encode_packet
from tests.protocols.jmq.harness import (
    CountingDict,
    Harness,
    Peer,
    blocks,
    encode_sysid,
    status,
)
from tests.support.broker import purge

H = PacketType


def delivery_counts(peer: Peer) -> list[int]:
    """Return the delivery counts of the messages received."""
    return [packet.variable.delivery_count for packet in peer.delivered()]


# --- deliveries ----------------------------------------------------------------------------------


def test_message_is_sent_received_and_acknowledged(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "hello")
    [message] = peer.delivered()
    assert message.consumer_id == consumer
    assert message.body == b"hello"
    assert message.variable.delivery_count == 1
    assert not message.flags & R
    assert harness.queue("q").unacked == 1
    peer.acknowledge(message)
    assert harness.queue("q").unacked == harness.queue("q").waiting == 0


def test_acknowledgement_with_i_bit_is_refused(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "hello")
    [message] = peer.delivered()
    reply = peer.request(H.ACKNOWLEDGE, {}, blocks(message), flags=I)
    assert status(reply) == Status.BAD_REQUEST
    assert harness.queue("q").unacked == 1
    peer.acknowledge(message)
    assert harness.queue("q").unacked == 0


@pytest.mark.parametrize("in_transaction", [False, True])
def test_large_acknowledgement_does_not_delay_other_clients(
    harness: Harness, peer: Peer, in_transaction: bool
) -> None:
    session = peer.create_session()
    consumer = peer.consume("q", session)
    peer.send("q", "first", "last")
    first, last = [(consumer, message.sysid) for message in peer.delivered()]
    unknown = [(consumer, number.to_bytes(32, "big")) for number in range(3 * BATCH)]
    transaction = peer.begin(session) if in_transaction else 0
    header = encode_header(transaction_id=transaction)
    _, data = peer.encode_request(
        H.ACKNOWLEDGE, {}, encode_blocks([first, *unknown, last]), header=header
    )
    harness.scan_time.limit = 1
    peer.session.receive(data + peer.encode_request(H.PING)[1])
    unacked = []
    while not (replies := peer.receive()):
        unacked.append(len(peer.session._connection.outbound.consumers[consumer].unacked.first))
        harness.broker.flush()
    assert unacked[:3] == [1, 1, 1]
    assert {reply.type: status(reply) for reply in replies} == {
        H.ACKNOWLEDGE_REPLY: Status.OK,
        H.PING_REPLY: Status.OK,
    }
    if in_transaction:
        peer.commit(transaction)
    assert harness.queue("q").unacked == 0


def test_large_redelivery_does_not_delay_other_clients(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "first", "last")
    first, last = [(consumer, message.sysid) for message in peer.delivered()]
    unknown = [(consumer, number.to_bytes(32, "big")) for number in range(3 * BATCH)]
    body = encode_blocks([first, *unknown, last])
    harness.scan_time.limit = 1
    peer.session.receive(encode_packet(H.REDELIVER, 0, 0, {"JMQSetRedelivered": True}, body=body))
    assert peer.texts() == ["first"]
    harness.run_event_loop()
    assert peer.texts() == ["last"]


def test_message_that_no_packet_can_carry_reaches_another_consumer(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = harness.connect()

    def encode(message: Message, consumer_id: int, *options: Any) -> Chunks:
        if consumer_id != reader:
            raise ProtocolError("the message is too large for a packet")
        return encode_delivery(message, consumer_id, *options)

    monkeypatch.setattr(consumers, "encode_delivery", encode)
    reader = 0
    peer.consume("q", peer.create_session())
    peer.send("q", "x")
    harness.run_event_loop(1)
    assert harness.bodies("mq.sys.dmq") == [b"x"]
    reader = other.consume("q", other.create_session())
    harness.limit("q", DestinationSettings(max_attempts=1))
    peer.send("q", "a", "b")
    harness.run_event_loop(1)
    assert sorted(other.texts()) == ["a", "b"]
    assert harness.bodies("mq.sys.dmq") == [b"x"]


def test_r_bit_of_sender_is_passed_on(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "again", flags=P | R | I)
    [message] = peer.delivered()
    assert message.flags & (R | I) == R
    assert message.variable.delivery_count == 1


def test_closing_consumer_whose_queue_is_gone_is_412() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.broker.destinations.declare(Address(Kind.QUEUE, "q"))
    peer = harness.connect()
    consumer = {"JMQConsumerID": Long(peer.consume("q", peer.create_session()))}
    harness.broker.remove(harness.queue("q"), force=True)
    reply = peer.request(H.DELETE_CONSUMER, consumer)
    assert status(reply) == Status.PRECONDITION_FAILED
    assert reply.properties["JMQConsumerID"] == consumer["JMQConsumerID"]
    assert peer.request_status(H.DELETE_CONSUMER, consumer) == Status.NOT_FOUND


def test_closing_consumer_whose_topic_is_gone_is_412() -> None:
    harness = Harness(EngineSettings(auto_create_topics=False))
    harness.broker.destinations.declare(Address(Kind.TOPIC, "t"))
    peer = harness.connect()
    session = peer.create_session()
    properties = {"JMQConsumerID": Long(peer.consume("t", session, topic=True))}
    wildcard = {"JMQConsumerID": Long(peer.consume("*", session, topic=True))}
    harness.broker.remove(harness.topic("t"), force=True)
    assert peer.request_status(H.DELETE_CONSUMER, properties) == Status.PRECONDITION_FAILED
    assert peer.request_status(H.DELETE_CONSUMER, wildcard) == Status.OK


def test_reply_to_add_consumer_precedes_messages(peer: Peer) -> None:
    peer.send("q", "a", "b")
    session = peer.create_session()
    properties = {**peer.destination_properties("q"), "JMQSessionID": Long(session), "JMQSize": 10}
    peer.send_bytes(peer.encode_request(H.ADD_CONSUMER, properties)[1])
    assert [p.type for p in peer.receive()] == [H.ADD_CONSUMER_REPLY, 1, 1]


def test_nothing_is_delivered_before_start(harness: Harness) -> None:
    peer = harness.connect_without_hello()
    peer.hello()
    peer.request(H.AUTHENTICATE, {}, b"\0\0\0\0", expect=Status.OK)
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "x")
    assert peer.texts() == []
    other = harness.connect()
    other.consume("q", other.create_session())
    assert other.texts() == ["x"]  # the message stays available to consumers with credit
    other.send("q", "y")
    assert other.texts() == ["y"]
    peer.send_packet(H.START)
    peer.send("q", "z", "w")
    assert len(peer.texts() + other.texts()) == 2
    assert consumer


def test_stop_and_start_of_connection(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.request(H.STOP, expect=Status.OK)
    peer.send("q", "a", "b")
    assert peer.texts() == []
    peer.send_packet(H.START)
    assert peer.texts() == ["a", "b"]


def test_stop_and_start_of_session(peer: Peer) -> None:
    first, second = peer.create_session(), peer.create_session()
    peer.consume("a", first)
    peer.consume("b", second)
    peer.request(H.STOP, {"JMQSessionID": Long(first)}, expect=Status.OK)
    peer.send("a", "held")
    peer.send("b", "through")
    assert peer.texts() == ["through"]
    # both have to be started
    peer.request(H.STOP, expect=Status.OK)
    peer.send_packet(H.START, {"JMQSessionID": Long(first)})
    assert peer.texts() == []
    peer.send_packet(H.START)
    assert peer.texts() == ["held"]
    assert peer.request_status(H.STOP, {"JMQSessionID": Long(77)}) == Status.NOT_FOUND


def test_sends_nothing_to_client_that_does_not_read(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.stop_reading()
    peer.send("q", "a")
    assert peer.texts() == []
    peer.read_again()
    peer.harness.run_event_loop()
    assert peer.texts() == ["a"]


def test_deliveries_resume_as_soon_as_client_has_read_all(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.stop_reading()
    peer.send("q", "a")
    peer.transport.stalled = False
    peer.transport.unsent = True
    peer.harness.run_event_loop()
    assert peer.texts() == ["a"]


def test_delivers_messages_unchanged(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    fields: dict[str, Any] = {
        "kind": PacketType.MAP_MESSAGE,
        "properties": {"a": Long(1), "b": True, "c": 1.5},
        "priority": 7,
        "correlation_id": "corr",
        "reply_to": "answers",
        "type": "T",
        "producer_id": 99,
        "sysid": encode_sysid(5, -1 & 0xFFFF_FFFF),
    }
    peer.send_bytes(peer.message("q", b"\1\2", **fields))
    [message] = peer.delivered()
    assert message.body == b"\1\2"
    assert message.type == PacketType.MAP_MESSAGE
    assert message.properties == {"a": 1, "b": True, "c": 1.5}
    assert message.priority == 7
    assert message.sysid == fields["sysid"]
    header = message.variable
    assert (header.correlation_id, header.reply_to, header.type) == ("corr", "answers", "T")
    assert header.producer_id == 99


def test_delivers_message_of_another_protocol(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    harness.broker.publish(harness.queue("q"), Message(Address(Kind.QUEUE, "q"), b"\xff\0"))
    harness.run_event_loop()
    [message] = peer.delivered()
    assert message.body == b"\xff\0"
    peer.acknowledge(message)
    assert harness.bodies("q") == []


# --- acknowledgements ----------------------------------------------------------------------------


def test_acknowledges_many_messages_in_one_packet(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", *"abc")
    peer.acknowledge(*peer.delivered())
    assert harness.bodies("q") == []


def test_replies_to_acknowledgement_when_it_is_journaled(harness: Harness, peer: Peer) -> None:
    """Acknowledgements of messages that are not journaled are answered at once."""
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.session.receive(peer.encode_request(H.ACKNOWLEDGE, None, blocks(message))[1])
    assert peer.receive() == []
    harness.run_event_loop()
    [reply] = peer.receive()
    assert (reply.type, status(reply)) == (H.ACKNOWLEDGE_REPLY, Status.OK)
    peer.send_bytes(peer.message("q", b"b", flags=0))
    [message] = peer.delivered()
    peer.session.receive(peer.encode_request(H.ACKNOWLEDGE, None, blocks(message))[1])
    assert len(peer.receive()) == 1


def test_old_clients_name_consumers_with_32_bits(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    body = encode_blocks([(message.consumer_id & 0x7FFF_FFFF, message.sysid)], 36)
    assert peer.request_status(H.ACKNOWLEDGE, {"JMQBodyType": 1}, body) == Status.NOT_FOUND
    body = blocks(message)
    assert peer.request_status(H.ACKNOWLEDGE, {"JMQBodyType": 2}, body) == Status.OK


def test_clients_of_level_100_choose_their_consumer_ids(harness: Harness) -> None:
    peers = [harness.connect(JMQProtocolLevel=100) for _ in range(2)]
    for peer in peers:
        session = peer.create_session()
        assert peer.consume("news", session, topic=True, JMQConsumerID=7) == 7
        again = {**peer.destination_properties("news", topic=True), "JMQConsumerID": 7}
        assert peer.request_status(H.ADD_CONSUMER, again) == Status.CONFLICT
    peers[0].send("news", "a", topic=True)
    for peer in peers:
        [message] = peer.delivered()
        assert message.consumer_id == 7
        body = encode_blocks([(7, message.sysid)], INT_BLOCK)
        peer.request(H.ACKNOWLEDGE, {}, body, expect=Status.OK)
        peer.request(H.DELETE_CONSUMER, {"JMQConsumerID": 7}, expect=Status.OK)
    assert harness.topic("news").statistics.acknowledged == 2


def test_consumer_receives_messages_after_redelivery_to_earlier_one_with_its_id(
    harness: Harness,
) -> None:
    peer = harness.connect(JMQProtocolLevel=100)
    session = peer.create_session()
    peer.send("q", "a")
    peer.consume("q", session, JMQConsumerID=7)
    [message] = peer.delivered()
    transaction = peer.begin(session)
    body = encode_blocks([(7, message.sysid)], INT_BLOCK)
    header = encode_header(transaction_id=transaction)
    peer.request(H.ACKNOWLEDGE, {}, body, header=header, expect=Status.OK)
    peer.request(H.DELETE_CONSUMER, {"JMQConsumerID": 7}, expect=Status.OK)
    peer.consume("other", session, JMQConsumerID=7)
    peer.send_packet(H.REDELIVER, {}, body, header=header)
    peer.send("other", "b")
    assert peer.texts() == ["b"]
    assert harness.queue("q").waiting == 1
    peer.drop()
    assert harness.queue("other").consumers == 0


def test_acknowledgements_of_messages_not_held_by_client(harness: Harness, peer: Peer) -> None:
    """The acknowledgement is ignored; only an unknown consumer is an error."""
    consumer = peer.consume("q", peer.create_session())
    other = harness.connect()
    other_consumer = other.consume("q", other.create_session())
    peer.send("q", "a", "b")
    [message], [other_message] = peer.delivered(), other.delivered()
    sysid = other_message.sysid
    forged_blocks = encode_blocks([(consumer, sysid), (consumer, encode_sysid(1, 1))])
    assert peer.request_status(H.ACKNOWLEDGE, None, forged_blocks) == Status.OK
    assert (
        peer.request_status(H.ACKNOWLEDGE, None, encode_blocks([(other_consumer, sysid)]))
        == Status.NOT_FOUND
    )
    assert peer.request_status(H.ACKNOWLEDGE, None, b"x" * 39) == Status.ERROR
    assert harness.queue("q").unacked == 2
    peer.acknowledge(message)
    peer.acknowledge(message)
    other.acknowledge(other_message)
    assert harness.bodies("q") == []


def test_message_acked_by_another_client_is_no_longer_unacked(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    purge(harness.broker, harness.queue("q"), unacked=True)
    other = harness.connect()
    other.send("q", "b")
    peer.acknowledge(message)
    assert harness.bodies("q") == [b"b"]


def test_number_of_remembered_revoked_deliveries_is_bounded(harness: Harness, peer: Peer) -> None:
    number = peer.consume("q", peer.create_session())
    for _ in range(50):
        peer.send("q", *"abcdefgh")
        purge(harness.broker, harness.queue("q"), unacked=True)
        peer.resume(number, 1000)
    peer.receive()
    consumer = harness.coordinator.connections.popitem()[1]._connection.outbound.consumers[number]
    assert len(consumer.unacked.first) < 100


def test_no_acknowledge_mode_acks_on_delivery(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session(AckMode.NO_ACK))
    peer.send("q", "a")
    [message] = peer.delivered()
    assert harness.queue("q").unacked == 0
    assert peer.request_status(H.ACKNOWLEDGE, None, blocks(message)) == Status.NOT_ALLOWED
    peer.drop()
    assert harness.bodies("q") == []


def test_no_acknowledge_mode_acks_when_bytes_are_sent(harness: Harness) -> None:
    peer = harness.connect()
    peer.consume("q", peer.create_session(AckMode.NO_ACK))
    peer.transport.stalled = True
    other = harness.connect()
    other.send("q", "a")
    assert harness.queue("q").unacked == 1
    peer.drop()
    assert harness.bodies("q") == [b"a"]


def test_two_messages_with_same_id_are_acked_separately(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a", "b", sysid=encode_sysid(1, 1))
    first, second = peer.delivered()
    peer.acknowledge(first)
    assert harness.queue("q").unacked == 1
    peer.acknowledge(second)
    assert harness.queue("q").unacked == 0


# --- poison messages -----------------------------------------------------------------------------


def test_end_of_standby_consumers_examines_no_others(harness: Harness, peer: Peer) -> None:
    session = peer.create_session()
    properties = {"JMQDestination": "q", "JMQDestType": DestType.QUEUE | DestType.FAILOVER}
    peer.request(H.CREATE_DESTINATION, properties, expect=Status.OK)
    subscription = harness.queue("q").queue
    subscription.consumers = consumers = CountingDict(subscription.consumers)
    for _ in range(100):
        peer.consume("q", session)
    consumers.visited = 0
    peer.drop()
    assert not consumers
    assert consumers.visited <= 2 * 100


def test_dead_messages_are_found_without_other_consumers(harness: Harness, peer: Peer) -> None:
    session = peer.create_session()
    for _ in range(100):
        peer.consume("q", session, size=0)
    peer.consume("q", session)
    peer.send_bytes(b"".join([peer.message("q", b"x") for _ in range(20)]))
    messages = peer.delivered()
    subscription = harness.queue("q").queue
    subscription.consumers = consumers = CountingDict(subscription.consumers)
    peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 2}, blocks(*messages))
    assert harness.queue("q").unacked == 0
    assert consumers.visited <= 100


@pytest.mark.parametrize(("reason", "expected"), [(0, "UNDELIVERABLE"), (1, "EXPIRED")])
def test_client_declares_message_dead(
    harness: Harness, peer: Peer, reason: int, expected: str
) -> None:
    session = peer.create_session()
    peer.consume("q", session)
    peer.send("q", "a")
    [message] = peer.delivered()
    properties = {"JMQAckType": 2, "JMQDeadReason": reason}
    peer.send_packet(H.ACKNOWLEDGE, properties, blocks(message))
    assert harness.bodies("q") == []
    assert harness.queue("q").statistics.expired == reason
    peer.consume("mq.sys.dmq", session)
    [dead_letter] = peer.delivered()
    assert dead_letter.sysid == message.sysid
    assert dead_letter.variable.destination == "q"
    assert dead_letter.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] == expected
    assert dead_letter.properties["JMS_SUN_DMQ_DELIVERY_COUNT"] == 1
    assert dead_letter.properties["JMS_SUN_DMQ_BODY_TRUNCATED"] is False


def test_message_properties_control_dead_lettering(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a", properties={"JMS_SUN_PRESERVE_UNDELIVERED": False})
    peer.send("q", "b", properties={"JMS_SUN_TRUNCATE_MSG_BODY": True})
    peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 2}, blocks(*peer.delivered()))
    peer.consume("mq.sys.dmq", peer.create_session())
    [dead_letter] = peer.delivered()
    assert dead_letter.body == b""
    assert dead_letter.properties["JMS_SUN_DMQ_BODY_TRUNCATED"] is True


def test_redriven_message_has_no_expiration_and_correct_size(harness: Harness, peer: Peer) -> None:
    expiration = harness.clock.wall + 1000
    properties = {"JMS_SUN_TRUNCATE_MSG_BODY": True}
    peer.send("q", "whole", expiration=expiration)
    peer.send("q", "cut", expiration=expiration, properties=properties)
    harness.run_event_loop(3000)
    dead_messages = harness.queue("mq.sys.dmq").queue
    for dead_letter in list(dead_messages.cursor()):
        origin = origin_of(harness.broker.read(dead_letter))
        assert origin is not None
        harness.broker.operations.redrive(dead_letter, origin)
    harness.run_event_loop()
    peer.consume("q", peer.create_session())
    messages = peer.delivered()
    assert [(message.body, message.expiration) for message in messages] == [(b"whole", 0), (b"", 0)]
    assert messages[1].properties == properties


@pytest.mark.parametrize("action", ["move", "copy"])
@pytest.mark.parametrize("target", [Address(Kind.QUEUE, "a-b"), Address(Kind.TOPIC, "t")])
def test_moved_message_names_its_new_destination(
    harness: Harness, peer: Peer, action: str, target: Address
) -> None:
    destination = harness.broker.destinations.resolve(target)
    expiration = harness.clock.wall + 1000
    peer.consume(target.name, peer.create_session(), topic=target.kind is Kind.TOPIC)
    peer.send(
        "q", "x", expiration=expiration, correlation_id="c", reply_to="r", properties={"n": 1}
    )
    [delivery] = harness.queue("q").queue.cursor()
    sysid = sysid_of(harness.broker.read(delivery), b"")
    getattr(harness.broker.operations, action)(delivery, destination)
    harness.run_event_loop()
    [message] = peer.delivered()
    header = message.variable
    is_queue = bool(message.flags & Q)
    assert (header.queue if is_queue else header.topic) == target
    assert header.destination_class == class_of(target)
    # the kind of the destination was that of the reply-to, too
    assert header.reply_address(is_queue) == Address(Kind.QUEUE, "r")
    assert (header.correlation_id, header.delivery_count) == ("c", 1)
    assert (message.sysid, message.expiration, message.properties) == (sysid, expiration, {"n": 1})
    assert message.body == b"x"


def test_dead_letter_that_was_moved_names_its_original_queue_once_redriven(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "x")
    peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 2}, blocks(*peer.delivered()))
    [dead_letter] = harness.queue("mq.sys.dmq").queue.cursor()
    harness.broker.operations.move(dead_letter, harness.broker.destinations.queue("p"))
    harness.run_event_loop()
    [moved] = harness.queue("p").queue.cursor()
    origin = origin_of(harness.broker.read(moved))
    assert origin is not None
    harness.broker.operations.redrive(moved, origin)
    harness.run_event_loop()
    [message] = peer.delivered()
    assert (message.consumer_id, message.variable.destination) == (consumer, "q")


def test_clients_reject_no_dead_letter_as_expired(harness: Harness, peer: Peer) -> None:
    """The Java client rejects expired messages of all destinations but mq.sys.dmq."""
    settings = DestinationSettings(dead_letter=True)
    harness.broker.destinations.declare(Address(Kind.QUEUE, "q"), settings)
    expiration = harness.clock.wall + 1000
    peer.send("q", "a", expiration=expiration)
    peer.send("p", "b", expiration=expiration)
    harness.run_event_loop(3000)
    peer.consume("q.dlq", peer.create_session())
    peer.consume("mq.sys.dmq", peer.create_session())
    messages = peer.delivered()
    assert [(m.body, m.expiration) for m in messages] == [(b"a", 0), (b"b", expiration)]


@pytest.mark.parametrize("topic", [False, True])
def test_dead_letter_that_client_publishes_again(harness: Harness, peer: Peer, topic: bool) -> None:
    peer.consume("x", peer.create_session(), topic=topic)
    expiration = harness.clock.wall + 1000
    properties = {"deadLetterReason": "expired"}
    peer.send("x", "a", topic=topic, properties=properties, expiration=expiration)
    [message] = peer.delivered()
    assert (message.flags & Q == 0, message.expiration) == (topic, expiration)
    assert message.properties == properties


def test_republished_dead_letter_may_become_dead_letter_again(harness: Harness, peer: Peer) -> None:
    session = peer.create_session()
    peer.consume("t", session, topic=True)
    peer.consume("q", session)
    peer.consume("mq.sys.dmq", session)
    properties: dict[str, Any] = {}
    for name in ("t", "q"):
        peer.send(name, "a", topic=name == "t", properties=properties)
        peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 2}, blocks(*peer.delivered()))
        [dead_letter] = harness.queue("mq.sys.dmq").queue.consumers
        [delivery] = dead_letter.unacked.values()
        origin = origin_of(harness.broker.read(delivery))
        assert origin is not None
        assert origin.address.name == name
        assert (origin.address.kind is Kind.TOPIC) == (name == "t")
        [packet] = peer.delivered()
        assert packet.properties["originalQueue"] == name
        properties = packet.properties
        peer.acknowledge(packet)


def test_second_dead_letter_has_no_properties_of_first(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    old_properties = {
        "JMS_SUN_DMQ_UNDELIVERED_REASON": "EXPIRED",
        "JMS_SUN_DMQ_BODY_TRUNCATED": True,
    }
    peer.send("q", "a", properties=old_properties)
    peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 2}, blocks(*peer.delivered()))
    selector = "JMS_SUN_DMQ_UNDELIVERED_REASON = 'UNDELIVERABLE'"
    peer.consume("mq.sys.dmq", peer.create_session(), JMQSelector=selector)
    [dead_letter] = peer.delivered()
    assert dead_letter.properties["JMS_SUN_DMQ_UNDELIVERED_REASON"] == "UNDELIVERABLE"
    assert dead_letter.properties["JMS_SUN_DMQ_BODY_TRUNCATED"] is False


def test_undeliverable_message_goes_to_another_consumer(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session(), size=1)
    other = harness.connect()
    other.consume("q", other.create_session(), size=1)
    peer.send("q", "a", "b")
    [message], [_] = peer.delivered(), other.delivered()
    other.resume(0, 1)  # there is no such consumer
    for number in list(harness.coordinator.connections.values())[1]._connection.outbound.consumers:
        other.resume(number, 1)
    peer.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 1}, blocks(message))
    harness.run_event_loop()
    [redelivered] = other.delivered()
    assert redelivered.sysid == message.sysid
    assert redelivered.flags & R


def test_undeliverable_message_of_closed_consumer_goes_to_another(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.close_consumer(consumer, message)
    other = harness.connect()
    other.consume("q", other.create_session())
    peer.acknowledge(message, JMQAckType=1)
    assert other.texts() == ["a"]


def test_undeliverable_message_returns_to_its_only_consumer(harness: Harness, peer: Peer) -> None:
    """A message-driven bean with SendUndeliverableMsgsToDMQ=false gets it again."""
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.acknowledge(message, JMQAckType=1)
    harness.run_event_loop()
    [redelivered] = peer.delivered()
    assert redelivered.sysid == message.sysid
    assert redelivered.flags & R
    peer.acknowledge(redelivered)
    assert harness.queue("q").unacked == 0
    assert harness.bodies("mq.sys.dmq") == []


def test_undeliverable_message_of_closed_consumer_waits_for_next(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.close_consumer(consumer, message)
    peer.acknowledge(message, JMQAckType=1)
    assert harness.bodies("q") == [b"a"]


@pytest.mark.parametrize("consumers", [1, 2])
def test_undeliverable_message_is_dead_lettered_after_20_deliveries(
    harness: Harness, peer: Peer, consumers: int
) -> None:
    readers = [peer, *(harness.connect() for _ in range(consumers - 1))]
    for reader in readers:
        reader.consume("q", reader.create_session())
    peer.send("q", "a")
    deliveries = 0
    for _ in range(30):
        for reader in readers:
            for message in reader.delivered():
                deliveries += 1
                reader.send_packet(H.ACKNOWLEDGE, {"JMQAckType": 1}, blocks(message))
    assert deliveries == 20
    assert harness.bodies("mq.sys.dmq") == [b"a"]


def test_unknown_acknowledgement_types_are_refused(peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    message = peer.delivered()
    assert (
        peer.request_status(H.ACKNOWLEDGE, {"JMQAckType": 3}, blocks(*message))
        == Status.BAD_REQUEST
    )


# --- closed connections --------------------------------------------------------------------------


def test_unacked_messages_of_lost_connection_are_redelivered(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session(), size=3)
    peer.send("q", *"abcd")
    peer.delivered()
    peer.drop()
    other = harness.connect()
    other.consume("q", other.create_session())
    messages = other.delivered()
    assert [m.body for m in messages] == [b"a", b"b", b"c", b"d"]
    assert [bool(m.flags & R) for m in messages] == [True, True, True, False]


def test_only_started_deliveries_count_as_attempts(harness: Harness, peer: Peer) -> None:
    settings = DestinationSettings(max_attempts=1, dead_letter=True, dead_letter_queue="dead")
    harness.limit("q", settings)
    peer.consume("q", peer.create_session())
    peer.send("q", *"abc")
    peer.delivered()
    peer.drop()
    assert harness.bodies("dead") == [b"a"]
    assert harness.bodies("q") == [b"b", b"c"]


def test_unwritten_deliveries_are_not_counted(harness: Harness) -> None:
    peer = harness.connect(JMQSize=1)
    peer.send("q", *"abc")
    peer.consume("q", peer.create_session())
    assert peer.texts() == ["a"]
    assert harness.queue("q").unacked == 3
    peer.drop()
    other = harness.connect()
    other.consume("q", other.create_session())
    assert delivery_counts(other) == [2, 1, 1]


def test_consumer_continues_on_recreated_queue(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    [delivered] = peer.delivered()
    harness.broker.remove(harness.queue("q"), force=True)
    peer.acknowledge(delivered)
    peer.send("q", "b")
    [message] = peer.delivered()
    peer.acknowledge(message)
    assert harness.bodies("q") == []


def test_expired_messages_are_not_delivered(harness: Harness, peer: Peer) -> None:
    peer.send("q", "a", expiration=harness.clock.wall + 1000)
    peer.send("q", "b", flags=P)
    harness.run_event_loop(2000)
    peer.consume("q", peer.create_session())
    assert peer.texts() == ["b"]
    assert harness.bodies("mq.sys.dmq") == [b"a"]


def test_delayed_messages_are_delivered_when_due(harness: Harness, peer: Peer) -> None:
    peer.consume("q", peer.create_session())
    peer.send("q", "a", delivery_time=harness.clock.wall + 1000)
    assert peer.texts() == []
    harness.run_event_loop(1000)
    assert peer.texts() == ["a"]


def test_requests_for_unknown_and_destroyed_sessions_are_refused(peer: Peer) -> None:
    properties = {**peer.destination_properties("q"), "JMQSessionID": Long(5)}
    assert peer.request_status(H.ADD_CONSUMER, properties) == Status.NOT_FOUND
    assert peer.request_status(H.DESTROY_SESSION, {"JMQSessionID": Long(5)}) == Status.NOT_FOUND
    assert peer.request_status(H.CREATE_SESSION, {"JMQAckMode": 4}) == Status.BAD_REQUEST


def test_consumer_without_session_belongs_to_connection(harness: Harness, peer: Peer) -> None:
    reply = peer.request(
        H.ADD_CONSUMER, {**peer.destination_properties("q"), "JMQSize": 10}, expect=Status.OK
    )
    peer.send("q", "a")
    [message] = peer.delivered()
    assert message.consumer_id == reply.properties["JMQConsumerID"]
    peer.acknowledge(message)
    assert harness.bodies("q") == []
    assert status(reply) == Status.OK
