"""Retention slots as files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluicemq.journal import Slots
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound


def test_slot_is_created_advanced_listed_and_deleted(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 77)
    assert slots.list() == {}
    slots.create("spark", 5)
    slots.create("audit", limit_bytes=1000)
    slots.advance("spark", 9)
    assert {name: slot.position for name, slot in Slots(tmp_path).list().items()} == {
        "audit": 0,
        "spark": 9,
    }
    assert slots.get("spark").limit_bytes == 77
    slots.delete("audit")
    assert list(slots.list()) == ["spark"]


@pytest.mark.parametrize("name", ["", "../lock", "Upper", "a" * 64, "-x", "a/b", "ü"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(JournalError, match="not a valid slot name"):
        Slots(tmp_path).create(name)


def test_invalid_operations_name_slot(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("a", 10)
    with pytest.raises(JournalError, match="already"):
        slots.create("a")
    with pytest.raises(JournalError, match="back"):
        slots.advance("a", 9)
    with pytest.raises(JournalError, match="at least"):
        slots.create("b", -1)
    with pytest.raises(JournalError, match="less"):
        slots.create("b", 1 << 63)
    with pytest.raises(JournalError, match="less"):
        slots.create("b", 0, 1 << 63)
    with pytest.raises(RecordNotFound):
        slots.advance("missing", 1)
    with pytest.raises(RecordNotFound):
        slots.delete("missing")
    slots.mark_lost("a", slots.get("a"))
    with pytest.raises(JournalError, match="lost"):
        slots.advance("a", 11)


def test_invalid_slot_file_is_reported_with_its_path(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("a")
    (tmp_path / "slots" / "a.json").write_text("{")
    slots.create("b")
    with pytest.raises(JournalDamaged, match=r"a\.json"):
        slots.list()
    readable, [error] = slots.readable()
    assert list(readable) == ["b"]
    assert "a.json is not a slot file" in str(error)


def test_slower_reader_does_not_move_slot_back(tmp_path: Path) -> None:
    slots = Slots(tmp_path)
    slots.create("a", 10)
    assert slots.advance("a", 20, shared=True).position == 20
    assert slots.advance("a", 15, shared=True).position == 20
    assert slots.get("a").position == 20
    slots.mark_lost("a", slots.get("a"))
    with pytest.raises(JournalError, match="lost"):
        slots.advance("a", 15, shared=True)


MOVER = """
import sys
from pathlib import Path
from sluicemq.journal import Slots
slots = Slots(Path(sys.argv[1]))
for position in range(int(sys.argv[2]), 1000, 2):
    slots.advance("a", position, shared=True)
"""


def test_several_processes_move_slot(tmp_path: Path) -> None:
    """The processes once shared a temporary file and overwrote each other's changes."""
    slots = Slots(tmp_path)
    slots.create("a")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MOVER, str(tmp_path), start], stderr=subprocess.PIPE, text=True
        )
        for start in ("0", "1")
    ]
    for process in processes:
        _, output = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert slots.get("a").position == 999
