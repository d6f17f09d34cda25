"""A simulated file system of limited size, which replaces system calls of the journal.

It contains one directory, and tracks the allocated bytes of each file, which writes and
reservations increase and truncation and removal decrease. A call that needs more than is available
fails with ENOSPC, and statvfs reports the rest, so filling the disk requires no privileges.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

BLOCK = 4096


def blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


class SmallFilesystem:
    """`sizes` returns the size of the file system and the space used by other programs, in bytes;
    both may change at any time."""

    def __init__(self, directory: Path, sizes: Callable[[], tuple[int, int]]) -> None:
        self._directory = str(directory)
        self._sizes = sizes
        self._lock = threading.RLock()
        self._allocated: dict[int, int] = {}
        self._real = {
            name: getattr(os, name)
            for name in (
                "open",
                "pwrite",
                "posix_fallocate",
                "ftruncate",
                "unlink",
                "rename",
                "statvfs",
            )
        }

    def install(self) -> None:
        """Replace the system calls of this process."""
        for path in Path(self._directory).rglob("*"):
            if path.is_file():
                status = path.stat()
                self._allocated[status.st_ino] = blocks(status.st_blocks * 512)
        for name in self._real:
            setattr(os, name, getattr(self, name))

    def uninstall(self) -> None:
        for name, original in self._real.items():
            setattr(os, name, original)

    @property
    def used(self) -> int:
        with self._lock:
            return sum(self._allocated.values())

    @property
    def free(self) -> int:
        size, used_by_others = self._sizes()
        return max(0, size - used_by_others - self.used)

    def _is_here(self, path: Any) -> bool:
        return isinstance(path, str | Path) and str(path).startswith(self._directory)

    def _grow(self, fd: int, end: int) -> None:
        number = os.fstat(fd).st_ino
        before = self._allocated.get(number)
        if before is None:
            return  # a file elsewhere
        after = max(before, blocks(end))
        if after > before and after - before > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._allocated[number] = after

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        with self._lock:
            if not self._is_here(path):
                return int(self._real["open"](path, flags, mode, **more))
            if flags & os.O_CREAT and not os.path.exists(path) and self.free < BLOCK:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            fd = int(self._real["open"](path, flags, mode, **more))
            number = os.fstat(fd).st_ino
            if flags & os.O_TRUNC:
                self._allocated[number] = 0
            elif not flags & os.O_DIRECTORY:
                self._allocated.setdefault(number, 0)
            return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        with self._lock:
            self._grow(fd, offset + len(data))
        return int(self._real["pwrite"](fd, data, offset))

    def posix_fallocate(self, fd: int, offset: int, length: int) -> None:
        with self._lock:
            self._grow(fd, offset + length)
        self._real["posix_fallocate"](fd, offset, length)

    def ftruncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._real["ftruncate"](fd, length)
            number = os.fstat(fd).st_ino
            if number in self._allocated:
                self._allocated[number] = min(self._allocated[number], blocks(length))

    def _forget(self, path: Any) -> None:
        if self._is_here(path) and os.path.exists(path):
            self._allocated.pop(os.stat(path).st_ino, None)

    def unlink(self, path: Any, **more: Any) -> None:
        with self._lock:
            self._forget(path)
            self._real["unlink"](path, **more)

    def rename(self, source: Any, target: Any, **more: Any) -> None:
        with self._lock:
            self._forget(target)
            self._real["rename"](source, target, **more)

    def statvfs(self, path: Any) -> Any:
        status = self._real["statvfs"](path)
        if not self._is_here(path):
            return status
        free_blocks = self.free // BLOCK
        values = list(status)
        values[0] = values[1] = BLOCK
        values[2], values[3], values[4] = self._sizes()[0] // BLOCK, free_blocks, free_blocks
        return os.statvfs_result(values)


SIZES = Struct("<QQ")


def write_sizes(file: Path, size: int, others: int) -> None:
    """Set the sizes of a file system in another process."""
    with file.open("r+b" if file.exists() else "wb") as opened_file:
        opened_file.write(SIZES.pack(size, others))


def shared_sizes(file: Path) -> Callable[[], tuple[int, int]]:
    """Return a function that reads the sizes from a file, which another process may change."""
    with file.open("rb") as opened_file:
        content = mmap.mmap(opened_file.fileno(), SIZES.size, access=mmap.ACCESS_READ)

    def sizes() -> tuple[int, int]:
        size, others = SIZES.unpack(content[:])
        return size, others

    return sizes
