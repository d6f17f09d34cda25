"""Permissions and authentication over HTTP, and requests that browsers may not send."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from os import kill
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.model.errors import ConnectionLost
from sluicemq.model.rows import row
from tests.server.authority import Authority
from tests.server.conftest import Start
from tests.server.tls_clients import wait_for_log
from tests.support.http import (
    HTTP,
    PHPMQ,
    TIMEOUT,
    Client,
    basic_auth,
    exchange_bytes,
    ready_counts,
)

Command = Callable[..., None]
SECRET = "correct horse: battery"
LOG = {"SLUICEMQ_LOGGING__FORMAT": "json", "SLUICEMQ_LOGGING__LEVEL": "error"}
JOURNAL_REQUESTS = (
    ("GET", "/journal"),
    ("GET", "/journal/segments/1"),
    ("GET", "/journal/slots"),
    ("GET", "/journal/slots/a"),
    ("PUT", "/journal/slots/a"),
    ("DELETE", "/journal/slots/a"),
)


@pytest.fixture
def run_sluicemq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that calls `sluicemq` with the data directory of `start`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(SECRET + "\n")

    def call(*arguments: str) -> None:
        assert main([*arguments, "--data-dir", str(tmp_path / "broker")]) == 0

    return call


def audit_events(broker: LocalBroker) -> list[tuple[str, str]]:
    """Return the events of the audit log and their users."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in broker.log.read_text().splitlines() if line.startswith("{")
    ]
    return [
        (line["event"], line.get("user", ""))
        for line in lines
        if line.get("logger") == "sluicemq.audit"
    ]


def test_users_need_permissions(
    start: Start, run_sluicemq: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    run_sluicemq("users", "add", "root", "--superuser", "--password-file", "secret")
    run_sluicemq("users", "add", "anna", "--password-file", "secret")
    run_sluicemq("permissions", "grant", "anna", "jobs.*", "produce")
    capsys.readouterr()
    run_sluicemq("users", "token", "add", "anna")
    token = capsys.readouterr().out.strip()
    broker = start(HTTP, environment=LOG)
    port = broker.port("http")
    with Client(port) as anonymous:
        for method, path in (("GET", "/status"), ("POST", "/batches"), *JOURNAL_REQUESTS):
            response = anonymous.request(method, path)
            assert (response.status, response.code) == (401, "authentication-required"), path
            assert response.headers["www-authenticate"].startswith("Basic ")
    for header in (
        basic_auth("anna", SECRET),
        f"Bearer {token}",
        f"bearer  {token}",
        basic_auth("x", token),
    ):
        with Client(port, Authorization=header) as anna:
            assert anna.get("/status").status == 200
            for method, path in JOURNAL_REQUESTS:
                response = anna.request(method, path)
                assert (response.status, response.code) == (403, "forbidden"), path
    with Client(port, Authorization=basic_auth("anna", SECRET)) as anna:
        batch = [row("jobs.a", b"1"), row("other", b"2"), row("other", b"3")]
        rejected_write = anna.write(batch)
        assert (rejected_write.status, rejected_write.code) == (409, "rejected")
        assert [rejection["row"] for rejection in rejected_write.json()["rejected"]] == [1, 2]
        assert "anna may not produce 'other'" in rejected_write.json()["detail"]
        # the dead-letter queue requires permission, too
        assert anna.write(batch, bad_rows="dead-letter").code == "forbidden"
        query = {"bad_rows": "dead-letter", "dead_letter_queue": "jobs.bad"}
        assert anna.write(batch, **query).json()["dead_lettered"] == 2
        assert anna.write([row("jobs.b")], batch=1).json()["written"] == 1
    with Client(port, Authorization=basic_auth("root", SECRET)) as root:
        first = root.journal()["segments"][0]["first_sequence"]
        assert root.segment(first).status == 200
        assert root.request("PUT", "/journal/slots/a", b'{"position": 1}').status == 200
    assert ready_counts(broker) == {"jobs.a": 1, "jobs.b": 1, "jobs.bad": 2}
    events = audit_events(broker)
    assert events.count(("login", "anna")) == 5  # one per connection
    denials = [event for event in events if event[0] == "denied"]
    # each request for the journal, each part with the forbidden name, and the dead-letter queue
    assert denials == [("denied", "anna")] * (4 * len(JOURNAL_REQUESTS) + 2 + 1)


def test_wrong_credentials_are_rejected_and_limited(start: Start, run_sluicemq: Command) -> None:
    run_sluicemq("users", "add", "anna", "--password-file", "secret")
    limits = {"SLUICEMQ_AUTH__MAX_LOGIN_FAILURES": "2", "SLUICEMQ_AUTH__LOGIN_BACKOFF": "1min"}
    broker = start(HTTP, environment={**LOG, **limits})
    with Client(broker.port("http")) as client:
        for header in ("Basic", "Basic !", "Basic YQ==", "Bearer", "Bearer ", "Digest x", "\xff"):
            response = client.get("/status", Authorization=header)
            assert (response.status, response.code) == (400, "bad-authorization"), header
        assert client.get("/status", Authorization=basic_auth("anna", SECRET)).status == 200
        for header in (
            basic_auth("anna", "wrong"),
            basic_auth("anna", SECRET + " "),
            basic_auth("unknown", SECRET),
            "Bearer sluicemq-nonsense",
        ):
            response = client.get("/status", Authorization=header)
            assert (response.status, response.code) == (401, "authentication-failed"), header
        for _ in range(2):
            response = client.get("/status", Authorization=basic_auth("ghost", "wrong"))
            assert (response.status, response.code) == (401, "authentication-failed")
        response = client.get("/status", Authorization=basic_auth("ghost", "wrong"))
        assert (response.status, response.code) == (429, "too-many-failures")
        assert 1 <= int(response.headers["retry-after"]) <= 60
        assert "for this user from this address" in response.json()["detail"]
        # requests without credentials are never throttled
        assert client.get("/status").status == 401
    assert ("login failed", "anna") in audit_events(broker)


def test_public_address_requires_users(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="insecure_public"):
        LocalBroker(tmp_path / "broker", ["http://0.0.0.0:0"]).start()


def test_port_in_use_is_an_error(start: Start, tmp_path: Path) -> None:
    port = start(HTTP).port("http")
    with pytest.raises(ConnectionLost, match=f"cannot listen on http://127.0.0.1:{port}"):
        LocalBroker(tmp_path / "second", [f"http://127.0.0.1:{port}"]).start()


def test_requests_from_other_origins_are_rejected(start: Start) -> None:
    """Without passwords, a page of another origin could send requests through a browser."""
    port = start(PHPMQ, HTTP).port("http")
    with Client(port) as client:
        for headers, status in (
            ({"Host": "localhost"}, 200),
            ({"Host": f"127.0.0.1:{port}"}, 200),
            ({"Host": "[::1]:1"}, 200),
            ({"Host": "[::1]"}, 200),
            ({"Host": "10.1.2.3"}, 200),
            ({"Host": "LOCALHOST:7680"}, 200),
            ({"Host": "evil.example"}, 403),
            ({"Host": "127.0.0.1.evil.example:7680"}, 403),
            ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
            ({"Host": "localhost", "Origin": "null"}, 403),
            ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
            ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ):
            response = client.get("/status", **headers)
            assert response.status == status, headers


def test_any_host_name_is_accepted_on_public_and_tls_listeners(
    start: Start, authority: Authority
) -> None:
    pem = authority.pem(authority.issue())
    broker = start(
        "http://0.0.0.0:0",
        f"http+tls://127.0.0.1:0?certificate={pem}",
        options=("--insecure-public",),
    )
    with (
        Client(broker.port("http")) as plain_client,
        Client(broker.port("http+tls"), authority.trust()) as tls_client,
    ):
        for client in (plain_client, tls_client):
            assert client.get("/status", Host="broker.example").status == 200
            assert client.get("/status", Origin="http://evil.example").status == 403


def test_requests_from_other_origins_are_rejected_with_users(
    start: Start, run_sluicemq: Command
) -> None:
    run_sluicemq("users", "add", "anna", "--password-file", "secret")
    header = basic_auth("anna", SECRET)
    with Client(start(HTTP).port("http"), Authorization=header) as client:
        assert client.get("/status", Host="broker.example").status == 200
        response = client.get("/status", Host="broker.example", Origin="http://evil.example")
        assert (response.status, response.code) == (403, "cross-origin")


def test_tls_uses_a_new_certificate_after_sighup(start: Start, authority: Authority) -> None:
    pem = authority.pem(authority.issue())
    broker = start(f"http+tls://127.0.0.1:0?certificate={pem}")
    port = broker.port("http+tls")
    with Client(port, authority.trust()) as client:
        rows = [row("q", bytes(1000))] * 5000
        assert client.write(rows).json()["written"] == 5000
        [segment] = client.journal()["segments"]
        assert len(client.segment(segment["first_sequence"]).body) == segment["size"] > 5_000_000
        authority.pem(authority.issue())
        kill(broker.pid, signal.SIGHUP)
        wait_for_log(broker, "certificate")
        with Client(port, authority.trust()) as other_client:
            assert other_client.get("/status").status == 200
        assert client.get("/status").status == 200


def test_unix_sockets_and_http_1_0_are_supported(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    broker = start(HTTP, f"http+unix://{path}")
    response = exchange_bytes(broker.port("http"), b"GET /api/v1/status HTTP/1.0\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 200 ")

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect(str(path))
        connection.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: any.name\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_unknown_paths_and_methods_are_rejected(start: Start) -> None:
    with Client(start(HTTP).port("http")) as client:
        for path in ("", "/", "/nothing", "/status/", "/journal/", "/%2e%2e/status", "/%ff"):
            response = client.get(path)
            assert (response.status, response.code) == (404, "not-found"), path
        for method, path in (
            ("POST", "/status"),
            ("DELETE", "/batches"),
            ("DELETE", "/journal"),
            ("PATCH", "/journal/slots/a"),
            ("OPTIONS", "/batches"),
        ):
            response = client.request(method, path)
            assert (response.status, response.code) == (405, "method-not-allowed")
            assert response.headers["allow"]
        head = client.request("HEAD", "/status")
        assert (head.status, head.body) == (200, b"")
