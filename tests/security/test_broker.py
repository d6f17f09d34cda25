"""Logins and permissions of a broker process whose users change while it runs."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient, commands
from sluicemq.model.errors import ClientError, ConnectionLost, RequestRefused, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Decoder
from tests.protocols.jmq.raw import RawJmq
from tests.server.conftest import Start
from tests.support.http import basic_auth, exchange_bytes

Command = Callable[..., None]
SECRET = "correct horse battery"
LOG = {"SLUICEMQ_LOGGING__FORMAT": "json", "SLUICEMQ_LOGGING__LEVEL": "error"}


def send_admin_command(port: int, kind: int, **fields: Any) -> None:
    """Send an administrative command of VibeMQ as root."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        decoder, replies = Decoder(), []
        for frame in (
            commands.connect("1", "root", SECRET, "", ()),
            wire.Frame(kind, "2", payload=json.dumps(fields).encode()),
        ):
            connection.sendall(wire.encode(frame))
            while not (replies := decoder.feed(connection.recv(65_536))):
                pass
            assert replies[0].type != wire.ERROR, replies[0].error_message


@pytest.fixture
def run_sluicemq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that calls `sluicemq` with the data directory of `start`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> None:
        assert main([*arguments, "--data-dir", str(tmp_path / "broker")]) == 0

    (tmp_path / "secret").write_text(SECRET + "\n")

    return call


def published_count(broker: LocalBroker) -> int:
    """Return the number of messages published by PHPMQ clients."""
    counts: dict[str, int] = broker.status()["protocols"].get("phpmq", {})
    return counts.get("published", 0)


def is_send_permitted(broker: LocalBroker, queue: str, scheme: str = "phpmq") -> bool:
    """Return whether PHPMQ accepts a message; a rejection closes the connection."""
    before = published_count(broker)
    with BlockingClient(PhpmqClient.connect, port=broker.port(scheme)) as client:
        end = time.monotonic() + 30
        try:
            client.send(queue, b"x")
            while published_count(broker) == before:
                assert time.monotonic() < end, "the message is neither accepted nor rejected"
                with suppress(RequestTimeout):
                    client.receive(0.05)
        except ConnectionLost:
            assert published_count(broker) == before
            return False
    return True


def audit_log(broker: LocalBroker) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in broker.log.read_text().splitlines()]
    return [line for line in lines if line.get("logger") == "sluicemq.audit"]


def test_clients_act_as_the_user_of_the_listener(start: Start, run_sluicemq: Command) -> None:
    run_sluicemq("users", "add", "anna", "--no-password")
    run_sluicemq("permissions", "grant", "anna", "jobs.*", "produce", "consume")
    broker = start(
        "phpmq://0.0.0.0:0?user=anna",
        "msglite://127.0.0.1:0?user=anna",
        "msglite-http://127.0.0.1:0?user=anna",
        "phpmq-maintenance://127.0.0.1:0?user=anna",
        environment=LOG,
    )
    msglite = broker.port("msglite")
    assert is_send_permitted(broker, "jobs.a")
    assert not is_send_permitted(broker, "other")
    assert exchange_bytes(msglite, b"> 1 9 jobs.b\r\nx\r\n< 9 jobs.b\r\n.\r\n").startswith(b"> 1 ")
    refusal = b"- anna may not produce 'other'\r\n"
    assert exchange_bytes(msglite, b"> 1 9 other\r\nx\r\n") == refusal
    response = exchange_bytes(broker.port("msglite-http"), b"GET / HTTP/1.0\r\n\r\n")
    assert b" 403 " in response.split(b"\r\n")[0]
    response = exchange_bytes(broker.port("phpmq-maintenance"), b"flush jobs.a\nquit\n")
    assert b"Not permitted: anna may not manage 'jobs.a'" in response

    run_sluicemq("permissions", "grant", "anna", "other", "produce")
    assert is_send_permitted(broker, "other")
    run_sluicemq("users", "remove", "anna", "--force", "--yes")
    assert not is_send_permitted(broker, "other")
    assert broker.stop() == 0

    lines = audit_log(broker)
    assert [(line["user"], line["operation"]) for line in lines if line["event"] == "denied"] == [
        ("anna", "produce other"),
        ("anna", "produce other"),
        ("anna", "produce msglite.httpRequests"),
        ("anna", "manage jobs.a"),
        ("(anonymous)", "produce other"),
    ]
    # commands use the admin socket of the running broker, which only its owner may open
    changed = [line["event"] for line in lines if line.get("changed_by") == "(local) at unix"]
    assert changed == ["user changed", "user removed"]


def test_detected_protocol_acts_as_the_user_of_the_listener(
    start: Start, run_sluicemq: Command
) -> None:
    run_sluicemq("users", "add", "anna", "--no-password")
    run_sluicemq("permissions", "grant", "anna", "jobs", "produce", "consume")
    broker = start("auto://127.0.0.1:0?user=anna")
    port = broker.port("auto")
    assert is_send_permitted(broker, "jobs", "auto")
    assert not is_send_permitted(broker, "other", "auto")
    assert exchange_bytes(port, b"> 1 9 other\r\nx\r\n") == b"- anna may not produce 'other'\r\n"


def test_http_requires_a_login_on_a_listener_for_all_protocols(
    start: Start, run_sluicemq: Command, tmp_path: Path
) -> None:
    run_sluicemq("users", "add", "anna", "--password-file", str(tmp_path / "secret"), "--superuser")
    port = start("auto://127.0.0.1:0?user=anna").port("auto")
    head = "GET /api/v1/destinations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert exchange_bytes(port, f"{head}\r\n".encode()).startswith(b"HTTP/1.1 401 ")
    logged_in = f"{head}Authorization: {basic_auth('anna', SECRET)}\r\n\r\n".encode()
    assert exchange_bytes(port, logged_in).startswith(b"HTTP/1.1 200 ")


def test_without_a_user_a_loopback_listener_is_open(start: Start, run_sluicemq: Command) -> None:
    run_sluicemq("users", "add", "anna", "--no-password")
    assert is_send_permitted(start("phpmq://127.0.0.1:0"), "anything")


@pytest.mark.parametrize(
    ("listen", "error"),
    [
        ("phpmq://0.0.0.0:0", "?user=NAME"),
        ("phpmq://127.0.0.1:0?user=ghost", "sluicemq users add ghost --data-dir"),
        ("auto://0.0.0.0:9", "sluicemq users add NAME --data-dir"),
    ],
)
def test_rejected_start_prints_advice(tmp_path: Path, listen: str, error: str) -> None:
    with pytest.raises(ConnectionLost) as caught:
        LocalBroker(tmp_path / "Broker", [listen]).start()
    assert error in str(caught.value)
    assert "?user=NAME" in str(caught.value) or str(tmp_path / "Broker") in str(caught.value)
    assert "exit code 2" in str(caught.value)


def test_open_public_listener_logs_a_warning(start: Start) -> None:
    broker = start("phpmq://0.0.0.0:0", options=("--insecure-public",))
    assert "any client that reaches this address may do everything" in broker.log.read_text()
    assert "sluicemq users add NAME" in broker.log.read_text()


def test_login_is_required_as_soon_as_a_user_exists(
    start: Start, run_sluicemq: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start("vibemq://127.0.0.1:0", environment=LOG)
    port = broker.port("vibemq")

    def connect(user: str = "", password: str = "", token: str = "") -> BlockingClient:
        return BlockingClient(
            VibeMQClient.connect, port=port, username=user, password=password, token=token
        )

    connect().close()
    run_sluicemq("users", "add", "root", "--superuser", "--password-file", "secret")
    for user, password in (("", ""), ("root", "wrong"), ("unknown", SECRET)):
        with pytest.raises(ClientError):
            connect(user, password)
    send_admin_command(port, wire.CREATE_USER, username="anna", password="another secret")
    grant = {"username": "anna", "queuePattern": "jobs.*", "operations": ["Publish"]}
    send_admin_command(port, wire.GRANT_PERMISSION, **grant)
    anna = connect("anna", "another secret")
    anna.publish("jobs.a", {"n": 1})
    with pytest.raises(RequestRefused):
        anna.publish("other", {"n": 1})
    capsys.readouterr()
    run_sluicemq("users", "token", "add", "anna")
    token = capsys.readouterr().out.strip()
    for credentials in ({"token": token}, {"user": "x", "password": token}):
        with connect(**credentials) as client:
            client.publish("jobs.a", {"n": 2})
    anna.close()
    assert broker.stop() == 0
    log = broker.log.read_text()
    for secret in (SECRET, "another secret", token, "argon2"):
        assert secret not in log
    added = [line for line in audit_log(broker) if line["event"] == "user added"]
    assert [line["user"] for line in added] == ["root", "anna"]
    assert added[1]["changed_by"].startswith("root at 127.0.0.1:")


def publish_on(client: BlockingClient) -> None:
    """Publish until the connection is lost."""
    while True:
        client.publish("jobs", {"n": 2})


def test_first_user_disconnects_clients_that_need_a_login_now(
    start: Start, run_sluicemq: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start("vibemq://127.0.0.1:0", "jmq://127.0.0.1:0", "phpmq://127.0.0.1:0")
    phpmq = broker.port("phpmq")
    with (
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq"), reconnect=None) as vibemq,
        RawJmq.login(broker.port("jmq")) as jmq,
        BlockingClient(PhpmqClient.connect, port=phpmq) as open_client,
        socket.create_connection(("127.0.0.1", broker.port("vibemq"))) as silent_connection,
    ):
        vibemq.publish("jobs", {"n": 1})
        run_sluicemq("users", "add", "root", "--superuser", "--password-file", "secret")
        output = " ".join("".join(capsys.readouterr()).split())
        assert "Added root, the first user." in output
        assert "were connected without one are disconnected" in output
        assert f"stay open to anyone who reaches these listeners: phpmq://127.0.0.1:{phpmq}" in (
            output.replace("127.0.0.1:0", f"127.0.0.1:{phpmq}")
        )
        with pytest.raises(ConnectionLost):
            publish_on(vibemq)
        assert jmq.is_closed_by_broker()
        # a connection without a login would otherwise keep all permissions
        silent_connection.settimeout(20)
        while silent_connection.recv(4096):
            pass
        open_client.send("jobs", b"x")
        with BlockingClient(PhpmqClient.connect, port=phpmq) as another:
            another.send("jobs", b"y")
        # connections with a login remain open
        root = BlockingClient(
            VibeMQClient.connect, port=broker.port("vibemq"), username="root", password=SECRET
        )
        run_sluicemq("users", "add", "anna", "--password-file", "secret")
        root.publish("jobs", {"n": 3})
        root.close()
