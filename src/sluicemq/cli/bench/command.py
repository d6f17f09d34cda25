"""`sluicemq bench`: how fast is a broker on this machine?

Each scenario gets a fresh broker process in a temporary directory, unless --url names one that
runs already. The load comes from this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.table import Table

from sluicemq.cli.bench import msglite, phpmq
from sluicemq.cli.bench.result import Result
from sluicemq.cli.console import JsonFlag, err, out, print_json
from sluicemq.cli.local import LocalBroker
from sluicemq.model.errors import ConfigurationError
from sluicemq.server.address import Url

PACED_SECONDS: Final = 3
QUERIES: Final = 10_000


class Scenario(StrEnum):
    """What is measured."""

    PHPMQ = "phpmq"
    MSGLITE = "msglite"
    QUERY = "query"
    ALL = "all"


class Persistence(StrEnum):
    """What a PHPMQ message waits for before a consumer sees it."""

    SYNC = "sync"
    LAZY = "lazy"
    NONE = "none"


def bench(
    scenario: Annotated[Scenario, typer.Argument(help="What to measure.")] = Scenario.ALL,
    messages: Annotated[int, typer.Option(min=1000, help="Messages of a flood.")] = 200_000,
    size: Annotated[int, typer.Option(min=8, max=1 << 20, help="Bytes of a body.")] = 1024,
    window: Annotated[int, typer.Option(min=1, help="PHPMQ: unacknowledged at a time.")] = 1000,
    receivers: Annotated[int, typer.Option(min=1, help="msglite: receivers.")] = 16,
    outstanding: Annotated[
        int, typer.Option(min=50, help="Sent and not yet received, at most.")
    ] = 4000,
    durability: Annotated[
        Persistence, typer.Option(help="PHPMQ: sync, lazy or none.")
    ] = Persistence.SYNC,
    rate: Annotated[
        int, typer.Option(min=0, help="Messages/s for latency; 0 = half of the flood's rate.")
    ] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each flood.")] = 1,
    url: Annotated[
        str, typer.Option(help="A running broker (phpmq:// or msglite://) instead of a new one.")
    ] = "",
    as_json: JsonFlag = False,
) -> None:
    """Measure throughput and latency."""
    target = Url.parse(url) if url else None
    if target is not None:
        scenario = _scenario_for(target, scenario)
    results: list[Result] = []
    with err().status("") as progress:

        def note(text: str) -> None:
            progress.update(text)

        if scenario in (Scenario.PHPMQ, Scenario.ALL):
            listen = f"phpmq://127.0.0.1:0?durability={durability.value}"
            for run in range(repeat):
                note(f"PHPMQ flood, run {run + 1} of {repeat}")
                with _broker(target, listen) as (host, port, local):
                    load = phpmq.Bench(
                        host,
                        port,
                        messages=messages,
                        size=size,
                        window=window,
                        outstanding=outstanding,
                    )
                    results.append(_finished(load.flood(), local, durability.value))
                    load.close()
            note("PHPMQ at a steady rate")
            pace = rate or max(1000, results[-1].rate // 2)
            with _broker(target, listen) as (host, port, local):
                load = phpmq.Bench(
                    host,
                    port,
                    messages=pace * PACED_SECONDS,
                    size=size,
                    window=window,
                    outstanding=outstanding,
                )
                results.append(_finished(load.pace(pace), local, durability.value))
                load.close()
        if scenario in (Scenario.MSGLITE, Scenario.ALL):
            for run in range(repeat):
                note(f"msglite flood, run {run + 1} of {repeat}")
                with _broker(target, "msglite://127.0.0.1:0") as (host, port, local):
                    result = msglite.flood(
                        host,
                        port,
                        messages=messages,
                        size=size,
                        receivers=receivers,
                        outstanding=outstanding,
                    )
                    results.append(_finished(result, local, "none"))
        if scenario in (Scenario.QUERY, Scenario.ALL):
            note("msglite queries")
            with _broker(target, "msglite://127.0.0.1:0") as (host, port, local):
                result = msglite.query(host, port, queries=QUERIES, size=size)
                results.append(_finished(result, local, "none"))
    if as_json:
        print_json(results)
    else:
        out().print(_table(results))


def _scenario_for(target: Url, scenario: Scenario) -> Scenario:
    fitting = {
        "phpmq": (Scenario.PHPMQ,),
        "msglite": (Scenario.MSGLITE, Scenario.QUERY),
    }.get(target.protocol, ())
    if target.path or target.tls or not fitting:
        raise ConfigurationError(f"{target}: bench speaks plain TCP, phpmq:// or msglite://")
    if scenario is Scenario.ALL:
        return fitting[0]
    if scenario not in fitting:
        raise ConfigurationError(f"{target} cannot be measured with the scenario {scenario.value}")
    return scenario


@contextmanager
def _broker(target: Url | None, listen: str) -> Iterator[tuple[str, int, LocalBroker | None]]:
    if target is not None:
        yield target.host, target.port, None
        return
    with tempfile.TemporaryDirectory(prefix="sluicemq-bench-") as directory:
        local = LocalBroker(Path(directory), [listen], ["--log-level", "warning"])
        with local:
            yield "127.0.0.1", local.port(listen.partition("://")[0]), local


def _finished(result: Result, local: LocalBroker | None, durability: str) -> Result:
    fields = {name: getattr(result, name) for name in Result.__struct_fields__}
    if local is not None:
        fields["durability"] = durability
        fields["resident_bytes"] = local.status()["memory"]
    return Result(**fields)


def _table(results: list[Result]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("scenario", "left"),
        ("durability", "left"),
        ("bytes", "right"),
        ("rate/s", "right"),
        ("p50 ms", "right"),
        ("p99 ms", "right"),
        ("p99.9 ms", "right"),
        ("memory MB", "right"),
    ):
        table.add_column(title, justify="right" if justify == "right" else "left")
    for result in results:
        latency = result.latency
        times = (latency.p50, latency.p99, latency.p999) if latency else ()
        table.add_row(
            f"{result.scenario}, paced" if result.paced else result.scenario,
            result.durability,
            f"{result.size:,}",
            f"{result.rate:,}",
            *(f"{value:.2f}" for value in times),
            *("",) * (3 - len(times)),
            f"{result.resident_bytes / 1e6:.0f}" if result.resident_bytes else "",
        )
    return table
