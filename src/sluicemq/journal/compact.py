"""Compacting a journal that no broker has open."""

from __future__ import annotations

from pathlib import Path

from sluicemq.journal.log import FileJournal
from sluicemq.journal.options import JournalOptions
from sluicemq.journal.port import JournalStats


def compact(
    directory: Path, options: JournalOptions | None = None
) -> tuple[JournalStats, JournalStats]:
    """Move what is live out of old segments and remove them. Returns the sizes before and after.

    Raises as `FileJournal.open`, and JournalFailed.
    """
    journal = FileJournal.open(directory, options)
    try:
        journal.recovery.done()
        before = journal.stats()
        journal.compact()
        after = journal.stats()
    finally:
        journal.close()
    return before, after
