"""Connections by URL, asyncio and blocking, and the end of a blocking client."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
import time

import pytest

from sluicemq.clients import blocking, urls
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.connect import connect
from sluicemq.clients.phpmq import PhpmqClient, PhpmqMessage
from sluicemq.clients.transport import AsyncClient
from sluicemq.model.errors import ConfigurationError, ConnectionLost, RequestTimeout
from tests.protocols.phpmq.harness import Harness
from tests.protocols.sockets import port_of, run_against


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "sluicemq" in thread.name]


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_url_selects_client_and_its_options() -> None:
    async def scenario(harness: Harness, port: int) -> None:
        client = await connect(f"phpmq://127.0.0.1:{port}?timeout=3&dispatch-version=1")
        async with client:
            assert isinstance(client, PhpmqClient)
            await client.send("q", b"1")

    assert run_against(Harness(), scenario).bodies("q") == [b"1"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://127.0.0.1", "begins with"),
        ("phpmq+ssl://127.0.0.1", "is unknown"),
        ("phpmq://127.0.0.1/queue", "phpmq://host:port"),
        ("phpmq://127.0.0.1:0", "port 0"),
        ("vibemq://127.0.0.1?ca=/x", "requires TLS"),
        ("vibemq://127.0.0.1?tls=true&ca=/none", "/none cannot be used"),
        ("phpmq+tls://127.0.0.1?certifcate=/x", "did you mean certificate"),
        ("jmq+tls://127.0.0.1?key=/x", "requires a certificate"),
        ("phpmq://127.0.0.1?x=1", "unknown option x"),
        ("phpmq://127.0.0.1?dispatch_version=3", "1 or 2"),
        ("msglite://me:secret@127.0.0.1", "no user"),
        ("msglite://one,two", "one host"),
        ("msglite+unix://relative", "three slashes"),
    ],
)
def test_invalid_url_is_error(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as error:
        asyncio.run(connect(url))
    assert "secret" not in str(error.value)


def test_url_options_are_parsed() -> None:
    fields = urls.parse_single("msglite://h:1?timeout=00:00:05", "msglite", {})
    assert fields == {"host": "h", "port": 1, "path": None, "timeout": 5.0}
    fields = urls.parse_single("msglite+tls://h?insecure=true", "msglite", {})
    assert fields.pop("ssl_context").check_hostname is False
    assert fields == {"host": "h", "port": 9813, "path": None}


def test_blocking_client_has_methods_and_results_of_its_client(harness: Harness, port: int) -> None:
    with blocking.connect(f"phpmq://127.0.0.1:{port}") as client:
        client.send("q", b"1")
        client.confirm()
        for message in client.consume("q"):
            assert (message.queue, message.body) == ("q", b"1")
            message.ack()
            break
        with pytest.raises(RequestTimeout):
            client.receive(timeout=0.01)
        with pytest.raises(ValueError, match="ttl"):
            client.send("q", b"", ttl=-1)
        with pytest.raises(AttributeError):
            client.unknown()
        assert threads() == ["sluicemq-client"]
    assert threads() == []
    assert PhpmqMessage.__name__ in repr(message)
    with pytest.raises(ConnectionLost, match=r"^the client is closed$"):
        message.ack()


def test_failed_connection_leaves_no_thread() -> None:
    with pytest.raises(ConnectionLost):
        blocking.connect("phpmq+unix:///nowhere/socket")
    assert threads() == []


def test_close_with_silent_broker_times_out_and_leaves_no_thread(
    listener: socket.socket,
) -> None:
    client = BlockingClient(PhpmqClient.connect, port=port_of(listener), timeout=0.2)
    with pytest.raises(RequestTimeout):
        client.close()
    assert threads() == []
    client.close()


class UnclosableClient(AsyncClient):
    async def close(self) -> None:
        raise RequestTimeout("too late")


def test_error_in_block_is_raised_instead_of_one_from_closing() -> None:
    async def connect() -> UnclosableClient:
        return UnclosableClient()

    with pytest.raises(KeyError), BlockingClient(connect):
        raise KeyError
    with pytest.raises(RequestTimeout), BlockingClient(connect):
        pass


def test_cancellation_of_block_is_not_replaced_by_error_from_closing() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), UnclosableClient():
                await asyncio.sleep(60)
        with pytest.raises(RequestTimeout):
            async with UnclosableClient():
                pass

    asyncio.run(main())


def test_close_ends_calls_of_other_threads(harness: Harness, port: int) -> None:
    client = blocking.connect(f"phpmq://127.0.0.1:{port}")
    client.subscribe("q")
    failures: list[Exception] = []

    def receive() -> None:
        try:
            client.receive()
        except ConnectionLost as error:
            failures.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    time.sleep(0.05)
    client.close()
    thread.join(10)
    assert len(failures) == 1


def test_client_collected_in_its_own_thread_leaves_no_thread(port: int) -> None:
    """The garbage collector runs in the thread that allocates, also in that of the client."""
    client = BlockingClient(PhpmqClient.connect, port=port)
    client._loop.call(client._target._connection.abort)  # pytest reports sockets that stay open
    cycle: list[object] = [client]
    cycle.append(cycle)
    portal = client._loop._portal
    [thread] = [thread for thread in threading.enumerate() if thread.name == "sluicemq-client"]
    del client, cycle
    portal.call(gc.collect)
    thread.join(10)
    assert not thread.is_alive()


def test_unclosed_client_does_not_block_process_exit(harness: Harness, port: int) -> None:
    connecting = f"client = connect('phpmq://127.0.0.1:{port}')"
    program = f"from sluicemq.clients.blocking import connect; {connecting}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
