"""The load generators of `benchmarks/` receive all messages that they send."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.load import meter
from benchmarks.load.jmq import Jmq
from benchmarks.load.load import Dialect, Load, _Producer
from benchmarks.load.msglite import Msglite
from benchmarks.load.phpmq import Phpmq
from benchmarks.load.receiver import Receiver
from benchmarks.load.result import (
    Latency,
)
from benchmarks.load.server import BenchmarkBroker, dialect, start_broker
from benchmarks.load.sockets import BrokerAddress

from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.phpmq.wire import Decoder
from tests.protocols.phpmq.harness import encode_dispatch

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
SHORT = ("--seconds", "0.05")


@pytest.fixture(scope="module", params=["phpmq", "msglite", "vibemq", "jmq"])
def server(request: pytest.FixtureRequest) -> Iterator[BenchmarkBroker]:
    with start_broker(request.param, "tcp", "none") as server:
        yield server


def dialect_of(server: BenchmarkBroker, size: int) -> Dialect:
    assert server.local is not None
    (listener,) = server.local.status()["listeners"]
    return dialect(listener["url"].partition(":")[0], size, queue=b"bench", window=3)


@pytest.mark.parametrize("size", [8, 700, 300_000])
def test_flood_is_received_to_the_last_message(server: BenchmarkBroker, size: int) -> None:
    with Load(server.target, dialect_of(server, size), producers=3, consumers=2) as load:
        assert load.flood(messages=777).messages == 777
        assert load.steady(2000, 0.05).messages == 100
    assert server.destination(b"bench")["published"] % 877 == 0
    assert server.destination(b"bench")["ready"] == 0


def test_jmq_consumers_log_in_before_the_first_run(tmp_path: Path) -> None:
    """The broker treats a client that sends nothing as a request of the port mapper."""
    with LocalBroker(tmp_path, ["jmq://127.0.0.1:0?portmapper_timeout=0.3"]) as broker:
        protocol = dialect("jmq", 100, queue=b"bench")
        with Load(BrokerAddress(broker.port("jmq")), protocol) as load:
            time.sleep(0.5)
            assert load.flood(messages=10).messages == 10


def test_stalled_broker_shows_in_the_latency(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = server.pid
    assert pid is not None
    original_send = Load._send
    resume = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))

    def send_after_stall(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        if not resume.ident:  # the first message is due: the broker stalls for 0.3 s
            resume.start()
        original_send(self, producer, data, count)

    with Load(server.target, dialect_of(server, 100)) as load:
        load.flood(messages=100)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(Load, "_send", send_after_stall)
        try:
            run = load.steady(1000, 0.3)
        finally:
            os.kill(pid, signal.SIGCONT)
        resume.join()
    assert run.latency is not None
    # half of the messages were due in the first 0.15 s: they have waited at least as long
    assert run.latency.p50 >= 140
    assert run.latency.maximum >= 280


def test_stalled_generator_does_not_hide_latency(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_read = Receiver.read
    pauses = [0.3]

    def read_late(self: Receiver, delays: list[int] | None = None) -> int:
        if pauses:
            time.sleep(pauses.pop())
        return original_read(self, delays)

    monkeypatch.setattr(Receiver, "read", read_late)
    with Load(server.target, dialect_of(server, 100)) as load:
        run = load.steady(1000, 0.3)
    assert run.latency is not None
    assert run.latency.p50 >= 140
    assert run.late_ms >= 280


def test_steady_producers_alternate(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_send = Load._send
    senders = []

    def record_producer(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        senders.append(producer)
        original_send(self, producer, data, count)

    monkeypatch.setattr(Load, "_send", record_producer)
    with Load(server.target, dialect_of(server, 100), producers=3) as load:
        load.steady(1000, 0.05)
    assert len(set(senders)) == 3


@pytest.mark.parametrize("protocol", ["vibemq", "jmq"])
def test_producer_keeps_its_limit_of_unconfirmed_messages(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    original_send = Load._send
    counts = []

    def record_producer(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        original_send(self, producer, data, count)
        counts.append(producer.unconfirmed)

    monkeypatch.setattr(Load, "_send", record_producer)
    with start_broker(protocol, "tcp", "sync") as server:
        producer_dialect = dialect(protocol, 100, queue=b"bench", window=120)
        with Load(server.target, producer_dialect, producers=2, consumers=0) as load:
            assert load.flood(messages=1000).messages == 1000
        assert server.destination(b"bench")["ready"] == 1000
    assert 100 <= max(counts) <= 120


@pytest.mark.parametrize("dispatch_version", [1, 2])
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_messages_may_be_split_anywhere(dispatch_version: int, step: int) -> None:
    client_socket, server_socket = socket.socketpair()
    with client_socket, server_socket:
        consumer = Phpmq(100, queue=b"q", window=9).receiver(client_socket)
        consumer.start()
        server_socket.recv(1000)
        sent = time.perf_counter_ns()
        ids = [b"%032x" % number for number in range(10)]
        body = sent.to_bytes(8, "little") + bytes(92)
        stream = b"".join(
            encode_dispatch(b"q", body, i, 0, dispatch_version=dispatch_version) for i in ids
        )
        delays: list[int] = []
        count = 0
        for start in range(0, len(stream), step):
            server_socket.sendall(stream[start : start + step])
            count += consumer.read(delays)
        assert count == len(delays) == 10
        assert all(0 < delay < 60e9 for delay in delays)
        acks = Decoder().feed(server_socket.recv(1 << 16))
        assert [identity for _, _, _, identity, _ in acks] == ids


def test_invalid_message_is_reported() -> None:
    for protocol, data in (
        (Phpmq(100), b"H0100200" + bytes(400)),
        (Msglite(100), b"- out of order\r\n" + bytes(400)),
        (Jmq(100), encode_packet(PacketType.GOODBYE, body=b"H0100200" + bytes(400))),
    ):
        client_socket, server_socket = socket.socketpair()
        with client_socket, server_socket:
            consumer = protocol.receiver(client_socket)
            server_socket.sendall(data)
            with pytest.raises(ConnectionLost, match=r"H0100200|out of order"):
                consumer.read()


def test_closed_connection_error_contains_the_last_data() -> None:
    client_socket, server_socket = socket.socketpair()
    with client_socket:
        consumer = Msglite(1000).receiver(client_socket)
        with server_socket:
            server_socket.sendall(b"- too many\r\n")
        assert consumer.read() == 0
        with pytest.raises(ConnectionLost, match="too many"):
            consumer.read()


def test_latency_percentiles() -> None:
    milliseconds = [n * 1_000_000 for n in range(1, 1001)]
    assert Latency.of(milliseconds[::-1]) == Latency(p50=501, p99=991, p999=1000, maximum=1000)
    assert Latency.of([5_000_000]) == Latency(p50=5, p99=5, p999=5, maximum=5)


def test_processor_time_of_a_process_is_read() -> None:
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert meter.cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)
    resident, peak = meter.memory_bytes(os.getpid())
    assert 0 < resident <= peak
