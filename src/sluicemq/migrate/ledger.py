"""List of the messages that have been imported into a data directory; prevents repeated imports.

    migrations.log    {"journal": "<identity, hex>"}                       one JSON object a line
                      {"part": 1, "keys": "<keys of its messages, base64>"}
                      {"part": 2, …}
                      {"done": "openmq", "place": "/var/imq/…", "messages": 512, "at": …}

A part is a unit of the journal. Its line is on disk before the unit is begun, and the unit ends
with a BATCH record that has the part's number: so after a crash the journal shows whether the last
unit was written. All units before it were.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicemq.migrate.plan import KEY_BYTES, Key
from sluicemq.migrate.source_files import SourceError

NAME: Final = "migrations.log"
"""Name of the file in the data directory."""


class Ledger:
    """The file and the keys in it. `part` is the last unit begun."""

    def __init__(self, path: Path) -> None:
        """Read the file; a missing file is an empty list. Raises SourceError if it is damaged."""
        self.path = path
        self.journal = ""
        self.part = 0
        self.keys: set[Key] = set()
        self._doubtful: list[Key] = []
        """Keys of the last line if that is a part: only the journal knows whether its unit was
        written."""
        self._good = 0
        """Number of bytes up to the end of the last complete line."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # a crash interrupted the write of this line, so its unit was not begun
            self._take(line)
            self._good += len(line)

    def _take(self, line: bytes) -> None:
        try:
            entry: Any = msgspec.json.decode(line)
            if "journal" in entry:
                self.journal = entry["journal"]
            elif "part" in entry:
                packed = base64.b64decode(entry["keys"], validate=True)
                found = [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]
                self.keys.update(self._doubtful)
                self._doubtful = found
                self.part = int(entry["part"])
            else:
                self.keys.update(self._doubtful)
                self._doubtful = []
        except (msgspec.DecodeError, TypeError, ValueError, LookupError) as fault:
            raise SourceError(
                f"{self.path}, byte {self._good}: the list of what has been imported is damaged "
                f"({fault}). Without it messages could come twice: restore it from a backup."
            ) from None

    def settle(self, journal: bytes, written: int | None) -> None:
        """Confirm or discard the last part. `written` is the number of the last part in the
        journal; None = the journal is unavailable, and then nothing may be written.

        A list that belongs to another journal, which no longer exists, is ignored.
        """
        if written is None or (self.journal == journal.hex() and self.part <= written):
            self.keys.update(self._doubtful)
        elif self.journal != journal.hex():
            self.keys.clear()
            self.part = 0
            self._good = 0
        self._doubtful = []
        self.part = max(self.part, written or 0)

    def begin(self, journal: bytes) -> None:
        """Prepare for writing: truncate an incomplete last line."""
        with self.path.open("ab") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(self._good)
        if not self._good:
            self._write({"journal": journal.hex()})

    def intend(self, keys: list[Key]) -> int:
        """Record that the next part is about to be written. Returns its number once it is on
        disk."""
        self.part += 1
        self._write({"part": self.part, "keys": base64.b64encode(b"".join(keys)).decode()})
        return self.part

    def done(self, kind: str, place: Path, messages: int, at: int) -> None:
        """Record that a migration is complete. `at` is ms since the epoch."""
        self._write({"done": kind, "place": str(place), "messages": messages, "at": at})

    def _write(self, entry: dict[str, object]) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        with self.path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._good += len(line)
