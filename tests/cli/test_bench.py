"""Short runs of `sluicemq bench`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from sluicemq.cli import bench
from sluicemq.cli.bench import Measurement, transfer
from sluicemq.cli.local import LocalBroker
from sluicemq.model.url import Url
from tests.cli.conftest import Run, RunningBroker

SHORT = ("--seconds", "0.05")


def test_bench_prints_a_row_for_each_protocol(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CASES", bench.CASES[1:])
    result = run("bench", *SHORT)
    assert result.code == 0, result.err
    for text in ("phpmq", "vibemq", "jmq", "msglite", "/s", "µs", "ms"):
        assert text in result.out


@pytest.mark.parametrize("protocol", ["phpmq", "msglite", "vibemq", "jmq"])
def test_bench_of_a_running_broker(run: Run, broker: RunningBroker, protocol: str) -> None:
    result = run("bench", "--url", getattr(broker, protocol), *SHORT, "--json")
    assert result.code == 0, result.err
    (measurement,) = msgspec.json.decode(result.out, type=list[Measurement])
    assert (measurement.protocol, measurement.durability, measurement.broker_us) == (
        protocol,
        "",
        0,
    )
    assert measurement.rate > 0
    assert 0 < measurement.p50_ms <= measurement.p99_ms


def test_terminated_bench_stops_its_broker(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sluicemq.cli", "bench", "--seconds", "60"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("sluicemq-bench-*/admin.sock")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert not list(tmp_path.glob("sluicemq-bench-*"))
    finally:
        process.kill()
        process.communicate()


def test_transfer_without_time_sends_a_message(broker: RunningBroker) -> None:
    url = Url.parse(f"{broker.phpmq}?queue=brief")
    assert asyncio.run(transfer(url, 100, seconds=0, rate=1)).messages == 1


async def transferred(url: str, messages: int, rate: int) -> bench.Transfer:
    return await transfer(Url.parse(url), 100, messages=messages, rate=rate)


@pytest.mark.parametrize("rate", [0, 1000])
def test_every_message_is_received(broker: RunningBroker, rate: int) -> None:
    started = time.perf_counter()
    queue = f"{broker.phpmq}?queue=transferred"
    measurement = asyncio.run(transferred(queue, 333, rate))
    assert measurement.messages == len(measurement.latencies) == 333
    assert 0 < measurement.seconds <= time.perf_counter() - started
    if rate:
        assert measurement.seconds >= 0.3


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--seconds", "0"], "--seconds"),
        (["--seconds", "nan"], "nan is not a number"),
        (["--url", "http://127.0.0.1:1"], "use jmq, msglite, phpmq, vibemq"),
        (["--url", "phpmq://127.0.0.1:1/orders"], "a queue of its own"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_command_line_is_a_usage_error(run: Run, arguments: list[str], error: str) -> None:
    result = run("bench", *arguments)
    assert result.code == 2
    assert error in re.sub(r"[\s│]+", " ", result.err)
    assert result.out == ""


def test_unreachable_broker_is_an_error(run: Run) -> None:
    result = run("bench", "--url", "msglite://127.0.0.1:1", *SHORT)
    assert (result.code, result.out) == (1, "")
    assert "127.0.0.1:1" in result.err


def test_interrupted_start_leaves_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0"])
    pids: list[int] = []

    def interrupt(_: LocalBroker) -> bool:
        pids.append(broker.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalBroker, "_is_serving", interrupt)
    with pytest.raises(KeyboardInterrupt), broker:
        pass
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
