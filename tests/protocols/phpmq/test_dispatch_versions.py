"""The form of dispatches: three packets (dispatch version 1) or four (dispatch version 2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from sluicemq.broker import Broker
from sluicemq.broker.recovery import recover, snapshot
from sluicemq.journal import FileJournal
from sluicemq.model.dead_letters import DeadLetterOrigin as Home
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.phpmq import wire
from tests.journal.support import crash
from tests.protocols.phpmq.harness import Harness, Peer, encode_dispatch

QUEUE = Address(Kind.QUEUE, "q")
THREE, FOUR = b"H0100303", b"H0100304"


def send(peer: Peer, body: bytes, dispatch_version: int, ttl: int = 0) -> None:
    peer.send_bytes(wire.encode_send(b"q", body, ttl, dispatch_version=dispatch_version))


def dispatched(peer: Peer) -> list[tuple[bytes, bytes]]:
    """Return message header and body of each dispatch since the last call."""
    output = peer.transport.written
    received = []
    for frame in peer.frames():
        for header, dispatch_version in ((THREE, 1), (FOUR, 2)):
            expected = encode_dispatch(*frame[1:4], ttl=frame[4], dispatch_version=dispatch_version)
            if output.startswith(expected):
                received.append((header, frame[2]))
                output = output[len(expected) :]
                break
    assert not output
    return received


def consume(harness: Harness, queue: bytes = b"q") -> list[tuple[bytes, bytes]]:
    """Consume on a new connection, and return the dispatches received."""
    peer = harness.connect("auto")
    peer.consume(queue, 10)
    received = dispatched(peer)
    peer.drop()
    return received


def test_auto_dispatches_each_message_to_pure_consumer_as_it_was_sent(harness: Harness) -> None:
    first, second = harness.connect("auto"), harness.connect("auto")
    send(first, b"released", 1)
    send(second, b"no expiry", 2)
    send(second, b"an hour", 2, ttl=3600)
    send(first, b"released", 1)
    assert consume(harness) == [
        (THREE, b"released"),
        (FOUR, b"no expiry"),
        (FOUR, b"an hour"),
        (THREE, b"released"),
    ]


@pytest.mark.parametrize(("dispatch_version", "header"), [(1, THREE), (2, FOUR)])
def test_auto_dispatches_to_connection_in_form_of_its_first_send(
    harness: Harness, dispatch_version: Literal[1, 2], header: bytes
) -> None:
    other = harness.connect("auto")
    send(other, b"1", 1)
    send(other, b"2", 2)
    peer = harness.connect("auto")
    peer.send_bytes(wire.encode_send(b"elsewhere", b"", dispatch_version=dispatch_version))
    peer.consume(b"q", 10)
    assert dispatched(peer) == [(header, b"1"), (header, b"2")]


def test_send_sets_form_of_existing_subscription(harness: Harness) -> None:
    peer, other = harness.connect("auto"), harness.connect("auto")
    peer.consume(b"q", 10)
    send(other, b"before", 1)
    assert dispatched(peer) == [(THREE, b"before")]
    peer.send_bytes(wire.encode_send(b"elsewhere", b"", 5))
    send(other, b"after", 1)
    assert dispatched(peer) == [(FOUR, b"after")]
    # later sends change nothing
    peer.send_bytes(wire.encode_send(b"elsewhere", b"", dispatch_version=1))
    send(other, b"later", 1)
    assert dispatched(peer) == [(FOUR, b"later")]


@pytest.mark.parametrize("origin", [o for o in Origin if o is not Origin.PHPMQ])
def test_auto_dispatches_messages_of_other_protocols_with_three_packets(
    harness: Harness, origin: Origin
) -> None:
    message = Message(QUEUE, b"{}", BodyKind.TEXT, origin)
    harness.broker.publish(harness.broker.destinations.queue("q"), message, lambda: None)
    harness.run_event_loop()
    assert consume(harness) == [(THREE, b"{}")]


@pytest.mark.parametrize(("dispatch_version", "header"), [(1, THREE), (2, FOUR)])
def test_configured_version_forces_form(
    harness: Harness, dispatch_version: Literal[1, 2], header: bytes
) -> None:
    peer = harness.connect(dispatch_version)
    send(peer, b"1", 1)
    send(peer, b"2", 2)
    peer.consume(b"q", 10)
    assert dispatched(peer) == [(header, b"1"), (header, b"2")]


@pytest.mark.parametrize(("dispatch_version", "header"), [(1, THREE), (2, FOUR)])
def test_requeue_keeps_form(
    harness: Harness, dispatch_version: Literal[1, 2], header: bytes
) -> None:
    send(harness.connect("auto"), b"1", dispatch_version)
    peer = harness.connect("auto")
    peer.consume(b"q", 1)
    [frame] = peer.frames()
    peer.send_bytes(wire.encode_requeue(b"q", frame[3], 60))
    assert dispatched(peer) == [(header, b"1")]


class DiskHarness(Harness):
    """A broker whose journal is in a directory, so that it can be restarted."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.journal = FileJournal.open(directory, notify=_ignore)
        self.broker = Broker(self.journal, self.clock)
        self.broker.on_flush_needed(self._schedule_flush)
        self.journal.set_snapshot_source(lambda: snapshot(self.broker))
        recover(self.broker, self.journal.recovery)

    def run_event_loop(self, milliseconds: int = 0) -> None:
        super().run_event_loop(milliseconds)
        self.journal.sync()
        super().run_event_loop()

    def restart(self) -> DiskHarness:
        crash(self.journal)
        return DiskHarness(self.directory)


def _ignore(callback: Callable[[], None]) -> None:
    """Ignore the notification; the harness calls `sync`."""


def test_form_survives_restart_dead_lettering_and_redrive(tmp_path: Path) -> None:
    harness = DiskHarness(tmp_path)
    producer = harness.connect("auto")
    send(producer, b"1", 1)
    send(producer, b"2", 2)
    expected = [(THREE, b"1"), (FOUR, b"2")]
    harness = harness.restart()
    assert consume(harness) == expected
    peer = harness.connect("auto")
    peer.consume(b"q", 10)
    for frame in peer.frames():
        peer.send_bytes(wire.encode_dead_letter(b"q", frame[3]))
    peer.drop()
    assert consume(harness, b"q.dlq") == expected
    harness = harness.restart()
    assert consume(harness, b"q.dlq") == expected
    dead_letters = harness.find("q.dlq")
    assert dead_letters is not None
    for delivery in list(dead_letters.queue.browse()):
        harness.broker.operations.redrive(delivery, Home(QUEUE, ""))
    harness.run_event_loop()
    assert consume(harness) == expected
    harness = harness.restart()
    assert consume(harness) == expected
    harness.journal.close()
