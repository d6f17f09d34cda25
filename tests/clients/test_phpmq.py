from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.model.message import Message
from sluicemq.protocols.phpmq import wire
from tests.protocols.phpmq.harness import Harness, encode_dispatch
from tests.protocols.sockets import port_of, run_against


def run(scenario: Callable[[Harness, int], Coroutine[None, None, None]]) -> Harness:
    return run_against(Harness(), scenario)


@pytest.fixture
def harness() -> Harness:
    return Harness()


# --- asyncio -----------------------------------------------------------------------------------


def test_send_consume_and_every_kind_of_acknowledgement() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            for body in (b"ack", b"requeue", b"dead"):
                await client.send("Foo", body, ttl=3600)
            messages = []
            async for message in client.consume("Foo", window=1):
                messages.append((message.queue, message.body, message.ttl))
                if message.body == b"ack":
                    await message.ack()
                elif message.body == b"dead":
                    await message.dead_letter()
                elif message.ttl == 3600:
                    first_id = message.id
                    await message.requeue(ttl=60)
                else:
                    assert message.id == first_id
                    await message.ack()
                    break
        assert messages == [
            ("Foo", b"ack", 3600),
            ("Foo", b"requeue", 3600),
            ("Foo", b"dead", 3600),
            ("Foo", b"requeue", 60),
        ]

    harness = run(scenario)
    assert harness.bodies("Foo") == []
    assert harness.bodies("Foo.dlq") == [b"dead"]


def test_reply_goes_to_reply_queue_of_message() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        question = Message(Address(Kind.QUEUE, "q"), b"?", reply_to=Address(Kind.QUEUE, "answers"))
        harness.broker.publish(harness.broker.destinations.queue("q"), question)
        async with await PhpmqClient.connect(port=port) as client:
            async for message in client.consume("q"):
                await message.answer(b"!", ttl=60)
                await message.ack()
                break
            await client.subscribe("answers")
            answer = await client.receive()
            assert (answer.body, answer.ttl) == (b"!", 60)

    assert run(scenario).bodies("q") == []


def test_window_limits_unacked_messages() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            for number in range(5):
                await client.send("q", b"%d" % number)
            await client.subscribe("q", 2)
            first = await client.receive()
            await client.receive()
            with pytest.raises(RequestTimeout):
                await client.receive(timeout=0.02)
            await first.ack()
            assert (await client.receive()).body == b"2"
            await client.subscribe("q", 5)
            assert [(await client.receive()).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    run(scenario)


def test_messages_of_old_subscription_are_not_returned_by_new_one() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            await client.send("a", b"from a")
            await client.send("b", b"from b")
            await client.subscribe("a", 1)
            await client.subscribe("b", 1)
            assert (await client.receive()).body == b"from b"
            await client.subscribe("b", 0)
            with pytest.raises(RequestTimeout):
                await client.receive(timeout=0.02)

    assert run(scenario).bodies("a") == [b"from a"]


def test_requeued_message_is_not_returned_twice() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            for number in range(3):
                await client.send("q", b"%d" % number)
            await client.subscribe("q", 3)
            assert (await client.receive()).body == b"0"
            await client.subscribe("q", 3)
            assert [(await client.receive()).body for _ in range(3)] == [b"0", b"1", b"2"]
            with pytest.raises(RequestTimeout):
                await client.receive(timeout=0.02)

    run(scenario)


def test_cancelled_receive_loses_nothing() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            await client.subscribe("q", 5)
            task = asyncio.create_task(client.receive())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.send("q", b"1")
            assert (await client.receive()).body == b"1"

    run(scenario)


def test_generation_1_sends_two_packets(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener), dispatch_version=1)
        await client.send("q", b"1", ttl=9)
        server, _ = listener.accept()
        with server:
            assert server.recv(100) == wire.encode_send(b"q", b"1", dispatch_version=1)
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("dispatch_version", [1, 2])
def test_dispatches_of_both_versions_are_read(
    listener: socket.socket, dispatch_version: int
) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port_of(listener))
    client.subscribe("q")
    server, _ = listener.accept()
    with server:
        server.sendall(encode_dispatch(b"q", b"body", b"f" * 32, dispatch_version=dispatch_version))
        assert client.receive(timeout=60).body == b"body"
    client.close()


def test_values_that_cannot_be_encoded_are_not_sent(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        for queue in ("", "q" * 1025):
            with pytest.raises(ValueError, match="queue name"):
                await client.send(queue, b"")
            with pytest.raises(ValueError, match="queue name"):
                await client.subscribe(queue)
        for number in (-1, 0.5):
            with pytest.raises(ValueError, match="ttl"):
                await client.send("q", b"", ttl=number)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="window"):
                await client.subscribe("q", number)  # type: ignore[arg-type]
        await client.send("q", b"good")
        server, _ = listener.accept()
        with server:
            assert server.recv(1000) == wire.encode_send(b"q", b"good")
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before close", "during close", "during close and receive"])
def test_close_raises_if_connection_is_reset_after_send(listener: socket.socket, when: str) -> None:
    """The broker resets a connection whose messages it has not stored."""

    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        await client.send("q", b"lost")
        peer, _ = listener.accept()
        assert await asyncio.to_thread(peer.recv, 1000)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if when == "before close":
            peer.close()
            while client._connection.failure is None:
                await asyncio.sleep(0.001)
            closing = asyncio.create_task(client.close())
        else:
            receiving = asyncio.create_task(client.receive())
            await asyncio.sleep(0)
            if when == "during close":
                receiving.cancel()
            closing = asyncio.create_task(client.close())
            assert await asyncio.to_thread(peer.recv, 1000) == b""
            await asyncio.wait([receiving])
            if not receiving.cancelled():
                with pytest.raises(ConnectionLost, match="the client is closed"):
                    await client.send("q", b"not sent")
            peer.close()
        with pytest.raises(ConnectionLost, match="reset"):
            await closing
        await client.close()

    asyncio.run(main())


def test_close_after_reset_without_unconfirmed_messages(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        await client.send("q", b"stored")
        peer, _ = listener.accept()
        confirmation = asyncio.create_task(client.confirm())
        received = b""
        while (probe := received.rfind(wire.PROBE)) < 0 or b"confirm" not in received:
            received += await asyncio.to_thread(peer.recv, 1000)
        queue = received[probe : probe + len(wire.PROBE) + 16]
        peer.sendall(encode_dispatch(queue, b"confirm", b"f" * 32))
        await confirmation
        assert await asyncio.to_thread(peer.recv, 1000)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_stored", [True, False])
def test_close_over_tls_confirms_messages_while_dispatches_arrive(
    listener: socket.socket, certificates: tuple[ssl.SSLContext, ssl.SSLContext], is_stored: bool
) -> None:
    server_context, client_context = certificates

    async def main() -> None:
        port = port_of(listener)
        connecting = asyncio.create_task(
            PhpmqClient.connect("localhost", port, ssl_context=client_context)
        )
        connection, _ = await asyncio.to_thread(listener.accept)
        connection.settimeout(60)
        peer = await asyncio.to_thread(server_context.wrap_socket, connection, server_side=True)
        client = await connecting
        await client.subscribe("q", 2)
        await client.send("q", b"1")
        receiving = asyncio.create_task(client.receive())
        await asyncio.sleep(0)
        closing = asyncio.create_task(client.close())
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await receiving
        with pytest.raises(ConnectionLost, match="the client is closed"):
            await client.subscribe("q", 2)
        peer.sendall(encode_dispatch(b"q", b"1", b"f" * 32))
        received = b""
        while b"confirm" not in received:
            data = await asyncio.to_thread(peer.recv, 1000)
            assert data, "the client has ended the connection"
            received += data
        if is_stored:
            probe = received.rfind(wire.PROBE)
            queue = received[probe : probe + len(wire.PROBE) + 16]
            peer.sendall(encode_dispatch(queue, b"", b"e" * 32))
            assert await asyncio.to_thread(peer.recv, 1000) == wire.encode_acknowledge(
                queue, b"e" * 32
            )
            assert await asyncio.to_thread(peer.recv, 1000) == b""
        peer.close()
        if is_stored:
            await closing
        else:
            with pytest.raises(ConnectionLost, match="the broker closed the connection"):
                await closing
        await client.close()

    asyncio.run(main())


# --- blocking ----------------------------------------------------------------------------------


def test_blocking_send_consume_and_acknowledge(harness: Harness, port: int) -> None:
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        for body in (b"ack", b"requeue", b"dead"):
            client.send("Foo", body, ttl=100)
        bodies = []
        for message in client.consume("Foo", window=2):
            bodies.append(message.body)
            if message.body == b"requeue" and message.ttl == 100:
                message.requeue()
            elif message.body == b"dead":
                message.dead_letter()
            else:
                message.ack()
            if len(bodies) == 4:
                break
    assert bodies == [b"ack", b"requeue", b"dead", b"requeue"]
    assert harness.bodies("Foo") == []
    assert harness.bodies("Foo.dlq") == [b"dead"]


def test_blocking_close_returns_only_after_broker_has_read_everything(
    harness: Harness,
    port: int,
) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port)
    client.subscribe("q", 3)  # unread input must not make the kernel reset the connection
    for number in range(500):
        client.send("q", b"%d" % number * 300)
    client.close()
    assert len(harness.bodies("q")) == 500
    client.close()
    with pytest.raises(ConnectionLost):
        client.send("q", b"")


def test_blocking_receive_times_out_and_can_be_repeated(harness: Harness, port: int) -> None:
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.subscribe("q", 1)
        with pytest.raises(RequestTimeout):
            client.receive(timeout=0.02)
        with pytest.raises(RequestTimeout):
            client.receive(timeout=0)
        client.send("q", b"1")
        assert client.receive().body == b"1"
        client.send("other", b"2")
        client.subscribe("other", 1)
        assert client.receive().body == b"2"


def test_blocking_values_that_cannot_be_encoded_are_not_sent(listener: socket.socket) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port_of(listener), dispatch_version=1)
    for queue in ("", "q" * 1025):
        with pytest.raises(ValueError, match="queue name"):
            client.send(queue, b"")
    with pytest.raises(ValueError, match="window"):
        client.subscribe("q", -1)
    client.send("q", b"1")
    server, _ = listener.accept()
    with server:
        assert server.recv(100) == wire.encode_send(b"q", b"1", dispatch_version=1)
    client.close()
