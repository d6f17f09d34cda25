"""VibeMQ clients find the messages of a migrated VibeMQ server."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.vibemq import VibeMQClient
from sluicemq.model.destination import Address, Kind
from sluicemq.model.errors import ClientError
from sluicemq.protocols.vibemq.queues import Mode, QueueOptions, Strategy, WrittenOptions
from tests.cli.conftest import Run
from tests.migrate.conftest import Migrate, journaled_messages, not_migrated, restored_broker
from tests.migrate.vibemq_store import Store

CREATED = "2026-02-18T10:00:00.1234567Z"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "vibemq").mkdir()
    store = Store(tmp_path / "vibemq" / "vibemq.db")
    store.queue("orders")
    return store


def settings(store: Store, **values: Any) -> Path:
    file = store.path.parent / "appsettings.json"
    file.write_text(json.dumps({"VibeMQ": values}))
    return file


def test_ready_messages_are_imported_unchanged(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    store.message("c", "orders", '{"n": 3.10, "ü": "€"}', "2026-02-18T10:30:02Z", attempts=2)
    store.message(
        "a", "orders", "[1]", "2026-02-18T10:30:00.5Z", {"correlationId": "x", "k": "v"}, 3
    )
    store.message("b", "orders", None, "2026-02-18T10:30:01Z")
    assert migrate("vibemq", store.path)["messages"]["imported"] == 3
    with (
        LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker,
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq")) as client,
    ):
        subscription = client.subscribe("orders")
        messages = [subscription.receive(20) for _ in range(3)]
        with pytest.raises(ClientError):
            subscription.receive(0.2)
    assert [message.id for message in messages] == ["a", "b", "c"]
    # the payload's own bytes: 3.10 is not 3.1
    assert [message.payload for message in messages] == [
        b"[1]",
        b"",
        '{"n": 3.10, "ü": "€"}'.encode(),
    ]
    assert dict(messages[0].headers) == {
        "correlationId": "x",
        "k": "v",
        "priority": "Critical",
        "deliveryAttempts": "1",
    }
    assert messages[2].headers["deliveryAttempts"] == "3"
    assert [m.priority for m in journaled_messages(tmp_path / "data")] == [9, 4, 4]


def test_queues_keep_their_options(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    store.queue("news", mode=1, overflowStrategy=2)
    store.queue("urgent", mode=3, messageTtl="1.00:00:00", deadLetterQueueName="lost")
    store.message("a", "news", '"n"')
    migrate("vibemq", store.path)
    with (
        LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker,
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq")) as client,
    ):
        info = client.queue_info("orders")
        assert info is not None
        assert info.options == QueueOptions(
            max_queue_size=500, dead_letter=True, overflow=Strategy(1), max_retry_attempts=5
        )
        urgent = client.queue_info("urgent")
        assert urgent is not None
        assert urgent.options == info.options._replace(
            mode=Mode(3), message_ttl=86_400_000, dead_letter_queue="lost"
        )
        # messages of a fan-out queue are kept for its first subscriber
        subscription = client.subscribe("news")
        assert subscription.receive(20).payload == b'"n"'


def test_queues_read_back_as_they_were_written(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    """This includes invalid options, and the creation time in units of 100 ns."""
    options = {"mode": 9, "maxQueueSize": -1, "maxRetryAttempts": 0, "overflowStrategy": 7}
    store.queue("odd", **options, messageTtl="-00:00:00.0010000", enableDeadLetterQueue=False)
    store.queue("tick", messageTtl="00:00:01.2345678", deadLetterQueueName="")
    store.message("a", "orders", "1")
    store.dead({"id": "d", "queueName": "gone", "payload": 1, "timestamp": CREATED}, 0)
    migrate("vibemq", store.path)
    with (
        LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker,
        BlockingClient(VibeMQClient.connect, port=broker.port("vibemq")) as client,
    ):
        info = client.queue_info("odd")
        assert info is not None
        assert info.written == WrittenOptions(9, -1, -10_000, False, None, 7, 0)
        assert info.created == datetime(2026, 2, 18, 10, 0, 0, 123456, UTC)
        tick = client.queue_info("tick")
        assert tick is not None
        assert (tick.written.ttl_ticks, tick.written.dead_letter_queue) == (12_345_678, "")
        # all of it was VibeMQ's, and may be deleted by its clients
        for name in ("odd", "tick", "orders", "gone.dlq"):
            client.delete_queue(name)
        assert client.list_queues() == []


def test_messages_of_fan_out_queue_go_to_its_group(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    """The group gets the messages with their attempts. Subscriptions of other protocols get none
    of them, even if they are created first."""
    store.queue("news", mode=1)
    store.message("a", "news", "1", "2026-02-18T10:30:00Z", attempts=2)
    store.message("b", "news", "2", "2026-02-18T10:30:01Z")
    migrate("vibemq", store.path)
    with restored_broker(tmp_path / "data") as broker:
        topic = broker.destinations.find(Address(Kind.TOPIC, "news"))
        assert topic is not None
        broker.subscribe(topic, "jms", durable=True)
        member = broker.subscribe(topic, "m", member=True)
        assert [delivery.attempts for delivery in member.browse()] == [2, 0]


def test_time_to_live_starts_with_import(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    """The original never enforces it: older messages are ready, and must not expire silently."""
    store.queue("brief", messageTtl="00:10:00")
    store.message("a", "brief", "1", "2020-01-01T00:00:00Z")
    report = migrate("vibemq", store.path)
    (message,) = journaled_messages(tmp_path / "data")
    assert message.timestamp == 1_577_836_800_000
    assert message.expiration > 1_700_000_000_000 + 600_000
    assert "brief" in report["notes"][0]


def test_dead_letters_are_in_their_queue(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    failed_message = {
        "id": "d1",
        "queueName": "orders",
        "payload": {"a": 1},
        "timestamp": "2026-02-18T10:30:00Z",
        "headers": {"k": "v"},
        "version": 1,
        "priority": 2,
        "deliveryAttempts": 5,
    }
    store.dead(failed_message, 0)
    store.dead(failed_message, 3)  # the same message may fail twice
    report = migrate("vibemq", store.path)
    assert [
        destination["waiting"]
        for destination in report["destinations"]
        if destination["name"] == "orders.dlq"
    ] == [2]
    first, second = journaled_messages(tmp_path / "data")
    assert str(first.destination) == "orders.dlq"
    assert first.properties == {
        "k": "v",
        "deadLetterReason": "max-attempts",
        "originalQueue": "orders",
        "deliveryAttempts": 5,
        "failedAt": "2026-02-19T00:00:00.000+00:00",
    }
    assert second.properties is not None
    assert second.properties["deadLetterReason"] == "HandlerException"
    assert first.body == b'{"a":1}'
    assert first.priority == 6


def test_write_ahead_log_of_crash_is_read(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    """In WAL mode the newest rows are in a second file, and reading must not write to it."""
    connection = sqlite3.connect(store.path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(
        "INSERT INTO messages (id, queue_name, payload_json, timestamp) VALUES ('w', 'orders', '7',"
        " '2026-02-18T10:30:00Z')"
    )
    connection.commit()
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in store.path.parent.iterdir():
        if not file.name.endswith("-shm"):
            (crashed / file.name).write_bytes(file.read_bytes())
    connection.close()
    assert (crashed / "vibemq.db-wal").stat().st_size
    assert migrate("vibemq", crashed)["messages"]["imported"] == 1
    assert not (crashed / "vibemq.db-shm").exists()


def test_settings_become_configuration(store: Store, migrate: Migrate, run: Run) -> None:
    file = store.path.parent / "appsettings.json"
    file.write_text(
        """\ufeff{
        // a comment, and a comma too many
        "Logging": {"LogLevel": {"Default": "Warning"}},
        "VibeMQ": {
            "port": 3000, "MaxConnections": "77", "MaxMessageSize": 2097152,
            "QueueDefaults": {"EnableAutoCreate": false, "MaxQueueSize": 5},
            "RateLimit": {"Enabled": true, "MaxMessagesPerClientPerSecond": 100},
            "SupportedCompressions": [], /* none */
            "StorageType": "Sqlite", "SqliteStorage": {"DatabasePath": "vibemq.db"},
        }, }"""
    )
    report = migrate("vibemq", file)
    assert not_migrated(report) == [("listener", "port 3000 on all addresses")]
    assert report["config"]["problems"] == []
    effective = json.loads(run("config", "show", "--config", "data/sluicemq.toml", "--json").out)
    assert effective["logging"]["level"] == "warning"
    assert effective["broker"]["auto_create_queues"] is False
    (listener,) = effective["listeners"]
    assert listener["url"] == "vibemq://127.0.0.1:3000"
    assert listener["max_connections"] == 77
    assert listener["max_frame_bytes"] == 2097152
    assert (listener["rate_limit"], listener["compression"]) == (100, False)
    assert listener["default_max_queue_size"] == 5


def test_configured_database_precedes_default_one(store: Store, migrate: Migrate) -> None:
    store.message("a", "orders", "1")
    live = Store(store.path.parent / "live.db")
    for identity in ("b", "c"):
        live.message(identity, "orders", "2")
    settings(store, SqliteStorage={"DatabasePath": "live.db"})
    assert migrate("vibemq", store.path.parent)["messages"]["imported"] == 2


def test_redis_storage_does_not_fall_back_to_database(store: Store, migrate: Migrate) -> None:
    store.message("a", "orders", "1")
    settings(store, StorageType="Redis")
    report = migrate("vibemq", store.path.parent)
    assert report["messages"]["imported"] == 0
    assert ("messages", "in Redis") in not_migrated(report)


def test_old_token_still_works(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    settings(store, EnableAuthentication=True, AuthToken="a shared secret")
    report = migrate("vibemq", store.path.parent)
    assert report["users"] == [{"name": "vibemq", "login": "token", "added": True}]
    assert "a shared secret" not in json.dumps(report)
    with LocalBroker(tmp_path / "data", ["vibemq://127.0.0.1:0"]) as broker:
        port = broker.port("vibemq")
        with pytest.raises(ClientError):
            BlockingClient(VibeMQClient.connect, port=port, token="another")
        with BlockingClient(VibeMQClient.connect, port=port, token="a shared secret") as client:
            assert client.list_queues() == ["orders", "orders.dlq"]


def test_missing_store_is_reported(store: Store, migrate: Migrate, run: Run) -> None:
    file = settings(store, Port=2925)
    report = migrate("vibemq", file)
    assert ("messages", "all") in not_migrated(report)
    result = run("migrate", "vibemq", str(store.path.parent / "none"), "--to", "data")
    assert result.code == 1


def test_invalid_store_stops_run(store: Store, run: Run) -> None:
    store.execute("DROP TABLE messages")
    result = run("migrate", "vibemq", str(store.path), "--to", "data")
    assert result.code == 1
    assert "no table `messages`" in result.err
    assert "vibemq.db" in result.err


def test_damaged_page_is_reported(store: Store, run: Run, tmp_path: Path) -> None:
    for number in range(300):
        store.message(f"{number:03}", "orders", '"' + "x" * 100 + '"')
    content = bytearray(store.path.read_bytes())
    content[4096 * 3 : 4096 * 3 + 200] = b"\xff" * 200
    store.path.write_bytes(content)
    result = run("migrate", "vibemq", str(store.path), "--to", "data")
    assert result.code == 1
    assert "damaged" in result.err or "malformed" in result.err
    assert not (tmp_path / "data" / "journal").exists()


def test_other_messages_in_directory_are_kept(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    """Two sources can be migrated into one broker."""
    store.message("a", "orders", "1")
    migrate("vibemq", store.path)
    (tmp_path / "other").mkdir()
    other = Store(tmp_path / "other" / "second.db")
    other.queue("orders")
    other.message("b", "orders", "2")
    assert migrate("vibemq", other.path)["messages"]["imported"] == 1
    with restored_broker(tmp_path / "data") as broker:
        (queue,) = broker.destinations.values()
        assert queue.waiting == 2
