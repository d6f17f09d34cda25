from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sluicemq.model.errors import ConnectionLost, RequestTimeout
from sluicemq.protocols.phpmq import wire
from sluicemq.protocols.phpmq.client import BlockingPhpmqClient, PhpmqClient
from sluicemq.protocols.phpmq.session import PhpmqSession
from tests.protocols.phpmq.harness import Harness


class SocketLink(asyncio.Protocol):
    """A session behind a real socket; each read is a turn of the broker."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.peer = "test"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.session = PhpmqSession(self, self.harness.broker)

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)
        self.harness.turn()

    def eof_received(self) -> bool:
        self.session.end_of_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.closed()
        self.harness.turn()

    def write(self, chunks: Iterable[bytes]) -> None:
        self.transport.writelines(chunks)

    def close(self, reason: str = "") -> None:
        self.transport.close()

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, callback)


async def serve(harness: Harness) -> tuple[asyncio.Server, int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SocketLink(harness), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def run(scenario: Callable[[Harness, int], Coroutine[None, None, None]]) -> Harness:
    """Run a scenario against a broker that listens on a port."""
    harness = Harness()

    async def main() -> None:
        server, port = await serve(harness)
        async with server:
            async with asyncio.timeout(30):
                await scenario(harness, port)

    asyncio.run(main())
    return harness


@pytest.fixture
def broker_in_a_thread() -> Iterator[tuple[Harness, int]]:
    harness = Harness()
    loop = asyncio.new_event_loop()
    server, port = loop.run_until_complete(serve(harness))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield harness, port
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(server.wait_closed())
    loop.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that says only what the test makes it say."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(listener: socket.socket) -> int:
    return cast(int, listener.getsockname()[1])


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return cast(int, server.getsockname()[1])


# --- asyncio -----------------------------------------------------------------------------------


def test_send_consume_and_settle_in_all_ways() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            for body in (b"ack", b"requeue", b"dead"):
                await client.send("Foo", body, ttl=3600)
            seen = []
            async for message in client.consume("Foo", window=1):
                seen.append((message.queue, message.body, message.ttl))
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
        assert seen == [
            ("Foo", b"ack", 3600),
            ("Foo", b"requeue", 3600),
            ("Foo", b"dead", 3600),
            ("Foo", b"requeue", 60),
        ]

    harness = run(scenario)
    assert harness.bodies("Foo") == []
    assert harness.bodies("Foo.dlq") == [b"dead"]


def test_close_returns_only_after_the_broker_has_read_everything() -> None:
    bodies = [b"%d" % n * 5000 for n in range(200)]

    async def scenario(harness: Harness, port: int) -> None:
        client = await PhpmqClient.connect(port=port)
        for body in bodies:
            await client.send("q", body)
        await client.close()
        assert harness.bodies("q") == bodies
        await client.close()
        with pytest.raises(ConnectionLost):
            await client.send("q", b"")

    run(scenario)


def test_the_window_bounds_what_is_unsettled() -> None:
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


def test_messages_of_the_old_subscription_are_not_shown_as_the_new_ones() -> None:
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


def test_what_has_arrived_and_was_given_back_is_not_shown_twice() -> None:
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


def test_a_cancelled_receive_loses_nothing() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await PhpmqClient.connect(port=port) as client:
            await client.subscribe("q", 5)
            waiting = asyncio.create_task(client.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.send("q", b"1")
            assert (await client.receive()).body == b"1"

    run(scenario)


def test_a_unix_socket(tmp_path: Path) -> None:
    harness = Harness()
    path = str(tmp_path / "phpmq.socket")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: SocketLink(harness), path)
        async with server, await PhpmqClient.connect(path=path) as client:
            await client.send("q", b"1")

    asyncio.run(main())
    assert harness.bodies("q") == [b"1"]


def test_generation_1_sends_two_packets(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener), generation=1)
        await client.send("q", b"1", ttl=9)
        server, _ = listener.accept()
        with server:
            assert server.recv(100) == wire.encode_send(b"q", b"1", generation=1)
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("generation", [1, 2])
def test_dispatches_of_both_generations_are_read(listener: socket.socket, generation: int) -> None:
    client = BlockingPhpmqClient.connect(port=port_of(listener))
    client.subscribe("q")
    server, _ = listener.accept()
    with server:
        server.sendall(wire.encode_dispatch(b"q", b"body", b"f" * 32, generation=generation))
        assert client.receive(timeout=10).body == b"body"
    client.close()


def test_nobody_listens() -> None:
    port = unused_port()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        asyncio.run(PhpmqClient.connect(port=port))
    with pytest.raises(ConnectionLost, match="cannot connect"):
        BlockingPhpmqClient.connect(port=port)
    with pytest.raises(ConnectionLost, match="cannot connect"):
        BlockingPhpmqClient.connect(path="/nowhere/phpmq.socket")


def test_the_broker_goes_away(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        server, _ = listener.accept()
        await client.subscribe("q", 2)
        receiving = asyncio.create_task(client.receive())
        server.sendall(wire.encode_dispatch(b"q", b"last", b"f" * 32))
        server.shutdown(socket.SHUT_WR)
        assert (await receiving).body == b"last"
        with pytest.raises(ConnectionLost):
            await client.receive()
        with pytest.raises(ConnectionLost):
            await client.send("q", b"")
        server.close()
        await client.close()

    asyncio.run(main())


def test_the_broker_breaks_the_protocol(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        server, _ = listener.accept()
        with server:
            await client.subscribe("q", 2)
            server.sendall(wire.encode_dispatch(b"q", b"good", b"f" * 32) + b"HTTP/1.1 400 Bad")
            assert (await client.receive()).body == b"good"
            with pytest.raises(ConnectionLost, match="broke the protocol"):
                await client.receive()
            await client.close()

    asyncio.run(main())


def test_a_broker_that_takes_nothing(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener), timeout=0.05)
        server, _ = listener.accept()
        with server:
            with pytest.raises(RequestTimeout):
                await client.send("q", bytes(32 << 20))
            with pytest.raises(RequestTimeout):
                await client.close()

    asyncio.run(main())


def test_what_has_no_form_in_the_protocol_is_not_sent(listener: socket.socket) -> None:
    async def main() -> None:
        client = await PhpmqClient.connect(port=port_of(listener))
        for queue in ("", "q" * 1025):
            with pytest.raises(ValueError, match="queue name"):
                await client.send(queue, b"")
            with pytest.raises(ValueError, match="queue name"):
                await client.subscribe(queue)
        with pytest.raises(ValueError, match="ttl"):
            await client.send("q", b"", ttl=-1)
        with pytest.raises(ValueError, match="window"):
            await client.subscribe("q", -1)
        await client.send("q", b"good")
        server, _ = listener.accept()
        with server:
            assert server.recv(1000) == wire.encode_send(b"q", b"good")
        await client.close()

    asyncio.run(main())


# --- blocking ----------------------------------------------------------------------------------


def test_blocking_send_consume_and_settle(broker_in_a_thread: tuple[Harness, int]) -> None:
    harness, port = broker_in_a_thread
    with BlockingPhpmqClient.connect(port=port) as client:
        for body in (b"ack", b"requeue", b"dead"):
            client.send("Foo", body, ttl=100)
        seen = []
        for message in client.consume("Foo", window=2):
            seen.append(message.body)
            if message.body == b"requeue" and message.ttl == 100:
                message.requeue()
            elif message.body == b"dead":
                message.dead_letter()
            else:
                message.ack()
            if len(seen) == 4:
                break
    assert seen == [b"ack", b"requeue", b"dead", b"requeue"]
    assert harness.bodies("Foo") == []
    assert harness.bodies("Foo.dlq") == [b"dead"]


def test_blocking_close_returns_only_after_the_broker_has_read_everything(
    broker_in_a_thread: tuple[Harness, int],
) -> None:
    harness, port = broker_in_a_thread
    client = BlockingPhpmqClient.connect(port=port)
    client.subscribe("q", 3)  # what arrives unread must not make the kernel reset the connection
    for number in range(500):
        client.send("q", b"%d" % number * 300)
    client.close()
    assert len(harness.bodies("q")) == 500
    client.close()
    with pytest.raises(ConnectionLost):
        client.send("q", b"")


def test_blocking_receive_times_out_and_goes_on(broker_in_a_thread: tuple[Harness, int]) -> None:
    _, port = broker_in_a_thread
    with BlockingPhpmqClient.connect(port=port) as client:
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


def test_blocking_the_broker_breaks_the_protocol_or_goes_away(listener: socket.socket) -> None:
    client = BlockingPhpmqClient.connect(port=port_of(listener))
    server, _ = listener.accept()
    client.subscribe("q", 2)
    server.sendall(wire.encode_dispatch(b"q", b"good", b"f" * 32) + b"HTTP/1.1 400 Bad")
    assert client.receive().body == b"good"
    with pytest.raises(ConnectionLost, match="broke the protocol"):
        client.receive(timeout=10)
    client.close()
    server.close()
    client = BlockingPhpmqClient.connect(port=port_of(listener))
    server, _ = listener.accept()
    server.close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        client.receive(timeout=10)
    client.close()


def test_blocking_a_broker_that_takes_nothing(listener: socket.socket) -> None:
    client = BlockingPhpmqClient.connect(port=port_of(listener), timeout=0.05)
    server, _ = listener.accept()
    with server:
        with pytest.raises(RequestTimeout):
            client.send("q", bytes(32 << 20))
        client.close()
        idle = BlockingPhpmqClient.connect(port=port_of(listener), timeout=0.05)
        with pytest.raises(RequestTimeout, match="did not close"):
            idle.close()


def test_blocking_a_unix_socket_and_values_without_form(tmp_path: Path) -> None:
    path = str(tmp_path / "phpmq.socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        client = BlockingPhpmqClient.connect(path=path, generation=1)
        for queue in ("", "q" * 1025):
            with pytest.raises(ValueError, match="queue name"):
                client.send(queue, b"")
        with pytest.raises(ValueError, match="window"):
            client.subscribe("q", -1)
        client.send("q", b"1")
        accepted, _ = server.accept()
        with accepted:
            assert accepted.recv(100) == wire.encode_send(b"q", b"1", generation=1)
        client.close()
