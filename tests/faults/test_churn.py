"""A thousand short connections per second leak no resources and do not affect other clients."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.jmq import packets
from sluicemq.protocols.jmq.fields import encode_header
from sluicemq.protocols.jmq.packets import DestType, PacketType
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from tests.faults.load import TIMEOUT_SECONDS, Client, make_body, number_of
from tests.faults.plan import machine, seeded_random, size
from tests.protocols.jmq.raw import basic
from tests.support.polling import wait_until

RATE = 1000
"""Connections per second, if the machine can."""
WARM_UP = size(800, 10_000)
CONNECTIONS = size(2500, 60_000)
SCHEMES = ("phpmq", "phpmq-maintenance", "msglite", "msglite-http", "jmq", "auto")
REQUESTS = "msglite.httpRequests"
QUIET_SECONDS = 2.5
"""Time until no closed connection is pending (server.connection.LINGER_SECONDS)."""
RESET = struct.pack("ii", 1, 0)
OBJECT_TOLERANCE = 50
"""Normal variation of the number of objects of a class ..."""
BUILTIN_TOLERANCE = 2000
"""... and of builtin classes, which caches contain. Leaks exceed them in the long form."""
MAX_GROWTH = 12 << 20
"""Maximum growth of memory in bytes: less than 0.1 KB per connection in the long form, and more
than the variation of the allocator."""

HELLO = encode_packet(PacketType.HELLO, packets.A, 1, {"JMQProtocolLevel": 500}) + encode_packet(
    PacketType.AUTHENTICATE, packets.A, 2, {"JMQAuthType": "digest"}, body=basic("guest", "guest")
)
CHURN = {"JMQDestination": "churn", "JMQDestType": DestType.QUEUE}
SENT = packets.A | packets.P | packets.Q
HTTP = b"POST /%d HTTP/1.0\r\nContent-Length: 10\r\n\r\n"
INPUTS = {
    "phpmq": [
        encode_consume(b"churn", 5),
        encode_send(b"churn", b"body", 1),
        encode_consume(b"%d", 1),
    ],
    "phpmq-maintenance": [b"monitor\n", b"show churn\n", b"help\n", b"search *\n"],
    "msglite": [
        b"< 60 churn\r\n",
        b"> 4 1 churn\r\nbody\r\n",
        b"? 4 1 churn\r\nbody\r\n",
        b"< 9 a b\r\n",
    ],
    "jmq": [
        b"101\n",
        HELLO,
        HELLO
        + encode_packet(PacketType.START)
        + encode_packet(PacketType.ADD_CONSUMER, packets.A, 3, CHURN),
        HELLO
        + encode_packet(PacketType.START_TRANSACTION, packets.A, 3)
        + encode_packet(PacketType.TEXT_MESSAGE, SENT, 4, None, encode_header("churn")),
    ],
    "msglite-http": [HTTP % 1 + b"0123456789", b"GET / HTTP/1.0\r\n\r\n"],
}


class SteadyClient(Client):
    """A client that must not be affected. `exchanges` counts successful exchanges."""

    def __init__(self, done: threading.Event) -> None:
        self.exchanges = 0
        self._done = done
        super().__init__()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # a lost connection is a failure, too
            self.failure = failure


class PhpmqPair(SteadyClient):
    """A PHPMQ pair: each message is delivered once and in order."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._sender = BlockingClient(PhpmqClient.connect, port=port)
        self._receiver = BlockingClient(PhpmqClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._sender as sender, self._receiver as receiver:
            receiver.subscribe("steady", 10)
            while not self._done.is_set():
                for number in range(self.exchanges, self.exchanges + 5):
                    sender.send("steady", make_body(number, 100))
                for _ in range(5):
                    message = receiver.receive(60.0)
                    assert number_of(message.body) == self.exchanges
                    message.ack()
                    self.exchanges += 1
                time.sleep(0.01)


class MsgliteWorker(SteadyClient):
    """Worker that replies to the queries of `MsgliteRequester`."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._worker = BlockingClient(MsgliteClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._worker as worker:
            while not self._done.is_set():
                query = worker.ready("requests", timeout=1)
                if query is not None:
                    assert query.reply_to is not None
                    worker.send(query.reply_to, query.body, 10)
                    self.exchanges += 1


class MsgliteRequester(SteadyClient):
    """Client that sends the queries for `MsgliteWorker`."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._client = BlockingClient(MsgliteClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._client as requester:
            while not self._done.is_set():
                body = make_body(self.exchanges, 50)
                reply = requester.query("requests", body, timeout=60)
                assert reply is not None
                assert reply.body == body
                self.exchanges += 1
                time.sleep(0.01)


class GatewayWorker(MsgliteWorker):
    """Worker that replies to requests of the HTTP gateway.

    Without it the gateway would wait for clients that closed a half of the connection.
    """

    def work(self) -> None:
        with self._worker as worker:
            while not self._done.is_set():
                request = worker.ready(REQUESTS, timeout=1)
                if request is not None:
                    assert request.reply_to is not None
                    worker.send(request.reply_to, b'["200", []]', 10)
                    worker.send(request.reply_to, b"", 10)
                    self.exchanges += 1


class ShortConnections:
    """Short connections to all listeners, which end in random ways."""

    def __init__(self, broker: LocalBroker, path: Path, rng: random.Random) -> None:
        self._broker = broker
        self._addresses: list[tuple[str, str | tuple[str, int]]] = [
            (scheme, ("127.0.0.1", broker.port(scheme))) for scheme in SCHEMES
        ]
        self._addresses.append(("msglite", str(path)))
        self._rng = rng
        self._steady_connections = self._connections()

    def _connections(self) -> list[int]:
        """Return the number of connections of each listener."""
        return [listener["connections"] for listener in self._broker.status()["listeners"]]

    def _requests_are_answered(self) -> bool:
        """Return whether `GatewayWorker` has processed all requests of the HTTP gateway."""
        return not any(
            destination["ready"] or destination["unacked"]
            for destination in self._broker.status()["destinations"]
            if destination["name"] == REQUESTS
        )

    def open_and_close(self, count: int) -> None:
        """Open and close connections, at most RATE per second."""
        start = time.monotonic()
        for number in range(count):
            scheme, address = self._addresses[number % len(self._addresses)]
            self._open_and_close(scheme, address)
            delay = start + number / RATE - time.monotonic()
            if delay > 0.005:
                time.sleep(delay)

    def clear(self) -> None:
        """Purge the sent messages, and wait until all connections are closed."""
        port = self._broker.port("phpmq-maintenance")
        wait_until(lambda: self._connections() == self._steady_connections, seconds=TIMEOUT_SECONDS)
        wait_until(self._requests_are_answered, seconds=TIMEOUT_SECONDS)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            # expired messages are dead letters
            client.sendall(b"flush churn\nflush mq.sys.dmq\nquit\n")
            while client.recv(4096):
                pass
        time.sleep(QUIET_SECONDS)

    def _open_and_close(self, scheme: str, address: str | tuple[str, int]) -> None:
        rng = self._rng
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        inputs = INPUTS[rng.choice(("phpmq", "msglite", "jmq"))]
        data = rng.choice(INPUTS.get(scheme, inputs))
        with socket.socket(family) as client, suppress(BrokenPipeError, ConnectionResetError):
            client.settimeout(60)
            client.connect(address)
            ending = rng.randrange(6)
            if ending == 1:
                client.sendall(data[: rng.randrange(1, len(data))])
            elif ending > 1:
                client.sendall(data)
            if ending == 3:
                client.shutdown(socket.SHUT_WR)
            elif ending == 4 and family == socket.AF_INET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            elif ending == 5 and scheme != "msglite-http":
                client.settimeout(0.002)
                with suppress(TimeoutError):
                    client.recv(1000)


class ResourceCounts:
    """Resources of a broker, counted by the operating system and the garbage collector."""

    def __init__(self, broker: LocalBroker, counts: Path) -> None:
        counts.unlink(missing_ok=True)
        os.kill(broker.pid, signal.SIGUSR1)
        wait_until(counts.exists, seconds=TIMEOUT_SECONDS)
        self.objects: dict[str, int] = json.loads(counts.read_text())
        process = Path(f"/proc/{broker.pid}")
        self.descriptors = len(list((process / "fd").iterdir()))
        self.memory = int((process / "statm").read_text().split()[1]) * resource.getpagesize()
        status = broker.status()
        self.connections = [listener["connections"] for listener in status["listeners"]]
        self.consumers = {d["name"]: d["consumers"] for d in status["destinations"]}


def test_short_connections_leak_no_resources(tmp_path: Path) -> None:
    rng = seeded_random()
    path, counts = tmp_path / "msglite.socket", tmp_path / "objects"
    broker = LocalBroker(
        tmp_path,
        [f"msglite+unix://{path}", *(f"{scheme}://127.0.0.1:0" for scheme in SCHEMES)],
        ["--log-level", "warning"],
        environment={"SLUICEMQ_BROKER__DESTINATION_IDLE_TIMEOUT": "1s"},
        program=machine(f"objects:{counts}"),
    )
    with broker:
        done = threading.Event()
        clients = [
            PhpmqPair(broker.port("phpmq"), done),
            MsgliteWorker(broker.port("msglite"), done),
            MsgliteRequester(broker.port("msglite"), done),
            GatewayWorker(broker.port("msglite"), done),
        ]
        wait_until(lambda: all(client.exchanges for client in clients[:3]), seconds=TIMEOUT_SECONDS)
        short_connections = ShortConnections(broker, path, rng)
        short_connections.open_and_close(WARM_UP)
        short_connections.clear()
        before = ResourceCounts(broker, counts)
        short_connections.open_and_close(CONNECTIONS)
        short_connections.clear()
        after = ResourceCounts(broker, counts)
        done.set()
        for client in clients:
            client.finish()
            assert client.exchanges > 100
        growth = {
            kind: (before.objects.get(kind, 0), count)
            for kind, count in after.objects.items()
            if count - before.objects.get(kind, 0)
            > (BUILTIN_TOLERANCE if kind.startswith("builtins.") else OBJECT_TOLERANCE)
        }
        assert not growth, growth
        assert after.connections == before.connections
        assert after.consumers.get("churn", 0) == 0
        assert abs(after.descriptors - before.descriptors) <= 3
        assert after.memory < before.memory + MAX_GROWTH
        log = broker.log.read_text()
        assert "Traceback" not in log
        assert "internal error" not in log
