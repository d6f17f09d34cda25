"""Versions of a small file: PREFIX1SUFFIX, PREFIX2SUFFIX, … in one directory.

Version n + 1 belongs to whoever creates it first, and nobody sees half of one. That is all the
locking that tables without a log of their own need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluicemq.pipeline.tables.snapshot import Outrun
from sluicemq.pipeline.tables.storage import Storage


@dataclass(frozen=True)
class Numbered:
    """The versions below `directory` of that table."""

    storage: Storage
    directory: str
    prefix: str
    suffix: str

    def path(self, number: int) -> str:
        """Relative to the table."""
        return f"{self.directory}/{self.prefix}{number}{self.suffix}"

    def numbers(self) -> list[int]:
        """Of all versions still there, ascending."""
        wanted = re.compile(re.escape(self.prefix) + r"(\d+)" + re.escape(self.suffix))
        found = []
        for file in self.storage.listed(self.directory):
            if match := wanted.fullmatch(file.path.rpartition("/")[2]):
                found.append(int(match[1]))
        return sorted(found)

    def latest(self) -> int:
        """The highest number; 0 if there is none."""
        text = (self.storage.read(self._hint) or b"").decode(errors="replace").strip()
        if text.isdecimal():
            number = int(text)
        else:
            number = max(self.numbers(), default=0)
        # The hint is written after the version: it may be a little behind, never ahead.
        while self.storage.there(self.path(number + 1)):
            number += 1
        return number

    def read(self, number: int) -> bytes | None:
        """The content of that version; None if it does not exist or has been removed."""
        return self.storage.read(self.path(number))

    def put(self, number: int, content: bytes) -> None:
        """Makes that version; Outrun if it exists."""
        if not self.storage.put_new(self.path(number), content):
            raise Outrun(self.path(number))
        self.storage.replace(self._hint, str(number).encode())

    def drafts(self) -> set[str]:
        """What writers that died while they made a version have left."""
        return {
            file.path
            for file in self.storage.listed(self.directory)
            if file.path.rpartition("/")[2].startswith(".")
        }

    def remove_before(self, number: int) -> None:
        """Removes all lower versions."""
        for old in self.numbers():
            if old < number:
                self.storage.remove(self.path(old))

    @property
    def _hint(self) -> str:
        return f"{self.directory}/version-hint.text"
