"""PHPMQ clients find the messages of a migrated PHPMQ server."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sluicemq.cli.local import LocalBroker
from sluicemq.clients.blocking import BlockingClient
from sluicemq.clients.phpmq import PhpmqClient
from sluicemq.model.errors import ClientError
from tests.cli.conftest import Run
from tests.migrate.conftest import Migrate, journaled_messages, not_migrated

SCHEMA = """
CREATE TABLE `queue` (`messageId` CHAR(32), `queueName` VARCHAR(50), `content` TEXT,
    `createdAt` INTEGER, `dispatched` INTEGER);
CREATE UNIQUE INDEX messageIdQueueName ON `queue` (`messageId`, `queueName`);
"""
XML = """<?xml version="1.0" encoding="UTF-8"?>
<PHPMQ>
  <servers>
    <messagequeue><network>
      <config name="host" value="{host}"/><config name="port" value="9100"/>
    </network></messagequeue>
    <maintenance><unix><config name="path" value="/tmp/maintenance.sock"/></unix></maintenance>
  </servers>
  <storage><sqlite><config name="path" value="{path}"/></sqlite></storage>
  <logging><output loglevel="{level}"/></logging>
</PHPMQ>
"""


class Store:
    """A store as the original writes it: all bytes are bound as text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(SCHEMA)

    def add(self, number: int, queue: bytes, content: bytes, created: int, sent: int = 0) -> str:
        identity = f"{number:032x}"
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(
                "INSERT INTO queue VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT), ?, ?)",
                (identity, queue, content, created, sent),
            )
        return identity


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "phpmq").mkdir()
    return Store(tmp_path / "phpmq" / "store.sqlite")


def configuration(
    store: Store, host: str = "127.0.0.1", path: str = "store.sqlite", level: str = "notice"
) -> Path:
    file = store.path.parent / "phpmq.xml"
    file.write_text(XML.format(host=host, path=path, level=level))
    return file


def test_ready_messages_are_imported_in_order(
    store: Store, migrate: Migrate, tmp_path: Path
) -> None:
    content = b"\xff\0binary\xc3"
    store.add(3, b"orders", b"third", 17_600_000_000_030)
    identity = store.add(1, b"orders", content, 17_600_000_000_010)
    store.add(2, b"orders", b"", 17_600_000_000_020, sent=1)
    store.add(4, b"\xff other", b"x", 17_600_000_000_000)
    assert migrate("phpmq", configuration(store))["messages"]["imported"] == 4
    with (
        LocalBroker(tmp_path / "data", ["phpmq://127.0.0.1:0"]) as broker,
        BlockingClient(PhpmqClient.connect, port=broker.port("phpmq")) as client,
    ):
        client.subscribe("orders", window=10)
        bodies = [client.receive(20).body for _ in range(3)]
        with pytest.raises(ClientError):
            client.receive(0.2)
        client.subscribe(b"\xff other".decode("utf-8", "surrogateescape"))
        assert client.receive(20).body == b"x"
    assert bodies == [content, b"", b"third"]
    first = next(m for m in journaled_messages(tmp_path / "data") if m.body == content)
    assert (first.message_id, first.timestamp) == (identity, 1_760_000_000_001)


def test_dispatched_message_is_redelivered(store: Store, migrate: Migrate, tmp_path: Path) -> None:
    """JMS clients see that the message is redelivered; PHPMQ has no field for that."""
    from sluicemq.clients.blocking import BlockingClient
    from sluicemq.clients.jmq import JmqClient

    store.add(1, b"orders", b"x", 17_600_000_000_000, sent=1)
    migrate("phpmq", store.path)
    with (
        LocalBroker(tmp_path / "data", ["jmq://127.0.0.1:0"]) as broker,
        BlockingClient(JmqClient.connect, port=broker.port("jmq")) as client,
    ):
        message = client.session().consumer("orders").receive(20)
        assert (message.redelivered, message.delivery_count) == (True, 2)


def test_root_leaves_all_files_to_owner_of_data_directory(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    store.add(1, b"orders", b"x", 17_600_000_000_000)
    data = tmp_path / "data"
    data.mkdir()
    if os.geteuid() == 0:  # others are the owner already
        os.chown(data, 12345, 54321)
    migrate("phpmq", configuration(store))
    assert run("journal", "compact", str(data)).code == 0
    directory = data.stat()
    owners = {(path.stat().st_uid, path.stat().st_gid) for path in data.rglob("*")}
    assert owners == {(directory.st_uid, directory.st_gid)}


def test_configuration_is_migrated(store: Store, migrate: Migrate) -> None:
    report = migrate("phpmq", configuration(store))
    text = report["config"]["text"]
    assert report["config"]["problems"] == []
    assert 'url = "phpmq://127.0.0.1:9100"\ndispatch_version = 1' in text
    assert 'url = "phpmq-maintenance+unix:///tmp/maintenance.sock"' in text
    assert 'level = "info"' in text
    assert report["left"] == []


def test_port_without_logins_is_not_opened(store: Store, migrate: Migrate) -> None:
    report = migrate("phpmq", configuration(store, host="0.0.0.0"))
    assert not_migrated(report) == [("listener", "port 9100 on 0.0.0.0")]
    assert 'url = "phpmq://127.0.0.1:9100"' in report["config"]["text"]
    assert report["config"]["problems"] == []


@pytest.mark.parametrize(("host", "address"), [("localhost", "localhost"), ("::1", "[::1]")])
def test_loopback_address_is_kept(store: Store, migrate: Migrate, host: str, address: str) -> None:
    report = migrate("phpmq", configuration(store, host=host))
    assert not_migrated(report) == []
    assert f'url = "phpmq://{address}:9100"' in report["config"]["text"]
    assert report["config"]["problems"] == []


def test_any_path_of_socket_is_migrated(store: Store, migrate: Migrate) -> None:
    file = configuration(store)
    file.write_text(file.read_text().replace("/tmp/main", "/tmp/100% my?"))
    report = migrate("phpmq", file)
    assert "phpmq-maintenance+unix:///tmp/100%25%20my%3Ftenance.sock" in report["config"]["text"]
    assert report["config"]["problems"] == []


def test_problems_name_line_of_new_configuration(store: Store, migrate: Migrate) -> None:
    file = configuration(store)
    file.write_text(file.read_text().replace("9100", "70000"))
    (problem,) = migrate("phpmq", file)["config"]["problems"]
    assert problem.startswith("sluicemq.toml:10: listeners[0]")
    assert "70000" in problem


def test_store_in_memory_has_no_messages(store: Store, migrate: Migrate) -> None:
    report = migrate("phpmq", configuration(store, path=":memory:"))
    assert not_migrated(report) == [("messages", "in memory")]


def test_missing_store_is_reported_and_can_be_named(
    store: Store, migrate: Migrate, run: Run
) -> None:
    store.add(1, b"q", b"x", 1)
    file = configuration(store, path="gone.sqlite")
    result = run("migrate", "phpmq", str(file), "--to", "data")
    assert result.code == 1
    assert "phpmq.xml, line 9" in result.err
    report = migrate("phpmq", file, "--store", str(store.path))
    assert report["messages"]["imported"] == 1


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"<PHPMQ><servers>", "line 1: not XML"),
        (
            b'<?xml version="1.0"?>\n<!DOCTYPE x [<!ENTITY a "b">]><PHPMQ/>',
            "line 2: a document type",
        ),
        (b"<other a='1'/>", "not a configuration of PHPMQ"),
        (b"<PHPMQ>" + b"<a x='1'>" * 40, "nested too deep"),
        (b"\xff\xfe\x00", "not XML"),
    ],
)
def test_invalid_configuration_is_error(store: Store, run: Run, content: bytes, place: str) -> None:
    file = configuration(store)
    file.write_bytes(content)
    result = run("migrate", "phpmq", str(file), "--to", "data")
    assert result.code == 1
    assert place in result.err


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("UPDATE queue SET createdAt = 'noon'", "row 1 of `queue`"),
        ("UPDATE queue SET messageId = NULL", "row 1 of `queue`"),
        ("ALTER TABLE queue RENAME COLUMN content TO body", "lacks content"),
        ("DROP TABLE queue", "no table `queue`"),
    ],
)
def test_damage_is_reported_with_its_position(store: Store, run: Run, sql: str, place: str) -> None:
    store.add(1, b"q", b"x", 1)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(sql)
    result = run("migrate", "phpmq", str(store.path), "--to", "data")
    assert result.code == 1
    assert place in result.err
