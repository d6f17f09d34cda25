"""Run the unchanged `sluicemq` program on a simulated faulty machine.

    python machine.py FAULT[,FAULT …] serve …

    volatile     unsynced data is lost with the process, as in a power failure
    slow:SEED    one sync in four takes 200 to 500 ms
    eio:N        as volatile; sync number N fails with EIO, its data is lost, and later syncs
                 succeed, which is the behaviour of Linux
    space:FILE   the data directory, FILE's parent, is on a file system of limited size; FILE has
                 its size and the space used by other programs, see filesystem.py
    clock:FILE   the wall clock is ahead by the milliseconds in FILE (8 bytes, signed)
    objects:FILE  on SIGUSR1, writes the number of objects of each class to FILE as JSON

A sync is an fsync or fdatasync. Only segments, which are written with pwrite, are volatile; file
names are not. `durable` is never synced and is written through, because its content must not
matter.
"""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.filesystem import SmallFilesystem, shared_sizes

SLOW_SHARE = 0.25
SLOW_SECONDS = (0.2, 0.5)
VOLATILE = (".segment", ".tmp")


class FaultyDisk:
    """Replaces the system calls that the journal writes with."""

    def __init__(self) -> None:
        self.volatile = False
        self.failing = 0
        self.rng: random.Random | None = None
        self._syncs = 0
        self._lock = threading.Lock()
        self._unsynced: dict[int, dict[int, bytes]] = {}
        self._pwrite = os.pwrite
        self._pread = os.pread
        self._close = os.close

    def install(self) -> None:
        os.pwrite = self.pwrite
        os.pread = self.pread
        os.close = self.close
        os.fsync = self._syncing(os.fsync)
        os.fdatasync = self._syncing(os.fdatasync)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if not self.volatile or not os.readlink(f"/proc/self/fd/{fd}").endswith(VOLATILE):
            return self._pwrite(fd, data, offset)
        with self._lock:
            self._unsynced.setdefault(fd, {})[offset] = bytes(data)
        return len(data)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read a file including unsynced data written by this descriptor."""
        with self._lock:
            data = bytearray(self._pread(fd, length, offset))
            for start, part in self._unsynced.get(fd, {}).items():
                begin, end = max(start, offset), min(start + len(part), offset + length)
                if begin < end:
                    data += bytes(max(0, end - offset - len(data)))
                    data[begin - offset : end - offset] = part[begin - start : end - start]
        return bytes(data)

    def close(self, fd: int) -> None:
        """Close a descriptor. Another file may have its number next, but not its unsynced data, of
        which this disk loses what was written by a descriptor that is closed without a sync."""
        with self._lock:
            self._unsynced.pop(fd, None)
            self._close(fd)

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            rng = self.rng
            if rng is not None and rng.random() < SLOW_SHARE:
                time.sleep(rng.uniform(*SLOW_SECONDS))
            with self._lock:
                self._syncs += 1
                unsynced = self._unsynced.pop(fd, {})
                if self._syncs == self.failing:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                # with the lock, so that no read finds the data in neither place
                for offset, data in unsynced.items():
                    position = 0
                    while position < len(data):
                        position += self._pwrite(fd, data[position:], offset + position)
            real(fd)

        return sync


def set_clock(file: Path) -> None:
    """Let the wall clock follow a file from now on."""
    with file.open("rb") as opened_file:
        offset = mmap.mmap(opened_file.fileno(), 8, access=mmap.ACCESS_READ)
    true_ns = time.time_ns

    def time_ns() -> int:
        return true_ns() + int.from_bytes(offset[:8], "little", signed=True) * 1_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def count_on_request(file: Path) -> None:
    """Install a SIGUSR1 handler that counts the objects known to the garbage collector."""

    def count(*_: object) -> None:
        gc.collect()
        kinds = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())
        new_file = file.with_suffix(".new")
        new_file.write_text(json.dumps(kinds))
        new_file.rename(file)

    signal.signal(signal.SIGUSR1, count)


def main() -> None:
    disk = FaultyDisk()
    for fault in sys.argv[1].split(","):
        name, _, argument = fault.partition(":")
        if name == "clock":
            set_clock(Path(argument))
        elif name == "objects":
            count_on_request(Path(argument))
        elif name == "space":
            file = Path(argument)
            SmallFilesystem(file.parent, shared_sizes(file)).install()
        elif name == "slow":
            disk.rng = random.Random(int(argument))
        elif name in ("volatile", "eio"):
            disk.volatile = True
            disk.failing = int(argument or 0)
        else:
            raise SystemExit(f"there is no fault {fault!r}")
    disk.install()

    from sluicemq.cli.main import main as sluicemq  # after `time` and `os` have been changed

    sys.exit(sluicemq(sys.argv[2:]))


if __name__ == "__main__":
    main()
