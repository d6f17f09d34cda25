"""`sluicemq dlq …`: list, redrive and purge dead letters.

A dead-letter queue is a queue: `messages` works on it as well. These commands also show the reason
of each dead letter.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli import destinations, message_options
from sluicemq.cli.api import Api
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    listing,
    query_command,
)
from sluicemq.cli.console import Column, number, size, table
from sluicemq.cli.destinations import (
    DestinationArgument,
    Listing,
    address_in,
    address_of,
    display_name,
    is_like,
    oldest,
)
from sluicemq.cli.message_options import AllFlag, IdsArgument, LimitOption, SelectorOption
from sluicemq.clients.http import HttpRefusal
from sluicemq.management.destinations import (
    LIST_DEAD_LETTER_QUEUES,
    DeadLetterItem,
    DeadLetterQuery,
)
from sluicemq.management.messages import (
    GET_MESSAGE,
    LIST_MESSAGES,
    DeadLetterView,
    MessageItem,
    MessageLookup,
    MessageQuery,
)
from sluicemq.model.destination import Address

app = typer.Typer(
    cls=Listing,
    help="List, redrive and purge dead letters.",
    pretty_exceptions_enable=False,
)


class DeadLetter(NamedTuple):
    """A message of a dead-letter queue, and its origin; None if the message is gone."""

    message: MessageItem
    origin: DeadLetterView | None


_QUEUES: Final[tuple[Column[DeadLetterItem], ...]] = (
    Column("Name", address_in),
    Column("Ready", lambda item: number(item.ready), right=True),
    Column("Oldest", oldest, right=True),
    Column("Reasons", lambda item: _reasons(item)),
    Column("Dead letters of", lambda item: ", ".join(item.sources)),
)
_MESSAGES: Final[tuple[Column[DeadLetter], ...]] = (
    Column("ID", lambda item: item.message.id, right=True),
    Column("Dead-lettered", lambda item: item.origin.time if item.origin else "-", whole=True),
    Column("Reason", lambda item: item.origin.reason if item.origin else "-", whole=True),
    Column("Original destination", lambda item: _original(item.origin)),
    Column(
        "Attempts",
        lambda item: str(item.origin.attempts or "-") if item.origin else "-",
        right=True,
    ),
    Column("Size", lambda item: size(item.message.size), right=True),
    Column("Correlation ID", lambda item: item.message.correlation_id, optional=True),
)


@query_command(app, "list")
def list_queues(
    api: Api,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match: orders.*")
    ] = "",
) -> QueryResult:
    """List the dead-letter queues with the reasons of their messages."""
    found = [
        item
        for item in api.items(LIST_DEAD_LETTER_QUEUES, DeadLetterQuery())
        if is_like(item.name, pattern)
    ]
    return listing(found, _QUEUES, "There are no dead letters, nor queues for them.")


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
    query = MessageQuery(address=address, selector=selector or "", limit=limit, cursor=after or "")
    page = api.call(LIST_MESSAGES, query)
    items = [DeadLetter(each, _origin(api, address, each.id)) for each in page.items]
    document = msgspec.to_builtins(page)
    for entry, item in zip(document["items"], items, strict=True):
        entry["dead_letter"] = item.origin
    if not items:
        return QueryResult(document, None, f"There is no such message in {display_name(address)}.")
    found: RenderableType = table(_MESSAGES, items)
    if following := page.next_cursor:
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
    address, selection = address_of(name), message_options.select(ids, selector, everything)
    target = address_of(to) if to is not None else None
    if selection.ids is None:
        where = f"to {display_name(target)}" if target else "to their original destinations"
        confirm(
            f"Redrive {message_options.describe(selection)} of {display_name(address)} {where}?",
            yes,
        )
    return message_options.run_action(
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


def _reasons(item: DeadLetterItem) -> str:
    ordered = sorted(item.reasons.items(), key=lambda each: -each[1])
    return ", ".join(f"{reason} {number(count)}" for reason, count in ordered)


def _origin(api: Api, address: Address, message_id: str) -> DeadLetterView | None:
    """Return the origin of a message, which lists do not include."""
    lookup = MessageLookup(address=address, id=message_id, max_body_bytes=0)
    try:
        return api.call(GET_MESSAGE, lookup).dead_letter
    except HttpRefusal as error:
        if error.code != "message-not-found":
            raise
        return None  # removed in the meantime


def _original(origin: DeadLetterView | None) -> str:
    address = origin.original_destination if origin is not None else None
    return "-" if address is None else address_in(address)
