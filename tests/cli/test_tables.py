"""Tables on the terminal: columns, widths and the format of times."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from sluicemq.cli.console import Column, ItemTable, moment, number, rate, show
from sluicemq.management.broker import AuditEntry
from sluicemq.management.clients import XidView
from sluicemq.management.destinations import AddressView
from sluicemq.management.messages import DeadLetterView

LONG = "a.very.long.name." * 8
TIME = 1_767_225_600_000
VALUES: dict[str, Any] = {
    **dict.fromkeys(("publish_rate", "deliver_rate"), 1_234_567.8),
    **dict.fromkeys(
        ("ready", "unacked", "consumers", "delivered", "publishes", "acks", "lag_records"),
        1_234_567,
    ),
    **dict.fromkeys(
        ("bytes", "size", "limit_bytes", "copied_bytes", "received_bytes"), 1023 * 1024
    ),
    **dict.fromkeys(("id", "position", "last_sequence", "connection", "attempts"), 1_234_567_890),
    **dict.fromkeys(("created", "time", "started", "published", "last_advanced"), TIME),
    **dict.fromkeys(("durable", "shared", "complete", "tls", "paused", "ignore_case"), True),
    **{name: [LONG, LONG] for name in ("users", "sources", "tokens", "roles", "permissions")},
    "operations": ["publish", "consume", "browse", "create", "delete"],
    "sent_bytes": 1023 * 1024**3,
    "connections": 1_234_567,
    "oldest_ms": 90_061_000,
    "priority": 9,
    "property_count": 12,
    "credit": 1_000_000,
    "prefetch": 1_000_000,
    "protocol": "vibemq",
    "kind": "topic",
    "body_kind": "object",
    "redelivered": True,
    "expires": TIME,
    "has_password": True,
    "allow_digest": True,
    "superuser": False,
    "reasons": {"max-deliveries": 1_234_567, "expired": 12},
    "xid": XidView(1, "ab" * 64, "cd" * 64),
    "state": "prepared",
    "description": LONG,
    "lease_until": 0,
    "unit": "",
}
"""Long values of fields; the value of any other field is LONG."""


class Values:
    """An item with long values in every field."""

    def __getattr__(self, name: str) -> Any:
        """Return the value of a field."""
        return VALUES.get(name, LONG)


class Message(Values):
    """A dead letter or a transaction, whose id is a string."""

    id = "1234567890"
    dead_letter = DeadLetterView(
        reason="max-deliveries",
        original_destination=AddressView(kind="queue", name=LONG),
        subscription="",
        attempts=12,
        time="2026-01-01T00:00:00.000Z",
    )


class Account(Values):
    """A user or a token, whose id is a string."""

    id = LONG


ITEMS: dict[str, Any] = {
    "status:AUDIT_COLUMNS": AuditEntry(time=TIME, event=LONG, user=LONG, peer=LONG, operation=LONG),
    "messages:_DEAD_LETTERS": Message(),
    "message_options:MESSAGE_COLUMNS": Message(),
    "client_commands:TRANSACTION_COLUMNS": Message(),
    "status:_PROTOCOLS": (LONG, Values()),
    "users:_USERS": Account(),
    "users:_TOKENS": (LONG, Account()),
}
"""Items of tables whose rows differ from the items of lists."""


def load_columns(text: str) -> tuple[Column[Any], ...]:
    """Return the columns `module:name`."""
    module, _, name = text.partition(":")
    result: tuple[Column[Any], ...] = getattr(import_module(f"sluicemq.cli.{module}"), name)
    return result


@pytest.mark.parametrize(
    "table_name",
    [
        "status:AUDIT_COLUMNS",
        "journal:BACKUP_COLUMNS",
        "configuration:_LIVE",
        "client_commands:CONNECTION_COLUMNS",
        "client_commands:CONSUMER_COLUMNS",
        "messages:_DEAD_LETTER_QUEUES",
        "messages:_DEAD_LETTERS",
        "destinations:COLUMNS",
        "message_options:MESSAGE_COLUMNS",
        "users:_PERMISSIONS",
        "users:_ROLES",
        "client_commands:SLOT_COLUMNS",
        "status:_PROTOCOLS",
        "status:_LISTENERS",
        "client_commands:SUBSCRIPTION_COLUMNS",
        "client_commands:TRANSACTION_COLUMNS",
        "users:_USERS",
        "users:_TOKENS",
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_table_with_long_values_fits_80_columns(
    table_name: str, cut: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    shown_columns = load_columns(table_name)
    if table_name == "destinations:COLUMNS":
        shown_columns = (Column("Name", lambda item: str(item.name)), *shown_columns)
    show(ItemTable(shown_columns, [ITEMS.get(table_name, Values())] * 2, cut=cut))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines) or cut
    assert not cut or len(lines) <= 4  # two lines of titles, and one for each item


@pytest.mark.parametrize(
    ("table_name", "width"), [("destinations:COLUMNS", 40), ("message_options:MESSAGE_COLUMNS", 60)]
)
def test_lists_are_readable_in_narrow_terminals(
    table_name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown_columns = load_columns(table_name)
    if table_name == "destinations:COLUMNS":
        shown_columns = (Column("Name", lambda item: str(item.name)), *shown_columns)
    show(ItemTable(shown_columns, [ITEMS.get(table_name, Values())]))
    output = capsys.readouterr().out
    assert "…" not in output
    assert max(map(len, output.splitlines())) <= width


def test_optional_columns_appear_if_the_width_permits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown_columns: tuple[Column[dict[str, Any]], ...] = (
        Column("Name", lambda item: str(item["name"])),
        Column("Publish rate", lambda item: rate(item["rate"]), align_right=True),
        Column("Ready", lambda item: number(item["ready"]), align_right=True, optional=True),
    )
    item = {"name": "a" * 20, "rate": 12, "ready": 1_000_000}
    headings = []
    for width in ("20", "30", "80"):
        monkeypatch.setenv("COLUMNS", width)
        show(ItemTable(shown_columns, [item]))
        headings.append(capsys.readouterr().out.split("aaaa")[0].split())
    assert headings == [
        ["Publish", "Name", "rate"],
        ["Publish", "Name", "rate", "Ready"],
        ["Name", "Publish", "rate", "Ready"],
    ]


def test_times_have_their_zone_and_rates_their_unit() -> None:
    assert moment(TIME) == "2026-01-01 00:00:00Z"
    assert moment(0) == "-"
    assert moment(2**53) == "9007199254740992 ms since 1970"
    assert moment(-(2**63)) == "-9223372036854775808 ms since 1970"
    assert [rate(value) for value in (0, 12.34, 1234.5)] == ["0.0/s", "12.3/s", "1,234/s"]
