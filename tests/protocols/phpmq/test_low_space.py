"""PHPMQ while the journal's disk is nearly full: sends wait, other commands continue."""

from __future__ import annotations

from sluicemq.journal.space import SpaceLevel, SpaceReport
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.model.message import Durability
from sluicemq.protocols.phpmq import session as phpmq_session
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.wire import PROBE
from tests.protocols.phpmq.harness import Harness


def set_level(harness: Harness, level: SpaceLevel) -> None:
    harness.broker.publisher.on_space(SpaceReport(level))
    harness.run_event_loop()


def test_acknowledgements_behind_waiting_send_are_executed(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"jobs", b"one", b"two")
    peer.consume(b"jobs", 1)
    [frame] = peer.frames()
    set_level(harness, SpaceLevel.LOW)
    peer.send_bytes(
        wire.encode_send(b"done", b"first")
        + wire.encode_acknowledge(frame[1], frame[3])
        + wire.encode_send(b"done", b"second")
    )
    assert peer.bodies() == [b"two"]
    assert harness.bodies("jobs") == [b"two"]
    assert harness.bodies("done") == []
    assert peer.transport.open
    assert not peer.transport.paused
    set_level(harness, SpaceLevel.ENOUGH)
    assert harness.bodies("done") == [b"first", b"second"]
    peer.send(b"done", b"third")
    assert harness.bodies("done") == [b"first", b"second", b"third"]


def test_probe_is_answered_only_when_sends_before_it_are_stored(harness: Harness) -> None:
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send_bytes(
        wire.encode_consume(PROBE + b"1", 1)
        + wire.encode_send(b"jobs", b"one")
        + wire.encode_send(PROBE + b"1", b"")
    )
    harness.run_event_loop()
    assert peer.frames() == []
    set_level(harness, SpaceLevel.ENOUGH)
    [answer] = peer.frames()
    assert answer[1] == PROBE + b"1"
    assert harness.bodies("jobs") == [b"one"]


def test_all_probes_behind_waiting_sends_are_answered(harness: Harness) -> None:
    harness.limit("jobs", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer, consumer = harness.connect(), harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"jobs", b"one", b"two")
    for number in b"1", b"2":
        peer.send(PROBE + number, b"")
    set_level(harness, SpaceLevel.ENOUGH)
    assert peer.frames() == []
    consumer.consume(b"jobs", 2)
    assert consumer.bodies() == [b"one", b"two"]
    assert [frame[1] for frame in peer.frames()] == [PROBE + b"1", PROBE + b"2"]
    assert peer.session.buffered == 0
    assert not peer.transport.paused


def test_sends_without_content_count_while_they_wait(harness: Harness) -> None:
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send_bytes(wire.encode_send(b"jobs", b"") * (phpmq_session.MAX_WAITING // 512 + 1))
    assert peer.transport.paused


def test_reading_pauses_while_too_much_is_waiting(harness: Harness) -> None:
    content = bytes(phpmq_session.MAX_WAITING * 3 // 4)
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", content)
    assert not peer.transport.paused
    peer.send(b"queue", content)
    assert peer.transport.paused
    set_level(harness, SpaceLevel.ENOUGH)
    assert not peer.transport.paused
    assert len(harness.bodies("queue")) == 2


def test_response_is_sent_although_its_request_was_acknowledged_first(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"jobs", b"one")
    peer.consume(b"jobs", 1)
    [frame] = peer.frames()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"answers", b"result")
    peer.acknowledge(frame)
    assert harness.bodies("jobs") == []
    set_level(harness, SpaceLevel.ENOUGH)
    assert harness.bodies("answers") == [b"result"]


def test_end_of_input_is_answered_only_when_sends_are_stored(harness: Harness) -> None:
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", b"one")
    peer.session.end_of_input()
    harness.run_event_loop()
    assert peer.transport.open
    assert peer.session.buffered == len(b"one") + phpmq_session.WAITING_OVERHEAD
    set_level(harness, SpaceLevel.ENOUGH)
    assert peer.session.buffered == 0
    assert harness.bodies("queue") == [b"one"]
    assert not peer.transport.open
    assert not peer.transport.aborted


def test_stop_resets_connection_with_waiting_sends(harness: Harness) -> None:
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", b"one")
    peer.session.disconnect("the broker stops", stopping=True)
    assert peer.transport.aborted
    harness.transports.remove(peer.transport)
    set_level(harness, SpaceLevel.ENOUGH)
    assert harness.bodies("queue") == []


def test_waiting_sends_of_lost_connection_are_dropped(harness: Harness) -> None:
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", b"one")
    peer.drop()
    assert not harness.broker.publisher._space_waiters
    set_level(harness, SpaceLevel.ENOUGH)
    assert harness.bodies("queue") == []


def test_sends_that_waited_for_disk_space_may_wait_for_their_queue(harness: Harness) -> None:
    harness.limit("queue", DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    peer = harness.connect()
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", b"one", b"two", b"three")
    set_level(harness, SpaceLevel.ENOUGH)
    assert harness.bodies("queue") == [b"one"]
    peer.send_bytes(wire.encode_send(b"queue", b"four"))
    reader = harness.connect()
    reader.consume(b"queue", 1)
    bodies = []
    for _ in range(4):
        [frame] = reader.frames()
        bodies.append(frame[2])
        reader.acknowledge(frame)
    assert bodies == [b"one", b"two", b"three", b"four"]
    assert peer.transport.open


def test_messages_that_are_not_journaled_are_accepted(harness: Harness) -> None:
    peer = harness.connect(durability=Durability.NONE)
    set_level(harness, SpaceLevel.LOW)
    peer.send(b"queue", b"one")
    assert harness.bodies("queue") == [b"one"]


def test_nothing_is_dispatched_while_space_is_used_up(harness: Harness) -> None:
    peer = harness.connect()
    peer.send(b"queue", b"one")
    set_level(harness, SpaceLevel.EXHAUSTED)
    peer.consume(b"queue", 1)
    assert peer.bodies() == []
    set_level(harness, SpaceLevel.LOW)
    assert peer.bodies() == [b"one"]
