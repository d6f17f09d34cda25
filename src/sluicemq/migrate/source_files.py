"""Read-only access to a source's files. Sizes are checked first, and errors name the file and the
position in it.

SQLite itself would leave traces in the directory of a database: to read one in WAL mode it creates
two files beside it, and it rolls back a transaction that a crash has interrupted. So a database
with such files beside it is copied and the copy is recovered; any other is opened as immutable.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from glob import iglob
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote

from sluicemq.model.errors import ConfigurationError, SluiceError
from sluicemq.security.files import read_bounded

MAX_SETTINGS: Final = 4 * 1024**2
"""Maximum number of bytes of a configuration file; far above any realistic one."""


class SourceError(SluiceError):
    """The source is missing, damaged, or in use."""


class Damage(SourceError):
    """A position in a file holds invalid data; other positions may be intact."""


@dataclass(slots=True, eq=False)
class SourceFile:
    """A file that is read by position. Raises Damage if it ends too early."""

    path: Path
    size: int
    _file: BinaryIO

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open the file for reading only. Raises SourceError."""
        try:
            file = path.open("rb")
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror or error}") from None
        with file:
            yield cls(path, os.fstat(file.fileno()).st_size, file)

    def damage(self, position: int, text: str) -> Damage:
        """Return the error for a problem at a position."""
        return Damage(f"{self.path}, byte {position}: {text}")

    def read(self, position: int, size: int) -> bytes:
        """Read `size` bytes at a position."""
        if not (position >= 0 and 0 <= size <= self.size - position):
            raise self.damage(position, f"{size} bytes should follow, and the file ends before")
        self._file.seek(position)
        data = self._file.read(size)
        if len(data) < size:
            raise self.damage(position, "the file has become shorter while it was read")
        return data

    def unpack(self, layout: str, position: int) -> tuple[Any, ...]:
        """Read values at a position; `layout` as of `struct`."""
        return struct.unpack(layout, self.read(position, struct.calcsize(layout)))


@dataclass(slots=True, eq=False)
class ByteReader:
    """Bytes that are read sequentially. `location` begins its error messages."""

    data: bytes
    location: str
    position: int = 0

    def damage(self, text: str) -> Damage:
        """Return the error for a problem at the current position."""
        return Damage(f"{self.location}, at {self.position} of {len(self.data)} bytes: {text}")

    def take(self, size: int) -> bytes:
        """Read `size` bytes."""
        start = self.position
        if not 0 <= size <= self.remaining:
            raise self.damage(f"{size} bytes should follow")
        self.position = start + size
        return self.data[start : self.position]

    def unpack(self, layout: str) -> tuple[Any, ...]:
        """Read values; `layout` as of `struct`."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def number(self, layout: str) -> int:
        """Read one integer."""
        value: int = self.unpack(layout)[0]
        return value

    @property
    def remaining(self) -> int:
        """Number of unread bytes."""
        return len(self.data) - self.position


@dataclass(slots=True, eq=False)
class ChangeDetector:
    """Detects writes to files while they are read.

    used  files that another process has open, with the evidence
    """

    used: dict[Path, str] = field(default_factory=dict)
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def record_state(self, path: Path) -> None:
        """Record the present state of the file if it exists."""
        stamp = _stamp(path)
        if stamp is not None:
            self._seen.setdefault(path, stamp)

    def read_settings(self, path: Path) -> bytes:
        """Read a text file and record its state. Raises SourceError."""
        self.record_state(path)
        try:
            return read_bounded(path, MAX_SETTINGS)
        except ConfigurationError as error:
            raise SourceError(str(error)) from None

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


# --- SQLite files -------------------------------------------------------------------------------

COMPANION_SUFFIXES: Final = ("-wal", "-journal")
"""Suffixes of files beside a database that is in use or was interrupted by a crash."""
_MAGIC: Final = b"SQLite format 3\0"


def is_database(path: Path) -> bool:
    """Return whether the file looks like an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextmanager
def open_database(path: Path, change_detector: ChangeDetector) -> Iterator[sqlite3.Connection]:
    """Open a connection whose text is bytes and whose rows have names. Raises SourceError; Damage
    also for errors that occur while it is used."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file")
    if not is_database(path):
        raise Damage(f"{path}, byte 0: the file is not an SQLite database")
    companion_files = [Path(f"{path}{suffix}") for suffix in COMPANION_SUFFIXES]
    for file in (path, *companion_files):
        change_detector.record_state(file)
    if use := describe_use(path):
        change_detector.used.setdefault(path, use)
    nonempty_files = [file for file in companion_files if file.exists() and file.stat().st_size]
    with tempfile.TemporaryDirectory() as directory:
        database_path, options = path, "mode=ro&immutable=1"
        if nonempty_files:
            database_path, options = Path(directory, "copy.db"), "mode=rw"
            shutil.copyfile(path, database_path)
            for file in nonempty_files:
                shutil.copyfile(file, f"{database_path}{file.name.removeprefix(path.name)}")
        try:
            connection = sqlite3.connect(f"file:{quote(str(database_path))}?{options}", uri=True)
            with closing(connection):
                connection.text_factory = bytes
                problems = [
                    column_text(row[0]) for row in connection.execute("PRAGMA quick_check(3)")
                ]
                if problems != ["ok"]:
                    raise Damage(f"{path}: the database is damaged: {'; '.join(problems)}")
                connection.row_factory = sqlite3.Row
                yield connection
        except sqlite3.Error as error:
            raise Damage(f"{path}: {error}") from None
        except UnicodeDecodeError:  # sqlite3 decodes column names and error texts itself
            raise Damage(f"{path}: the database is damaged: text that is not UTF-8") from None


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns; none if there is no such table."""
    rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return {column_text(row[0]) for row in rows}


def require_columns(
    connection: sqlite3.Connection, file: Path, product: str, table: str, needed: Collection[str]
) -> None:
    """Raise Damage unless a table of a product's store has the columns that are needed."""
    column_names = columns(connection, table)
    if not column_names:
        raise Damage(f"{file}: there is no table `{table}`, so this is no store of {product}")
    if missing := set(needed) - column_names:
        raise Damage(f"{file}: the table `{table}` lacks {', '.join(sorted(missing))}")


def column_text(raw: object) -> str:
    """Return the text of a column; "" for NULL and numbers."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""


# --- use by other processes ----------------------------------------------------------------------

_WAL_INDEX_LOCKS: Final = (120, 9)
"""First byte and number of the bytes of `-shm` that SQLite locks. Every open connection holds the
last one, 128, for reading; the others are held during a transaction."""
_DATABASE_LOCKS: Final = (0x4000_0000, 512)
"""The same for the database file: held during a transaction, in WAL mode by open connections."""
_FLOCK: Final = "@hhqqi4x"
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""


def describe_use(path: Path) -> str:
    """Return how another process uses the database, for a message; "" if no use is detected.

    In WAL mode a program holds locks while it is connected, also in another container. Without WAL
    it holds none between two transactions; then the function looks for its open file, which is
    visible to the same user and to root on the same machine. The file is not changed.
    """
    for file, (start, length) in (
        (Path(f"{path}-shm"), _WAL_INDEX_LOCKS),
        (path, _DATABASE_LOCKS),
    ):
        if lock := _lock(file, start, length):
            return lock
    writer = _writer(path)
    return f"process {writer} has {path} open for writing" if writer else ""


def _lock(path: Path, start: int, length: int) -> str:
    """Return which process holds a POSIX lock on some of these bytes, for a message; "" if there is
    no lock or the system does not support the query."""
    query = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        with path.open("rb", buffering=0) as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, query)
    except OSError:
        return ""
    kind, _, _, _, process = struct.unpack(_FLOCK, answer)
    if kind == fcntl.F_UNLCK:
        return ""
    # a process that is not visible from here, as in another container, has no number
    return f"process {process} holds a lock on {path}" if process > 0 else f"{path} is locked"


def _writer(path: Path) -> int:
    """Return another process that has the file open for writing, from /proc; 0 = none found."""
    for name in iglob("/proc/[0-9]*/fd/*"):
        _, _, process, _, number = name.split("/")
        # the process may have ended or belong to another user
        with suppress(OSError, LookupError, ValueError):
            if int(process) != os.getpid() and os.path.samefile(name, path):
                state = Path(f"/proc/{process}/fdinfo/{number}").read_text()
                flags = int(state.partition("flags:")[2].split()[0], 8)
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    return int(process)
    return 0
