"""One connection without a network: split, slow, pipelined and incomplete requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import h11
import pytest

from sluicemq.admin.app import Application
from sluicemq.admin.endpoints import ApiLimits
from sluicemq.admin.http_session import CHECK_SECONDS, MIN_BODY_RATE, HttpService, HttpSession
from sluicemq.model.errors import AuthenticationFailed
from sluicemq.model.rows import encode, row
from sluicemq.protocols.transport import Session, Transport
from sluicemq.security.access import OPEN, Access, Credentials, LoginCallback
from tests.admin.context import context
from tests.support.sessions import RecordedTransport, SessionHarness

HEAD = 4096
STATUS = b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b"".join(encode([row("q", bytes(500))] * 40))
POST = (
    b"POST /api/v1/batches?writer=w&batch=0&partition=0&part=0&final=1 HTTP/1.1\r\n"
    b"Host: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)
CHECK_INTERVAL_MS = round(CHECK_SECONDS * 1000)

Scenario = Callable[[], Coroutine[Any, Any, None]]


def in_event_loop(scenario: Scenario) -> Callable[[], None]:
    """Run a test in an event loop, which the application's tasks need."""

    @wraps(scenario)
    def run() -> None:
        asyncio.run(scenario())

    return run


class SessionFixture(SessionHarness):
    """Connections to the HTTP listener of a broker in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.http = HttpService(Application(context(self.broker)), HEAD)

    def open(self, transport: Transport) -> Session:
        return HttpSession(transport, self.http, OPEN, host="127.0.0.1", tls=False)

    def connect(self) -> RecordedTransport:
        transport = RecordedTransport(self)
        transport.session = self.open(transport)
        self.transports.append(transport)
        return transport

    async def run_until_idle(self) -> None:
        """Run tasks and event loop iterations until there is no more work."""
        for _ in range(50):
            await asyncio.sleep(0)
            self.run_event_loop()


def read_responses(transport: RecordedTransport) -> list[tuple[int, bytes]]:
    """Return the complete responses that have been written."""
    client = h11.Connection(h11.CLIENT)
    responses = []
    data = transport.written
    while data:
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        response = client.next_event()
        assert isinstance(response, h11.Response), response
        body = b""
        while isinstance(event := client.next_event(), h11.Data):
            body += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        responses.append((response.status_code, body))
        data = client.trailing_data[0]
        client = h11.Connection(h11.CLIENT)
    return responses


@in_event_loop
async def test_request_may_be_split_anywhere() -> None:
    fixture = SessionFixture()
    for step in (1, 7, 1000):
        transport = fixture.connect()
        for start in range(0, len(STATUS), step):
            transport.session.receive(STATUS[start : start + step])
        await fixture.run_until_idle()
        [(status, body)] = read_responses(transport)
        assert status == 200
        assert fixture.broker.identity.hex().encode() in body
        assert transport.open


@in_event_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    fixture = SessionFixture()
    transport = fixture.connect()
    transport.session.receive(STATUS + STATUS.replace(b"status", b"nothing") + STATUS)
    await fixture.run_until_idle()
    assert [status for status, _ in read_responses(transport)] == [200, 404, 200]


@in_event_loop
async def test_body_counts_as_input_until_the_response() -> None:
    fixture = SessionFixture()
    transport = fixture.connect()
    for parts in ((POST + BODY,), (POST, BODY), (POST + BODY[:9], BODY[9:])):
        for part in parts:
            transport.session.receive(part)
        assert transport.session.buffered in range(len(BODY), len(POST + BODY) + 1)
        await fixture.run_until_idle()
        assert transport.session.buffered == 0
    transport.session.receive(STATUS)
    assert transport.session.buffered == 0


@in_event_loop
async def test_request_target_may_be_a_url() -> None:
    fixture = SessionFixture()
    for target in (b"http://localhost:7680/api/v1/status?", b"HTTP://localhost/api/v1/status"):
        transport = fixture.connect()
        transport.session.receive(b"GET %b HTTP/1.1\r\nHost: other.example\r\n\r\n" % target)
        await fixture.run_until_idle()
        [(status, _)] = read_responses(transport)
        assert status == 200, target
    transport = fixture.connect()
    transport.session.receive(b"GET http://other.example HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await fixture.run_until_idle()
    [(status, body)] = read_responses(transport)
    assert (status, b"unknown-host" in body) == (403, True)


@in_event_loop
async def test_body_that_the_client_has_not_sent_is_not_taken_from_the_next_request() -> None:
    fixture = SessionFixture()
    waiting = b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n"
    for line, expected in (
        (b"POST /nothing HTTP/1.1\r\n", 404),
        (b"GET /api/v1/status HTTP/1.1\r\n", 200),
    ):
        transport = fixture.connect()
        transport.session.receive(line + waiting)
        await fixture.run_until_idle()
        [(status, _)] = read_responses(transport)
        assert status == expected
        assert b"connection: close" in transport.written
        assert not transport.open
    transport = fixture.connect()
    transport.session.receive(b"POST /api/v1/session HTTP/1.1\r\n" + waiting)
    await fixture.run_until_idle()
    assert transport.written.startswith(b"HTTP/1.1 100 ")
    transport.session.receive(b"{}".ljust(20) + STATUS)
    await fixture.run_until_idle()
    assert transport.written.count(b"HTTP/1.1 200 ") == 2


class PendingAccess(Access):
    """Access whose logins are pending until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.guest = None
        self.logins: list[LoginCallback] = []

    def login(self, peer: str, credentials: Credentials, admitted: LoginCallback) -> None:
        self.logins.append(admitted)

    def cancel_login(self) -> None:
        while self.logins:
            self.logins.pop()(AuthenticationFailed("the connection was closed"))


@pytest.mark.parametrize(
    "end",
    [
        HttpSession.closed,
        HttpSession.end_of_input,
        lambda session: session.disconnect("bye"),
        lambda session: session.disconnect("the broker stops", stopping=True),
    ],
    ids=["closed", "end of input", "disconnect", "stopping"],
)
def test_end_of_a_connection_cancels_its_login(end: Callable[[HttpSession], None]) -> None:
    asyncio.run(cancel_login_at_the_end(end))


async def cancel_login_at_the_end(end: Callable[[HttpSession], None]) -> None:
    fixture = SessionFixture()
    access = PendingAccess()
    transport = RecordedTransport(fixture)
    transport.session = HttpSession(transport, fixture.http, access, host="127.0.0.1", tls=False)
    credentials = b"\r\nAuthorization: Basic YW5uYTp4\r\n\r\n"
    transport.session.receive(STATUS.replace(b"\r\n\r\n", credentials))
    await fixture.run_until_idle()
    assert len(access.logins) == len(fixture.http.state.tasks) == 1
    end(transport.session)
    await fixture.run_until_idle()
    assert access.logins == []
    assert not fixture.http.state.tasks, "the request still waits for its login"


@in_event_loop
async def test_split_body_is_one_part() -> None:
    fixture = SessionFixture()
    transport = fixture.connect()
    data = POST + BODY
    for start in range(0, len(data), 999):
        transport.session.receive(data[start : start + 999])
        await fixture.run_until_idle()
    assert read_responses(transport)[0][0] == 200
    assert len(fixture.bodies("q")) == 40


@in_event_loop
async def test_part_and_its_repetition_are_answered_once_on_disk() -> None:
    fixture = SessionFixture()
    first, second = fixture.connect(), fixture.connect()
    for transport in (first, second):
        transport.session.receive(POST + BODY)
    for _ in range(50):
        await asyncio.sleep(0)  # without an iteration nothing is flushed to the journal
    assert first.written == second.written == b""
    await fixture.run_until_idle()
    assert b'"duplicate":false' in first.written
    assert b'"duplicate":true' in second.written
    assert len(fixture.bodies("q")) == 40


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n\r\n",
        b"HELO\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\nbad name: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\nA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\nGET / HTTP/1.1\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: b\rB: c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\tfolded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nA\0: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\ncontent-length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n" + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * HEAD * 2,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * HEAD,
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_invalid_requests_are_rejected_in_json(data: bytes, step: int) -> None:
    async def scenario() -> None:
        fixture = SessionFixture()
        transport = fixture.connect()
        for start in range(0, len(data), step):
            if transport.open:
                transport.session.receive(data[start : start + step])
        await fixture.run_until_idle()
        [(status, body)] = read_responses(transport)
        assert status == 400
        assert b'"bad-request"' in body
        assert not transport.open

    asyncio.run(scenario())


CHUNKED = (
    b"POST /api/v1/batches?writer=w&batch=0&partition=0&part=0&final=1 HTTP/1.1\r\n"
    b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "chunks",
    [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"g\r\n",
        b"5 5\r\nhello\r\n0\r\n\r\n",
        b"5;a\rb\r\nhello\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n\r\n",
        b"12345678901234567\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"0\r\nA: b\nB: c\r\n\r\n",
        b"0\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_ambiguous_chunks_are_rejected(chunks: bytes) -> None:
    async def scenario() -> None:
        fixture = SessionFixture()
        transport = fixture.connect()
        transport.session.receive(CHUNKED)
        for byte in chunks:
            if transport.open:
                transport.session.receive(bytes((byte,)))
        await fixture.run_until_idle()
        [(status, _)] = read_responses(transport)
        assert status == 400
        assert not transport.open

    asyncio.run(scenario())


@in_event_loop
async def test_well_formed_chunks_only_lack_a_length() -> None:
    fixture = SessionFixture()
    transport = fixture.connect()
    for byte in CHUNKED + b'1;a="b"\r\n{\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n':
        transport.session.receive(bytes((byte,)))
    await fixture.run_until_idle()
    [(status, body)] = read_responses(transport)
    assert (status, b"length-required" in body) == (411, True)


@in_event_loop
async def test_incomplete_head_times_out() -> None:
    """A head sent byte by byte times out, too; a connection that had a request may be idle."""
    fixture = SessionFixture()
    silent_transport, slow_transport, idle_transport = (
        fixture.connect(),
        fixture.connect(),
        fixture.connect(),
    )
    idle_transport.session.receive(STATUS)
    slow_transport.session.receive(STATUS[:-2])
    await fixture.run_until_idle()
    fixture.run_event_loop(CHECK_INTERVAL_MS)
    assert silent_transport.open
    assert slow_transport.open
    slow_transport.session.receive(b"A")
    fixture.run_event_loop(CHECK_INTERVAL_MS)
    for transport in (silent_transport, slow_transport):
        [(status, body)] = read_responses(transport)
        assert (status, b"request-timeout" in body, transport.open) == (408, True, False)
    assert idle_transport.open


@in_event_loop
async def test_slow_body_times_out() -> None:
    fixture = SessionFixture()
    slow_transport, steady_transport = fixture.connect(), fixture.connect()
    for transport in (slow_transport, steady_transport):
        transport.session.receive(POST)
    step = round(MIN_BODY_RATE * CHECK_SECONDS)
    large_request = POST.replace(b"%d" % len(BODY), b"%d" % (4 * step))
    quick_transport = fixture.connect()
    quick_transport.session.receive(large_request)
    await fixture.run_until_idle()
    for _ in range(3):
        fixture.run_event_loop(CHECK_INTERVAL_MS)
        slow_transport.session.receive(b"x") if slow_transport.open else None
        if quick_transport.open:
            quick_transport.session.receive(bytes(step))
        await fixture.run_until_idle()
    [(status, body)] = read_responses(slow_transport)
    assert (status, b"request-timeout" in body, slow_transport.open) == (408, True, False)
    assert quick_transport.open
    assert fixture.bodies("q") == []


@in_event_loop
async def test_request_does_not_time_out_while_the_broker_does_not_read() -> None:
    fixture = SessionFixture()
    for request in (POST, STATUS[:-2]):
        transport = fixture.connect()
        transport.session.receive(request)
        transport.is_suspended = True
        await fixture.run_until_idle()
        for _ in range(4):
            fixture.run_event_loop(CHECK_INTERVAL_MS)
        assert transport.written == b""
        transport.is_suspended = False
        fixture.run_event_loop(CHECK_INTERVAL_MS)
        assert transport.open
        fixture.run_event_loop(CHECK_INTERVAL_MS)
        assert not transport.open


@in_event_loop
async def test_end_of_input_completes_requests_and_closes() -> None:
    """Complete requests get a response before the connection is closed."""
    fixture = SessionFixture()
    complete_transport, incomplete_transport, idle_transport = (
        fixture.connect(),
        fixture.connect(),
        fixture.connect(),
    )
    complete_transport.session.receive(POST + BODY)
    incomplete_transport.session.receive(POST + BODY[:-1])
    idle_transport.session.receive(STATUS)
    await asyncio.sleep(0)
    complete_transport.session.end_of_input()
    incomplete_transport.session.end_of_input()
    await fixture.run_until_idle()
    idle_transport.session.end_of_input()
    await fixture.run_until_idle()
    assert read_responses(complete_transport)[0][0] == 200
    assert [
        transport.open for transport in (complete_transport, incomplete_transport, idle_transport)
    ] == [False, False, False]
    assert len(fixture.bodies("q")) == 40


@in_event_loop
async def test_request_of_a_lost_connection_is_dropped() -> None:
    fixture = SessionFixture()
    transport = fixture.connect()
    transport.session.receive(POST + BODY[:-1])
    await fixture.run_until_idle()
    transport.session.closed()
    await fixture.run_until_idle()
    assert fixture.bodies("q") == []
    other_transport = fixture.connect()
    other_transport.session.receive(POST + BODY)
    await fixture.run_until_idle()
    assert read_responses(other_transport)[0][0] == 200


@in_event_loop
async def test_stop_closes_idle_connections_and_completes_requests() -> None:
    """Idle connections are closed at once; a pending response is sent."""
    fixture = SessionFixture()
    idle_transport, busy_transport = fixture.connect(), fixture.connect()
    busy_transport.session.receive(POST + BODY[:-1])
    await fixture.run_until_idle()
    for transport in (idle_transport, busy_transport):
        transport.session.disconnect("the broker stops", stopping=True)
    assert not idle_transport.open
    assert busy_transport.open
    busy_transport.session.receive(BODY[-1:])
    await fixture.run_until_idle()
    assert read_responses(busy_transport)[0][0] == 200
    assert not busy_transport.open


@in_event_loop
async def test_unfinished_bodies_do_not_delay_others() -> None:
    fixture = SessionFixture()
    fixture.http = HttpService(
        Application(context(fixture.broker, limits=ApiLimits(part=1 << 28))), HEAD
    )
    large_request = POST.replace(b"%d" % len(BODY), b"%d" % (1 << 28))
    first, second = fixture.connect(), fixture.connect()
    first.session.receive(large_request)
    await fixture.run_until_idle()
    second.session.receive(POST + BODY)
    await fixture.run_until_idle()
    assert read_responses(second)[0][0] == 200
