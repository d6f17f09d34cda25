"""`sluicemq bench`: measure the speed of a broker on this machine.

Each measurement starts a broker process in a temporary directory ($TMPDIR chooses the disk), unless
--url names a running broker. This process generates the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from sluicemq import __version__
from sluicemq.cli.bench import machine, matrix
from sluicemq.cli.bench.backlog import Note
from sluicemq.cli.bench.backlog import backlog as measure_backlog
from sluicemq.cli.bench.idle import idle as measure_idle
from sluicemq.cli.bench.matrix import Spec
from sluicemq.cli.bench.options import choices, numbers, only, sizes, transports
from sluicemq.cli.bench.result import SCHEMA, Document, Result
from sluicemq.cli.bench.server import (
    DEFAULT_DURABILITY,
    DURABILITIES,
    BenchmarkBroker,
    fresh,
    running,
)
from sluicemq.cli.bench.table import tables
from sluicemq.cli.console import JsonFlag, err, out, print_json
from sluicemq.cli.tables import show
from sluicemq.server.address import Url

app = typer.Typer(
    help="Measure throughput, latency, memory and processor time on this machine.",
    invoke_without_command=True,
)

MOST_CONNECTIONS: Final = 1000
PROTOCOL_HELP: Final = "phpmq, msglite, vibemq, jmq, each optionally with +unix; a list."
MATRIX_PROTOCOLS: Final = "phpmq,msglite"
MATRIX_DURABILITIES: Final = "sync,lazy,none"
QUERY_PROTOCOLS: Final = "msglite,msglite+unix"
QUICK_SECONDS: Final = 2.0
MOST_WINDOW: Final = 100_000
QUICK: Final = (
    Spec("phpmq", "tcp", "sync", 1024),
    Spec("phpmq", "tcp", "sync", 100),
    Spec("vibemq", "tcp", "sync", 1024, 1, 1, 256),
    Spec("jmq", "tcp", "sync", 1024, 1, 1, 1000),
    Spec("msglite", "tcp", "none", 100, 1, 16, 1),
    Spec("msglite", "unix", "none", 100, 1, 16, 1),
)


class Kept(StrEnum):
    """Durabilities whose messages survive a restart of the broker."""

    SYNC = "sync"
    LAZY = "lazy"


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


@app.callback()
def quick(
    context: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.05, max=3600, help="Duration of each run.", show_default=str(QUICK_SECONDS)
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Without a scenario: measure each protocol briefly, in half a minute."""
    if context.invoked_subcommand is not None:
        if as_json or seconds is not None:
            scenario = context.invoked_subcommand
            raise typer.BadParameter(f"write options behind the scenario: bench {scenario} --…")
        return
    seconds = QUICK_SECONDS if seconds is None else seconds
    with _report(context, as_json) as (results, note):
        for spec in QUICK:
            note(str(spec))
            with fresh(spec.protocol, spec.transport, spec.durability) as server:
                cell = matrix.measure(server, spec, seconds=seconds, rate=0, repetition=1)
            results.append(cell)
        for transport in ("tcp", "unix"):
            spec = Spec("msglite", transport, "none", 100)
            note(f"queries: {spec}")
            with fresh(spec.protocol, spec.transport, spec.durability) as server:
                results.append(matrix.ask(server, spec, seconds=seconds, repetition=1))


@app.command("matrix")
def matrix_command(
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
    given, ways = _where(url, protocol, MATRIX_PROTOCOLS)
    durabilities = [""]
    if given is None:
        durabilities = choices("--durability", durability or MATRIX_DURABILITIES, DURABILITIES)
    elif durability is not None:
        raise typer.BadParameter("a running broker has its own", param_hint="--durability")
    specs = list(
        matrix.cells(
            ways,
            durabilities,
            sizes("--size", size),
            numbers("--producers", producers, MOST_CONNECTIONS),
            numbers("--consumers", consumers, MOST_CONNECTIONS),
            {
                "phpmq": numbers("--window", window, MOST_WINDOW),
                "msglite": numbers("--pipeline", pipeline, MOST_WINDOW),
                "vibemq": numbers("--confirms", confirms, MOST_WINDOW),
                "jmq": numbers("--replies", replies, MOST_WINDOW),
            },
        )
    )
    with _report(context, as_json) as (results, note):
        for repetition in range(1, repeat + 1):
            for number, spec in enumerate(specs, 1):
                note(f"{repetition} of {repeat}, cell {number} of {len(specs)}: {spec}")
                with _broker(given, spec) as server:
                    cell = matrix.measure(
                        server, spec, seconds=seconds, rate=rate, repetition=repetition
                    )
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
    given, ways = _where(url, protocol, QUERY_PROTOCOLS)
    if any(name != "msglite" for name, _ in ways):
        raise typer.BadParameter("only msglite has queries", param_hint="--protocol")
    lengths = sizes("--size", size)
    with _report(context, as_json) as (results, note):
        for repetition in range(1, repeat + 1):
            for name, transport in ways:
                for length in lengths:
                    spec = Spec(name, transport, "" if given else "none", length)
                    note(f"queries: {spec}")
                    with _broker(given, spec) as server:
                        results.append(
                            matrix.ask(server, spec, seconds=seconds, repetition=repetition)
                        )


@app.command()
def backlog(
    context: typer.Context,
    messages: Annotated[
        int, typer.Option(min=1000, max=100_000_000, help="Number of messages in the backlog.")
    ] = 100_000,
    size: OneSizeOption = "1024",
    durability: Annotated[Kept, typer.Option(help="Durability of the messages.")] = Kept.SYNC,
    seconds: SecondsOption = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """PHPMQ: fill a queue, send and receive beside it, drain it, kill -9 and restart on it."""
    length = only("--size", sizes("--size", size))
    with _report(context, as_json) as (results, note):
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
    """Measure the memory of idle connections, and the latency of an active pair beside them."""
    ways = transports("--protocol", protocol)
    length = only("--size", sizes("--size", size))
    with _report(context, as_json) as (results, note):
        for name, transport in ways:
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


def _where(
    url: str | None, protocol: str | None, default: str
) -> tuple[BenchmarkBroker | None, list[tuple[str, str]]]:
    """Return the broker at --url, if given, and the protocols and transports to measure."""
    if url is None:
        return None, transports("--protocol", protocol or default)
    if protocol is not None:
        raise typer.BadParameter("--url says it", param_hint="--protocol")
    address = Url.parse(url)
    server = running(address)
    return server, [(address.protocol, server.target.transport)]


@contextmanager
def _broker(given: BenchmarkBroker | None, spec: Spec) -> Iterator[BenchmarkBroker]:
    if given is not None:
        yield given
        return
    with fresh(spec.protocol, spec.transport, spec.durability) as server:
        yield server


@contextmanager
def _report(context: typer.Context, as_json: bool) -> Iterator[tuple[list[Result], Note]]:
    """Yield a list for the results of a command and a function that reports progress. Prints the
    results at the end, also after an interrupt."""
    results: list[Result] = []
    started = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        with err().status("") as progress:
            yield results, lambda text: progress.update(text)
    finally:
        if results and as_json:
            print_json(
                Document(
                    schema=SCHEMA,
                    version=__version__,
                    started=started,
                    machine=machine.describe(),
                    command=context.command_path,
                    options={
                        name: value
                        for name, value in context.params.items()
                        if name != "as_json" and value is not None
                    },
                    results=results,
                )
            )
        elif results:
            for table in tables(results):
                show(table)
                out().print()
