"""`sluicemq consumers`: consumers by destination, with unacked messages, credit and deliveries."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import KINDS, Api, selected
from sluicemq.cli.command_helpers import QueryResult, query_command
from sluicemq.cli.destination_names import address_of, complete_destination
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, Item, number, table

app = typer.Typer(
    cls=Listing,
    help="List the consumers of one destination or of all. Default: list.",
    pretty_exceptions_enable=False,
)


def _destination(item: Item) -> str:
    return f"topic:{item['destination']}" if item["kind"] == "topic" else str(item["destination"])


COLUMNS: Final = (
    Column("ID", lambda item: str(item["id"]), right=True),
    Column("Destination", _destination),
    Column("Subscription", lambda item: str(item.get("subscription") or "-")),
    Column("Protocol", lambda item: str(item["protocol"]), whole=True, optional=True),
    Column("Connection", lambda item: str(item.get("connection") or "-"), right=True),
    Column("Unacked", lambda item: number(item["unacked"]), right=True),
    Column("Credit", lambda item: _credit(item), right=True),
    Column("Delivered", lambda item: number(item["delivered"]), right=True),
    Column("Selector", lambda item: str(item.get("selector") or ""), optional=True),
)


@query_command(app, "list")
def list_consumers(
    api: Api,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Only consumers of this queue, or topic:NAME.",
            autocompletion=complete_destination,
        ),
    ] = None,
) -> QueryResult:
    """List the consumers."""
    address = address_of(name) if name is not None else None
    which = {**selected(address.name), "kind": KINDS[address.kind]} if address else {}
    found = list(api.items("/consumers", **which))
    if not found:
        return QueryResult([], None, f"There are no consumers{f' of {name}' if name else ''}.")
    return QueryResult(found, table(COLUMNS, found))


def _credit(item: Item) -> str:
    return number(item["credit"]) if item.get("active", True) else "stands by"
