"""Clients with stale passwords do not affect other clients, of the same or other addresses."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.model.errors import RequestRefused
from sluicemq.protocols.jmq.packets import Status
from sluicemq.security import records
from sluicemq.security.passwords import hash_password
from sluicemq.security.records import UserRecord, UserStore, make_token
from tests.protocols.jmq.raw import RawJmq, status_of
from tests.protocols.jmq.raw import basic as jmq_basic
from tests.server.conftest import Start
from tests.support.http import HTTP, Client, basic_auth

SECRET = "correct horse battery"
STALE_CLIENTS = 4


@contextmanager
def stale_clients(port: int, users: list[str]) -> Iterator[list[int]]:
    """Run clients that repeat logins with wrong passwords; yield the statuses of the responses."""
    statuses: list[int] = []
    throttled = threading.Event()
    stopped = threading.Event()

    def log_in_repeatedly(number: int) -> None:
        with Client(port) as client:
            attempt = 0
            while not stopped.is_set():
                user = users[attempt % len(users)]
                authorization = basic_auth(user, f"stale {number} {attempt}")
                statuses.append(client.get("/status", Authorization=authorization).status)
                attempt += 1
                if statuses[-1] == 429:
                    throttled.set()

    threads = [
        threading.Thread(target=log_in_repeatedly, args=(number,))
        for number in range(STALE_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        assert throttled.wait(30), "the logins are not throttled"
        yield statuses
    finally:
        stopped.set()
        for thread in threads:
            thread.join(30)


@pytest.fixture
def broker(start: Start) -> LocalBroker:
    broker = start(
        HTTP,
        "vibemq://127.0.0.1:0",
        "jmq://127.0.0.1:0?authentication=basic",
        environment={"SLUICEMQ_AUTH__LOGIN_BACKOFF": "1min"},
    )
    store = UserStore(broker.directory / "users.json")
    hashed = hash_password(SECRET)
    for name in ("anna", "bert", "clara", "dora", "erik"):
        record = UserRecord(
            password=hashed,
            superuser=True,
            created=1,
            updated=1,
        )
        store.change(lambda db, n=name, r=record: records.add_user(db, n, r), "the test")  # type: ignore[misc]
    return broker


def test_stale_client_does_not_block_others_at_its_address(broker: LocalBroker) -> None:
    token, record = make_token("", 1)
    store = UserStore(broker.directory / "users.json")
    store.change(lambda database: records.add_token(database, "anna", record, 1), "the test")
    http, vibemq, jmq = (broker.port(protocol) for protocol in ("http", "vibemq", "jmq"))

    def vibemq_login(**credentials: str) -> None:
        BlockingClient(VibeMQClient.connect, port=vibemq, timeout=60, **credentials).close()  # type: ignore[arg-type]

    vibemq_login(username="bert", password=SECRET)
    # the stale clients also log in as anna and bert, with old passwords
    with stale_clients(http, ["anna", "bert", "gone"]) as statuses:
        before = len(statuses)
        for _ in range(3):
            vibemq_login(token=token)
            vibemq_login(username="bert", password=SECRET)
            with Client(http) as client:
                assert client.get("/status", Authorization=f"Bearer {token}").status == 200
                assert client.get("/status", Authorization=basic_auth("bert", SECRET)).status == 200
        # first logins
        vibemq_login(username="clara", password=SECRET)
        with Client(http) as client:
            assert client.get("/status", Authorization=basic_auth("dora", SECRET)).status == 200
        with RawJmq.login(jmq, "erik", SECRET):
            pass
        # only logins of the user from the address are throttled
        with pytest.raises(RequestRefused, match=r"try again in \d+ s"):
            vibemq_login(username="anna", password="wrong")
        with RawJmq(jmq) as jmq_client:
            jmq_client.hello()
            reply = jmq_client.authenticate(jmq_basic("anna", "wrong"))
            assert status_of(reply) == Status.FORBIDDEN
            assert "try again in" in str(reply.properties["JMQReason"])
        assert len(statuses) > before, "the stale clients have stopped"
        assert set(statuses) <= {401, 429}


def test_login_flood_does_not_delay_another_address(broker: LocalBroker) -> None:
    """Login checks alternate between addresses, whatever the number of logins of each."""
    port = broker.port("http")

    def request(address: str, user: str, password: str) -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", port), timeout=60, source_address=(address, 0)
        )
        head = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
        connection.sendall(f"{head}{basic_auth(user, password)}\r\n\r\n".encode())
        return connection

    with ExitStack() as stack:
        flood = [stack.enter_context(request("127.0.0.2", f"user{n}", "wrong")) for n in range(100)]
        client = stack.enter_context(request("127.0.0.3", "anna", SECRET))
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        readable, _, _ = select.select(flood, [], [], 0)
        assert len(readable) < len(flood), "the other client was served last"
