"""The client of the API, against a server with predefined answers."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sluicemq.cli.api import Api, ApiRefused, below, destination, named
from sluicemq.cli.console import UsageError
from sluicemq.cli.message_selection import run_action
from sluicemq.clients.http import HttpTarget
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import (
    AccessDenied,
    AuthenticationFailed,
    AuthenticationMissing,
    ConnectionLost,
    SluiceError,
)


class Stub:
    """A server on a Unix socket. `answers` are given in their order, the last one for ever; `None`
    hangs up instead. What came is in `requests`."""

    def __init__(self, path: Path) -> None:
        self.answers: list[tuple[int, bytes] | None] = [(200, b"{}")]
        self.requests: list[tuple[str, str, bytes]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                stub.requests.append((self.command, self.path, self.rfile.read(length)))
                answer = stub.answers.pop(0) if len(stub.answers) > 1 else stub.answers[0]
                if answer is None:
                    self.close_connection = True
                    return
                status, body = answer
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    stub = Stub(tmp_path / "s")
    yield stub
    stub.stop()


@pytest.fixture
def api(stub: Stub, tmp_path: Path) -> Iterator[Api]:
    with Api(HttpTarget("localhost", 0, path=str(tmp_path / "s")), patience=30) as api:
        yield api


def refusal(code: str, message: str) -> bytes:
    return json.dumps({"code": code, "detail": message}).encode()


def asked(stub: Stub) -> list[str]:
    return [path for _, path, _ in stub.requests]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "/api/v1/destinations/queue/orders"),
        ("a/b c?d#e%", "/api/v1/destinations/queue/a%2Fb%20c%3Fd%23e%25"),
        ("ü\n", "/api/v1/destinations/queue/%C3%BC%0A"),
        ("~", "/api/v1/destinations/queue/~"),
        ("..", "/api/v1/destinations/queue/~?name_base64=Li4%3D"),
        ("\udcff", "/api/v1/destinations/queue/~?name_base64=%2Fw%3D%3D"),
    ],
)
def test_every_name_has_a_path(api: Api, stub: Stub, name: str, path: str) -> None:
    api.get(destination(Address(Kind.QUEUE, name)))
    assert asked(stub) == [path]


def test_path_continues_after_a_name_in_the_query(api: Api, stub: Stub) -> None:
    api.post(destination(Address(Kind.TOPIC, "\udcff")) / "purge", {"unacked": False})
    assert stub.requests == [
        ("POST", "/api/v1/destinations/topic/~/purge?name_base64=%2Fw%3D%3D", b'{"unacked":false}')
    ]
    assert named(Address(Kind.TOPIC, "\udcff")) == {"kind": "topic", "name_base64": "/w=="}
    assert named(Address(Kind.QUEUE, "é")) == {"kind": "queue", "name": "é"}


def test_parameters_that_are_none_are_left_out(api: Api, stub: Stub) -> None:
    api.delete(below("/users", "a b"), force=True, other=None)
    assert asked(stub) == ["/api/v1/users/a%20b?force=true"]


def test_all_pages_of_a_list(api: Api, stub: Stub) -> None:
    pages = [list(range(500)), list(range(500, 1000)), list(range(1000, 1003))]
    stub.answers = [
        (200, json.dumps({"items": items, "next_cursor": cursor}).encode())
        for items, cursor in zip(pages, ("500", "1000", None), strict=True)
    ]
    assert list(api.items("/things", kind="queue")) == list(range(1003))
    queries = [parse_qs(urlsplit(path).query) for path in asked(stub)]
    assert [query.get("cursor") for query in queries] == [None, ["500"], ["1000"]]
    assert all(query["kind"] == ["queue"] for query in queries)


def test_list_ends_if_items_are_removed_meanwhile(api: Api, stub: Stub) -> None:
    stub.answers = [
        (200, json.dumps({"items": [1] * 500, "next_cursor": "500"}).encode()),
        (200, json.dumps({"items": [], "next_cursor": None}).encode()),
    ]
    assert len(list(api.items("/things"))) == 500


def test_the_first_of_a_list(api: Api, stub: Stub) -> None:
    stub.answers = [(200, json.dumps({"items": [1, 2], "next_cursor": "2"}).encode())]
    assert list(api.items("/things", 2)) == [1, 2]
    assert asked(stub) == ["/api/v1/things?limit=2"]


@pytest.mark.parametrize(
    ("status", "code", "kind", "advice"),
    [
        (401, "authentication-required", AuthenticationMissing, "--user"),
        (401, "authentication-failed", AuthenticationFailed, "--token-file"),
        (403, "forbidden", AccessDenied, "permissions grant"),
        (404, "destination-not-found", ApiRefused, "sluicemq queues"),
        (409, "rejected", ApiRefused, ""),
        (500, "internal-error", ApiRefused, ""),
    ],
)
def test_errors_name_the_cause_the_broker_and_advice(
    api: Api, stub: Stub, status: int, code: str, kind: type[SluiceError], advice: str
) -> None:
    stub.answers = [(status, refusal(code, "shop may not do that"))]
    with pytest.raises(kind) as caught:
        api.get("/things")
    assert str(caught.value) == f"{api.where}: shop may not do that"
    assert advice in "".join(getattr(caught.value, "__notes__", [""]))
    if isinstance(caught.value, ApiRefused):
        assert (caught.value.status, caught.value.code) == (status, code)
        assert caught.value.document["code"] == code


@pytest.mark.parametrize(
    "answer", [(200, b"<html>"), (200, b"\xff"), (404, b"<html>"), (502, b""), (404, b'{"a": 1}')]
)
def test_answers_of_another_server_are_errors(
    api: Api, stub: Stub, answer: tuple[int, bytes]
) -> None:
    stub.answers = [answer]
    with pytest.raises(ConnectionLost, match="is not a broker's API"):
        api.get("/things")


def test_closed_keep_alive_connection_is_reopened(api: Api, stub: Stub) -> None:
    stub.answers = [(200, b"1"), None, (200, b"2")]
    assert [api.get("/a"), api.get("/b")] == [1, 2]
    assert len(stub.requests) == 3


def test_changing_requests_are_sent_once(api: Api, stub: Stub) -> None:
    stub.answers = [(200, b"1"), None, (200, b"2")]
    api.get("/a")
    with pytest.raises(ConnectionLost, match="no broker answers"):
        api.post("/b", {})
    assert [method for method, _, _ in stub.requests] == ["GET", "POST"]


def test_request_is_not_repeated_if_the_broker_closes_at_once(api: Api, stub: Stub) -> None:
    stub.answers = [None]
    with pytest.raises(ConnectionLost):
        api.get("/a")
    assert len(stub.requests) == 1


def test_lines_are_decoded_one_by_one(api: Api, stub: Stub) -> None:
    stub.answers = [(200, b'{"n": 1}\n{"n": 2}\n')]
    assert [line["n"] for line in api.lines("/backup", {})] == [1, 2]
    stub.answers = [(409, refusal("rejected", "no"))]
    with pytest.raises(ApiRefused, match="no"):
        list(api.lines("/backup", {}))


def test_text_that_is_not_utf_8_is_a_usage_error(api: Api) -> None:
    with pytest.raises(UsageError, match="is not UTF-8"):
        api.post("/a", {"reason": "\udcff"})


def test_unreachable_broker_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match=r"no broker answers at .*/none: No such file") as lost:
        Api(HttpTarget("localhost", 0, path=str(tmp_path / "none"))).get("/a")
    assert "sluicemq serve" in lost.value.__notes__[0]
    with pytest.raises(
        ConnectionLost, match=r"no broker answers at http://127\.0\.0\.1:1: "
    ) as lost:
        Api(HttpTarget("127.0.0.1", 1)).get("/a")
    assert "listener" in lost.value.__notes__[0]


def test_partial_actions_are_requested_until_done(api: Api, stub: Stub) -> None:
    failed = {"id": "9", "reason": "in-flight"}
    stub.answers = [
        (200, json.dumps({"processed": 2, "failed": [failed], "next_cursor": "c1"}).encode()),
        (200, json.dumps({"processed": 1, "failed": [], "next_cursor": "c2"}).encode()),
    ]
    done = run_action(api, Address(Kind.QUEUE, "q"), "delete", {"all": True}, "deleted", limit=3)
    assert done.document == {"processed": 3, "failed": [failed]}
    assert done.code == 1
    bodies = [json.loads(body) for _, _, body in stub.requests]
    assert [(body["limit"], body.get("cursor")) for body in bodies] == [(3, None), (1, "c1")]
