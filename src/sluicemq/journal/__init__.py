"""The durable log. `FileJournal` is the broker's, `MemoryJournal` the same without a disk."""
