"""Idle connections: their memory, and their effect on the latency of an active pair."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.load.load import Load
from benchmarks.load.meter import memory_bytes
from benchmarks.load.report import COST, LATENCY, cost, latency, name, table
from benchmarks.load.result import LoadSettings, TransferResult
from benchmarks.load.server import BenchmarkBroker, dialect, start_broker
from benchmarks.load.sockets import STALLED_SECONDS
from rich.table import Table

from sluicemq.cli.console import size as bytes_text
from sluicemq.model.errors import ConfigurationError, ConnectionLost

QUEUE: Final = b"idle"
SPARE: Final = 200
"""Number of open files of a process besides its idle connections."""

_POLL_SECONDS: Final = 0.01


class Idle(LoadSettings, frozen=True, kw_only=True, tag_field="scenario", tag="idle"):
    """Idle connections, and one active pair at the same time.

    connections            number of idle connections, each a consumer of one queue
    connect_rate           connections per second
    bytes_per_connection   growth of the broker's memory per connection
    before, during, after  the pair at a steady rate: before, with, and after the idle connections
    """

    connections: int
    connect_rate: int
    bytes_per_connection: float
    before: TransferResult
    during: TransferResult
    after: TransferResult


def idle(
    protocol: str,
    transport: str,
    durability: str,
    *,
    connections: int,
    size: int,
    rate: int,
    seconds: float,
) -> Idle:
    """Measure a pair at a steady rate: alone, beside `connections` idle connections, and alone
    again.

    Raises ConfigurationError if the limit of open files is too low, ConnectionLost, OSError.
    """
    _allow_open_files(connections + SPARE)
    with start_broker(protocol, transport, durability, connections=connections) as server:
        assert server.pid is not None
        client_dialect = dialect(protocol, size, queue=server.queue)
        with Load(server.target, client_dialect, pid=server.pid) as pair:
            before = pair.steady(rate, seconds)
            resident = memory_bytes(server.pid)[0]
            started = time.perf_counter()
            waiting = _connect(server, protocol, connections)
            connecting = time.perf_counter() - started
            try:
                growth = memory_bytes(server.pid)[0] - resident
                during = pair.steady(rate, seconds)
            finally:
                for connection in waiting:
                    connection.close()
            _until_connections(server, 2)
            after = pair.steady(rate, seconds)
    return Idle(
        protocol=protocol,
        transport=transport,
        durability=durability,
        size=size,
        connections=connections,
        connect_rate=round(connections / connecting),
        bytes_per_connection=round(growth / connections, 1),
        before=before,
        during=during,
        after=after,
    )


def _connect(server: BenchmarkBroker, protocol: str, connections: int) -> list[socket.socket]:
    """Open idle connections and wait until the broker has accepted them all."""
    client_dialect = dialect(protocol, 8, queue=QUEUE)
    waiting: list[socket.socket] = []
    try:
        for _ in range(connections):
            waiting.append(server.target.connect())
            client_dialect.subscribe(waiting[-1])
        _until_connections(server, connections + 2, consumers=connections)
    except BaseException:
        for connection in waiting:
            connection.close()
        raise
    return waiting


def _until_connections(server: BenchmarkBroker, number: int, consumers: int = 0) -> None:
    end = time.monotonic() + STALLED_SECONDS
    while (
        server.connections() != number or server.destination(QUEUE).get("consumers", 0) != consumers
    ):
        if time.monotonic() > end:
            raise ConnectionLost(f"the broker did not reach {number:,} connections")
        time.sleep(_POLL_SECONDS)


def _allow_open_files(number: int) -> None:
    """Raise this process's limit of open files, which the broker inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= number:
        return
    if hard != resource.RLIM_INFINITY and hard < number:
        raise ConfigurationError(
            f"--connections: {number:,} open files are needed and this user may have {hard:,}; "
            "raise the limit (ulimit -n) or ask for fewer connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))


def idle_table(idles: Sequence[Idle]) -> Table:
    """Return the table of the results."""
    grid = table(
        "Idle connections and one active pair",
        ("Protocol", "Idle"),
        ("Memory each", "Rate", *COST[1:], *LATENCY),
    )
    for result in idles:
        growth = bytes_text(result.bytes_per_connection)
        for title, memory, run in (
            ("0, before", "", result.before),
            (f"{result.connections:,}", growth, result.during),
            ("0, after", "", result.after),
        ):
            grid.add_row(name(result), title, memory, *cost(run), *latency(run))
    return grid
