"""Fixtures that run `sluicemq migrate` and read its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluicemq.broker import Broker
from sluicemq.broker.recovery import recover
from sluicemq.journal import FileJournal
from sluicemq.journal.inspect import dump
from sluicemq.model.message import Message
from sluicemq.server.clock import SystemClock
from tests.cli.conftest import Run, run

__all__ = ["Migrate", "migrate", "run"]

Migrate = Callable[..., dict[str, Any]]


@pytest.fixture
def migrate(run: Run, tmp_path: Path) -> Migrate:
    """Migrate into `data`, check that the source has not changed, and return the report."""

    def call(kind: str, source: Path, *options: str) -> dict[str, Any]:
        top = source if source.is_dir() else source.parent
        before = fingerprint(top)
        result = run(
            "migrate", kind, str(source), "--to", str(tmp_path / "data"), "--json", *options
        )
        assert fingerprint(top) == before, "the source has been changed"
        assert result.code == 0, result.err
        report: dict[str, Any] = json.loads(result.out)
        return report

    return call


def fingerprint(directory: Path) -> dict[str, str]:
    """Return the names and contents of all files."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def not_migrated(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return type and name of everything that is not migrated."""
    return [(item["what"], item["name"]) for item in report["left"]]


def journaled_messages(data_dir: Path) -> list[Message]:
    """Return the messages in a data directory's journal, in order, without those of prepared
    transactions."""
    entries = dump(data_dir / "journal")
    return [entry.message for entry in entries if entry.message is not None]


@contextmanager
def restored_broker(data_dir: Path) -> Iterator[Broker]:
    """Yield the engine that a broker would start with."""
    journal = FileJournal.open(data_dir / "journal")
    try:
        broker = Broker(journal, SystemClock())
        recover(broker, journal.recovery)
        yield broker
    finally:
        journal.close()
