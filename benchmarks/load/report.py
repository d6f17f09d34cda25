"""Report of results: tables, one for each scenario, or one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import typer
from rich.table import Table

from sluicemq import __version__
from sluicemq.cli.console import err, out, print_json, show, size

from . import machine
from .result import (
    SCHEMA,
    Cell,
    Document,
    LoadSettings,
    QueryMeasurement,
    TransferResult,
)

Note = Callable[[str], None]
"""Shows what is being measured."""

COST = ("Rate", "Broker", "Load", "Memory")
LATENCY = ("p50", "p99", "p99.9")


def tables(results: Sequence[LoadSettings]) -> Iterator[Table]:
    """Return the tables in the order of the scenarios. Broker and Load are their processor
    time per message; Memory is the broker's."""
    cells = [result for result in results if isinstance(result, Cell)]
    queries = [result for result in results if isinstance(result, QueryMeasurement)]
    if cells:
        yield _floods(cells)
        yield _steady_rates(cells)
    if queries:
        yield _queries(queries)


def table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return a table without rows; `numbers` are aligned to the right."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in texts:
        grid.add_column(name)
    for name in numbers:
        grid.add_column(name, justify="right")
    return grid


def _floods(cells: Sequence[Cell]) -> Table:
    grid = table(
        "Flood",
        ("Protocol", "Durability"),
        ("Bytes", "From → to", "Window", *COST),
    )
    for cell in cells:
        grid.add_row(
            name(cell),
            cell.durability,
            f"{cell.size:,}",
            f"{cell.producers} → {cell.consumers}",
            f"{cell.window:,}",
            *cost(cell.flood),
        )
    return grid


def _steady_rates(cells: Sequence[Cell]) -> Table:
    grid = table(
        "Steady rate, after the flood",
        ("Protocol", "Durability"),
        ("Bytes", "From → to", "Window", "Rate", *LATENCY),
    )
    for cell in cells:
        grid.add_row(
            name(cell),
            cell.durability,
            f"{cell.size:,}",
            f"{cell.producers} → {cell.consumers}",
            f"{cell.window:,}",
            f"{cell.steady.target_rate:,}/s",
            *latency(cell.steady),
        )
    return grid


def _queries(queries: Sequence[QueryMeasurement]) -> Table:
    grid = table(
        "Queries and replies, one after the other",
        ("Protocol",),
        ("Bytes", "Rate", *COST[1:], *LATENCY),
    )
    for result in queries:
        run = result.run
        grid.add_row(name(result), f"{result.size:,}", *cost(run), *latency(run))
    return grid


def name(setting: LoadSettings) -> str:
    """Return the protocol, with its transport unless that is TCP."""
    return setting.protocol if setting.transport == "tcp" else f"{setting.protocol}+unix"


def cost(run: TransferResult) -> tuple[str, str, str, str]:
    """Return the cells of the columns COST."""
    has_broker_costs = run.resident_bytes > 0
    return (
        f"{run.rate:,}/s",
        f"{run.broker_us:.1f} µs" if has_broker_costs else "",
        f"{run.generator_us:.1f} µs",
        size(run.resident_bytes) if has_broker_costs else "",
    )


def latency(run: TransferResult) -> tuple[str, ...]:
    """Return the cells of the columns LATENCY."""
    percentiles = run.latency
    if percentiles is None:
        return ("", "", "")
    return tuple(
        f"{value:.2f} ms" for value in (percentiles.p50, percentiles.p99, percentiles.p999)
    )


@contextmanager
def report(
    context: typer.Context,
    as_json: bool,
    tables_of: Callable[[Sequence[LoadSettings]], Iterator[Table]] = tables,
) -> Iterator[tuple[list[LoadSettings], Note]]:
    """Yield a list for the results of a command and a function that reports progress.

    Prints the results at the end, also after an interrupt.
    """
    results: list[LoadSettings] = []
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
            for results_table in tables_of(results):
                show(results_table)
                out().print()
