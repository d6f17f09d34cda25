"""Unfinished input, slow logins and too many connections, over real sockets."""

from __future__ import annotations

import re
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from typing import Any, Final
from unittest.mock import Mock

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import TooManyConnections
from sluicemq.model.url import Url
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.phpmq.wire import encode_send
from sluicemq.protocols.vibemq import wire as vibemq
from sluicemq.protocols.vibemq.wire import Decoder, Frame
from sluicemq.server.admission import Admission
from sluicemq.server.input_budget import InputBudget
from sluicemq.server.listener_settings import Listener
from tests.server.conftest import Start
from tests.support.polling import wait_until

MIB: Final = 1 << 20
TIMEOUT_SECONDS: Final = 30.0
HELLO: Final = encode_packet(PacketType.HELLO, packets.A, 1, {"JMQProtocolLevel": 500})
CONNECT: Final = vibemq.encode(Frame(vibemq.CONNECT, "c"))
PUBLISH: Final = vibemq.encode(Frame(vibemq.PUBLISH, "p", "q", b'"%b"' % bytes(900_000)))


def connect(broker: LocalBroker, protocol: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", broker.port(protocol)), TIMEOUT_SECONDS)
    return connection


def read_to_end(connection: socket.socket) -> bytes:
    """Return everything received until the broker closes the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def input_counters(broker: LocalBroker) -> dict[str, int]:
    counters: dict[str, int] = broker.status()["input"]
    return counters


def published_count(broker: LocalBroker, protocol: str) -> int:
    """Return the number of messages published by a protocol; 0 if it was not used."""
    counts: dict[str, int] = broker.status()["protocols"].get(protocol, {})
    return counts.get("published", 0)


def close_reasons(broker: LocalBroker) -> dict[str, int]:
    """Return the connections closed by limits and deadlines, by reason, over all listeners."""
    counts: dict[str, int] = {}
    for listener in broker.status()["listeners"]:
        for reason, count in listener["closed"].items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def decode_frames(data: bytes) -> list[Frame]:
    return Decoder().feed(data)


# --- deadlines ------------------------------------------------------------------------------------


def test_pings_do_not_extend_login_timeout(start: Start) -> None:
    options = "?login_timeout=1"
    broker = start(
        f"vibemq://127.0.0.1:0{options}",
        f"jmq://127.0.0.1:0{options}",
        f"auto://127.0.0.1:0{options}",
        f"phpmq://127.0.0.1:0{options}",
    )
    ping = vibemq.encode(Frame(vibemq.PING, "x"))
    with ExitStack() as stack:
        by_protocol = {
            name: stack.enter_context(connect(broker, name))
            for name in ("vibemq", "jmq", "auto", "phpmq")
        }
        by_protocol["vibemq"].sendall(ping)  # while there is time before the login is due
        idle = stack.enter_context(connect(broker, "auto"))
        by_protocol["jmq"].sendall(HELLO)
        received = {"vibemq": b"", "auto": b""}
        for name in received:
            connection = by_protocol[name]
            connection.settimeout(0.2)
            end = time.monotonic() + TIMEOUT_SECONDS
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    data = connection.recv(1 << 16)
                    if not data:
                        break
                    received[name] += data
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(ping)
            *pongs, goodbye = decode_frames(received[name])
            assert pongs
            assert all(frame.type == vibemq.PONG for frame in pongs)
            assert goodbye.type == vibemq.DISCONNECT
            assert goodbye.headers["reason"] == "no login within 1 s"
        assert b"no login within 1 s" in read_to_end(by_protocol["jmq"])
        assert close_reasons(broker) == {"login-timeout": 3}
        # protocols without logins have no such deadline, nor have clients whose protocol is unknown
        for other in (by_protocol["phpmq"], idle):
            other.sendall(encode_send(b"patient", b"x"))
        wait_until(lambda: published_count(broker, "phpmq") == 2)


UNFINISHED: Final = {
    "phpmq": (encode_send(b"q", bytes(100_000))[:-1], None),
    "phpmq-maintenance": (b"flu", b"without progress for 1 s"),
    "msglite": (
        b"> 100000 9 q\r\nxxx",
        b"- an unfinished frame without progress for 1 s\r\n",
    ),
    "msglite-http": (
        b"POST / HTTP/1.0\r\nContent-Length: 99999\r\n\r\nxxx",
        b"without progress for 1 s",
    ),
    "vibemq": (CONNECT + PUBLISH[:3], b"without progress for 1 s"),
    "jmq": (HELLO + HELLO[:-1], b"without progress for 1 s"),
    "http": (b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\n", b""),
    "auto": (b"H", b""),
}


def test_frame_timeout_closes_unfinished_frame(start: Start) -> None:
    broker = start(*(f"{name}://127.0.0.1:0?frame_timeout=1" for name in UNFINISHED))
    with ExitStack() as stack:
        connections = {}
        for name, (data, _) in UNFINISHED.items():
            connections[name] = stack.enter_context(connect(broker, name))
            connections[name].sendall(data)
        for name, (_, answer) in UNFINISHED.items():
            output = read_to_end(connections[name])
            assert (answer or b"") in output, name
            assert answer is not None or not output
    assert close_reasons(broker) == {"frame-timeout": len(UNFINISHED)}
    wait_until(lambda: not input_counters(broker)["connections"])
    assert input_counters(broker)["buffered_bytes"] == 0


# --- before the login -----------------------------------------------------------------------------


def test_large_input_before_login_is_rejected(start: Start) -> None:
    broker = start(
        "vibemq://127.0.0.1:0", "jmq://127.0.0.1:0", "msglite://127.0.0.1:0?max_header_bytes=1MiB"
    )
    with connect(broker, "vibemq") as client:
        client.sendall(PUBLISH[:100_000])  # its header has the size
        [error] = decode_frames(read_to_end(client))
        assert (error.type, error.error_code) == (vibemq.ERROR, "INVALID_MESSAGE")
        assert "65536" in error.error_message
    with connect(broker, "msglite") as client:
        client.sendall(b"> " + b"9" * 100_000)
        assert b"65536 bytes of unfinished input before the login" in read_to_end(client)
    with connect(broker, "jmq") as client:
        client.sendall(
            HELLO + encode_packet(PacketType.AUTHENTICATE, packets.A, 2, body=bytes(MIB))
        )
        # it is skipped, and the connection goes on
        client.sendall(encode_packet(PacketType.GOODBYE, packets.A, 3))
        assert b"before the login" in read_to_end(client)
    assert close_reasons(broker) == {"login-bytes": 1}
    wait_until(lambda: input_counters(broker)["buffered_bytes"] == 0)


# --- the budget -----------------------------------------------------------------------------------


def start_with_small_budget(start: Start, *urls: str, stall_timeout: float = 30.0) -> LocalBroker:
    environment = {
        "SLUICEMQ_BROKER__INPUT_MEMORY_LIMIT": "1MiB",
        "SLUICEMQ_BROKER__INPUT_STALL_TIMEOUT": str(stall_timeout),
    }
    return start(*urls, environment=environment)


def test_http_request_body_counts_until_response(start: Start) -> None:
    broker = start("http://127.0.0.1:0")
    body = b'{"body": "%b"}' % (b"x" * 60_000)
    head = (
        b"POST /api/v1/destinations/queue/q/messages HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    with connect(broker, "http") as client:
        client.sendall(head + body[:50_000])
        wait_until(lambda: input_counters(broker)["buffered_bytes"] >= 50_000)
        client.sendall(body[50_000:])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 20")
        wait_until(lambda: input_counters(broker)["connections"] == 0)


def upload(protocol: str, body: bytes) -> bytes:
    if protocol == "phpmq":
        return encode_send(b"uploads", body)
    if protocol == "msglite":
        return b"> %d 999 uploads\r\n%b\r\n" % (len(body), body)
    return b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("protocol", ["phpmq", "msglite", "msglite-http"])
def test_complete_uploads_over_budget_succeed(start: Start, protocol: str) -> None:
    """Four uploads of four times the budget each are in progress at the same time."""
    broker = start_with_small_budget(start, f"{protocol}://127.0.0.1:0", "phpmq://127.0.0.1:0")
    bodies = [bytes([65 + number]) * (4 * MIB) for number in range(4)]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(broker, protocol)) for _ in bodies]
        senders = []
        for connection, body in zip(connections, bodies, strict=True):
            data = upload(protocol, body)
            connection.sendall(data[: MIB // 4])
            rest = data[MIB // 4 :]
            senders.append(threading.Thread(target=connection.sendall, args=(rest,)))
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        if protocol != "msglite-http":
            client = stack.enter_context(
                BlockingClient(PhpmqClient.connect, port=broker.port("phpmq"))
            )
            client.subscribe("uploads", 4)
            assert sorted(client.receive(TIMEOUT_SECONDS).body for _ in bodies) == bodies
        else:
            wait_until(lambda: published_count(broker, "msglite-http") == 8)
        wait_until(lambda: input_counters(broker)["buffered_bytes"] == 0)
        assert close_reasons(broker) == {}


def test_unfinished_bodies_do_not_exceed_budget(start: Start) -> None:
    """Attackers never complete their uploads; each is closed when it stalls as the reader."""
    broker = start_with_small_budget(
        start, "phpmq://127.0.0.1:0", "msglite://127.0.0.1:0", stall_timeout=2.0
    )
    with ExitStack() as stack:
        attackers = [
            stack.enter_context(connect(broker, ("phpmq", "msglite")[number % 2]))
            for number in range(3)
        ]
        for number, attacker in enumerate(attackers):
            data = upload(("phpmq", "msglite")[number % 2], bytes(16 * MIB))[:-1]
            attacker.setblocking(False)
            with suppress(BlockingIOError):
                attacker.send(data)  # as much as the broker's kernel takes
        wait_until(lambda: input_counters(broker)["paused"] > 0)
        assert input_counters(broker)["buffered_bytes"] <= 16 * MIB + 2 * MIB
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
            # complete messages are not delayed
            client.send("small", b"x" * 1000)
            client.subscribe("small", 1)
            client.receive(TIMEOUT_SECONDS).ack()
        wait_until(lambda: input_counters(broker)["buffered_bytes"] <= MIB)
        assert close_reasons(broker)["input-stalled"] >= 1


def test_memory_of_unfinished_frames_is_released(start: Start) -> None:
    broker = start("vibemq://127.0.0.1:0")
    with ExitStack() as stack:
        for _ in range(100):
            client = stack.enter_context(connect(broker, "vibemq"))
            client.sendall(CONNECT)
            assert client.recv(1 << 16)
            client.sendall(PUBLISH[:200_000])
        wait_until(lambda: input_counters(broker)["connections"] == 100)
        wait_until(lambda: input_counters(broker)["buffered_bytes"] >= 100 * 150_000)
    wait_until(lambda: not broker.status()["listeners"][0]["connections"])
    expected = {"buffered_bytes": 0, "limit_bytes": 256 * MIB, "connections": 0, "paused": 0}
    wait_until(lambda: input_counters(broker) == expected)


def test_metrics_report_unfinished_input(start: Start) -> None:
    broker = start("phpmq://127.0.0.1:0", "http://127.0.0.1:0")
    with connect(broker, "phpmq") as client:
        client.sendall(encode_send(b"q", bytes(10_000))[:-1])
        wait_until(lambda: input_counters(broker)["buffered_bytes"] > 10_000)
        url = f"http://127.0.0.1:{broker.port('http')}/metrics"
        with urllib.request.urlopen(url) as answer:
            page = answer.read().decode()
    assert re.search(r"^sluicemq_input_buffered_bytes 10\d\d\d$", page, re.MULTILINE)
    assert "sluicemq_input_limit_bytes 268435456" in page
    assert "sluicemq_input_connections_paused 0" in page


# --- connections ----------------------------------------------------------------------------------


def test_connections_per_address_are_limited(start: Start) -> None:
    broker = start("phpmq://127.0.0.1:0?max_connections_per_address=2")
    with connect(broker, "phpmq"), connect(broker, "phpmq") as second:
        wait_until(lambda: broker.status()["listeners"][0]["connections"] == 2)
        with connect(broker, "phpmq") as third:
            assert read_to_end(third) == b""
        other_client = socket.socket()
        with other_client:
            other_client.bind(("127.0.0.2", 0))
            other_client.connect(("127.0.0.1", broker.port("phpmq")))
            wait_until(lambda: broker.status()["listeners"][0]["connections"] == 3)
        second.close()
        wait_until(lambda: broker.status()["listeners"][0]["connections"] == 1)
        with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
            client.send("a", b"x")
            client.subscribe("a", 1)
            assert client.receive(TIMEOUT_SECONDS).body == b"x"
    assert broker.status()["listeners"][0]["refused"] == 1


def test_handshakes_leave_descriptors_for_files() -> None:
    unused: Any = None
    listener: Admission[Any] = Admission(
        Listener(url=Url.parse("vibemq+tls://")), unused, unused, unused, max_descriptors=10
    )
    assert listener.admit_handshake("127.0.0.1:1", 9, 0)
    assert not listener.admit_handshake("127.0.0.1:2", 10, 0)
    assert listener.refused == 1


def test_connections_per_user_are_limited() -> None:
    options = Listener(url=Url.parse("vibemq://"), max_connections_per_user=2)
    unused: Any = None
    listener: Admission[Any] = Admission(options, unused, unused, InputBudget(MIB, 30.0))
    first, second, third, fourth = (object() for _ in range(4))
    for connection in (first, second):
        listener.claim_user(connection, "anna")
        listener.claim_user(connection, "anna")  # a second login of the same user
    with pytest.raises(TooManyConnections, match="anna has 2 connections already"):
        listener.claim_user(third, "anna")
    listener.claim_user(fourth, "")
    listener.claim_user(third, "bert")
    listener.claim_user(first, "bert")  # logs in as another user
    listener.claim_user(third, "anna")
    with pytest.raises(TooManyConnections):
        listener.claim_user(fourth, "anna")
    assert listener.closed == {"user-limit": 2}
    peer = Mock(peer="127.0.0.1:1", received_bytes=0, sent_bytes=0)
    listener.claim_user(peer, "clara")
    listener.claim_user(object(), "clara")
    listener.connections.add(peer)
    listener.remove(peer)
    listener.claim_user(object(), "clara")


def test_login_is_not_compared_with_those_of_other_users() -> None:
    compared: list[str] = []

    class UserName(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            compared.append(self)
            return super().__eq__(other)

    options = Listener(url=Url.parse("vibemq://"), max_connections_per_user=2)
    unused: Any = None
    listener: Admission[Any] = Admission(options, unused, unused, InputBudget(MIB, 30.0))
    for number in range(100):
        listener.claim_user(object(), UserName(f"user {number}"))
    assert len(compared) < 1000
