"""Files of a data directory: writes, the lock, and the published durable end of the journal."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import FileIO
from math import inf
from pathlib import Path
from struct import Struct
from threading import current_thread, main_thread
from time import monotonic, sleep
from typing import Final, NamedTuple
from zlib import crc32

from sluicemq.journal.space import ENTRY_BYTES, NO_SPACE, DiskSpace
from sluicemq.model.errors import JournalLocked, SluiceError

JOURNAL_NAME: Final = "journal"
"""Name of the journal's directory in a data directory, and in a backup."""
LOCK_NAME: Final = "lock"
LOCK_POLL_SECONDS: Final = 0.01
DURABLE_NAME: Final = "durable"
DURABLE: Final = Struct("<QQQI")
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
DESCRIPTOR_SECONDS: Final = 10.0
"""Maximum wait for a file descriptor: the broker closes the connections that take too many."""


def journal_directory(directory: Path) -> Path:
    """Return the journal of a data directory; the directory itself if it has none inside."""
    journal = directory / JOURNAL_NAME
    return journal if journal.is_dir() else directory


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed directory entries durable."""
    fd = open_when_possible(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o640) -> None:
    """Replace a file atomically: after a crash it has either the old or the new content.

    The file is handed over to the owner of its directory. Raises OSError with the file's name; the
    temporary file is removed in that case.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        fd = open_and_inherit_owner(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(fd, "wb", buffering=0) as file:
            write_at(file.fileno(), data, 0)
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    sync_directory(path.parent)


def inherit_owner(file: Path | int, directory: Path) -> None:
    """Give a new file, by path or descriptor, to the owner of the directory if the caller is root:
    the broker's user must be able to read files that root creates."""
    if os.geteuid() == 0:
        status = directory.stat()
        with suppress(OSError):  # a container may lack the capability or the user
            os.chown(file, status.st_uid, status.st_gid)


def open_and_inherit_owner(path: Path, flags: int, mode: int) -> int:
    """Open a file of a data directory and hand it over to the owner of its directory. A symbolic
    link is refused: root must not change the owner of a file elsewhere."""
    fd = open_when_possible(path, flags | os.O_NOFOLLOW, mode)
    inherit_owner(fd, path.parent)
    return fd


def open_when_possible(path: Path, flags: int, mode: int = 0) -> int:
    """Open a file. While the process has no descriptor left, because many clients connect at a
    time, wait for one; the main thread, which closes their connections, does not wait."""
    deadline = monotonic() + DESCRIPTOR_SECONDS
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            may_wait = current_thread() is not main_thread() and monotonic() < deadline
            if error.errno not in NO_DESCRIPTOR or not may_wait:
                raise
        sleep(LOCK_POLL_SECONDS)


@contextmanager
def lock_file(
    path: Path, *, mode: int, seconds: float = inf, busy: SluiceError | None = None
) -> Iterator[None]:
    """Hold an exclusive lock of a file, which is created for the owner of its directory.

    Waits for at most `seconds`, then raises `busy`.
    """
    fd = open_and_inherit_owner(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        deadline = monotonic() + seconds
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if busy is not None and monotonic() > deadline:
                    raise busy from None
                sleep(LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(fd)


def create_file(path: Path, mode: int) -> FileIO:
    """Create a file and open it for writing without a buffer. Raises FileExistsError."""
    return open(path, "xb", buffering=0, opener=partial(os.open, mode=mode))


def write_at(fd: int, data: bytes, offset: int) -> int:
    """Write all of `data` at `offset`, repeating short writes, and return the end offset."""
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, offset)
        if count <= 0:
            raise OSError("the operating system wrote nothing and reported no error")
        view = view[count:]
        offset += count
    return offset


def take_lock(directory: Path, *, create: bool = True) -> int:
    """Lock the directory and return the descriptor, which holds the lock until it is closed.

    Only a broker creates the lock file. Raises JournalLocked, or FileNotFoundError if the lock
    file does not exist and must not be created.
    """
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    fd = open_and_inherit_owner(directory / LOCK_NAME, flags, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise JournalLocked(
            f"{directory} is in use by process {holder}. Stop it, or choose another directory."
        ) from None
    holder_line = b"%d\n" % os.getpid()
    with suppress(OSError):  # on a full file system, the lock works without the process id
        os.pwrite(fd, holder_line, 0)  # before truncation, to reuse an allocated block
        os.ftruncate(fd, len(holder_line))
    return fd


@contextmanager
def lock_if_stopped(directory: Path) -> Iterator[bool]:
    """Yield True, with the directory locked, if no broker has the journal in it open."""
    with ExitStack() as stack:
        is_stopped = True
        try:
            stack.callback(os.close, take_lock(directory, create=False))
        except FileNotFoundError:
            pass  # no broker has ever opened it
        except JournalLocked:
            is_stopped = False
        yield is_stopped


def remove_temporary(directory: Path) -> None:
    """Remove temporary files that a crash left."""
    for path in directory.glob("*.tmp"):
        path.unlink()


class DurableEnd(NamedTuple):
    """Position up to which the journal is on disk."""

    segment: int
    offset: int
    sequence: int


class DurableFile:
    """File from which other processes learn how far they may read. 28 bytes, little-endian:

        u64 first sequence number of the segment, u64 offset in it, u64 sequence, u32 CRC-32

    The broker writes it after each fdatasync of the segment and never syncs the file itself. After
    a crash of the machine it may be behind the journal, but never ahead.
    """

    def __init__(self, directory: Path, space: DiskSpace) -> None:
        path = directory / DURABLE_NAME
        create = partial(open_and_inherit_owner, path, os.O_RDWR | os.O_CREAT, 0o640)
        self._fd = space.retry_with_reserve(create, ENTRY_BYTES, essential=True)

    def write(self, end: DurableEnd) -> None:
        """Publish the end. If the disk is full, the file keeps the previous end."""
        try:
            os.pwrite(self._fd, encode_durable(end), 0)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def close(self) -> None:
        os.close(self._fd)


def encode_durable(end: DurableEnd) -> bytes:
    """Return the content of the `durable` file for that end."""
    packed = DURABLE.pack(*end, 0)[:-4]
    return packed + crc32(packed).to_bytes(4, "little")


def read_durable(directory: Path) -> DurableEnd | None:
    """Return the published end, or None if the file is missing or damaged."""
    for _ in range(100):  # a concurrent write may be visible in part
        try:
            data = (directory / DURABLE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        if len(data) == DURABLE.size and crc32(data[:-4]) == DURABLE.unpack(data)[3]:
            return DurableEnd(*DURABLE.unpack(data)[:3])
    return None
