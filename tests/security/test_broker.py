"""A broker with users, in a process of its own; the users change while it runs."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode
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

Command = Callable[..., None]
SECRET = "correct horse battery"
LOG = {"SLUICEMQ_LOGGING__FORMAT": "json", "SLUICEMQ_LOGGING__LEVEL": "error"}


def administer(port: int, kind: int, **fields: Any) -> None:
    """Send an administrative command of VibeMQ as root."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        decoder, answers = Decoder(), []
        for frame in (
            commands.connect("1", "root", SECRET, "", ()),
            wire.Frame(kind, "2", payload=json.dumps(fields).encode()),
        ):
            connection.sendall(wire.encode(frame))
            while not (answers := decoder.feed(connection.recv(65_536))):
                pass
            assert answers[0].type != wire.ERROR, answers[0].error_message


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Call `sluicemq` for the data directory that `start` uses."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> None:
        assert main([*arguments, "--data-dir", str(tmp_path / "broker")]) == 0

    (tmp_path / "secret").write_text(SECRET + "\n")

    return call


def ask(port: int, data: bytes) -> bytes:
    """Send, and read to the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def published(broker: LocalBroker) -> int:
    """Messages that clients of PHPMQ have published. An unused protocol has no counts."""
    counts: dict[str, int] = broker.status()["protocols"].get("phpmq", {})
    return counts.get("published", 0)


def may_send(broker: LocalBroker, queue: str, scheme: str = "phpmq") -> bool:
    """Return whether PHPMQ accepts a message; a refusal closes the connection."""
    before = published(broker)
    with BlockingClient(PhpmqClient.connect, port=broker.port(scheme)) as client:
        end = time.monotonic() + 30
        try:
            client.send(queue, b"x")
            while published(broker) == before:
                assert time.monotonic() < end, "the message is neither taken nor refused"
                with suppress(RequestTimeout):
                    client.receive(0.05)
        except ConnectionLost:
            assert published(broker) == before
            return False
    return True


def audit_log(broker: LocalBroker) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in broker.log.read_text().splitlines()]
    return [line for line in lines if line.get("logger") == "sluicemq.audit"]


def test_the_clients_of_a_listener_act_as_its_user(start: Start, command: Command) -> None:
    command("users", "add", "anna", "--no-password")
    command("permissions", "grant", "anna", "jobs.*", "produce", "consume")
    broker = start(
        "phpmq://0.0.0.0:0?user=anna",
        "msglite://127.0.0.1:0?user=anna",
        "msglite-http://127.0.0.1:0?user=anna",
        "phpmq-maintenance://127.0.0.1:0?user=anna",
        environment=LOG,
    )
    msglite = broker.port("msglite")
    assert may_send(broker, "jobs.a")
    assert not may_send(broker, "other")
    assert ask(msglite, b"> 1 9 jobs.b\r\nx\r\n< 9 jobs.b\r\n.\r\n").startswith(b"> 1 ")
    refusal = b"- anna may not produce 'other'\r\n"
    assert ask(msglite, b"> 1 9 other\r\nx\r\n") == refusal
    answer = ask(broker.port("msglite-http"), b"GET / HTTP/1.0\r\n\r\n")
    assert b" 403 " in answer.split(b"\r\n")[0]
    answer = ask(broker.port("phpmq-maintenance"), b"flush jobs.a\nquit\n")
    assert b"Not permitted: anna may not manage 'jobs.a'" in answer

    command("permissions", "grant", "anna", "other", "produce")
    assert may_send(broker, "other")
    command("users", "remove", "anna", "--force", "--yes")
    assert not may_send(broker, "other")
    assert broker.stop() == 0

    lines = audit_log(broker)
    assert [(line["user"], line["operation"]) for line in lines if line["event"] == "denied"] == [
        ("anna", "produce other"),
        ("anna", "produce other"),
        ("anna", "produce msglite.httpRequests"),
        ("anna", "manage jobs.a"),
        ("(anonymous)", "produce other"),
    ]
    # a command asks the broker that runs, by the socket that only the owner may open
    changed = [line["event"] for line in lines if line.get("changed_by") == "(local) at unix"]
    assert changed == ["user changed", "user removed"]


def test_a_recognised_protocol_acts_as_the_user_of_its_listener(
    start: Start, command: Command
) -> None:
    command("users", "add", "anna", "--no-password")
    command("permissions", "grant", "anna", "jobs", "produce", "consume")
    broker = start("auto://127.0.0.1:0?user=anna")
    port = broker.port("auto")
    assert may_send(broker, "jobs", "auto")
    assert not may_send(broker, "other", "auto")
    assert ask(port, b"> 1 9 other\r\nx\r\n") == b"- anna may not produce 'other'\r\n"


def test_http_on_a_listener_for_all_protocols_asks_for_a_login(
    start: Start, command: Command, tmp_path: Path
) -> None:
    command("users", "add", "anna", "--password-file", str(tmp_path / "secret"), "--superuser")
    port = start("auto://127.0.0.1:0?user=anna").port("auto")
    head = "GET /api/v1/destinations HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert ask(port, f"{head}\r\n".encode()).startswith(b"HTTP/1.1 401 ")
    login = b64encode(f"anna:{SECRET}".encode()).decode()
    logged_in = f"{head}Authorization: Basic {login}\r\n\r\n".encode()
    assert ask(port, logged_in).startswith(b"HTTP/1.1 200 ")


def test_without_a_user_a_loopback_listener_is_open(start: Start, command: Command) -> None:
    command("users", "add", "anna", "--no-password")
    assert may_send(start("phpmq://127.0.0.1:0"), "anything")


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("phpmq://0.0.0.0:0", "?user=NAME"),
        ("phpmq://127.0.0.1:0?user=ghost", "sluicemq users add ghost --data-dir"),
        ("auto://0.0.0.0:9", "sluicemq users add NAME --data-dir"),
    ],
)
def test_a_start_that_is_refused_says_what_to_do(tmp_path: Path, listen: str, says: str) -> None:
    with pytest.raises(ConnectionLost) as caught:
        LocalBroker(tmp_path / "Broker", [listen]).start()
    assert says in str(caught.value)
    assert "?user=NAME" in str(caught.value) or str(tmp_path / "Broker") in str(caught.value)
    assert "exit code 2" in str(caught.value)


def test_an_open_public_listener_is_warned_of(start: Start) -> None:
    broker = start("phpmq://0.0.0.0:0", options=("--insecure-public",))
    assert "any client that reaches this address may do everything" in broker.log.read_text()
    assert "sluicemq users add NAME" in broker.log.read_text()


def test_a_protocol_with_logins_asks_as_soon_as_there_is_a_user(
    start: Start, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start("vibemq://127.0.0.1:0", environment=LOG)
    port = broker.port("vibemq")

    def connect(user: str = "", password: str = "", token: str = "") -> BlockingClient:
        return BlockingClient(
            VibeMQClient.connect, port=port, username=user, password=password, token=token
        )

    connect().close()
    command("users", "add", "root", "--superuser", "--password-file", "secret")
    for user, password in (("", ""), ("root", "wrong"), ("unknown", SECRET)):
        with pytest.raises(ClientError):
            connect(user, password)
    administer(port, wire.CREATE_USER, username="anna", password="another secret")
    grant = {"username": "anna", "queuePattern": "jobs.*", "operations": ["Publish"]}
    administer(port, wire.GRANT_PERMISSION, **grant)
    anna = connect("anna", "another secret")
    anna.publish("jobs.a", {"n": 1})
    with pytest.raises(RequestRefused):
        anna.publish("other", {"n": 1})
    capsys.readouterr()
    command("users", "token", "add", "anna")
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
    start: Start, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = start("vibemq://127.0.0.1:0", "jmq://127.0.0.1:0", "phpmq://127.0.0.1:0")
    phpmq = broker.port("phpmq")
    with (
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq"), reconnect=None) as vibemq,
        RawJmq.login(broker.port("jmq")) as jmq,
        BlockingClient(PhpmqClient.connect, port=phpmq) as old,
        socket.create_connection(("127.0.0.1", broker.port("vibemq"))) as silent,
    ):
        vibemq.publish("jobs", {"n": 1})
        command("users", "add", "root", "--superuser", "--password-file", "secret")
        output = " ".join("".join(capsys.readouterr()).split())
        assert "Added root, the first user." in output
        assert "were connected without one are disconnected" in output
        assert f"stay open to anyone who reaches these listeners: phpmq://127.0.0.1:{phpmq}" in (
            output.replace("127.0.0.1:0", f"127.0.0.1:{phpmq}")
        )
        with pytest.raises(ConnectionLost):
            publish_on(vibemq)
        assert jmq.is_closed_by_broker()
        # one that has not logged in would still have been taken for everybody
        silent.settimeout(20)
        while silent.recv(4096):
            pass
        old.send("jobs", b"x")
        with BlockingClient(PhpmqClient.connect, port=phpmq) as another:
            another.send("jobs", b"y")
        # connections with a login stay
        root = BlockingClient(
            VibeMQClient.connect, port=broker.port("vibemq"), username="root", password=SECRET
        )
        command("users", "add", "anna", "--password-file", "secret")
        root.publish("jobs", {"n": 3})
        root.close()
