"""`sluicemq connections …`: list and close client connections."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api, ApiRefused, below
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.console import Exit, complain
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, moment, number, size, table

app = typer.Typer(
    cls=Listing,
    help="List and close client connections. Default: list.",
    pretty_exceptions_enable=False,
)

COLUMNS: Final = (
    Column("ID", lambda item: str(item["id"]), right=True),
    Column(
        "Protocol",
        lambda item: f"{item['protocol']}{'+tls' if item.get('tls') else ''}",
        whole=True,
    ),
    Column("Peer", lambda item: str(item["peer"])),
    Column("User", lambda item: str(item.get("user") or "-")),
    Column("Client ID", lambda item: str(item.get("client_id") or "-")),
    Column("Started", lambda item: moment(item["started"]), whole=True, optional=True),
    Column("State", lambda item: str(item["state"]), whole=True),
    Column("Consumers", lambda item: number(item["consumers"]), right=True),
    Column("Received", lambda item: size(item["received_bytes"]), right=True, optional=True),
    Column("Sent", lambda item: size(item["sent_bytes"]), right=True, optional=True),
)


@query_command(app, "list")
def list_connections(
    api: Api,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]", help="Only connections with TEXT in peer, user or client."
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", metavar="NAME", help="Only this protocol: phpmq, jmq, ..."),
    ] = None,
) -> QueryResult:
    """List the connections of clients."""
    found = list(api.items("/connections", filter=text, protocol=protocol))
    if not found:
        return QueryResult(
            [],
            None,
            "There are no connections." if text is None else f"No connection matches {text}.",
        )
    return QueryResult(found, table(COLUMNS, found))


@action_command(app, "close")
def close(
    api: Api,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Connection ids, as listed.")],
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded in the log.")
    ] = None,
    yes: YesFlag = False,
) -> ActionResult:
    """Close connections. Their unacknowledged messages are redelivered."""
    what = f"connection {ids[0]}" if len(ids) == 1 else f"{len(ids)} connections"
    confirm(f"Close {what}?", yes)
    closed = []
    for each in ids:
        try:
            api.delete(below("/connections", each), reason=reason)
        except ApiRefused as error:
            complain(str(error))
        else:
            closed.append(each)
    code = Exit.OK if len(closed) == len(ids) else Exit.REFUSED
    return ActionResult({"closed": closed}, f"Closed {len(closed)} of {len(ids)}.", code)
