"""`sluicemq status` and `sluicemq health`: overview and health of a running broker."""

from __future__ import annotations

from typing import Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli.api import Api, ApiRefused
from sluicemq.cli.command_helpers import QueryResult, query_command
from sluicemq.cli.console import Exit
from sluicemq.cli.tables import (
    Column,
    Item,
    age,
    number,
    pairs,
    rate,
    size,
    sparkline,
    table,
)

status_app = typer.Typer(add_completion=False)
health_app = typer.Typer(add_completion=False)

_BARS: Final = 48
"""Number of samples in a sparkline; one sample covers 5 s."""
_PROTOCOLS: Final = (
    Column("Protocol", lambda item: str(item["protocol"])),
    Column("Connections", lambda item: number(item["connections"]), right=True),
    Column("Publish rate", lambda item: rate(item["publish_rate"]), right=True),
    Column("Deliver rate", lambda item: rate(item["deliver_rate"]), right=True),
)
_LISTENERS: Final = (
    Column("Listener", lambda item: str(item["url"])),
    Column("Connections", lambda item: number(item["connections"]), right=True),
)


@query_command(status_app, "status")
def status(api: Api) -> QueryResult:
    """Show load, memory, protocols, listeners, journal and alarms of the broker."""
    overview = api.get("/overview")
    return QueryResult(overview, details(overview))


@query_command(health_app, "health")
def health(api: Api) -> QueryResult:
    """Check the broker's health: exit code 0 if it accepts messages, else 1. Needs no login."""
    try:
        document = api.get("/health/ready")
    except ApiRefused as error:
        if error.status != 503:
            raise
        document = error.document
        return QueryResult(document, pairs(_words(document)), code=Exit.REFUSED)
    return QueryResult(document, pairs(_words(document)))


def details(overview: Item) -> RenderableType:
    """Return the overview as text."""
    totals, journal = overview["totals"], overview["journal"]
    history = overview.get("history") or {}
    rows: list[tuple[str, RenderableType]] = [
        (
            "broker",
            f"sluicemq {overview['version']}{' (compiled)' if overview.get('compiled') else ''}, "
            f"up {age(overview['uptime_ms'])}, broker ID {overview['broker_id']}",
        ),
        (
            "memory",
            f"{size(overview['resident_memory_bytes'])}, of which messages "
            f"{size(overview.get('message_memory_bytes', 0))}",
        ),
        (
            "messages",
            f"{number(totals['ready'])} ready, {number(totals['unacked'])} unacked, in "
            f"{number(totals['queues'])} queues and {number(totals['topics'])} topics",
        ),
        (
            "publish rate",
            f"{rate(totals['publish_rate'])}  {sparkline(history.get('publish_rate', []), _BARS)}",
        ),
        (
            "deliver rate",
            f"{rate(totals['deliver_rate'])}  {sparkline(history.get('deliver_rate', []), _BARS)}",
        ),
        (
            "clients",
            f"{number(totals['connections'])} connections, {number(totals['consumers'])} consumers",
        ),
        ("event loop lag", f"{_quantiles(overview['loop_lag_ms'])}"),
        ("journal", _journal(journal)),
    ]
    parts: list[RenderableType] = [pairs(rows)]
    if alarms := overview.get("alarms"):
        parts += [Text(), *(Text(f"! {each['message']}", style="bold red") for each in alarms)]
    protocols = [{"protocol": name, **each} for name, each in overview["protocols"].items()]
    if protocols:
        parts += [Text(), table(_PROTOCOLS, protocols)]
    if overview["listeners"]:
        parts += [Text(), table(_LISTENERS, overview["listeners"])]
    return Group(*parts)


def _quantiles(figures: Item) -> str:
    return f"p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms, max {figures['max']:.1f} ms"


def _journal(journal: dict[str, Any]) -> str:
    if not journal["enabled"]:
        return "none: messages are in memory only"
    return (
        f"{size(journal['bytes'])} in {number(journal['segments'])} segments, fdatasync "
        f"{_quantiles(journal['fdatasync_ms'])}"
    )


def _words(document: Item) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in document.items()]
