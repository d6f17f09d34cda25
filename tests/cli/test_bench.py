"""The benchmarks, run for real and short: what they print is the documented document, and the load
generators receive what they send."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicemq.cli.bench import command, meter, result
from sluicemq.cli.bench.jmq import Jmq
from sluicemq.cli.bench.load import Dialect, Load, _Producer
from sluicemq.cli.bench.msglite import Msglite
from sluicemq.cli.bench.phpmq import Phpmq
from sluicemq.cli.bench.receiver import Receiver
from sluicemq.cli.bench.result import (
    BacklogResult,
    Cell,
    Document,
    Idle,
    Latency,
    QueryMeasurement,
    TransferResult,
)
from sluicemq.cli.bench.server import BenchmarkBroker, dialect, fresh
from sluicemq.cli.bench.sockets import BrokerAddress
from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConnectionLost
from sluicemq.protocols.jmq.packets import PacketType
from sluicemq.protocols.jmq.wire import encode_packet
from sluicemq.protocols.phpmq.wire import Decoder, encode_dispatch
from tests.cli.conftest import Result, RunningBroker
from tests.cli.conftest import Run as Call

README = Path(__file__).parents[2] / "benchmarks" / "README.md"
SHORT = ("--seconds", "0.05")


def document(answer: Result) -> Document:
    """What was printed; unknown, missing and mistyped fields are errors."""
    assert answer.code == 0, answer.err
    return msgspec.json.decode(answer.out, type=Document)


def check(run: TransferResult, *, steady: bool = False, watched: bool = True) -> None:
    assert run.messages > 0
    assert run.seconds > 0
    assert run.rate == pytest.approx(run.messages / run.seconds, rel=0.05, abs=1)
    assert run.generator_us > 0
    assert (run.resident_bytes > 1_000_000) is watched
    assert run.peak_bytes >= run.resident_bytes
    assert (run.asked > 0) is steady
    if steady:
        assert run.latency is not None
    if run.latency is not None:
        latency = run.latency
        assert 0 < latency.p50 <= latency.p99 <= latency.p999 <= latency.maximum


@pytest.fixture(scope="module", params=["phpmq", "msglite", "vibemq", "jmq"])
def server(request: pytest.FixtureRequest) -> Iterator[BenchmarkBroker]:
    with fresh(request.param, "tcp", "none") as server:
        yield server


# --- the scenarios, end to end ---------------------------------------------------------------


def test_matrix(run: Call) -> None:
    answer = run(
        *("bench", "matrix", "--protocol", "phpmq,msglite+unix,vibemq,jmq", "--durability", "lazy"),
        *("--size", "1KiB", "--producers", "2", "--consumers", "3", "--pipeline", "4"),
        *("--window", "50", "--confirms", "7", "--replies", "8", *SHORT, "--json"),
    )
    found = document(answer)
    assert found.schema == result.SCHEMA
    assert found.command == "sluicemq bench matrix"
    assert found.options["producers"] == "2"
    assert found.machine.cores >= 1
    cells = [each for each in found.results if isinstance(each, Cell)]
    assert [(c.protocol, c.transport, c.durability, c.size, c.window) for c in cells] == [
        ("phpmq", "tcp", "lazy", 1024, 50),
        ("msglite", "unix", "lazy", 1024, 4),
        ("vibemq", "tcp", "lazy", 1024, 7),
        ("jmq", "tcp", "lazy", 1024, 8),
    ]
    assert {(c.producers, c.consumers, c.repetition) for c in cells} == {(2, 3, 1)}
    for cell in cells:
        check(cell.flood)
        check(cell.steady, steady=True)


def test_query_and_a_running_broker(run: Call, broker: RunningBroker) -> None:
    found = document(run("bench", "query", "--url", broker.msglite, *SHORT, "--json"))
    (asked,) = found.results
    assert isinstance(asked, QueryMeasurement)
    assert (asked.transport, asked.durability) == ("unix", "")
    check(asked.run, watched=False)
    found = document(
        run(
            *("bench", "matrix", "--url", broker.phpmq, "--size", "8", "--producers", "1"),
            *("--consumers", "1", "--rate", "500", *SHORT, "--json"),
        )
    )
    (cell,) = found.results
    assert isinstance(cell, Cell)
    assert cell.steady.asked == 500
    check(cell.steady, steady=True, watched=False)


def test_backlog(run: Call) -> None:
    found = document(run("bench", "backlog", "--messages", "1000", *SHORT, "--json"))
    (backlog,) = found.results
    assert isinstance(backlog, BacklogResult)
    assert backlog.recovery.messages == backlog.messages == backlog.fill.messages == 1000
    assert 0 < backlog.recovery.serving_seconds <= backlog.recovery.first_message_seconds
    assert backlog.shallow.waiting == 1000
    assert backlog.deep.waiting == 1000
    for costs in (backlog.shallow, backlog.deep):
        for each in (costs.elsewhere, costs.through, costs.publish):
            check(each)
    # one of them was received to see how long that takes
    assert backlog.drain_recovered.messages == 999
    assert backlog.drain_ratio == pytest.approx(backlog.drain.rate / backlog.live.rate, abs=0.001)


def test_idle(run: Call) -> None:
    protocols = ["phpmq", "msglite", "jmq"]
    found = document(
        run(
            *("bench", "idle", "--connections", "30", "--rate", "300", *SHORT, "--json"),
            *("--protocol", ",".join(protocols)),
        )
    )
    assert [each.protocol for each in found.results] == protocols
    for idle in found.results:
        assert isinstance(idle, Idle)
        assert idle.connections == 30
        for each in (idle.before, idle.beside, idle.after):
            check(each, steady=True)
            assert each.messages == 15


def test_a_quick_look_prints_tables(run: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK", command.QUICK[-1:])
    answer = run("bench", *SHORT)
    assert answer.code == 0
    for text in ("Flood", "Steady rate", "msglite+unix", "1 → 16", "Queries and replies"):
        assert text in answer.out


def test_the_document_is_documented() -> None:
    explained = set(re.findall(r"`([a-z0-9_]+)`", README.read_text(encoding="utf-8")))
    records = [
        each
        for each in vars(result).values()
        if isinstance(each, type) and issubclass(each, result.ResultPart)
    ]
    fields = {name for record in records for name in record.__struct_fields__}
    assert len(records) > 10
    assert fields - explained == set()


# --- what cannot be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["matrix", "--size", "7"], "7 is not from 8 to 1,048,576 bytes"),
        (["matrix", "--size", "2MiB"], "2MiB is not from 8"),
        (["matrix", "--size", "big"], "'big' is not a number of bytes"),
        (["matrix", "--size", "100,,200"], "no list of values"),
        (["matrix", "--producers", "0"], "'0' is not a number from 1"),
        (["matrix", "--consumers", "1,-4"], "'-4' is not a number from 1"),
        (["matrix", "--consumers", "9" * 50], "is not a number from 1"),
        (["matrix", "--pipeline", "x"], "'x' is not a number"),
        (["matrix", "--protocol", "phpmq,http"], "'http' is not one of phpmq, phpmq+unix, msglite"),
        (["matrix", "--durability", "most"], "'most' is not one of sync, lazy, none"),
        (["matrix", "--seconds", "0"], "--seconds"),
        (["matrix", "--url", "http://127.0.0.1:1"], "bench speaks phpmq, msglite, vibemq, jmq,"),
        (["matrix", "--url", "phpmq://127.0.0.1:1/orders"], "a queue of its own"),
        (["matrix", "--url", "phpmq://:1", "--protocol", "phpmq"], "--url says it"),
        (["matrix", "--url", "phpmq://:1", "--durability", "sync"], "a running broker has its own"),
        (["query", "--protocol", "phpmq"], "only msglite has queries"),
        (["query", "--url", "phpmq://:1"], "only msglite has queries"),
        (["backlog", "--durability", "none"], "--durability"),
        (["backlog", "--size", "100,200"], "takes one value here"),
        (["idle", "--connections", "999999"], "open files are needed"),
        (["--json", "idle"], "options behind the scenario: bench idle"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(run: Call, arguments: list[str], says: str) -> None:
    answer = run("bench", *arguments)
    assert answer.code == 2
    assert says in re.sub(r"[\s│]+", " ", answer.err)
    assert answer.out == ""


def test_a_broker_that_is_not_there(run: Call) -> None:
    answer = run("bench", "query", "--url", "msglite://127.0.0.1:1", *SHORT)
    assert (answer.code, answer.out) == (1, "")
    assert "Connection refused" in answer.err


# --- the load generators ---------------------------------------------------------------------


def speech(server: BenchmarkBroker, size: int) -> Dialect:
    assert server.local is not None
    (listener,) = server.local.status()["listeners"]
    return dialect(listener["url"].partition(":")[0], size, queue=b"bench", window=3)


@pytest.mark.parametrize("size", [8, 700, 300_000])
def test_a_flood_is_received_to_the_last_message(server: BenchmarkBroker, size: int) -> None:
    with Load(server.target, speech(server, size), producers=3, consumers=2) as load:
        assert load.flood(messages=777).messages == 777
        assert load.steady(2000, 0.05).messages == 100
    assert server.destination(b"bench")["published"] % 877 == 0
    assert server.destination(b"bench")["ready"] == 0


def test_jmq_consumers_log_in_before_the_first_run(tmp_path: Path) -> None:
    """A client that says nothing for a while is taken for one that asks for the ports."""
    with LocalBroker(tmp_path, ["jmq://127.0.0.1:0?portmapper_timeout=0.3"]) as broker:
        speaks = dialect("jmq", 100, queue=b"bench")
        with Load(BrokerAddress(broker.port("jmq")), speaks) as load:
            time.sleep(0.5)
            assert load.flood(messages=10).messages == 10


def test_a_broker_that_stalls_is_not_flattered(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = server.pid
    assert pid is not None
    push = Load._push
    resume = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))

    def started(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        if not resume.ident:  # the first message is due: the broker stalls for 0.3 s from now on
            resume.start()
        push(self, producer, data, count)

    with Load(server.target, speech(server, 100)) as load:
        load.flood(messages=100)
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(Load, "_push", started)
        try:
            steady = load.steady(1000, 0.3)
        finally:
            os.kill(pid, signal.SIGCONT)
        resume.join()
    assert steady.latency is not None
    # half of the messages were due in the first 0.15 s: they have waited at least as long
    assert steady.latency.p50 >= 140
    assert steady.latency.maximum >= 280


def test_a_generator_that_stalls_flatters_nobody(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Receiver.read
    pauses = [0.3]

    def late(self: Receiver, delays: list[int] | None = None) -> int:
        if pauses:
            time.sleep(pauses.pop())
        return read(self, delays)

    monkeypatch.setattr(Receiver, "read", late)
    with Load(server.target, speech(server, 100)) as load:
        steady = load.steady(1000, 0.3)
    assert steady.latency is not None
    assert steady.latency.p50 >= 140
    assert steady.late_ms >= 280


def test_steady_producers_take_turns(
    server: BenchmarkBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Load._push
    senders = []

    def noted(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        senders.append(producer)
        push(self, producer, data, count)

    monkeypatch.setattr(Load, "_push", noted)
    with Load(server.target, speech(server, 100), producers=3) as load:
        load.steady(1000, 0.05)
    assert len(set(senders)) == 3


@pytest.mark.parametrize("protocol", ["vibemq", "jmq"])
def test_a_producer_has_no_more_unanswered_than_it_may(
    monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    push = Load._push
    most = []

    def noted(self: Load, producer: _Producer, data: memoryview, count: int) -> None:
        push(self, producer, data, count)
        most.append(producer.unconfirmed)

    monkeypatch.setattr(Load, "_push", noted)
    with fresh(protocol, "tcp", "sync") as server:
        speaks = dialect(protocol, 100, queue=b"bench", window=120)
        with Load(server.target, speaks, producers=2, consumers=0) as load:
            assert load.flood(messages=1000).messages == 1000
        assert server.destination(b"bench")["ready"] == 1000
    assert 100 <= max(most) <= 120


@pytest.mark.parametrize("dispatch_version", [1, 2])
@pytest.mark.parametrize("step", [1, 7, 5000])
def test_messages_in_pieces(dispatch_version: int, step: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        consumer = Phpmq(100, queue=b"q", window=9).receiver(ours)
        consumer.start()
        theirs.recv(1000)
        sent = time.perf_counter_ns()
        ids = [b"%032x" % number for number in range(10)]
        body = sent.to_bytes(8, "little") + bytes(92)
        stream = b"".join(
            encode_dispatch(b"q", body, i, 0, dispatch_version=dispatch_version) for i in ids
        )
        delays: list[int] = []
        received = 0
        for at in range(0, len(stream), step):
            theirs.sendall(stream[at : at + step])
            received += consumer.read(delays)
        assert received == len(delays) == 10
        assert all(0 < delay < 60e9 for delay in delays)
        settled = Decoder().feed(theirs.recv(1 << 16))
        assert [identity for _, _, _, identity, _ in settled] == ids


def test_what_is_no_message_is_told() -> None:
    for protocol, nonsense in (
        (Phpmq(100), b"H0100200" + bytes(400)),
        (Msglite(100), b"- out of order\r\n" + bytes(400)),
        (Jmq(100), encode_packet(PacketType.GOODBYE, body=b"H0100200" + bytes(400))),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            consumer = protocol.receiver(ours)
            theirs.sendall(nonsense)
            with pytest.raises(ConnectionLost, match=r"H0100200|out of order"):
                consumer.read()


def test_a_connection_that_ends_says_what_came_last() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        consumer = Msglite(1000).receiver(ours)
        with theirs:
            theirs.sendall(b"- too many\r\n")
        assert consumer.read() == 0
        with pytest.raises(ConnectionLost, match="too many"):
            consumer.read()


def test_percentiles() -> None:
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
