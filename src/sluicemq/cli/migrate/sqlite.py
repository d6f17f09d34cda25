"""SQLite files of other programs, read without leaving a trace in their directory.

SQLite itself would: to read a database in WAL mode it makes two files beside it, and one that a
crash has left in the middle of a transaction is rolled back by its next reader. So a database that
has something beside it is copied, and the copy is put in order; any other is opened as one that
nobody writes.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sluicemq.cli.migrate.sources import Damage, SourceError, Witness

BESIDE: Final = ("-wal", "-journal")
"""Endings of files that belong to a database while it is in use, or after a crash."""
_MAGIC: Final = b"SQLite format 3\0"


def is_database(path: Path) -> bool:
    """Whether it looks like one."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


@contextmanager
def opened(path: Path, witness: Witness) -> Iterator[sqlite3.Connection]:
    """A connection whose text is bytes. Raises SourceError; Damage also for faults that show while
    it is used."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file")
    if not is_database(path):
        raise Damage(f"{path}, byte 0: this is no SQLite database")
    beside = [Path(f"{path}{ending}") for ending in BESIDE]
    for each in (path, *beside):
        witness.look(each)
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
    """Names of a table's columns; none if there is no such table."""
    found = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    return {row[0].decode("utf-8", "replace") for row in found}
