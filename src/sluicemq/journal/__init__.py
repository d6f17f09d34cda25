"""The durable log. `FileJournal` is the broker's, `MemoryJournal` the same without a disk."""

from sluicemq.journal.format import Cause, Record, RecordType
from sluicemq.journal.interface import Journal, JournalOptions, JournalStats, MemoryJournal
from sluicemq.journal.log import FileJournal
from sluicemq.journal.recovery import LiveRow, Recovery
from sluicemq.journal.slots import Slot, Slots

__all__ = [
    "Cause",
    "FileJournal",
    "Journal",
    "JournalOptions",
    "JournalStats",
    "LiveRow",
    "MemoryJournal",
    "Record",
    "RecordType",
    "Recovery",
    "Slot",
    "Slots",
]
