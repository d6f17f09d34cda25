"""Browsing a queue."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicemq.broker import Broker, Delivery, ManualClock
from sluicemq.journal.interface import MemoryJournal
from sluicemq.model.dead_letters import DMQ_PROPERTIES
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message
from sluicemq.protocols.java import Long, loads_map
from sluicemq.protocols.jmq import destination_commands
from sluicemq.protocols.jmq.connection import SessionOptions
from sluicemq.protocols.jmq.destination_commands import BrowseResult
from sluicemq.protocols.jmq.packets import L, P, PacketType, R, Status
from sluicemq.protocols.jmq.session import JmqSession
from sluicemq.protocols.jmq.wire import Packet
from tests.protocols.jmq.harness import DiskHarness, Harness, Peer, encode_sysid, status
from tests.support.sessions import RecordedAccess

H = PacketType


def browse(peer: Peer, name: str = "q", **more: object) -> tuple[int, list[bytes]]:
    """Browse a queue; return the consumer id for DELIVER, and the message ids."""
    reply = peer.request(H.BROWSE, {**peer.destination_properties(name), **more}, expect=Status.OK)
    number = reply.properties["JMQConsumerID"]
    assert isinstance(number, int)
    return number, [
        reply.body[position : position + 32] for position in range(0, len(reply.body), 32)
    ]


def fetch(peer: Peer, number: int, ids: list[bytes]) -> list[Packet]:
    """Return the packets that answer DELIVER; only the last has the L flag."""
    properties = {"JMQConsumerID": Long(number)}
    peer.request(H.DELIVER, properties, b"".join(ids), expect=Status.OK)
    messages = peer.delivered()
    assert {m.consumer_id for m in messages} == {number}
    assert [bool(m.flags & L) for m in messages] == [False] * (len(messages) - 1) + [True]
    return messages


def test_browse_returns_message_ids_and_deliver_their_messages(
    harness: Harness, peer: Peer
) -> None:
    peer.send("q", *"abc")
    reply = peer.request(H.VERIFY_DESTINATION, peer.destination_properties("q"), expect=Status.OK)
    assert reply.properties["JMQDestType"] == 0x21
    number, ids = browse(peer)
    assert len(ids) == 3
    messages = fetch(peer, number, ids)
    assert [m.body for m in messages] == [b"a", b"b", b"c"]
    assert [m.sysid for m in messages] == ids
    assert not any(m.flags & R for m in messages)
    assert harness.queue("q").waiting == 3
    assert [m.body for m in fetch(peer, number, ids[1:])] == [b"b", b"c"]
    assert [m.body for m in fetch(peer, number, [ids[2], ids[0]])] == [b"c", b"a"]


def test_browses_on_stopped_connection(peer: Peer) -> None:
    peer.send("q", "a")
    peer.request(H.STOP, expect=Status.OK)
    assert [m.body for m in fetch(peer, *browse(peer))] == [b"a"]


def test_browse_includes_unacked_and_omits_expired_delayed_and_uncommitted_messages(
    harness: Harness, peer: Peer
) -> None:
    """Persistent and other messages are treated alike."""
    peer.consume("q", peer.create_session(), size=1)
    peer.send("q", "flight")
    [flight] = peer.delivered()
    peer.send("q", "late", expiration=harness.clock.wall + 10)
    harness.clock.advance(20)
    peer.send("q", "future", delivery_time=harness.clock.wall + 1000)
    peer.send("q", "open", transaction_id=peer.begin())
    peer.send_bytes(peer.message("q", b"memory", flags=0))
    peer.send("q", "first", priority=9)
    number, ids = browse(peer)
    assert ids[1] == flight.sysid
    assert [m.body for m in fetch(peer, number, ids)] == [b"first", b"flight", b"memory"]


def test_browse_includes_messages_received_in_transaction_until_its_commit(peer: Peer) -> None:
    peer.consume("q", peer.create_session(), size=1)
    peer.send("q", "received", "next")
    transaction = peer.begin()
    peer.acknowledge(*peer.delivered(), transaction=transaction)
    assert [m.body for m in fetch(peer, *browse(peer))] == [b"received", b"next"]
    peer.commit(transaction)
    assert [m.body for m in fetch(peer, *browse(peer))] == [b"next"]


def test_browse_applies_selector(peer: Peer) -> None:
    for number in range(5):
        peer.send("q", str(number), properties={"n": number})
    number, ids = browse(peer, JMQSelector="n > 2")
    assert [m.body for m in fetch(peer, number, ids)] == [b"3", b"4"]
    for kind in (H.BROWSE, H.VERIFY_DESTINATION):
        properties = {**peer.destination_properties("q"), "JMQSelector": "n >"}
        assert peer.request_status(kind, properties) == Status.BAD_REQUEST


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("JMS_SUN_DMQ_UNDELIVERED_REASON = 'EXPIRED'", True),
        ("JMS_SUN_DMQ_UNDELIVERED_REASON IN ('OLDEST', 'ERROR')", False),
        ("JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP > 0", True),
        ("JMS_SUN_DMQ_UNDELIVERED_TIMESTAMP <= 0", False),
        ("JMS_SUN_DMQ_UNDELIVERED_COMMENT LIKE '%expired%'", True),
        ("JMS_SUN_DMQ_PRODUCING_BROKER = 'SluiceMQ'", True),
        ("JMS_SUN_DMQ_DEAD_BROKER = 'SluiceMQ'", True),
        ("JMS_SUN_DMQ_DEAD_BROKER IS NULL", False),
        ("JMS_SUN_DMQ_DELIVERY_COUNT = 0", True),
        ("JMS_SUN_DMQ_BODY_TRUNCATED", False),
        ("NOT JMS_SUN_DMQ_BODY_TRUNCATED", True),
    ],
)
def test_selectors_on_properties_of_dead_messages(
    harness: Harness, peer: Peer, selector: str, matches: bool
) -> None:
    """The selector applies to browsers and to consumers that attach before or after the message."""
    consumer = harness.connect()
    consumer.consume("mq.sys.dmq", consumer.create_session(), size=1, JMQSelector=selector)
    for body in ("early", "browsed"):
        peer.send("q", body, expiration=harness.clock.wall + 1)
        harness.run_event_loop(2000)
    expected = ["early", "browsed"] if matches else []
    assert consumer.texts() == expected[:1]
    number, ids = browse(peer, "mq.sys.dmq", JMQSelector=selector)
    bodies = [m.body.decode() for m in fetch(peer, number, ids)] if ids else []
    assert bodies == expected
    late_consumer = harness.connect()
    late_consumer.consume("mq.sys.dmq", late_consumer.create_session(), JMQSelector=selector)
    assert late_consumer.texts() == expected[1:]


def test_selectors_on_properties_of_dead_messages_match_no_others(peer: Peer) -> None:
    peer.send("q", "a")
    for name in DMQ_PROPERTIES:
        assert browse(peer, JMQSelector=f"{name} IS NOT NULL")[1] == []


def test_removed_messages_are_omitted(harness: Harness, peer: Peer) -> None:
    peer.send("q", *"abcd")
    peer.send_bytes(peer.message("q", b"e", flags=0))
    number, ids = browse(peer)
    consumer = peer.consume("q", peer.create_session())
    messages = peer.delivered()
    peer.acknowledge(messages[1], messages[3], messages[4])
    assert [m.body for m in fetch(peer, number, ids)] == [b"a", b"c"]
    peer.acknowledge(messages[0], messages[2])
    properties = {"JMQConsumerID": Long(number)}
    assert peer.request_status(H.DELIVER, properties, b"".join(ids)) == Status.NOT_FOUND
    assert peer.request_status(H.DELIVER, properties) == Status.NOT_FOUND
    assert peer.request_status(H.DELIVER, properties, b"x") == Status.BAD_REQUEST
    assert peer.receive() == []
    assert consumer


def test_deliver_omits_ids_that_were_not_listed(harness: Harness, peer: Peer) -> None:
    peer.send("q", "a")
    other = harness.connect()
    number, ids = browse(peer)
    properties = {"JMQConsumerID": Long(number)}
    assert other.request_status(H.DELIVER, properties, ids[0]) == Status.NOT_FOUND
    assert peer.request_status(H.DELIVER, properties, encode_sysid(1, 1)) == Status.NOT_FOUND
    # a client that has a number of its own
    assert [m.body for m in fetch(peer, 77, ids)] == [b"a"]


def test_browse_of_unknown_queue_is_404(harness: Harness, peer: Peer) -> None:
    for kind in (H.BROWSE, H.VERIFY_DESTINATION):
        reply = peer.request(kind, peer.destination_properties("q"))
        assert status(reply) == Status.NOT_FOUND
        assert reply.properties["JMQCanCreate"] is True
        reply = peer.request(kind, peer.destination_properties("temporary_destination://queue/1"))
        assert reply.properties["JMQCanCreate"] is False
    assert harness.find("q") is None
    peer.create("q")
    assert browse(peer)[1] == []
    assert (
        peer.request_status(H.BROWSE, peer.destination_properties("t", True)) == Status.BAD_REQUEST
    )


def test_browsing_without_type_browses_queue(peer: Peer) -> None:
    peer.send("q", "a")
    reply = peer.request(H.BROWSE, {"JMQDestination": "q"}, expect=Status.OK)
    assert len(reply.body) == 32


def test_browse_requires_browse_permission(harness: Harness) -> None:
    harness.broker.destinations.queue("theirs")
    peer = harness.connect(access=RecordedAccess("mine: browse produce", "theirs: consume"))
    peer.send("mine", "a")
    assert len(browse(peer, "mine")[1]) == 1
    assert peer.request_status(H.BROWSE, peer.destination_properties("theirs")) == Status.FORBIDDEN
    assert (
        peer.request_status(H.VERIFY_DESTINATION, peer.destination_properties("theirs"))
        == Status.FORBIDDEN
    )


def test_verify_destination_returns_statistics(peer: Peer) -> None:
    peer.send("q", "abc")
    reply = peer.request(
        H.BROWSE, {**peer.destination_properties("q"), "JMQMetrics": True}, expect=Status.OK
    )
    assert reply.properties["JMQMetrics"] is True
    statistics = loads_map(reply.body)
    assert statistics["numMsgsIn"] == 1
    assert statistics["totalMsgBytes"] == 3


def test_browses_message_of_another_protocol(harness: Harness, peer: Peer) -> None:
    peer.create("q")
    queue = harness.queue("q")
    harness.broker.publish(queue, Message(Address(Kind.QUEUE, "q"), b"\xff"))
    harness.run_event_loop()
    number, ids = browse(peer)
    [message] = fetch(peer, number, ids)
    assert (message.body, message.sysid) == (b"\xff", ids[0])


def test_long_queue_is_browsed_in_slices(harness: Harness, peer: Peer) -> None:
    for number in range(95):
        peer.send_bytes(peer.message("q", str(number).encode(), flags=P if number % 2 else 0))
    harness.scan_time.limit = 10
    peer.session.receive(peer.encode_request(H.BROWSE, peer.destination_properties("q"))[1])
    assert peer.receive() == []  # others have their turn
    for _ in range(20):
        harness.run_event_loop()
    [answer] = peer.receive()
    ids = answer.body
    assert len(ids) == 95 * 32
    properties = {"JMQConsumerID": answer.properties["JMQConsumerID"]}
    peer.session.receive(peer.encode_request(H.DELIVER, properties, ids)[1])
    for _ in range(20):
        harness.run_event_loop()
    reply, *messages = peer.receive()
    assert reply.type == H.DELIVER_REPLY
    assert [int(m.body) for m in messages] == list(range(95))
    assert [bool(m.flags & L) for m in messages] == [False] * 94 + [True]


def test_sends_no_more_to_client_that_does_not_read(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_commands, "SLICE_BYTES", 100)
    peer.send("q", *["x" * 60] * 10)
    number, ids = browse(peer)
    peer.stop_reading()
    peer.send_bytes(
        peer.encode_request(H.DELIVER, {"JMQConsumerID": Long(number)}, b"".join(ids))[1]
    )
    assert peer.receive() == []
    peer.read_again()
    harness.broker.flush()
    assert 0 < len(peer.receive()) < 11
    peer.stop_reading()
    harness.run_event_loop()
    assert peer.receive() == []
    peer.read_again()
    for _ in range(10):
        harness.run_event_loop()
    assert peer.receive()[-1].flags & L


def test_browse_ends_with_its_connection(harness: Harness, peer: Peer) -> None:
    peer.send("q", *"abcdefgh")
    harness.scan_time.limit = 2
    peer.session.receive(peer.encode_request(H.BROWSE, peer.destination_properties("q"))[1])
    peer.session.receive(peer.encode_request(H.GOODBYE)[1])
    for _ in range(5):
        harness.run_event_loop()
    assert [p.type for p in peer.receive()] == [H.GOODBYE_REPLY]
    assert isinstance(peer.session, JmqSession)
    assert not peer.session._browsing._requests


def test_requests_behind_browse_are_answered_in_order(
    harness: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_commands, "MAX_WAITING", 3)
    peer.send("q", *"abcdef")
    harness.scan_time.limit = 2
    requests = [peer.encode_request(H.BROWSE, peer.destination_properties("q")) for _ in range(5)]
    peer.session.receive(b"".join(data for _, data in requests))
    for _ in range(30):
        harness.run_event_loop()
    replies = peer.receive()
    assert [status(a) for a in replies] == [503, 503, 200, 200, 200]
    assert [a.consumer_id for a in replies[2:]] == [number for number, _ in requests[:3]]


def test_size_of_pending_requests_is_limited(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_commands, "MAX_WAITING_BYTES", 400)
    peer.send("q", *"abc")
    number, ids = browse(peer)
    properties = {"JMQConsumerID": Long(number)}
    peer.stop_reading()  # the client does not read
    for selected in (ids[:1], ids[1:], ids[:1]):
        peer.send_bytes(peer.encode_request(H.DELIVER, properties, b"".join(selected))[1])
    assert [status(packet) for packet in peer.receive()] == [Status.UNAVAILABLE]
    peer.read_again()
    peer.harness.run_event_loop()
    assert [p.body for p in peer.receive() if p.is_message] == [b"a", b"b", b"c"]
    assert [m.body for m in fetch(peer, number, ids * 2)] == [b"a", b"b", b"c"] * 2  # alone


def test_many_queues_are_browsed_at_the_same_time(peer: Peer) -> None:
    names = [f"q{number}" for number in range(20)]
    for name in names:
        peer.send(name, name)
    results = [browse(peer, name) for name in names]
    assert [fetch(peer, *result)[0].body.decode() for result in results] == names


def test_size_and_number_of_browse_results_are_limited(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination_commands, "MAX_RESULTS", 8)
    peer = harness.connect(SessionOptions(max_browsed=2))
    peer.send("q", *"abc")
    number, ids = browse(peer)
    assert len(ids) == 2
    for _ in range(8):
        browse(peer)
    properties = {"JMQConsumerID": Long(number)}
    # the result was dropped, but the ids are in later ones
    peer.request(H.DELIVER, properties, ids[0], expect=Status.OK)


def test_results_are_limited_by_their_messages(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination_commands, "MAX_RESULT_MESSAGES", 5)
    peer.send("q", *"abc")
    number, ids = browse(peer)
    peer.send("p", *"de")
    other, other_ids = browse(peer, "p")
    assert [m.body for m in fetch(peer, number, ids)] == [b"a", b"b", b"c"]
    browse(peer, "p")
    properties = {"JMQConsumerID": Long(number)}
    peer.request(H.DELIVER, properties, ids[0], expect=Status.NOT_FOUND)
    assert [m.body for m in fetch(peer, other, other_ids)] == [b"d", b"e"]


def test_browses_messages_that_are_only_on_disk(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    peer = harness.connect()
    peer.send("q", *"abc")
    harness = harness.restart()
    peer = harness.connect()
    number, ids = browse(peer)
    assert [m.body for m in fetch(peer, number, ids)] == [b"a", b"b", b"c"]


def test_result_keeps_no_body_of_message_that_has_ended(harness: Harness, peer: Peer) -> None:
    peer.send("q", "a", flags=0)
    number, ids = browse(peer)
    [delivery] = harness.queue("q").queue.browse()
    message = delivery.message
    peer.consume("q", peer.create_session())
    peer.acknowledge(*peer.delivered())
    del delivery
    assert not [
        referrer for referrer in gc.get_referrers(message) if isinstance(referrer, (dict, list))
    ]
    assert (
        peer.request_status(H.DELIVER, {"JMQConsumerID": Long(number)}, ids[0]) == Status.NOT_FOUND
    )


def unjournaled_delivery(broker: Broker, number: int) -> Delivery:
    """Return the delivery of a message that is not in the journal."""
    queue = broker.destinations.resolve(Address(Kind.QUEUE, "q")).queue
    message = Message(queue.destination.address, b"%d" % number)
    return Delivery(queue, number, message, 4, 1, 0, 0, 0)


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.lists(st.integers(0, 40)))
def test_result_finds_its_messages_in_any_order(numbers: list[int], requested: list[int]) -> None:
    broker = Broker(MemoryJournal(), ManualClock())
    result = BrowseResult()
    for number in numbers:
        result.add(number.to_bytes(16, "big") * 2, number, unjournaled_delivery(broker, number))
    for number in requested:
        message = result.find(broker, number.to_bytes(16, "big") * 2)
        if number in numbers:
            assert message is not None
            assert message.body == b"%d" % number
        else:
            assert message is None


def test_id_that_begins_within_another_is_not_found() -> None:
    broker = Broker(MemoryJournal(), ManualClock())
    result = BrowseResult()
    low, high = b"a" * 16, b"b" * 16
    for number, sysid in enumerate((low + high, low + high, high + low)):
        result.add(sysid, number, unjournaled_delivery(broker, number))
    message = result.find(broker, high + low)
    assert message is not None
    assert message.body == b"2"
    assert result.find(broker, high + high) is None
