"""`sluicemq dlq …`: list, redrive and purge dead letters.

A dead-letter queue is a queue: `messages` works on it as well. These commands also show the reason
of each dead letter.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli import destinations, message_selection
from sluicemq.cli.api import Api, ApiRefused, destination
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.destination_names import (
    DestinationArgument,
    address_in,
    address_of,
    display_name,
    is_like,
)
from sluicemq.cli.destinations import Listing, oldest
from sluicemq.cli.message_selection import AllFlag, IdsArgument, LimitOption, SelectorOption
from sluicemq.cli.tables import Column, Item, number, size, table

app = typer.Typer(
    cls=Listing,
    help="List, redrive and purge dead letters.",
    pretty_exceptions_enable=False,
)

_QUEUES: Final = (
    Column("Name", address_in),
    Column("Ready", lambda item: number(item["ready"]), right=True),
    Column("Oldest", oldest, right=True),
    Column("Reasons", lambda item: _reasons(item)),
    Column("Dead letters of", lambda item: ", ".join(item.get("sources") or [])),
)
_MESSAGES: Final = (
    Column("ID", lambda item: str(item["id"]), right=True),
    Column("Dead-lettered", lambda item: str(_death(item).get("time", "-")), whole=True),
    Column("Reason", lambda item: str(_death(item).get("reason", "-")), whole=True),
    Column("Original destination", lambda item: _origin(item)),
    Column("Attempts", lambda item: str(_death(item).get("attempts") or "-"), right=True),
    Column("Size", lambda item: size(item["size"]), right=True),
    Column("Correlation ID", lambda item: str(item["correlation_id"]), optional=True),
)


@query_command(app, "list")
def list_queues(
    api: Api,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match: orders.*")
    ] = "",
) -> QueryResult:
    """List the dead-letter queues with the reasons of their messages."""
    found = [item for item in api.items("/dead-letters") if is_like(item["name"], pattern)]
    if not found:
        return QueryResult([], None, "There are no dead letters, nor queues for them.")
    return QueryResult(found, table(_QUEUES, found))


@query_command(app, "show")
def show(
    api: Api,
    name: DestinationArgument,
    selector: SelectorOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="Page size.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")
    ] = None,
) -> QueryResult:
    """List the dead letters in a queue with reason and original destination."""
    address = address_of(name)
    at = destination(address) / "messages"
    document = api.get(at, selector=selector, limit=limit, cursor=after)
    items = document["items"]
    for item in items:
        # the list does not include these fields
        try:
            item["dead_letter"] = api.get(at / item["id"], max_body_bytes=0)["dead_letter"]
        except ApiRefused as error:
            if error.code != "message-not-found":
                raise
            item["dead_letter"] = None  # removed in the meantime
    if not items:
        return QueryResult(document, None, f"There is no such message in {display_name(address)}.")
    found: RenderableType = table(_MESSAGES, items)
    if following := document.get("next_cursor"):
        found = Group(found, Text(f"The next ones: --after {following}", style="dim"))
    return QueryResult(document, found)


@action_command(app, "redrive")
def redrive(
    api: Api,
    name: DestinationArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    limit: LimitOption = 0,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TARGET", help="Send to this destination instead of the original one."
        ),
    ] = None,
    yes: YesFlag = False,
) -> ActionResult:
    """Redrive dead letters to their original destinations, or to another one."""
    address, selection = address_of(name), message_selection.select(ids, selector, everything)
    target = address_of(to) if to is not None else None
    if "ids" not in selection:
        where = f"to {display_name(target)}" if target else "to their original destinations"
        confirm(
            f"Redrive {message_selection.describe(selection)} of {display_name(address)} {where}?",
            yes,
        )
    return message_selection.run_action(
        api,
        address,
        "redrive" if target is None else "move",
        selection,
        "redriven" if target is None else "moved",
        target=target,
        limit=limit,
    )


@action_command(app, "purge")
def purge(
    api: Api,
    name: DestinationArgument,
    yes: YesFlag = False,
) -> ActionResult:
    """Purge all dead letters in a queue."""
    address = address_of(name)
    return destinations.purge(api, address.kind, address.name, yes=yes)


def _reasons(item: Item) -> str:
    reasons = item.get("reasons") or {}
    ordered = sorted(reasons.items(), key=lambda each: -each[1])
    return ", ".join(f"{reason} {number(count)}" for reason, count in ordered)


def _death(item: Item) -> Item:
    return item.get("dead_letter") or {}


def _origin(item: Item) -> str:
    origin = _death(item).get("original_destination")
    return address_in(origin) if origin else "-"
