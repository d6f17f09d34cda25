from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Coroutine

import pytest

from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.msglite import MsgliteClient
from sluicemq.model.errors import ConnectionLost, RequestRefused, RequestTimeout
from sluicemq.protocols.msglite import wire
from tests.protocols.msglite.harness import Harness
from tests.protocols.sockets import port_of, run_against, serve

LONG = 60


def run(scenario: Callable[[Harness, int], Coroutine[None, None, None]]) -> None:
    run_against(Harness(), scenario)


def run_with_scripted_broker(
    listener: socket.socket,
    scenario: Callable[[MsgliteClient, socket.socket], Coroutine[None, None, None]],
    timeout: float = 10.0,
) -> None:
    """Run a scenario with a client whose broker is the test."""

    async def main() -> None:
        client = await MsgliteClient.connect(port=port_of(listener), timeout=timeout)
        peer, _ = listener.accept()
        with peer:
            async with asyncio.timeout(120):
                await scenario(client, peer)
        client._connection.abort()

    asyncio.run(main())


@pytest.fixture
def harness() -> Harness:
    return Harness()


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


def test_binary_names_are_supported() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await MsgliteClient.connect(port=port) as client:
            await client.send("\udcff", b"x", timeout=9)
            message = await client.ready("\udcff", timeout=0)
            assert message is not None
            assert message.address == "\udcff"

    run(scenario)


def test_values_that_cannot_be_encoded_are_refused() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        async with await MsgliteClient.connect(port=port) as client:
            for name in ("", "a b", "a\r\n.", "\t"):
                with pytest.raises(ValueError, match="not a valid address"):
                    await client.send(name, b"", timeout=1)
                with pytest.raises(ValueError, match="not a valid address"):
                    await client.send("a", b"", timeout=1, reply_to=name)
            for seconds in (-1, 1 << 63, 0.5):
                with pytest.raises(ValueError, match="timeout"):
                    await client.query("a", b"", timeout=seconds)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="not 9"):
                await client.ready(*"123456789", timeout=1)
            with pytest.raises(ValueError, match="not 0"):
                await client.ready(timeout=1)
            assert await client.ready("a", timeout=0) is None, "the connection is not usable"

    run(scenario)


def test_concurrent_tasks_receive_their_own_replies() -> None:
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


def test_message_for_cancelled_ready_is_kept() -> None:
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


def test_ready_takes_over_cancelled_one() -> None:
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


async def begin_and_cancel(client: MsgliteClient, *addresses: str, timeout: int) -> None:
    task = asyncio.create_task(client.ready(*addresses, timeout=timeout))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


def test_ready_that_took_over_continues_after_earlier_timeout(
    listener: socket.socket,
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=1)
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

    run_with_scripted_broker(listener, scenario)


def test_ready_that_took_over_keeps_its_own_timeout(
    listener: socket.socket,
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=6)
        started = time.monotonic()
        assert await client.ready("a", timeout=1) is None
        assert 0.9 < time.monotonic() - started < 5
        task = asyncio.create_task(client.ready("a", timeout=LONG))
        await asyncio.sleep(0)
        assert peer.recv(100) == b"< 6 a\r\n", "it was not the same command"
        peer.sendall(b"> 1 9 a\r\nx\r\n")
        message = await task
        assert message is not None
        assert message.body == b"x"

    run_with_scripted_broker(listener, scenario)


def test_message_that_arrives_after_timeout_is_kept(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=LONG)
        assert await client.ready("a", timeout=0) is None
        client._connection.data_received(b"> 1 9 a\r\nx\r\n")
        message = await client.ready("b", "a", timeout=0)
        assert message is not None
        assert message.body == b"x"

    run_with_scripted_broker(listener, scenario)


def test_ready_0_receives_message_of_cancelled_ready(
    listener: socket.socket,
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=LONG)
        task = asyncio.create_task(client.ready("a", timeout=0))
        done, _ = await asyncio.wait([task], timeout=0.02)
        assert not done, "the answer may be on its way"
        peer.sendall(b"> 1 9 a\r\nx\r\n")
        message = await task
        assert message is not None
        assert message.body == b"x"

    run_with_scripted_broker(listener, scenario)


def test_ready_that_took_over_sends_no_command_when_its_timeout_expires(
    listener: socket.socket,
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=LONG)
        assert await client.ready("a", timeout=1) is None
        assert len(client._connection.requests) == 1

    run_with_scripted_broker(listener, scenario)


def test_cancelled_ready_0_does_not_return_when_it_took_over(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.clients.msglite._RESPONSE_SECONDS", 0)

    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        async def poll() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # as asyncio.run does at Ctrl-C, while the task runs
            await client.ready("a", timeout=0)

        await begin_and_cancel(client, "a", timeout=LONG)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(poll())

    run_with_scripted_broker(listener, scenario)


def test_timeout_starts_when_broker_processes_command(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        first = asyncio.create_task(client.ready("a", timeout=LONG))
        await asyncio.sleep(0)
        await begin_and_cancel(client, "b", timeout=LONG)
        second = asyncio.create_task(client.ready("b", timeout=0))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done, "the broker has not looked yet"
        peer.sendall(b"*\r\n")
        assert await first is None
        assert await second is None

    run_with_scripted_broker(listener, scenario)


def test_ready_cancelled_as_its_message_arrives_loses_nothing(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
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

    run_with_scripted_broker(listener, scenario)


def test_message_that_arrives_as_timeout_expires_is_returned(
    listener: socket.socket,
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await begin_and_cancel(client, "a", timeout=LONG)
        task = asyncio.create_task(client.ready("a", timeout=0))
        await asyncio.sleep(0)
        # the event loop finds the message and the end of the timeout at the same time
        peer.sendall(b"> 1 9 a\r\nx\r\n")
        time.sleep(0.4)
        message = await task
        assert message is not None
        assert message.body == b"x"

    run_with_scripted_broker(listener, scenario)


def test_reply_to_cancelled_query_is_dropped() -> None:
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
            assert not client._connection.take_unclaimed((request.reply_to,))

    run(scenario)


def test_close_ends_ready_that_was_cancelled_and_delivers_what_was_sent() -> None:
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


@pytest.mark.parametrize("sends", [True, False])
def test_close_over_tls_reports_messages_behind_waiting_command(
    certificates: tuple[ssl.SSLContext, ssl.SSLContext], sends: bool
) -> None:
    async def main() -> None:
        server, port = await serve(Harness(), ssl_context=certificates[0])
        async with server:
            client = await MsgliteClient.connect("localhost", port, ssl_context=certificates[1])
            await begin_and_cancel(client, "a", timeout=LONG)
            if sends:
                await client.send("b", b"x", timeout=LONG)
                with pytest.raises(ConnectionLost, match="while a command waited"):
                    await client.close()
            await client.close()

    asyncio.run(main())


@pytest.mark.parametrize("call", ["ready", "query"])
def test_errors_of_broker_are_raised(call: str) -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await MsgliteClient.connect(port=port)
        await client._connection.send(b"bad data\r\n")
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


def test_close_raises_error_of_broker() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await MsgliteClient.connect(port=port)
        await client._connection.send(b"bad data\r\n")
        with pytest.raises(RequestRefused):
            await client.close()

    run(scenario)


@pytest.mark.parametrize(
    ("end", "error"),
    [(wire.encode_error("enough"), RequestRefused), (b"", ConnectionLost)],
)
def test_close_raises_error_that_no_call_has_raised(
    end: bytes, error: type[Exception], listener: socket.socket
) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        answer = asyncio.create_task(client.ready("b", timeout=LONG))
        await asyncio.sleep(0)
        await client.send("a", b"x", timeout=LONG)
        peer.sendall(b"*\r\n")
        assert await answer is None
        peer.sendall(end)
        peer.close()
        while client._connection.failure is None:
            await asyncio.sleep(0.001)
        with pytest.raises(error):
            await client.close()
        await client.close()

    run_with_scripted_broker(listener, scenario)


def test_close_raises_if_connection_is_reset_meanwhile(listener: socket.socket) -> None:
    """The broker resets a connection whose messages it has not accepted."""

    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await client.send("a", b"x", timeout=LONG)
        closing = asyncio.create_task(client.close())
        while await asyncio.to_thread(peer.recv, 1000):
            pass
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        with pytest.raises(ConnectionLost, match="reset"):
            await closing
        await client.close()

    run_with_scripted_broker(listener, scenario)


def test_lost_connection_without_unconfirmed_messages_closes(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        await client.send("a", b"x", timeout=LONG)
        answer = asyncio.create_task(client.ready("b", timeout=LONG))
        await asyncio.sleep(0)
        peer.sendall(b"*\r\n")
        assert await answer is None
        peer.close()
        while client._connection.failure is None:
            await asyncio.sleep(0.001)
        await client.close()

    run_with_scripted_broker(listener, scenario)


def test_unsolicited_response_is_error(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        task = asyncio.create_task(client.ready("a", timeout=LONG))
        await asyncio.to_thread(peer.recv, 100)
        peer.sendall(b"*\r\n*\r\n")
        assert await task is None
        with pytest.raises(ConnectionLost, match="unexpected response"):
            await client.send("a", b"", timeout=1)

    run_with_scripted_broker(listener, scenario)


def test_silent_broker_causes_timeout(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        with pytest.raises(RequestTimeout):
            await client.ready("a", timeout=0)
        # a call that takes over the pending request times out, too
        with pytest.raises(RequestTimeout):
            await client.ready("a", timeout=0)
        assert peer.recv(100) == b"< 0 a\r\n"

    run_with_scripted_broker(listener, scenario, timeout=1)


def test_timeout_of_answered_command_does_not_delay_error(listener: socket.socket) -> None:
    async def scenario(client: MsgliteClient, peer: socket.socket) -> None:
        for _ in range(2):
            answer = asyncio.create_task(client.ready("a", timeout=LONG))
            await asyncio.sleep(0)
            peer.sendall(b"> 1 9 a\r\nx\r\n")
            assert await answer is not None
        async with asyncio.timeout(10):
            with pytest.raises(RequestTimeout, match="no answer in 1 s"):
                await client.ready("a", timeout=0)

    run_with_scripted_broker(listener, scenario, timeout=1)


# --- blocking ----------------------------------------------------------------------------------


def test_blocking_send_ready_and_query(harness: Harness, port: int) -> None:

    def work() -> None:
        with BlockingClient(MsgliteClient.connect, port=port) as worker:
            request = worker.ready("capitals", timeout=LONG)
            assert request is not None
            assert request.reply_to is not None
            worker.send(request.reply_to, request.body[::-1], timeout=LONG)

    thread = threading.Thread(target=work)
    thread.start()
    with BlockingClient(MsgliteClient.connect, port=port) as client:
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


def test_blocking_errors(harness: Harness, port: int, listener: socket.socket) -> None:
    client = BlockingClient(MsgliteClient.connect, port=port)
    with pytest.raises(ValueError, match="not a valid address"):
        client.send("a b", b"", timeout=1)
    client.close()
    with pytest.raises(ConnectionLost):
        client.ready("a", timeout=0)
    client = BlockingClient(MsgliteClient.connect, port=port_of(listener))
    peer, _ = listener.accept()
    peer.sendall(wire.encode_error("enough"))
    peer.close()
    with pytest.raises(RequestRefused, match="enough"):
        client.ready("a", timeout=LONG)
    with pytest.raises(RequestRefused, match="enough"):
        client.send("a", b"", timeout=1)
    client.close()


def test_blocking_failed_write_raises_error_of_broker(
    listener: socket.socket,
) -> None:
    client = BlockingClient(MsgliteClient.connect, port=port_of(listener))
    peer, _ = listener.accept()
    peer.sendall(wire.encode_error("enough"))
    peer.close()

    def send_until_it_fails() -> None:
        for _ in range(1000):
            client.send("a", bytes(10_000), timeout=1)

    with pytest.raises(RequestRefused, match="enough"):
        send_until_it_fails()
    client.close()
