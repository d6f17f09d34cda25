"""Writers that die at the worst moment, and writers that meet."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from sluicemq.pipeline.tables import Table
from tests.pipeline.tables.rows import events, sorted_rows

Made = Callable[..., Table]

WRITER = """
import os, signal, sys
from sluicemq.pipeline.tables import table
from tests.pipeline.tables.rows import events

kind, path, moment = sys.argv[1:]
lake = table(kind, path, sort=("sequence",))
commit = type(lake)._commit

def killed(self, base, change):
    if moment == "after":
        commit(self, base, change)
    os.kill(os.getpid(), signal.SIGKILL)

type(lake)._commit = killed
lake.upsert(events(5, 10), ["sequence"], "run", 1)
"""

RACER = """
import sys
from sluicemq.pipeline.tables import table
from tests.pipeline.tables.rows import events

kind, path, name = sys.argv[1:]
lake = table(kind, path, sort=("sequence",))
sys.stdin.readline()
for version in range(4):
    # Both add a key of their own, and count up one that they share.
    lake.upsert(events(int(name) + version, 1), ["sequence"], name, version)
    lake.upsert(
        events(0, 1), ["sequence"], "shared" + name, version,
        lambda old, new: new.set_column(
            new.schema.get_field_index("size"), "size",
            [[(old["size"][0].as_py() if old.num_rows else 0) + 1]],
        ),
    )
"""


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_writer_killed_around_its_commit(
    made: Made, kind: str, tmp_path: Path, moment: str
) -> None:
    made().append(events(0, 10), "run", 0)
    path = made().storage.root
    died = subprocess.run([sys.executable, "-c", WRITER, kind, path, moment], check=False)
    assert died.returncode == -signal.SIGKILL
    rows = events(0, 10) if moment == "before" else events(0, 15)
    assert sorted_rows(made().read()) == sorted_rows(rows)
    # The batch again, as a restarted query does it.
    assert made().upsert(events(5, 10), ["sequence"], "run", 1) is (moment == "before")
    assert sorted_rows(made().read()) == sorted_rows(events(0, 15))
    made().vacuum(timedelta(0))
    assert len(list(tmp_path.rglob("*.parquet"))) == len(made().files())
    assert sorted_rows(made().read()) == sorted_rows(events(0, 15))


def test_two_writers_at_once_and_a_reader(made: Made, kind: str) -> None:
    path = made().storage.root
    command = [sys.executable, "-c", RACER, kind, path]
    with (
        subprocess.Popen([*command, "1000"], stdin=subprocess.PIPE, text=True) as one,
        subprocess.Popen([*command, "2000"], stdin=subprocess.PIPE, text=True) as two,
    ):
        for racer in (one, two):
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        least = 0
        while one.poll() is None or two.poll() is None:
            if made().exists():
                numbers = made().read(["sequence"])["sequence"].to_pylist()
                assert len(set(numbers)) == len(numbers) >= least
                least = len(numbers)
    assert (one.returncode, two.returncode) == (0, 0)
    found = {row["sequence"]: row["size"] for row in made().read(["sequence", "size"]).to_pylist()}
    assert sorted(found) == [0, *range(1000, 1004), *range(2000, 2004)]
    assert found[0] == 8
