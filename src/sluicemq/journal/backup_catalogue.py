"""Catalogue of the backups in a directory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluicemq.journal.directory import LOCK_NAME
from sluicemq.journal.manifest import JOURNAL_NAME, read_manifest
from sluicemq.model.errors import JournalError


class BackupView(msgspec.Struct, frozen=True, kw_only=True):
    """A backup as lists show it; one that was never finished has only its name.

    created       ms since the epoch
    bytes         of all its files; `copied_bytes` of them are shared with no earlier one
    broker_id     identity of the journal, 32 hex digits
    version       release of SluiceMQ that made it
    """

    name: str
    complete: bool
    created: int = 0
    version: str = ""
    broker_id: str = ""
    bytes: int = 0
    copied_bytes: int = 0
    last_sequence: int = 0
    incremental_from: str = ""


def catalogue(directory: Path) -> list[BackupView]:
    """Return the backups in a directory, sorted by name. Raises OSError."""
    found = []
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            continue
        try:
            manifest = read_manifest(path)
        except JournalError:
            journal = path / JOURNAL_NAME
            # a directory that a broker has opened is a data directory, not a backup
            if journal.is_dir() and not (journal / LOCK_NAME).exists():
                found.append(BackupView(name=path.name, complete=False))
            continue
        found.append(
            BackupView(
                name=path.name,
                complete=True,
                created=manifest.created,
                version=manifest.release,
                broker_id=manifest.identity,
                bytes=manifest.bytes,
                copied_bytes=manifest.copied_bytes,
                last_sequence=manifest.last_sequence,
                incremental_from=Path(manifest.incremental_from).name,
            )
        )
    return found
