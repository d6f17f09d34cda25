"""Log entries of recovery about a damaged or incomplete end of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sluicemq.server.run import warn_of_loss
from tests.journal.support import crash, put, reopen, segments_of


def recovery_log(directory: Path) -> list[tuple[str, str]]:
    journal = reopen(directory)
    try:
        with capture_logs() as logs:
            warn_of_loss(journal.recovery.report)
    finally:
        journal.close()
    return [(entry["log_level"], entry["event"]) for entry in logs]


@pytest.fixture
def killed_journal(tmp_path: Path) -> Path:
    """Return the directory of a killed journal with one confirmed message."""
    journal = reopen(tmp_path)
    put(journal)
    journal.sync()
    crash(journal)
    return tmp_path


def test_intact_journal_logs_nothing(killed_journal: Path) -> None:
    assert recovery_log(killed_journal) == []


@pytest.mark.parametrize("size", [0, 64, 200])
def test_lost_data_is_logged_as_error(killed_journal: Path, size: int) -> None:
    path = segments_of(killed_journal)[0]
    path.write_bytes(path.read_bytes()[:size])
    [(level, event)] = recovery_log(killed_journal)
    assert level == "error"
    assert "confirmed data is lost" in event


def test_bytes_after_durable_end_are_logged_as_warning(killed_journal: Path) -> None:
    with segments_of(killed_journal)[0].open("ab") as file:
        file.write(b"incomplete")
    [(level, event)] = recovery_log(killed_journal)
    assert level == "warning"
    assert "Messages confirmed as durable are complete" in event


def test_unknown_durable_end_is_logged_as_warning(killed_journal: Path) -> None:
    with segments_of(killed_journal)[0].open("ab") as file:
        file.write(b"incomplete")
    (killed_journal / "durable").unlink()
    [(level, event)] = recovery_log(killed_journal)
    assert level == "warning"
    assert "is not known" in event


def test_empty_segment_with_unknown_durable_end_is_error(killed_journal: Path) -> None:
    segments_of(killed_journal)[0].write_bytes(b"")
    (killed_journal / "durable").unlink()
    [(level, event)] = recovery_log(killed_journal)
    assert level == "error"
    assert "is not known" in event
