"""Unacked messages of FanOutWithAck subscribers when the broker is stopped or killed: they are
redelivered in order with their attempts. Acknowledgement timeouts over sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Decoder, Frame
from tests.faults.load import TIMEOUT_SECONDS
from tests.support.polling import wait_until

LISTEN = ("vibemq://127.0.0.1:0",)


class RawVibemq:
    """A VibeMQ connection that sends and receives single frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._decoder = Decoder()
        self._received: list[Frame] = []
        self.request(wire.CONNECT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, *frames: Frame) -> None:
        self._socket.sendall(b"".join(map(wire.encode, frames)))

    def next_frame(self) -> Frame:
        """Return the next frame; raises TimeoutError after 30 s."""
        while not self._received:
            data = self._socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self._received += self._decoder.feed(data)
        return self._received.pop(0)

    def request(self, kind: int, queue: str = "", options: Any = None) -> Frame:
        """Send a request and return its response, which must be the next frame."""
        payload = b"" if options is None else json.dumps(options).encode()
        self.send(Frame(kind, "r", queue, payload))
        response = self.next_frame()
        assert response.id == "r", response
        return response

    def publish(self, queue: str, *ids: str) -> None:
        """Publish messages whose payloads are their ids, and wait until they are on disk."""
        self.send(*(Frame(wire.PUBLISH, i, queue, json.dumps(i).encode()) for i in ids))
        for _ in ids:
            assert self.next_frame().type == wire.PUBLISH_ACK

    def deliveries(self, count: int) -> list[tuple[str, str]]:
        """Return the ids and attempts of the next `count` deliveries."""
        frames = [self.next_frame() for _ in range(count)]
        assert all(frame.type == wire.DELIVER for frame in frames)
        return [(frame.id, frame.headers["deliveryAttempts"]) for frame in frames]

    def acknowledge(self, *ids: str) -> None:
        """Acknowledge messages."""
        self.send(*(Frame(wire.ACK, identity) for identity in ids))

    def receive_and_acknowledge(self, count: int) -> list[tuple[str, str]]:
        """Acknowledge the next `count` deliveries; return their ids and attempts."""
        deliveries: list[tuple[str, str]] = []
        for _ in range(count):
            deliveries += self.deliveries(1)
            self.acknowledge(deliveries[-1][0])
        return deliveries


def stop(broker: LocalBroker) -> None:
    broker.stop()


def kill(broker: LocalBroker) -> None:
    broker.kill()


def test_unacked_messages_are_redelivered_to_a_new_subscriber(tmp_path: Path) -> None:
    listen = ("vibemq://127.0.0.1:0?window=20",)
    ids = [str(n) for n in range(40)]
    with LocalBroker(tmp_path, listen) as broker, RawVibemq(broker.port("vibemq")) as publisher:
        publisher.request(wire.CREATE_QUEUE, "f", {"mode": 1})
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.request(wire.SUBSCRIBE, "f")
            publisher.publish("f", *ids)
            subscriber.deliveries(20)
        wait_until(
            lambda: (
                not json.loads(publisher.request(wire.QUEUE_INFO, "f").payload)["subscriberCount"]
            ),
            seconds=TIMEOUT_SECONDS,
        )
        publisher.publish("f", "new")
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.request(wire.SUBSCRIBE, "f")
            expected = [(n, "2") for n in ids[:20]] + [(n, "1") for n in [*ids[20:], "new"]]
            assert subscriber.receive_and_acknowledge(41) == expected


@pytest.mark.parametrize("end_broker", [stop, kill])
def test_backlog_and_unacked_messages_survive_the_end_of_the_broker(
    tmp_path: Path, end_broker: Callable[[LocalBroker], None]
) -> None:
    ids = [str(n) for n in range(1000)]
    broker = LocalBroker(tmp_path, LISTEN)
    broker.start()
    try:
        with (
            RawVibemq(broker.port("vibemq")) as publisher,
            RawVibemq(broker.port("vibemq")) as subscriber,
        ):
            publisher.request(wire.CREATE_QUEUE, "f", {"mode": 1})
            subscriber.request(wire.SUBSCRIBE, "f")
            publisher.publish("f", *ids)
            subscriber.deliveries(256)
            # one more publish is on disk after the record of the deliveries
            publisher.publish("f", "new")
            end_broker(broker)
        broker.start()
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.request(wire.SUBSCRIBE, "f")
            expected = [(n, "2") for n in ids[:256]] + [(n, "1") for n in [*ids[256:], "new"]]
            assert subscriber.receive_and_acknowledge(1001) == expected
    finally:
        broker.stop()


@pytest.mark.parametrize("end_broker", [stop, kill])
def test_messages_unacked_by_either_subscriber_survive_the_end(
    tmp_path: Path, end_broker: Callable[[LocalBroker], None]
) -> None:
    broker = LocalBroker(tmp_path, LISTEN)
    broker.start()
    try:
        with (
            RawVibemq(broker.port("vibemq")) as publisher,
            RawVibemq(broker.port("vibemq")) as first,
            RawVibemq(broker.port("vibemq")) as second,
        ):
            publisher.request(wire.CREATE_QUEUE, "f", {"mode": 1})
            first.request(wire.SUBSCRIBE, "f")
            second.request(wire.SUBSCRIBE, "f")
            publisher.publish("f", "1", "2", "3", "4")
            first.deliveries(4)
            second.deliveries(4)
            first.acknowledge("1", "2")
            second.acknowledge("2", "3")
            for client in (first, second):
                client.request(wire.PING)
            publisher.publish("f", "5")
            end_broker(broker)
        broker.start()
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.request(wire.SUBSCRIBE, "f")
            deliveries = subscriber.receive_and_acknowledge(4)
            assert [name for name, _ in deliveries] == ["1", "3", "4", "5"]
            assert [attempts for _, attempts in deliveries[:3]] == ["2", "2", "2"]
    finally:
        broker.stop()


def test_messages_after_an_expired_ack_timeout_go_to_another_consumer(tmp_path: Path) -> None:
    # long enough to receive the messages and subscribe on a busy machine
    listen = ("vibemq://127.0.0.1:0?ack_timeout=4",)
    with (
        LocalBroker(tmp_path, listen) as broker,
        RawVibemq(broker.port("vibemq")) as silent_consumer,
        RawVibemq(broker.port("vibemq")) as other_consumer,
    ):
        silent_consumer.publish("q", *(str(n) for n in range(256)))
        silent_consumer.request(wire.SUBSCRIBE, "q")
        silent_consumer.deliveries(256)
        other_consumer.request(wire.SUBSCRIBE, "q")
        attempts = dict(other_consumer.receive_and_acknowledge(255) + silent_consumer.deliveries(1))
        assert attempts.pop("0") == "2"
        assert set(attempts.values()) == {"1"}
