"""Start, shutdown, and exit after write errors."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import (
    ClientError,
    ConfigurationError,
    ConnectionLost,
    JournalDamaged,
    RequestTimeout,
)
from sluicemq.protocols.phpmq.wire import encode_send
from sluicemq.server.config import BrokerSettings, Config
from sluicemq.server.run import Server, run_repeatedly
from tests.server.conftest import Start
from tests.support.polling import wait_until

PHPMQ = "phpmq://127.0.0.1:0"


def consume_all(port: int, queue: str) -> list[bytes]:
    """Consume a queue up to an end marker sent now, and return the bodies."""
    bodies = []
    with BlockingClient(PhpmqClient.connect, port=port) as client:
        client.send(queue, b"the end")
        client.subscribe(queue, 1000)
        while (message := client.receive(30)).body != b"the end":
            bodies.append(message.body)
            message.ack()
        message.ack()
    return bodies


def is_closed_by_broker(client: BlockingClient) -> bool:
    """Return whether the broker closes the connection; messages before that are skipped."""
    try:
        while True:
            client.receive(30)
    except ConnectionLost:
        return True
    except RequestTimeout:
        return False
    finally:
        client.close()


def test_shutdown_keeps_ready_and_requeues_unacked_messages(start: Start) -> None:
    broker = start(PHPMQ)
    client = BlockingClient(PhpmqClient.connect, port=broker.port("phpmq"))
    for number in range(10):
        client.send("a", b"%d" % number)
    client.subscribe("a", 4)
    for number in range(4):
        message = client.receive(30)
        if number < 2:
            message.ack()
    assert broker.stop() == 0
    assert is_closed_by_broker(client)
    broker.start()
    assert consume_all(broker.port("phpmq"), "a") == [b"%d" % number for number in range(2, 10)]


def test_shutdown_resets_connection_of_blocked_publisher(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "sluicemq.toml"
    file.write_text("[destinations.a]\nmax_messages = 1\noverflow = 'block-publisher'\n")
    broker = start(PHPMQ, options=("--config", str(file)))
    with socket.create_connection(("127.0.0.1", broker.port("phpmq")), 30) as client:
        data = encode_send(b"a", b"1") + encode_send(b"a", b"2")
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: broker.status()["listeners"][0]["received_bytes"] == len(data))
        assert broker.stop() == 0
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_shutdown_does_not_wait_for_client_that_does_not_read(start: Start) -> None:
    broker = start(PHPMQ, environment={"SLUICEMQ_BROKER__SHUTDOWN_TIMEOUT": "1"})
    port = broker.port("phpmq")
    with (
        BlockingClient(PhpmqClient.connect, port=port) as sender,
        socket.create_connection(("127.0.0.1", port)) as consumer,
    ):
        for _ in range(40):
            sender.send("a", bytes(1 << 20))
        sender.confirm()  # else its connection is reset, and its close raises
        consumer.sendall(b"H0100202P01%029daP04%029d1000000" % (1, 7))
        consumer.recv(1)
        before = time.monotonic()
        assert broker.stop() == 0
        assert time.monotonic() - before < 25


def test_shutdown_closes_connections_that_are_being_accepted(start: Start) -> None:
    broker = start(PHPMQ)
    pid, port = broker.pid, broker.port("phpmq")
    os.kill(pid, signal.SIGSTOP)
    with ExitStack() as opened:
        for _ in range(50):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        os.kill(pid, signal.SIGTERM)
        before = time.monotonic()
        os.kill(pid, signal.SIGCONT)
        assert broker.wait() == 0
    assert time.monotonic() - before < BrokerSettings().shutdown_timeout


def test_reload_signal_during_shutdown_does_not_end_process(start: Start) -> None:
    broker = start(PHPMQ)
    pid = broker.pid
    os.kill(pid, signal.SIGTERM)
    with ThreadPoolExecutor(1) as pool:
        exit_code = pool.submit(broker.wait)
        while not exit_code.done():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)
            time.sleep(0.001)
    assert exit_code.result() == 0


def test_second_broker_on_data_directory_is_rejected(start: Start, tmp_path: Path) -> None:
    broker = start(PHPMQ)
    second = LocalBroker(broker.directory, [PHPMQ])
    with pytest.raises(ConnectionLost, match=f"{broker.pid}"):
        second.start()
    assert broker.status()["pid"] == broker.pid


def test_public_address_requires_insecure_public(start: Start, tmp_path: Path) -> None:
    with pytest.raises(ConnectionLost, match="insecure"):
        LocalBroker(tmp_path / "b", ["phpmq://0.0.0.0:0"]).start()
    broker = start("phpmq://0.0.0.0:0", options=("--insecure-public",))
    assert consume_all(broker.port("phpmq"), "a") == []


def test_write_error_stops_broker_and_keeps_confirmed_messages(
    start: Start,
) -> None:
    broker = start(PHPMQ)
    port = broker.port("phpmq")
    received: list[bytes] = []
    client = BlockingClient(PhpmqClient.connect, port=port)
    client.subscribe("a", 100_000)
    # from here on the journal cannot grow beyond 2 MB: as on a full disk, a write fails
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    with suppress(ClientError):
        for sent in range(1, 10_000):
            client.send("a", b"%d " % (sent - 1) + bytes(1000))
            if sent % 100 == 0:
                while len(received) < sent:
                    received.append(client.receive(30).body)
    assert is_closed_by_broker(client)
    assert broker.wait() == 74
    assert 1000 < len(received) < 2000
    log = broker.log.read_text()
    assert "Traceback" not in log
    assert "File too large" in log
    broker.start()
    bodies = consume_all(broker.port("phpmq"), "a")
    assert bodies[: len(received)] == received
    assert [int(body.split()[0]) for body in bodies] == list(range(len(bodies)))


def test_failure_of_the_last_write_has_the_exit_code_of_a_failed_journal(start: Start) -> None:
    broker = start(PHPMQ)
    with BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client:
        for _ in range(3):
            client.send("a", bytes(1 << 20))
        client.confirm()
    # the journal, but not the log, is larger than that: every further write of it fails
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    assert broker.stop() == 74
    log = broker.log.read_text()
    assert log.count("the broker stops") == 1
    assert "File too large" in log
    assert "Traceback" not in log
    broker.start()
    assert len(consume_all(broker.port("phpmq"), "a")) == 3


def test_internal_error_does_not_end_repeated_task() -> None:
    calls = []

    async def step() -> None:
        await asyncio.sleep(0)
        calls.append(len(calls))
        if calls == [0]:
            raise ValueError("wrong")
        if len(calls) == 3:
            raise asyncio.CancelledError

    with capture_logs() as entries, pytest.raises(asyncio.CancelledError):
        asyncio.run(run_repeatedly(step))
    assert calls == [0, 1, 2]
    assert [entry["event"] for entry in entries] == ["internal error; the broker continues"]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(JournalDamaged("the record is not intact"), 74), (ValueError("a defect"), 1)],
)
def test_error_of_engine_after_sync_stops_broker(error: Exception, exit_code: int) -> None:
    """The engine makes messages visible outside of an iteration, as soon as they are on disk."""

    def complete() -> None:
        raise error

    loaded: Any = SimpleNamespace(config=None, origins={})
    server = Server(loaded)
    server._batch = Mock()
    with capture_logs() as entries:
        server.complete_writes(complete)
    assert server.exit_code == exit_code
    assert server.stop_requested.is_set()
    assert [entry["log_level"] for entry in entries] == ["error"]
    server._batch.halt.assert_called_once_with()


def test_data_directory_that_cannot_be_created_is_a_configuration_error(tmp_path: Path) -> None:
    """Only the attempt shows it for some file systems, such as /proc."""
    file = tmp_path / "file"
    file.touch()
    loaded: Any = SimpleNamespace(
        config=Config(broker=BrokerSettings(data_dir=file / "data")), origins={}
    )
    with pytest.raises(ConfigurationError, match=r"broker\.data_dir: .*--data-dir"):
        asyncio.run(Server(loaded).run())
