"""Read-only access to a source's files. Sizes are checked first, and errors name the file and the
position in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct, error
from typing import Any, Final, Self

from sluicemq.model.errors import SluiceError

MAX_SETTINGS: Final = 4 * 1024**2
"""Maximum number of bytes of a configuration file; far above any realistic one."""


class SourceError(SluiceError):
    """The source is missing, damaged, or in use."""


class Damage(SourceError):
    """A position in a file holds invalid data; other positions may be intact."""


def read_settings(path: Path) -> bytes:
    """Read a text file. Raises SourceError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SETTINGS + 1)
    except OSError as fault:
        raise SourceError(f"{path}: {fault.strerror or fault}") from None
    if len(content) > MAX_SETTINGS:
        raise SourceError(f"{path}: the file is larger than {MAX_SETTINGS} bytes")
    return content


class SourceFile:
    """A file that is read by position. Raises Damage if it ends too early."""

    __slots__ = ("_fd", "path", "size")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open the file for reading only. Raises SourceError."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as fault:
            raise SourceError(f"{path}: {fault.strerror or fault}") from None
        try:
            yield cls(path, fd)
        finally:
            os.close(fd)

    def damage(self, position: int, what: str) -> Damage:
        """Return the error for a problem at a position."""
        return Damage(f"{self.path}, byte {position}: {what}")

    def read(self, position: int, size: int) -> bytes:
        """Read `size` bytes at a position."""
        if not (position >= 0 and 0 <= size <= self.size - position):
            raise self.damage(position, f"{size} bytes should follow, and the file ends before")
        parts = []
        while size > 0:
            part = os.pread(self._fd, size, position)
            if not part:
                raise self.damage(position, "the file has become shorter while it was read")
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def unpack(self, layout: Struct, position: int) -> tuple[Any, ...]:
        """Read numbers at a position."""
        return layout.unpack(self.read(position, layout.size))


class ByteReader:
    """Bytes that are read sequentially. `where` begins its error messages."""

    __slots__ = ("data", "position", "where")

    def __init__(self, data: bytes, where: str, position: int = 0) -> None:
        self.data = data
        self.where = where
        self.position = position

    def damage(self, what: str) -> Damage:
        """Return the error for a problem at the current position."""
        return Damage(f"{self.where}, at {self.position} of {len(self.data)} bytes: {what}")

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        start = self.position
        if not 0 <= size <= len(self.data) - start:
            raise self.damage(f"{size} bytes should follow")
        self.position = start + size
        return self.data[start : self.position]

    def unpack(self, layout: Struct) -> tuple[Any, ...]:
        """Read numbers."""
        try:
            found = layout.unpack_from(self.data, self.position)
        except error:
            raise self.damage(f"{layout.size} bytes should follow") from None
        self.position += layout.size
        return found

    @property
    def left(self) -> int:
        """Return the unread bytes."""
        return len(self.data) - self.position


class ChangeDetector:
    """Detects writes to files while they are read.

    used  files that another process has open, with the evidence
    """

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}
        self.used: dict[Path, str] = {}

    def look(self, path: Path) -> None:
        """Record the present state of the file if it exists."""
        stamp = _stamp(path)
        if stamp is not None:
            self._seen.setdefault(path, stamp)

    def changed(self) -> list[Path]:
        """Return the files that have changed."""
        return [path for path, stamp in self._seen.items() if _stamp(path) != stamp]

    def check(self, done: str) -> None:
        """Raise SourceError if a file is in use or has changed; `done` states what has been written
        so far."""
        for use in self.used.values():
            raise SourceError(
                f"the source is in use: {use}. Stop the broker that runs on it and run this "
                f"again: {done}"
            )
        for path in self.changed():
            raise SourceError(
                f"{path} has changed while it was read: is its broker running? Stop it and run "
                f"this again: {done}"
            )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
