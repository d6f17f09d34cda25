"""Selection of a destination's messages by ids, by a selector, or all, and operations on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from io import BufferedReader
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_args

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli.api import Api, CommandResult
from sluicemq.cli.console import (
    Column,
    UsageError,
    choice_of,
    err,
    moment,
    number,
    pairs,
    printable,
    quantity,
    size,
)
from sluicemq.cli.destinations import address_in, display_name
from sluicemq.management.clients import LIST_SUBSCRIPTIONS, SubscriptionQuery
from sluicemq.management.destinations import DestinationBody
from sluicemq.management.messages import (
    APPLY_MESSAGE_ACTION,
    Action,
    BodyView,
    DeadLetterView,
    MessageActionFailure,
    MessageActionRequest,
    MessageItem,
    MessageState,
    MessageTarget,
    MessageView,
    PropertyView,
)
from sluicemq.model.destination import Address, Kind
from sluicemq.server.settings import Unit

_STATES: Final = get_args(MessageState)
MAX_LISTED_FAILURES: Final = 10
"""Number of failed messages that are reported individually."""

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Message ids, as listed.", show_default=False),
]
SelectorOption = Annotated[
    str | None,
    typer.Option("--selector", metavar="TEXT", help="Messages that match: \"colour = 'red'\"."),
]
StateOption = Annotated[
    MessageState,
    typer.Option(
        "--state",
        metavar="STATE",
        parser=choice_of("--state", "state", _STATES),
        help=f"Messages in state {', '.join(_STATES)}.",
    ),
]
AllFlag = Annotated[bool, typer.Option("--all", help="All messages.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number; 0 = all.")]
SubscriptionOption = Annotated[
    str | None,
    typer.Option(
        "--subscription", metavar="NAME", help="For a topic: this subscription's messages."
    ),
]


def select(
    action: Action,
    ids: list[str] | None,
    selector: str | None,
    everything: bool,
    limit: int,
    state: MessageState = "ready",
    subscription: str | None = None,
) -> MessageActionRequest:
    """Return the request for an operation on messages: those with `ids` in any state, or those in
    `state` that match `selector`, or all in `state`. Raises UsageError for another selection."""
    if bool(ids) + (selector is not None) + everything != 1 or selector == "":
        raise UsageError("select messages by their ids, by --selector or by --all")
    if ids:
        state = "ready"  # ids select messages of any state
    elif state == "unacked":
        raise UsageError("unacked messages are selected by their ids: sluicemq messages list")
    return MessageActionRequest(
        action=action,
        ids=ids or None,
        selector=selector or "",
        all=everything,
        subscription=subscription or "",
        state=state,
        limit=limit,
    )


def subscription_name(
    api: Api, address: Address, listed: str | None, client_id: str | None = None
) -> str:
    """Return the name in the API of a topic's subscription, which may be listed by another name;
    "" for none. With `client_id`, only those of that client are looked at. Raises UsageError if
    several clients have one that is listed by that name."""
    if not listed or address.kind is not Kind.TOPIC:
        return listed or ""
    names = [
        item.name
        for item in api.items(LIST_SUBSCRIPTIONS, SubscriptionQuery(destination=address.name))
        if listed in (item.display_name, item.name) and client_id in (None, item.client_id)
    ]
    if len(names) > 1:
        raise UsageError(
            f"several clients have a subscription {listed}: name one of {', '.join(names)}"
        )
    # the broker reports an unknown one: it knows which subscriptions the user may see
    return names[0] if names else listed


def describe(request: MessageActionRequest) -> str:
    """Return the selected messages as part of a sentence."""
    if request.ids is not None:
        count = len(request.ids)
        return f"message {request.ids[0]}" if count == 1 else f"{count} messages"
    return "all messages" if request.all else f"the messages with {request.selector}"


def run_action(
    api: Api, address: Address, request: MessageActionRequest, target: Address | None = None
) -> CommandResult:
    """Run an operation on a destination's messages; exit code 1 if it failed for some of them.

    The broker processes one batch per request so that clients are not blocked; the command repeats
    the request until all messages that were there at its start are processed.
    """
    request = replace(
        request,
        target=MessageTarget.of(target) if target is not None else None,
        subscription=subscription_name(api, address, request.subscription),
    )
    limit, verb = request.limit, _PAST[request.action]
    processed = 0
    failed: list[MessageActionFailure] = []
    with err().status(f"{number(processed)} {verb}") as status:
        while True:
            answer = api.call(APPLY_MESSAGE_ACTION, DestinationBody(address=address, body=request))
            processed += answer.processed
            failed += answer.failed
            status.update(f"{number(processed)} {verb}")
            if answer.next_cursor is None or (limit and processed >= limit):
                break
            request = replace(
                request, cursor=answer.next_cursor, limit=limit - processed if limit else 0
            )
    errors = [
        f"message {failure.id}: {FAILURE_REASONS.get(failure.reason, failure.reason)}"
        for failure in failed[:MAX_LISTED_FAILURES]
    ]
    if len(failed) > MAX_LISTED_FAILURES:
        errors.append(f"… and {number(len(failed) - MAX_LISTED_FAILURES)} more")
    text = f"{number(processed)} {verb}"
    if failed:
        text += f", {number(len(failed))} not"
    document = {"processed": processed, "failed": failed}
    return CommandResult(document, f"{text} ({display_name(address)}).", errors=errors)


_PAST: Final[dict[Action, str]] = {
    "delete": "deleted",
    "move": "moved",
    "copy": "copied",
    "redeliver": "will be delivered again",
    "redrive": "redriven",
}
"""What has happened to a message."""
FAILURE_REASONS: Final = {
    "not-found": "it no longer exists",
    "in-flight": "a consumer holds it unacked; redeliver requeues it",
    "in-transaction": "it belongs to a transaction; see sluicemq transactions",
    "no-origin": "its original destination is unknown; name a destination with --to",
    "origin-gone": "its original destination does not exist; name a destination with --to",
    "forbidden": "you may not publish to its original destination",
    "low-disk-space": "the broker's disk is nearly full",
    "target-full": "the target is full",
    "target-refused": "the target rejected it",
    "too-large": "it is larger than the target permits",
    "damaged": "the journal cannot read it",
    "not-tried": "an earlier failure ended the operation",
}


# --- Bodies, properties and times -----------------------------------------------------------------

BodiesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[BODY]...", help="Message bodies, one message each."),
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="File with one message body; repeatable."),
]
TYPES: Final = {"string": str, "boolean": bool, "int": int, "float": float}
_BOOLEANS: Final = {"true": True, "false": False}


def parse_properties(assignments: list[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` (text) or `NAME:TYPE=VALUE`. Raises UsageError."""
    properties: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        name, colon, kind = name.partition(":")
        if not equals or not name:
            raise UsageError(f"--property {text!r}: write NAME=VALUE or NAME:TYPE=VALUE")
        if colon and kind not in TYPES:
            raise UsageError(
                f"--property {text!r}: there is no type {kind!r}; there are {', '.join(TYPES)}"
            )
        kind = kind or "string"
        try:
            converted: Any = _BOOLEANS[value.lower()] if kind == "boolean" else TYPES[kind](value)
            if kind == "float" and not isfinite(converted):
                raise ValueError("JSON has only finite numbers")
        except (ValueError, KeyError):
            raise UsageError(f"--property {text!r}: {value!r} is not of type {kind}") from None
        properties[name] = {"type": kind, "value": converted}
    return properties


_READ_BYTES: Final = 1 << 20
"""Maximum number of bytes of a body read at a time: a read allocates all that it requests."""
MAX_BODY_BYTES: Final = 1024**3
"""Maximum number of bytes of a body: no broker can be configured for more."""


def _read_body(stream: BufferedReader, name: object) -> bytes:
    content = bytearray()
    while len(content) <= MAX_BODY_BYTES and (part := stream.read1(_READ_BYTES)):
        content += part
    check_size(content, name)
    return bytes(content)


def check_size(content: bytearray, name: object) -> None:
    """Check the size of a body that is being read. Raises UsageError with the name of its file."""
    if len(content) > MAX_BODY_BYTES:
        raise UsageError(f"{name}: a message has up to {size(MAX_BODY_BYTES)}, this is larger")


def read_bodies(arguments: list[str], files: list[Path]) -> Iterator[bytes]:
    """Yield the message bodies in the arguments and files or, without any, the one on standard
    input; prompts on a terminal. Raises UsageError if that is empty: the program that should have
    written it has probably failed."""
    for text in arguments:
        yield text.encode("utf-8", "surrogateescape")
    for file in files:
        with file.open("rb") as stream:
            yield _read_body(stream, file)
    if arguments or files:
        return
    if sys.stdin.isatty():
        err().print("[dim]Type the message; Ctrl-D ends it.[/]")
    content = _read_body(cast(BufferedReader, sys.stdin.buffer), "standard input")
    if not content:
        raise UsageError(
            "standard input is empty, so nothing was sent; an empty message is the argument ''"
        )
    yield content


def parse_milliseconds(option: str, text: str | None) -> int | None:
    """Parse a time such as 30s, in seconds if it has no unit. Raises UsageError."""
    return None if text is None else round(1000 * quantity(option, text, Unit.SECONDS))


# --- Tables of messages ---------------------------------------------------------------------------

BODY_PREVIEW: Final = 60
"""Maximum number of characters of a body on one line."""

MESSAGE_COLUMNS: Final[tuple[Column[MessageItem], ...]] = (
    Column("ID", lambda item: item.id, align_right=True),
    Column("State", lambda item: _state(item)),
    Column("Published", lambda item: moment(item.published), no_fold=True, optional=True),
    Column("Protocol", lambda item: item.protocol, no_fold=True, optional=True),
    Column("Kind", lambda item: item.body_kind, no_fold=True),
    Column("Size", lambda item: size(item.size), align_right=True),
    Column("Priority", lambda item: str(item.priority), align_right=True, optional=True),
    Column("Attempts", lambda item: str(item.attempts), align_right=True),
    Column("Correlation ID", lambda item: item.correlation_id or "", optional=True),
    Column(
        "Properties",
        lambda item: str(item.property_count or ""),
        align_right=True,
        optional=True,
    ),
)


def _state(item: MessageItem) -> str:
    states = [
        item.state,
        *(["again"] if item.redelivered else []),
        *(["damaged"] if item.damaged else []),
        *([f"unacked by a {item.unacked_by}"] if item.unacked_by == "transaction" else []),
    ]
    return ", ".join(states)


def body_preview(item: MessageItem) -> str:
    """Return the beginning of the body on one line."""
    body = item.body
    if body is None:
        return ""
    value = body.value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:BODY_PREVIEW] + "…" * (len(text) > BODY_PREVIEW or body.truncated)


def details(item: MessageView) -> RenderableType:
    """Return a table of one message with its properties and its body."""
    rows: list[tuple[str, RenderableType]] = [
        ("message", item.id),
        ("state", _state(item)),
        ("protocol", item.protocol),
        ("kind", f"{item.body_kind}, {size(item.size)}"),
        ("priority", str(item.priority)),
        ("published", moment(item.published)),
        ("expires", moment(item.expiration) if item.expiration else "never"),
    ]
    if item.timestamp != item.published:
        rows.append(("client timestamp", moment(item.timestamp)))
    if item.deliver_at:
        rows.append(("scheduled for", moment(item.deliver_at)))
    rows.append(("attempts", str(item.attempts)))
    if item.reply_to:
        rows.append(("reply to", address_in(item.reply_to)))
    for name in ("durability", "message_id", "correlation_id", "type"):
        if value := getattr(item, name):
            rows.append((name.replace("_", " "), value))
    if dead := item.dead_letter:
        rows.append(("dead letter", _dead_letter_text(dead)))
    parts: list[RenderableType] = [pairs(rows)]
    if properties := item.properties:
        parts += [Text(), Text("properties", style="bold"), _properties(properties)]
    parts += [Text(), *_body_of(item.body)]
    return Group(*parts)


def _dead_letter_text(dead: DeadLetterView) -> str:
    origin = f", of {address_in(dead.original_destination)}" if dead.original_destination else ""
    attempts = f", after {dead.attempts} attempts" if dead.attempts is not None else ""
    return f"{dead.reason}{origin}{attempts}, at {dead.time}"


def _properties(properties: dict[str, PropertyView]) -> RenderableType:
    rows = []
    for name, view in properties.items():
        value = view.value
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        rows.append((f"  {printable(name)}", f"{text}  ({view.type})"))
    return pairs(rows)


def _body_of(body: BodyView | None) -> list[RenderableType]:
    if body is None or body.value is None:
        return [Text("no body", style="dim")]
    value = body.value
    suffix = ", cut off" if body.truncated else ""
    head = Text(f"body ({body.encoding}{suffix})", style="bold")
    if not isinstance(value, str):
        value = msgspec.json.format(msgspec.json.encode(value)).decode()
    return [head, Text(printable(value))]
