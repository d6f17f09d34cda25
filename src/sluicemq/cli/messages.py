"""`sluicemq messages …`: browse, publish, delete, move, copy, redeliver and save messages of a
queue or of a topic's subscriptions. `sluicemq dlq …`: list, redrive and purge dead letters.

`sluicemq receive` consumes messages as a client does; browsing does not consume them.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli import destinations
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
    ItemTable,
    UsageError,
    advising,
    body_fields,
    choice_of,
    naming_file,
    number,
    size,
)
from sluicemq.cli.destinations import (
    DefaultListGroup,
    DestinationArgument,
    address_in,
    address_of,
    display_name,
    matches_pattern,
    oldest,
)
from sluicemq.cli.message_options import (
    MESSAGE_COLUMNS,
    AllFlag,
    BodiesArgument,
    FilesOption,
    IdsArgument,
    LimitOption,
    SelectorOption,
    StateOption,
    SubscriptionOption,
    body_preview,
    describe,
    details,
    parse_milliseconds,
    parse_properties,
    read_bodies,
    run_action,
    select,
    subscription_name,
)
from sluicemq.management.destinations import (
    LIST_DEAD_LETTER_QUEUES,
    DeadLetterItem,
    DeadLetterQuery,
    DestinationBody,
)
from sluicemq.management.messages import (
    GET_MESSAGE,
    GET_MESSAGE_BODY,
    LIST_MESSAGES,
    PUBLISH_MESSAGE,
    MessageItem,
    MessageLookup,
    MessagePath,
    MessageQuery,
    MessageTarget,
    PublishedDurability,
    PublishedKind,
    PublishRequest,
)
from sluicemq.management.operation import Page
from sluicemq.model.destination import Address

PRIORITIES: Final = 9
MAX_BODY: Final = 65_536
"""Default maximum number of body bytes that `show` requests."""

app = typer.Typer(
    help="Browse, publish, delete, move, copy, redeliver and save messages.",
    no_args_is_help=True,
)

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Message id, as listed.", show_default=False)
]
TargetArgument = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A queue, or topic:NAME.", show_default=False),
]


@query_command(app, "list")
def list_messages(
    api: Api,
    name: DestinationArgument,
    selector: SelectorOption = None,
    state: StateOption = "ready",
    subscription: SubscriptionOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="Page size.")] = 50,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Number of messages to skip.")] = 0,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")
    ] = None,
    body: Annotated[bool, typer.Option("--body", help="Show the beginning of the bodies.")] = False,
) -> CommandResult:
    """List messages in the order of delivery."""
    address = address_of(name)
    query = MessageQuery(
        address=address,
        selector=selector or "",
        state=state,
        subscription=subscription_name(api, address, subscription),
        limit=limit,
        offset=offset,
        cursor=after or "",
        body=body,
    )
    columns = (*MESSAGE_COLUMNS, Column("Body", body_preview)) if body else MESSAGE_COLUMNS
    return _page_result(address, api.call(LIST_MESSAGES, query), columns)


@query_command(app, "show")
def show_message(
    api: Api,
    name: DestinationArgument,
    message: IdArgument,
    max_body: Annotated[
        int, typer.Option("--max-body", min=0, help="Maximum bytes of the body to show.")
    ] = MAX_BODY,
) -> CommandResult:
    """Show one message with its headers, properties and body."""
    lookup = MessageLookup(address=address_of(name), id=message, max_body_bytes=max_body)
    item = api.call(GET_MESSAGE, lookup)
    return CommandResult(item, output=details(item))


@action_command(app, "save")
def save(
    api: Api,
    name: DestinationArgument,
    message: IdArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output file; - = standard output.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> CommandResult:
    """Save the body of a message to a file, unchanged."""
    path = MessagePath(address=address_of(name), id=message)
    if file != Path("-") and file.exists() and not overwrite:
        raise UsageError(f"{file} exists already; --overwrite replaces it")
    content = api.call(GET_MESSAGE_BODY, path)
    if file == Path("-"):
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return CommandResult(None, "")
    mode = "wb" if overwrite else "xb"
    opener = partial(os.open, mode=0o600)
    with naming_file(file), open(file, mode, opener=opener) as stream:
        stream.write(content)
    return CommandResult(
        {"id": message, "file": str(file), "bytes": len(content)},
        f"Wrote {size(len(content))} to {file}.",
    )


@action_command(app, "publish")
def publish(
    api: Api,
    name: DestinationArgument,
    bodies: BodiesArgument = None,
    file: FilesOption = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            parser=choice_of("--kind", "kind", get_args(PublishedKind)),
            help="text, json or bytes; default: detected.",
        ),
    ] = None,
    prop: Annotated[
        list[str] | None,
        typer.Option(
            "--property", "-p", metavar="NAME=VALUE", help="Or NAME:TYPE=VALUE; repeatable."
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=PRIORITIES, help="0 to 9; 9 is highest.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Time to live: 30s, 1h.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Delay before delivery.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", metavar="ID")] = None,
    reply_to: Annotated[
        str | None, typer.Option("--reply-to", metavar="NAME", help="A queue, or topic:NAME.")
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="JMSType.")] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", metavar="ID")] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability",
            metavar="HOW",
            parser=choice_of("--durability", "durability", get_args(PublishedDurability)),
            help="sync, lazy or none.",
        ),
    ] = None,
) -> CommandResult:
    """Publish messages from the arguments, from files, or standard input as one message. Prints
    their ids."""
    address = address_of(name)
    common: dict[str, Any] = {
        "body_kind": kind,
        "properties": parse_properties(prop or []),
        "priority": priority,
        "ttl_ms": parse_milliseconds("--ttl", ttl),
        "delay_ms": parse_milliseconds("--delay", delay),
        "correlation_id": correlation_id,
        "reply_to": MessageTarget.of(address_of(reply_to)) if reply_to is not None else None,
        "type": type_,
        "message_id": message_id,
        "durability": durability,
    }
    common = {field: value for field, value in common.items() if value not in (None, {})}
    ids: list[str] = []
    # all files are read before the first message is published
    with advising(lambda _: f"Published before: {', '.join(ids)}." if ids else ""):
        for content in list(read_bodies(bodies or [], file or [])):
            message = PublishRequest(**common, **_body(content, kind))
            answer = api.call(PUBLISH_MESSAGE, DestinationBody(address=address, body=message))
            ids.append(answer.id)
    summary = f"Published message {ids[0]}" if len(ids) == 1 else f"Published {len(ids)} messages"
    return CommandResult(
        {"ids": ids}, f"{summary} to {display_name(address)}.", output="\n".join(ids)
    )


@action_command(app, "delete")
def delete(
    api: Api,
    name: DestinationArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    state: StateOption = "ready",
    limit: LimitOption = 0,
    subscription: SubscriptionOption = None,
    yes: YesFlag = False,
) -> CommandResult:
    """Delete messages."""
    address = address_of(name)
    request = select("delete", ids, selector, everything, limit, state, subscription)
    confirm(f"Delete {describe(request)} of {display_name(address)}?", yes)
    return run_action(api, address, request)


@action_command(app, "move")
def move(
    api: Api,
    name: DestinationArgument,
    target: TargetArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    state: StateOption = "ready",
    limit: LimitOption = 0,
    subscription: SubscriptionOption = None,
    yes: YesFlag = False,
) -> CommandResult:
    """Move messages to another queue or topic."""
    address, destination = address_of(name), address_of(target)
    request = select("move", ids, selector, everything, limit, state, subscription)
    if request.ids is None:
        question = f"Move {describe(request)} of {display_name(address)}"
        confirm(f"{question} to {display_name(destination)}?", yes)
    return run_action(api, address, request, destination)


@action_command(app, "copy")
def copy(
    api: Api,
    name: DestinationArgument,
    target: TargetArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    state: StateOption = "ready",
    limit: LimitOption = 0,
    subscription: SubscriptionOption = None,
) -> CommandResult:
    """Copy messages to another queue or topic."""
    request = select("copy", ids, selector, everything, limit, state, subscription)
    return run_action(api, address_of(name), request, address_of(target))


@action_command(app, "redeliver")
def redeliver(
    api: Api,
    name: DestinationArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    state: StateOption = "ready",
    limit: LimitOption = 0,
    subscription: SubscriptionOption = None,
) -> CommandResult:
    """Requeue messages that a consumer holds unacked, or make scheduled messages ready."""
    request = select("redeliver", ids, selector, everything, limit, state, subscription)
    return run_action(api, address_of(name), request)


def _page_result(
    address: Address, page: Page[MessageItem], columns: Sequence[Column[MessageItem]]
) -> CommandResult:
    """Return a page of a destination's messages, with the way to the next page."""
    if not page.items:
        return CommandResult(page, f"There is no such message in {display_name(address)}.")
    output: RenderableType = ItemTable(columns, page.items)
    if page.next_cursor:
        total = f" of {number(page.total)}" if page.total is not None else ""
        hint = Text(f"The next ones{total}: --after {page.next_cursor}", style="dim")
        output = Group(output, hint)
    return CommandResult(page, output=output)


def _body(content: bytes, kind: str | None) -> dict[str, Any]:
    if kind == "json":
        try:
            msgspec.json.decode(content)
            return {"body_json": msgspec.Raw(content)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"--kind json: the body is not JSON: {error}") from None
    if kind == "bytes":
        return {"body_base64": b64encode(content).decode()}
    return body_fields(content)


# --- `sluicemq dlq …` -----------------------------------------------------------------------------
#
# A dead-letter queue is a queue: `messages` works on it as well. These commands also show the
# reason of each dead letter.

dlq = typer.Typer(
    cls=DefaultListGroup,
    help="List, redrive and purge dead letters.",
)


_DEAD_LETTER_QUEUES: Final[tuple[Column[DeadLetterItem], ...]] = (
    Column("Name", address_in),
    Column("Ready", lambda item: number(item.ready), align_right=True),
    Column("Oldest", oldest, align_right=True),
    Column("Reasons", lambda item: _reasons(item)),
    Column("Dead letters of", lambda item: ", ".join(item.sources)),
)
_DEAD_LETTERS: Final[tuple[Column[MessageItem], ...]] = (
    Column("ID", lambda item: item.id, align_right=True),
    Column(
        "Dead-lettered",
        lambda item: item.dead_letter.time if item.dead_letter else "-",
        no_fold=True,
    ),
    Column(
        "Reason", lambda item: item.dead_letter.reason if item.dead_letter else "-", no_fold=True
    ),
    Column("Original destination", lambda item: _original(item)),
    Column(
        "Attempts",
        lambda item: str((item.dead_letter and item.dead_letter.attempts) or "-"),
        align_right=True,
    ),
    Column("Size", lambda item: size(item.size), align_right=True),
    Column("Correlation ID", lambda item: item.correlation_id, optional=True),
)


@query_command(dlq, "list")
def list_queues(
    api: Api,
    pattern: Annotated[
        str, typer.Argument(metavar="[PATTERN]", help="Only names that match: orders.*")
    ] = "",
) -> CommandResult:
    """List the dead-letter queues with the reasons of their messages."""
    queues = [
        item
        for item in api.items(LIST_DEAD_LETTER_QUEUES, DeadLetterQuery())
        if matches_pattern(item.name, pattern)
    ]
    return list_result(
        queues, _DEAD_LETTER_QUEUES, "There are no dead letters, nor queues for them."
    )


@query_command(dlq, "show")
def show_dead_letters(
    api: Api,
    name: DestinationArgument,
    selector: SelectorOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="Page size.")] = 50,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")
    ] = None,
) -> CommandResult:
    """List the dead letters in a queue with reason and original destination."""
    address = address_of(name)
    query = MessageQuery(address=address, selector=selector or "", limit=limit, cursor=after or "")
    return _page_result(address, api.call(LIST_MESSAGES, query), _DEAD_LETTERS)


@action_command(dlq, "redrive")
def redrive(
    api: Api,
    name: DestinationArgument,
    ids: IdsArgument = None,
    selector: SelectorOption = None,
    everything: AllFlag = False,
    limit: LimitOption = 0,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TARGET", help="Redrive to this destination instead."),
    ] = None,
    yes: YesFlag = False,
) -> CommandResult:
    """Redrive dead letters to their original destinations, or to another one."""
    address, target = address_of(name), address_of(to) if to is not None else None
    request = select("redrive", ids, selector, everything, limit)
    if request.ids is None:
        suffix = f"to {display_name(target)}" if target else "to their original destinations"
        confirm(f"Redrive {describe(request)} of {display_name(address)} {suffix}?", yes)
    return run_action(api, address, request, target)


@action_command(dlq, "purge")
def purge(
    api: Api,
    name: DestinationArgument,
    yes: YesFlag = False,
) -> CommandResult:
    """Purge all dead letters in a queue."""
    address = address_of(name)
    return destinations.purge(api, address.kind, address.name, yes=yes)


def _reasons(item: DeadLetterItem) -> str:
    ordered = sorted(item.reasons.items(), key=lambda each: -each[1])
    return ", ".join(f"{reason} {number(count)}" for reason, count in ordered)


def _original(item: MessageItem) -> str:
    address = item.dead_letter.original_destination if item.dead_letter else None
    return "-" if address is None else address_in(address)
