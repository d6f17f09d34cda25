"""Clients that begin large requests and do not complete them: memory stays bounded and is freed,
and complete uploads succeed meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.phpmq.wire import encode_send
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from tests.faults.plan import size
from tests.support.polling import wait_until

MIB: Final = 1 << 20
HALF_FRAMES: Final = size(300, 4000)
CONNECTIONS: Final = 50
MAX_GROWTH: Final = 64 * MIB
"""Maximum growth of the resident memory; without a limit the short form needs twice that."""
UPLOAD: Final = size(8 * MIB, 64 * MIB)
BUDGET: Final = size(8, 256)
"""MiB."""
UNFINISHED: Final = size(5 * MIB, 40 * MIB)
ATTACKERS: Final = size(2, 6)
PROTOCOLS: Final = size(1, 3)
TIMEOUT_SECONDS: Final = 120.0
CONNECT: Final = wire.encode(Frame(wire.CONNECT, "c"))
PUBLISH: Final = wire.encode(Frame(wire.PUBLISH, "p", "q", b'"%b"' % (b"x" * 1_000_000)))


def connect(broker: LocalBroker, protocol: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", broker.port(protocol)), TIMEOUT_SECONDS)


def resident(broker: LocalBroker) -> int:
    memory: int = broker.status()["resident_memory_bytes"]
    return memory


def has_no_buffered_input(broker: LocalBroker) -> bool:
    buffers = broker.status()["input"]
    return buffers["buffered_bytes"] == buffers["connections"] == buffers["paused"] == 0


@pytest.mark.parametrize("logged_in", [True, False])
def test_half_frames_of_closed_connections_are_freed(tmp_path: Path, logged_in: bool) -> None:
    half_frame = PUBLISH[: len(PUBLISH) // 2]
    with LocalBroker(tmp_path, ["vibemq://127.0.0.1:0"]) as broker:
        before = resident(broker)
        for _ in range(HALF_FRAMES // CONNECTIONS):
            with ExitStack() as stack:
                for _ in range(CONNECTIONS):
                    client = stack.enter_context(connect(broker, "vibemq"))
                    if logged_in:
                        client.sendall(CONNECT)
                        assert client.recv(1 << 16)
                    with suppress(ConnectionError):
                        client.sendall(half_frame)
        wait_until(lambda: has_no_buffered_input(broker), seconds=TIMEOUT_SECONDS)
        assert resident(broker) - before < MAX_GROWTH


def upload(protocol: str, length: int) -> bytes:
    body = bytes(length)
    if protocol == "phpmq":
        return encode_send(b"uploads", body)
    if protocol == "msglite":
        return b"> %d 999 uploads\r\n%b\r\n" % (length, body)
    return b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (length, body)


@pytest.mark.parametrize("protocol", ["phpmq", "msglite", "msglite-http"][:PROTOCOLS])
def test_uploads_succeed_during_unfinished_uploads(tmp_path: Path, protocol: str) -> None:
    """Four clients whose uploads exceed the budget together are served after the broker has closed
    the connections with unfinished bodies."""
    environment = {
        "SLUICEMQ_BROKER__INPUT_MEMORY_LIMIT": f"{BUDGET}MiB",
        # longer than a busy machine delays a complete upload
        "SLUICEMQ_BROKER__INPUT_STALL_TIMEOUT": "3",
    }
    urls = [f"{protocol}://127.0.0.1:0", "phpmq+unix://" + str(tmp_path / "socket")]
    with (
        LocalBroker(tmp_path / "broker", urls, environment=environment) as broker,
        ExitStack() as stack,
    ):
        before = resident(broker)
        unfinished_upload = upload(protocol, UNFINISHED + MIB)[:-MIB]
        complete = upload(protocol, UPLOAD)
        attackers = [stack.enter_context(connect(broker, protocol)) for _ in range(ATTACKERS)]
        complete_clients = [stack.enter_context(connect(broker, protocol)) for _ in range(4)]
        errors: list[BaseException] = []

        def send(client: socket.socket, data: bytes, must_succeed: bool) -> None:
            try:
                client.sendall(data)
            except OSError as error:
                if must_succeed:
                    errors.append(error)

        threads = [
            *(
                threading.Thread(target=send, args=(attacker, unfinished_upload, False))
                for attacker in attackers
            ),
            *(
                threading.Thread(target=send, args=(client, complete, True))
                for client in complete_clients
            ),
        ]
        peak = before
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads[len(attackers) :]):
            peak = max(peak, resident(broker))
            time.sleep(0.1)
        assert not errors
        if protocol == "msglite-http":
            wait_until(
                lambda: broker.status()["protocols"][protocol]["published"] == 8,
                seconds=TIMEOUT_SECONDS,
            )
        else:
            client = stack.enter_context(
                BlockingClient(PhpmqClient.connect, path=str(tmp_path / "socket"))
            )
            client.subscribe("uploads", 4)
            assert [len(client.receive(TIMEOUT_SECONDS).body) for _ in complete_clients] == [
                UPLOAD
            ] * 4
        wait_until(lambda: has_no_buffered_input(broker), seconds=TIMEOUT_SECONDS)
        # a complete body is copied twice, and all four may be messages already
        assert peak - before < BUDGET * MIB + 3 * UPLOAD + 4 * UPLOAD + MAX_GROWTH
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
