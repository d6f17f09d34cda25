"""`sluicemq dlq …`: messages that could not be delivered, and why; back to where they came from.

A dead-letter queue is a queue: `messages` works on it as well. These commands add what is known of
how a message died.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli import choosing, destinations
from sluicemq.cli.api import Api, Refused, destination
from sluicemq.cli.asking import Done, Shown, YesFlag, acts, confirm, looks
from sluicemq.cli.choosing import AllFlag, IdsArgument, LimitOption, SelectorOption
from sluicemq.cli.destinations import Listing, oldest
from sluicemq.cli.naming import DestinationArgument, address_in, address_of, is_like, shown
from sluicemq.cli.tables import Column, Item, number, size, table

app = typer.Typer(
    cls=Listing,
    help="Dead letters: list them with their reasons, send them back, throw them away.",
    pretty_exceptions_enable=False,
)

_QUEUES: Final = (
    Column("name", address_in),
    Column("waiting", lambda item: number(item["waiting"]), right=True),
    Column("oldest", oldest, right=True),
    Column("reasons", lambda item: _reasons(item)),
    Column("dead letters of", lambda item: ", ".join(item.get("of") or [])),
)
_MESSAGES: Final = (
    Column("id", lambda item: str(item["id"]), right=True),
    Column("died", lambda item: str(_death(item).get("at", "-"))),
    Column("reason", lambda item: str(_death(item).get("reason", "-"))),
    Column("came from", lambda item: _origin(item)),
    Column("attempts", lambda item: str(_death(item).get("attempts") or "-"), right=True),
    Column("size", lambda item: size(item["size"]), right=True),
    Column("correlation id", lambda item: str(item["correlation_id"])),
)


@looks(app, "list")
def list_queues(
    api: Api,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names like this: orders.*")
    ] = "",
) -> Shown:
    """List the dead-letter queues, and why messages came there."""
    found = [item for item in api.items("/dead-letters") if is_like(item["name"], pattern)]
    if not found:
        return Shown([], None, "There are no dead letters, nor queues for them.")
    return Shown(found, table(_QUEUES, found))


@looks(app, "show")
def show(
    api: Api,
    name: DestinationArgument,
    selector: SelectorOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=500, help="So many at a time.")
    ] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Go on where a list ended.")
    ] = None,
) -> Shown:
    """List the dead letters in a queue: the reason, and where they came from."""
    address = address_of(name)
    at = destination(address) / "messages"
    document = api.get(at, selector=selector, limit=limit, after=after)
    items = document["items"]
    for item in items:
        # which a list does not tell
        try:
            item["dead_letter"] = api.get(at / item["id"], max_body=0)["dead_letter"]
        except Refused as error:
            if error.code != "message-not-found":
                raise
            item["dead_letter"] = None  # taken away meanwhile
    if not items:
        return Shown(document, None, f"No such message waits in {shown(address)}.")
    found: RenderableType = table(_MESSAGES, items)
    if following := document.get("next"):
        found = Group(found, Text(f"The next ones: --after {following}", style="dim"))
    return Shown(document, found)


@acts(app, "requeue")
def requeue(
    api: Api,
    name: DestinationArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    limit: LimitOption = 0,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TARGET", help="Elsewhere than where they came from."),
    ] = None,
    yes: YesFlag = False,
) -> Done:
    """Send dead letters back to where they came from, or elsewhere."""
    address, choice = address_of(name), choosing.chosen(ids, selector, everything)
    target = address_of(to) if to is not None else None
    if "ids" not in choice:
        where = f"to {shown(target)}" if target else "back to where they came from"
        confirm(f"Send {choosing.said(choice)} of {shown(address)} {where}?", yes)
    return choosing.carry_out(
        api,
        address,
        "origin" if target is None else "move",
        choice,
        "sent back" if target is None else "moved",
        target=target,
        limit=limit,
    )


@acts(app, "purge")
def purge(
    api: Api,
    name: DestinationArgument,
    yes: YesFlag = False,
) -> Done:
    """Throw away all the dead letters in a queue."""
    address = address_of(name)
    return destinations.purge(api, address.kind, address.name, yes=yes)


def _reasons(item: Item) -> str:
    reasons = item.get("reasons") or {}
    ordered = sorted(reasons.items(), key=lambda each: -each[1])
    return ", ".join(f"{reason} {number(count)}" for reason, count in ordered)


def _death(item: Item) -> Item:
    return item.get("dead_letter") or {}


def _origin(item: Item) -> str:
    origin = _death(item).get("origin")
    return address_in(origin) if origin else "-"
