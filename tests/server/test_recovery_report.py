"""Log entries of recovery about the end of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sluicemq.server.run import warn_of_loss
from tests.journal.support import crash, put, reopen, segments_of


def _restart(directory: Path) -> list[tuple[str, str]]:
    journal = reopen(directory)
    try:
        with capture_logs() as logs:
            warn_of_loss(journal.recovery.report)
    finally:
        journal.close()
    return [(entry["log_level"], entry["event"]) for entry in logs]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A journal of a killed process, with one confirmed message."""
    journal = reopen(tmp_path)
    put(journal)
    journal.sync()
    crash(journal)
    return tmp_path


def test_an_intact_journal_warns_of_nothing(killed: Path) -> None:
    assert _restart(killed) == []


@pytest.mark.parametrize("size", [0, 64, 200])
def test_lost_data_is_an_error(killed: Path, size: int) -> None:
    path = segments_of(killed)[0]
    path.write_bytes(path.read_bytes()[:size])
    [(level, event)] = _restart(killed)
    assert level == "error"
    assert "confirmed data is lost" in event


def test_bytes_behind_the_durable_end_were_not_confirmed_as_durable(killed: Path) -> None:
    with segments_of(killed)[0].open("ab") as file:
        file.write(b"incomplete")
    [(level, event)] = _restart(killed)
    assert level == "warning"
    assert "Messages confirmed as durable are complete" in event


def test_without_a_durable_end_nothing_is_claimed(killed: Path) -> None:
    with segments_of(killed)[0].open("ab") as file:
        file.write(b"incomplete")
    (killed / "durable").unlink()
    [(level, event)] = _restart(killed)
    assert level == "warning"
    assert "is not known" in event


def test_an_emptied_segment_without_a_durable_end_is_an_error(killed: Path) -> None:
    segments_of(killed)[0].write_bytes(b"")
    (killed / "durable").unlink()
    [(level, event)] = _restart(killed)
    assert level == "error"
    assert "is not known" in event
