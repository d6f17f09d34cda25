"""Long selectors are compiled in another thread; everything else stays in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from sluicemq.model.access import ANONYMOUS
from sluicemq.protocols.jmq.connection import JmqConnection
from sluicemq.protocols.jmq.packets import PacketType, Status
from sluicemq.protocols.jmq.session import Coordinator, JmqSession
from tests.protocols.jmq.harness import Harness, Peer, status
from tests.support.sessions import RecordedAccess

H = PacketType

_NUMBERS = count()


def long_selector() -> str:
    """Return a long selector that has not been compiled yet."""
    return f"colour = 'red' OR colour = '{next(_NUMBERS)}{'x' * 1100}'"


class RecordedJob:
    def __init__(self, work: Callable[[], Any], callback: Callable[[Any], None]) -> None:
        self.work = work
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class RecordedThread:
    """A thread whose jobs are run by `finish`."""

    def __init__(self) -> None:
        self.jobs: list[RecordedJob] = []

    def submit(self, work: Callable[[], Any], callback: Callable[[Any], None]) -> RecordedJob:
        self.jobs.append(RecordedJob(work, callback))
        return self.jobs[-1]

    def finish(self) -> None:
        """Run all jobs that are not cancelled."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            if not job.cancelled:
                job.callback(job.work())


class ThreadHarness(Harness):
    def __init__(self) -> None:
        super().__init__()
        self.thread = RecordedThread()
        self.coordinator = Coordinator(self.broker, self.thread)

    def finish(self) -> None:
        self.thread.finish()
        self.run_event_loop()


@pytest.fixture
def harness() -> ThreadHarness:
    return ThreadHarness()


def request(peer: Peer, kind: int, **properties: object) -> bytes:
    return peer.encode_request(kind, {**peer.destination_properties("q"), **properties})[1]


def test_short_selector_is_compiled_at_once(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.send("q", "a", properties={"colour": "red"})
    assert (
        status(
            peer.request(
                H.BROWSE, {**peer.destination_properties("q"), "JMQSelector": "colour = 'red'"}
            )
        )
        == 200
    )
    assert not harness.thread.jobs


def test_short_selector_is_compiled_in_thread_after_scan_deadline(
    harness: ThreadHarness,
) -> None:
    peer = harness.connect()
    peer.create("q")
    harness.scan_time.limit = 1
    for number in range(3):
        peer.session.receive(request(peer, H.VERIFY_DESTINATION, JMQSelector=f"over = {number}"))
    for _ in range(2):
        assert len(harness.thread.jobs) == 1
        harness.finish()
    assert [status(packet) for packet in peer.receive()] == [200] * 3


def test_error_of_selector_compiled_after_scan_deadline_refuses_its_request(
    harness: ThreadHarness,
) -> None:
    peer = harness.connect()
    session = peer.create_session()
    harness.scan_time.limit = 1
    harness.broker.scans.is_time_up()
    for selector in ("colour =", long_selector()):
        peer.session.receive(
            request(peer, H.ADD_CONSUMER, JMQSessionID=session, JMQSelector=selector)
        )
    harness.scan_time.limit = 0
    harness.run_event_loop()
    for _ in range(2):
        harness.finish()
    assert [status(packet) for packet in peer.receive()] == [400, 200]


@pytest.mark.parametrize("kind", [H.BROWSE, H.VERIFY_DESTINATION])
def test_packets_behind_long_selector_wait_for_it(harness: ThreadHarness, kind: int) -> None:
    peer = harness.connect()
    peer.create("q")
    data = request(peer, kind, JMQSelector=long_selector())
    second_request = request(peer, H.CREATE_DESTINATION)
    peer.send_bytes(data + second_request + second_request[:20])
    assert peer.transport.paused
    peer.send_bytes(second_request[20:])
    assert peer.receive() == []
    harness.finish()
    assert not peer.transport.paused
    replies = peer.receive()
    assert [packet.type for packet in replies] == [kind + 1, *[H.CREATE_DESTINATION_REPLY] * 2]
    assert {status(packet) for packet in replies} == {200}


def test_consumer_with_long_selector_receives_matching_messages(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.send("q", "r", properties={"colour": "red"})
    peer.send("q", "b", properties={"colour": "blue"})
    session = peer.create_session()
    selector = long_selector()
    peer.send_bytes(request(peer, H.ADD_CONSUMER, JMQSessionID=session, JMQSelector=selector))
    assert peer.receive() == []
    harness.finish()
    reply, *messages = peer.receive()
    assert (reply.type, status(reply)) == (H.ADD_CONSUMER_REPLY, 200)
    assert [message.body for message in messages] == [b"r"]
    # it is known now
    peer.request(
        H.BROWSE, {**peer.destination_properties("q"), "JMQSelector": selector}, expect=Status.OK
    )
    assert not harness.thread.jobs


def test_error_of_long_selector_is_answered_in_order(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    invalid_request = request(peer, H.BROWSE, JMQSelector=long_selector() + " AND")
    peer.send_bytes(invalid_request + request(peer, H.BROWSE))
    harness.finish()
    assert [status(packet) for packet in peer.receive()] == [400, 200]


@pytest.mark.parametrize("selector", ["a = '" + "x" * 8187 + "'", "(" * 60_000])
def test_selector_that_is_too_long_is_refused_at_once(
    harness: ThreadHarness, selector: str
) -> None:
    peer = harness.connect()
    peer.create("q")
    for kind in (H.BROWSE, H.VERIFY_DESTINATION):
        reply = peer.request(kind, {**peer.destination_properties("q"), "JMQSelector": selector})
        assert status(reply) == Status.BAD_REQUEST
        assert "at most 8192 are allowed" in str(reply.properties["JMQReason"])
    properties = {
        **peer.destination_properties("q"),
        "JMQSessionID": peer.create_session(),
        "JMQSelector": selector,
    }
    assert peer.request_status(H.ADD_CONSUMER, properties) == Status.BAD_REQUEST
    assert not harness.thread.jobs


def test_error_after_compilation_ends_only_its_connection(
    harness: ThreadHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = harness.connect()
    peer.create("q")
    faults = peer.transport.catch_faults()
    peer.send_bytes(request(peer, H.VERIFY_DESTINATION, JMQSelector=long_selector()))
    monkeypatch.setattr(JmqConnection, "reply", None)
    harness.finish()
    assert [type(fault) for fault in faults] == [TypeError]


def test_too_many_nodes_are_refused(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    peer.send_bytes(request(peer, H.BROWSE, JMQSelector=" OR ".join(["n = 1"] * 171)))
    harness.finish()
    [reply] = peer.receive()
    assert status(reply) == Status.BAD_REQUEST
    assert "at most 512 are allowed" in str(reply.properties["JMQReason"])


def test_end_of_input_does_not_drop_pending_packets(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    peer.send_bytes(
        request(peer, H.VERIFY_DESTINATION, JMQSelector=long_selector())
        + request(peer, H.BROWSE) * 2
    )
    peer.session.end_of_input()
    assert peer.transport.open
    harness.finish()
    assert [status(packet) for packet in peer.receive()] == [200] * 3
    assert not peer.transport.open


def test_closing_connection_cancels_its_compilation(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    peer.send_bytes(
        request(
            peer, H.ADD_CONSUMER, JMQSessionID=peer.create_session(), JMQSelector=long_selector()
        )
    )
    [job] = harness.thread.jobs
    peer.session.closed()
    assert job.cancelled
    # the thread had begun: its result is not used
    job.callback(job.work())
    harness.run_event_loop()
    assert harness.queue("q").consumers == 0
    assert isinstance(peer.session, JmqSession)
    assert peer.session._connection.channel.held_frames is None
    assert peer.session._compilation is None


def test_permissions_are_checked_again_after_compilation(harness: ThreadHarness) -> None:
    harness.broker.destinations.queue("q")
    peer = harness.connect(access=RecordedAccess("q: browse"))
    peer.send_bytes(request(peer, H.BROWSE, JMQSelector=long_selector()))
    assert isinstance(peer.session, JmqSession)
    peer.session._connection.channel.identity = (
        ANONYMOUS  # the permission has been revoked meanwhile
    )
    harness.finish()
    assert [status(packet) for packet in peer.receive()] == [403]
