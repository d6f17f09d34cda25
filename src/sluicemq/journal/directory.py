"""The data directory itself: who holds it, and which one it is."""

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
    """A descriptor that holds the directory until it is closed. Raises JournalLocked.

    Without `create` it is -1 where nobody has ever held it: the file is the broker's to make.
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
    with suppress(OSError):  # on a full file system the lock holds without it
        os.pwrite(fd, holder_line, 0)  # in the block that is there, if there is one
        os.ftruncate(fd, len(holder_line))
    return fd


def remove_temporary(directory: Path) -> None:
    """Files that a crash kept from getting their name."""
    for name in os.listdir(directory):
        if name.endswith(".tmp"):
            (directory / name).unlink()


def read_identity(directory: Path) -> bytes | None:
    """The directory's own 16 bytes; None if it has none yet. Raises JournalDamaged."""
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
    """Draw the 16 bytes of a new directory, and keep them."""
    identity = os.urandom(IDENTITY_BYTES)
    write_whole(directory / IDENTITY_NAME, identity.hex().encode() + b"\n")
    return identity
