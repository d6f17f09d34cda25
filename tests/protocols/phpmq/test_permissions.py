"""PHPMQ connections of a user with few permissions."""

from __future__ import annotations

import pytest

from sluicemq.model.access import Operation
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.maintenance import MaintenanceSession, QueueLists
from tests.protocols.phpmq.harness import Harness
from tests.support.sessions import RecordedAccess, RecordedTransport, SessionPeer


class FixedProcess:
    version = "0"

    def uptime(self) -> float:
        return 0.0

    def memory(self) -> int:
        return 0

    def clients(self) -> int:
        return 0


def frame_for(operation: str, message_id: bytes) -> bytes:
    if operation == "send":
        return wire.encode_send(b"q", b"x")
    if operation == "consume":
        return wire.encode_consume(b"q", 1)
    if operation == "acknowledge":
        return wire.encode_acknowledge(b"q", message_id)
    if operation == "requeue":
        return wire.encode_requeue(b"q", message_id)
    return wire.encode_dead_letter(b"q", message_id)


@pytest.mark.parametrize(
    ("operation", "needs"),
    [
        ("send", Operation.PRODUCE),
        ("consume", Operation.CONSUME),
        ("acknowledge", Operation.CONSUME),
        ("requeue", Operation.CONSUME),
        ("dead-letter", Operation.CONSUME),
    ],
)
@pytest.mark.parametrize("has", Operation)
def test_commands_require_their_permissions(
    harness: Harness, operation: str, needs: Operation, has: Operation
) -> None:
    holder = harness.connect()
    holder.send(b"q", b"1")
    holder.consume(b"q", 1)
    (frame,) = holder.frames()
    access = RecordedAccess(f"q:{has}")
    peer = harness.connect(access=access)
    peer.send_bytes(frame_for(operation, frame[3]))
    if has is needs:
        assert peer.transport.open
        assert access.denials == []
    else:
        assert peer.transport.close_reason == f"anna may not {needs} 'q'"
        assert access.denials == [f"test anna {needs} q"]
        assert harness.bodies("q") == [b"1"]
        assert not holder.bodies()


def test_permitted_queue_is_created_by_use(harness: Harness) -> None:
    access = RecordedAccess("jobs.*: produce consume")
    peer = harness.connect(access=access)
    peer.consume(b"jobs.new", 1)
    peer.send(b"jobs.new", b"1", b"2")
    (first,) = peer.frames()
    peer.acknowledge(first)
    assert peer.bodies() == [b"2"]
    assert peer.transport.open


def test_right_to_consume_does_not_permit_sending(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("q: consume"))
    peer.consume(b"q", 1)
    peer.send(b"q", b"1")
    assert not peer.transport.open
    assert harness.bodies("q") == []


def test_messages_sent_before_refused_send_are_kept(harness: Harness) -> None:
    peer = harness.connect(access=RecordedAccess("a: produce"))
    sends = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    peer.send_bytes(b"".join(wire.encode_send(queue, body) for queue, body in sends))
    assert not peer.transport.open
    assert harness.bodies("a") == [b"1"]
    assert harness.find("b") is None


def test_permission_is_checked_once_for_many_sends(harness: Harness) -> None:
    access = RecordedAccess("q: produce")
    identity = access.guest
    assert identity is not None
    peer = harness.connect(access=access)
    peer.send(b"q", *[b"x"] * 100)
    identity._known.clear()
    peer.send(b"q", *[b"x"] * 100)
    assert identity._known == {}


# --- the maintenance port -----------------------------------------------------------------------


def terminal(harness: Harness, access: RecordedAccess) -> SessionPeer:
    transport = RecordedTransport(harness)
    session = MaintenanceSession(
        transport, harness.broker, FixedProcess(), QueueLists(harness.broker), access=access
    )
    peer = SessionPeer(harness, transport, session)
    transport.take_written()
    return peer


def run_command(peer: SessionPeer, command: str) -> str:
    peer.send_bytes(command.encode() + b"\n")
    return peer.transport.take_written().decode()


@pytest.mark.parametrize("has", Operation)
def test_maintenance_commands_require_their_permissions(harness: Harness, has: Operation) -> None:
    harness.connect().send(b"mine", b"1")
    access = RecordedAccess(f"mine:{has}")
    peer = terminal(harness, access)
    output = run_command(peer, "show mine")
    assert ("Not permitted: anna may not browse 'mine'" in output) is (has is not Operation.BROWSE)
    answer = run_command(peer, "flush mine")
    assert ("Not permitted: anna may not manage 'mine'" in answer) is (has is not Operation.MANAGE)
    assert bool(harness.bodies("mine")) is (has is not Operation.MANAGE)
    assert peer.transport.open
    assert len(access.denials) == 2 - (has in (Operation.BROWSE, Operation.MANAGE))


def test_lists_contain_permitted_queues_only(harness: Harness) -> None:
    sender = harness.connect()
    for queue in (b"mine", b"secret"):
        sender.send(queue, b"1")
    peer = terminal(harness, RecordedAccess("m*: produce"))
    for command in ("search *", "monitor"):
        output = run_command(peer, command)
        assert "mine" in output
        assert "secret" not in output


def test_flushall_requires_permissions_for_all_queues(harness: Harness) -> None:
    sender = harness.connect()
    for queue in (b"a", b"b"):
        sender.send(queue, b"1")
    assert "Not permitted" in run_command(
        terminal(harness, RecordedAccess("*:browse", "a:manage")), "flushall"
    )
    assert harness.bodies("a") == harness.bodies("b") == [b"1"]
    assert "OK" in run_command(terminal(harness, RecordedAccess("*:manage")), "flushall")
    assert harness.bodies("a") == harness.bodies("b") == []


def test_escaped_name_refers_to_same_queue(harness: Harness) -> None:
    harness.connect().send(b"a\x01", b"1")
    peer = terminal(harness, RecordedAccess("a\\*: manage", "a\x01: browse"))
    answer = run_command(peer, "flush a\\x01")
    assert "Not permitted" in answer
    assert harness.bodies("a\x01") == [b"1"]
