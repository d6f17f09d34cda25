"""Names of destinations on the command line, and their shell completion.

`orders` is a queue and `topic:prices` a topic; a queue named `topic:prices` is written
`queue:topic:prices`. Commands for one kind of destination take the name without a prefix.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from sluicemq.cli.api import Api
from sluicemq.cli.broker_location import BrokerLocation
from sluicemq.cli.console import UsageError, printable
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import SluiceError

_PREFIXES: Final = {"queue:": Kind.QUEUE, "topic:": Kind.TOPIC}
_HARMLESS: Final = re.compile(r"[\w.:@%+=,/][\w.:@%+=,/-]*\Z")
"""Pattern of names that need no shell quoting."""
_OFFERED: Final = 100
"""Maximum number of completions."""


def address_of(text: str) -> Address:
    """Return the destination that a name refers to. Raises UsageError."""
    for prefix, kind in _PREFIXES.items():
        if text.startswith(prefix):
            return _checked(Address(kind, text.removeprefix(prefix)))
    return _checked(Address(Kind.QUEUE, text))


def address_in(item: dict[str, Any]) -> str:
    """Return the command-line name of the destination in an API item."""
    name = str(item["name"])
    if item["kind"] == "topic":
        return f"topic:{name}"
    return f"queue:{name}" if name.startswith(tuple(_PREFIXES)) else name


def display_name(address: Address) -> str:
    """Return a destination as part of a sentence."""
    return f"the {address.kind.name.lower()} {printable(address.name)}"


def is_like(name: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern; "" matches all names."""
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def filter_names(pattern: str) -> str | None:
    """Return a text by which the broker can filter the names, or None if the pattern has no such
    text."""
    if not pattern or pattern == "*" or set("?[") & set(pattern):
        return None
    try:
        pattern.encode()
    except UnicodeEncodeError:
        return None
    return pattern


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of destinations of the kind that the command group is for."""
    group = ctx.parent.info_name if ctx.parent is not None else ""
    return list(_complete(ctx, incomplete, "topic" if group == "topics" else "queue"))


def complete_destination(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the names of queues and topics."""
    return list(_complete(ctx, incomplete, None))


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_name)
]
DestinationArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A queue, or topic:NAME.",
        show_default=False,
        autocompletion=complete_destination,
    ),
]


def _checked(address: Address) -> Address:
    if not address.name:
        raise UsageError("a destination has a name")
    return address


def _complete(ctx: typer.Context, incomplete: str, kind: str | None) -> Iterator[str]:
    """Return the names from the broker; none if the request fails or would prompt for a
    password."""
    given = {name: ctx.params.get(name) for name in BrokerLocation._fields if name != "user"}
    place = BrokerLocation(user=ctx.params.get("user_name"), **given)
    if place.user is not None and place.password_file is None:
        return
    prefix = incomplete.removeprefix("topic:")
    with suppress(SluiceError, OSError), Api(place.target(), patience=1.0) as api:
        for item in api.items("/destinations", _OFFERED, kind=kind, filter=f"{prefix}*"):
            name = str(item["name"]) if kind else address_in(item)
            if "name_base64" not in item and _HARMLESS.match(name):
                yield name
