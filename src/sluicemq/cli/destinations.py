"""`sluicemq queues …` and `sluicemq topics …`: list, create, alter, purge, delete, pause and resume
destinations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from typer.core import TyperGroup

from sluicemq.cli.api import KINDS, Api, destination
from sluicemq.cli.command_helpers import (
    ActionResult,
    QueryResult,
    YesFlag,
    action_command,
    confirm,
    query_command,
)
from sluicemq.cli.console import Exit, UsageError, no_such
from sluicemq.cli.destination_names import (
    NameArgument,
    display_name,
    filter_names,
    is_like,
)
from sluicemq.cli.tables import (
    Column,
    Item,
    age,
    cell,
    number,
    pairs,
    rate,
    size,
    sparkline,
    table,
)
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.server.address import nearest
from sluicemq.server.settings import choices, convert, settings_of
from sluicemq.server.units import format_quantity

_NOTHING_YET: Final = {
    Kind.QUEUE: "There are no queues. A queue is created when a client publishes to it:\n"
    "  sluicemq messages publish orders 'hello'",
    Kind.TOPIC: "There are no topics. A topic is created when a client subscribes to it, or by:\n"
    "  sluicemq topics create prices",
}
_SORTABLE: Final = (
    *("name", "ready", "unacked", "scheduled", "bytes", "consumers", "subscriptions"),
    *(
        "publish_rate",
        "deliver_rate",
        "oldest_ms",
        "published",
        "acknowledged",
        "expired",
        "dead_lettered",
    ),
)
_BARS: Final = 48
"""Number of samples in a sparkline; one sample covers 5 s."""


class Listing(TyperGroup):
    """Command group that defaults to `list`: `sluicemq queues [PATTERN]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` if the arguments name no command."""
        if not ctx.resilient_parsing and (not args or self._is_no_command(args[0])):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def _is_no_command(self, word: str) -> bool:
        return word not in self.commands and word not in ("--help", "-h")


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SETTING=VALUE]...",
        help="As in the configuration file: max_messages=1000; NAME= restores the default.",
        show_default=False,
    ),
]
SortOption = Annotated[
    str,
    typer.Option("--sort", metavar="COLUMN", help="Column to sort by, largest first."),
]


def _figure(name: str) -> Any:
    return lambda item: number(item.get(name, 0))


def oldest(item: Item) -> str:
    """Return the age of the oldest ready message."""
    return age(item.get("oldest_ms") or 0) if item.get("ready") else "-"


def marked(item: Item, name: str) -> Text | str:
    """Return the name of a destination, marked if delivery is paused."""
    if item.get("paused"):
        return Text.assemble(cell(name), (" paused", "yellow"))
    return name


COLUMNS: Final = (
    Column("Ready", _figure("ready"), right=True),
    Column("Unacked", _figure("unacked"), right=True),
    Column("Size", lambda item: size(item.get("bytes", 0)), right=True),
    Column("Consumers", _figure("consumers"), right=True),
    Column("Publish rate", lambda item: rate(item.get("publish_rate", 0)), right=True),
    Column("Deliver rate", lambda item: rate(item.get("deliver_rate", 0)), right=True),
    Column("Oldest", oldest, right=True, optional=True),
)

_COUNTERS: Final = (
    ("published", "published"),
    ("delivered", "delivered"),
    ("redelivered", "redelivered"),
    ("acknowledged", "acknowledged"),
    ("expired", "expired"),
    ("dropped", "dropped"),
    ("rejected", "rejected"),
    ("dead_lettered", "dead letters"),
)

queues = typer.Typer(
    cls=Listing,
    help="List, show, create, alter, purge, pause and delete queues. Default: list.",
    pretty_exceptions_enable=False,
)
topics = typer.Typer(
    cls=Listing,
    help="List, show, create, alter, purge, pause and delete topics. Default: list.",
    pretty_exceptions_enable=False,
)


def list_destinations(
    api: Api,
    kind: Kind,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match: orders.*")
    ] = "",
    sort: SortOption = "name",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Maximum number of rows; 0 = all.")
    ] = 0,
    temporary: Annotated[
        bool | None,
        typer.Option(
            "--temporary/--no-temporary", help="Only temporary destinations, or without them."
        ),
    ] = None,
) -> QueryResult:
    """List destinations with their statistics."""
    if sort not in _SORTABLE:
        raise no_such("--sort", "column", sort, _SORTABLE)
    found = [
        item
        for item in api.items(
            "/destinations",
            kind=kind.name.lower(),
            filter=filter_names(pattern),
            temporary=temporary,
            sort="name",
        )
        if is_like(item["name"], pattern)
    ]
    if sort != "name":
        found.sort(key=lambda item: item.get(sort) or 0, reverse=True)
    found = found[: limit or None]
    if not found and pattern:
        word = kind.name.lower()
        guess = nearest(pattern, _COMMANDS)
        hint = f" Did you mean sluicemq {word}s {guess}?" if guess else ""
        return QueryResult([], None, f"No {word} is like {pattern}.{hint}", Exit.REFUSED)
    columns = (Column("Name", lambda item: marked(item, item["name"])), *COLUMNS)
    return QueryResult(found, table(columns, found) if found else None, _NOTHING_YET[kind])


def show_destination(api: Api, kind: Kind, name: NameArgument) -> QueryResult:
    """Show the statistics, settings and recent rates of one destination."""
    at = destination(Address(kind, name))
    item = api.get(at)
    which = at.query or {"destination": name}
    history = api.get("/history", kind=KINDS[kind], minutes=5, **which)
    return QueryResult(item, _details(item, history))


def create(
    api: Api, kind: Kind, name: NameArgument, settings: SettingsArgument = None
) -> ActionResult:
    """Create a destination with settings; fails if it exists."""
    address = Address(kind, name)
    item = api.put(destination(address), _settings(settings), expect="new")
    return ActionResult(item, f"Made {display_name(address)}.")


def alter(
    api: Api, kind: Kind, name: NameArgument, settings: SettingsArgument = None
) -> ActionResult:
    """Change settings of a destination; others keep their values."""
    if not settings:
        raise UsageError("say what to change, as in max_messages=1000")
    address = Address(kind, name)
    item = api.put(destination(address), _settings(settings), expect="existing")
    return ActionResult(item, f"Changed {display_name(address)}.")


def delete(
    api: Api,
    kind: Kind,
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Even if it has messages, consumers or subscriptions.")
    ] = False,
    yes: YesFlag = False,
) -> ActionResult:
    """Delete a destination."""
    address = Address(kind, name)
    at = destination(address)
    if not yes:
        ready = api.get(at).get("ready", 0)
        confirm(f"Remove {display_name(address)} with {number(ready)} messages?", yes)
    api.delete(at, force=force)
    return ActionResult({"deleted": name}, f"Removed {display_name(address)}.")


def purge(
    api: Api,
    kind: Kind,
    name: NameArgument,
    unacked: Annotated[bool, typer.Option("--unacked", help="Include unacked messages.")] = False,
    yes: YesFlag = False,
) -> ActionResult:
    """Purge the ready messages of a destination."""
    address = Address(kind, name)
    at = destination(address)
    if not yes:
        item = api.get(at)
        count = item.get("ready", 0) + item.get("scheduled", 0) + unacked * item.get("unacked", 0)
        confirm(f"Purge {number(count)} messages of {display_name(address)}?", yes)
    answer = api.post(at / "purge", {"unacked": unacked})
    return ActionResult(
        answer, f"{number(answer['purged'])} messages of {display_name(address)} have been purged."
    )


def pause(api: Api, kind: Kind, name: NameArgument) -> ActionResult:
    """Pause delivery; the broker still accepts messages."""
    address = Address(kind, name)
    answer = api.post(destination(address) / "pause")
    return ActionResult(answer, f"Delivery of {display_name(address)} is paused.")


def resume(api: Api, kind: Kind, name: NameArgument) -> ActionResult:
    """Resume delivery."""
    address = Address(kind, name)
    answer = api.post(destination(address) / "resume")
    return ActionResult(
        answer, f"{display_name(address)[0].upper()}{display_name(address)[1:]} delivers again."
    )


_COMMANDS: Final = ("list", "show", "create", "alter", "delete", "purge", "pause", "resume")

for _app, _kind in ((queues, Kind.QUEUE), (topics, Kind.TOPIC)):
    _word = _kind.name.lower()
    query_command(_app, "list", _kind, about=f"List the {_word}s, with their statistics.")(
        list_destinations
    )
    query_command(
        _app,
        "show",
        _kind,
        about=f"Show one {_word}: its statistics, settings and recent rates.",
    )(show_destination)
    action_command(
        _app, "create", _kind, about=f"Create a {_word} with settings; fails if it exists."
    )(create)
    action_command(
        _app,
        "alter",
        _kind,
        about=f"Change settings of a {_word}; other settings keep their values.",
    )(alter)
    action_command(_app, "delete", _kind, about=f"Delete a {_word}.")(delete)
    action_command(_app, "purge", _kind, about=f"Purge the ready messages of a {_word}.")(purge)
    action_command(
        _app,
        "pause",
        _kind,
        about=f"Pause delivery of a {_word}; the broker still accepts messages.",
    )(pause)
    action_command(_app, "resume", _kind, about=f"Resume delivery of a {_word}.")(resume)


def _details(item: Item, history: Item) -> RenderableType:
    ready = f"{number(item['ready'])}, {size(item['bytes'])}"
    if item["ready"]:
        ready += f", the oldest for {age(item['oldest_ms'] or 0)}"
    state = [
        *(["paused"] if item.get("paused") else []),
        *(["temporary"] if item.get("temporary") else []),
        *(["created on first use"] if item.get("auto_created") else []),
        *(["in the configuration"] if item.get("configured") else []),
    ]
    rows: list[tuple[str, RenderableType]] = [
        (item["kind"], item["name"]),
        *([("state", ", ".join(state))] if state else []),
        ("ready", ready),
        ("unacked", number(item["unacked"])),
        ("scheduled", number(item.get("scheduled", 0))),
        ("consumers", number(item["consumers"])),
        *([("subscriptions", number(item["subscriptions"]))] if item["kind"] == "topic" else []),
        (
            "publish rate",
            f"{rate(item['publish_rate'])}  {sparkline(history.get('publish_rate', []), _BARS)}",
        ),
        (
            "deliver rate",
            f"{rate(item['deliver_rate'])}  {sparkline(history.get('deliver_rate', []), _BARS)}",
        ),
        ("ready, recently", sparkline(history.get("ready", []), _BARS)),
    ]
    rows += [(title, number(item.get(name, 0))) for name, title in _COUNTERS if item.get(name)]
    policy = item.get("effective") or {}
    if policy.get("dead_letter_queue"):
        rows.append(("dead letters to", str(policy["dead_letter_queue"])))
    return Group(pairs(rows), Text(), Text("settings", style="bold"), _settings_table(item))


def _settings_table(item: Item) -> RenderableType:
    known = settings_of(DestinationSettings)
    rows = []
    for name, value in (item.get("settings") or {}).items():
        if name not in known or value == known[name].default:
            continue
        written = value
        if known[name].unit is not None and value:
            written = format_quantity(value, known[name].unit)
        rows.append(
            (f"  {name}", f"{written}".lower() if isinstance(value, bool) else f"{written}")
        )
    return pairs(rows) if rows else Text("  default", style="dim")


def _settings(given: list[str] | None) -> dict[str, Any]:
    """Parse settings in the notation of the configuration file. Raises UsageError."""
    known = settings_of(DestinationSettings)
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"{text!r}: settings have the form NAME=VALUE")
        if name not in known:
            raise no_such(text, "setting", name, known)
        setting = known[name]
        if not value.strip():
            found[name] = None
            continue
        converted = convert(value.strip(), setting, text, text=True, base=Path())
        found[name] = str(converted) if choices(setting) else converted
    return found
