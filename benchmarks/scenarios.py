"""Longer measurements than `sluicemq bench`: combinations, queries, backlogs, idle connections.

See README.md here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import product
from typing import Annotated, Final

import typer
from benchmarks.backlog import BacklogResult, backlog_table
from benchmarks.backlog import backlog as measure_backlog
from benchmarks.idle import Idle, idle_table
from benchmarks.idle import idle as measure_idle
from benchmarks.lists import choices, numbers, single_value, sizes, transports
from benchmarks.load.cell import Spec, measure, measure_queries
from benchmarks.load.report import report, tables
from benchmarks.load.result import LoadSettings
from benchmarks.load.server import DEFAULT_DURABILITY, DURABILITIES, BenchmarkBroker, broker_at
from benchmarks.quick import bench, broker
from rich.table import Table

from sluicemq.cli.console import JsonFlag
from sluicemq.cli.main import run_app
from sluicemq.model.url import Url

app = typer.Typer(
    help="Measure throughput, latency, memory and processor time on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

MAX_CONNECTIONS: Final = 1000
PROTOCOL_HELP: Final = "phpmq, msglite, vibemq, jmq, each optionally with +unix; a list."
MATRIX_PROTOCOLS: Final = "phpmq,msglite"
MATRIX_DURABILITIES: Final = "sync,lazy,none"
QUERY_PROTOCOLS: Final = "msglite,msglite+unix"
MAX_WINDOW: Final = 100_000


class BacklogDurability(StrEnum):
    """Durabilities whose messages survive a restart of the broker."""

    SYNC = "sync"
    LAZY = "lazy"


app.command("quick")(bench)

SecondsOption = Annotated[
    float, typer.Option(min=0.05, max=3600, help="Duration of each timed run.")
]
RepeatOption = Annotated[int, typer.Option(min=1, help="Number of repetitions.")]
RateOption = Annotated[
    int, typer.Option(min=0, help="Rate for latency runs, messages/s; 0 = half of the flood's.")
]
SizeOption = Annotated[str, typer.Option(help="Body size in bytes, 8 to 1MiB; a list.")]
OneSizeOption = Annotated[str, typer.Option("--size", help="Body size in bytes, 8 to 1MiB.")]
UrlOption = Annotated[
    str | None,
    typer.Option(help="A running broker (phpmq://, msglite://, vibemq://, jmq://) instead."),
]


@app.command()
def matrix(
    context: typer.Context,
    protocol: Annotated[
        str | None, typer.Option(help=PROTOCOL_HELP, show_default=MATRIX_PROTOCOLS)
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(help="sync, lazy, none; a list.", show_default=MATRIX_DURABILITIES),
    ] = None,
    size: SizeOption = "100,1024,65536",
    producers: Annotated[str, typer.Option(help="Number of producers; a list.")] = "1,4",
    consumers: Annotated[str, typer.Option(help="Number of consumers; a list.")] = "1,4,16",
    window: Annotated[
        str, typer.Option(help="PHPMQ: maximum unacked messages per consumer; a list.")
    ] = "1000",
    pipeline: Annotated[
        str, typer.Option(help="msglite: outstanding ready commands per receiver; a list.")
    ] = "1",
    confirms: Annotated[
        str, typer.Option(help="VibeMQ: messages per producer awaiting PublishAck; a list.")
    ] = "256",
    replies: Annotated[
        str, typer.Option(help="JMQ: messages per producer awaiting SEND_REPLY; a list.")
    ] = "1000",
    rate: RateOption = 0,
    seconds: SecondsOption = 2.0,
    repeat: RepeatOption = 1,
    url: UrlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure every combination of the comma-separated lists: a flood, then a steady rate with its
    latency. All defaults together take about ten minutes."""
    running_broker, endpoints = _broker_and_endpoints(url, protocol, MATRIX_PROTOCOLS)
    durabilities = [""]
    if running_broker is None:
        durabilities = choices("--durability", durability or MATRIX_DURABILITIES, DURABILITIES)
    elif durability is not None:
        raise typer.BadParameter("a running broker has its own", param_hint="--durability")
    specs = list(
        cells(
            endpoints,
            durabilities,
            sizes("--size", size),
            numbers("--producers", producers, MAX_CONNECTIONS),
            numbers("--consumers", consumers, MAX_CONNECTIONS),
            {
                "phpmq": numbers("--window", window, MAX_WINDOW),
                "msglite": numbers("--pipeline", pipeline, MAX_WINDOW),
                "vibemq": numbers("--confirms", confirms, MAX_WINDOW),
                "jmq": numbers("--replies", replies, MAX_WINDOW),
            },
        )
    )
    with report(context, as_json, all_tables) as (results, note):
        for repetition in range(1, repeat + 1):
            for number, spec in enumerate(specs, 1):
                note(f"{repetition} of {repeat}, cell {number} of {len(specs)}: {spec}")
                with broker(running_broker, spec) as server:
                    cell = measure(server, spec, seconds=seconds, rate=rate, repetition=repetition)
                results.append(cell)


@app.command()
def query(
    context: typer.Context,
    protocol: Annotated[
        str | None,
        typer.Option(help="msglite, msglite+unix; a list.", show_default=QUERY_PROTOCOLS),
    ] = None,
    size: SizeOption = "100",
    seconds: SecondsOption = 2.0,
    repeat: RepeatOption = 1,
    url: UrlOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure msglite queries with their replies, one after the other."""
    running_broker, endpoints = _broker_and_endpoints(url, protocol, QUERY_PROTOCOLS)
    if any(name != "msglite" for name, _ in endpoints):
        raise typer.BadParameter("only msglite has queries", param_hint="--protocol")
    lengths = sizes("--size", size)
    with report(context, as_json, all_tables) as (results, note):
        for repetition in range(1, repeat + 1):
            for name, transport in endpoints:
                for length in lengths:
                    spec = Spec(name, transport, "" if running_broker else "none", length)
                    note(f"queries: {spec}")
                    with broker(running_broker, spec) as server:
                        results.append(
                            measure_queries(server, spec, seconds=seconds, repetition=repetition)
                        )


@app.command()
def backlog(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option(min=1000, max=100_000_000, help="Number of messages in the backlog.")
    ] = 100_000,
    size: OneSizeOption = "1024",
    durability: Annotated[
        BacklogDurability, typer.Option(help="Durability of the messages.")
    ] = BacklogDurability.SYNC,
    seconds: SecondsOption = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """PHPMQ: fill a queue, measure traffic, drain the queue, fill it again, kill -9 and restart."""
    length = single_value("--size", sizes("--size", size))
    with report(context, as_json, all_tables) as (results, note):
        results.append(
            measure_backlog(
                messages=messages,
                size=length,
                durability=durability.value,
                seconds=seconds,
                note=note,
            )
        )


@app.command()
def idle(
    context: typer.Context,
    connections: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Number of idle connections.")
    ] = 1000,
    protocol: Annotated[str, typer.Option(help=PROTOCOL_HELP)] = "phpmq,msglite",
    size: OneSizeOption = "1024",
    rate: Annotated[int, typer.Option(min=1, help="Rate of the active pair, messages/s.")] = 2000,
    seconds: SecondsOption = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Measure the memory of idle connections and the latency of an active pair."""
    endpoints = transports("--protocol", protocol)
    length = single_value("--size", sizes("--size", size))
    with report(context, as_json, all_tables) as (results, note):
        for name, transport in endpoints:
            note(f"{connections:,} idle connections: {name} over {transport}")
            results.append(
                measure_idle(
                    name,
                    transport,
                    DEFAULT_DURABILITY[name],
                    connections=connections,
                    size=length,
                    rate=rate,
                    seconds=seconds,
                )
            )


def _broker_and_endpoints(
    url: str | None, protocol: str | None, default: str
) -> tuple[BenchmarkBroker | None, list[tuple[str, str]]]:
    """Return the broker at --url, if given, and the protocols and transports to measure."""
    if url is None:
        return None, transports("--protocol", protocol or default)
    if protocol is not None:
        raise typer.BadParameter("--url says it", param_hint="--protocol")
    address = Url.parse(url)
    server = broker_at(address)
    return server, [(address.protocol, server.target.transport)]


def cells(
    protocols: list[tuple[str, str]],
    durabilities: list[str],
    sizes: list[int],
    producers: list[int],
    consumers: list[int],
    windows: dict[str, list[int]],
) -> Iterator[Spec]:
    """Return the product of the lists. `protocols` are (protocol, transport); windows are by
    protocol."""
    for protocol, transport in protocols:
        for durability, size, sending, receiving, window in product(
            durabilities, sizes, producers, consumers, windows[protocol]
        ):
            yield Spec(protocol, transport, durability, size, sending, receiving, window)


def all_tables(results: Sequence[LoadSettings]) -> Iterator[Table]:
    """Return the tables of all scenarios."""
    yield from tables(results)
    for result in results:
        if isinstance(result, BacklogResult):
            yield backlog_table(result)
    idles = [result for result in results if isinstance(result, Idle)]
    if idles:
        yield idle_table(idles)


if __name__ == "__main__":
    sys.exit(run_app(app, "benchmarks.scenarios"))
