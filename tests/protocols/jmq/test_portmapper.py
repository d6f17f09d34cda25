"""The port mapper's responses."""

from __future__ import annotations

import pytest

from sluicemq.protocols.jmq.connection import PortMapperSession
from sluicemq.protocols.jmq.wire import MAX_LINE, Service, encode_services
from sluicemq.protocols.transport import Session, Transport
from tests.support.sessions import RecordedTransport, SessionHarness, SessionPeer

ROWS = b"101 refbroker 301\njms tcp NORMAL 43973\n.\n"


class PortMapperHarness(SessionHarness):
    """Port mapper connections with a line timeout of half a second."""

    line_timeout = 0.5

    def open(self, transport: Transport) -> Session:
        return PortMapperSession(
            transport,
            lambda: encode_services("refbroker", [Service("jms", "tcp", "NORMAL", 43973)]),
            self.line_timeout,
        )

    def connect(self) -> SessionPeer:
        transport = RecordedTransport(self)
        return SessionPeer(self, transport, self.open(transport))


@pytest.fixture
def harness() -> PortMapperHarness:
    return PortMapperHarness()


def test_every_row_is_line_of_fields_separated_by_blanks() -> None:
    services = [
        Service("portmapper", "tcp", "PORTMAPPER", 7676),
        Service("jms", "tcp", "NORMAL", 7676),
        Service("ssljms", "tls", "NORMAL", 7677),
    ]
    assert encode_services("sluicemq", services) == (
        b"101 sluicemq 301\n"
        b"portmapper tcp PORTMAPPER 7676\n"
        b"jms tcp NORMAL 7676\n"
        b"ssljms tls NORMAL 7677\n"
        b".\n"
    )


def test_response_without_services_has_header_and_terminator_only() -> None:
    assert encode_services("x", []) == b"101 x 301\n.\n"


@pytest.mark.parametrize(
    "line", [b"101\n", b"101\r\n", b"101\r", b"\n", b"x\n", b"1\nand more", b"9" * MAX_LINE]
)
def test_any_line_is_answered_and_connection_closed(
    harness: PortMapperHarness, line: bytes
) -> None:
    peer = harness.connect()
    peer.send_bytes(line)
    assert peer.transport.take_written() == ROWS
    assert peer.transport.close_reason == ""


def test_incomplete_line_is_answered_after_timeout(harness: PortMapperHarness) -> None:
    peer = harness.connect()
    peer.send_bytes(b"10")
    peer.send_bytes(b"1" * (MAX_LINE - 3))
    harness.run_event_loop(499)
    assert peer.transport.take_written() == b""
    harness.run_event_loop(1)
    assert peer.transport.take_written() == ROWS
    assert not peer.transport.open


def test_line_that_arrives_in_chunks_is_answered_once(harness: PortMapperHarness) -> None:
    peer = harness.connect()
    for byte in b"101":
        peer.send_bytes(bytes([byte]))
    assert peer.transport.open
    peer.send_bytes(b"\n")
    assert peer.transport.take_written() == ROWS
    harness.run_event_loop(1000)
    assert peer.transport.take_written() == b""


def test_end_of_input_ends_line(harness: PortMapperHarness) -> None:
    peer = harness.connect()
    peer.session.end_of_input()
    assert peer.transport.take_written() == ROWS
    assert not peer.transport.open


def test_line_timeout_of_0_disables_timeout(harness: PortMapperHarness) -> None:
    harness.line_timeout = 0.0
    peer = harness.connect()
    harness.run_event_loop(3_600_000)
    assert peer.transport.open
    peer.send_bytes(b"\n")
    assert peer.transport.take_written() == ROWS


def test_closed_connection_is_not_answered(harness: PortMapperHarness) -> None:
    peer = harness.connect()
    peer.drop()
    assert all(timer.cancelled for timer in harness.timers)


def test_shutdown_closes_without_response(harness: PortMapperHarness) -> None:
    peer = harness.connect()
    peer.session.disconnect("the broker stops", stopping=True)
    harness.run_event_loop(1000)
    assert peer.transport.take_written() == b""
    assert not peer.transport.open
