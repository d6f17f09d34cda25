from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicemq.broker import EngineSettings
from sluicemq.model.destination import DestinationSettings, Overflow
from sluicemq.model.errors import FrameTooLarge
from sluicemq.model.message import BodyKind, Message, Origin
from sluicemq.protocols import java
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.gateway import ADDRESS, TIMEOUT
from sluicemq.protocols.msglite.http import REASONS, GatewayRequest, RequestReader
from tests.protocols.msglite.harness import Harness, Peer

GET = b"GET /pizza?size=3 HTTP/1.1\r\nHost: example.org\r\n\r\n"
OK = b'["200", []]'


@pytest.fixture
def client(harness: Harness) -> Peer:
    return harness.connect_gateway()


class Worker:
    """A msglite client that serves the gateway's requests."""

    def __init__(self, harness: Harness) -> None:
        self.peer = harness.connect()
        self.reply = b""

    def next_request(self) -> tuple[dict[str, Any], bytes]:
        """Return the next request and its body."""
        self.peer.send_bytes(b"< 0 %b\r\n" % ADDRESS.encode())
        [(_, timeout, (_, self.reply), announced, *_)] = self.peer.frames()
        assert timeout == TIMEOUT
        request = json.loads(announced)
        self.peer.send_bytes(b"< 0 %b\r\n" % request.pop("bodyAddr").encode())
        [body] = self.peer.frames()
        assert len(body[2]) == 1
        return request, body[3]

    def reply_with(self, *bodies: bytes) -> None:
        for body in bodies:
            self.peer.send_bytes(wire.encode_message(60, self.reply, body))


@pytest.fixture
def worker(harness: Harness) -> Worker:
    return Worker(harness)


VALUES = {f"key {number}": number for number in range(2000)}
"""A map that is converted in another thread."""


def publish_map(harness: Harness, worker: Worker, count: int = 1) -> None:
    """Publish JMS messages with VALUES to the worker's reply address."""
    reply = harness.broker.destinations.queue(worker.reply.decode())
    for _ in range(count):
        message = Message(reply.address, java.dumps_map(VALUES), BodyKind.MAP, Origin.JMQ)
        harness.broker.publish(reply, message)
    harness.run_event_loop()


# --- requests ----------------------------------------------------------------------------------


def test_forwards_request_and_returns_its_response(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    assert worker.next_request() == (
        {
            "method": "GET",
            "url": "/pizza?size=3",
            "protocol": "HTTP/1.1",
            "headers": {"Host": "example.org"},
        },
        b"",
    )
    worker.reply_with(
        b'["200", ["Content-Type", "text/plain", "Set-Cookie", "a", "Set-Cookie", "b"]]'
    )
    assert client.take_bytes() == (
        b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n"
        b"Set-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    )
    worker.reply_with(b"piz", b"za")
    assert client.take_bytes() == b"pizza"
    assert client.open
    worker.reply_with(b"")
    assert (client.take_bytes(), client.transport.close_reason) == (b"", "")
    client.drop()
    assert harness.temporary() == []


def test_response_of_jms_client_is_converted_in_another_thread(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(OK)
    client.take_bytes()
    publish_map(harness, worker)
    worker.reply_with(b"!")
    assert client.take_bytes() == b""
    worker.reply_with(b"")
    assert client.open
    harness.background.run()
    harness.run_event_loop()
    response = client.take_bytes()
    assert (json.loads(response[:-1]), response[-1:]) == (VALUES, b"!")
    assert not client.open


def test_parts_are_converted_as_client_reads(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(OK)
    client.take_bytes()
    client.transport.stalled = True
    worker.reply_with(b"!")
    publish_map(harness, worker, 2)
    harness.background.run()
    harness.run_event_loop()
    assert not harness.background.jobs
    assert client.take_bytes() == b"!"
    client.transport.stalled = False
    for _ in range(2):
        harness.run_event_loop()
        harness.background.run()
        harness.run_event_loop()
    assert client.take_bytes() == 2 * json.dumps(VALUES, separators=(",", ":")).encode()


def test_conversion_ends_with_connection(harness: Harness, client: Peer, worker: Worker) -> None:
    client.send_bytes(GET)
    worker.next_request()
    publish_map(harness, worker)
    client.drop()
    harness.background.run()
    harness.run_event_loop()
    assert client.take_bytes() == b""
    assert harness.temporary() == []


def test_header_names_of_reply_are_canonical(client: Peer, worker: Worker) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(
        b'["200", ["content-type", "Text/Plain", "X-REQUEST-id", "Ab", "x_y-z", "1",'
        b' "set-cookie", "a", "Set-Cookie", "b", "CONNECTION", "keep-alive"]]'
    )
    assert client.take_bytes() == (
        b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: Text/Plain\r\n"
        b"X-Request-Id: Ab\r\nX_y-Z: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
    )


def test_worker_of_another_protocol_receives_json(harness: Harness, client: Peer) -> None:
    client.send_bytes(GET)
    [delivery] = harness.broker.destinations.queue(ADDRESS).queue.browse()
    assert delivery.message is not None
    assert delivery.message.kind is BodyKind.JSON


def test_headers_are_canonical_joined_and_unfolded(client: Peer, worker: Worker) -> None:
    client.send_bytes(
        b"GET / HTTP/1.0\nx-test-HEADER: 1\nFolded:  a\n\t b \n c\nX-Test-Header:2\n"
        b"Empty:\nLatin: caf\xe9\nUtf: caf\xc3\xa9\n\n"
    )
    assert worker.next_request()[0]["headers"] == {
        "X-Test-Header": "1,2",
        "Folded": "a b c",
        "Empty": "",
        "Latin": "café",
        "Utf": "café",
    }


@pytest.mark.parametrize("method", ["HEAD", "GET", "POST", "PUT", "DELETE"])
def test_reads_body_of_announced_length(client: Peer, worker: Worker, method: str) -> None:
    client.send_bytes(f"{method} / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhel".encode())
    client.send_bytes(b"lo, and more")
    client.send_bytes(b"which is ignored")
    assert worker.next_request() == (
        {
            "method": method,
            "url": "/",
            "protocol": "HTTP/1.1",
            "headers": {"Content-Length": "5"},
        },
        b"hello",
    )


def test_body_without_length_ends_with_input(client: Peer, worker: Worker) -> None:
    client.send_bytes(b"POST / HTTP/1.0\r\n\r\nhel")
    client.send_bytes(b"lo")
    client.end()
    assert worker.next_request()[1] == b"hello"
    worker.reply_with(OK, b"after the half-close", b"")
    assert client.take_bytes().endswith(b"\r\n\r\nafter the half-close")


BAD_REQUESTS = [
    b"PATCH / HTTP/1.1\r\n\r\n",
    b"get / HTTP/1.1\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/2\r\n\r\n",
    b"GET  HTTP/1.1\r\n\r\n",
    b"GET / / HTTP/1.1\r\n\r\n",
    b"\r\n",
    b"GET / HTTP/1.1\r\n folded\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    b"GET / HTTP/1.1\r\na b: c\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length:\r\n 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\rC: d\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\0c\r\n\r\n",
    b"GET /\r HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 4000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /" + b"a" * 4096,
    b"GET / HTTP/1.1\r\nA: " + b"a" * 4093 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1024 + b"\r\n",
]


@pytest.mark.parametrize("data", BAD_REQUESTS)
@pytest.mark.parametrize("step", [9999, 100, 1])
def test_bad_request_is_answered_with_500(
    harness: Harness, client: Peer, data: bytes, step: int
) -> None:
    for position in range(0, len(data), step):
        client.session.receive(data[position : position + step])
    harness.run_event_loop()
    head, _, text = client.take_bytes().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 500 Internal Server Error\r\n")
    assert b"Content-Type: text/plain" in head
    assert text.strip()
    assert not client.open
    assert harness.find(ADDRESS) is None


def test_head_at_limits_is_accepted(client: Peer, worker: Worker) -> None:
    client.send_bytes(
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1022 + b"B: " + b"b" * 4092 + b"\r\n\r\n"
    )
    assert worker.next_request()[0]["headers"] == {"A": ",".join("b" * 1022), "B": "b" * 4092}


def test_limit_of_body_without_length() -> None:
    reader = RequestReader(3)
    reader.feed(b"POST / HTTP/1.1\r\n\r\n123")
    assert reader.error is None
    reader.feed(b"4")
    assert isinstance(reader.error, FrameTooLarge)


@pytest.mark.parametrize("data", [b"GET / HT", GET[:-2], b"PUT / HTTP/1.0\nContent-Length: 2\n\n1"])
def test_incomplete_request_is_answered_with_500(client: Peer, data: bytes) -> None:
    client.send_bytes(data)
    client.end()
    assert client.take_bytes().startswith(b"HTTP/1.0 500 ")
    assert not client.open


def test_silent_connection_is_closed_without_response(client: Peer) -> None:
    client.end()
    assert (client.take_bytes(), client.transport.close_reason) == (b"", "")


def test_slow_request_is_answered_with_500(harness: Harness, client: Peer) -> None:
    client.send_bytes(GET[:5])
    harness.run_event_loop(TIMEOUT * 1000 - 1)
    assert client.open
    harness.run_event_loop(1)
    assert client.take_bytes().startswith(b"HTTP/1.0 500 ")


# --- responses ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", REASONS)
def test_maps_every_status(client: Peer, worker: Worker, status: str) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(b'["%b", ["connection", "keep-alive"]]' % status.encode())
    line, *rest = client.take_bytes().split(b"\r\n")
    assert line == f"HTTP/1.0 {status} {REASONS[status]}".encode()
    assert rest == [b"Connection: close", b"", b""]


def test_there_are_40_statuses() -> None:
    assert len(REASONS) == 40


BAD_REPLIES = [
    b"",
    b"[]",
    b"no json",
    b'["200"]',
    b'["200", {}]',
    b"[200, []]",
    b'["200", [], 1]',
    b'["299", []]',
    b'["306", []]',
    b'["200", ["Name"]]',
    b'["200", [1, 2]]',
    b'["200", ["Name", null]]',
    b'["200", ["", "value"]]',
    b'["200", ["Na me", "value"]]',
    b'["200", ["Na\\u00efve", "value"]]',
    b'["200", ["Name", "two\\r\\nlines"]]',
    b'["200", ["Na\\r\\nme", "value"]]',
    b'["200", ["Name", "\\ud800"]]',
    b'["200", ["Name", "\xff"]]',
    b"[" * 100_000,
]


@pytest.mark.parametrize("reply", BAD_REPLIES)
def test_bad_reply_is_answered_with_500(
    harness: Harness, client: Peer, worker: Worker, reply: bytes
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(reply)
    response = client.take_bytes()
    assert response.startswith(b"HTTP/1.0 500 ")
    assert response.count(b"HTTP/1.0") == 1
    assert not client.open
    client.drop()
    worker.reply_with(OK)
    assert harness.temporary() == []


def test_missing_reply_is_answered_with_500(harness: Harness, client: Peer) -> None:
    client.send_bytes(GET)
    harness.run_event_loop(TIMEOUT * 1000 - 1)
    assert client.open
    harness.run_event_loop(1)
    assert client.take_bytes().startswith(b"HTTP/1.0 500 ")
    command = b"< 0 %b\r\n" % ADDRESS.encode()
    assert harness.connect().request(command) == b"*\r\n", "the request outlived its client"


def test_response_times_out_after_its_last_chunk(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    for body in (OK, b"1", b"2"):
        harness.run_event_loop(TIMEOUT * 1000 - 1)
        worker.reply_with(body)
    assert client.take_bytes().endswith(b"\r\n\r\n12")
    harness.run_event_loop(TIMEOUT * 1000)
    assert client.take_bytes() == b""
    assert client.transport.aborted, "the response looks complete"
    assert harness.temporary() == []


def test_complete_response_at_once_and_nothing_after_its_end(client: Peer, worker: Worker) -> None:
    client.send_bytes(GET)
    worker.next_request()
    chunks = [b"%d," % number for number in range(100)]
    worker.peer.send_bytes(
        b"".join(wire.encode_message(60, worker.reply, b) for b in (OK, *chunks, b"", b"more", b""))
    )
    assert client.take_bytes().endswith(b"\r\n\r\n" + b"".join(chunks))
    assert not client.open


def test_chunks_for_client_that_does_not_read_stay_in_their_queue(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    client.transport.stalled = True
    worker.reply_with(OK, *[b"x" * 1000] * 50, b"")
    assert len(client.take_bytes()) < 20_000
    client.transport.stalled = False
    harness.run_event_loop()
    assert len(client.take_bytes()) > 30_000
    assert not client.open


def test_another_client_may_answer(harness: Harness, client: Peer, worker: Worker) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(OK)
    second = Worker(harness)
    second.reply = worker.reply
    second.reply_with(b"by another", b"")
    assert client.take_bytes().endswith(b"by another")


def test_responses_to_disconnected_client_are_dropped(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    client.drop()
    worker.reply_with(OK, b"body", b"")
    assert harness.find(worker.reply.decode()) is None


def test_blocked_request_is_withdrawn_with_its_client(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    harness.limit(ADDRESS, DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    client.send_bytes(GET)
    for _ in range(3):
        requester = harness.connect_gateway()
        requester.send_bytes(GET)
        requester.drop()
    destination = harness.find(ADDRESS)
    assert destination is not None
    assert not destination.parked
    waiting = harness.connect_gateway()
    waiting.send_bytes(GET)
    worker.next_request()
    worker.reply_with(OK, b"first", b"")
    worker.next_request()
    worker.reply_with(OK, b"second", b"")
    assert client.take_bytes().endswith(b"first")
    assert waiting.take_bytes().endswith(b"second")


def test_blocked_request_fails_if_its_queue_is_deleted() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    harness.limit(ADDRESS, DestinationSettings(max_messages=1, overflow=Overflow.BLOCK))
    harness.connect_gateway().send_bytes(GET)
    blocked = harness.connect_gateway()
    blocked.send_bytes(GET)
    assert blocked.open
    destination = harness.find(ADDRESS)
    assert destination is not None
    harness.broker.remove(destination, force=True)
    harness.run_event_loop()
    response = blocked.take_bytes()
    assert response.startswith(b"HTTP/1.0 500 ")
    assert b"has been removed" in response
    assert not blocked.open


def test_removed_reply_address_ends_request(harness: Harness, client: Peer, worker: Worker) -> None:
    client.send_bytes(GET)
    worker.next_request()
    harness.broker.remove(harness.broker.destinations.queue(worker.reply.decode()), force=True)
    harness.run_event_loop()
    assert client.take_bytes().startswith(b"HTTP/1.0 500 ")
    assert not client.open


def test_removed_reply_address_interrupts_response(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(OK, b"piz")
    harness.broker.remove(harness.broker.destinations.queue(worker.reply.decode()), force=True)
    harness.run_event_loop()
    assert client.take_bytes().endswith(b"\r\n\r\npiz")
    assert client.transport.aborted
    assert harness.temporary() == []


def test_shutdown_sends_error_unless_response_has_begun(
    harness: Harness, client: Peer, worker: Worker
) -> None:
    client.send_bytes(GET)
    unfinished, idle = harness.connect_gateway(), harness.connect_gateway()
    unfinished.send_bytes(GET[:5])
    worker.next_request()
    worker.reply_with(OK)
    client.take_bytes()
    for peer in (client, unfinished, idle):
        peer.session.disconnect("the broker stops", stopping=True)
        peer.session.disconnect("the broker stops", stopping=True)
    assert (client.take_bytes(), client.transport.aborted) == (b"", True)
    assert unfinished.take_bytes().startswith(b"HTTP/1.0 500 ")
    assert not unfinished.transport.aborted
    assert idle.take_bytes() == b""
    assert (client.open, unfinished.open, idle.open) == (False, False, False)


def test_errors_of_broker_are_answered_with_500() -> None:
    harness = Harness(EngineSettings(auto_create_queues=False))
    client = harness.connect_gateway()
    client.send_bytes(GET)
    assert b"does not exist" in client.take_bytes()
    client.drop()
    assert not harness.broker.destinations


# --- arbitrary input ---------------------------------------------------------------------------

lines = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"GET / HTTP/1.1\r\n",
            b"POST / HTTP/1.0\n",
            b"Content-Length: 3\r\n",
            b"A: b\r\n",
            b" c\n",
            b"\r\n",
            b"\n",
        ]
    ),
)


def outcome(reader: RequestReader) -> tuple[GatewayRequest | None, str]:
    reader.end()
    return reader.request, str(reader.error)


@given(
    st.lists(lines, max_size=8).map(b"".join), st.lists(st.integers(1, 40), min_size=1, max_size=4)
)
@example(b"GET / HTTP/1.1\r\n\r\n", [16, 1])
def test_a_request_is_read_the_same_way_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    reference, cut = RequestReader(), RequestReader()
    reference.feed(data)
    position = index = 0
    while position < len(data):
        step = cuts[index % len(cuts)]
        cut.feed(data[position : position + step])
        position += step
        index += 1
    assert outcome(cut) == outcome(reference)


@given(
    st.one_of(
        st.binary(),
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda v: st.lists(v) | st.dictionaries(st.text(), v),
        ).map(lambda value: json.dumps(value).encode()),
        st.tuples(st.sampled_from(sorted(REASONS)), st.lists(st.text())).map(
            lambda value: json.dumps(value).encode()
        ),
    )
)
@settings(deadline=None)
def test_any_reply_makes_one_well_formed_head(reply: bytes) -> None:
    harness = Harness()
    client, worker = harness.connect_gateway(), Worker(harness)
    client.send_bytes(GET)
    worker.next_request()
    worker.reply_with(reply)
    head, _, _ = client.take_bytes().partition(b"\r\n\r\n")
    status, *fields = head.split(b"\r\n")
    assert status.startswith(b"HTTP/1.0 ")
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert fields[0] == b"Connection: close"
    assert all(b": " in field for field in fields)
