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


class Wire:
    """A connection that says frames and waits for frames."""

    def __init__(self, port: int, **headers: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.decoder = Decoder()
        self.received: list[Frame] = []
        try:
            self.say(Frame(wire.CONNECT, "c", headers=headers))
            self.hello = self.next()
        except BaseException:
            self.socket.close()
            raise

    def say(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(map(wire.encode, frames)))

    def next(self) -> Frame:
        while not self.received:
            data = self.socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self.received += self.decoder.feed(data)
            assert self.decoder.error is None
        return self.received.pop(0)

    def many(self, count: int) -> list[Frame]:
        return [self.next() for _ in range(count)]

    def publish(self, queue: str, *ids: str) -> None:
        self.say(
            *(
                Frame(wire.PUBLISH, message_id, queue, b'"%b"' % message_id.encode())
                for message_id in ids
            )
        )
        assert [frame.id for frame in self.many(len(ids))] == list(ids)

    def subscribe(self, queue: str) -> None:
        self.say(Frame(wire.SUBSCRIBE, "s", queue))
        assert self.next().type == wire.SUBSCRIBE_ACK

    def info(self, queue: str) -> Any:
        self.say(Frame(wire.QUEUE_INFO, "i", queue))
        return json.loads(self.next().payload)

    def count(self, queue: str) -> int | None:
        """The number of messages in a queue, None if there is no such queue."""
        self.say(Frame(wire.QUEUE_INFO, "i", queue))
        payload = self.next().payload
        if not payload:
            return None
        count: int = json.loads(payload)["messageCount"]
        return count

    def at_end(self) -> bool:
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


def test_there_and_back(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with Wire(port) as publisher, Wire(port) as subscriber:
        assert publisher.hello.type == wire.CONNECT_ACK
        subscriber.subscribe("q")
        publisher.publish("q", *(str(n) for n in range(1000)))
        for n in range(1000):
            frame = subscriber.next()
            assert (frame.type, frame.id, frame.queue) == (wire.DELIVER, str(n), "q")
            subscriber.say(Frame(wire.ACK, frame.id))
        subscriber.say(Frame(wire.DISCONNECT, "d"))
        assert subscriber.at_end()
        assert publisher.info("q")["messageCount"] == 0


def test_acknowledged_publishes_and_queues_survive_a_kill(start: Start) -> None:
    broker = start(VIBEMQ)
    with Wire(broker.port("vibemq")) as client:
        options = json.dumps({"mode": 3, "maxQueueSize": 5, "messageTtl": "1.00:00:00"}).encode()
        client.say(Frame(wire.CREATE_QUEUE, "c", "declared", options))
        assert client.next().error_code == ""
        client.publish("declared", "a", "b")
        client.publish("automatic", "c")
        before = [client.info("declared"), client.info("automatic")]
        broker.kill()
    with Wire(broker.start().port("vibemq")) as client:
        after = [client.info("declared"), client.info("automatic")]
        assert before[0] == after[0]
        assert after[1]["createdAt"] >= before[1].pop("createdAt")
        assert {**after[1], **before[1]} == after[1]
        client.subscribe("declared")
        assert [frame.id for frame in client.many(2)] == ["a", "b"]


def test_clients_are_notified_of_a_shutdown(start: Start) -> None:
    broker = start(VIBEMQ)
    with Wire(broker.port("vibemq")) as client:
        assert broker.stop() == 0
        goodbye = client.next()
        assert (goodbye.type, goodbye.headers["reason"]) == (wire.DISCONNECT, "server_shutdown")
        assert client.at_end()


def test_auto_recognises_it(start: Start) -> None:
    port = start("auto://127.0.0.1:0").port("auto")
    with Wire(port) as client:
        client.publish("q", "m")
    with BlockingClient(PhpmqClient.connect, port=port) as php:
        php.subscribe("q", 1)
        assert php.receive(30).body == b"m"


@pytest.mark.parametrize("offered", ["gzip", "brotli,gzip"])
def test_compressed_in_both_directions(start: Start, offered: str) -> None:
    port = start(VIBEMQ).port("vibemq")
    compression = wire.Compression[offered.split(",")[0].upper()]
    payload = b'"%b"' % (b"text " * 50_000)
    with Wire(port, **{"supported-compression": offered}) as client:
        assert client.hello.headers["negotiated-compression"] == compression.name.lower()
        client.subscribe("q")
        publish = wire.encode(Frame(wire.PUBLISH, "m", "q", payload))
        client.socket.sendall(wire.compressed(publish, compression))
        assert client.next().type == wire.PUBLISH_ACK
        assert client.next().payload == payload


def test_messages_cross_to_the_other_protocols_and_back(start: Start) -> None:
    broker = start(VIBEMQ, "phpmq://127.0.0.1:0", "msglite://127.0.0.1:0")
    with (
        Wire(broker.port("vibemq")) as client,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as php,
        BlockingClient(MsgliteClient.connect, port=broker.port("msglite")) as shell,
    ):
        client.publish("to.php", "m")
        php.subscribe("to.php", 1)
        assert php.receive(30).body == b"m"
        client.subscribe("from.others")
        php.send("from.others", b"text")
        first = client.next()
        shell.send("from.others", b"\xff\x00", timeout=60)
        second = client.next()
        assert first.payload == b'"text"'
        assert (second.payload, second.headers["content-encoding"]) == (b'"/wA="', "base64")
        client.say(Frame(wire.ACK, first.id), Frame(wire.ACK, second.id))
        assert client.info("from.others")["unackedCount"] == 0


@pytest.mark.parametrize("how", ["auto", "string"])
def test_json_of_php_arrives_as_json_or_as_a_string(start: Start, how: str) -> None:
    broker = start(f"{VIBEMQ}?json={how}", "phpmq://127.0.0.1:0")
    orders = json.dumps([{"id": number} for number in range(25_000)]).encode()
    assert len(orders) > 256 * 1024  # too large to be transcoded on the event loop
    bodies = [b'{"id": 1}', orders, b"text"]
    with (
        Wire(broker.port("vibemq")) as client,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as php,
    ):
        client.subscribe("q")
        for body in bodies:
            php.send("q", body)
        received = [client.next().payload for _ in bodies]
    as_strings = [json.dumps(body.decode()).encode() for body in bodies]
    assert received == (as_strings if how == "string" else [*bodies[:2], b'"text"'])


def test_a_subscriber_that_does_not_read_does_not_harm_others(start: Start) -> None:
    broker = start(VIBEMQ + "?window=100000&window_bytes=1GiB&output_timeout=3600")
    port = broker.port("vibemq")
    body = b'"%b"' % (b"x" * 100_000)
    with Wire(port) as publisher, Wire(port) as slow, Wire(port) as quick:
        publisher.say(Frame(wire.CREATE_QUEUE, "c", "f", b'{"mode":1}'))
        assert publisher.next().error_code == ""
        slow.subscribe("f")
        quick.subscribe("f")
        for n in range(300):
            publisher.say(Frame(wire.PUBLISH, str(n), "f", body))
            assert publisher.next().id == str(n)
            assert quick.next().id == str(n)
        # the slow one gets all of it once it reads
        assert [frame.id for frame in slow.many(300)] == [str(n) for n in range(300)]


def test_options_of_the_listener_reach_the_session(start: Start) -> None:
    options = "window=2&ack_timeout=100ms&strict_create=true&compression=false&rate_limit=40"
    port = start(f"{VIBEMQ}?{options}").port("vibemq")
    with Wire(port, **{"supported-compression": "gzip"}) as client:
        assert "negotiated-compression" not in client.hello.headers
        create = Frame(wire.CREATE_QUEUE, "c", "q", b'{"maxRetryAttempts":1}')
        client.say(create, create)
        assert [frame.error_code for frame in client.many(2)] == ["", "QUEUE_EXISTS"]
        client.publish("q", "1", "2", "3")
        start_time = time.monotonic()
        client.subscribe("q")
        assert [frame.id for frame in client.many(3)] == ["1", "2", "3"]
        assert time.monotonic() - start_time >= 0.09  # 3 came when the time of 1 had run out
        client.say(*(Frame(wire.QUEUE_INFO, str(n), "q") for n in range(60)))
        assert "RATE_LIMITED" in {frame.error_code for frame in client.many(60)}


def test_queues_of_the_configuration_are_not_deleted(start: Start, tmp_path: Path) -> None:
    """Unless the listener allows it. Options of the configuration show, defaults do not."""
    file = tmp_path / "sluicemq.toml"
    file.write_text(
        "[destinations.orders]\nmax_messages = 7\nmax_bytes = '1MiB'\n"
        "[destinations.urgent]\npriority_ordering = true\n"
    )
    allowing = "auto://127.0.0.1:0?foreign_delete=allow"
    broker = start(VIBEMQ, allowing, options=("--config", str(file)))
    with Wire(broker.port("vibemq")) as client, Wire(broker.port("auto")) as other:
        orders = client.info("orders")
        assert (orders["maxSize"], orders["deliveryMode"], orders["maxRetryAttempts"]) == (7, 0, 3)
        assert (orders["effectiveMode"], orders["createdBy"]) == (3, "configuration")
        assert client.info("urgent")["deliveryMode"] == 3
        delete = Frame(wire.DELETE_QUEUE, "d", "orders")
        client.say(delete)
        answer = client.next()
        assert (answer.error_code, "configuration" in answer.error_message) == ("FORBIDDEN", True)
        other.say(delete)
        assert other.next().type == wire.DELETE_QUEUE


def test_ignored_options_are_logged(start: Start) -> None:
    broker = start(VIBEMQ)
    with Wire(broker.port("vibemq")) as client:
        for options in (b'{"maxQueueSize":5}', b'{"maxQueueSize":6}'):
            client.say(Frame(wire.CREATE_QUEUE, "c", "q", options))
            assert client.next().type == wire.CREATE_QUEUE
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
        with Wire(port, **headers) as client:
            assert client.hello.error_code == code
            client.say(Frame(wire.CONNECT, "c", headers={"authToken": "a-token-of-some-length"}))
            assert client.next().type == wire.CONNECT_ACK
    for headers in (
        {"authToken": "a-token-of-some-length"},
        {"authUsername": "any", "authPassword": "a-token-of-some-length"},
    ):
        with Wire(port, **headers) as client:
            assert client.hello.type == wire.CONNECT_ACK
    with Wire(port, authToken="a-token-of-some-length") as admin:
        admin.say(Frame(50, "u", payload=b'{"username":"ann","password":"secret-of-ann"}'))
        assert admin.next().error_code == ""
        grant = b'{"username":"ann","queuePattern":"a.*","operations":["Publish"]}'
        admin.say(Frame(53, "g", payload=grant))
        assert admin.next().error_code == ""
    with Wire(port, authUsername="ann", authPassword="secret-of-ann") as ann:
        assert ann.hello.type == wire.CONNECT_ACK
        ann.publish("a.b", "m")
        ann.publish("A.b", "m")
        ann.say(Frame(wire.PUBLISH, "n", "b", b"1"), Frame(wire.SUBSCRIBE, "s", "a.b"))
        assert [frame.error_code for frame in ann.many(2)] == ["NOT_AUTHORIZED"] * 2


@pytest.mark.parametrize("scheme", ["vibemq", "auto"])
def test_a_client_beyond_the_limit_of_connections_gets_an_error(start: Start, scheme: str) -> None:
    broker = start(f"{scheme}://127.0.0.1:0?max_connections=1&max_rejections=1")
    port = broker.port(scheme)
    with Wire(port) as first, Wire(port) as second:
        assert first.hello.type == wire.CONNECT_ACK
        assert second.hello.error_code == "CONNECTION_LIMIT"
        assert second.hello.error_message == "Maximum connections reached."
        assert second.at_end()


def test_refused_logins_end_a_connection_after_the_configured_number(
    start: Start, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    environment = {"SLUICEMQ_AUTH__ADMIN_TOKEN_FILE": str(token)}
    port = start(f"{VIBEMQ}?max_login_failures=2", environment=environment).port("vibemq")
    with Wire(port) as client:
        assert client.hello.error_code == "AUTH_REQUIRED"
        client.say(Frame(wire.CONNECT, "c"))
        assert client.next().error_code == "AUTH_REQUIRED"
        assert client.at_end()


def test_a_frozen_client_loses_its_messages_to_another(start: Start) -> None:
    """A client that has stopped without its connection being lost."""
    port = start(VIBEMQ + "?ack_timeout=2s").port("vibemq")
    with Wire(port) as frozen, Wire(port) as other:
        frozen.subscribe("q")
        other.publish("q", "m")
        assert frozen.next().id == "m"
        other.subscribe("q")
        # 2 s, then a delay of 2 s: time enough for the other to subscribe
        redelivered = other.next()
        assert (redelivered.id, redelivered.headers["deliveryAttempts"]) == ("m", "2")


def test_a_kill_in_the_middle_of_publishing_loses_nothing_that_was_answered(start: Start) -> None:
    broker = start(VIBEMQ)
    ids: list[str] = []
    with Wire(broker.port("vibemq")) as client:
        client.say(*(Frame(wire.PUBLISH, str(n), "q", b"1") for n in range(5000)))
        while len(ids) < 1000:
            ids.append(client.next().id)
        broker.kill()
        ids += [frame.id for frame in client.received]
    assert ids == [str(n) for n in range(len(ids))]
    with Wire(broker.start().port("vibemq")) as client:
        client.subscribe("q")
        for identity in ids:
            frame = client.next()
            assert frame.id == identity
            client.say(Frame(wire.ACK, identity))


# --- large frames --------------------------------------------------------------------------------

ORDERS = json.dumps([{"id": n, "name": f"order {n}", "price": n} for n in range(32_000)]).encode()
BOTH = {"supported-compression": "brotli,gzip"}


def packed(payload: bytes, identity: str, how: Compression) -> bytes:
    frame = Frame(wire.PUBLISH, identity, "q", payload)
    return wire.compressed(wire.encode(frame, limit=2 * wire.MAX_UNPACKED), how)


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_large_list_reaches_who_accepts_compression(start: Start, how: Compression) -> None:
    assert len(ORDERS) > 1_400_000
    port = start(VIBEMQ).port("vibemq")
    with (
        Wire(port, **BOTH) as publisher,
        Wire(port) as uncompressed,
        Wire(port, **BOTH) as consumer,
    ):
        uncompressed.subscribe("q")
        consumer.subscribe("q")
        publisher.socket.sendall(packed(ORDERS, "1", how) + packed(ORDERS, "2", how))
        assert [frame.id for frame in publisher.many(2)] == ["1", "2"]
        for identity in ("1", "2"):
            frame = consumer.next()
            assert (frame.type, frame.id) == (wire.DELIVER, identity)
            assert frame.payload == ORDERS
            consumer.say(Frame(wire.ACK, frame.id))
        uncompressed.say(Frame(wire.PING, "p"))
        assert uncompressed.next().type == wire.PONG
        assert publisher.info("q")["messageCount"] == 0


def test_large_dead_letter_survives_a_subscriber_that_cannot_take_it(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with Wire(port, **BOTH) as publisher, Wire(port) as uncompressed:
        uncompressed.subscribe("q")
        publisher.socket.sendall(packed(ORDERS, "1", Compression.BROTLI))
        assert publisher.next().type == wire.PUBLISH_ACK
        wait_until(
            lambda: publisher.count("q.dlq") == 1, "the message is not in the dead-letter queue"
        )
        with Wire(port) as reader:
            reader.subscribe("q.dlq")
            reader.publish("q.dlq", "behind")
            assert reader.next().id == "behind"
        with Wire(port, **BOTH) as consumer:
            consumer.subscribe("q.dlq")
            frame = consumer.next()
            assert frame.payload == ORDERS
            assert frame.headers["deadLetterReason"] == "TooLargeForVibeMQ"


def test_frame_that_is_too_long_is_skipped(start: Start) -> None:
    port = start(VIBEMQ).port("vibemq")
    with Wire(port) as peer:
        frame = Frame(wire.PUBLISH, "big", "q", ORDERS)
        peer.socket.sendall(wire.encode(frame, limit=wire.MAX_UNPACKED))
        error = peer.next()
        assert (error.type, error.id, error.error_code) == (wire.ERROR, "big", "INVALID_MESSAGE")
        peer.publish("q", "next")


def test_listener_says_how_long_frames_may_be(start: Start) -> None:
    url = f"{VIBEMQ}?max_frame_bytes=2MiB&max_unpacked_bytes=3MiB"
    port = start(url).port("vibemq")
    with Wire(port, **BOTH) as peer:
        frame = Frame(wire.PUBLISH, "plain", "q", ORDERS)
        peer.socket.sendall(wire.encode(frame, limit=wire.MAX_UNPACKED))
        assert (peer.next().type, peer.info("q")["messageCount"]) == (wire.PUBLISH_ACK, 1)
        peer.socket.sendall(packed(b'"%b"' % (b"x" * (3 << 20)), "packed", Compression.GZIP))
        assert peer.next().error_code == "INVALID_MESSAGE"
        assert peer.at_end()


def test_compression_bombs_do_not_block_others(start: Start) -> None:
    """20 frames of 13 kB that unpack to more than 64 MiB each, at a time: they need little memory,
    and others are served meanwhile."""
    broker = start(VIBEMQ, environment={"SLUICE_BROKER_INPUT_MEMORY_LIMIT": "64MiB"})
    port = broker.port("vibemq")
    body = brotli.compress(bytes(66 << 20), quality=1)
    bomb = len(body).to_bytes(4, "big") + b"\2" + body
    assert len(bomb) < 20_000
    with ExitStack() as stack:
        bombers = [stack.enter_context(Wire(port)) for _ in range(20)]
        peer = stack.enter_context(Wire(port))
        before = resident(broker.pid)
        for bomber in bombers:
            bomber.socket.sendall(bomb)
        pings, highest = 0, 0
        waiting = set(bombers)
        while waiting:
            peer.say(Frame(wire.PING, "p"))
            assert peer.next().type == wire.PONG
            pings += 1
            highest = max(highest, resident(broker.pid) - before)
            readable, _, _ = select.select([client.socket for client in waiting], [], [], 0.01)
            for bomber in list(waiting):
                if bomber.socket in readable:
                    assert bomber.next().error_code == "INVALID_MESSAGE"
                    waiting.discard(bomber)
        assert pings > 10
        assert highest < 300 << 20


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def create(client: Wire, queue: str, **options: Any) -> None:
    client.say(Frame(wire.CREATE_QUEUE, "create", queue, json.dumps(options).encode()))
    assert client.next().error_code == ""


def admitted(port: int) -> Wire:
    """A connection as soon as the listener has room for one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client = Wire(port)
        except (AssertionError, ConnectionError):
            pass
        else:
            if client.hello.type == wire.CONNECT_ACK:
                return client
            client.socket.close()
        assert time.monotonic() < deadline, "the connection that was closed still counts"


@pytest.mark.parametrize("way", ["end", "reset"])
def test_publishes_waiting_for_capacity_are_dropped_with_their_connection(
    start: Start, way: str
) -> None:
    port = start(VIBEMQ + "?max_connections=2&block_timeout=1h").port("vibemq")
    with Wire(port) as other:
        create(other, "q", maxQueueSize=1, overflowStrategy=2)
        other.publish("q", "1")
        publisher = Wire(port)
        publisher.say(Frame(wire.PUBLISH, "2", "q", b"2"), Frame(wire.PING, "p"))
        assert publisher.next().type == wire.PONG  # so the publish has been read, and waits
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            publisher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        publisher.socket.close()
        with admitted(port) as third:
            # there is capacity now for publishers that are still connected
            other.subscribe("q")
            assert other.next().id == "1"
            other.say(Frame(wire.ACK, "1"))
            third.publish("q", "3")
            assert other.next().id == "3"
            assert other.info("q")["messageCount"] == 0


def test_a_publish_that_waits_is_refused_after_the_time_of_the_listener(start: Start) -> None:
    port = start(VIBEMQ + "?block_timeout=200ms").port("vibemq")
    with Wire(port) as client:
        create(client, "q", maxQueueSize=1, overflowStrategy=2)
        client.publish("q", "1")
        start_time = time.monotonic()
        client.say(Frame(wire.PUBLISH, "2", "q", b"2"))
        answer = client.next()
        assert (answer.id, answer.error_code) == ("2", "QUEUE_FULL")
        assert 0.19 <= time.monotonic() - start_time < 7


def test_queue_defaults_of_the_listener_stay_with_a_queue_by_use(start: Start) -> None:
    options = "default_mode=PriorityBased&default_max_queue_size=5"
    options += "&default_overflow=DropNewest&default_max_retries=4"
    broker = start(
        f"{VIBEMQ}?{options}", environment={"SLUICEMQ_BROKER__DESTINATION_IDLE_TIMEOUT": "100ms"}
    )
    with Wire(broker.port("vibemq")) as client:
        client.subscribe("used")
        client.say(Frame(wire.UNSUBSCRIBE, "u", "used"))
        assert client.next().type == wire.UNSUBSCRIBE_ACK
        create(client, "created")
        before = [client.info("used"), client.info("created")]
    for info in before:
        assert (info["deliveryMode"], info["maxSize"], info["overflowStrategy"]) == (3, 5, 1)
        assert info["maxRetryAttempts"] == 4
    for _ in range(2):  # after a restart from the journal, and from a snapshot
        assert broker.stop() == 0
        broker.start()
        with Wire(broker.port("vibemq")) as client:
            assert [client.info("used"), client.info("created")] == before


def test_an_operators_limit_on_a_dead_letter_queue(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text(
        '[broker]\ndead_letter_retry = "100ms"\n[broker.default_destination]\nmax_bytes = "1GiB"\n'
        '[destinations."q.dlq"]\nmax_messages = 1\n'
    )
    # dead letters are read where there is time to acknowledge them
    other_listener = "auto://127.0.0.1:0"
    broker = start(VIBEMQ + "?ack_timeout=50ms", other_listener, options=("--config", str(file)))
    with Wire(broker.port("vibemq")) as client, Wire(broker.port("auto")) as dead_letters:
        client.publish("used", "1")
        assert client.info("used")["maxSize"] == 10_000
        options = {"maxQueueSize": 2, "overflowStrategy": 3, "maxRetryAttempts": 1}
        create(client, "q", enableDeadLetterQueue=True, **options)
        client.publish("q", "1", "2", "3")  # the third goes to the dead-letter queue
        client.say(Frame(wire.PUBLISH, "4", "q", b"4"))
        assert client.next().error_code == "QUEUE_FULL"
        client.subscribe("q")
        assert [frame.id for frame in client.many(2)] == ["1", "2"]
        wait_until(
            lambda: not client.info("q")["unackedCount"], "the time to acknowledge never ends"
        )
        assert client.info("q")["messageCount"] == 2
        dead_letters.subscribe("q.dlq")
        reasons = []
        for _ in range(3):
            frame = dead_letters.next()
            reasons.append((frame.id, frame.headers["deadLetterReason"]))
            dead_letters.say(Frame(wire.ACK, frame.id))
        assert reasons[0] == ("3", "QueueFull")
        assert sorted(reasons[1:]) == [("1", "MaxRetriesExceeded"), ("2", "MaxRetriesExceeded")]
        assert client.info("q")["messageCount"] == 0


def test_exhausted_messages_survive_a_kill(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text('[destinations."q.dlq"]\nmax_messages = 1\n')
    broker = start(VIBEMQ + "?ack_timeout=50ms", options=("--config", str(file)))
    with Wire(broker.port("vibemq")) as client:
        create(client, "q", maxRetryAttempts=1, enableDeadLetterQueue=True)
        client.publish("q", "1", "2")
        client.subscribe("q")
        assert [frame.id for frame in client.many(2)] == ["1", "2"]
        wait_until(
            lambda: not client.info("q")["unackedCount"], "the time to acknowledge never ends"
        )
        assert client.info("q")["messageCount"] == client.info("q.dlq")["messageCount"] == 1
        broker.kill()
    with Wire(broker.start().port("vibemq")) as client:
        assert client.info("q")["messageCount"] == client.info("q.dlq")["messageCount"] == 1
        client.subscribe("q.dlq")
        [first] = client.many(1)
        client.say(Frame(wire.ACK, first.id))
        client.subscribe("q")
        second = client.next()
        assert {first.id, second.id} == {"1", "2"}
        assert second.headers["deliveryAttempts"] == "2"
