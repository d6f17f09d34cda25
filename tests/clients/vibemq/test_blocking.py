from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import (
    ABSENT,
    CommandRefused,
    Compression,
    Conflict,
    Declaration,
    Mode,
    QueueOptions,
    VibeMQClient,
)
from sluicemq.model.errors import ClientError, ConnectionLost, RequestTimeout
from sluicemq.protocols.vibemq import wire
from sluicemq.protocols.vibemq.wire import Frame
from tests.clients.vibemq.scripted_broker import HELLO, ScriptedBroker, replying, run_scenario
from tests.protocols.sockets import port_of
from tests.protocols.vibemq.harness import Harness


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_blocking_publish_receive_acknowledge(harness: Harness, port: int) -> None:
    with BlockingClient(VibeMQClient.connect, port=port, outstanding=3) as client:
        identity = client.publish("q", {"a": 1}, {"x": "y"})
        assert client.publish_all("q", range(100)) == 100
        client.publish("q", ABSENT, id="mine")
        subscription = client.subscribe("q")
        messages = iter(subscription)
        first = next(messages)
        assert (first.id, first.json(), first.attempts) == (identity, {"a": 1}, 1)
        first.ack()
        for number in range(100):
            message = next(messages)
            assert message.json() == number
            message.ack()
        assert next(messages).id == "mine"
        with pytest.raises(RequestTimeout):
            subscription.receive(timeout=0.01)
        with pytest.raises(ValueError, match="already"):
            client.subscribe("q")
        subscription.unsubscribe()
        subscription.unsubscribe()
        redelivered = client.subscribe("q").receive()
        assert (redelivered.id, redelivered.attempts) == ("mine", 2)
        assert client.ping() >= 0
    assert harness.bodies("q") == [b""]


def test_blocking_queue_operations(harness: Harness, port: int) -> None:
    options = QueueOptions(Mode.PRIORITY_BASED)
    with BlockingClient(VibeMQClient.connect, port=port) as client:
        assert client.queue_info("q") is None
        client.create_queue("q")
        client.declare(Declaration("q"), Declaration("q", options, Conflict.IGNORE))
        with pytest.raises(ClientError, match="not as declared"):
            client.declare(Declaration("q", options))
        client.declare(Declaration("q", options, Conflict.OVERRIDE))
        info = client.queue_info("q")
        assert info is not None
        assert info.options == options
        assert client.list_queues() == ["q"]
        client.delete_queue("q")
        client.delete_queue("q")
        assert client.list_queues() == []


def test_close_confirms_posted_messages(harness: Harness, port: int) -> None:
    with BlockingClient(VibeMQClient.connect, port=port, outstanding=5) as client:
        ids = [client.post("q", number) for number in range(12)]
        client.confirm()
        assert len(harness.bodies("q")) == len(set(ids)) == 12
        client.post("q", 12)
    assert len(harness.bodies("q")) == 13
    client = BlockingClient(VibeMQClient.connect, port=port)
    client.post("no such name!")
    with pytest.raises(CommandRefused, match="INVALID_MESSAGE"):
        client.close()
    client.close()


def test_number_of_unconfirmed_posts_is_limited() -> None:
    async def scenario(broker: ScriptedBroker, port: int) -> None:
        def user() -> None:
            client = BlockingClient(
                VibeMQClient.connect, port=port, outstanding=3, timeout=1, reconnect=None
            )
            for number in range(3):
                client.post("q", number)
            with pytest.raises(RequestTimeout):
                client.post("q", 3)
            with pytest.raises(RequestTimeout):
                client.close()

        await asyncio.to_thread(user)
        assert broker.types().count(wire.PUBLISH) == 3

    run_scenario(scenario, replying(wire.PUBLISH))


def test_blocking_errors_of_broker_are_raised(harness: Harness, port: int) -> None:
    with BlockingClient(VibeMQClient.connect, port=port) as client:
        for call in (client.subscribe, client.subscribe, lambda queue: client.publish(queue, 1)):
            with pytest.raises(CommandRefused, match="INVALID"):
                call("no such name!")
        with pytest.raises(ValueError, match="JSON"):
            client.publish("q", object())
        client.publish("q", 1)
    assert harness.bodies("q") == [b"1"]


@pytest.mark.parametrize("how", [Compression.GZIP, Compression.BROTLI])
def test_blocking_compression(harness: Harness, port: int, how: Compression) -> None:
    with BlockingClient(VibeMQClient.connect, port=port, compression=[how], threshold=0) as client:
        client.publish("q", "x" * 10_000)
        assert client.subscribe("q").receive().json() == "x" * 10_000


def test_blocking_calls_fail_when_broker_disconnects(listener: socket.socket) -> None:
    error_frame = Frame(wire.ERROR, "foreign", error_code="SERVER_ERROR", error_message="oops")

    def broker() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1 << 16)
            peer.send(wire.encode(HELLO))
            peer.recv(1 << 16)
            peer.send(wire.encode(error_frame))

    thread = threading.Thread(target=broker)
    thread.start()
    client = BlockingClient(VibeMQClient.connect, port=port_of(listener), reconnect=None)
    with pytest.raises(ConnectionLost, match="SERVER_ERROR: oops"):
        client.publish("q", 1)
    thread.join()
    with pytest.raises(ConnectionLost):
        client.publish("q", 2)
    client.close()


def test_blocking_calls_time_out_with_silent_broker(listener: socket.socket) -> None:
    with pytest.raises(RequestTimeout):
        BlockingClient(VibeMQClient.connect, port=port_of(listener), timeout=0.3)
