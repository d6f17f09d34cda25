"""Clients that come and go, a thousand a second, rudely: nothing of them stays, and two pairs of
well-behaved clients never notice."""

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
from tests.faults.load import SECONDS, Client, make_body, number_of
from tests.faults.plan import machine, repeatable, size
from tests.protocols.jmq.raw import basic
from tests.support.polling import wait_until

RATE = 1000
"""Connections per second, if the machine can."""
WARM_UP = size(800, 10_000)
CONNECTIONS = size(2500, 60_000)
SCHEMES = ("phpmq", "phpmq-maintenance", "msglite", "msglite-http", "jmq", "auto")
REQUESTS = "msglite.httpRequests"
QUIET_SECONDS = 2.5
"""After which nothing waits for a connection that has gone (server.connection.LINGER_SECONDS)."""
RESET = struct.pack("ii", 1, 0)
LEEWAY = 50
"""Objects of a class that may be there or not, whatever came and went ..."""
BUILTIN_LEEWAY = 2000
"""... and lists and the like, which are in caches too. A leak is more in the long form."""
GROWTH = 12 << 20
"""Bytes of memory: less than a tenth of a kilobyte for each connection would add up to in the long
form, and more than the allocator needs to settle down."""

HELLO = encode_packet(PacketType.HELLO, packets.A, 1, {"JMQProtocolLevel": 500}) + encode_packet(
    PacketType.AUTHENTICATE, packets.A, 2, {"JMQAuthType": "digest"}, body=basic("guest", "guest")
)
CHURN = {"JMQDestination": "churn", "JMQDestType": DestType.QUEUE}
SENT = packets.A | packets.P | packets.Q
HTTP = b"POST /%d HTTP/1.0\r\nContent-Length: 10\r\n\r\n"
WORDS = {
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


class Witness(Client):
    """A client that never notices. `seen` counts its successes."""

    def __init__(self, done: threading.Event) -> None:
        self.seen = 0
        self._done = done
        super().__init__()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # a connection that breaks is one, too
            self.failure = failure


class Dispatches(Witness):
    """A PHPMQ pair: everything sent arrives once and in order."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._sender = BlockingClient(PhpmqClient.connect, port=port)
        self._receiver = BlockingClient(PhpmqClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._sender as sender, self._receiver as receiver:
            receiver.subscribe("witness", 10)
            while not self._done.is_set():
                for number in range(self.seen, self.seen + 5):
                    sender.send("witness", make_body(number, 100))
                for _ in range(5):
                    message = receiver.receive(60.0)
                    assert number_of(message.body) == self.seen
                    message.ack()
                    self.seen += 1
                time.sleep(0.01)


class Answers(Witness):
    """Worker that answers the queries of `Queries`."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._worker = BlockingClient(MsgliteClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._worker as worker:
            while not self._done.is_set():
                query = worker.ready("questions", timeout=1)
                if query is not None:
                    assert query.reply_to is not None
                    worker.send(query.reply_to, query.body, 10)
                    self.seen += 1


class Queries(Witness):
    """The other half of the msglite pair."""

    def __init__(self, port: int, done: threading.Event) -> None:
        self._asker = BlockingClient(MsgliteClient.connect, port=port)
        super().__init__(done)

    def work(self) -> None:
        with self._asker as asker:
            while not self._done.is_set():
                body = make_body(self.seen, 50)
                answer = asker.query("questions", body, timeout=60)
                assert answer is not None
                assert answer.body == body
                self.seen += 1
                time.sleep(0.01)


class Pages(Answers):
    """Worker that answers the requests of the HTTP gateway. Without it the gateway would wait for
    disconnected clients, which look like clients that have only ended their request."""

    def work(self) -> None:
        with self._worker as worker:
            while not self._done.is_set():
                request = worker.ready(REQUESTS, timeout=1)
                if request is not None:
                    assert request.reply_to is not None
                    worker.send(request.reply_to, b'["200", []]', 10)
                    worker.send(request.reply_to, b"", 10)
                    self.seen += 1


class Crowd:
    """Clients of all listeners, each of which does one thing and goes."""

    def __init__(self, broker: LocalBroker, path: Path, chance: random.Random) -> None:
        self._broker = broker
        self._addresses: list[tuple[str, str | tuple[str, int]]] = [
            (scheme, ("127.0.0.1", broker.port(scheme))) for scheme in SCHEMES
        ]
        self._addresses.append(("msglite", str(path)))
        self._chance = chance
        self._staying = self._connections()

    def _connections(self) -> list[int]:
        """Return the number of connections of each listener."""
        return [listener["connections"] for listener in self._broker.status()["listeners"]]

    def _requests_are_answered(self) -> bool:
        """Return whether `Pages` has processed all requests of the HTTP gateway."""
        return not any(
            destination["ready"] or destination["unacked"]
            for destination in self._broker.status()["destinations"]
            if destination["name"] == REQUESTS
        )

    def visit(self, count: int) -> None:
        """Come and go that often, no faster than RATE."""
        start = time.monotonic()
        for number in range(count):
            scheme, address = self._addresses[number % len(self._addresses)]
            self._visit(scheme, address)
            delay = start + number / RATE - time.monotonic()
            if delay > 0.005:
                time.sleep(delay)

    def clear(self) -> None:
        """Remove the messages that were sent, and wait until nothing else is left."""
        port = self._broker.port("phpmq-maintenance")
        wait_until(lambda: self._connections() == self._staying, seconds=SECONDS)
        wait_until(self._requests_are_answered, seconds=SECONDS)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            # those that expired before are dead letters now
            client.sendall(b"flush churn\nflush mq.sys.dmq\nquit\n")
            while client.recv(4096):
                pass
        time.sleep(QUIET_SECONDS)

    def _visit(self, scheme: str, address: str | tuple[str, int]) -> None:
        chance = self._chance
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        words = WORDS[chance.choice(("phpmq", "msglite", "jmq"))]
        word = chance.choice(WORDS.get(scheme, words))
        with socket.socket(family) as client, suppress(BrokenPipeError, ConnectionResetError):
            client.settimeout(60)
            client.connect(address)
            behavior = chance.randrange(6)
            if behavior == 1:
                client.sendall(word[: chance.randrange(1, len(word))])
            elif behavior > 1:
                client.sendall(word)
            if behavior == 3:
                client.shutdown(socket.SHUT_WR)
            elif behavior == 4 and family == socket.AF_INET:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            elif behavior == 5 and scheme != "msglite-http":
                client.settimeout(0.002)
                with suppress(TimeoutError):
                    client.recv(1000)


class Account:
    """Resources of a broker, as the operating system and the garbage collector count them."""

    def __init__(self, broker: LocalBroker, counts: Path) -> None:
        counts.unlink(missing_ok=True)
        os.kill(broker.pid, signal.SIGUSR1)
        wait_until(counts.exists, seconds=SECONDS)
        self.objects: dict[str, int] = json.loads(counts.read_text())
        process = Path(f"/proc/{broker.pid}")
        self.descriptors = len(list((process / "fd").iterdir()))
        self.memory = int((process / "statm").read_text().split()[1]) * resource.getpagesize()
        status = broker.status()
        self.connections = [listener["connections"] for listener in status["listeners"]]
        self.consumers = {d["name"]: d["consumers"] for d in status["destinations"]}


def test_a_crowd_leaves_nothing_behind(tmp_path: Path) -> None:
    chance = repeatable()
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
        witnesses = [
            Dispatches(broker.port("phpmq"), done),
            Answers(broker.port("msglite"), done),
            Queries(broker.port("msglite"), done),
            Pages(broker.port("msglite"), done),
        ]
        wait_until(lambda: all(witness.seen for witness in witnesses[:3]), seconds=SECONDS)
        crowd = Crowd(broker, path, chance)
        crowd.visit(WARM_UP)
        crowd.clear()
        before = Account(broker, counts)
        crowd.visit(CONNECTIONS)
        crowd.clear()
        after = Account(broker, counts)
        done.set()
        for witness in witnesses:
            witness.finish()
            assert witness.seen > 100
        growth = {
            kind: (before.objects.get(kind, 0), count)
            for kind, count in after.objects.items()
            if count - before.objects.get(kind, 0)
            > (BUILTIN_LEEWAY if kind.startswith("builtins.") else LEEWAY)
        }
        assert not growth, growth
        assert after.connections == before.connections
        assert after.consumers.get("churn", 0) == 0
        assert abs(after.descriptors - before.descriptors) <= 3
        assert after.memory < before.memory + GROWTH
        log = broker.log.read_text()
        assert "Traceback" not in log
        assert "internal error" not in log
