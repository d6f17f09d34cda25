"""Compaction of a journal that no broker has open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluicemq.journal.log import FileJournal
from sluicemq.journal.options import JournalOptions
from sluicemq.journal.port import JournalStats


def compact(
    directory: Path,
    options: JournalOptions | None = None,
    adopt: Callable[[FileJournal], None] | None = None,
) -> tuple[JournalStats, JournalStats]:
    """Move live records out of old segments, remove these, and return stats before and after.

    `adopt` reads the recovery as a broker does and sets `snapshot_source`; without it, segments
    after the broker's last snapshot are not compacted.

    Raises JournalFailed and the errors of `FileJournal.open`.
    """
    journal = FileJournal.open(directory, options)
    try:
        if adopt is not None:
            adopt(journal)
        journal.recovery.done()
        before = journal.stats()
        journal.compact()
        after = journal.stats()
    finally:
        journal.close()
    return before, after
