"""Cost of monitoring a broker.

    python -m benchmarks.admin_load [--seconds S] [--rounds N] [--size BYTES] [--json]

Measures a PHPMQ flood alternately alone and with the monitoring of a typical broker: the event
stream of a console, a scrape of /metrics every second, and requests for four pages of the API every
half second. The clients of the monitoring run on this machine, so their processor time reduces the
rate. Each pair of runs is on the same broker; the result is the median of the pairs' ratios. `cost`
is the ratio of the broker's processor times per message, and `idle_cpu` the broker's processor time
per second with monitoring alone: these depend less on other load of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sluicemq.cli.local import LocalBroker

LISTEN = ("http://127.0.0.1:0", "phpmq://127.0.0.1:0")
API = "/api/v1"
STREAM = f"{API}/events"
POLLED = (
    f"{API}/overview",
    f"{API}/destinations?sort=waiting&order=desc",
    f"{API}/connections",
    f"{API}/history?minutes=10",
)
POLL_SECONDS = 0.5
SCRAPE_SECONDS = 1.0
TIMEOUT = 60.0


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[float, bytes]:
    """Return the seconds until the response was complete, and the response."""
    before = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {body[:200]!r}")
    return time.perf_counter() - before, body


class Watchers:
    """A console, a scraper and a polling program, each in a thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stopped = threading.Event()
        self.events = 0
        self.scrapes = 0
        self.polls = 0
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._listen, self._scrape, self._poll)
        ]

    def __enter__(self) -> Watchers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), TIMEOUT) as connection:
            connection.sendall(f"GET {STREAM} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            connection.settimeout(0.2)
            while not self._stopped.is_set():
                try:
                    self.events += connection.recv(1 << 16).count(b"event: ")
                except TimeoutError:
                    continue

    def _repeat(self, seconds: float, paths: tuple[str, ...], count: Callable[[], None]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
        while not self._stopped.is_set():
            for path in paths:
                ask(connection, path)
                count()
            self._stopped.wait(seconds)
        connection.close()

    def _scrape(self) -> None:
        def count() -> None:
            self.scrapes += 1

        self._repeat(SCRAPE_SECONDS, ("/metrics",), count)

    def _poll(self) -> None:
        def count() -> None:
            self.polls += 1

        self._repeat(POLL_SECONDS, POLLED, count)


class Flood(NamedTuple):
    """Messages per second sent and received through the broker, and its processor time per message
    in µs."""

    rate: float
    cost: float


def flood(running: LocalBroker, seconds: float, size: int) -> Flood:
    """Return the result of one run."""
    port = running.port("phpmq")
    command = [
        *(sys.executable, "-m", "benchmarks.scenarios", "matrix", "--json"),
        *("--url", f"phpmq://127.0.0.1:{port}", "--size", str(size)),
        *("--producers", "1", "--consumers", "1", "--seconds", str(seconds), "--rate", "1000"),
    ]
    before = process_cpu_seconds(running.pid)
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu_seconds = process_cpu_seconds(running.pid) - before
    [result] = json.loads(process.stdout)["results"]
    messages = result["flood"]["messages"] + result["steady"]["messages"]
    return Flood(float(result["flood"]["rate"]), cpu_seconds / messages * 1e6)


def process_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def broker() -> Iterator[LocalBroker]:
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalBroker(Path(directory) / "data", LISTEN) as running,
    ):
        yield running


def watched(seconds: float, rounds: int, size: int) -> dict[str, Any]:
    alone_runs: list[Flood] = []
    watched_runs: list[Flood] = []
    counts = {"events": 0, "scrapes": 0, "polls": 0}
    with broker() as running:
        http_port = running.port("http")
        flood(running, seconds, size)  # the first request warms the caches
        for number in range(rounds):
            for with_watchers in (False, True) if number % 2 else (True, False):
                if not with_watchers:
                    alone_runs.append(flood(running, seconds, size))
                    continue
                with Watchers(http_port) as watchers:
                    watched_runs.append(flood(running, seconds, size))
                for name in counts:
                    counts[name] += getattr(watchers, name)
        idle = processor(running.pid, seconds)
        with Watchers(http_port):
            busy = processor(running.pid, seconds)
    ratios = [b.rate / a.rate for a, b in zip(alone_runs, watched_runs, strict=True)]
    costs = [b.cost / a.cost for a, b in zip(alone_runs, watched_runs, strict=True)]
    return {
        "alone": round(median(run.rate for run in alone_runs)),
        "watched": round(median(run.rate for run in watched_runs)),
        "broker_us": [
            round(median(x.cost for x in runs), 2) for runs in (alone_runs, watched_runs)
        ],
        "cost": round(median(costs), 3),
        "ratio": round(median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "idle_cpu": round(busy - idle, 4),
        **counts,
    }


def processor(pid: int, seconds: float) -> float:
    """Return the processor time of a process per second, in seconds."""
    before, start = process_cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return (process_cpu_seconds(pid) - before) / (time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = watched(options.seconds, options.rounds, options.size)
    print(json.dumps(result, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
