"""`sluicemq queues …` and `sluicemq topics …`: list, create, alter, purge, delete, pause and resume
destinations."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from typer.core import TyperGroup

from sluicemq.cli.api import (
    Api,
    CommandResult,
    YesFlag,
    action_command,
    confirm,
    list_result,
    query_command,
)
from sluicemq.cli.console import (
    Column,
    Exit,
    UsageError,
    age,
    cell,
    choice_of,
    number,
    pairs,
    printable,
    rate,
    size,
    sparkline,
    unknown_choice,
)
from sluicemq.cli.location import location_of, location_options
from sluicemq.management.broker import GET_HISTORY, HistoryQuery, HistoryView
from sluicemq.management.destinations import (
    DELETE_DESTINATION,
    GET_DESTINATION,
    LIST_DESTINATIONS,
    PAUSE_DESTINATION,
    PURGE_DESTINATION,
    PUT_DESTINATION,
    RESUME_DESTINATION,
    AddressView,
    DeadLetterItem,
    DeleteDestination,
    DestinationBody,
    DestinationItem,
    DestinationPath,
    DestinationQuery,
    DestinationRequest,
    DestinationView,
    PurgeRequest,
    PutDestination,
)
from sluicemq.management.operation import ApiOperation, KindName, is_utf_8, kind_name
from sluicemq.model.destination import Address, DestinationSettings, Kind
from sluicemq.model.errors import SluiceError
from sluicemq.model.setting import nearest
from sluicemq.server.settings import convert, format_quantity, settings_of

# --- Names of destinations, and their shell completion --------------------------------------------
#
# `orders` is a queue and `topic:prices` a topic; a queue named `topic:prices` is written
# `queue:topic:prices`. Commands for one kind of destination take the name without a prefix.

_PREFIXES: Final = {"queue:": Kind.QUEUE, "topic:": Kind.TOPIC}
_NEEDS_NO_QUOTES: Final = re.compile(r"[\w.:@%+=,/][\w.:@%+=,/-]*\Z")
"""Pattern of names that need no shell quoting."""
_GROUPS: Final[dict[str, KindName]] = {"queues": "queue", "topics": "topic"}
"""Kinds of the destinations that a command group is for."""
_MAX_COMPLETIONS: Final = 100
"""Maximum number of completions."""


def address_of(text: str) -> Address:
    """Return the destination that a name refers to. Raises UsageError."""
    kind, name = Kind.QUEUE, text
    for prefix, prefix_kind in _PREFIXES.items():
        if text.startswith(prefix):
            kind, name = prefix_kind, text.removeprefix(prefix)
    if not name:
        raise UsageError("a destination has a name")
    return Address(kind, name)


def address_in(item: DestinationItem | AddressView) -> str:
    """Return the command-line name of the destination in an API item."""
    name = item.name
    if item.kind == "topic":
        return f"topic:{name}"
    return f"queue:{name}" if name.startswith(tuple(_PREFIXES)) else name


def display_name(address: Address) -> str:
    """Return a destination as part of a sentence."""
    return f"the {address.kind.name.lower()} {printable(address.name)}"


def matches_pattern(name: str, pattern: str) -> bool:
    """Return whether a name matches a shell pattern; "" matches all names."""
    return not pattern or fnmatch.fnmatchcase(name, pattern)


def filter_names(pattern: str) -> str:
    """Return a text by which the broker can filter the names, or "" if the pattern has no such
    text."""
    is_useless = not pattern or pattern == "*" or set("?[") & set(pattern)
    return "" if is_useless or not is_utf_8(pattern) else pattern


def complete_name(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Complete the names of destinations of the kind that the command group is for, else of both
    kinds. Yields none if the request fails or would prompt for a password."""
    options = {name: ctx.params.get(name) for name in location_options()}
    location = location_of(options)._replace(interactive=False)
    group = ctx.parent.info_name if ctx.parent is not None else ""
    kind = _GROUPS.get(group or "")
    query = DestinationQuery(kind=kind, filter=f"{incomplete.removeprefix('topic:')}*")
    with suppress(SluiceError, OSError), Api(location.target(), timeout=1.0) as api:
        for item in api.items(LIST_DESTINATIONS, query, _MAX_COMPLETIONS):
            name = item.name if kind else address_in(item)
            if item.name_base64 is None and _NEEDS_NO_QUOTES.match(name):
                yield name


NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, autocompletion=complete_name)
]


DestinationArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A queue, or topic:NAME.",
        show_default=False,
        autocompletion=complete_name,
    ),
]


_EMPTY_TEXTS: Final = {
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
BARS: Final = 48
"""Number of samples in a sparkline; one sample covers 5 s."""


class DefaultListGroup(TyperGroup):
    """Command group that defaults to `list`: `sluicemq queues [PATTERN]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `list` if the arguments name no command."""
        is_command = args[:1] and args[0] in (*self.commands, "--help", "-h")
        if not ctx.resilient_parsing and not is_command:
            args = ["list", *args]
        return super().parse_args(ctx, args)


SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SETTING=VALUE]...",
        help="As in the configuration file: max_messages=1000; NAME= restores the default.",
        show_default=False,
    ),
]


def oldest(item: DestinationItem | DeadLetterItem) -> str:
    """Return the age of the oldest ready message."""
    return age(item.oldest_ms or 0) if item.ready else "-"


def name_with_state(item: DestinationItem, name: str) -> Text | str:
    """Return the name of a destination, marked if delivery is paused."""
    if item.paused:
        return Text.assemble(cell(name), (" paused", "yellow"))
    return name


COLUMNS: Final[tuple[Column[DestinationItem], ...]] = (
    Column("Ready", lambda item: number(item.ready), align_right=True),
    Column("Unacked", lambda item: number(item.unacked), align_right=True),
    Column("Size", lambda item: size(item.bytes), align_right=True, optional=True),
    Column("Consumers", lambda item: number(item.consumers), align_right=True, optional=True),
    Column("Publish rate", lambda item: rate(item.publish_rate), align_right=True, optional=True),
    Column("Deliver rate", lambda item: rate(item.deliver_rate), align_right=True, optional=True),
    Column("Oldest", oldest, align_right=True, optional=True),
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
    cls=DefaultListGroup,
    help="List, show, create, alter, purge, pause and delete queues. Default: list.",
)
topics = typer.Typer(
    cls=DefaultListGroup,
    help="List, show, create, alter, purge, pause and delete topics. Default: list.",
)


def list_destinations(
    api: Api,
    kind: Kind,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match: orders.*")
    ] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="COLUMN",
            parser=choice_of("--sort", "column", _SORTABLE),
            help="Column to sort by, largest first.",
        ),
    ] = "name",
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Maximum number of rows; 0 = all.")
    ] = 0,
    temporary: Annotated[
        bool | None,
        typer.Option(
            "--temporary/--no-temporary", help="Only temporary destinations, or without them."
        ),
    ] = None,
) -> CommandResult:
    """List destinations with their statistics."""
    query = DestinationQuery(
        kind=kind_name(kind), filter=filter_names(pattern), temporary=temporary
    )
    items = [
        item for item in api.items(LIST_DESTINATIONS, query) if matches_pattern(item.name, pattern)
    ]
    if sort != "name":
        items.sort(key=lambda item: getattr(item, sort) or 0, reverse=True)
    items = items[: limit or None]
    word = kind.name.lower()
    if not items and pattern:
        guess = nearest(pattern, _COMMANDS)
        hint = f" Did you mean sluicemq {word}s {guess}?" if guess else ""
        return CommandResult([], f"No {word} is like {pattern}.{hint}", Exit.REFUSED)
    name: Column[DestinationItem] = Column("Name", lambda item: name_with_state(item, item.name))
    empty_text = _EMPTY_TEXTS[kind]
    if api.target.authorization:
        empty_text = f"There are no {word}s on which you have a permission."
    if temporary is not None:
        empty_text = f"There are no {word}s that are {'' if temporary else 'not '}temporary."
    return list_result(items, (name, *COLUMNS), empty_text)


def show_destination(api: Api, kind: Kind, name: NameArgument) -> CommandResult:
    """Show the statistics, settings and recent rates of one destination."""
    item = api.call(GET_DESTINATION, DestinationPath(address=Address(kind, name)))
    query = HistoryQuery(destination=name, kind=kind_name(kind), minutes=5)
    history = api.call(GET_HISTORY, query)
    return CommandResult(item, output=_details(item, history))


def put(
    api: Api,
    kind: Kind,
    expect: Literal["new", "existing"],
    verb: str,
    name: NameArgument,
    settings: SettingsArgument = None,
) -> CommandResult:
    """Create or change a destination. Raises UsageError for an invalid setting."""
    if expect == "existing" and not settings:
        raise UsageError("name the settings to change, such as max_messages=1000")
    address = Address(kind, name)
    request = PutDestination(address=address, expect=expect, body=_settings(settings))
    return CommandResult(api.call(PUT_DESTINATION, request), f"{verb} {display_name(address)}.")


def delete(
    api: Api,
    kind: Kind,
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if it has consumers.")] = False,
    yes: YesFlag = False,
) -> CommandResult:
    """Delete a destination and its messages."""
    address = Address(kind, name)
    if not yes:
        ready = api.call(GET_DESTINATION, DestinationPath(address=address)).ready
        confirm(f"Delete {display_name(address)} with {number(ready)} messages?", yes)
    api.call(DELETE_DESTINATION, DeleteDestination(address=address, force=force))
    return CommandResult({"deleted": name}, f"Deleted {display_name(address)}.")


def purge(
    api: Api,
    kind: Kind,
    name: NameArgument,
    unacked: Annotated[bool, typer.Option("--unacked", help="Include unacked messages.")] = False,
    yes: YesFlag = False,
) -> CommandResult:
    """Purge the ready messages of a destination."""
    address = Address(kind, name)
    if not yes:
        item = api.call(GET_DESTINATION, DestinationPath(address=address))
        count = item.ready + item.scheduled + unacked * item.unacked
        confirm(f"Purge {number(count)} messages of {display_name(address)}?", yes)
    purging = DestinationBody(address=address, body=PurgeRequest(unacked=unacked))
    answer = api.call(PURGE_DESTINATION, purging)
    return CommandResult(
        answer, f"{number(answer.purged)} messages of {display_name(address)} have been purged."
    )


def switch_delivery(
    api: Api,
    kind: Kind,
    operation: ApiOperation[DestinationPath, Any],
    state: str,
    name: NameArgument,
) -> CommandResult:
    """Pause or resume delivery."""
    address = Address(kind, name)
    answer = api.call(operation, DestinationPath(address=address))
    return CommandResult(answer, f"Delivery of {display_name(address)} is {state}.")


_COMMANDS: Final[dict[str, tuple[Any, ...]]] = {
    "list": (query_command, list_destinations, "List the {}s, with their statistics."),
    "show": (
        query_command,
        show_destination,
        "Show one {}: its statistics, settings and recent rates.",
    ),
    "create": (
        action_command,
        put,
        "Create a {} with settings; fails if it exists.",
        "new",
        "Created",
    ),
    "alter": (
        action_command,
        put,
        "Change settings of a {}; other settings keep their values.",
        "existing",
        "Changed",
    ),
    "delete": (action_command, delete, "Delete a {} and its messages."),
    "purge": (action_command, purge, "Purge the ready messages of a {}."),
    "pause": (
        action_command,
        switch_delivery,
        "Pause delivery of a {}; the broker still accepts messages.",
        PAUSE_DESTINATION,
        "paused",
    ),
    "resume": (
        action_command,
        switch_delivery,
        "Resume delivery of a {}.",
        RESUME_DESTINATION,
        "resumed",
    ),
}
"""Commands of both groups by name: kind of command, function, help text, and the arguments that the
command presets besides the kind of destination."""

for _app, _kind in ((queues, Kind.QUEUE), (topics, Kind.TOPIC)):
    for _name, (_register, _function, _about, *_preset) in _COMMANDS.items():
        _text = _about.format(_kind.name.lower())
        _register(_app, _name, _kind, *_preset, about=_text)(_function)


def _details(item: DestinationView, history: HistoryView) -> RenderableType:
    ready = f"{number(item.ready)}, {size(item.bytes)}"
    if item.ready:
        ready += f", the oldest for {age(item.oldest_ms or 0)}"
    state = [
        *(["paused"] if item.paused else []),
        *(["temporary"] if item.temporary else []),
        *(["created on first use"] if item.auto_created else []),
        *(["in the configuration"] if item.configured else []),
    ]
    rows: list[tuple[str, RenderableType]] = [
        (item.kind, item.name),
        *([("state", ", ".join(state))] if state else []),
        ("ready", ready),
        ("unacked", number(item.unacked)),
        ("scheduled", number(item.scheduled)),
        ("consumers", number(item.consumers)),
        *([("subscriptions", number(item.subscriptions))] if item.kind == "topic" else []),
        (
            "publish rate",
            f"{rate(item.publish_rate)}  {sparkline(history.publish_rate, BARS)}",
        ),
        (
            "deliver rate",
            f"{rate(item.deliver_rate)}  {sparkline(history.deliver_rate, BARS)}",
        ),
        ("ready, recently", sparkline(history.ready, BARS)),
    ]
    rows += [
        (title, number(getattr(item, name))) for name, title in _COUNTERS if getattr(item, name)
    ]
    if item.effective.dead_letter_queue:
        rows.append(("dead letters to", item.effective.dead_letter_queue))
    return Group(pairs(rows), Text(), Text("settings", style="bold"), _settings_table(item))


def _settings_table(item: DestinationView) -> RenderableType:
    settings = settings_of(DestinationSettings)
    rows = []
    for name, value in item.settings.items():
        if name not in settings or value == settings[name].default:
            continue
        text: object = value
        if isinstance(value, int) and settings[name].unit is not None and value:
            text = format_quantity(value, settings[name].unit)
        rows.append((f"  {name}", f"{text}".lower() if isinstance(value, bool) else f"{text}"))
    return pairs(rows) if rows else Text("  default", style="dim")


def _settings(assignments: list[str] | None) -> DestinationRequest:
    """Parse settings in the notation of the configuration file. Raises UsageError."""
    settings = settings_of(DestinationSettings)
    values: dict[str, Any] = {}
    for text in assignments or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_")
        if not equals:
            raise UsageError(f"{text!r}: settings have the form NAME=VALUE")
        if name not in settings:
            raise unknown_choice(text, "setting", name, settings)
        # without a value, the broker's default
        values[name] = (
            convert(value, settings[name], text, text=True, base=Path()) if value else None
        )
    return DestinationRequest(**values)
