from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from sluicemq.model.errors import ConnectionLost, RequestRefused, RequestTimeout
from sluicemq.protocols.msglite import wire
from sluicemq.protocols.msglite.client import BlockingMsgliteClient, MsgliteClient
from sluicemq.protocols.msglite.session import MsgliteSession
from tests.protocols.msglite.harness import Harness

LONG = 60


class SocketLink(asyncio.Protocol):
    """A session behind a real socket; each read is a turn of the broker."""

    def __init__(self, harness: Harness, links: list[SocketLink]) -> None:
        self.harness = harness
        self.links = links
        self.peer = "test"
        self.ended = False
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.session = MsgliteSession(self, self.harness.broker, self.harness.replies)
        self.links.append(self)

    def data_received(self, data: bytes) -> None:
        if not self.closing:
            self.session.receive(data)
            self.turn()

    def eof_received(self) -> bool:
        self.ended = True
        if self.closing:
            return False
        self.session.end_of_input()
        self.turn()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.links.remove(self)
        self.session.closed()
        self.turn()

    def turn(self) -> None:
        self.harness.turn()
        for link in list(self.links):
            link.session.flushed()
        self.harness.turn()

    def write(self, chunks: Iterable[bytes]) -> None:
        self.transport.writelines(chunks)

    def close(self, reason: str = "") -> None:
        # closing with unread input would reset the connection and lose what was written last
        self.closing = True
        if self.ended:
            self.transport.close()
        else:
            self.transport.write_eof()

    def pause_reading(self) -> None:
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def call() -> None:
            self.harness.clock.advance(round(delay * 1000))
            callback()
            self.turn()

        return asyncio.get_running_loop().call_later(delay, call)


async def serve(harness: Harness, path: str | None = None) -> tuple[asyncio.Server, int]:
    loop = asyncio.get_running_loop()
    links: list[SocketLink] = []
    if path is not None:
        return await loop.create_unix_server(lambda: SocketLink(harness, links), path), 0
    server = await loop.create_server(lambda: SocketLink(harness, links), "127.0.0.1", 0)
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


def test_send_and_ready() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await MsgliteClient.connect(port=port) as client:
            await client.send("a", b"\r\n\x00", timeout=9)
            await client.send("b", b"", timeout=8, reply_to="back")
            message = await client.ready("none", "b", "a", timeout=LONG)
            assert message is not None
            assert (message.address, message.body, message.timeout, message.reply_to) == (
                "b",
                b"",
                8,
                "back",
            )
            message = await client.ready("a", timeout=0)
            assert message is not None
            assert (message.address, message.body, message.reply_to) == ("a", b"\r\n\x00", None)
            assert await client.ready("a", timeout=0) is None
            assert await client.ready("a", timeout=1) is None

    run(scenario)


def test_query_and_reply() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async def work() -> None:
            async with await MsgliteClient.connect(port=port) as worker:
                request = await worker.ready("capitals", timeout=LONG)
                assert request is not None
                assert request.reply_to is not None
                await worker.send(request.reply_to, request.body[::-1], timeout=LONG)

        async with await MsgliteClient.connect(port=port) as client:
            task = asyncio.create_task(work())
            reply = await client.query("capitals", b"abc", timeout=LONG)
            assert reply is not None
            assert reply.body == b"cba"
            await task
            assert await client.query("capitals", b"", timeout=0) is None

    run(scenario)


def test_names_that_are_no_text() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await MsgliteClient.connect(port=port) as client:
            await client.send("\udcff", b"x", timeout=9)
            message = await client.ready("\udcff", timeout=0)
            assert message is not None
            assert message.address == "\udcff"

    run(scenario)


def test_what_has_no_form_in_the_protocol() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await MsgliteClient.connect(port=port) as client:
            for name in ("", "a b", "a\r\n.", "\t"):
                with pytest.raises(ValueError, match="no address"):
                    await client.send(name, b"", timeout=1)
                with pytest.raises(ValueError, match="no address"):
                    await client.send("a", b"", timeout=1, reply_to=name)
            for seconds in (-1, 1 << 63):
                with pytest.raises(ValueError, match="timeout"):
                    await client.query("a", b"", timeout=seconds)
            with pytest.raises(ValueError, match="not 9"):
                await client.ready(*"123456789", timeout=1)
            with pytest.raises(ValueError, match="not 0"):
                await client.ready(timeout=1)
            assert await client.ready("a", timeout=0) is None, "the connection is not usable"

    run(scenario)


def test_several_tasks_get_their_own_answers() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with (
            await MsgliteClient.connect(port=port) as client,
            await MsgliteClient.connect(port=port) as sender,
        ):
            first = asyncio.create_task(client.ready("a", timeout=LONG))
            second = asyncio.create_task(client.ready("b", timeout=LONG))
            await sender.send("b", b"for b", timeout=LONG)
            await sender.send("a", b"for a", timeout=LONG)
            bodies = [message and message.body for message in (await first, await second)]
            assert bodies == [b"for a", b"for b"]

    run(scenario)


def test_a_message_that_answers_a_cancelled_ready_is_kept() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with (
            await MsgliteClient.connect(port=port) as client,
            await MsgliteClient.connect(port=port) as sender,
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.ready("a", "b", timeout=LONG), 0.05)
            await sender.send("b", b"x", timeout=LONG)
            assert await client.ready("other", timeout=0) is None
            message = await client.ready("c", "b", timeout=0)
            assert message is not None
            assert message.body == b"x"

    run(scenario)


def test_a_ready_takes_the_place_of_a_cancelled_one() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with (
            await MsgliteClient.connect(port=port) as client,
            await MsgliteClient.connect(port=port) as sender,
        ):
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.ready("a", timeout=LONG), 0.02)
            await sender.send("a", b"1", timeout=LONG)
            await sender.send("a", b"2", timeout=LONG)
            for body in (b"1", b"2"):
                message = await client.ready("a", timeout=LONG)
                assert message is not None
                assert message.body == body

    run(scenario)


def test_who_took_the_place_of_a_cancelled_ready_waits_on_after_its_end(
    listener: socket.socket,
) -> None:
    async def main() -> None:
        client = await MsgliteClient.connect(port=port_of(listener))
        peer, _ = listener.accept()
        with peer:
            cancelled = asyncio.create_task(client.ready("a", timeout=1))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            task = asyncio.create_task(client.ready("a", timeout=LONG))
            await asyncio.sleep(0)
            peer.sendall(b"*\r\n")
            commands = b""
            while commands.count(b"\n") < 2:
                commands += await asyncio.to_thread(peer.recv, 100)
            assert commands == b"< 1 a\r\n< 60 a\r\n"
            peer.sendall(b"> 1 9 a\r\nx\r\n")
            message = await task
            assert message is not None
            client._connection.abort()

    asyncio.run(main())


def test_a_ready_cancelled_as_its_message_arrives_loses_nothing(listener: socket.socket) -> None:
    async def main() -> None:
        client = await MsgliteClient.connect(port=port_of(listener))
        peer, _ = listener.accept()
        with peer:
            task = asyncio.create_task(client.ready("a", timeout=LONG))
            await asyncio.sleep(0)
            # the answer and the cancellation in the same round of the event loop
            client._connection.data_received(b"> 1 9 a\r\nx\r\n")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            message = await client.ready("a", timeout=0)
            assert message is not None
            assert message.body == b"x"
            client._connection.abort()

    asyncio.run(main())


def test_the_reply_to_a_cancelled_query_is_dropped() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with (
            await MsgliteClient.connect(port=port) as client,
            await MsgliteClient.connect(port=port) as worker,
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.query("a", b"", timeout=LONG), 0.05)
            request = await worker.ready("a", timeout=LONG)
            assert request is not None
            assert request.reply_to is not None
            await worker.send(request.reply_to, b"late", timeout=LONG)
            assert await client.ready("b", timeout=0) is None
            assert not client._connection.kept.take((request.reply_to,))

    run(scenario)


def test_close_ends_a_ready_that_was_cancelled_and_delivers_what_was_sent() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await MsgliteClient.connect(port=port)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.ready("a", timeout=LONG), 0.05)
        await client.send("b", b"x", timeout=LONG)
        await client.close()
        assert harness.bodies("b") == [b"x"]
        await client.close()
        with pytest.raises(ConnectionLost):
            await client.send("b", b"", timeout=1)

    run(scenario)


@pytest.mark.parametrize("call", ["ready", "query"])
def test_what_the_broker_refuses(call: str) -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await MsgliteClient.connect(port=port)
        await client._write(b"bad data\r\n")
        answer = (
            client.ready("a", timeout=LONG)
            if call == "ready"
            else client.query("a", b"", timeout=LONG)
        )
        with pytest.raises(RequestRefused, match="unknown command 'bad'"):
            await answer
        with pytest.raises(RequestRefused):
            await client.send("a", b"", timeout=1)
        await client.close()

    run(scenario)


def test_close_tells_what_the_broker_has_refused() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await MsgliteClient.connect(port=port)
        await client._write(b"bad data\r\n")
        with pytest.raises(RequestRefused):
            await client.close()

    run(scenario)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "closed the connection"),
        (b"what?\r\n", "broke the protocol"),
        (b"*\r\n*\r\n", "asked"),
    ],
)
def test_a_broker_that_goes_or_talks_nonsense(
    listener: socket.socket, said: bytes, reason: str
) -> None:
    async def main() -> None:
        client = await MsgliteClient.connect(port=port_of(listener))
        peer, _ = listener.accept()
        task = asyncio.create_task(client.ready("a", timeout=LONG))
        await asyncio.sleep(0)
        with peer:
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            with suppress(ConnectionLost):
                await task
            with pytest.raises(ConnectionLost, match=reason):
                await client.send("a", b"", timeout=1)
            await client.close()

    asyncio.run(main())


def test_a_broker_that_never_answers(listener: socket.socket) -> None:
    async def main() -> None:
        client = await MsgliteClient.connect(port=port_of(listener), timeout=0.05)
        peer, _ = listener.accept()
        with peer:
            with pytest.raises(RequestTimeout):
                await client.ready("a", timeout=0)
            with pytest.raises(RequestTimeout):
                await client.close()

    asyncio.run(main())


def test_nobody_listens(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost):
            await MsgliteClient.connect(port=unused_port())
        with pytest.raises(ConnectionLost):
            await MsgliteClient.connect(path=str(tmp_path / "none"))

    asyncio.run(main())
    with pytest.raises(ConnectionLost):
        BlockingMsgliteClient.connect(port=unused_port())
    with pytest.raises(ConnectionLost):
        BlockingMsgliteClient.connect(path=str(tmp_path / "none"))


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    def block() -> None:
        with BlockingMsgliteClient.connect(path=path) as client:
            message = client.ready("a", timeout=LONG)
            assert message is not None
            assert message.body == b"x"

    async def main() -> None:
        server, _ = await serve(Harness(), path)
        async with server:
            async with await MsgliteClient.connect(path=path) as client:
                await client.send("a", b"x", timeout=LONG)
            await asyncio.to_thread(block)

    asyncio.run(main())


# --- blocking ----------------------------------------------------------------------------------


def test_blocking_send_ready_and_query(broker_in_a_thread: tuple[Harness, int]) -> None:
    harness, port = broker_in_a_thread

    def work() -> None:
        with BlockingMsgliteClient.connect(port=port) as worker:
            request = worker.ready("capitals", timeout=LONG)
            assert request is not None
            assert request.reply_to is not None
            worker.send(request.reply_to, request.body[::-1], timeout=LONG)

    thread = threading.Thread(target=work)
    thread.start()
    with BlockingMsgliteClient.connect(port=port) as client:
        reply = client.query("capitals", b"abc", timeout=LONG)
        assert reply is not None
        assert reply.body == b"cba"
        client.send("a", bytes(300_000), timeout=LONG, reply_to="back")
        message = client.ready("none", "a", timeout=LONG)
        assert message is not None
        assert (message.body, message.reply_to) == (bytes(300_000), "back")
        assert client.ready("a", timeout=0) is None
        client.send("kept", b"x", timeout=LONG)
    thread.join()
    assert harness.bodies("kept") == [b"x"]
    client.close()


def test_blocking_errors(broker_in_a_thread: tuple[Harness, int]) -> None:
    _, port = broker_in_a_thread
    client = BlockingMsgliteClient.connect(port=port)
    with pytest.raises(ValueError, match="no address"):
        client.send("a b", b"", timeout=1)
    client._write(b"bad data\r\n")
    with pytest.raises(RequestRefused, match="unknown command 'bad'"):
        client.ready("a", timeout=LONG)
    with pytest.raises(ConnectionLost):
        client.send("a", b"", timeout=1)
    client = BlockingMsgliteClient.connect(port=port)
    client._write(b"bad data\r\n")
    with pytest.raises(RequestRefused):
        client.close()
    with pytest.raises(ConnectionLost):
        client.ready("a", timeout=0)


def test_blocking_an_answer_that_came_too_late_is_not_taken_for_the_next(
    listener: socket.socket,
) -> None:
    client = BlockingMsgliteClient.connect(port=port_of(listener), timeout=0.05)
    peer, _ = listener.accept()
    with peer:
        with pytest.raises(RequestTimeout):
            client.ready("a", timeout=0)
        with pytest.raises(RequestTimeout):
            client.query("b", b"", timeout=0)
        peer.sendall(wire.encode_message(9, b"a", b"late"))
        peer.sendall(wire.encode_message(9, b"r", b"late reply"))
        peer.sendall(wire.encode_message(9, b"c", b"in time"))
        message = client.ready("c", timeout=LONG)
        assert message is not None
        assert message.body == b"in time"
        message = client.ready("a", timeout=0)
        assert message is not None
        assert message.body == b"late"
        with pytest.raises(RequestTimeout):
            client.ready("r", timeout=0)
        with pytest.raises(RequestTimeout):
            client.close()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "closed the connection"),
        (b"what?\r\n", "broke the protocol"),
    ],
)
def test_blocking_a_broker_that_goes_or_talks_nonsense(
    listener: socket.socket, said: bytes, reason: str
) -> None:
    client = BlockingMsgliteClient.connect(port=port_of(listener))
    peer, _ = listener.accept()
    peer.sendall(said)
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost, match=reason):
        client.ready("a", timeout=LONG)
    peer.close()
    client.close()


def test_blocking_a_broker_that_answers_what_was_not_asked(listener: socket.socket) -> None:
    client = BlockingMsgliteClient.connect(port=port_of(listener))
    peer, _ = listener.accept()
    with peer:
        peer.sendall(b"*\r\n*\r\n")
        assert client.ready("a", timeout=LONG) is None
        with pytest.raises(ConnectionLost, match="not asked"):
            client.ready("a", timeout=LONG)


def test_blocking_writes_to_a_broker_that_takes_nothing(listener: socket.socket) -> None:
    client = BlockingMsgliteClient.connect(port=port_of(listener), timeout=0.05)
    with pytest.raises(RequestTimeout):
        client.send("a", bytes(32 << 20), timeout=1)
    with pytest.raises(ConnectionLost):
        client.send("a", b"", timeout=1)
