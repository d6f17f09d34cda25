"""Listeners on TCP and Unix sockets, and detection of the protocol."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import AddressUnavailable, ConnectionLost
from sluicemq.model.url import Url
from sluicemq.protocols.phpmq.wire import FROM_SERVER, Decoder, encode_consume, encode_send
from sluicemq.server.admission import Admission
from sluicemq.server.listener import OpenListener, bind
from sluicemq.server.listener_settings import Listener
from sluicemq.server.session_factories import detect_protocol
from tests.server.conftest import Start


@pytest.mark.parametrize(
    ("first", "protocol"),
    [
        (b"", None),
        (b"H", None),
        (b"H0100102", "phpmq"),
        (b"HE", None),
        (b"HEAD", None),
        (b"HEAD / HTTP/1.0", "http"),
        (b"HELLO", "msglite"),
        (b"G", None),
        (b"GET / HTTP/1.0", "http"),
        (b"GETS", "msglite"),
        (b"POST /", "http"),
        (b"DELETE /", "http"),
        (b"hello\r\n", "msglite"),
        (b"x", None),
        (b"x\n", "msglite"),
        (b"x\0", ""),
        (b"\x16\x03", ""),
        (b"> 5 1 a\r\n", "msglite"),
        (b"< 1 a\r\n", "msglite"),
        (b"? 0 1 a\r\n", "msglite"),
        (b".\r\n", "msglite"),
        (b"\r\n< 1 a\r\n", "msglite"),
        (b"\x1b\xff\xe3\xc2", "jmq"),
        (b"101\n", "jmq-portmapper"),
        (b"\x00\x00\x00\x50\x00", "vibemq"),
        (b"\xff", ""),
        (b"0", ""),
    ],
)
def test_protocol_detection_by_first_bytes(first: bytes, protocol: str | None) -> None:
    assert detect_protocol(first) == protocol


def test_default_phpmq_listener_serves_clients_without_ttl(start: Start) -> None:
    with (
        socket.create_connection(
            ("127.0.0.1", start("phpmq://127.0.0.1:0").port("phpmq")), 30
        ) as c,
        c.makefile("rb") as answers,
    ):
        c.sendall(encode_consume(b"q", 1) + encode_send(b"q", b"body", dispatch_version=1))
        header = answers.read(8)
        assert header == b"H0100303"
        [frame] = Decoder(kinds=FROM_SERVER).feed(header + answers.read(3 * 32 + 1 + 4 + 32))
        assert frame[2] == b"body"


@pytest.fixture(scope="module")
def auto_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with LocalBroker(tmp_path_factory.mktemp("broker"), ["auto://127.0.0.1:0"]) as broker:
        yield broker.port("auto")


def test_auto_listener_serves_several_protocols(auto_port: int) -> None:
    with BlockingClient(MsgliteClient.connect, port=auto_port) as sender:
        sender.send("several", b"hello", timeout=60)
        with BlockingClient(PhpmqClient.connect, port=auto_port) as consumer:
            consumer.subscribe("several", 1)
            message = consumer.receive(30)
            assert message.body == b"hello"
            message.ack()


def test_auto_listener_closes_unknown_binary_protocols(auto_port: int) -> None:
    for first in (b"\x1b\xff\xe3\xc2" + bytes(68), b"\xff" * 100, b"H01abc02"):
        with socket.create_connection(("127.0.0.1", auto_port), timeout=30) as client:
            client.sendall(first)
            assert client.recv(100) == b""


def test_auto_listener_rejects_unknown_text_with_error_line(auto_port: int) -> None:
    for first, quoted in (
        (b"hello\r\n", b"hello"),
        (b"EHLO example.org\r\n", b"EHLO"),
        (b"AMQP\0\0\x09\x01", b"AMQP\\x00\\x00"),  # without the end of a line
    ):
        with socket.create_connection(("127.0.0.1", auto_port), timeout=30) as client:
            client.sendall(first)
            assert client.makefile("rb").read() == b"- unknown command '%b'\r\n" % quoted


def test_auto_listener_serves_http(auto_port: int) -> None:
    with socket.create_connection(("127.0.0.1", auto_port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n":
            client.sendall(bytes([byte]))
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"version"' in answer


def test_single_bytes_are_detected(auto_port: int) -> None:
    with socket.create_connection(("127.0.0.1", auto_port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"> 1 9 a\r\nx\r\n< 1 a\r\n":
            client.sendall(bytes([byte]))
        assert client.recv(100) == b"> 1 9 a\r\nx\r\n"


def bind_name(*hosts: str) -> list[str]:
    """Bind a listener to a host name that resolves to `hosts`; return the bound addresses."""

    async def resolve(*_: object, **__: object) -> list[object]:
        families = (socket.AF_INET6 if ":" in host else socket.AF_INET for host in hosts)
        return [
            (family, socket.SOCK_STREAM, 6, "", (host, 0, 0, 0)[: 4 if ":" in host else 2])
            for family, host in zip(families, hosts, strict=True)
        ]

    async def bind_resolved() -> list[socket.socket]:
        loop: Any = asyncio.get_running_loop()
        loop.getaddrinfo = resolve
        return await bind(Listener(url=Url.parse("phpmq://name:0")))

    sockets = asyncio.run(bind_resolved())
    addresses = [listener.getsockname()[0] for listener in sockets]
    for listener in sockets:
        listener.close()
    return addresses


def test_unavailable_ipv6_address_of_name_is_skipped() -> None:
    address = "2001:db8::1"  # for documentation: no machine has it
    assert bind_name(address, "127.0.0.1") == ["127.0.0.1"]
    for hosts in ((address,), ("192.0.2.1", "127.0.0.1")):
        with pytest.raises(AddressUnavailable, match=r"Cannot assign requested address\Z"):
            bind_name(*hosts)


def test_unix_socket_has_mode_and_is_removed_at_shutdown(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    # a socket file that a killed broker has left behind must not stop the next one
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    broker = start(f"phpmq+unix://{path}?socket_mode=0600")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with BlockingClient(PhpmqClient.connect, path=str(path)) as client:
        client.send("a", b"x")
        client.subscribe("a", 1)
        assert client.receive(30).body == b"x"
    assert broker.stop() == 0
    assert not path.exists()


def test_backlog_accepts_many_clients_while_broker_is_busy(tmp_path: Path) -> None:
    async def connect_at_once() -> None:
        options = Listener(url=Url.parse(f"phpmq+unix://{tmp_path}/p.sock"))
        batch: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        unused: Any = None
        listener = OpenListener(Admission(options, unused, batch, unused))
        await listener.open()
        with ExitStack() as stack:
            clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(500)]
            for client in clients:
                client.setblocking(False)
            failures = sum(client.connect_ex(options.url.path) != 0 for client in clients)
            await listener.stop_accepting()
        assert failures == 0

    uvloop.run(connect_at_once())


def test_used_sockets_and_other_files_are_not_replaced(start: Start, tmp_path: Path) -> None:
    used, file = tmp_path / "used.sock", tmp_path / "notes.txt"
    file.write_text("mine")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(used))
        other.listen()
        for path in (used, file):
            broker = LocalBroker(tmp_path / "second", [f"phpmq+unix://{path}"])
            with pytest.raises(ConnectionLost, match="error: "):
                broker.start()
    assert file.read_text() == "mine"
    assert used.exists()


def test_listeners_of_both_ip_versions_share_a_port(start: Start) -> None:
    with socket.socket(socket.AF_INET6) as ipv6:
        try:
            ipv6.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = ipv6.getsockname()[1]
    start(f"phpmq://0.0.0.0:{port}", f"phpmq://[::]:{port}", options=("--insecure-public",))
    for host in ("127.0.0.1", "::1"):
        with BlockingClient(PhpmqClient.connect, host, port) as client:
            client.send("a", host.encode())
            client.confirm()
