"""Tables of the results, one for each scenario."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from sluicemq.cli.bench.result import Backlog, Cell, Idle, Query, Result, Run, Setting

_COST = ("messages/s", "broker µs", "load µs", "MB")
_LATENCY = ("p50 ms", "p99 ms", "p99.9 ms")


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """Return the tables in the order of the scenarios. µs are processor time per message, of the
    broker and of the load generator; MB are the broker's memory."""
    cells = [result for result in results if isinstance(result, Cell)]
    queries = [result for result in results if isinstance(result, Query)]
    idles = [result for result in results if isinstance(result, Idle)]
    if cells:
        yield _cells(cells)
    if queries:
        yield _queries(queries)
    for result in results:
        if isinstance(result, Backlog):
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


def _cells(cells: Sequence[Cell]) -> Table:
    table = _table(
        "Flood, then a steady rate",
        ("protocol", "durability"),
        ("bytes", "from → to", "window", *_COST, "at rate/s", *_LATENCY),
    )
    for cell in cells:
        table.add_row(
            _name(cell),
            cell.durability,
            f"{cell.size:,}",
            f"{cell.producers} → {cell.consumers}",
            f"{cell.window:,}",
            *_cost(cell.flood),
            f"{cell.steady.asked:,}",
            *_latency(cell.steady),
        )
    return table


def _queries(queries: Sequence[Query]) -> Table:
    table = _table(
        "Queries and replies, one after the other",
        ("protocol",),
        ("bytes", "queries/s", *_COST[1:], *_LATENCY),
    )
    for result in queries:
        run = result.run
        table.add_row(_name(result), f"{result.size:,}", *_cost(run), *_latency(run))
    return table


def _backlog(result: Backlog) -> Table:
    table = _table(
        f"Backlog: {result.messages:,} messages of {result.size:,} bytes, {_name(result)}, "
        f"{result.durability}",
        ("step",),
        ("messages", *_COST),
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
        f"drain / live: {result.drain_ratio:.2f}; memory per waiting message: "
        f"{result.bytes_per_message:,.0f} bytes\n"
        f"after kill -9: serving in {recovery.serving_seconds:.2f} s, first message in "
        f"{recovery.first_message_seconds:.2f} s, {recovery.messages:,} messages, "
        f"{recovery.resident_bytes / 1e6:.0f} MB"
    )
    return table


def _at_depth(result: Backlog, *, deep: bool) -> tuple[tuple[str, Run], ...]:
    costs = result.deep if deep else result.shallow
    waiting = f"{costs.waiting:,} waiting"
    return (
        (f"{waiting}: another queue", costs.elsewhere),
        (f"{waiting}: through the queue", costs.through),
        (f"{waiting}: sent only", costs.publish),
    )


def _idles(idles: Sequence[Idle]) -> Table:
    table = _table(
        "Idle connections, and a pair that works beside them",
        ("protocol", "idle"),
        ("kB each", "rate/s", *_COST[1:], *_LATENCY),
    )
    for result in idles:
        grown = f"{result.bytes_per_connection / 1000:.1f}"
        for title, size, run in (
            ("0, before", "", result.before),
            (f"{result.connections:,}", grown, result.beside),
            ("0, after", "", result.after),
        ):
            table.add_row(_name(result), title, size, *_cost(run), *_latency(run))
    return table


def _name(setting: Setting) -> str:
    return setting.protocol if setting.transport == "tcp" else f"{setting.protocol}+unix"


def _cost(run: Run) -> tuple[str, str, str, str]:
    known = run.resident_bytes > 0
    return (
        f"{run.rate:,}",
        f"{run.broker_us:.1f}" if known else "",
        f"{run.generator_us:.1f}",
        f"{run.resident_bytes / 1e6:.0f}" if known else "",
    )


def _latency(run: Run) -> tuple[str, ...]:
    latency = run.latency
    if latency is None:
        return ("", "", "")
    return tuple(f"{value:.2f}" for value in (latency.p50, latency.p99, latency.p999))
