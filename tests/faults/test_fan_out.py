"""Unacked messages of the subscribers of a FanOutWithAck queue when the broker is stopped or
killed: each subscriber gets all missing messages again, in order and with their attempts. And
timeouts, over real sockets."""

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
    """One VibeMQ connection, frame by frame."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._decoder = Decoder()
        self._arrived: list[Frame] = []
        self.ask(wire.CONNECT)

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

    def next(self) -> Frame:
        """The next frame. Raises TimeoutError after 30 s."""
        while not self._arrived:
            data = self._socket.recv(1 << 16)
            assert data, "the broker has closed the connection"
            self._arrived += self._decoder.feed(data)
        return self._arrived.pop(0)

    def ask(self, kind: int, queue: str = "", options: Any = None) -> Frame:
        """Send a request; returns its answer, which comes before anything else."""
        payload = b"" if options is None else json.dumps(options).encode()
        self.send(Frame(kind, "r", queue, payload))
        answer = self.next()
        assert answer.id == "r", answer
        return answer

    def publish(self, queue: str, *ids: str) -> None:
        """Each message has its id as payload; returns when all are on disk."""
        self.send(*(Frame(wire.PUBLISH, i, queue, json.dumps(i).encode()) for i in ids))
        for _ in ids:
            assert self.next().type == wire.PUBLISH_ACK

    def deliveries(self, count: int) -> list[tuple[str, str]]:
        """Ids and attempts of the next so many."""
        frames = [self.next() for _ in range(count)]
        assert all(frame.type == wire.DELIVER for frame in frames)
        return [(frame.id, frame.headers["deliveryAttempts"]) for frame in frames]

    def acknowledge(self, *ids: str) -> None:
        """Acknowledge these."""
        self.send(*(Frame(wire.ACK, identity) for identity in ids))

    def take(self, count: int) -> list[tuple[str, str]]:
        """The next so many deliveries, each of which is acknowledged."""
        deliveries: list[tuple[str, str]] = []
        for _ in range(count):
            deliveries += self.deliveries(1)
            self.acknowledge(deliveries[-1][0])
        return deliveries


def stop(broker: LocalBroker) -> None:
    broker.stop()


def kill(broker: LocalBroker) -> None:
    broker.kill()


def test_the_only_subscriber_restarts_with_twenty_in_hand(tmp_path: Path) -> None:
    listen = ("vibemq://127.0.0.1:0?window=20",)
    ids = [str(n) for n in range(40)]
    with LocalBroker(tmp_path, listen) as broker, RawVibemq(broker.port("vibemq")) as publisher:
        publisher.ask(wire.CREATE_QUEUE, "f", {"mode": 1})
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.ask(wire.SUBSCRIBE, "f")
            publisher.publish("f", *ids)
            subscriber.deliveries(20)
        wait_until(
            lambda: not json.loads(publisher.ask(wire.QUEUE_INFO, "f").payload)["subscriberCount"],
            seconds=TIMEOUT_SECONDS,
        )
        publisher.publish("f", "new")
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.ask(wire.SUBSCRIBE, "f")
            expected = [(n, "2") for n in ids[:20]] + [(n, "1") for n in [*ids[20:], "new"]]
            assert subscriber.take(41) == expected


@pytest.mark.parametrize("end", [stop, kill])
def test_the_broker_ends_with_a_backlog_of_a_thousand(
    tmp_path: Path, end: Callable[[LocalBroker], None]
) -> None:
    ids = [str(n) for n in range(1000)]
    broker = LocalBroker(tmp_path, LISTEN)
    broker.start()
    try:
        with (
            RawVibemq(broker.port("vibemq")) as publisher,
            RawVibemq(broker.port("vibemq")) as subscriber,
        ):
            publisher.ask(wire.CREATE_QUEUE, "f", {"mode": 1})
            subscriber.ask(wire.SUBSCRIBE, "f")
            publisher.publish("f", *ids)
            subscriber.deliveries(256)
            # one more publish is on disk after the record of the deliveries
            publisher.publish("f", "new")
            end(broker)
        broker.start()
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.ask(wire.SUBSCRIBE, "f")
            expected = [(n, "2") for n in ids[:256]] + [(n, "1") for n in [*ids[256:], "new"]]
            assert subscriber.take(1001) == expected
    finally:
        broker.stop()


@pytest.mark.parametrize("end", [stop, kill])
def test_the_broker_ends_and_two_subscribers_lack_different_messages(
    tmp_path: Path, end: Callable[[LocalBroker], None]
) -> None:
    broker = LocalBroker(tmp_path, LISTEN)
    broker.start()
    try:
        with (
            RawVibemq(broker.port("vibemq")) as publisher,
            RawVibemq(broker.port("vibemq")) as first,
            RawVibemq(broker.port("vibemq")) as second,
        ):
            publisher.ask(wire.CREATE_QUEUE, "f", {"mode": 1})
            first.ask(wire.SUBSCRIBE, "f")
            second.ask(wire.SUBSCRIBE, "f")
            publisher.publish("f", "1", "2", "3", "4")
            first.deliveries(4)
            second.deliveries(4)
            first.acknowledge("1", "2")
            second.acknowledge("2", "3")
            for client in (first, second):
                client.ask(wire.PING)
            publisher.publish("f", "5")
            end(broker)
        broker.start()
        with RawVibemq(broker.port("vibemq")) as subscriber:
            subscriber.ask(wire.SUBSCRIBE, "f")
            deliveries = subscriber.take(4)
            assert [name for name, _ in deliveries] == ["1", "3", "4", "5"]
            assert [attempts for _, attempts in deliveries[:3]] == ["2", "2", "2"]
    finally:
        broker.stop()


def test_a_silent_consumer_loses_its_unstarted_deliveries_at_once(tmp_path: Path) -> None:
    # time enough to receive them and to subscribe again, whatever else the machine does
    listen = ("vibemq://127.0.0.1:0?ack_timeout=4",)
    with (
        LocalBroker(tmp_path, listen) as broker,
        RawVibemq(broker.port("vibemq")) as silent_consumer,
        RawVibemq(broker.port("vibemq")) as other_consumer,
    ):
        silent_consumer.publish("q", *(str(n) for n in range(256)))
        silent_consumer.ask(wire.SUBSCRIBE, "q")
        silent_consumer.deliveries(256)
        other_consumer.ask(wire.SUBSCRIBE, "q")
        attempts = dict(other_consumer.take(255) + silent_consumer.deliveries(1))
        assert attempts.pop("0") == "2"
        assert set(attempts.values()) == {"1"}
