"""Compare SluiceMQ with the original VibeMQ server, loaded by VibeMQ's own .NET client.

    python -m benchmarks.vibemq_peer --runs 3

Both servers run during the whole comparison and are loaded in turn, so that other work on the
machine affects them alike. SluiceMQ writes every message to its journal and syncs it before it
confirms the publish. The programs of VibeMQ are not part of this project: `--peer` or the
environment variable VIBEMQ_PEER names their directory.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.load.server import start_broker
from benchmarks.rabbitmq import free_ports

PEER = os.environ.get("VIBEMQ_PEER", "../shared/peers/vibemq")
START_SECONDS = 30.0
STOP_SECONDS = 20.0
WARM_UP_SECONDS = 2


class Case(NamedTuple):
    """A load, and the storage of the original server that SluiceMQ is compared with."""

    name: str
    storage: str
    publishers: int
    window: int
    """Unconfirmed publishes per publisher."""


CASES = (
    Case("window 32, original in memory", "InMemory", 4, 32),
    Case("window 1, original with SQLite", "Sqlite", 4, 1),
)


class Result(NamedTuple):
    """One run of the load program."""

    rate: int
    """Messages per second, from the first publish to the last delivery."""
    p99: float
    """99th percentile of the time from publish to delivery, in ms."""


@contextmanager
def original(peer: Path, storage: str) -> Iterator[int]:
    """Run the original server and yield its port. Exits if it does not start."""
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="vibemq-", ignore_cleanup_errors=True) as directory:
        environment = {
            **os.environ,
            "VibeMQ__Port": str(port),
            "VibeMQ__RateLimit__Enabled": "false",
            "VibeMQ__StorageType": storage,
            "VibeMQ__SqliteStorage__DatabasePath": f"{directory}/vibemq.db",
        }
        server = subprocess.Popen(
            [peer / "run", "server"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_for(port)
            yield port
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit(f"VibeMQ did not start within {START_SECONDS:g} s")


def load(peer: Path, port: int, case: Case, *, subscribers: int, size: int, seconds: int) -> Result:
    """Run the load program for `seconds`."""
    numbers = (port, case.publishers, subscribers, seconds, size, case.window)
    command = [str(peer / "run"), "load", "127.0.0.1", *map(str, numbers)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(process.stdout.splitlines()[-1])
    return Result(figures["through_s"], figures["p99_ms"])


def compare(peer: Path, case: Case, runs: int, **options: int) -> None:
    """Load both servers alternately and print medians, extremes and the ratio of the medians."""
    own_results: list[Result] = []
    peer_results: list[Result] = []
    with start_broker("vibemq", "tcp", "sync") as server, original(peer, case.storage) as port:
        contenders = ((server.target.port, own_results), (port, peer_results))
        for target, _ in contenders:
            load(peer, target, case, **{**options, "seconds": WARM_UP_SECONDS})
        for run in range(runs):
            for target, results in contenders[:: -1 if run % 2 else 1]:
                results.append(load(peer, target, case, **options))
    ratio = _median(own_results) / _median(peer_results)
    print(
        f"{case.name}: {_describe(own_results)}, original {_describe(peer_results)}: {ratio:.2f}",
        flush=True,
    )


def _median(results: list[Result]) -> float:
    return statistics.median(result.rate for result in results)


def _describe(results: list[Result]) -> str:
    rates = [result.rate for result in results]
    p99 = statistics.median(result.p99 for result in results)
    return f"{_median(results):.0f}/s ({min(rates)}-{max(rates)}, p99 {p99:.1f} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5, help="duration of a run")
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--subscribers", type=int, default=1)
    parser.add_argument("--peer", type=Path, default=Path(PEER), help=f"default: {PEER}")
    options = parser.parse_args()
    if not (options.peer / "run").exists():
        sys.exit(f"VibeMQ's programs are not in {options.peer}; name their directory with --peer")
    for case in CASES:
        compare(
            options.peer.resolve(),
            case,
            options.runs,
            subscribers=options.subscribers,
            size=options.size,
            seconds=options.seconds,
        )


if __name__ == "__main__":
    main()
