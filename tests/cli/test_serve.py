"""How a start ends that cannot succeed: with an exit code that says whether another one could."""

from __future__ import annotations

from pathlib import Path

from sluicemq.journal import FileJournal
from tests.cli.conftest import Run


def test_a_damaged_journal_ends_the_start_as_a_failed_one_does(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "data" / "journal"
    FileJournal.open(place).close()
    (segment,) = place.glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[0] ^= 1
    segment.write_bytes(data)
    result = run("serve", "--data-dir", str(tmp_path / "data"), "--listen", "phpmq://127.0.0.1:0")
    assert result.code == 74
    assert "sluicemq journal check" in result.err
    assert "Traceback" not in result.err


def test_a_configuration_without_sense_has_a_code_of_its_own(run: Run) -> None:
    assert run("serve", "--listen", "carrier-pigeon://").code == 2
