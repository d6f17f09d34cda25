"""`sluicemq audit`: recent logins, failed logins and administrative changes."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api
from sluicemq.cli.command_helpers import QueryResult, query_command
from sluicemq.cli.tables import Column, Item, moment, table

app = typer.Typer(add_completion=False)

_ELSEWHERE: Final = ("time", "event", "user", "peer")
COLUMNS: Final = (
    Column("Time", lambda item: moment(item["time"]), whole=True),
    Column("Event", lambda item: str(item["event"])),
    Column("User", lambda item: str(item.get("user", ""))),
    Column("Peer", lambda item: str(item.get("peer", ""))),
    Column("Details", lambda item: _rest(item)),
)


@query_command(app, "audit")
def audit(
    api: Api,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Number of lines.")
    ] = 50,
) -> QueryResult:
    """Show the last lines of the audit log: logins, refusals, changes; the latest is the last."""
    found = list(api.items("/audit", limit))
    if not found:
        return QueryResult([], None, "The audit log is empty since the broker started.")
    return QueryResult(found, table(COLUMNS, reversed(found)))


def _rest(item: Item) -> str:
    return ", ".join(
        f"{name}: {value}" for name, value in item.items() if name not in _ELSEWHERE and value != ""
    )
