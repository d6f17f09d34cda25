"""VibeMQ through a broker process and raw sockets."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import brotli
import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.compression import Compression
from sluicemq.protocols.vibemq.wire import Decoder, Frame
from tests.server.conftest import Start
from tests.support.polling import wait_until

VIBEMQ = "vibemq://127.0.0.1:0"


class VibemqConnection:
    """A raw connection that sends and receives frames."""

    def __init__(self, port: int, **headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.decoder = Decoder()
        self.received: list[Frame] = []
        try:
            self.send(Frame(wire.CONNECT, "c", headers=headers))
            self.hello = self.next_frame()
        except BaseException:
            self.socket.close()
            raise

    def send(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(map(wire.encode, frames)))

    def next_frame(self) -> Frame:
        while not self.received:
            data = self.socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self.received += self.decoder.feed(data)
            assert self.decoder.error is None
        return self.received.pop(0)

    def next_frames(self, count: int) -> list[Frame]:
        return [self.next_frame() for _ in range(count)]

    def publish(self, queue: str, *ids: str) -> None:
        self.send(
            *(
                Frame(wire.PUBLISH, message_id, queue, b'"%b"' % message_id.encode())
                for message_id in ids
            )
        )
        assert [frame.id for frame in self.next_frames(len(ids))] == list(ids)

    def subscribe(self, queue: str) -> None:
        self.send(Frame(wire.SUBSCRIBE, "s", queue))
        assert self.next_frame().type == wire.SUBSCRIBE_ACK

    def info(self, queue: str) -> Any:
        self.send(Frame(wire.QUEUE_INFO, "i", queue))
        return json.loads(self.next_frame().payload)

    def message_count(self, queue: str) -> int | None:
        """Return the number of messages in a queue, or None if the queue does not exist."""
        self.send(Frame(wire.QUEUE_INFO, "i", queue))
        payload = self.next_frame().payload
        if not payload:
            return None
        count: int = json.loads(payload)["messageCount"]
        return count

    def is_closed_by_broker(self) -> bool:
        """Return whether the broker closes the connection without another frame."""
        return not self.received and self.socket.recv(1) == b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.socket.close()


def test_publish_deliver_acknowledge(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with VibemqConnection(port) as publisher, VibemqConnection(port) as subscriber:
        assert publisher.hello.type == wire.CONNECT_ACK
        subscriber.subscribe("q")
        publisher.publish("q", *(str(n) for n in range(1000)))
        for n in range(1000):
            frame = subscriber.next_frame()
            assert (frame.type, frame.id, frame.queue) == (wire.DELIVER, str(n), "q")
            subscriber.send(Frame(wire.ACK, frame.id))
        subscriber.send(Frame(wire.DISCONNECT, "d"))
        assert subscriber.is_closed_by_broker()
        assert publisher.info("q")["messageCount"] == 0


def test_acknowledged_publishes_and_queues_survive_a_kill(start: Start) -> None:
    broker = start(VIBEMQ)
    with VibemqConnection(broker.port("vibemq")) as client:
        options = json.dumps({"mode": 3, "maxQueueSize": 5, "messageTtl": "1.00:00:00"}).encode()
        client.send(Frame(wire.CREATE_QUEUE, "c", "declared", options))
        assert client.next_frame().error_code == ""
        client.publish("declared", "a", "b")
        client.publish("automatic", "c")
        before = [client.info("declared"), client.info("automatic")]
        broker.kill()
    with VibemqConnection(broker.start().port("vibemq")) as client:
        after = [client.info("declared"), client.info("automatic")]
        assert before[0] == after[0]
        assert after[1]["createdAt"] >= before[1].pop("createdAt")
        assert {**after[1], **before[1]} == after[1]
        client.subscribe("declared")
        assert [frame.id for frame in client.next_frames(2)] == ["a", "b"]


def test_clients_are_notified_of_a_shutdown(start: Start) -> None:
    broker = start(VIBEMQ)
    with VibemqConnection(broker.port("vibemq")) as client:
        assert broker.stop() == 0
        goodbye = client.next_frame()
        assert (goodbye.type, goodbye.headers["reason"]) == (wire.DISCONNECT, "server_shutdown")
        assert client.is_closed_by_broker()


def test_auto_listener_detects_vibemq(start: Start) -> None:
    port = start("auto://127.0.0.1:0").port("auto")
    with VibemqConnection(port) as client:
        client.publish("q", "m")
    with BlockingClient(PhpmqClient.connect, port=port) as php:
        php.subscribe("q", 1)
        assert php.receive(30).body == b"m"


@pytest.mark.parametrize("offered", ["gzip", "brotli,gzip"])
def test_compression_in_both_directions(start: Start, offered: str) -> None:
    port = start(VIBEMQ).port("vibemq")
    compression = wire.Compression[offered.split(",")[0].upper()]
    payload = b'"%b"' % (b"text " * 50_000)
    with VibemqConnection(port, **{"supported-compression": offered}) as client:
        assert client.hello.headers["negotiated-compression"] == compression.name.lower()
        client.subscribe("q")
        publish = wire.encode(Frame(wire.PUBLISH, "m", "q", payload))
        client.socket.sendall(wire.compressed(publish, compression))
        assert client.next_frame().type == wire.PUBLISH_ACK
        assert client.next_frame().payload == payload


def test_messages_to_and_from_other_protocols(start: Start) -> None:
    broker = start(VIBEMQ, "phpmq://127.0.0.1:0", "msglite://127.0.0.1:0")
    with (
        VibemqConnection(broker.port("vibemq")) as client,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as php,
        BlockingClient(MsgliteClient.connect, port=broker.port("msglite")) as shell,
    ):
        client.publish("to.php", "m")
        php.subscribe("to.php", 1)
        assert php.receive(30).body == b"m"
        client.subscribe("from.others")
        php.send("from.others", b"text")
        first = client.next_frame()
        shell.send("from.others", b"\xff\x00", timeout=60)
        second = client.next_frame()
        assert first.payload == b'"text"'
        assert (second.payload, second.headers["content-encoding"]) == (b'"/wA="', "base64")
        client.send(Frame(wire.ACK, first.id), Frame(wire.ACK, second.id))
        assert client.info("from.others")["unackedCount"] == 0


@pytest.mark.parametrize("json_option", ["auto", "string"])
def test_json_body_of_phpmq_is_delivered_as_json_or_string(start: Start, json_option: str) -> None:
    broker = start(f"{VIBEMQ}?json={json_option}", "phpmq://127.0.0.1:0")
    orders = json.dumps([{"id": number} for number in range(25_000)]).encode()
    assert len(orders) > 256 * 1024  # too large to be transcoded on the event loop
    bodies = [b'{"id": 1}', orders, b"text"]
    with (
        VibemqConnection(broker.port("vibemq")) as client,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as php,
    ):
        client.subscribe("q")
        for body in bodies:
            php.send("q", body)
        received = [client.next_frame().payload for _ in bodies]
    as_strings = [json.dumps(body.decode()).encode() for body in bodies]
    assert received == (as_strings if json_option == "string" else [*bodies[:2], b'"text"'])


def test_slow_subscriber_does_not_affect_others(start: Start) -> None:
    broker = start(VIBEMQ + "?window=100000&window_bytes=1GiB&output_timeout=3600")
    port = broker.port("vibemq")
    body = b'"%b"' % (b"x" * 100_000)
    with (
        VibemqConnection(port) as publisher,
        VibemqConnection(port) as slow,
        VibemqConnection(port) as quick,
    ):
        publisher.send(Frame(wire.CREATE_QUEUE, "c", "f", b'{"mode":1}'))
        assert publisher.next_frame().error_code == ""
        slow.subscribe("f")
        quick.subscribe("f")
        for n in range(300):
            publisher.send(Frame(wire.PUBLISH, str(n), "f", body))
            assert publisher.next_frame().id == str(n)
            assert quick.next_frame().id == str(n)
        # the slow one gets all of it once it reads
        assert [frame.id for frame in slow.next_frames(300)] == [str(n) for n in range(300)]


def test_options_of_the_listener_reach_the_session(start: Start) -> None:
    options = "window=2&ack_timeout=100ms&strict_create=true&compression=false&rate_limit=40"
    port = start(f"{VIBEMQ}?{options}").port("vibemq")
    with VibemqConnection(port, **{"supported-compression": "gzip"}) as client:
        assert "negotiated-compression" not in client.hello.headers
        create_queue = Frame(wire.CREATE_QUEUE, "c", "q", b'{"maxRetryAttempts":1}')
        client.send(create_queue, create_queue)
        assert [frame.error_code for frame in client.next_frames(2)] == ["", "QUEUE_EXISTS"]
        client.publish("q", "1", "2", "3")
        start_time = time.monotonic()
        client.subscribe("q")
        assert [frame.id for frame in client.next_frames(3)] == ["1", "2", "3"]
        assert time.monotonic() - start_time >= 0.09  # 3 came when the time of 1 had run out
        client.send(*(Frame(wire.QUEUE_INFO, str(n), "q") for n in range(60)))
        assert "RATE_LIMITED" in {frame.error_code for frame in client.next_frames(60)}


def test_configured_queues_cannot_be_deleted(start: Start, tmp_path: Path) -> None:
    """The listener option `foreign_delete` allows it. Queue info shows configured options."""
    file = tmp_path / "sluicemq.toml"
    file.write_text(
        "[destinations.orders]\nmax_messages = 7\nmax_bytes = '1MiB'\n"
        "[destinations.urgent]\npriority_ordering = true\n"
    )
    allowing = "auto://127.0.0.1:0?foreign_delete=allow"
    broker = start(VIBEMQ, allowing, options=("--config", str(file)))
    with (
        VibemqConnection(broker.port("vibemq")) as client,
        VibemqConnection(broker.port("auto")) as other,
    ):
        orders = client.info("orders")
        assert (orders["maxSize"], orders["deliveryMode"], orders["maxRetryAttempts"]) == (7, 0, 3)
        assert (orders["effectiveMode"], orders["createdBy"]) == (3, "configuration")
        assert client.info("urgent")["deliveryMode"] == 3
        delete = Frame(wire.DELETE_QUEUE, "d", "orders")
        client.send(delete)
        answer = client.next_frame()
        assert (answer.error_code, "configuration" in answer.error_message) == ("FORBIDDEN", True)
        other.send(delete)
        assert other.next_frame().type == wire.DELETE_QUEUE


def test_ignored_options_are_logged(start: Start) -> None:
    broker = start(VIBEMQ)
    with VibemqConnection(broker.port("vibemq")) as client:
        for options in (b'{"maxQueueSize":5}', b'{"maxQueueSize":6}'):
            client.send(Frame(wire.CREATE_QUEUE, "c", "q", options))
            assert client.next_frame().type == wire.CREATE_QUEUE
    broker.stop()
    assert "CreateQueue of q " in broker.log.read_text()


def test_logins(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    environment = {"SLUICEMQ_AUTH__ADMIN_TOKEN_FILE": str(token)}
    port = start(VIBEMQ, environment=environment).port("vibemq")
    for headers, code in (
        ({}, "AUTH_REQUIRED"),
        ({"authToken": "another"}, "AUTH_FAILED"),
        ({"authUsername": "u", "authPassword": "another"}, "AUTH_FAILED"),
    ):
        with VibemqConnection(port, **headers) as client:
            assert client.hello.error_code == code
            client.send(Frame(wire.CONNECT, "c", headers={"authToken": "a-token-of-some-length"}))
            assert client.next_frame().type == wire.CONNECT_ACK
    for headers in (
        {"authToken": "a-token-of-some-length"},
        {"authUsername": "any", "authPassword": "a-token-of-some-length"},
    ):
        with VibemqConnection(port, **headers) as client:
            assert client.hello.type == wire.CONNECT_ACK
    with VibemqConnection(port, authToken="a-token-of-some-length") as admin:
        admin.send(Frame(50, "u", payload=b'{"username":"ann","password":"secret-of-ann"}'))
        assert admin.next_frame().error_code == ""
        grant = b'{"username":"ann","queuePattern":"a.*","operations":["Publish"]}'
        admin.send(Frame(53, "g", payload=grant))
        assert admin.next_frame().error_code == ""
    with VibemqConnection(port, authUsername="ann", authPassword="secret-of-ann") as ann:
        assert ann.hello.type == wire.CONNECT_ACK
        ann.publish("a.b", "m")
        ann.publish("A.b", "m")
        ann.send(Frame(wire.PUBLISH, "n", "b", b"1"), Frame(wire.SUBSCRIBE, "s", "a.b"))
        assert [frame.error_code for frame in ann.next_frames(2)] == ["NOT_AUTHORIZED"] * 2


@pytest.mark.parametrize("scheme", ["vibemq", "auto"])
def test_connection_over_limit_gets_error(start: Start, scheme: str) -> None:
    broker = start(f"{scheme}://127.0.0.1:0?max_connections=1&max_rejections=1")
    port = broker.port(scheme)
    with VibemqConnection(port) as first, VibemqConnection(port) as second:
        assert first.hello.type == wire.CONNECT_ACK
        assert second.hello.error_code == "CONNECTION_LIMIT"
        assert second.hello.error_message == "Maximum connections reached."
        assert second.is_closed_by_broker()


def test_max_login_failures_closes_connection(start: Start, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    environment = {"SLUICEMQ_AUTH__ADMIN_TOKEN_FILE": str(token)}
    port = start(f"{VIBEMQ}?max_login_failures=2", environment=environment).port("vibemq")
    with VibemqConnection(port) as client:
        assert client.hello.error_code == "AUTH_REQUIRED"
        client.send(Frame(wire.CONNECT, "c"))
        assert client.next_frame().error_code == "AUTH_REQUIRED"
        assert client.is_closed_by_broker()


def test_ack_timeout_redelivers_messages_of_frozen_client(start: Start) -> None:
    """The client has stopped, but its connection is intact."""
    port = start(VIBEMQ + "?ack_timeout=2s").port("vibemq")
    with VibemqConnection(port) as frozen, VibemqConnection(port) as other:
        frozen.subscribe("q")
        other.publish("q", "m")
        assert frozen.next_frame().id == "m"
        other.subscribe("q")
        # 2 s, then a delay of 2 s: time enough for the other to subscribe
        redelivered = other.next_frame()
        assert (redelivered.id, redelivered.headers["deliveryAttempts"]) == ("m", "2")


def test_acknowledged_publishes_survive_kill_while_publishing(start: Start) -> None:
    broker = start(VIBEMQ)
    ids: list[str] = []
    with VibemqConnection(broker.port("vibemq")) as client:
        client.send(*(Frame(wire.PUBLISH, str(n), "q", b"1") for n in range(5000)))
        while len(ids) < 1000:
            ids.append(client.next_frame().id)
        broker.kill()
        ids += [frame.id for frame in client.received]
    assert ids == [str(n) for n in range(len(ids))]
    with VibemqConnection(broker.start().port("vibemq")) as client:
        client.subscribe("q")
        for identity in ids:
            frame = client.next_frame()
            assert frame.id == identity
            client.send(Frame(wire.ACK, identity))


# --- large frames --------------------------------------------------------------------------------

ORDERS = json.dumps([{"id": n, "name": f"order {n}", "price": n} for n in range(32_000)]).encode()
ACCEPTS_COMPRESSION = {"supported-compression": "brotli,gzip"}


def encode_compressed(payload: bytes, identity: str, compression: Compression) -> bytes:
    frame = Frame(wire.PUBLISH, identity, "q", payload)
    return wire.compressed(wire.encode(frame, limit=2 * wire.MAX_UNPACKED), compression)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.BROTLI])
def test_large_payload_is_delivered_to_clients_with_compression(
    start: Start, compression: Compression
) -> None:
    assert len(ORDERS) > 1_400_000
    port = start(VIBEMQ).port("vibemq")
    with (
        VibemqConnection(port, **ACCEPTS_COMPRESSION) as publisher,
        VibemqConnection(port) as uncompressed,
        VibemqConnection(port, **ACCEPTS_COMPRESSION) as consumer,
    ):
        uncompressed.subscribe("q")
        consumer.subscribe("q")
        publisher.socket.sendall(
            encode_compressed(ORDERS, "1", compression)
            + encode_compressed(ORDERS, "2", compression)
        )
        assert [frame.id for frame in publisher.next_frames(2)] == ["1", "2"]
        for identity in ("1", "2"):
            frame = consumer.next_frame()
            assert (frame.type, frame.id) == (wire.DELIVER, identity)
            assert frame.payload == ORDERS
            consumer.send(Frame(wire.ACK, frame.id))
        uncompressed.send(Frame(wire.PING, "p"))
        assert uncompressed.next_frame().type == wire.PONG
        assert publisher.info("q")["messageCount"] == 0


def test_large_dead_letter_is_skipped_for_clients_without_compression(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with (
        VibemqConnection(port, **ACCEPTS_COMPRESSION) as publisher,
        VibemqConnection(port) as uncompressed,
    ):
        uncompressed.subscribe("q")
        publisher.socket.sendall(encode_compressed(ORDERS, "1", Compression.BROTLI))
        assert publisher.next_frame().type == wire.PUBLISH_ACK
        wait_until(
            lambda: publisher.message_count("q.dlq") == 1,
            "the message is not in the dead-letter queue",
        )
        with VibemqConnection(port) as reader:
            reader.subscribe("q.dlq")
            reader.publish("q.dlq", "behind")
            assert reader.next_frame().id == "behind"
        with VibemqConnection(port, **ACCEPTS_COMPRESSION) as consumer:
            consumer.subscribe("q.dlq")
            frame = consumer.next_frame()
            assert frame.payload == ORDERS
            assert frame.headers["deadLetterReason"] == "TooLargeForVibeMQ"


def test_frame_that_is_too_long_is_skipped(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with VibemqConnection(port) as peer:
        frame = Frame(wire.PUBLISH, "big", "q", ORDERS)
        peer.socket.sendall(wire.encode(frame, limit=wire.MAX_UNPACKED))
        error = peer.next_frame()
        assert (error.type, error.id, error.error_code) == (wire.ERROR, "big", "INVALID_MESSAGE")
        peer.publish("q", "next")


def test_frame_limits_of_listener(start: Start) -> None:
    url = f"{VIBEMQ}?max_frame_bytes=2MiB&max_unpacked_bytes=3MiB"
    port = start(url).port("vibemq")
    with VibemqConnection(port, **ACCEPTS_COMPRESSION) as peer:
        frame = Frame(wire.PUBLISH, "plain", "q", ORDERS)
        peer.socket.sendall(wire.encode(frame, limit=wire.MAX_UNPACKED))
        assert (peer.next_frame().type, peer.info("q")["messageCount"]) == (wire.PUBLISH_ACK, 1)
        peer.socket.sendall(
            encode_compressed(b'"%b"' % (b"x" * (3 << 20)), "packed", Compression.GZIP)
        )
        assert peer.next_frame().error_code == "INVALID_MESSAGE"
        assert peer.is_closed_by_broker()


def test_compression_bombs_do_not_block_others(start: Start) -> None:
    """20 frames of 13 kB that unpack to more than 64 MiB each, at a time: they need little memory,
    and others are served meanwhile."""
    broker = start(VIBEMQ, environment={"SLUICE_BROKER_INPUT_MEMORY_LIMIT": "64MiB"})
    port = broker.port("vibemq")
    body = brotli.compress(bytes(66 << 20), quality=1)
    bomb = len(body).to_bytes(4, "big") + b"\2" + body
    assert len(bomb) < 20_000
    with ExitStack() as stack:
        attackers = [stack.enter_context(VibemqConnection(port)) for _ in range(20)]
        peer = stack.enter_context(VibemqConnection(port))
        before = resident_bytes(broker.pid)
        for attacker in attackers:
            attacker.socket.sendall(bomb)
        pings, highest = 0, 0
        waiting = set(attackers)
        while waiting:
            peer.send(Frame(wire.PING, "p"))
            assert peer.next_frame().type == wire.PONG
            pings += 1
            highest = max(highest, resident_bytes(broker.pid) - before)
            readable, _, _ = select.select([client.socket for client in waiting], [], [], 0.01)
            for attacker in list(waiting):
                if attacker.socket in readable:
                    assert attacker.next_frame().error_code == "INVALID_MESSAGE"
                    waiting.discard(attacker)
        assert pings > 10
        assert highest < 300 << 20


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def create_queue(client: VibemqConnection, queue: str, **options: Any) -> None:
    client.send(Frame(wire.CREATE_QUEUE, "create", queue, json.dumps(options).encode()))
    assert client.next_frame().error_code == ""


def connect_when_possible(port: int) -> VibemqConnection:
    """Connect as soon as the listener accepts another connection."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client = VibemqConnection(port)
        except (AssertionError, ConnectionError):
            pass
        else:
            if client.hello.type == wire.CONNECT_ACK:
                return client
            client.socket.close()
        assert time.monotonic() < deadline, "the closed connection still counts"


@pytest.mark.parametrize("ending", ["end", "reset"])
def test_blocked_publishes_are_dropped_with_their_connection(start: Start, ending: str) -> None:
    port = start(VIBEMQ + "?max_connections=2&block_timeout=1h").port("vibemq")
    with VibemqConnection(port) as other:
        create_queue(other, "q", maxQueueSize=1, overflowStrategy=2)
        other.publish("q", "1")
        publisher = VibemqConnection(port)
        publisher.send(Frame(wire.PUBLISH, "2", "q", b"2"), Frame(wire.PING, "p"))
        assert publisher.next_frame().type == wire.PONG  # so the publish has been read, and waits
        if ending == "reset":
            linger = struct.pack("ii", 1, 0)
            publisher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        publisher.socket.close()
        with connect_when_possible(port) as third:
            # there is capacity now for publishers that are still connected
            other.subscribe("q")
            assert other.next_frame().id == "1"
            other.send(Frame(wire.ACK, "1"))
            third.publish("q", "3")
            assert other.next_frame().id == "3"
            assert other.info("q")["messageCount"] == 0


def test_blocked_publish_is_rejected_after_block_timeout(start: Start) -> None:
    port = start(VIBEMQ + "?block_timeout=200ms").port("vibemq")
    with VibemqConnection(port) as client:
        create_queue(client, "q", maxQueueSize=1, overflowStrategy=2)
        client.publish("q", "1")
        start_time = time.monotonic()
        client.send(Frame(wire.PUBLISH, "2", "q", b"2"))
        answer = client.next_frame()
        assert (answer.id, answer.error_code) == ("2", "QUEUE_FULL")
        assert 0.19 <= time.monotonic() - start_time < 7


def test_queue_keeps_defaults_of_the_listener_that_created_it(start: Start) -> None:
    options = "default_mode=PriorityBased&default_max_queue_size=5"
    options += "&default_overflow=DropNewest&default_max_retries=4"
    broker = start(
        f"{VIBEMQ}?{options}", environment={"SLUICEMQ_BROKER__DESTINATION_IDLE_TIMEOUT": "100ms"}
    )
    with VibemqConnection(broker.port("vibemq")) as client:
        client.subscribe("used")
        client.send(Frame(wire.UNSUBSCRIBE, "u", "used"))
        assert client.next_frame().type == wire.UNSUBSCRIBE_ACK
        create_queue(client, "created")
        before = [client.info("used"), client.info("created")]
    for info in before:
        assert (info["deliveryMode"], info["maxSize"], info["overflowStrategy"]) == (3, 5, 1)
        assert info["maxRetryAttempts"] == 4
    for _ in range(2):  # after a restart from the journal, and from a snapshot
        assert broker.stop() == 0
        broker.start()
        with VibemqConnection(broker.port("vibemq")) as client:
            assert [client.info("used"), client.info("created")] == before


def test_configured_limit_of_dead_letter_queue(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text(
        '[broker]\ndead_letter_retry = "100ms"\n[broker.default_destination]\nmax_bytes = "1GiB"\n'
        '[destinations."q.dlq"]\nmax_messages = 1\n'
    )
    # dead letters are read where there is time to acknowledge them
    other_listener = "auto://127.0.0.1:0"
    broker = start(VIBEMQ + "?ack_timeout=50ms", other_listener, options=("--config", str(file)))
    with (
        VibemqConnection(broker.port("vibemq")) as client,
        VibemqConnection(broker.port("auto")) as dead_letters,
    ):
        client.publish("used", "1")
        assert client.info("used")["maxSize"] == 10_000
        options = {"maxQueueSize": 2, "overflowStrategy": 3, "maxRetryAttempts": 1}
        create_queue(client, "q", enableDeadLetterQueue=True, **options)
        client.publish("q", "1", "2", "3")  # the third goes to the dead-letter queue
        client.send(Frame(wire.PUBLISH, "4", "q", b"4"))
        assert client.next_frame().error_code == "QUEUE_FULL"
        client.subscribe("q")
        assert [frame.id for frame in client.next_frames(2)] == ["1", "2"]
        wait_until(
            lambda: not client.info("q")["unackedCount"],
            "the acknowledgement timeout never expires",
        )
        assert client.info("q")["messageCount"] == 2
        dead_letters.subscribe("q.dlq")
        reasons = []
        for _ in range(3):
            frame = dead_letters.next_frame()
            reasons.append((frame.id, frame.headers["deadLetterReason"]))
            dead_letters.send(Frame(wire.ACK, frame.id))
        assert reasons[0] == ("3", "QueueFull")
        assert sorted(reasons[1:]) == [("1", "MaxRetriesExceeded"), ("2", "MaxRetriesExceeded")]
        assert client.info("q")["messageCount"] == 0


def test_messages_without_attempts_left_survive_kill(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text('[destinations."q.dlq"]\nmax_messages = 1\n')
    broker = start(VIBEMQ + "?ack_timeout=50ms", options=("--config", str(file)))
    with VibemqConnection(broker.port("vibemq")) as client:
        create_queue(client, "q", maxRetryAttempts=1, enableDeadLetterQueue=True)
        client.publish("q", "1", "2")
        client.subscribe("q")
        assert [frame.id for frame in client.next_frames(2)] == ["1", "2"]
        wait_until(
            lambda: not client.info("q")["unackedCount"],
            "the acknowledgement timeout never expires",
        )
        assert client.info("q")["messageCount"] == client.info("q.dlq")["messageCount"] == 1
        broker.kill()
    with VibemqConnection(broker.start().port("vibemq")) as client:
        assert client.info("q")["messageCount"] == client.info("q.dlq")["messageCount"] == 1
        client.subscribe("q.dlq")
        [first] = client.next_frames(1)
        client.send(Frame(wire.ACK, first.id))
        client.subscribe("q")
        second = client.next_frame()
        assert {first.id, second.id} == {"1", "2"}
        assert second.headers["deliveryAttempts"] == "2"
