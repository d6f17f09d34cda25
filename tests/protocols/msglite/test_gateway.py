from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicemq.broker import BrokerSettings
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.http import REASONS, HttpLimits, RequestReader
from tests.protocols.msglite.harness import Harness, Peer

GET = b"GET /x?y=1 HTTP/1.1\r\nHost: h\r\n\r\n"


class Worker:
    """A msglite client that serves HTTP requests."""

    def __init__(self, harness: Harness) -> None:
        self.peer = harness.connect()
        self.reply = b""

    def receive(self, address: bytes) -> wire.Frame:
        decoder = wire.Decoder(kinds=wire.FROM_SERVER)
        (frame,) = decoder.feed(self.peer.ask(wire.encode_ready(0, (address,))))
        assert frame[0] == wire.MESSAGE
        return frame

    def take(self) -> dict[str, object]:
        _, timeout, (_, self.reply), body = self.receive(b"msglite.httpRequests")
        assert timeout == 180
        request = json.loads(body)
        assert isinstance(request, dict)
        return request

    def body_of(self, request: dict[str, object]) -> bytes:
        _, timeout, addresses, body = self.receive(str(request["bodyAddr"]).encode())
        assert timeout == 180
        assert len(addresses) == 1, "the body has no reply address"
        return body

    def say(self, *pieces: bytes) -> None:
        self.peer.put(b"".join(wire.encode_message(9, self.reply, piece) for piece in pieces))


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def browser(harness: Harness) -> Peer:
    return harness.browser()


@pytest.fixture
def worker(harness: Harness) -> Worker:
    return Worker(harness)


def failure(peer: Peer) -> str:
    """The reason of a 500."""
    answer = peer.got()
    assert not peer.open
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.0 500 Internal Server Error"
    assert b"Connection: close" in lines
    assert b"Content-Length: %d" % len(body) in lines
    assert any(line.startswith(b"Content-Type: text/plain") for line in lines)
    return body.decode()


# --- the whole way ----------------------------------------------------------------------------


def test_a_request_and_its_response(harness: Harness, browser: Peer, worker: Worker) -> None:
    browser.put(b"POST /form HTTP/1.1\r\nhost: h\r\nx-test-HEADER: a\r\nContent-Length: 5\r\n\r\nhe")
    browser.put(b"llo and more")
    request = worker.take()
    assert request == {
        "method": "POST",
        "url": "/form",
        "protocol": "HTTP/1.1",
        "headers": {"Host": "h", "X-Test-Header": "a", "Content-Length": "5"},
        "bodyAddr": request["bodyAddr"],
    }
    assert worker.body_of(request) == b"hello"
    worker.say(b'["200", ["Content-Type", "text/html", "Set-Cookie", "1", "Set-Cookie", "2"]]')
    assert browser.got() == (
        b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\n"
        b"Set-Cookie: 1\r\nSet-Cookie: 2\r\n\r\n"
    ), "the head is not written at once"
    worker.say(b"<p>", b"hello")
    assert browser.got() == b"<p>hello"
    assert browser.open
    worker.say(b"", b"too late")
    assert browser.got() == b""
    assert browser.link.closed_because == ""
    browser.drop()
    assert list(map(str, harness.broker.destinations)) == ["msglite.httpRequests"]
    worker.say(b"too late")
    assert len(harness.broker.destinations) == 1


def test_an_empty_body_is_a_message_too(browser: Peer, worker: Worker) -> None:
    browser.put(GET)
    assert worker.body_of(worker.take()) == b""


def test_addresses_are_from_the_counter_of_the_queries(
    harness: Harness, browser: Peer, worker: Worker
) -> None:
    harness.connect().put(b"? 0 0 a\r\n")
    browser.put(GET)
    request = worker.take()
    assert worker.reply.endswith(b".2")
    assert str(request["bodyAddr"]).endswith(".3")


def test_another_client_may_answer(harness: Harness, browser: Peer, worker: Worker) -> None:
    browser.put(GET)
    worker.take()
    other = Worker(harness)
    other.reply = worker.reply
    other.say(b'["204", []]')
    assert browser.got().startswith(b"HTTP/1.0 204 No Content\r\n")


def test_all_pieces_at_once(browser: Peer, worker: Worker) -> None:
    browser.put(GET)
    worker.take()
    worker.say(b'["200", []]', b"a" * 100_000, b"b", b"")
    assert browser.got().endswith(b"\r\n\r\n" + b"a" * 100_000 + b"b")
    assert not browser.open


def test_a_browser_that_does_not_read_holds_up_the_pieces(
    harness: Harness, browser: Peer, worker: Worker
) -> None:
    browser.put(GET)
    worker.take()
    worker.say(b'["200", []]')
    browser.got()
    browser.link.stalled = True
    worker.say(b"1", b"2", b"3", b"")
    assert browser.got() == b"1"
    browser.link.stalled = False
    harness.turn()
    assert browser.got() == b"23"
    assert not browser.open


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", b"200"), (b"GET", b"204"), (b"GET", b"304")]
)
def test_a_response_without_body_stays_without(
    browser: Peer, worker: Worker, method: bytes, status: bytes
) -> None:
    browser.put(method + b" / HTTP/1.0\n\n")
    worker.take()
    worker.say(b'["%b", ["Content-Length", "3"]]' % status, b"abc", b"")
    head = browser.got()
    assert head.startswith(b"HTTP/1.0 " + status)
    assert head.endswith(b"Content-Length: 3\r\n\r\n")
    assert not browser.open


def test_connection_headers_of_the_worker_are_dropped(browser: Peer, worker: Worker) -> None:
    browser.put(GET)
    worker.take()
    worker.say(b'["404", ["CONNECTION", "keep-alive", "X", "\\u00e9"]]')
    assert browser.got() == (
        b"HTTP/1.0 404 Not Found\r\nConnection: close\r\nX: \xc3\xa9\r\n\r\n"
    )


def test_there_are_the_40_codes_of_rfc_2616() -> None:
    ranges = [(100, 101), (200, 206), (300, 305), (307, 307), (400, 417), (500, 505)]
    codes = [str(code) for first, last in ranges for code in range(first, last + 1)]
    assert list(REASONS) == codes
    assert len(codes) == 40


# --- bad replies, silence, and the end ----------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"[]",
        b'["200"]',
        b"[200, []]",
        b'["299", []]',
        b'["306", []]',
        b'["200", [], 1]',
        b'["200", ["Name"]]',
        b'["200", {"Name": "x"}]',
        b'["200", ["Name", 1]]',
        b'["200", ["Na me", "x"]]',
        b'["200", ["", "x"]]',
        b'["200", ["\\u00e9", "x"]]',
        b'["200", ["X", "a\\r\\nSet-Cookie: forged"]]',
        b'{"status": "200"}',
        b"null",
        b"not JSON",
        b'["200", [' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_bad_reply_is_a_500(browser: Peer, worker: Worker, reply: bytes) -> None:
    browser.put(GET)
    worker.take()
    worker.say(reply)
    assert failure(browser).startswith("bad reply: ")


def test_no_reply_in_180_seconds_is_a_500(harness: Harness, browser: Peer) -> None:
    harness.turn(100_000)
    browser.put(GET)
    harness.turn(179_999)
    assert browser.got() == b""
    harness.turn(1)
    assert failure(browser) == "no reply in 180 seconds\n"


def test_silence_of_180_seconds_ends_the_response(
    harness: Harness, browser: Peer, worker: Worker
) -> None:
    browser.put(GET)
    worker.take()
    for piece in (b'["200", []]', b"x"):
        worker.say(piece)
        harness.turn(179_999)
        assert browser.open
    browser.got()
    harness.turn(1)
    assert (browser.got(), browser.open) == (b"", False)


def test_a_request_that_never_comes(harness: Harness, browser: Peer) -> None:
    browser.put(b"GET / HT")
    harness.turn(180_000)
    assert failure(browser) == "no request in 180 seconds\n"


def test_a_browser_that_goes_away(harness: Harness, browser: Peer, worker: Worker) -> None:
    browser.put(b"PUT /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi")
    browser.drop()
    request = worker.take()
    assert worker.body_of(request) == b"hi", "a worker that has the request needs the body"
    worker.say(b'["200", []]')
    harness.turn(180_000)
    assert list(map(str, harness.broker.destinations)) == ["msglite.httpRequests"]


def test_the_end_of_input_is_not_the_end_of_the_wait(browser: Peer, worker: Worker) -> None:
    browser.put(GET)
    browser.end()
    worker.take()
    worker.say(b'["200", []]', b"")
    assert browser.got().startswith(b"HTTP/1.0 200 OK")


def test_shutdown(harness: Harness, browser: Peer, worker: Worker) -> None:
    idle = harness.browser()
    begun = harness.browser()
    begun.put(GET)
    worker.take()
    worker.say(b'["200", []]')
    begun.got()
    browser.put(GET)
    for peer in (idle, begun, browser):
        peer.session.shutdown()
        peer.session.shutdown()
    assert (idle.got(), begun.got()) == (b"", b"")
    assert failure(browser) == "the broker stops\n"
    for peer in (idle, begun, browser):
        peer.drop()


def test_a_reply_address_that_an_administrator_removes(
    harness: Harness, browser: Peer, worker: Worker
) -> None:
    browser.put(GET)
    worker.take()
    harness.broker.remove(harness.broker.queue(worker.reply.decode()), force=True)
    assert "removed" in failure(browser)
    browser.drop()


def test_what_the_broker_refuses_is_a_500() -> None:
    harness = Harness(BrokerSettings(auto_create_queues=False))
    browser = harness.browser()
    browser.put(GET)
    assert "does not exist" in failure(browser)
    browser.drop()


# --- requests ------------------------------------------------------------------------------------


def read(data: bytes, limits: HttpLimits | None = None, end: bool = False) -> RequestReader:
    reader = RequestReader(limits or HttpLimits())
    reader.feed(data)
    if end:
        reader.end()
    return reader


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_length_is_no_body_for_get_and_head(method: str) -> None:
    request = read(f"{method} / HTTP/1.0\n\nignored".encode()).request
    assert request is not None
    assert (request.method, request.body, request.headers) == (method, b"", {})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_no_length_is_all_up_to_the_end_for_others(method: str) -> None:
    reader = read(f"{method} / HTTP/1.0\r\n\r\nall".encode())
    assert reader.request is None
    reader.feed(b" of it")
    reader.end()
    assert reader.request is not None
    assert reader.request.body == b"all of it"


def test_headers_are_folded_and_joined() -> None:
    request = read(
        b"GET / HTTP/1.1\r\nX-A: 1\r\n\t 2 \nx-b:\r\n  b\r\nX-a:3\nETag:  x:y \r\n\r\n"
    ).request
    assert request is not None
    assert request.headers == {"X-A": "1 2,3", "X-B": " b", "Etag": "x:y"}


def test_header_bytes_that_are_not_utf_8() -> None:
    request = read(b"GET /\xff HTTP/1.1\r\nA: \xc3\xa9\r\nB: \xe9\r\n\r\n").request
    assert request is not None
    assert request.url == "/\xff"
    assert request.headers == {"A": "é", "B": "é"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\r\n", "request line"),
        (b"GET /\r\n", "request line"),
        (b"GET  / HTTP/1.1\r\n", "request line"),
        (b"GET / HTTP/1.1 \r\n", "request line"),
        (b"get / HTTP/1.1\r\n", "method"),
        (b"PATCH / HTTP/1.1\r\n", "method"),
        (b"GET / HTTP/2.0\r\n", "version"),
        (b"GET / HTTP/1.1\r\n folded\r\n", "folded"),
        (b"GET / HTTP/1.1\r\nno colon\r\n", "header line"),
        (b"GET / HTTP/1.1\r\n: x\r\n", "header line"),
        (b"GET / HTTP/1.1\r\nA : x\r\n", "header line"),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1_0\r\n\r\n", "Content-Length"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "Content-Length"),
        (b"PUT / HTTP/1.1\r\nContent-Length: " + b"9" * 3000 + b"\r\n\r\n", "Content-Length"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", "larger than"),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer codings"),
    ],
)
def test_bad_requests(harness: Harness, data: bytes, says: str) -> None:
    browser = harness.browser()
    browser.put(data)
    reason = failure(browser)
    assert reason.startswith("bad request: ")
    assert says in reason
    browser.drop()


@pytest.mark.parametrize("data", [b"G", GET[:-2], b"PUT / HTTP/1.1\r\nContent-Length: 2\r\n\r\nx"])
def test_half_a_request_is_a_bad_one(browser: Peer, data: bytes) -> None:
    browser.put(data)
    browser.end()
    assert failure(browser) == "bad request: the request is not complete\n"


def test_a_connection_without_a_request_is_just_closed(browser: Peer) -> None:
    browser.end()
    assert (browser.got(), browser.link.closed_because) == (b"", "")


def test_limits() -> None:
    longest = b"GET /" + b"x" * (4095 - 14)
    assert read(longest + b" HTTP/1.1\r\n\r\n").request is not None
    assert read(longest + b"x HTTP/1.1\r\n\r\n").error is not None
    assert read(b"x" * 4095).error is None
    assert read(b"x" * 4096).error is not None, "an endless line is kept in memory"
    lines = b"GET / HTTP/1.1\r\n" + b"A: 1\r\n" * 1022
    assert read(lines + b" 2\r\n\r\n").request is not None
    assert read(lines + b" 2\r\nA: 3\r\n").error is not None
    body = b"PUT / HTTP/1.0\r\n\r\n12345"
    assert read(body, HttpLimits(body=5), end=True).request is not None
    assert read(body + b"6", HttpLimits(body=5)).error is not None


requests = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            [b"GET / HTTP/1.1", b"PUT", b"\r", b"\n", b"\r\n", b"A: b", b" ", b"Content-Length: 3", b":"]
        ),
        max_size=14,
    ).map(b"".join),
    st.binary(max_size=20).map(lambda body: b"POST /u HTTP/1.0\r\nX: 1\r\n\r\n" + body),
)


@given(requests, st.integers(1, 20))
@settings(deadline=None)
def test_segmentation_changes_nothing_and_garbage_raises_nothing(data: bytes, step: int) -> None:
    limits = HttpLimits(line=30, lines=3, body=15)
    whole = read(data, limits, end=True)
    piecewise = RequestReader(limits)
    for start in range(0, len(data), step):
        piecewise.feed(data[start : start + step])
    piecewise.end()
    assert piecewise.request == whole.request
    assert str(piecewise.error) == str(whole.error)
    assert (whole.request is None) != (whole.error is None)
