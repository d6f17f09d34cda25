"""Requests to a broker that is slow to restart, rejects them, or is another process."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sluicemq.clients.http import RETRY_TIMEOUT, HttpClient, HttpRefusal, HttpTarget, target
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigurationError,
    ConnectionLost,
)


class ScriptedServer(ThreadingHTTPServer):
    """Server that sends predefined responses in order; `received_requests` has the requests.

    A response is a status and a body; None closes the connection instead.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, bytes] | None] = []
        self.received_requests: list[tuple[str, str, bytes, str | None]] = []
        self.connections = 0

    @property
    def target(self) -> HttpTarget:
        return HttpTarget("127.0.0.1", self.server_port, authorization="Bearer geheim")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = (self.command, self.path, body, self.headers["Authorization"])
        self.server.received_requests.append(request)
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, content = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if 300 <= status < 400:
            self.send_header("Location", "https://elsewhere/")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_unusable_file_of_certificates_is_reported_with_the_response() -> None:
    with HttpClient(HttpTarget("localhost", 1, tls=True, ca="/none")) as remote:
        remote.send("GET", "/")
        with pytest.raises(ConfigurationError, match="/none cannot be used"):
            remote.receive()


def test_requests_share_connection(scripted_server: ScriptedServer) -> None:
    scripted_server.answers = [(200, b"1"), (200, b"")]
    with HttpClient(scripted_server.target, retry_timeout=RETRY_TIMEOUT) as remote:
        assert remote.request("POST", "/a?b=c", [b"12", b"", b"3"]).body == b"1"
        assert remote.request("GET", "/d").status == 200
    assert scripted_server.received_requests == [
        ("POST", "/a?b=c", b"123", "Bearer geheim"),
        ("GET", "/d", b"", "Bearer geheim"),
    ]
    assert scripted_server.connections == 1


def test_idle_connection_that_server_has_closed_is_replaced(
    scripted_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.01)
    scripted_server.answers = [(200, b"1"), (200, b"2")]
    with HttpClient(scripted_server.target) as remote:
        remote.request("POST", "/")
        assert remote._connection is not None
        select.select([remote._connection.sock], [], [])
        assert remote.request("POST", "/").body == b"2"
    assert scripted_server.connections == 2


def test_transient_errors_are_retried(scripted_server: ScriptedServer) -> None:
    """The complete body is sent again; the response is that of the last attempt."""
    scripted_server.answers = [None, (503, b"{}"), (200, b"done")]
    with HttpClient(scripted_server.target, retry_timeout=RETRY_TIMEOUT) as remote:
        remote.send("POST", "/", [b"x", b"y"])
        assert remote.receive().body == b"done"
    assert [body for _, _, body, _ in scripted_server.received_requests] == [b"xy"] * 3


def test_retries_are_limited(scripted_server: ScriptedServer) -> None:
    scripted_server.answers = [None]
    with (
        HttpClient(scripted_server.target, retry_timeout=0) as remote,
        pytest.raises(ConnectionLost) as error,
    ):
        remote.request("GET", "/")
    assert str(scripted_server.target) in str(error.value)
    scripted_server.answers = [
        (503, b'{"code": "temporarily-unavailable", "detail": "the queue is full"}')
    ]
    with (
        HttpClient(scripted_server.target, retry_timeout=0) as remote,
        pytest.raises(HttpRefusal, match="the queue is full"),
    ):
        remote.request("GET", "/")


@pytest.mark.parametrize(
    ("status", "error"), [(401, AuthenticationFailed), (403, AccessDenied), (409, HttpRefusal)]
)
def test_permanent_errors_are_not_retried(
    scripted_server: ScriptedServer, status: int, error: type[Exception]
) -> None:
    scripted_server.answers = [(status, b'{"code": "c", "detail": "so it is", "more": 1}')]
    with (
        HttpClient(scripted_server.target, retry_timeout=RETRY_TIMEOUT) as remote,
        pytest.raises(error, match="so it is") as error_info,
    ):
        remote.request("GET", "/")
    assert "geheim" not in str(error_info.value)
    if isinstance(error_info.value, HttpRefusal):
        assert (error_info.value.status, error_info.value.code) == (409, "c")


def test_response_of_another_server_is_error(scripted_server: ScriptedServer) -> None:
    """The error contains the beginning of the response of another server."""
    scripted_server.answers = [(404, b"<html>" + b"x" * 10_000)]
    with (
        HttpClient(scripted_server.target, retry_timeout=RETRY_TIMEOUT) as remote,
        pytest.raises(ConnectionLost, match="<html>") as error,
    ):
        remote.request("GET", "/")
    assert len(str(error.value)) < 1000


def test_redirect_is_error(scripted_server: ScriptedServer) -> None:
    scripted_server.answers = [(301, b"")]
    with (
        HttpClient(scripted_server.target, retry_timeout=RETRY_TIMEOUT) as remote,
        pytest.raises(ConnectionLost, match="it redirects to https://elsewhere/"),
    ):
        remote.request("DELETE", "/")


def test_connection_error_without_server(scripted_server: ScriptedServer) -> None:
    unreachable = target({"url": "http://127.0.0.1:9"})
    with (
        HttpClient(unreachable, retry_timeout=0) as remote,
        pytest.raises(ConnectionLost, match="is it running"),
    ):
        remote.request("GET", "/")
