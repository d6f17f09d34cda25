"""Slow consumers, limits and floods do not affect other connections."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from tests.server.conftest import Start
from tests.support.polling import wait_until

PHPMQ = "phpmq://127.0.0.1:0"


def closed_by_peer(connection: socket.socket) -> bool:
    """Return whether the broker closes the connection within the socket's timeout."""
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_slow_consumer_does_not_block_others(start: Start) -> None:
    broker = start(f"{PHPMQ}?output_high_watermark=65536&output_timeout=0")
    port = broker.port("phpmq")
    with (
        BlockingClient(PhpmqClient.connect, port=port) as client,
        socket.create_connection(("127.0.0.1", port)) as slow_consumer,
    ):
        slow_consumer.sendall(encode_consume(b"shared", 1_000_000))
        # The slow consumer receives only what its buffers hold: the rest goes to the other.
        for _ in range(300):
            client.send("shared", bytes(65536))
        client.subscribe("shared", 10)
        received = 0
        end = time.monotonic() + 60
        while time.monotonic() < end and received < 100:
            client.receive(30).ack()
            received += 1
        assert received == 100
        # and its unacked messages are requeued when it disconnects
        slow_consumer.close()
        while received < 300:
            client.receive(30).ack()
            received += 1


def test_output_timeout_closes_client_that_does_not_read(start: Start) -> None:
    broker = start(f"{PHPMQ}?output_timeout=2")
    port = broker.port("phpmq")
    with (
        BlockingClient(PhpmqClient.connect, port=port) as client,
        socket.create_connection(("127.0.0.1", port)) as slow_consumer,
    ):
        for _ in range(200):
            client.send("a", bytes(65536))
        slow_consumer.sendall(encode_consume(b"a", 1_000_000))
        wait_until(
            lambda: broker.status()["listeners"][0]["connections"] == 1,
            "the slow connection is still open",
        )
        client.subscribe("a", 4)  # so few that this client, too, is not cut off when it is slow
        for _ in range(200):
            client.receive(30).ack()


def test_connections_over_limit_are_closed(start: Start) -> None:
    broker = start(f"{PHPMQ}?max_connections=2")
    port = broker.port("phpmq")
    with BlockingClient(PhpmqClient.connect, port=port) as first:
        first.send("a", b"x")
        with socket.create_connection(("127.0.0.1", port), timeout=30) as second:
            second.sendall(encode_send(b"a", b"y", 0))
            with socket.create_connection(("127.0.0.1", port), timeout=30) as third:
                assert closed_by_peer(third)
        first.subscribe("a", 2)
        assert {first.receive(30).body, first.receive(30).body} == {b"x", b"y"}


def test_connections_leave_descriptors_for_the_journal(tmp_path: Path) -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200));"
        "from sluicemq.cli.main import run; run()"
    )
    segments = {"SLUICEMQ_JOURNAL__SEGMENT_BYTES": "65536"}
    with (
        LocalBroker(
            tmp_path / "broker", [PHPMQ], environment=segments, program=("-c", program)
        ) as broker,
        ExitStack() as connections,
    ):
        port = broker.port("phpmq")
        client = connections.enter_context(BlockingClient(PhpmqClient.connect, port=port))
        for _ in range(200):
            last = connections.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        assert closed_by_peer(last)
        for _ in range(200):  # several segments
            client.send("a", bytes(1000))
        client.subscribe("a", 1)
        assert client.receive(30).body == bytes(1000)
        assert 100 < broker.status()["listeners"][0]["connections"] <= 150
    assert "descriptors=150" in broker.log.read_text()


def test_frame_over_limit_is_rejected_by_its_length(start: Start) -> None:
    broker = start(f"{PHPMQ}?max_frame_bytes=1000")
    port = broker.port("phpmq")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as big:
        big.sendall(b"H0100102P01%029daP02%029d" % (1, 10**28))
        assert closed_by_peer(big)
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send("a", bytes(1000))
        client.subscribe("a", 1)
        assert len(client.receive(30).body) == 1000


def test_idle_timeout_closes_connection(start: Start) -> None:
    broker = start(f"{PHPMQ}?idle_timeout=0.2")
    with socket.create_connection(("127.0.0.1", broker.port("phpmq")), timeout=30) as idle_client:
        assert closed_by_peer(idle_client)


@pytest.mark.parametrize("ending", ["close", "half-close", "reset"])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_end_of_connection_is_detected_while_reading_is_paused(
    start: Start, tmp_path: Path, family: socket.AddressFamily, ending: str
) -> None:
    path = tmp_path / "socket"
    unix = family == socket.AF_UNIX
    broker = start(f"msglite+unix://{path}" if unix else "msglite://127.0.0.1:0")
    with socket.socket(family) as client:
        client.connect(str(path) if unix else ("127.0.0.1", broker.port("msglite")))
        client.settimeout(30)
        # more than is held back behind a command that waits
        client.sendall(b"< 999999 unused\r\n" + b"> 9 0 unused\r\n123456789\r\n" * 12_000)
        if ending == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if ending == "half-close":
            client.shutdown(socket.SHUT_WR)
            assert closed_by_peer(client)
    wait_until(
        lambda: not broker.status()["listeners"][0]["connections"], "the connection is still open"
    )
