"""Tables of the results, one for each scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from sluicemq.cli.bench.result import (
    BacklogResult,
    Cell,
    Idle,
    LoadSettings,
    QueryMeasurement,
    Result,
    TransferResult,
)
from sluicemq.cli.tables import size

_COST = ("Rate", "Broker", "Load", "Memory")
_LATENCY = ("p50", "p99", "p99.9")


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """Return the tables in the order of the scenarios. Broker and Load are their processor
    time per message; Memory is the broker's."""
    cells = [result for result in results if isinstance(result, Cell)]
    queries = [result for result in results if isinstance(result, QueryMeasurement)]
    idles = [result for result in results if isinstance(result, Idle)]
    if cells:
        yield _floods(cells)
        yield _steady_rates(cells)
    if queries:
        yield _queries(queries)
    for result in results:
        if isinstance(result, BacklogResult):
            yield _backlog(result)
    if idles:
        yield _idles(idles)


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _floods(cells: Sequence[Cell]) -> Table:
    table = _table(
        "Flood",
        ("Protocol", "Durability"),
        ("Bytes", "From → to", "Window", *_COST),
    )
    for cell in cells:
        table.add_row(
            _name(cell),
            cell.durability,
            f"{cell.size:,}",
            f"{cell.producers} → {cell.consumers}",
            f"{cell.window:,}",
            *_cost(cell.flood),
        )
    return table


def _steady_rates(cells: Sequence[Cell]) -> Table:
    table = _table(
        "Steady rate, after the flood",
        ("Protocol", "Durability"),
        ("Bytes", "From → to", "Window", "Rate", *_LATENCY),
    )
    for cell in cells:
        table.add_row(
            _name(cell),
            cell.durability,
            f"{cell.size:,}",
            f"{cell.producers} → {cell.consumers}",
            f"{cell.window:,}",
            f"{cell.steady.asked:,}/s",
            *_latency(cell.steady),
        )
    return table


def _queries(queries: Sequence[QueryMeasurement]) -> Table:
    table = _table(
        "Queries and replies, one after the other",
        ("Protocol",),
        ("Bytes", "Rate", *_COST[1:], *_LATENCY),
    )
    for result in queries:
        run = result.run
        table.add_row(_name(result), f"{result.size:,}", *_cost(run), *_latency(run))
    return table


def _backlog(result: BacklogResult) -> Table:
    table = _table(
        f"Backlog: {result.messages:,} messages of {result.size:,} bytes, {_name(result)}, "
        f"{result.durability}",
        ("Step",),
        ("Messages", *_COST),
    )
    for title, run in (
        ("live, nothing waits", result.live),
        *_at_depth(result, deep=False),
        ("fill", result.fill),
        *_at_depth(result, deep=True),
        ("drain", result.drain),
        ("drain after the restart", result.drain_recovered),
    ):
        table.add_row(title, f"{run.messages:,}", *_cost(run))
    recovery = result.recovery
    table.caption_justify = "left"
    table.caption = (
        f"drain / live: {result.drain_ratio:.2f}; memory per ready message: "
        f"{result.bytes_per_message:,.0f} bytes\n"
        f"after kill -9: serving in {recovery.serving_seconds:.2f} s, first message in "
        f"{recovery.first_message_seconds:.2f} s, {recovery.messages:,} messages, "
        f"{size(recovery.resident_bytes)}"
    )
    return table


def _at_depth(result: BacklogResult, *, deep: bool) -> tuple[tuple[str, TransferResult], ...]:
    costs = result.deep if deep else result.shallow
    waiting = f"{costs.waiting:,} ready"
    return (
        (f"{waiting}: another queue", costs.elsewhere),
        (f"{waiting}: through the queue", costs.through),
        (f"{waiting}: sent only", costs.publish),
    )


def _idles(idles: Sequence[Idle]) -> Table:
    table = _table(
        "Idle connections, and a pair that works beside them",
        ("Protocol", "Idle"),
        ("Memory each", "Rate", *_COST[1:], *_LATENCY),
    )
    for result in idles:
        grown = size(result.bytes_per_connection)
        for title, memory, run in (
            ("0, before", "", result.before),
            (f"{result.connections:,}", grown, result.beside),
            ("0, after", "", result.after),
        ):
            table.add_row(_name(result), title, memory, *_cost(run), *_latency(run))
    return table


def _name(setting: LoadSettings) -> str:
    return setting.protocol if setting.transport == "tcp" else f"{setting.protocol}+unix"


def _cost(run: TransferResult) -> tuple[str, str, str, str]:
    known = run.resident_bytes > 0
    return (
        f"{run.rate:,}/s",
        f"{run.broker_us:.1f} µs" if known else "",
        f"{run.generator_us:.1f} µs",
        size(run.resident_bytes) if known else "",
    )


def _latency(run: TransferResult) -> tuple[str, ...]:
    latency = run.latency
    if latency is None:
        return ("", "", "")
    return tuple(f"{value:.2f} ms" for value in (latency.p50, latency.p99, latency.p999))
