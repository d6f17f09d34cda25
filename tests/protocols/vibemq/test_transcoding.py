"""Large messages of other protocols: their frames are made in another thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.session import Options, VibemqSession
from sluicemq.protocols.vibemq.templates import LARGE
from sluicemq.protocols.vibemq.wire import Frame
from tests.protocols.harness import RecordedLink
from tests.protocols.vibemq.harness import Harness, Peer

ORDERS = json.dumps([{"id": number, "name": "Grün"} for number in range(20_000)]).encode()


class RecordedJob:
    def __init__(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work = work
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class RecordedThread:
    """A thread that works when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[RecordedJob] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> RecordedJob:
        self.jobs.append(RecordedJob(work, done))
        return self.jobs[-1]


class ThreadHarness(Harness):
    def __init__(self) -> None:
        super().__init__()
        self.thread = RecordedThread()

    def arrive(self, options: Options | None = None) -> Peer:
        link = RecordedLink(self)
        session = VibemqSession(link, self.broker, self.access, options, self.thread)
        return Peer(self, link, session)

    def put(self, body: bytes, origin: Origin = Origin.PHPMQ) -> Message:
        """Publish to the queue q as a client of another protocol."""
        message = Message(Address(Kind.QUEUE, "q"), body, BodyKind.BYTES, origin)
        self.broker.publish(self.destination("q"), message)
        self.turn()
        return message

    def finish(self, late: bool = False) -> None:
        """Do what is to be done, unless it was cancelled; `late`: it had begun already."""
        jobs, self.thread.jobs = self.thread.jobs, []
        for job in jobs:
            if late or not job.cancelled:
                job.done(job.work())
        self.turn()


@pytest.fixture
def harness() -> ThreadHarness:
    return ThreadHarness()


def test_what_is_behind_a_large_message_waits_for_it(harness: ThreadHarness) -> None:
    assert LARGE < len(ORDERS) < wire.MAX_BODY
    peer = harness.connect()
    peer.create("q")
    peer.subscribe("q")
    harness.put(b"before")
    harness.put(ORDERS)
    harness.put(b"behind")
    assert [each.payload for each in peer.deliveries()] == [b'"before"']
    assert peer.ask(wire.PING).type == wire.PONG
    assert len(harness.thread.jobs) == 1
    harness.finish()
    received = peer.deliveries()
    assert [each.payload for each in received] == [ORDERS, b'"behind"']
    harness.put(b"later")
    [last] = peer.deliveries()
    peer.acknowledge(last.id, *(each.id for each in received))
    assert harness.bodies("q") == [b"before"]


def test_several_large_messages_come_in_their_order(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    bodies = [ORDERS, b'"%b"' % (b"x" * LARGE), b"\xff" + bytes(LARGE), ORDERS]
    for body in bodies:
        harness.put(body)
    peer.subscribe("q")
    received: list[Frame] = []
    while harness.thread.jobs:
        assert len(harness.thread.jobs) == 1
        harness.finish()
        received += peer.deliveries()
        for each in received:
            peer.acknowledge(each.id)
    assert [each.payload[:1] for each in received] == [b"[", b'"', b'"', b"["]
    assert [each.headers.get("content-encoding") for each in received] == [
        None,
        None,
        "base64",
        None,
    ]
    assert harness.bodies("q") == []


@pytest.mark.parametrize("late", [False, True])
def test_what_waits_goes_back_when_its_consumer_leaves(harness: ThreadHarness, late: bool) -> None:
    peer, other = harness.connect(), harness.connect()
    peer.create("q")
    peer.subscribe("q")
    harness.put(ORDERS)
    harness.put(b"behind")
    peer.drop()
    harness.finish(late)
    assert peer.link.written == b""
    other.subscribe("q")
    harness.finish()
    assert [each.payload for each in other.deliveries()] == [ORDERS, b'"behind"']


@pytest.mark.parametrize("late", [False, True])
def test_what_waits_is_gone_with_its_queue(harness: ThreadHarness, late: bool) -> None:
    peer = harness.connect()
    peer.create("q")
    peer.subscribe("q")
    harness.put(ORDERS)
    harness.connect().ask(wire.DELETE_QUEUE, "q")
    peer.create("q")
    harness.finish(late)
    assert peer.deliveries() == []
    harness.put(b"new")
    assert [each.payload for each in peer.deliveries()] == [b'"new"']


def test_what_is_deleted_meanwhile_is_not_sent(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.create("q")
    peer.subscribe("q")
    large = harness.put(ORDERS)
    harness.put(b"behind")
    queue = harness.destination("q").queue
    [consumer] = peer.session.consumers()
    queue.settle(consumer, large.sequence)
    harness.finish()
    assert [each.payload for each in peer.deliveries()] == [b'"behind"']


def test_own_messages_are_not_transcoded(harness: ThreadHarness) -> None:
    peer = harness.connect()
    peer.subscribe("q")
    assert ORDERS in [each.payload for each in peer.say(Frame(wire.PUBLISH, "m", "q", ORDERS))]
    assert harness.thread.jobs == []
