"""Redelivery, and the unacked messages of a closed consumer."""

from __future__ import annotations

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.broker.redelivery import REQUEUED_TOGETHER
from sluicemq.model.destination import DestinationSettings
from sluicemq.protocols.java import Long
from sluicemq.protocols.jmq import consumer_commands
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.fields import encode_blocks, encode_header
from sluicemq.protocols.jmq.packets import AckMode, C, PacketType, R, Status
from sluicemq.protocols.jmq.wire import encode_packet
from tests.protocols.jmq.harness import Harness, Peer, blocks, executed_lines

H = PacketType


def delivery_counts(peer: Peer) -> list[int]:
    """Return the delivery counts of the messages received."""
    return [packet.variable.delivery_count for packet in peer.delivered()]


# --- REDELIVER -----------------------------------------------------------------------------------


def test_recover_of_java_client(harness: Harness, peer: Peer) -> None:
    """Send STOP, REDELIVER of prefetched and of received messages, and START, as in a trace."""
    session = peer.create_session()
    consumer = peer.consume("q", session, size=4)
    peer.send("q", *"abcdef")
    messages = peer.delivered()
    properties = {"JMQSessionID": Long(session)}
    peer.request(H.STOP, properties, expect=Status.OK)
    peer.redeliver(*messages[2:], attempted=False)
    peer.redeliver(*messages[:2], attempted=True)
    assert peer.receive() == []
    peer.send_packet(H.START, properties)
    assert peer.receive() == []  # its flow is paused: the client has to ask
    peer.resume(consumer, 4)
    redelivered = peer.delivered()
    assert [m.body for m in redelivered] == [b"a", b"b", b"c", b"d"]
    assert [bool(m.flags & R) for m in redelivered] == [True, True, False, False]
    assert [m.variable.delivery_count for m in redelivered] == [2, 2, 1, 1]
    assert redelivered[3].flags & C
    peer.acknowledge(*redelivered)
    peer.resume(consumer, 4)
    assert peer.texts() == ["e", "f"]


def test_redelivered_messages_precede_new_ones(harness: Harness, peer: Peer) -> None:
    session = peer.create_session()
    consumer = peer.consume("q", session, size=2)
    peer.send("q", *"abcd")
    messages = peer.delivered()
    peer.resume(consumer, 3)
    messages += peer.delivered()
    peer.redeliver(*reversed(messages), attempted=True)
    peer.send("q", "e")
    peer.resume(consumer, 10)
    assert [m.body for m in peer.delivered()] == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("attempted", [False, True])
def test_redelivered_messages_wait_while_their_queue_is_paused(
    harness: Harness, peer: Peer, attempted: bool
) -> None:
    consumer = peer.consume("q", peer.create_session(), size=3)
    peer.send("q", *"abc")
    messages = peer.delivered()
    harness.broker.destinations.set_paused(harness.queue("q"), True)
    peer.redeliver(*messages, attempted=attempted)
    peer.resume(consumer, 3)
    assert peer.receive() == []
    harness.broker.destinations.set_paused(harness.queue("q"), False)
    harness.run_event_loop()
    redelivered = peer.delivered()
    assert [m.body for m in redelivered] == [b"a", b"b", b"c"]
    assert all(bool(m.flags & R) is attempted for m in redelivered)
    peer.acknowledge(*redelivered)
    peer.resume(consumer, 3)
    peer.send("q", "d")
    assert peer.texts() == ["d"]


def test_rollback_costs_same_in_every_order(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(authentication="basic", prefetch=500))
    session = peer.create_session(AckMode.NONE)
    consumer = peer.consume("q", session, size=500)
    peer.send_bytes(b"".join([peer.message("q", b"x", flags=0) for _ in range(500)]))
    messages = peer.delivered()
    counts: list[int] = []
    for order in (messages, messages[::-1]):
        transaction = peer.begin(session)
        peer.acknowledge(*messages, transaction=transaction)
        peer.request(H.STOP)
        with executed_lines(counts):
            peer.redeliver(*order, attempted=False, transaction=transaction)
        peer.send_packet(H.START)
        peer.resume(consumer, 500)
        messages = peer.delivered()
    assert counts[1] < 2 * counts[0]


def test_redelivery_costs_same_with_many_pending_messages(harness: Harness) -> None:
    peer = harness.connect(SessionOptions(authentication="basic", prefetch=520))
    peer.consume("q", peer.create_session(), size=520)
    peer.send_bytes(b"".join([peer.message("q", b"x", flags=0) for _ in range(520)]))
    messages = peer.delivered()
    peer.request(H.STOP)
    counts: list[int] = []
    for batch in (messages[:10], messages[10:-10], messages[-10:]):
        with executed_lines(counts):
            if len(batch) > 10:
                peer.redeliver(*batch, attempted=False)
            else:
                for message in batch:
                    peer.redeliver(message, attempted=False)
    assert counts[2] < 2 * counts[0]


def test_redelivery_follows_priorities(peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=3)
    peer.send("q", "low")
    peer.send("q", "high", priority=9)
    peer.send("q", "low too")
    peer.redeliver(*peer.delivered(), attempted=False)
    peer.resume(consumer, 3)
    assert peer.texts() == ["high", "low", "low too"]


def test_messages_to_redeliver_are_not_delivered_to_other_consumers(
    harness: Harness, peer: Peer
) -> None:
    consumer = peer.consume("q", peer.create_session(), size=1)
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.redeliver(message, attempted=True)
    other = harness.connect()
    other.consume("q", other.create_session())
    assert other.texts() == []
    # a message that is no longer unacked cannot be acknowledged
    peer.acknowledge(message)
    peer.resume(consumer, 1)
    assert delivery_counts(peer) == [2]


def test_redelivery_is_limited_by_max_attempts(harness: Harness, peer: Peer) -> None:
    settings = DestinationSettings(max_attempts=2, dead_letter=True, dead_letter_queue="dead")
    harness.limit("q", settings)
    peer.consume("q", peer.create_session())
    peer.send("q", "a")
    for _ in range(2):
        peer.redeliver(*peer.delivered(), attempted=True)
    assert peer.delivered() == []
    assert harness.bodies("dead") == [b"a"]


def test_redelivery_of_messages_that_are_not_unacked_is_ignored(
    harness: Harness, peer: Peer
) -> None:
    peer.consume("q", peer.create_session())
    other = harness.connect()
    other.consume("q", other.create_session())
    peer.send("q", "a", "b")
    messages, other_messages = peer.delivered(), other.delivered()
    peer.redeliver(*other_messages, attempted=True)
    assert peer.receive() == other.receive() == []
    peer.send_packet(H.REDELIVER, None, b"x")
    peer.acknowledge(*messages)
    other.acknowledge(*other_messages)
    assert harness.bodies("q") == []


# --- the end of the connection -------------------------------------------------------------------


def test_many_unacked_messages_of_closed_connection_are_requeued_in_slices(
    harness: Harness, peer: Peer
) -> None:
    harness.limit("q", DestinationSettings(max_attempts=1, dead_letter=True))
    peer.consume("q", peer.create_session(), size=1000)
    peer.send_bytes(b"".join([peer.message("q", str(n), flags=0) for n in range(1000)]))
    messages = peer.delivered()
    peer.request(H.STOP, expect=Status.OK)
    peer.redeliver(*messages[900:], attempted=False)
    harness.scan_time.limit = 2
    peer.session.closed()
    queue = harness.queue("q")
    assert 0 < queue.waiting <= 2 * REQUEUED_TOGETHER
    other = harness.connect()
    other.consume("q", other.create_session())
    for _ in range(4):
        harness.run_event_loop()
    redelivered = other.delivered()
    # the first one has been received, and has used up its attempts
    assert [int(message.body) for message in redelivered] == list(range(1, 1000))
    counts = [message.variable.delivery_count for message in redelivered]
    assert counts == [2] * 899 + [1] * 100


# --- DELETE_CONSUMER -----------------------------------------------------------------------------


def test_received_messages_stay_unacked_by_session(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=4)
    peer.send("q", *"abcd")
    messages = peer.delivered()
    peer.close_consumer(consumer, messages[1])
    other = harness.connect()
    other.consume("q", other.create_session())
    rest = other.delivered()
    assert [m.body for m in rest] == [b"c", b"d"]
    assert [m.flags & R for m in rest] == [0, 0]
    assert [m.variable.delivery_count for m in rest] == [1, 1]
    peer.acknowledge(*messages[:2])
    other.acknowledge(*rest)
    assert harness.bodies("q") == []
    peer.acknowledge(*messages[:2])  # the consumer was known here
    assert peer.request_status(H.DELETE_CONSUMER, {"JMQConsumerID": Long(consumer)}) == 404


def test_last_received_message_may_be_acked_already(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(AckMode.AUTO), size=4)
    peer.send("q", *"abcd")
    messages = peer.delivered()
    peer.acknowledge(messages[0])
    peer.acknowledge(messages[1])
    peer.close_consumer(consumer, messages[1])
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.create_session())
    assert delivery_counts(other) == [1, 1]


def test_last_received_message_may_be_acked_individually(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=4)
    peer.send("q", *"abcd")
    messages = peer.delivered()
    peer.acknowledge(messages[2])
    peer.close_consumer(consumer, messages[2])
    assert harness.queue("q").unacked == 2
    assert harness.queue("q").waiting == 1
    peer.acknowledge(*messages[:2])
    assert harness.bodies("q") == [b"d"]


def test_closing_consumer_requeues_messages_not_received(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session())
    peer.send("q", *"ab")
    peer.delivered()
    peer.close_consumer(consumer)
    assert harness.queue("q").unacked == 0
    other = harness.connect()
    other.consume("q", other.create_session())
    assert delivery_counts(other) == [1, 1]


def test_destroying_session_marks_delivered_messages_as_redelivered(
    harness: Harness, peer: Peer
) -> None:
    session = peer.create_session()
    consumer = peer.consume("q", session)
    peer.send("q", "a")
    [message] = peer.delivered()
    peer.request(H.DELETE_CONSUMER, {"JMQConsumerID": Long(consumer)}, expect=Status.OK)
    assert harness.queue("q").unacked == 1
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(session)}, expect=Status.OK)
    other = harness.connect()
    other.consume("q", other.create_session())
    [redelivered] = other.delivered()
    assert redelivered.flags & R
    assert redelivered.variable.delivery_count == 2
    assert peer.request_status(H.ACKNOWLEDGE, None, blocks(message)) == Status.NOT_FOUND


def test_closed_consumer_does_not_count_as_consumer(harness: Harness, peer: Peer) -> None:
    harness.limit("q", DestinationSettings(max_consumers=1))
    session = peer.create_session()
    consumer = peer.consume("q", session)
    peer.send("q", "a")
    [message] = peer.delivered()
    properties = {**peer.destination_properties("q"), "JMQSessionID": Long(session)}
    assert peer.request_status(H.ADD_CONSUMER, properties) == Status.CONFLICT
    peer.close_consumer(consumer, message)
    peer.consume("q", session)
    assert harness.queue("q").unacked == 1


def test_messages_to_redeliver_are_requeued_uncounted(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=2)
    peer.send("q", "a", "b")
    messages = peer.delivered()
    peer.redeliver(*messages, attempted=True)
    peer.close_consumer(consumer, messages[1])
    other = harness.connect()
    other.consume("q", other.create_session())
    assert delivery_counts(other) == [2, 2]


def test_redelivered_message_counts_as_last_received(harness: Harness, peer: Peer) -> None:
    """The order of delivery determines the last received message."""
    session = peer.create_session()
    consumer = peer.consume("q", session, size=3)
    peer.send("q", *"abc")
    messages = peer.delivered()
    peer.redeliver(messages[0], attempted=True)
    peer.resume(consumer, 3)
    [redelivered] = peer.delivered()
    peer.close_consumer(consumer, redelivered)
    assert harness.queue("q").unacked == 3


def test_closed_consumers_are_released(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_commands, "MAX_CLOSED_CONSUMERS", 10)
    sessions = [peer.create_session() for _ in range(2)]
    messages = []
    for session in [sessions[0], *[sessions[1]] * 11]:
        number = peer.consume("q", session, size=1)
        peer.send("q", "a")
        [message] = peer.delivered()
        peer.close_consumer(number, message)
        peer.acknowledge(message)
        messages.append(message)
    [jmq] = harness.coordinator.connections.values()
    assert jmq._connection.outbound.consumers == {}
    assert all(not jmq_session.consumers for jmq_session in jmq._connection.sessions.values())
    peer.acknowledge(*messages[-10:])
    peer.acknowledge(messages[-11], expect=Status.NOT_FOUND)
    peer.request(H.DESTROY_SESSION, {"JMQSessionID": Long(sessions[1])}, expect=Status.OK)
    peer.acknowledge(messages[-1], expect=Status.NOT_FOUND)


def test_late_acknowledgement_costs_same_with_many_sessions(peer: Peer) -> None:
    counts: list[int] = []
    for _ in range(2):
        session = peer.create_session()
        number = peer.consume("q", session)
        peer.close_consumer(number)
        late_blocks = encode_blocks([(number, bytes(32))] * 100)
        with executed_lines(counts):
            peer.request(H.ACKNOWLEDGE, {}, late_blocks, expect=Status.OK)
        for _ in range(100):
            peer.create_session()
    assert counts[1] < 2 * counts[0]


def test_pending_messages_wait_while_their_queue_is_paused(harness: Harness, peer: Peer) -> None:
    consumer = peer.consume("q", peer.create_session(), size=3)
    peer.send("q", *"abc")
    messages = peer.delivered()
    peer.redeliver(*messages[1:], attempted=True)
    harness.broker.destinations.set_paused(harness.queue("q"), True)
    peer.resume(consumer, 3)
    assert peer.delivered() == []
    harness.broker.destinations.set_paused(harness.queue("q"), False)
    harness.run_event_loop()
    redelivered = peer.delivered()
    assert [message.body for message in redelivered] == [b"b", b"c"]
    assert [message.variable.delivery_count for message in redelivered] == [2, 2]


def test_pending_messages_of_wildcard_wait_while_their_topic_is_paused(
    harness: Harness, peer: Peer
) -> None:
    peer.create("t.a", topic=True)
    peer.create("t.b", topic=True)
    consumer = peer.consume("t.*", peer.create_session(), topic=True, size=4)
    for name, text in (("t.a", "1"), ("t.b", "2"), ("t.a", "3"), ("t.b", "4")):
        peer.send(name, text, topic=True)
    peer.redeliver(*peer.delivered(), attempted=True)
    harness.broker.destinations.set_paused(harness.topic("t.b"), True)
    peer.resume(consumer, 4)
    assert peer.texts() == ["1", "3"]
    harness.broker.destinations.set_paused(harness.topic("t.b"), False)
    harness.run_event_loop()
    assert peer.texts() == ["2", "4"]


def test_pending_messages_of_deleted_queue_are_not_written(harness: Harness, peer: Peer) -> None:
    count = REQUEUED_TOGETHER + 100
    consumer = peer.consume("q", peer.create_session(), size=count)
    peer.send_bytes(b"".join([peer.message("q", b"x", flags=0) for _ in range(count)]))
    peer.redeliver(*peer.delivered(), attempted=True)
    harness.scan_time.limit = 1
    harness.broker.remove(harness.queue("q"), force=True)
    peer.resume(consumer, count)
    assert peer.texts() == []


@pytest.mark.parametrize(
    ("in_memory", "in_transaction"), [((), False), ((0, 39), False), ((), True)]
)
def test_redelivery_reads_few_messages_from_journal_at_once(
    in_memory: tuple[int, ...], in_transaction: bool
) -> None:
    harness = Harness(EngineSettings(memory_budget=1))
    peer = harness.connect()
    peer.consume("q", peer.create_session(), size=None)
    for number in range(40):
        harness.broker.core.memory_budget = 1 << 30 if number in in_memory else 1
        peer.send_bytes(peer.message("q", str(number).ljust(100_000)))
    messages = peer.delivered()
    transaction = peer.begin() if in_transaction else 0
    if transaction:
        peer.acknowledge(*messages, transaction=transaction)
    properties = {"JMQSetRedelivered": True}
    header = encode_header(transaction_id=transaction)
    peer.session.receive(
        encode_packet(H.REDELIVER, 0, 0, properties, header, blocks(*reversed(messages)))
    )
    assert 1 << 20 < len(peer.transport.written) < 1_300_000
    harness.run_event_loop()
    assert [message.body for message in peer.delivered()] == [message.body for message in messages]
