"""`sluicemq subscriptions …`: list the subscriptions of topics and remove durable ones."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api, selected
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.console import UsageError
from sluicemq.cli.destination_names import address_of
from sluicemq.cli.destinations import Listing
from sluicemq.cli.tables import Column, Item, number, table
from sluicemq.model.destination import Kind

app = typer.Typer(
    cls=Listing,
    help="List topic subscriptions, remove durable ones. Default: list.",
    pretty_exceptions_enable=False,
)

COLUMNS: Final = (
    Column("Topic", lambda item: str(item["destination"])),
    Column("Subscription", lambda item: str(item["display_name"])),
    Column("Client ID", lambda item: str(item["client_id"] or "-")),
    Column("Owner", lambda item: str(item.get("owner") or "-"), optional=True),
    Column("Kind", lambda item: _kind(item), whole=True, optional=True),
    Column("Ready", lambda item: number(item["ready"]), right=True),
    Column("Unacked", lambda item: number(item["unacked"]), right=True),
    Column("Consumers", lambda item: number(item["consumers"]), right=True),
    Column("Selector", lambda item: str(item.get("selector") or ""), optional=True),
)
TopicOption = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="Only subscriptions of this topic.")
]


@query_command(app, "list")
def list_subscriptions(
    api: Api,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="Only subscriptions with TEXT in the name."),
    ] = None,
    topic: TopicOption = None,
) -> QueryResult:
    """List the subscriptions of topics."""
    which = selected(_topic(topic)) if topic is not None else {}
    found = list(api.items("/subscriptions", filter=text, **which))
    if not found:
        return QueryResult([], None, "There are no such subscriptions.")
    return QueryResult(found, table(COLUMNS, found))


@action_command(app, "delete")
def delete(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Subscription name, as listed.", show_default=False),
    ],
    client_id: Annotated[
        str | None,
        typer.Option(
            "--client-id", metavar="ID", help="Client id, if several clients have the name."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers.")] = False,
    yes: YesFlag = False,
) -> ActionResult:
    """Remove a durable subscription and its messages."""
    destination = _topic(topic)
    confirm(f"Remove the subscription {name} of the topic {destination}, with its messages?", yes)
    which = selected(destination)
    found = [
        item["name"]
        for item in api.items("/subscriptions", **which)
        if name in (item["display_name"], item["name"]) and client_id in (None, item["client_id"])
    ]
    if len(found) > 1:
        raise UsageError(f"several clients have a subscription {name}: say which with --client-id")
    # the broker reports an unknown one: it knows which subscriptions the user may see
    api.delete("/subscriptions", name=found[0] if found else name, force=force, **which)
    return ActionResult(
        {"deleted": name, "destination": destination},
        f"Removed the subscription {name} of the topic {destination}.",
    )


def _topic(text: str) -> str:
    """Return the topic's name: `prices` and `topic:prices` are the same topic."""
    address = address_of(text if text.startswith(("topic:", "queue:")) else f"topic:{text}")
    if address.kind is not Kind.TOPIC:
        raise UsageError(f"{text}: only topics have subscriptions")
    return address.name


def _kind(item: Item) -> str:
    words = ["durable"] if item.get("durable") else ["while connected"]
    return ", ".join([*words, *(["shared"] if item.get("shared") else [])])
