"""Rows of VibeMQ's store that are invalid or not ready: one never stops the import of others."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.migrate.vibemq import inspect_source
from sluicemq.model.destination import Address, Kind
from tests.cli.conftest import Run
from tests.migrate.conftest import Migrate, journaled_messages, restored_broker
from tests.migrate.vibemq_store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "vibemq").mkdir()
    return Store(tmp_path / "vibemq" / "vibemq.db")


def bodies(data_dir: Path, queue: str) -> list[bytes]:
    return [
        message.body
        for message in journaled_messages(data_dir)
        if message.destination.name == queue
    ]


def set_aside_lines(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the file of rows that are set aside."""
    lines = Path(report["set_aside"]["file"]).read_text().splitlines()
    return [json.loads(line) for line in lines]


# --- rows that VibeMQ leaves behind --------------------------------------------------------------


def test_only_rows_that_survive_vibemq_restart_are_imported(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    """25 published to a queue of 10 with DropOldest: the rows of the 15 oldest are left over."""
    store.queue("small", maxQueueSize=10, overflowStrategy=0)
    store.messages("small", 25)
    report = migrate("vibemq", store.path)
    assert report["messages"]["imported"] == 10
    assert report["set_aside"]["rows"] == {"dropped": 15}
    assert [row["payload_json"] for row in set_aside_lines(report)] == [str(n) for n in range(15)]
    assert {row["queue_name"] for row in set_aside_lines(report)} == {"small"}
    assert {item["name"] for item in report["left"]} >= {"15 of small"}
    with (
        LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker,
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq")) as client,
    ):
        subscription = client.subscribe("small")
        assert [subscription.receive(20).payload for _ in range(10)] == [
            b"%d" % n for n in range(15, 25)
        ]


def test_queue_with_priorities_drops_oldest(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    store.queue("urgent", mode=3, maxQueueSize=2, overflowStrategy=0)
    for number, priority in enumerate((3, 0, 1)):
        store.message(
            f"{number}", "urgent", f"{number}", f"2026-02-18T10:30:0{number}Z", None, priority
        )
    migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "urgent") == [b"1", b"2"]


@pytest.mark.parametrize("strategy", [1, 2, 3])
def test_rows_above_limit_of_other_strategies_count_as_delivered(
    store: Store, migrate: Migrate, tmp_path: Path, strategy: int
) -> None:
    """Refused messages have no row: 10 are ready, and 5 were unacked when the server stopped."""
    store.queue("orders", maxQueueSize=10, overflowStrategy=strategy)
    store.messages("orders", 15)
    report = migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "orders") == [b"%d" % n for n in range(15)]
    assert report["set_aside"] == {"file": None, "rows": {}}


def test_delivered_rows_of_fan_out_are_not_sent_again(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.queue("ticks", mode=2)
    store.queue("news", mode=1, maxQueueSize=2, overflowStrategy=0)
    store.messages("ticks", 3)
    store.messages("news", 3)
    report = migrate("vibemq", store.path)
    assert report["set_aside"]["rows"] == {"delivered": 3, "dropped": 1}
    assert bodies(tmp_path / "data", "ticks") == []
    assert bodies(tmp_path / "data", "news") == [b"1", b"2"]
    with restored_broker(tmp_path / "data") as broker:
        assert broker.destinations.find(Address(Kind.TOPIC, "ticks")) is not None
    # if the user knows that they were not delivered, a second run imports them
    second_report = migrate("vibemq", store.path, "--fan-out-rows")
    assert second_report["messages"]["imported"] == 3
    assert bodies(tmp_path / "data", "ticks") == [b"0", b"1", b"2"]


def test_messages_older_than_their_ttl_are_counted(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.queue("brief", messageTtl="00:10:00")
    store.message("old", "brief", "1", "2020-01-01T00:00:00Z")
    store.message("new", "brief", "2", "2100-01-01T00:00:00Z")
    report = migrate("vibemq", store.path)
    assert report["messages"]["older_than_ttl"] == 1
    assert report["messages"]["imported"] == 2


@pytest.mark.parametrize(
    ("column", "header", "priority"),
    [
        (0, "Low", 1),
        (2, "2", 6),
        (3, "3", 9),
        (7, "7", 9),  # sorts before Critical there
        (-1, "-1", 1),
        (0, "bogus", 1),
        (3, None, 9),
        (1, None, 4),
    ],
)
def test_priorities_may_be_numbers(
    store: Store, migrate: Migrate, tmp_path: Path, column: int, header: str | None, priority: int
) -> None:
    store.queue("urgent", mode=3)
    headers = {"priority": header} if header else None
    store.message("m", "urgent", "1", headers=headers, priority=column)
    migrate("vibemq", store.path)
    (message,) = journaled_messages(tmp_path / "data")
    assert message.priority == priority


def test_headers_may_be_numbers(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    store.queue("orders")
    store.message("m", "orders", "1", headers={"priority": 3, "n": 1.5, "b": True, "none": None})
    migrate("vibemq", store.path)
    (message,) = journaled_messages(tmp_path / "data")
    assert message.priority == 4  # the column counts
    assert message.properties == {"n": "1.5", "b": "true"}


# --- invalid rows and queues ---------------------------------------------------------------------

DEEP = "[" * 65 + "]" * 65
LARGE = json.dumps(base64.b64encode(random.Random(1).randbytes(3_000_000)).decode())
"""4 MB, of which compression leaves 3 MB."""

INVALID_ROWS = [
    ("UPDATE messages SET payload_json = '{'", "undeliverable", "message odd of orders"),
    (f"UPDATE messages SET payload_json = '{DEEP}'", "undeliverable", "message odd of orders"),
    ("UPDATE messages SET payload_json = x'22ff22'", "undeliverable", "message odd of orders"),
    ("UPDATE messages SET id = ''", "undeliverable", "message  of orders"),
    ("UPDATE messages SET id = NULL", "undeliverable", "message  of orders"),
    (f"UPDATE messages SET payload_json = '{LARGE}'", "undeliverable", "message odd of orders"),
    ("UPDATE messages SET headers_json = '[]'", "unreadable", "message odd of orders"),
    ("UPDATE messages SET headers_json = '{\"a\": {}}'", "unreadable", "message odd of orders"),
    ("UPDATE messages SET timestamp = 'soon'", "unreadable", "message odd of orders"),
    ("UPDATE messages SET queue_name = ''", "unreadable", "message odd of "),
]
INVALID_DEAD_LETTERS = [
    ("{", 0, "2026-02-19T00:00:00Z"),
    ('{"id": "x", "queueName": "orders", "timestamp": "2026-02-18T10:30:00Z"}', 0, "later"),
    ('{"id": "", "queueName": "orders", "timestamp": "2026-02-18T10:30:00Z"}', 0, "2026-02-19"),
    ('{"id": "x", "queueName": "orders", "timestamp": "2026-02-18T10:30:00Z"}', None, None),
]


@pytest.mark.parametrize(("sql", "sort", "name"), INVALID_ROWS)
def test_invalid_row_does_not_stop_migration(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path, sql: str, sort: str, name: str
) -> None:
    store.queue("orders")
    store.message("a", "orders", "1", "2026-02-18T10:30:00Z")
    store.message("odd", "orders", "2", "2026-02-18T10:30:01Z")
    store.message("z", "orders", "3", "2026-02-18T10:30:02Z")
    store.execute(f"{sql} WHERE id = 'odd'")
    # it is named before anything is done
    result = run("migrate", "vibemq", str(store.path), "--to", "data", "--dry-run")
    assert name in result.out
    strict_result = run("migrate", "vibemq", str(store.path), "--to", "data", "--strict")
    assert strict_result.code == 1
    assert name in strict_result.err
    assert "vibemq.db" in strict_result.err
    assert not (tmp_path / "data").exists()
    report = migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "orders") == [b"1", b"3"]
    assert report["set_aside"]["rows"] == {sort: 1}
    (row,) = set_aside_lines(report)
    assert row["sort"] == sort
    assert row["table"] == "messages"
    assert row["reason"]


@pytest.mark.parametrize(("message", "reason", "failed"), INVALID_DEAD_LETTERS)
def test_invalid_dead_letter_does_not_stop_migration(
    store: Store, migrate: Migrate, tmp_path: Path, message: str, reason: object, failed: object
) -> None:
    store.queue("orders")
    store.messages("orders", 1)
    store.execute("DROP TABLE dead_letters")
    store.execute("CREATE TABLE dead_letters (id, message_id, message_json, reason, failed_at)")
    store.execute("INSERT INTO dead_letters VALUES (7, 'x', ?, ?, ?)", message, reason, failed)
    report = migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "orders") == [b"0"]
    assert {"what": "dead letter", "name": "7"}.items() <= report["left"][-1].items()
    (row,) = set_aside_lines(report)
    assert (row["table"], row["message_json"]) == ("dead_letters", message)


def test_large_message_that_fits_compressed_is_imported(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.queue("orders")
    store.message("m", "orders", json.dumps("x" * 3_000_000))
    report = migrate("vibemq", store.path)
    assert report["set_aside"]["rows"] == {}
    (message,) = journaled_messages(tmp_path / "data")
    assert len(message.body) == 3_000_002


def test_message_above_all_limits_is_not_read(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.queue("orders")
    store.execute(
        "INSERT INTO messages (id, queue_name, payload_json, timestamp)"
        " VALUES ('m', 'orders', zeroblob(?), '2026-02-18T10:30:00Z')",
        64 * 1024**2 + 1,
    )
    report = migrate("vibemq", store.path)
    assert report["messages"]["imported"] == 0
    (row,) = set_aside_lines(report)
    assert (row["payload_json"], row["payload_bytes"]) == (None, 64 * 1024**2 + 1)


def test_queue_keeps_options_that_can_be_read(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    store.queue("odd", maxQueueSize=7, messageTtl="a while", maxRetryAttempts=4)
    store.messages("odd", 2)
    strict_result = run("migrate", "vibemq", str(store.path), "--to", "data", "--strict")
    assert (strict_result.code, "queue odd: messageTtl" in strict_result.err) == (1, True)
    report = migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "odd") == [b"0", b"1"]
    assert ("queue", "odd") in [(item["what"], item["name"]) for item in report["left"]]
    (row,) = set_aside_lines(report)
    assert json.loads(row["options_json"])["messageTtl"] == "a while"
    with restored_broker(tmp_path / "data") as broker:
        (queue,) = broker.destinations.values()
        settings = queue.settings
        assert (settings.max_messages, settings.max_attempts, settings.message_ttl) == (7, 4, 0)


@pytest.mark.parametrize("options", ["{", "[]", '{"mode": 1'])
def test_queue_without_readable_options_is_set_aside_with_its_messages(
    store: Store, migrate: Migrate, tmp_path: Path, options: str
) -> None:
    """It is not known whether it is a queue or a topic."""
    store.queue("orders")
    store.queue("odd")
    store.execute("UPDATE queues SET options_json = ? WHERE name = 'odd'", options)
    store.messages("orders", 2)
    store.messages("odd", 2)
    report = migrate("vibemq", store.path)
    assert bodies(tmp_path / "data", "orders") == [b"0", b"1"]
    assert report["set_aside"]["rows"] == {"unreadable": 3}
    assert [row["table"] for row in set_aside_lines(report)] == ["queues", "messages", "messages"]
    with restored_broker(tmp_path / "data") as broker:
        assert [destination.name for destination in broker.destinations.values()] == ["orders"]


def test_reported_names_of_invalid_rows_are_bounded(store: Store) -> None:
    store.queue("orders")
    store.messages("orders", 250)
    store.execute("UPDATE messages SET payload_json = '{'")
    plan = inspect_source(store.path, None)
    assert len([item for item in plan.skipped if item.what == "message"]) == 100
    assert ("rows", "150 more") in [item[:2] for item in plan.skipped]
    assert plan.set_aside == {"undeliverable": 250}


# --- file of rows that are set aside -------------------------------------------------------------


def test_file_is_written_once_and_never_changed(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.queue("ticks", mode=2)
    store.messages("ticks", 1)
    first = migrate("vibemq", store.path)["set_aside"]["file"]
    assert first == str(tmp_path / "data" / "set-aside-vibemq.jsonl")
    assert Path(first).stat().st_mode & 0o777 == 0o600
    assert migrate("vibemq", store.path)["set_aside"]["file"] == first
    store.message("more", "ticks", "1")
    second = migrate("vibemq", store.path)
    assert second["set_aside"]["file"] == str(tmp_path / "data" / "set-aside-vibemq-2.jsonl")
    assert len(set_aside_lines(second)) == 2
    assert len(Path(first).read_text().splitlines()) == 1
    assert sorted(path.name for path in (tmp_path / "data").glob("set-aside*")) == [
        "set-aside-vibemq-2.jsonl",
        "set-aside-vibemq.jsonl",
    ]


def test_text_report_lists_rows_that_were_set_aside(store: Store, run: Run) -> None:
    store.queue("small", maxQueueSize=1, overflowStrategy=0)
    store.messages("small", 3)
    output = run("migrate", "vibemq", str(store.path), "--to", "data").out
    assert "set aside, not imported: 2 rows in " in output
    assert "2 dropped by its full queue" in output
