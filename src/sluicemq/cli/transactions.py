"""`sluicemq transactions …`: list transactions, and commit or roll back prepared ones whose
coordinator does not return."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api, below
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, Item, moment, number, table

app = typer.Typer(
    cls=Listing,
    help="List transactions, commit or roll back prepared ones by hand. Default: list.",
    pretty_exceptions_enable=False,
)

COLUMNS: Final = (
    Column("ID", lambda item: str(item["id"]), right=True),
    Column("State", lambda item: str(item["state"]), whole=True),
    Column("Protocol", lambda item: str(item.get("protocol") or "-"), whole=True, optional=True),
    Column("Owner", lambda item: str(item.get("owner") or "-")),
    Column("Publishes", lambda item: number(item["publishes"]), right=True),
    Column("Acks", lambda item: number(item["acks"]), right=True),
    Column("Created", lambda item: moment(item.get("started") or 0), whole=True),
    Column("XID", lambda item: _xid(item)),
)
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Transaction id, as listed.", show_default=False)
]


@query_command(app, "list")
def list_transactions(
    api: Api,
    prepared: Annotated[
        bool, typer.Option("--prepared", help="Only prepared transactions.")
    ] = False,
) -> QueryResult:
    """List the transactions."""
    found = list(api.items("/transactions", state="prepared" if prepared else None))
    if not found:
        return QueryResult(
            [], None, f"There are no {'prepared' if prepared else 'open'} transactions."
        )
    return QueryResult(found, table(COLUMNS, found))


@action_command(app, "commit")
def commit(api: Api, transaction: IdArgument, yes: YesFlag = False) -> ActionResult:
    """Commit a prepared transaction in place of its coordinator."""
    return _decide(api, transaction, "commit", "Committed", yes)


@action_command(app, "rollback")
def rollback(api: Api, transaction: IdArgument, yes: YesFlag = False) -> ActionResult:
    """Roll back a prepared transaction in place of its coordinator."""
    return _decide(api, transaction, "rollback", "Rolled back", yes)


def _decide(api: Api, transaction: str, verdict: str, done: str, yes: bool) -> ActionResult:
    confirm(
        f"Decide transaction {transaction} by hand ({verdict})? Its coordinator may have decided "
        "otherwise elsewhere.",
        yes,
    )
    answer = api.post(below("/transactions", transaction) / verdict)
    return ActionResult(answer or {"id": transaction, "state": verdict}, f"{done} {transaction}.")


def _xid(item: Item) -> str:
    xid = item.get("xid")
    return " ".join(map(str, xid.values())) if xid else "-"
