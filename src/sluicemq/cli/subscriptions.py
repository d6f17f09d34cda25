"""`sluicemq subscriptions …`: of topics, who gets a copy of what is published."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from sluicemq.cli.api import Api
from sluicemq.cli.asking import Done, Shown, YesFlag, acts, confirm, looks
from sluicemq.cli.console import UsageError
from sluicemq.cli.destinations import Listing
from sluicemq.cli.naming import address_of
from sluicemq.cli.tables import Column, Item, number, table
from sluicemq.model.destination import Kind

app = typer.Typer(
    cls=Listing,
    help="Subscriptions of topics: list them, remove durable ones. Alone: list.",
    pretty_exceptions_enable=False,
)

COLUMNS: Final = (
    Column("topic", lambda item: str(item["destination"])),
    Column("subscription", lambda item: str(item["name"])),
    Column("kind", lambda item: _kind(item)),
    Column("waiting", lambda item: number(item["waiting"]), right=True),
    Column("in flight", lambda item: number(item["unacked"]), right=True),
    Column("consumers", lambda item: number(item["consumers"]), right=True),
    Column("selector", lambda item: str(item.get("selector") or "")),
)
TopicOption = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="Only of this topic.")
]


@looks(app, "list")
def list_subscriptions(
    api: Api,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="Only with this in the name.")
    ] = None,
    topic: TopicOption = None,
) -> Shown:
    """List the subscriptions of topics."""
    destination = _topic(topic) if topic is not None else None
    found = list(api.items("/subscriptions", destination=destination, filter=text))
    if not found:
        return Shown([], None, "There are no such subscriptions.")
    return Shown(found, table(COLUMNS, found))


@acts(app, "delete")
def delete(
    api: Api,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME", help="As listed.", show_default=False)],
    yes: YesFlag = False,
) -> Done:
    """Remove a durable subscription, with what waits for it."""
    destination = _topic(topic)
    confirm(f"Remove the subscription {name} of the topic {destination}, with its messages?", yes)
    api.delete("/subscriptions", destination=destination, name=name)
    return Done(
        {"deleted": name, "destination": destination},
        f"Removed the subscription {name} of the topic {destination}.",
    )


def _topic(text: str) -> str:
    """Both `prices` and `topic:prices` are the topic prices."""
    address = address_of(text if text.startswith(("topic:", "queue:")) else f"topic:{text}")
    if address.kind is not Kind.TOPIC:
        raise UsageError(f"{text}: only topics have subscriptions")
    return address.name


def _kind(item: Item) -> str:
    words = ["durable"] if item.get("durable") else ["while connected"]
    return ", ".join([*words, *(["shared"] if item.get("shared") else [])])
