"""Read-only access to SQLite files of other programs that leaves no trace in their directory.

SQLite itself would leave one: to read a database in WAL mode it creates two files beside it, and it
rolls back a transaction that a crash has interrupted. So a database with such files beside it is
copied and the copy is recovered; any other is opened as immutable.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Final
from urllib.parse import quote

from sluicemq.migrate.source_files import ChangeDetector, Damage, SourceError

BESIDE: Final = ("-wal", "-journal")
"""Suffixes of files beside a database that is in use or was interrupted by a crash."""
_MAGIC: Final = b"SQLite format 3\0"

_WAL_INDEX_LOCKS: Final = (120, 9)
"""First byte and number of the bytes of `-shm` that SQLite locks. Every open connection holds the
last one, 128, for reading; the others are held during a transaction."""
_DATABASE_LOCKS: Final = (0x4000_0000, 512)
"""The same for the database file: held during a transaction, in WAL mode by open connections."""
_flock: Final = Struct("@hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, process."""


def is_database(path: Path) -> bool:
    """Return whether the file looks like an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextmanager
def opened(path: Path, change_detector: ChangeDetector) -> Iterator[sqlite3.Connection]:
    """Open a connection whose text is bytes. Raises SourceError; Damage also for errors that occur
    while it is used."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file")
    if not is_database(path):
        raise Damage(f"{path}, byte 0: this is no SQLite database")
    beside = [Path(f"{path}{ending}") for ending in BESIDE]
    for each in (path, *beside):
        change_detector.look(each)
    if use := usage(path):
        change_detector.used.setdefault(path, use)
    unfinished = [each for each in beside if each.exists() and each.stat().st_size]
    with tempfile.TemporaryDirectory() as directory:
        place, immutable = path, True
        if unfinished:
            place, immutable = Path(directory, "copy.db"), False
            shutil.copyfile(path, place)
            for each in unfinished:
                shutil.copyfile(each, f"{place}{each.name.removeprefix(path.name)}")
        try:
            connection = _connect(place, immutable)
            try:
                _check(connection)
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as fault:
            raise Damage(f"{path}: {fault}") from None
        except UnicodeDecodeError:  # sqlite3 decodes column names and error texts itself
            raise Damage(f"{path}: the database is damaged: text that is not UTF-8") from None


def _connect(path: Path, immutable: bool) -> sqlite3.Connection:
    options = "mode=ro&immutable=1" if immutable else "mode=rw"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True)
    connection.text_factory = bytes
    return connection


def _check(connection: sqlite3.Connection) -> None:
    problems = [
        row[0].decode("utf-8", "replace") for row in connection.execute("PRAGMA quick_check(3)")
    ]
    if problems != ["ok"]:
        raise sqlite3.DatabaseError(f"the database is damaged: {'; '.join(problems)}")


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns; none if there is no such table."""
    found = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return {row[0].decode("utf-8", "replace") for row in found}


def required(
    connection: sqlite3.Connection, file: Path, product: str, table: str, needed: Collection[str]
) -> set[str]:
    """Return the columns of a table of a product's store. Raises Damage unless it has those that
    are needed."""
    there = columns(connection, table)
    if not there:
        raise Damage(f"{file}: there is no table `{table}`, so this is no store of {product}")
    if missing := set(needed) - there:
        raise Damage(f"{file}: the table `{table}` lacks {', '.join(sorted(missing))}")
    return there


def text(raw: object) -> str:
    """Return the text of a column; "" for NULL and numbers."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""


# --- use by other processes ----------------------------------------------------------------------


def usage(path: Path) -> str:
    """Return how another process uses the database, for a message; "" if no use is detected.

    In WAL mode a program holds locks while it is connected, also in another container. Without WAL
    it holds none between two transactions; then the function looks for its open file, which is
    visible to the same user and to root on the same machine. The file is not changed.
    """
    for file, (start, length) in (
        (Path(f"{path}-shm"), _WAL_INDEX_LOCKS),
        (path, _DATABASE_LOCKS),
    ):
        holder = _lock_holder(file, start, length)
        if holder is not None:
            return f"process {holder} holds a lock on {file}" if holder else f"{file} is locked"
    writer = _writer(path)
    return f"process {writer} has {path} open for writing" if writer else ""


def _lock_holder(path: Path, start: int, length: int) -> int | None:
    """Return the process that holds a POSIX lock on some of these bytes: 0 if it is not visible
    from here, None if there is no lock or the system does not support the query."""
    if sys.platform != "linux":
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = _flock.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
    except OSError:
        return None
    finally:
        os.close(fd)
    kind, _, _, _, process = _flock.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(0, process)


def _writer(path: Path) -> int:
    """Return another process that has the file open for writing, from /proc; 0 = none found."""
    try:
        status = path.stat()
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return 0
    for process in processes:
        if process == os.getpid():
            continue
        with suppress(OSError):  # the process has ended or belongs to another user
            for number in os.listdir(f"/proc/{process}/fd"):
                with suppress(OSError):
                    found = os.stat(f"/proc/{process}/fd/{number}")
                    if (found.st_dev, found.st_ino) == (
                        status.st_dev,
                        status.st_ino,
                    ) and _is_open_for_writing(process, number):
                        return process
    return 0


def _is_open_for_writing(process: int, number: str) -> bool:
    for line in Path(f"/proc/{process}/fdinfo/{number}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
