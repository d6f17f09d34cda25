"""Safety of a migration: a source in use, names that are taken, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicemq.broker import OfflineImport
from sluicemq.migrate import transfer
from sluicemq.migrate.source_files import describe_use
from sluicemq.migrate.vibemq import inspect_source
from tests.cli.conftest import Run
from tests.migrate.conftest import Migrate, fingerprint, journaled_messages
from tests.migrate.vibemq_store import Store

CONNECTED = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
connection.execute("SELECT * FROM messages").fetchall()
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "vibemq").mkdir()
    store = Store(tmp_path / "vibemq" / "vibemq.db")
    store.queue("orders")
    store.messages("orders", 10)
    return store


@contextmanager
def process_with_connection(path: Path, journal_mode: str) -> Iterator[int]:
    """Run a process with an idle connection, like an idle VibeMQ server."""
    command = [sys.executable, "-c", CONNECTED, str(path), journal_mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"connected\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


# --- a source in use -----------------------------------------------------------------------------


@pytest.mark.parametrize("journal_mode", ["WAL", "DELETE"])
def test_running_source_is_recognised_before_first_write(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path, journal_mode: str
) -> None:
    with process_with_connection(store.path, journal_mode) as process:
        result = run("migrate", "vibemq", str(store.path), "--to", "data")
        assert result.code == 1
        assert f"process {process}" in result.err
        assert "nothing has been written" in result.err
        assert not (tmp_path / "data").exists()
        # one may look all the same
        preview = run("migrate", "vibemq", str(store.path), "--to", "data", "--dry-run")
        assert preview.code == 0
        assert "note: the source is in use" in preview.out
        assert describe_use(store.path)
    assert describe_use(store.path) == ""
    assert migrate("vibemq", store.path)["messages"]["imported"] == 10


def test_lock_is_detected_without_process_list(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container other processes are not visible, but their locks are."""
    monkeypatch.setattr("sluicemq.migrate.source_files._writer", lambda path: 0)
    with process_with_connection(store.path, "WAL"):
        assert "holds a lock on" in describe_use(store.path)


def test_reading_process_does_not_block_migration(store: Store) -> None:
    with (
        store.path.open("rb"),
        subprocess.Popen(["tail", "-f", store.path], stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        process.stdout.read(1)
        assert describe_use(store.path) == ""
        process.kill()


def test_source_that_changed_before_first_write_is_error(store: Store, tmp_path: Path) -> None:
    plan = inspect_source(store.path, None)
    store.message("late", "orders", "1")
    with pytest.raises(Exception, match=r"has changed while it was read.*nothing has been written"):
        transfer.transfer(plan, tmp_path / "data")
    assert not (tmp_path / "data").exists()


# --- names ---------------------------------------------------------------------------------------


def test_destination_of_other_kind_is_error_before_anything_is_written(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path
) -> None:
    other = Store(tmp_path / "fan_out.db")
    other.queue("orders", mode=1)
    other.messages("orders", 2)
    other.queue("news")
    other.messages("news", 2)
    migrate("vibemq", store.path)
    before = fingerprint(tmp_path / "data")
    result = run("migrate", "vibemq", str(other.path), "--to", "data")
    assert result.code == 1
    assert "topic orders" in result.err
    assert "news" not in result.err
    assert fingerprint(tmp_path / "data")["migrations.log"] == before["migrations.log"]
    assert {message.destination.name for message in journaled_messages(tmp_path / "data")} == {
        "orders"
    }


def test_configuration_counts_too(store: Store, run: Run, tmp_path: Path) -> None:
    config = tmp_path / "sluicemq.toml"
    config.write_text('[destinations."topic:orders"]\nretain_without_subscriptions = true\n')
    result = run("migrate", "vibemq", str(store.path), "--to", "data", "--config", str(config))
    assert result.code == 1
    assert "queue orders" in result.err
    assert not (tmp_path / "data").exists()


def test_dead_letters_for_fan_out_are_set_aside(store: Store, migrate: Migrate) -> None:
    """VibeMQ's dead letters are in no queue; here `orders.dlq` would be their queue and a topic."""
    store.queue("orders.dlq", mode=1)
    store.dead({"id": "d", "queueName": "orders", "timestamp": "2026-02-18T10:30:00Z"}, 0)
    report = migrate("vibemq", store.path)
    assert report["messages"]["imported"] == 10
    assert report["set_aside"]["rows"] == {"unreadable": 1}


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_run_after_ctrl_c_continues(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_unit = OfflineImport.end_unit

    def interrupt(self: OfflineImport, number: int, messages: int) -> None:
        end_unit(self, number, messages)
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "PART_MESSAGES", 2)
        patch.setattr(OfflineImport, "end_unit", interrupt)
        stopped = run("migrate", "vibemq", str(store.path), "--to", "data")
    assert stopped.code == 130
    assert "this run has imported 4 of 10 messages" in stopped.err
    assert "Run the same command again" in stopped.err
    assert signal.getsignal(signal.SIGINT) is before
    assert not (tmp_path / "data" / "sluicemq.toml").exists()
    report = migrate("vibemq", store.path)
    assert (report["messages"]["imported"], report["messages"]["imported_before"]) == (6, 4)
    assert [message.body for message in journaled_messages(tmp_path / "data")] == [
        b"%d" % n for n in range(10)
    ]


def test_ctrl_c_leaves_no_incomplete_file_of_rows(
    store: Store, migrate: Migrate, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.queue("ticks", mode=2)
    store.messages("ticks", 3)
    with monkeypatch.context() as patch:
        patch.setattr(transfer._Transfer, "raise_if_interrupted", _interrupt)
        assert run("migrate", "vibemq", str(store.path), "--to", "data").code == 130
    assert list((tmp_path / "data").glob("set-aside*")) == []
    assert migrate("vibemq", store.path)["set_aside"]["rows"] == {"delivered": 3}


def _interrupt(*ignored: object, **options: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_source_is_read_writes_nothing(
    store: Store, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicemq.migrate.vibemq.read_store", _interrupt)
    stopped = run("migrate", "vibemq", str(store.path), "--to", "data")
    assert stopped.code == 130
    assert "Run the same command again" in stopped.err
    assert not (tmp_path / "data").exists()
