"""Cost of monitoring a large broker: 10,000 destinations, 2,000 connections.

    python -m benchmarks.admin_scale [--destinations N] [--connections N] [--rounds N]

One process is the broker, which measures the longest stall of its event loop. Another one connects
the clients (half of them with a consumer), publishes at a low rate and requests pages sequentially.
Four event streams cause further requests.

Each stall is reported twice: in elapsed time, which on a busy machine includes other processes, and
in processor time of the loop's thread without a return to the loop, which is the broker's own.

The result is JSON on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import logging
import multiprocessing
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import structlog
import uvloop

from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.message import Durability
from sluicemq.model.url import Url
from sluicemq.protocols.phpmq.wire import encode_consume, encode_send
from sluicemq.server.config import BrokerSettings, Config
from sluicemq.server.listener_settings import Listener
from sluicemq.server.loading import LoadedConfig
from sluicemq.server.run import Server

TICK_SECONDS: Final = 0.001
STREAMS: Final = 4
PAGES: Final = {
    "destinations by name": "/api/v1/destinations?limit=100",
    "destinations by name, last page": "/api/v1/destinations?limit=100&offset={last}",
    "destinations by waiting": "/api/v1/destinations?sort=waiting&order=desc&limit=100",
    "destinations by text": "/api/v1/destinations?filter=.77&limit=100",
    "connections": "/api/v1/connections?limit=100",
    "connections by bytes": "/api/v1/connections?sort=sent_bytes&order=desc&limit=100",
    "consumers": "/api/v1/consumers?limit=100",
    "consumers of one": "/api/v1/consumers?destination=scale.00077",
    "subscriptions": "/api/v1/subscriptions",
    "overview": "/api/v1/overview",
    "history": "/api/v1/history?minutes=60",
    "metrics": "/metrics",
    "nothing": "",
}
"""Kinds of requests; "nothing" is the broker without requests."""


class StallRecorder:
    """Records the longest stall of the loop by both clocks since the last query."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at = time.monotonic()
        self._worked = time.thread_time()
        self.wall = 0.0
        self.work = 0.0
        self._set()

    def _set(self) -> None:
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now, worked = time.monotonic(), time.thread_time()
        self.wall = max(self.wall, now - self._at - TICK_SECONDS)
        self.work = max(self.work, worked - self._worked)
        self._at, self._worked = now, worked
        self._set()

    def take_longest(self) -> tuple[float, float]:
        wall, self.wall = self.wall, 0.0
        work, self.work = self.work, 0.0
        return wall, work


async def serve(directory: Path, pipe: Connection) -> None:
    """Run the broker until the other process has ended."""
    urls = ("http://127.0.0.1:0", "phpmq://127.0.0.1:0?durability=lazy")
    config = Config(
        listeners=tuple(Listener(**_split(url)) for url in urls),
        broker=BrokerSettings(data_dir=directory, destination_idle_timeout=0),
    )
    server = Server(LoadedConfig(config, {}, {}))
    running = asyncio.ensure_future(server.run())
    while len(server.listeners) < len(urls):
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()
    watch = StallRecorder(loop)
    pipe.send([listener.url.port for listener in server.listeners])

    def report_stalls() -> None:
        with suppress(EOFError):
            pipe.recv()
            pipe.send((*watch.take_longest(), len(server.listeners[1].admission.connections)))
            return
        loop.remove_reader(pipe.fileno())
        server.stop_requested.set()

    loop.add_reader(pipe.fileno(), report_stalls)
    await running


def _split(url: str) -> dict[str, Any]:
    parsed = Url.parse(url)
    options: dict[str, Any] = dict(parsed.options)
    if "durability" in options:
        options["durability"] = Durability[options["durability"].upper()]
    return {"url": parsed._replace(options=()), **options}


def run_broker(directory: str, pipe: Connection) -> None:
    _raise_limit()
    # standard output is for the result
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    uvloop.run(serve(Path(directory), pipe))


def _raise_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Workload:
    """Run the clients."""

    def __init__(self, ports: list[int], destinations: int, connections: int) -> None:
        self.http, self.phpmq = ports
        self.names = [f"scale.{number:05}" for number in range(destinations)]
        self.sockets: list[socket.socket] = []
        self._stopping = threading.Event()
        self._connections = connections
        self._threads: list[threading.Thread] = []

    def fill(self) -> None:
        """Publish a message to every queue, and attach a consumer to some of them."""

        async def send() -> None:
            async with await PhpmqClient.connect(port=self.phpmq) as client:
                for name in self.names:
                    await client.send(name, b"x" * 100)

        asyncio.run(send())
        for number in range(self._connections):
            connection = socket.create_connection(("127.0.0.1", self.phpmq))
            if number % 2:
                connection.sendall(encode_consume(self.names[number].encode(), 10))
            self.sockets.append(connection)

    def begin(self) -> None:
        """Run a little traffic and streams of events."""
        self._start(self._send)
        for _ in range(STREAMS):
            self._start(self._read)

    def _start(self, work: Any) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _send(self) -> None:
        with socket.create_connection(("127.0.0.1", self.phpmq)) as connection:
            number = 0
            while not self._stopping.wait(0.01):
                names = [self.names[(number + i) % len(self.names)] for i in range(5)]
                connection.sendall(b"".join(encode_send(n.encode(), b"x" * 100) for n in names))
                number += 5

    def _read(self) -> None:
        with socket.create_connection(("127.0.0.1", self.http)) as connection:
            connection.settimeout(0.2)
            connection.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    connection.recv(1 << 20)

    def end(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for connection in self.sockets:
            connection.close()


def measure(
    workload: Workload, pipe: Connection, rounds: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Request each page several times."""
    connection = http.client.HTTPConnection("127.0.0.1", workload.http, timeout=60)
    last = (len(workload.names) - 1) // 100 * 100
    for name, path in PAGES.items():
        pipe.send("")
        pipe.recv()
        times = []
        for _ in range(rounds):
            started = time.monotonic()
            if path:
                connection.request("GET", path.format(last=last))
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 200, (path, answer.status, body[:200])
                times.append(time.monotonic() - started)
            time.sleep(0.1)
        pipe.send("")
        wall, work, _ = pipe.recv()
        result = {"stall_ms": wall, "iteration_ms": work}
        if times:
            result |= {"median_ms": median(times), "worst_ms": max(times)}
        yield name, {key: round(1000 * value, 1) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--destinations", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=20, help="number of requests for each page")
    arguments = parser.parse_args()
    _raise_limit()
    spawning = multiprocessing.get_context("spawn")
    parent_end, broker_end = spawning.Pipe()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        broker = spawning.Process(target=run_broker, args=(directory, broker_end))
        broker.start()
        broker_end.close()
        stack.callback(broker.join)
        stack.callback(parent_end.close)
        workload = Workload(parent_end.recv(), arguments.destinations, arguments.connections)
        workload.fill()
        workload.begin()
        time.sleep(3)
        pages = dict(measure(workload, parent_end, arguments.rounds))
        workload.end()
    print(
        json.dumps(
            {
                "destinations": arguments.destinations,
                "connections": arguments.connections,
                "streams": STREAMS,
                "pages": pages,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
