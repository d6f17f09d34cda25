"""`send` succeeds only if the broker has accepted every message, whichever server uses the port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.cli.main import main
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.wire import PROBE
from tests.cli.conftest import Run, RunningBroker
from tests.server.authority import Authority

PROTOCOLS = ("phpmq", "msglite", "vibemq", "jmq")
PORTS = (*PROTOCOLS, "phpmq-maintenance", "http", "phpmq+tls", "msglite+tls", "http+tls")
OPTIONS = ("--connect-timeout", "1")


@pytest.fixture(scope="module")
def broker_with_all_ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Start a broker with a listener for each of PORTS."""
    authority = Authority(tmp_path_factory.mktemp("pki"))
    pem = authority.pem(authority.issue("localhost"))
    listeners = [f"{name}://127.0.0.1:0{'?certificate=' * ('tls' in name)}" for name in PORTS]
    listeners = [url + (str(pem) if url.endswith("=") else "") for url in listeners]
    with LocalBroker(tmp_path_factory.mktemp("ports"), listeners) as broker:
        yield broker


def accept_connections(serve: Callable[[socket.socket], None], listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                serve(connection)


@contextmanager
def foreign_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server that is not a broker; `serve` handles one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept_connections, args=(serve, listener), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        assert not thread.is_alive()


def read_all(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def send_banner(connection: socket.socket) -> None:
    connection.sendall(b"220 mail.example ESMTP\r\n")
    read_all(connection)


def echo(connection: socket.socket) -> None:
    while data := connection.recv(65_536):
        connection.sendall(data)


def read_once(connection: socket.socket) -> None:
    connection.recv(65_536)


def close_at_once(connection: socket.socket) -> None:
    del connection


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("port", PORTS)
def test_send_to_a_port_of_another_protocol_fails(
    run: Run, broker_with_all_ports: LocalBroker, protocol: str, port: str
) -> None:
    url = f"{protocol}://127.0.0.1:{broker_with_all_ports.port(port)}/orders"
    result = run("send", url, "lost", *(() if protocol == port else OPTIONS))
    if protocol == port:
        assert (result.code, result.err) == (0, "")
        assert run("receive", url).out == "lost\n"
    else:
        assert result.code == 1
        assert result.err.startswith("error: ")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("port", ["phpmq+tls", "msglite+tls", "http+tls"])
def test_send_to_another_protocol_under_tls_fails(
    run: Run, broker_with_all_ports: LocalBroker, protocol: str, port: str
) -> None:
    url = f"{protocol}+tls://127.0.0.1:{broker_with_all_ports.port(port)}/orders?insecure=true"
    is_same = port == f"{protocol}+tls"
    result = run("send", url, "lost", *(() if is_same else OPTIONS))
    assert result.code == (0 if is_same else 1)
    assert bool(result.err) == bool(result.code)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("serve", [send_banner, echo, read_once, close_at_once])
def test_send_to_a_foreign_server_fails(
    run: Run, protocol: str, serve: Callable[[socket.socket], None]
) -> None:
    with foreign_server(serve) as port:
        result = run("send", f"{protocol}://127.0.0.1:{port}/orders", "lost", *OPTIONS)
    assert result.code == 1
    assert result.err.startswith("error: ")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rejected_message_is_an_error(run: Run, broker: RunningBroker, protocol: str) -> None:
    queue = f"full.{protocol}"
    run("queues", "create", queue, "max_messages=1", *broker.location)
    url = f"{getattr(broker, protocol)}?queue={queue}"
    assert run("send", url, "fits").code == 0
    result = run("send", url, "refused")
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert run("receive", url, "-n0", "-t0").out == "fits\n"


def test_log_states_why_a_phpmq_connection_was_closed(
    run: Run, run_as_owner: Run, broker: RunningBroker
) -> None:
    assert run_as_owner("queues", "create", "small", "max_messages=1").code == 0
    result = run("send", f"{broker.phpmq}?queue=small", "fits", "refused")
    assert result.code == 1
    assert "The broker's log may state the reason." in result.err
    assert "Is the broker running" not in result.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_missing_confirmation_is_explained(
    run: Run, run_as_owner: Run, broker: RunningBroker, protocol: str
) -> None:
    queue = f"blocking-{protocol}"
    assert (
        run_as_owner("queues", "create", queue, "max_messages=1", "overflow=block-publisher").code
        == 0
    )
    url = f"{getattr(broker, protocol)}?queue={queue}"
    result = run("send", url, "1", "2", "--connect-timeout", "0.2")
    assert result.code == 1
    assert "The queue may be full, the broker's disk nearly full, or the port that" in result.err
    assert "unknown which messages" in result.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_confirmation_creates_no_destination(
    run: Run, broker: RunningBroker, protocol: str
) -> None:
    url = f"{getattr(broker, protocol)}?queue=only.{protocol}"
    assert run("send", url, "x").code == 0
    names = [queue["name"] for queue in json.loads(run("queues", "--json", *broker.location).out)]
    assert [name for name in names if "probe" in name] == []


def test_messages_over_tls_arrive_once(run: Run, broker_with_all_ports: LocalBroker) -> None:
    url = f"phpmq+tls://127.0.0.1:{broker_with_all_ports.port('phpmq+tls')}/confirmed?insecure=true"
    assert run("send", url, "x", "y").code == 0
    assert run("receive", url, "-n0", "-t0").out == "x\ny\n"


def test_msglite_confirmation_waits_for_a_late_response() -> None:
    """The original broker responds to a ready with timeout 0 after up to one second."""

    def serve(connection: socket.socket) -> None:
        received = b""
        while b"< 0 sluicemq.probe." not in received:
            received += connection.recv(1000)
        assert received.startswith(b"> 1 9 orders\r\nx\r\n< 0 ")
        threading.Event().wait(0.3)
        connection.sendall(b"*\r\n")
        read_all(connection)

    with foreign_server(serve) as port, BlockingClient(MsgliteClient.connect, port=port) as client:
        client.send("orders", b"x", 9)
        client.confirm()


def test_phpmq_broker_without_probes_confirms_by_a_message() -> None:
    """Such a broker stores the probe like other messages and dispatches in three packets."""
    stored: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        decoder = wire.Decoder()
        while data := connection.recv(65_536):
            for kind, queue, body, message_id, _ in decoder.feed(data):
                if kind == wire.SEND:
                    stored.append(queue)
                    if queue.startswith(PROBE):
                        chunks: list[bytes] = []
                        wire.DispatchEncoder(queue).add(chunks, body, b"0" * 32, -1)
                        connection.sendall(b"".join(chunks))
                elif kind == wire.ACKNOWLEDGE and message_id == b"0" * 32:
                    stored.remove(queue)

    with (
        foreign_server(serve) as port,
        BlockingClient(PhpmqClient.connect, port=port, dispatch_version=1) as client,
    ):
        client.send("orders", b"x")
        client.confirm()
    assert stored == [b"orders"]


@pytest.mark.parametrize(("protocol", "error"), [("msglite", "may not produce"), ("phpmq", "clos")])
def test_users_who_may_only_send_get_a_confirmation(
    run: Run, sender_listeners: dict[str, str], protocol: str, error: str
) -> None:
    url = sender_listeners[protocol]
    result = run("send", f"{url}?queue=orders", "x")
    assert (result.code, result.err) == (0, "")
    result = run("send", f"{url}?queue=secret", "x")
    assert result.code == 1
    assert error in result.err


@pytest.fixture(scope="module")
def sender_listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start listeners whose clients may only send to `orders`; yield their URLs."""
    directory = tmp_path_factory.mktemp("sender")
    secret = directory / "secret"
    secret.write_text("correct horse battery\n")
    options = ["--data-dir", str(directory)]
    urls = {name: f"{name}+unix://{directory}/{name}.sock" for name in ("phpmq", "msglite")}
    assert main(["users", "add", "shop", "--password-file", str(secret), *options]) == 0
    with LocalBroker(directory, [f"{url}?user=shop" for url in urls.values()]):
        assert main(["permissions", "grant", "shop", "orders", "produce", *options]) == 0
        yield urls
