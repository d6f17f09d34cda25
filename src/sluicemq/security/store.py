"""User database on disk: one file, replaced as a whole by one process at a time.

The broker and the command line change it under the same lock (FILE.lock) and read it again before
each change. Readers need no lock: a rename gives them either the old or the new file. A replaced
file is detected by inode, size and times, which takes one system call.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from sluicemq.journal.files import write_whole
from sluicemq.model.errors import AccessError, ConfigurationError
from sluicemq.security.changes import Change
from sluicemq.security.records import VERSION, Database, decode, encode

MAX_FILE: Final = 64 * 1024**2
"""Maximum size of the file in bytes; 10,000 users with many permissions need less."""
LOCK_SECONDS: Final = 10.0
"""Seconds to wait for the lock of the file; a change takes milliseconds."""
_LOCK_POLL: Final = 0.01

_Stamp = tuple[int, int, int, int]


class UserStore:
    """User database of one broker. One thread calls `read`; any thread may call `change`."""

    __slots__ = ("_database", "_stamp", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: _Stamp | None = None
        self._database = Database()

    def read(self) -> Database:
        """Return the current database; the same object as long as the file is unchanged.

        Without a file there are no users. Raises ConfigurationError if the file is damaged or
        cannot be read; the next call tries again.
        """
        try:
            stamp = _stamp(os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            stamp = None
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if stamp != self._stamp:
            self._database, self._stamp = _load(self.path)
        return self._database

    @property
    def exists(self) -> bool:
        """Return whether the file existed at the last `read`."""
        return self._stamp is not None

    def change(self, change: Change, by: str) -> Database:
        """Apply a change and write it to disk. `by` is the author for the audit log.

        Raises the errors of `change`, ConfigurationError if the file is damaged, OSError.
        """
        with self._locked():
            before, _ = _load(self.path)
            after = change(before)
            if after is before:
                return before
            after = replace(after, version=VERSION, changed_by=by)
            write_whole(self.path, encode(after), mode=0o600, owner=self._owner())
            return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = self.path.with_name(self.path.name + ".lock")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            owner = self._owner()
            if owner is not None:
                os.fchown(fd, *owner)
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise AccessError(
                            f"another process has been changing {self.path} for "
                            f"{LOCK_SECONDS:g} s; try again"
                        ) from None
                    time.sleep(_LOCK_POLL)
            yield
        finally:
            os.close(fd)

    def _owner(self) -> tuple[int, int] | None:
        """Return the owner of new files if root runs this process: the owner of the directory, so
        that the broker's user can still read the file."""
        if os.geteuid() != 0:
            return None
        directory = os.stat(self.path.parent)
        return directory.st_uid, directory.st_gid


def _load(path: Path) -> tuple[Database, _Stamp | None]:
    try:
        with path.open("rb") as file:
            # of the open file, because the path may refer to a newer file by now
            stamp = _stamp(os.fstat(file.fileno()))
            content = file.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Database(), None
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(content) > MAX_FILE:
        raise ConfigurationError(f"{path}: the user database is larger than {MAX_FILE} bytes")
    return decode(content, str(path)), stamp


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: the user database cannot be read: {error.strerror or error}"
    )
