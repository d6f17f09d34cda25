from __future__ import annotations

import json
import tracemalloc
import zlib

import pytest

from sluicemq.broker import EngineSettings
from sluicemq.journal import MemoryJournal
from sluicemq.model.destination import Address, DestinationSettings, Kind, Overflow
from sluicemq.model.message import BodyKind, Durability, Message, Origin
from sluicemq.protocols import java
from sluicemq.protocols.channel import MAX_UNCONFIRMED, MAX_UNREAD
from sluicemq.protocols.jmq import wire as jmq_wire
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.mapping import message_of
from sluicemq.protocols.jmq.packets import PacketType, Q, Z
from sluicemq.protocols.phpmq import session, wire
from tests.protocols.phpmq.harness import Harness, Peer, encode_dispatch, in_line_form
from tests.protocols.phpmq.test_wire import MALFORMED
from tests.support.broker import purge

UNKNOWN_ID = b"0123456789abcdef0123456789abcdef"


# --- sending and receiving ---------------------------------------------------------------------


def test_unacked_bodies_beyond_memory_budget_are_read_back() -> None:
    harness = Harness(EngineSettings(memory_budget=0))
    consumer = harness.connect()
    consumer.consume(b"q", 1000)
    bodies = [b"%d" % number for number in range(20)]
    consumer.send(b"q", *bodies)
    assert consumer.bodies() == bodies
    assert harness.broker.memory == 0
    consumer.drop()
    other = harness.connect()
    other.consume(b"q", 1000)
    assert other.bodies() == bodies


def test_message_is_delivered_and_removed_after_its_acknowledgement(harness: Harness) -> None:
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"Foo", b"Hello World", ttl=3600)
    assert producer.transport.take_written() == b""
    harness.run_event_loop(300_000)
    consumer.consume(b"Foo", 5)
    output = consumer.transport.written
    [frame] = consumer.frames()
    assert frame[:3] == (wire.DISPATCH, b"Foo", b"Hello World")
    assert frame[4] == 3300
    assert output == encode_dispatch(b"Foo", b"Hello World", frame[3], 3300)
    consumer.acknowledge(frame)
    consumer.drop()
    second = harness.connect()
    second.consume(b"Foo", 5)
    assert second.frames() == []
    assert harness.bodies("Foo") == []


def test_ids_are_unique_32_digit_hex_numbers(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", b"2")
    peer.consume(b"q", 2)
    first, second = (frame[3] for frame in peer.frames())
    assert len(first) == 32
    assert first == b"%032x" % int(first, 16)
    assert first != second


def test_messages_are_dispatched_in_order_of_arrival(harness: Harness) -> None:
    first, second = harness.connect(), harness.connect()
    first.send(b"q", b"1", b"2")
    second.send(b"q", b"3")
    first.send(b"q", b"4")
    second.consume(b"q", 9)
    assert second.bodies() == [b"1", b"2", b"3", b"4"]


def test_accepts_empty_body_and_binary_name(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"\xff\x00\x1b", b"")
    peer.consume(b"\xff\x00\x1b", 1)
    [frame] = peer.frames()
    assert frame[1:3] == (b"\xff\x00\x1b", b"")


def test_names_are_case_sensitive(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"Foo", b"body")
    peer.consume(b"foo", 1)
    assert peer.frames() == []


def test_accepts_packets_in_any_order(harness: Harness) -> None:
    peer = harness.connect()
    number = b"1".zfill(29)
    peer.send_bytes(b"H0100102P02" + b"4".zfill(29) + b"bodyP01" + number + b"q")
    peer.send_bytes(b"H0100202P04" + number + b"1P01" + number + b"q")
    assert peer.bodies() == [b"body"]


def test_accepts_pipelined_commands(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_bytes(
        wire.encode_send(b"q", b"1")
        + wire.encode_consume(b"q", 1)
        + wire.encode_send(b"q", b"2")
        + wire.encode_acknowledge(b"q", UNKNOWN_ID)
    )
    assert peer.bodies() == [b"1"]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_line_form_is_answered_in_line_form(harness: Harness, newline: bytes) -> None:
    peer = harness.connect()
    peer.send_bytes(in_line_form(wire.encode_send(b"q", b"body"), newline))
    peer.send_bytes(in_line_form(wire.encode_consume(b"q", 1), newline))
    assert newline in peer.transport.written
    assert peer.bodies() == [b"body"]


def test_listener_sets_durability_of_messages(harness: Harness) -> None:
    for durability in (Durability.NONE, Durability.LAZY, Durability.SYNC):
        harness.connect(durability=durability).send(b"q", b"")
    destination = harness.find("q")
    assert destination is not None
    assert [d.message.durability for d in destination.queue.browse() if d.message] == [0, 1, 2]


def test_message_is_dispatched_only_once_it_is_durable(harness: Harness) -> None:
    peer = harness.connect()
    peer.consume(b"q", 1)
    peer.session.receive(wire.encode_send(b"q", b"body"))
    assert peer.frames() == []
    harness.run_event_loop()
    assert peer.bodies() == [b"body"]


def test_reading_pauses_while_too_many_bytes_are_not_durable(harness: Harness) -> None:
    peer = harness.connect()
    sends = MAX_UNCONFIRMED // (1 << 20)
    for _ in range(sends):
        assert not peer.transport.paused
        peer.session.receive(wire.encode_send(b"q", bytes(1 << 20)))
    assert peer.transport.paused
    harness.run_event_loop()
    assert not peer.transport.paused
    assert len(harness.bodies("q")) == sends


@pytest.mark.parametrize("is_behind", [False, True])
def test_reading_pauses_for_lazy_messages_while_journal_is_behind(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    monkeypatch.setattr(MemoryJournal, "is_behind", is_behind)
    peer = harness.connect(durability=Durability.LAZY)
    for _ in range(MAX_UNCONFIRMED // (1 << 20)):
        peer.session.receive(wire.encode_send(b"q", bytes(1 << 20)))
    assert peer.transport.paused == is_behind
    harness.run_event_loop()
    assert not peer.transport.paused


def test_probe_is_answered_when_everything_before_it_is_durable(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(wire.encode_send(b"q", b"body"))
    peer.session.receive(wire.encode_consume(b"sluicemq.probe.1", 1))
    peer.session.receive(wire.encode_send(b"sluicemq.probe.1", b"confirm"))
    assert peer.frames() == []
    harness.run_event_loop()
    (frame,) = peer.frames()
    assert frame[1] == b"sluicemq.probe.1"
    peer.acknowledge(frame)
    assert peer.transport.open
    assert [address.name for address in harness.broker.destinations] == ["q"]


def test_reading_pauses_while_client_does_not_read_answers_to_its_probes(
    harness: Harness,
) -> None:
    peer = harness.connect()
    probe = wire.encode_send(b"sluicemq.probe.1", b"")
    peer.stop_reading()
    peer.send_bytes(probe * (MAX_UNREAD // len(probe)))
    assert peer.transport.paused
    assert peer.transport.written
    peer.read_again()
    assert not peer.transport.paused


def test_probe_after_refused_message_is_not_answered(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1))
    peer = harness.connect()
    peer.send(b"q", b"1", b"2")
    peer.consume(b"sluicemq.probe.1", 1)
    peer.send(b"sluicemq.probe.1", b"confirm")
    assert peer.frames() == []
    assert not peer.transport.open


# --- dispatch versions -------------------------------------------------------------------------


def test_version_1_dispatches_three_packets_and_keeps_time_to_live(harness: Harness) -> None:
    peer = harness.connect(dispatch_version=1)
    peer.send(b"q", b"body", ttl=5)
    peer.consume(b"q", 1)
    assert peer.transport.written.startswith(b"H0100303")
    assert b"P05" not in peer.transport.written
    assert peer.bodies() == [b"body"]
    harness.run_event_loop(5000)
    peer.consume(b"q", 1)
    assert peer.frames() == []


# --- the window --------------------------------------------------------------------------------


def test_each_acknowledgement_refills_window(harness: Harness) -> None:
    consumer, producer = harness.connect(), harness.connect()
    consumer.consume(b"q", 2)
    producer.send(b"q", *(b"%d" % n for n in range(5)))
    first, second = consumer.frames()
    assert (first[2], second[2]) == (b"0", b"1")
    consumer.acknowledge(second)
    [third] = consumer.frames()
    assert third[2] == b"2"
    consumer.send_bytes(
        wire.encode_acknowledge(b"q", first[3]) + wire.encode_acknowledge(b"q", third[3])
    )
    fourth, fifth = consumer.frames()
    assert (fourth[2], fifth[2]) == (b"3", b"4")
    consumer.acknowledge(fourth)
    producer.send(b"q", b"later")
    assert consumer.bodies() == [b"later"]


def test_second_request_requeues_unacked_messages_with_same_ids(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", b"2", b"3")
    peer.consume(b"q", 2)
    before = peer.frames()
    peer.consume(b"q", 3)
    after = peer.frames()
    assert after[:2] == before
    assert [frame[2] for frame in after] == [b"1", b"2", b"3"]


def test_last_request_of_connection_applies(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.send(b"a", b"from a")
    peer.consume(b"a", 5)
    assert peer.bodies() == [b"from a"]
    peer.consume(b"b", 5)
    other.send(b"a", b"more")
    other.send(b"b", b"from b")
    assert peer.bodies() == [b"from b"]
    other.consume(b"a", 5)
    assert other.bodies() == [b"from a", b"more"]


def test_count_0_ends_consuming_and_requeues(harness: Harness) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.send(b"q", b"1")
    peer.consume(b"q", 5)
    assert peer.bodies() == [b"1"]
    peer.consume(b"q", 0)
    peer.send(b"q", b"2")
    assert peer.frames() == []
    other.consume(b"q", 5)
    assert other.bodies() == [b"1", b"2"]


def test_consume_creates_missing_queue(harness: Harness) -> None:
    peer = harness.connect()
    peer.consume(b"new", 1)
    assert peer.transport.open
    peer.send(b"new", b"1")
    assert peer.bodies() == [b"1"]


def test_consumers_of_queue_are_served_round_robin(harness: Harness) -> None:
    consumers = [harness.connect() for _ in range(3)]
    for consumer in consumers:
        consumer.consume(b"q", 10)
    harness.connect().send(b"q", *(b"%d" % n for n in range(9)))
    received = [consumer.bodies() for consumer in consumers]
    assert [len(bodies) for bodies in received] == [3, 3, 3]
    assert sorted(body for bodies in received for body in bodies) == [b"%d" % n for n in range(9)]


def test_accepts_largest_count(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1")
    peer.consume(b"q", 10**20 - 1)
    assert peer.bodies() == [b"1"]


# --- acknowledgements --------------------------------------------------------------------------


def test_acknowledgement_on_another_connection_refills_window(harness: Harness) -> None:
    holder, other = harness.connect(), harness.connect()
    other.send(b"q", b"1", b"2")
    holder.consume(b"q", 1)
    [first] = holder.frames()
    other.acknowledge(first)
    assert holder.bodies() == [b"2"]
    holder.drop()
    assert harness.bodies("q") == [b"2"]


@pytest.mark.parametrize(
    "settle", [wire.encode_acknowledge, wire.encode_dead_letter, wire.encode_requeue]
)
def test_acknowledgements_of_unknown_ids_and_wrong_queues_are_ignored(
    harness: Harness, settle
) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", b"2")
    peer.send(b"other", b"3")
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    for queue, message_id in (
        (b"q", UNKNOWN_ID),
        (b"q", b""),
        (b"q", frame[3].upper()),
        (b"q", frame[3][:16] + b"0" * 16),
        (b"other", frame[3]),
        (b"nowhere", frame[3]),
    ):
        peer.send_bytes(settle(queue, message_id))
    assert peer.transport.open
    assert peer.frames() == []
    assert harness.bodies("q") == [b"1", b"2"]
    assert harness.bodies("other") == [b"3"]
    assert harness.find("nowhere") is None


def test_second_acknowledgement_does_not_refill_window(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", b"2", b"3")
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    peer.send_bytes(wire.encode_acknowledge(b"q", frame[3]) * 3)
    assert peer.bodies() == [b"2"]


def test_acknowledgement_after_new_request_removes_message(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1")
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    peer.send_bytes(wire.encode_consume(b"q", 0) + wire.encode_acknowledge(b"q", frame[3]))
    assert harness.bodies("q") == []


def test_requeue_moves_to_end_with_same_id_and_new_ttl(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", ttl=10)
    peer.send(b"q", b"2", b"3")
    peer.consume(b"q", 1)
    [first] = peer.frames()
    harness.run_event_loop(9000)
    peer.send_bytes(wire.encode_requeue(b"q", first[3], 100))
    [second] = peer.frames()
    assert second[2] == b"2"
    harness.run_event_loop(2000)
    peer.acknowledge(second)
    peer.acknowledge(peer.frames()[0])
    [requeued] = peer.frames()
    assert requeued[2:] == (b"1", first[3], 98)


def test_requeue_on_another_connection_refills_window(harness: Harness) -> None:
    holder, other = harness.connect(), harness.connect()
    other.send(b"q", b"1", b"2")
    holder.consume(b"q", 1)
    [first] = holder.frames()
    other.send_bytes(wire.encode_requeue(b"q", first[3]))
    assert holder.bodies() == [b"2"]


def test_dead_letter_command_moves_message_to_dlq(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"1", b"2", ttl=3600)
    peer.consume(b"q", 1)
    [first] = peer.frames()
    peer.send_bytes(wire.encode_dead_letter(b"q", first[3]))
    assert peer.bodies() == [b"2"]
    assert harness.bodies("q") == [b"2"]
    assert harness.bodies("q.dlq") == [b"1"]


# --- disconnecting -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reset", "eof", "protocol error", "shutdown"])
def test_unacked_messages_return_to_their_position_with_same_ids(
    harness: Harness, how: str
) -> None:
    holder, next_one = harness.connect(), harness.connect()
    holder.send(b"q", b"1", b"2", b"3")
    holder.consume(b"q", 2)
    before = holder.frames()
    if how == "eof":
        holder.session.end_of_input()
    elif how == "protocol error":
        holder.session.receive(b"GET / HTTP/1.0\r\n")
    elif how == "shutdown":
        holder.session.disconnect("the broker stops", stopping=True)
    assert holder.transport.open == (how == "reset")
    holder.drop()
    next_one.consume(b"q", 5)
    after = next_one.frames()
    assert after[:2] == before
    assert after[2][2] == b"3"


def test_input_after_close_is_ignored(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_bytes(b"nonsense")
    peer.send_bytes(b"nonsense" + wire.encode_send(b"q", b"1"))
    peer.send(b"q", b"2")
    peer.session.end_of_input()
    peer.session.disconnect("the broker stops", stopping=True)
    peer.drop()
    assert harness.find("q") is None


def test_end_of_input_is_answered_when_all_messages_are_on_disk(harness: Harness) -> None:
    for durability in (Durability.NONE, Durability.LAZY, Durability.SYNC):
        peer = harness.connect(durability=durability)
        peer.session.receive(wire.encode_send(b"q", b"body"))
        peer.session.end_of_input()
        assert peer.transport.open == (durability is Durability.SYNC)
        harness.run_event_loop()
        assert not peer.transport.open
        peer.drop()


@pytest.mark.parametrize("stopping", [False, True])
def test_producer_that_has_not_ended_its_input_is_reset(harness: Harness, stopping: bool) -> None:
    """An orderly close would confirm sends that the broker has not read."""
    producer, consumer = harness.connect(), harness.connect()
    consumer.consume(b"other", 1)
    producer.send(b"q", b"1")
    silent = harness.connect()
    lazy = harness.connect(durability=Durability.LAZY)
    for peer in producer, consumer, silent, lazy:
        peer.session.disconnect("enough", stopping=stopping)
        assert not peer.transport.open
    assert producer.transport.aborted
    assert silent.transport.aborted
    assert not consumer.transport.aborted
    assert not lazy.transport.aborted
    assert harness.bodies("q") == [b"1"]


def test_disconnect_after_end_of_input_waits_for_disk(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(wire.encode_send(b"q", b"body"))
    peer.session.end_of_input()
    peer.session.disconnect("the broker stops", stopping=True)
    assert peer.transport.open
    harness.run_event_loop()
    assert not peer.transport.open
    assert not peer.transport.aborted


def test_messages_of_lost_connection_become_durable(harness: Harness) -> None:
    peer = harness.connect()
    peer.session.receive(wire.encode_send(b"q", b"body"))
    peer.session.end_of_input()
    peer.drop()
    assert peer.transport.open
    assert harness.bodies("q") == [b"body"]


def test_end_of_input_behind_blocked_send_waits(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2", b"3")
    producer.session.end_of_input()
    harness.run_event_loop()
    assert producer.transport.open
    consumer.consume(b"q", 5)
    assert consumer.bodies() == [b"1", b"2", b"3"]
    assert not producer.transport.open


def test_incomplete_message_is_dropped_with_its_connection(harness: Harness) -> None:
    peer = harness.connect()
    peer.send_bytes(wire.encode_send(b"q", b"whole") + wire.encode_send(b"q", b"half")[:-3])
    peer.session.end_of_input()
    peer.drop()
    assert harness.bodies("q") == [b"whole"]


def test_message_may_arrive_in_fragments_with_pauses(harness: Harness) -> None:
    peer = harness.connect()
    message = wire.encode_send(b"q", b"body")
    for cut in (3, 20, 45, 80, 109):
        peer.send_bytes(message[:cut])
        harness.run_event_loop(60_000)
        assert harness.bodies("q") == []
        peer.send_bytes(message[cut:])
        assert peer.transport.open
        assert harness.bodies("q") == [b"body"]
        destination = harness.find("q")
        assert destination is not None
        purge(harness.broker, destination)


# --- time to live ------------------------------------------------------------------------------


def test_expired_message_is_never_dispatched(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"short", ttl=1)
    peer.send(b"q", b"for ever", ttl=0)
    harness.run_event_loop(1000)
    peer.consume(b"q", 5)
    assert peer.bodies() == [b"for ever"]


def test_remaining_ttl_is_rounded_up_to_seconds(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"short", ttl=1)
    harness.run_event_loop(600)
    peer.consume(b"q", 1)
    assert peer.frames()[0][4] == 1


def test_unacked_message_expires_when_it_is_requeued(harness: Harness) -> None:
    holder, other = harness.connect(), harness.connect()
    holder.send(b"q", b"acked late", b"dropped", ttl=1)
    holder.consume(b"q", 2)
    first, _ = holder.frames()
    harness.run_event_loop(5000)
    holder.acknowledge(first)
    assert holder.transport.open
    holder.drop()
    other.consume(b"q", 5)
    assert other.frames() == []
    assert harness.bodies("q") == []


def test_accepts_largest_ttl(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"q", b"body", ttl=10**20 - 1)
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    assert frame[4] > 10**12
    peer.send_bytes(wire.encode_requeue(b"q", frame[3], 10**20 - 1))
    assert peer.bodies() == [b"body"]


# --- malformed input and refusals --------------------------------------------------------------


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input_closes_that_connection_only(harness: Harness, name: str) -> None:
    malformed_peer, other = harness.connect(), harness.connect()
    other.consume(b"q", 5)
    lines = MALFORMED[name][8:9] in b"\r\n"
    before = b"" if lines else wire.encode_send(b"q", b"before")
    malformed_peer.send_bytes(before + MALFORMED[name] + b"\n" * 64)
    assert malformed_peer.transport.close_reason
    assert malformed_peer.transport.take_written() == b""
    assert other.bodies() == ([] if lines else [b"before"])
    other.send(b"q", b"after")
    assert other.bodies() == [b"after"]


def test_listener_limits_close_connection(harness: Harness) -> None:
    peer = harness.connect(limits=wire.Limits(body=10))
    peer.send(b"q", b"x" * 10)
    assert peer.transport.open
    peer.send(b"q", b"x" * 11)
    assert not peer.transport.open


def test_full_queue_that_rejects_closes_producers_connection(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1))
    producer, other = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2", b"3")
    assert "full" in (producer.transport.close_reason or "")
    assert harness.bodies("q") == [b"1"]
    assert harness.broker.traffic_of("phpmq").published == 1
    other.consume(b"q", 1)
    assert other.bodies() == [b"1"]


@pytest.mark.parametrize("name", [b"full", None])
def test_error_closes_when_sends_before_it_are_durable(
    harness: Harness, name: bytes | None
) -> None:
    """A client that ends its output takes the close for the confirmation."""
    harness.limit("full", DestinationSettings(max_messages=1))
    peer = harness.connect()
    peer.send(b"full", b"")
    refused_input = b"nonsense" if name is None else wire.encode_send(name, b"")
    peer.session.receive(wire.encode_send(b"q", b"1") + refused_input)
    peer.session.receive(wire.encode_send(b"q", b"2") + wire.encode_consume(b"q", 1))
    assert peer.transport.open
    harness.run_event_loop()
    assert peer.transport.close_reason
    assert not peer.transport.aborted
    assert harness.bodies("q") == [b"1"]


def test_body_above_limit_of_queue_closes(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_message_bytes=3))
    peer = harness.connect()
    peer.send(b"q", b"1234")
    assert not peer.transport.open


def test_consumer_above_max_consumers_closes(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_consumers=1))
    first, second = harness.connect(), harness.connect()
    first.consume(b"q", 1)
    second.consume(b"q", 1)
    assert first.transport.open
    assert not second.transport.open


def test_use_of_queue_that_cannot_be_created_closes() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    for request in (wire.encode_send(b"q", b""), wire.encode_consume(b"q", 1)):
        peer = harness.connect()
        peer.send_bytes(request)
        assert not peer.transport.open
    polite = harness.connect()
    polite.send_bytes(wire.encode_consume(b"q", 0) + wire.encode_acknowledge(b"q", UNKNOWN_ID))
    assert polite.transport.open


def test_stopping_broker_refuses_messages(harness: Harness) -> None:
    peer = harness.connect()
    harness.broker.stop()
    peer.send(b"q", b"1")
    assert not peer.transport.open


# --- back-pressure -----------------------------------------------------------------------------


def test_queue_that_blocks_producers_pauses_reading_and_keeps_order(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2", b"3", b"4")
    assert producer.transport.paused
    consumer.consume(b"q", 1)
    received = []
    for _ in range(4):
        [frame] = consumer.frames()
        received.append(frame[2])
        consumer.acknowledge(frame)
    assert received == [b"1", b"2", b"3", b"4"]
    assert not producer.transport.paused
    assert producer.transport.open


def test_reading_stays_paused_while_send_is_blocked(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer = harness.connect()
    peer.send(b"q", b"1", b"2")
    peer.stop_reading()
    peer.read_again()
    assert peer.transport.paused


def test_bytes_received_while_reading_is_paused_are_processed_later(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", bytes(1000))
    assert producer.session.buffered == 1000
    producer.send(b"q", b"3")
    assert producer.session.buffered == len(b"q") + 1001
    consumer.consume(b"q", 10)
    assert consumer.bodies() == [b"1", bytes(1000), b"3"]
    assert producer.session.buffered == 0


def test_blocked_producer_that_disconnects_loses_nothing(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send_bytes(
        b"".join(wire.encode_send(b"q", b"%d" % n) for n in range(4)) + wire.encode_consume(b"q", 9)
    )
    producer.session.end_of_input()
    producer.drop()
    consumer.consume(b"q", 10)
    assert consumer.bodies() == [b"0", b"1", b"2", b"3"]
    # its consume request came behind the sends and must not make it a consumer now
    for number in range(4):
        consumer.send(b"q", b"%d" % number)
    assert consumer.bodies() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_frames_behind_blocked_sends_are_measured_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    measured = 0

    def size(frames: list[wire.Frame]) -> int:
        nonlocal measured
        measured += len(frames)
        return len(frames)

    monkeypatch.setattr(session, "_size", size)
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer, consumer = harness.connect(), harness.connect()
    peer.session.receive(wire.encode_send(b"q", b"x") * 100)
    if is_lost:
        peer.drop()
    consumer.consume(b"q", 1)
    for _ in range(100):
        [frame] = consumer.frames()
        consumer.acknowledge(frame)
    assert measured < 100


def test_error_behind_blocked_send_closes_after_it(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send_bytes(wire.encode_send(b"q", b"1") + wire.encode_send(b"q", b"2") + b"nonsense!!")
    assert producer.transport.open
    consumer.consume(b"q", 10)
    assert consumer.bodies() == [b"1", b"2"]
    assert not producer.transport.open


@pytest.mark.parametrize("stopping", [False, True])
def test_connection_with_blocked_send_is_reset(harness: Harness, stopping: bool) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2", b"3")
    producer.session.end_of_input()
    producer.session.disconnect("enough", stopping=stopping)
    assert producer.transport.aborted  # an orderly close would mean that the messages are stored
    harness.transports.remove(producer.transport)
    consumer.consume(b"q", 5)
    assert consumer.bodies() == [b"1"]


def test_nothing_is_dispatched_to_peer_that_does_not_read(harness: Harness) -> None:
    slow, other = harness.connect(), harness.connect()
    slow.consume(b"q", 2)
    slow.stop_reading()
    other.send(b"q", b"1")
    assert slow.transport.take_written() == b""
    slow.consume(b"q", 3)
    other.send(b"q", b"2")
    assert slow.transport.take_written() == b""
    slow.read_again()
    harness.run_event_loop()
    assert slow.bodies() == [b"1", b"2"]
    slow.session.flushed()


def test_messages_not_taken_by_slow_consumer_go_to_another(harness: Harness) -> None:
    slow, other = harness.connect(), harness.connect()
    slow.consume(b"q", 5)
    slow.stop_reading()
    other.consume(b"q", 5)
    other.send(b"q", b"1", b"2")
    assert other.bodies() == [b"1", b"2"]


def test_blocked_sends_of_lost_connection_count_as_memory(harness: Harness) -> None:
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2", bytes(100_000), b"4")
    producer.drop()
    assert harness.broker.memory > 100_000
    consumer.consume(b"q", 10)
    assert consumer.bodies() == [b"1", b"2", bytes(100_000), b"4"]


MAP = {f"key {number}": number for number in range(2000)}


def publish_maps(harness: Harness, *maps: dict[str, int] | dict[str, str]) -> None:
    """Publish maps as a JMS client does."""
    queue = harness.broker.destinations.queue("q")
    for value in maps:
        body = java.dumps_map(value)
        message = Message(queue.address, body, BodyKind.MAP, Origin.JMQ, Durability.SYNC)
        harness.broker.publish(queue, message)
    harness.run_event_loop()


def converted(harness: Harness, peer: Peer) -> list[object]:
    """Let the conversion that is running end, and return the contents received, as JSON."""
    harness.background.run()
    harness.run_event_loop()
    return [json.loads(body) for body in peer.bodies()]


def test_compressed_message_is_unpacked_in_another_thread(harness: Harness) -> None:
    plain = bytes(3 << 20)
    properties = {"JMS_SUN_UNCOMPRESSED_SIZE": len(plain)}
    data = jmq_wire.encode_packet(
        PacketType.BYTES_MESSAGE, Q | Z, 0, properties, encode_header("q"), zlib.compress(plain)
    )
    [packet] = jmq_wire.Decoder().feed(data)
    harness.broker.publish(harness.broker.destinations.queue("q"), message_of(packet))
    harness.run_event_loop()
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    assert consumer.bodies() == []
    harness.background.run()
    harness.run_event_loop()
    assert consumer.bodies() == [plain]


def test_long_maps_are_converted_in_another_thread_and_later_messages_wait(
    harness: Harness,
) -> None:
    publish_maps(harness, {"n": 1}, MAP, {"n": 2}, MAP, {"n": 3})
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    assert [json.loads(body) for body in consumer.bodies()] == [{"n": 1}]
    publish_maps(harness, {"n": 4})
    assert consumer.bodies() == []
    assert converted(harness, consumer) == [MAP, {"n": 2}]
    assert converted(harness, consumer) == [MAP, {"n": 3}, {"n": 4}]
    publish_maps(harness, {"n": 5})
    assert [json.loads(body) for body in consumer.bodies()] == [{"n": 5}]


def test_short_maps_are_converted_few_at_time(harness: Harness) -> None:
    maps = [{f"key {number}": number for number in range(100)}] * 20
    publish_maps(harness, *maps)
    consumer = harness.connect()
    consumer.consume(b"q", 100)
    bodies: list[object] = [json.loads(body) for body in consumer.bodies()]
    assert 0 < len(bodies) < 10
    while harness.background.jobs:
        bodies += converted(harness, consumer)
    assert bodies == maps


@pytest.mark.parametrize("end", ["close", "replace", "delete"])
def test_end_of_subscription_ends_conversion(harness: Harness, end: str) -> None:
    publish_maps(harness, MAP, {"n": 1})
    consumer, other = harness.connect(), harness.connect()
    consumer.consume(b"q", 10)
    if end == "close":
        consumer.drop()
    elif end == "replace":
        consumer.consume(b"other", 1)
        consumer.send(b"other", b"2")
        assert consumer.bodies() == [b"2"]
    else:
        harness.broker.remove(harness.broker.destinations.queue("q"), force=True)
        harness.run_event_loop()
        consumer.send(b"q", b"2")
        assert consumer.bodies() == [b"2"]
    harness.background.run()
    harness.run_event_loop()
    assert consumer.bodies() == []
    other.consume(b"q", 10)
    assert converted(harness, other) == ([] if end == "delete" else [MAP, {"n": 1}])
    # those that were not sent have counted no attempt
    for holder in harness.broker.destinations.queue("q").queue.consumers:
        assert {delivery.attempts for delivery in holder.unacked.values()} <= {1}


def test_requests_during_conversion_dispatch_once(harness: Harness) -> None:
    publish_maps(harness, MAP, {"n": 1}, {"n": 2})
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    statistics = harness.broker.destinations.queue("q").statistics
    assert statistics.delivered == 3
    consumer.send_bytes(wire.encode_consume(b"q", 10) * 50)
    assert statistics.delivered == 6
    bodies: list[object] = []
    while harness.background.jobs:
        bodies += converted(harness, consumer)
    assert bodies == [MAP, {"n": 1}, {"n": 2}]


def test_memory_for_conversion_is_reserved(harness: Harness) -> None:
    publish_maps(harness, {"text": "\u20ac" * 100_000})
    harness.connect().consume(b"q", 1)
    [(work, _)] = harness.background.jobs
    tracemalloc.start()
    work()
    _, used = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < harness.memory.reserved


def test_request_for_same_queue_continues_conversion(harness: Harness) -> None:
    publish_maps(harness, MAP, {"n": 1})
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    [(work, callback)] = harness.background.jobs
    consumer.consume(b"q", 10)
    assert len(harness.background.jobs) == 1
    callback(work())
    harness.run_event_loop()
    assert [json.loads(body) for body in consumer.bodies()] == [MAP, {"n": 1}]


def test_conversion_of_ended_subscription_ends_with_connection(harness: Harness) -> None:
    publish_maps(harness, MAP)
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    [(work, _)] = harness.background.jobs
    consumer.consume(b"q", 0)
    consumer.drop()
    assert work() is None


@pytest.mark.parametrize("is_ended", [False, True])
def test_nothing_more_is_converted_for_client_that_does_not_read(
    harness: Harness, is_ended: bool
) -> None:
    publish_maps(harness, MAP, MAP, {"n": 1})
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    consumer.stop_reading()
    queue = harness.broker.destinations.queue("q").queue
    if is_ended:
        first = next(iter(queue.browse()))
        harness.broker.dead_letter(queue, first.sequence, "client", force=True)
    assert converted(harness, consumer) == ([] if is_ended else [MAP])
    assert not harness.background.jobs
    assert (queue.unacked, queue.ready) == ((0, 2) if is_ended else (1, 2))
    consumer.read_again()
    harness.run_event_loop()
    assert converted(harness, consumer) == [MAP, {"n": 1}]
    for holder in queue.consumers:
        assert {delivery.attempts for delivery in holder.unacked.values()} == {1}


def test_message_that_ends_during_its_conversion_is_not_dispatched(harness: Harness) -> None:
    publish_maps(harness, MAP, {"n": 1})
    consumer = harness.connect()
    consumer.consume(b"q", 10)
    queue = harness.broker.destinations.queue("q").queue
    [first, _] = queue.browse()
    harness.broker.dead_letter(queue, first.sequence, "client", force=True)
    assert converted(harness, consumer) == [{"n": 1}]


def test_acknowledgement_behind_blocked_send_of_lost_connection_is_dropped(
    harness: Harness,
) -> None:
    """It would be executed before the send is accepted."""
    harness.limit("done", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    worker = harness.connect()
    worker.send(b"jobs", b"job")
    worker.consume(b"jobs", 1)
    [frame] = worker.frames()
    worker.send_bytes(
        wire.encode_send(b"done", b"1")
        + wire.encode_send(b"done", b"2")
        + wire.encode_acknowledge(frame[1], frame[3])
    )
    worker.drop()
    assert harness.bodies("jobs") == [b"job"]


# --- other protocols, and removed queues -------------------------------------------------------


def test_dispatches_message_of_another_protocol(harness: Harness) -> None:
    peer = harness.connect(dispatch_version=2)
    destination = harness.broker.destinations.queue("q")
    message = Message(
        Address(Kind.QUEUE, "q"),
        b'{"a":1}',
        BodyKind.JSON,
        Origin.MSGLITE,
        Durability.LAZY,
        harness.clock.wall,
        harness.clock.wall + 1500,
        9,
        properties={"key": 1},
    )
    harness.broker.publish(destination, message)
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    assert frame[2] == b'{"a":1}'
    assert frame[4] == 2


def test_queue_that_was_removed_is_created_again_by_next_send(harness: Harness) -> None:
    peer, consumer = harness.connect(), harness.connect()
    peer.send(b"q", b"1")
    destination = harness.find("q")
    assert destination is not None
    harness.broker.remove(destination, force=True)
    peer.send_bytes(wire.encode_acknowledge(b"q", UNKNOWN_ID))
    assert harness.find("q") is None
    peer.send(b"q", b"2")
    consumer.consume(b"q", 1)
    assert consumer.bodies() == [b"2"]


def test_consumer_continues_on_recreated_queue(harness: Harness) -> None:
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", b"1", b"2")
    consumer.consume(b"q", 2)
    assert consumer.bodies() == [b"1", b"2"]
    for _ in range(2):
        destination = harness.find("q")
        assert destination is not None
        harness.broker.remove(destination, force=True)
        producer.send(b"q", b"3", b"4", b"5")
        frames = consumer.frames()
        assert [frame[2] for frame in frames] == [b"3", b"4"], "not the window it asked for"
        consumer.acknowledge(frames[0])
        assert consumer.bodies() == [b"5"]


def test_subscription_of_stalled_consumer_waits_on_new_queue(harness: Harness) -> None:
    producer, consumer = harness.connect(), harness.connect()
    consumer.consume(b"q", 2)
    consumer.stop_reading()
    destination = harness.find("q")
    assert destination is not None
    harness.broker.remove(destination, force=True)
    producer.send(b"q", b"1")
    assert consumer.bodies() == []
    consumer.read_again()
    harness.run_event_loop()
    assert consumer.bodies() == [b"1"]


def test_removed_queue_that_may_not_be_created_again_closes_its_consumers() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.limit("q", DestinationSettings())
    consumer, former_consumer = harness.connect(), harness.connect()
    consumer.consume(b"q", 1)
    former_consumer.consume(b"q", 1)
    former_consumer.drop()
    destination = harness.find("q")
    assert destination is not None
    harness.broker.remove(destination, force=True)
    assert not consumer.transport.open
    assert former_consumer.transport.open


def test_removed_queue_that_may_not_be_created_again_closes_its_blocked_producers() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.limit("q", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    producer = harness.connect()
    producer.consume(b"q", 1)
    producer.send_bytes(
        wire.encode_send(b"q", b"1")
        + wire.encode_send(b"q", b"2")
        + wire.encode_send(b"q", b"3")
        + wire.encode_send(b"sluicemq.probe.1", b"")
    )
    assert producer.bodies() == [b"1"]
    assert producer.transport.paused
    destination = harness.find("q")
    assert destination is not None
    harness.broker.remove(destination, force=True)
    harness.run_event_loop()
    assert producer.frames() == []  # the answer to the probe would confirm the refused sends
    assert producer.transport.close_reason == "q has been removed, and another may not be created"


def test_number_of_queues_cached_by_connection_is_limited(harness: Harness) -> None:
    peer = harness.connect()
    for number in range(1500):
        peer.session.receive(wire.encode_send(b"q%d" % number, b"body"))
    harness.run_event_loop()
    assert len(peer.session._destinations) <= 1024
    peer.consume(b"q3", 1)
    assert peer.bodies() == [b"body"]


def test_repeated_requests_in_one_read_are_coalesced(harness: Harness) -> None:
    producer, consumer = harness.connect(), harness.connect()
    producer.send(b"q", *(b"%d" % number for number in range(10)))
    consumer.transport.stalled = True
    consumer.send_bytes(wire.encode_consume(b"q", 4) * 100)
    assert consumer.bodies() == [b"0", b"1", b"2", b"3"]
    consumer.transport.stalled = False
    harness.run_event_loop()
    frames = consumer.frames()
    assert [frame[2] for frame in frames] == [b"0", b"1", b"2", b"3"]
    consumer.acknowledge(frames[0])
    assert consumer.bodies() == [b"4"]


def test_deferred_request_is_not_served_while_delivery_is_paused(harness: Harness) -> None:
    harness.connect().send(b"q", b"1", b"2")
    consumer = harness.connect()
    consumer.transport.stalled = True
    consumer.send_bytes(wire.encode_consume(b"q", 1) * 2)
    assert consumer.bodies() == [b"1"]
    consumer.stop_reading()
    harness.run_event_loop()
    assert consumer.bodies() == []
    consumer.read_again()
    harness.run_event_loop()
    assert consumer.bodies() == [b"1"]


def test_user_at_quota_is_disconnected() -> None:
    harness = Harness(EngineSettings(max_destinations_per_user=1))
    first = harness.connect()
    first.send_bytes(wire.encode_send(b"first", b""))
    assert first.transport.open
    for request in (wire.encode_send(b"q", b""), wire.encode_consume(b"q", 1)):
        peer = harness.connect()
        peer.send_bytes(request)
        assert not peer.transport.open
    assert len(harness.broker.destinations) == 1
