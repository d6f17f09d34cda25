"""The list of connections, and how clients of each protocol are disconnected."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sluicemq.admin.clients import may_see_connection
from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.blocking import connect as connect_blocking
from sluicemq.clients.jmq import JmqClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.management.clients import ConnectionItem
from sluicemq.model.access import ANONYMOUS, EVERYBODY
from sluicemq.model.errors import ClientError, ConnectionLost
from sluicemq.model.url import PROTOCOLS
from sluicemq.protocols.transport import SessionInfo
from tests.admin.context import StubConnectionRegistry, connection_item
from tests.server.conftest import Start
from tests.support.api import ApiFixture, HttpClient, in_event_loop
from tests.support.http import HTTP, PHPMQ, TIMEOUT, Client, basic_auth
from tests.support.polling import wait_until

MSGLITE = "msglite://127.0.0.1:0"
VIBEMQ = "vibemq://127.0.0.1:0"
JMQ = "jmq://127.0.0.1:0"
MAINTENANCE = "phpmq-maintenance://127.0.0.1:0"
AUTO = "auto://127.0.0.1:0"
CLOSE_MESSAGE = "closed by an administrator: you are too loud"


def list_connections(client: Client, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"/connections?{query}")
    assert response.status == 200, response
    items: list[dict[str, Any]] = response.json()["items"]
    return items


def get_connection(client: Client, protocol: str) -> dict[str, Any]:
    [item] = list_connections(client, f"protocol={protocol}")
    return item


def close_connection(client: Client, protocol: str) -> None:
    number = get_connection(client, protocol)["id"]
    response = client.request("DELETE", f"/connections/{number}?reason=you%20are%20too%20loud")
    assert response.status == 204, response


def wait_until_gone(client: Client, protocol: str) -> None:
    wait_until(
        lambda: not list_connections(client, f"protocol={protocol}"),
        f"the {protocol} connection is still listed",
    )


# --- clients of each protocol ---------------------------------------------------------------------


def check_phpmq(broker: LocalBroker, client: Client) -> None:
    """The protocol cannot carry a reason."""
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as peer:
        peer.send("q", b"hello")
        peer.subscribe("q", 7)
        assert peer.receive(TIMEOUT).body == b"hello"
        item = get_connection(client, "phpmq")
        assert (item["consumers"], item["state"], item["tls"]) == (1, "open", False)
        assert min(item["received_bytes"], item["sent_bytes"]) > 100
        close_connection(client, "phpmq")
        with pytest.raises(ConnectionLost):
            peer.receive(TIMEOUT)
    [queue] = client.get("/consumers?destination=q").json()["items"] or [None]
    assert queue is None  # its unacked messages are requeued


def check_msglite(broker: LocalBroker, client: Client) -> None:
    peer = BlockingClient(MsgliteClient.connect, port=broker.port("msglite"))
    peer.send("m", b"hello", timeout=60)
    assert peer.ready("m", timeout=5) is not None
    assert get_connection(client, "msglite")["consumers"] == 1
    close_connection(client, "msglite")
    with pytest.raises(ClientError, match=CLOSE_MESSAGE):
        peer.ready("m", timeout=60)


def check_vibemq(broker: LocalBroker, client: Client) -> None:
    peer = BlockingClient(VibeMQClient.connect, port=broker.port("vibemq"), reconnect=None)
    subscription = peer.subscribe("v")
    item = get_connection(client, "vibemq")
    assert item["consumers"] == 1
    assert item["client_id"]
    close_connection(client, "vibemq")
    with pytest.raises(ConnectionLost, match=CLOSE_MESSAGE):
        subscription.receive(TIMEOUT)


def check_jmq(broker: LocalBroker, client: Client) -> None:
    url = f"jmq://127.0.0.1:{broker.port('jmq')}?client_id=reporter"
    peer = BlockingClient(JmqClient.open, url, reconnect=None)
    consumer = peer.session().consumer("j")
    item = get_connection(client, "jmq")
    assert (item["consumers"], item["client_id"]) == (1, "reporter")
    close_connection(client, "jmq")
    with pytest.raises(ConnectionLost, match=CLOSE_MESSAGE):
        consumer.receive(TIMEOUT)


def check_maintenance(broker: LocalBroker, client: Client) -> None:
    address = ("127.0.0.1", broker.port("phpmq-maintenance"))
    with socket.create_connection(address, TIMEOUT) as peer, peer.makefile("rb") as file:
        peer.sendall(b"q\n")
        wait_until(
            lambda: bool(list_connections(client, "protocol=phpmq-maintenance")),
            "the connection is not listed",
        )
        close_connection(client, "phpmq-maintenance")
        assert b"Closed by an administrator: you are too loud." in file.read()


def check_http(broker: LocalBroker, client: Client) -> None:
    with Client(broker.port("http")) as peer:
        assert peer.get("/status").status == 200
        connection_ids = {item["id"] for item in list_connections(client, "protocol=http")}
        [own_number] = [
            n
            for n in connection_ids
            if client.get(f"/connections/{n}").json()["peer"] == local_address(client)
        ]
        [other_number] = connection_ids - {own_number}
        assert client.request("DELETE", f"/connections/{other_number}").status == 204
        assert peer.connection.sock is not None
        assert peer.connection.sock.recv(1) == b""
        # a client that closes its own connection gets the response first
        assert client.request("DELETE", f"/connections/{own_number}").status == 204


def local_address(client: Client) -> str:
    assert client.connection.sock is not None
    host, port = client.connection.sock.getsockname()
    return f"{host}:{port}"


def check_detected_protocol(broker: LocalBroker, client: Client) -> None:
    """On a listener for all protocols, the protocol is listed once it is detected."""
    address = ("127.0.0.1", broker.port("auto"))
    with socket.create_connection(address, TIMEOUT) as peer:
        wait_until(
            lambda: bool(list_connections(client, "protocol=auto")), "the connection is not listed"
        )
        assert get_connection(client, "auto")["state"] == "connecting"
        close_connection(client, "auto")
        assert peer.recv(1) == b""
    wait_until_gone(client, "auto")
    with BlockingClient(PhpmqClient.connect, port=broker.port("auto")) as other_client:
        other_client.send("q", b"hello")
        other_client.subscribe("nothing")
        wait_until(
            lambda: bool(list_connections(client, "protocol=phpmq")), "the connection is not listed"
        )
        assert get_connection(client, "phpmq")["listener"].startswith("auto://")
        close_connection(client, "phpmq")
        with pytest.raises(ConnectionLost):
            other_client.receive(TIMEOUT)


def test_clients_of_each_protocol_are_listed_and_disconnected(start: Start) -> None:
    broker = start(HTTP, PHPMQ, MSGLITE, VIBEMQ, JMQ, MAINTENANCE, AUTO)
    with Client(broker.port("http")) as client:
        for check in (
            check_phpmq,
            check_msglite,
            check_vibemq,
            check_jmq,
            check_maintenance,
            check_detected_protocol,
        ):
            check(broker, client)
            for protocol in ("phpmq", "msglite", "vibemq", "jmq", "phpmq-maintenance"):
                wait_until_gone(client, protocol)
        overview = client.get("/overview?fresh=true").json()
        protocols = overview["protocols"]
        assert protocols["phpmq"]["published"] == 2
        assert protocols["phpmq"]["delivered"] >= 1
        assert (protocols["msglite"]["published"], protocols["msglite"]["delivered"]) == (1, 1)
        assert protocols["http"]["connections"] == 1
        by_url = {listener["protocol"]: listener for listener in overview["listeners"]}
        assert by_url["phpmq"]["accepted"] == 1
        assert by_url["phpmq"]["connections"] == 0
        assert min(by_url["phpmq"]["received_bytes"], by_url["phpmq"]["sent_bytes"]) > 100
        check_http(broker, client)


def test_messages_are_counted_by_protocol(start: Start) -> None:
    """Each protocol counts published and delivered messages."""
    broker = start(HTTP, VIBEMQ, JMQ)
    with ExitStack() as stack, Client(broker.port("http")) as client:
        vibe = stack.enter_context(BlockingClient(VibeMQClient.connect, port=broker.port("vibemq")))
        for number in range(3):
            vibe.publish("v", number)
        subscription = vibe.subscribe("v")
        for _ in range(3):
            subscription.receive(TIMEOUT)
        url = f"jmq://127.0.0.1:{broker.port('jmq')}"
        java = stack.enter_context(BlockingClient(JmqClient.open, url, reconnect=None))
        session = java.session(transacted=True)
        session.producer("j").send_all(["a", "b"])
        session.commit()
        consumer = session.consumer("j")
        assert consumer.receive(TIMEOUT).body == "a"
        assert consumer.receive(TIMEOUT).body == "b"
        session.commit()

        def counted() -> list[int]:
            protocols = client.get("/overview?fresh=true").json()["protocols"]
            return [protocols[p][k] for p in ("vibemq", "jmq") for k in ("published", "delivered")]

        wait_until(lambda: counted() == [3, 3, 2, 2], "messages are not counted")
        [item] = client.get("/consumers?destination=j").json()["items"]
        assert (item["delivered"], item["unacked"], item["protocol"]) == (2, 0, "jmq")


# --- lists ----------------------------------------------------------------------------------------


def connection_with(number: int, **changes: Any) -> ConnectionItem:
    defaults = {"protocol": "phpmq", "listener": "phpmq://x:1", "consumers": number % 3}
    return replace(connection_item(number), **{**defaults, **changes})


def set_connections(api_fixture: ApiFixture, *views: ConnectionItem) -> StubConnectionRegistry:
    """Make `views` the connections of the broker."""
    connections: Any = api_fixture.context.connections
    assert isinstance(connections, StubConnectionRegistry)
    connections.views[:] = views
    return connections


async def connection_ids(http_client: HttpClient, query: str = "") -> list[int]:
    response = await http_client.request("GET", f"/connections?{query}")
    assert response.status == 200, response
    return [item["id"] for item in response.json()["items"]]


@in_event_loop
async def test_list_is_paged_sorted_and_filtered(api_fixture: ApiFixture) -> None:
    views = [connection_with(n) for n in range(1, 8)]
    views[2] = connection_with(3, protocol="jmq", client_id="reporter", user="bert")
    set_connections(api_fixture, *views)
    http_client = api_fixture.http_client()
    assert await connection_ids(http_client) == [1, 2, 3, 4, 5, 6, 7]
    assert await connection_ids(http_client, "order=desc&limit=3") == [7, 6, 5]
    assert await connection_ids(http_client, "limit=3&offset=6") == [7]
    assert await connection_ids(http_client, "limit=3&offset=9") == []
    assert await connection_ids(http_client, "sort=started") == [7, 6, 5, 4, 3, 2, 1]
    assert await connection_ids(http_client, "sort=consumers") == [3, 6, 1, 4, 7, 2, 5]
    assert await connection_ids(http_client, "protocol=jmq") == [3]
    assert await connection_ids(http_client, "filter=report") == [3]
    assert await connection_ids(http_client, "filter=bert") == [3]
    assert await connection_ids(http_client, "filter=10.0.0.5") == [5]
    response = await http_client.request("GET", "/connections?limit=2&protocol=phpmq")
    assert response.json()["total"] == 6
    for protocol in PROTOCOLS:
        await connection_ids(http_client, f"protocol={protocol}")
    response = await http_client.request("GET", "/connections?protocol=amqp")
    assert response.json()["detail"].endswith(
        f"in `protocol`; there are {', '.join(sorted(PROTOCOLS))}"
    )
    for query in ("sort=password", "offset=-1", "limit=501", "order=up", "nothing=1"):
        response = await http_client.request("GET", f"/connections?{query}")
        assert (response.status, response.code) == (400, "bad-parameter"), query


@in_event_loop
async def test_only_the_items_of_the_page_are_built(api_fixture: ApiFixture) -> None:
    connections = set_connections(api_fixture, *(connection_with(n) for n in range(1, 200)))
    http_client = api_fixture.http_client()
    assert await connection_ids(http_client, "limit=3&sort=started") == [199, 198, 197]
    assert sorted(connections.counted) == [197, 198, 199]


@in_event_loop
async def test_users_see_only_their_own_connections(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    api_fixture.add("anna", "*: browse produce consume create delete manage")
    connections = set_connections(
        api_fixture,
        connection_with(1),
        connection_with(2, user="root"),
        connection_with(3, user=""),
    )
    root, anna = api_fixture.http_client(), api_fixture.http_client("127.0.0.1:2")
    await root.login("root")
    await anna.login("anna")
    assert await connection_ids(root) == [1, 2, 3]
    assert await connection_ids(anna) == [1]
    assert (await anna.request("GET", "/connections/1")).status == 200
    for number in (2, 3):
        response = await anna.request("GET", f"/connections/{number}")
        assert (response.status, response.code) == (404, "connection-not-found")
    response = await anna.request("DELETE", "/connections/1")
    assert (response.status, response.code) == (403, "forbidden")
    assert connections.closed == []
    assert (await root.request("DELETE", "/connections/1")).status == 204
    assert [number for number, _ in connections.closed] == [1]
    audit_lines = api_fixture.audit_lines()
    assert any(line.startswith("denied: anna") for line in audit_lines)
    assert any(line.startswith("change: root DELETE /api/v1/connections/1") for line in audit_lines)


def test_anonymous_users_own_no_connections() -> None:
    """Otherwise they would share the connections of all anonymous users."""
    anonymous = SessionInfo("phpmq")
    assert not may_see_connection(ANONYMOUS, anonymous)
    assert may_see_connection(EVERYBODY, anonymous)


@in_event_loop
async def test_connections_require_a_login(api_fixture: ApiFixture) -> None:
    api_fixture.add("root", superuser=True)
    set_connections(api_fixture, connection_with(1, user=""))
    for method, path in (("GET", "/connections"), ("DELETE", "/connections/1")):
        response = await api_fixture.http_client().request(method, path)
        assert (response.status, response.code) == (401, "authentication-required")


@in_event_loop
async def test_unknown_connection_cannot_be_closed(api_fixture: ApiFixture) -> None:
    set_connections(api_fixture, connection_with(1))
    for local_address in ("2", "-1", "x", "1.0", "%C2%B2", "9" * 30, "0x1"):
        response = await api_fixture.http_client().request(
            "DELETE", f"/connections/{local_address}"
        )
        assert (response.status, response.code) == (404, "connection-not-found"), local_address


@in_event_loop
async def test_reason_is_escaped_to_one_line(api_fixture: ApiFixture) -> None:
    """The reason is part of packets, terminal output and logs."""
    connections = set_connections(api_fixture, connection_with(1))
    http_client = api_fixture.http_client()
    assert (await http_client.request("DELETE", "/connections/1")).status == 204
    await http_client.request("DELETE", "/connections/1?reason=two%0Alines%1b%5b2J%20%20end")
    assert [reason for _, reason in connections.closed] == [
        "closed by an administrator",
        "closed by an administrator: two\\nlines\\x1b[2J end",
    ]
    response = await http_client.request("DELETE", f"/connections/1?reason={'x' * 201}")
    assert (response.status, response.code) == (400, "bad-parameter")


@in_event_loop
async def test_client_texts_are_escaped(api_fixture: ApiFixture) -> None:
    """JSON cannot contain an unpaired surrogate, which Java allows."""
    set_connections(api_fixture, connection_with(1, client_id="a\ud800<b>", user="\x00"))
    response = await api_fixture.http_client().request("GET", "/connections")
    [item] = response.json()["items"]
    assert (item["client_id"], item["user"]) == ("a\\ud800<b>", "\\x00")


# --- users ----------------------------------------------------------------------------------------


def test_connections_name_their_user(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("correct horse\n")

    def command(*arguments: str) -> None:
        assert main([*arguments, "--data-dir", str(tmp_path / "broker")]) == 0

    command("users", "add", "root", "--superuser", "--password-file", "secret")
    command("users", "add", "anna", "--password-file", "secret")
    command("permissions", "grant", "anna", "*", "consume", "produce")
    broker = start(HTTP, f"{PHPMQ}?user=anna", VIBEMQ, JMQ)
    with (
        ExitStack() as stack,
        Client(broker.port("http"), Authorization=basic_auth("root", "correct horse")) as root,
    ):
        peer = stack.enter_context(BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")))
        peer.send("q", b"x")
        port = broker.port("vibemq")
        vibe = connect_blocking(f"vibemq://anna:correct%20horse@127.0.0.1:{port}")
        stack.enter_context(vibe)
        url = f"jmq://anna:correct%20horse@127.0.0.1:{broker.port('jmq')}"
        stack.enter_context(BlockingClient(JmqClient.open, url, reconnect=None))
        users = {item["protocol"]: item["user"] for item in list_connections(root)}
        assert users == {"http": "root", "phpmq": "anna", "vibemq": "anna", "jmq": "anna"}
        header = basic_auth("anna", "correct horse")
        with Client(broker.port("http"), Authorization=header) as anna:
            protocols = sorted(item["protocol"] for item in list_connections(anna))
            assert protocols == ["http", "jmq", "phpmq", "vibemq"]
            for item in list_connections(root, "filter=anna"):
                assert item["user"] == "anna"
