"""Tables of messages: one row per message, or all fields of one message."""

from __future__ import annotations

from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from sluicemq.cli.console import printable
from sluicemq.cli.destination_names import address_in
from sluicemq.cli.tables import Column, Item, moment, pairs, size

BODY_PREVIEW: Final = 60
"""Maximum number of characters of a body on one line."""

COLUMNS: Final = (
    Column("ID", lambda item: str(item["id"]), right=True),
    Column("State", lambda item: _state(item)),
    Column("Published", lambda item: moment(item.get("published", 0)), whole=True),
    Column("Protocol", lambda item: str(item.get("protocol", "")), whole=True, optional=True),
    Column("Kind", lambda item: str(item.get("body_kind", "")), whole=True),
    Column("Size", lambda item: size(item.get("size", 0)), right=True),
    Column("Priority", lambda item: str(item.get("priority", "")), right=True, optional=True),
    Column("Attempts", lambda item: str(item.get("attempts", 0)), right=True),
    Column("Correlation ID", lambda item: str(item.get("correlation_id") or ""), optional=True),
    Column(
        "Properties",
        lambda item: str(item.get("property_count") or ""),
        right=True,
        optional=True,
    ),
)


def _state(item: Item) -> str:
    words = [
        str(item.get("state", "")),
        *(["again"] if item.get("redelivered") else []),
        *(["damaged"] if item.get("damaged") else []),
        *(
            [f"unacked by a {item['unacked_by']}"]
            if item.get("unacked_by") == "transaction"
            else []
        ),
    ]
    return ", ".join(words)


def beginning(item: Item) -> str:
    """Return the beginning of the body on one line."""
    body = item.get("body")
    if body is None:
        return ""
    value = body["value"]
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:BODY_PREVIEW] + "…" * (len(text) > BODY_PREVIEW or bool(body.get("truncated")))


def details(item: Item) -> RenderableType:
    """Return a table of one message with its properties and its body."""
    rows: list[tuple[str, RenderableType]] = [
        ("message", str(item["id"])),
        ("state", _state(item)),
        ("protocol", str(item.get("protocol", ""))),
        ("kind", f"{item.get('body_kind', '')}, {size(item.get('size', 0))}"),
        ("priority", str(item.get("priority", ""))),
        ("published", moment(item.get("published", 0))),
        ("expires", moment(item.get("expiration", 0)) if item.get("expiration") else "never"),
    ]
    if item.get("timestamp", 0) != item.get("published", 0):
        rows.append(("client timestamp", moment(item.get("timestamp", 0))))
    if item.get("deliver_at"):
        rows.append(("scheduled for", moment(item["deliver_at"])))
    rows.append(("attempts", str(item.get("attempts", 0))))
    if item.get("reply_to"):
        rows.append(("reply to", address_in(item["reply_to"])))
    for name in ("durability", "message_id", "correlation_id", "type"):
        if item.get(name):
            rows.append((name.replace("_", " "), str(item[name])))
    if dead := item.get("dead_letter"):
        rows.append(("dead letter", _death(dead)))
    parts: list[RenderableType] = [pairs(rows)]
    if properties := item.get("properties"):
        parts += [Text(), Text("properties", style="bold"), _properties(properties)]
    parts += [Text(), *_body_of(item)]
    return Group(*parts)


def _death(dead: Item) -> str:
    origin = (
        f", of {address_in(dead['original_destination'])}" if dead["original_destination"] else ""
    )
    attempts = f", after {dead['attempts']} attempts" if dead["attempts"] is not None else ""
    return f"{dead['reason']}{origin}{attempts}, at {dead['time']}"


def _properties(properties: Item) -> RenderableType:
    rows = []
    for name, each in properties.items():
        value = each["value"]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        rows.append((f"  {printable(name)}", f"{text}  ({each['type']})"))
    return pairs(rows)


def _body_of(item: Item) -> list[RenderableType]:
    body = item.get("body") or {}
    value, encoding = body.get("value"), body.get("encoding", "")
    cut = ", cut off" if body.get("truncated") else ""
    head = Text(f"body ({encoding}{cut})", style="bold")
    if value is None:
        return [Text("no body", style="dim")]
    if isinstance(value, str):
        return [head, Text(printable(value))]
    data = msgspec.json.format(msgspec.json.encode(value)).decode()
    return [head, Text(printable(data))]
