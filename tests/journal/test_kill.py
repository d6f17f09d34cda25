"""A process that is killed while it writes loses no record that it has reported as durable.

This does not depend on the progress of its second thread.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.inspect import check

WRITER = """
import sys
import threading
from pathlib import Path
from sluicemq.journal import FileJournal, JournalOptions
from sluicemq.journal.writer import SegmentFile
from sluicemq.model.destination import Address, Kind
from sluicemq.model.message import Message

journal = FileJournal.open(Path(sys.argv[1]), JournalOptions(segment_bytes=20_000))
journal.recovery.close()
journal.set_snapshot_source(lambda: b"state")
if sys.argv[2] == "stuck":
    SegmentFile.seal = lambda *arguments: threading.Event().wait()
address = Address(Kind.QUEUE, "q")
number = journal.destination_number(address)
held = []
while True:
    unit = []
    for last in (False, True):
        message = Message(address, b"", timestamp=1)
        message.body = b"%020d" % (journal._next,)
        unit.append(journal.append_message(message, number, last=last))
    held += unit
    newest = unit[-1]
    ended = []
    if len(held) > 60:
        ended, held = held[:40], held[40:]
        newest = journal.append_completed(1, number, 1, ended, 1)
    journal.commit()
    while journal.durable < newest:
        journal._writer.wait()
        journal.commit()
    print("live", *unit)
    if ended:
        print("ended", *ended)
    print("durable", journal.durable, flush=True)
"""


@pytest.mark.parametrize("seals", ["late", "stuck"])
def test_kill_loses_no_durable_record(tmp_path: Path, seals: str) -> None:
    live: set[int] = set()
    for round in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), seals],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            groups = 0
            for line in process.stdout:
                groups += line.startswith("durable")
                if groups > 40 + 23 * round:
                    process.kill()
                word, *numbers = line.split()
                reported = {int(number) for number in numbers if line.endswith("\n")}
                if word == "live":
                    live |= reported
                elif word == "ended":
                    live -= reported
        assert check(tmp_path).problems == []
        journal = FileJournal.open(tmp_path, JournalOptions(segment_bytes=20_000))
        rows = [row.sequence for row in journal.recovery.live_rows()]
        assert len(set(rows)) == len(rows)
        recovered = set(rows)
        for sequence in recovered:
            assert journal.fetch(sequence).body == b"%020d" % sequence
        # At most one group more than was reported: two more messages, or forty completions.
        assert len(recovered - live) in (0, 2)
        assert len(live - recovered) in (0, 40)
        assert len(recovered) % 2 == 0
        live = recovered
        journal.close()
