"""Lock and identity of the data directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from sluicemq.journal.segment import IDENTITY_BYTES, SUFFIX, damaged, list_segments
from sluicemq.journal.writer import write_whole
from sluicemq.model.errors import JournalLocked

IDENTITY_NAME: Final = "identity"
LOCK_NAME: Final = "lock"


def take_lock(directory: Path, *, create: bool = True) -> int:
    """Lock the directory and return the descriptor, which holds the lock until it is closed.

    Without `create`, return -1 if the lock file does not exist; only a broker creates it. Raises
    JournalLocked.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    try:
        fd = os.open(directory / LOCK_NAME, flags, 0o640)
    except FileNotFoundError:
        if create:
            raise
        return -1
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


def remove_temporary(directory: Path) -> None:
    """Remove temporary files that a crash left."""
    for name in os.listdir(directory):
        if name.endswith(".tmp"):
            (directory / name).unlink()


def read_identity(directory: Path) -> bytes | None:
    """Return the directory's identity of 16 bytes, None if it has none. Raises JournalDamaged."""
    path = directory / IDENTITY_NAME
    try:
        identity = bytes.fromhex(path.read_text("ascii"))
    except FileNotFoundError:
        if list_segments(directory):
            raise damaged(path, 0, f"the file is missing, but there are {SUFFIX} files") from None
        return None
    except ValueError:
        identity = b""
    if len(identity) != IDENTITY_BYTES:
        raise damaged(path, 0, "the file does not hold 32 hexadecimal digits")
    return identity


def make_identity(directory: Path) -> bytes:
    """Generate, store and return the identity of a new directory, 16 random bytes."""
    identity = os.urandom(IDENTITY_BYTES)
    write_whole(directory / IDENTITY_NAME, identity.hex().encode() + b"\n")
    return identity
