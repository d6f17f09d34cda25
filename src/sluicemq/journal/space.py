"""Free space of the file system that has the journal, and the reserve.

                    free < threshold,                a write waits for space
                    or a write fails with ENOSPC     that the reserve has not
         ENOUGH ─────────────────────────────> LOW ────────────────────────> EXHAUSTED
            <─────────────────────────────────     <─────────────────────────
                    free >= resume,                  the write has been done, and
                    and the reserve is whole         there is some space again

Space is measured once a second (`measure`, `poll`), not with every write. Segments reserve space
ahead of the data, so a full file system is noticed before a record finds no space.

The reserve is a preallocated file. It is shortened when a write finds no space, by no more than
that write needs (at least RELEASE_BYTES); the write is then repeated. Groups of records may use
three quarters of it. The last quarter is for indexes and snapshots, without which no segment can be
removed. `can_restore_reserve` is True once the reserve can be made whole again.

Other processes cannot take the space reserved for a segment, but they can take the space that the
reserve has just released. Then more is released, until nothing is left; no data is lost by that.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from sluicemq.model.errors import JournalError, JournalFailed

ResultT = TypeVar("ResultT")

RESERVE_NAME: Final = "reserve"
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that free space resolves; they are not failures of the disk."""
RELEASE_BYTES: Final = 1 << 20
"""Minimum bytes released from the reserve at a time."""
ESSENTIAL_SHARE: Final = 4
"""Divisor: a quarter of the reserve is kept for essential writes: indexes and snapshots."""
THRESHOLD_SHARE: Final = 4
"""Divisor: the threshold is at most a quarter of the file system."""
RESERVE_SHARE: Final = 16
"""Divisor: the reserve is at most a sixteenth of the file system."""
RETRY_SECONDS: Final = 1.0
"""Interval between two attempts of a write that waits for space."""
ENTRY_BYTES: Final = 4096
"""Maximum space of a new file or directory entry."""


class SpaceLevel(IntEnum):
    """State of the free space, as drawn in the module.

    LOW: persistent messages are refused. EXHAUSTED: nothing is delivered.
    """

    ENOUGH = 0
    LOW = 1
    EXHAUSTED = 2


class SpaceReport(NamedTuple):
    """State of the file system, in bytes.

    free, size    of the file system, for this user
    threshold     below it persistent messages are refused
    resume        from this value on they are accepted again
    reserve       left of the reserve
    reserve_size  of the whole reserve
    """

    level: SpaceLevel
    free: int = 0
    size: int = 0
    threshold: int = 0
    resume: int = 0
    reserve: int = 0
    reserve_size: int = 0


class DiskSpace:
    """Space of the journal's file system, with the reserve.

    `poll`, `report` and `close` belong to the owner's thread; `measure`, `retry_with_reserve`
    and `restore_reserve` may be called on any thread, because file systems may hang.

    low       True while persistent messages must be refused
    exhausted True while a write waits for space that even the reserve lacks
    """

    def __init__(
        self,
        directory: Path,
        low_bytes: int,
        low_percent: float,
        reserve_bytes: int,
        notify: Callable[[Callable[[], None]], object],
        *,
        wait_for_space: bool,
    ) -> None:
        """Measure the space and open the reserve. Raises OSError.

        The threshold is the larger of `low_bytes` and `low_percent` of the file system;
        `reserve_bytes` is the size of the reserve. 0 = none.

        With `wait_for_space` a write that finds no space waits for it, except on this thread.
        Without, it fails, and an existing reserve is used, but none is created or made whole.
        """
        self.low = False
        self._on_change: Callable[[SpaceReport], None] = ignore
        self._directory = directory
        self._low_bytes = low_bytes
        self._low_percent = low_percent
        self._reserve_bytes = reserve_bytes
        self._notify = notify
        self._waits_for_space = wait_for_space
        self._owner = threading.get_ident()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        """Guards the fields below."""
        self.exhausted = False
        self._waiting = 0
        self._free = self._size = 0
        self._reported = SpaceLevel.ENOUGH
        self._fd = -1
        self._reserve_left = 0
        self.measure()
        self._open_reserve()
        if self.can_restore_reserve:
            self.restore_reserve()
        self._update()

    def _open_reserve(self) -> None:
        path = self._directory / RESERVE_NAME
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if self._waits_for_space else 0)
        try:
            self._fd = os.open(path, flags, 0o640)
        except OSError as error:
            if error.errno not in (errno.ENOENT, *NO_SPACE):
                raise
            return
        self._reserve_left = os.fstat(self._fd).st_size
        if self._reserve_left > self._reserve_size:  # the setting is smaller than before
            os.ftruncate(self._fd, self._reserve_size)
            self._reserve_left = self._reserve_size

    def observe(self, on_change: Callable[[SpaceReport], None]) -> None:
        """Call `on_change` on the owner's thread with each change of the level."""
        self._on_change = on_change

    # --- measuring ---------------------------------------------------------------------------

    def measure(self) -> None:
        """Measure the free space; keep the last values on an error."""
        try:
            file_system = os.statvfs(self._directory)
        except OSError:
            return  # the level stays; a write will fail if something is wrong
        self._free = file_system.f_bavail * file_system.f_frsize
        self._size = file_system.f_blocks * file_system.f_frsize

    @property
    def _threshold(self) -> int:
        share = int(self._size * self._low_percent / 100)
        return min(max(self._low_bytes, share), self._size // THRESHOLD_SHARE)

    @property
    def _resume_threshold(self) -> int:
        """Space at which LOW ends: a fourth above the threshold, as hysteresis."""
        return self._threshold + self._threshold // 4

    @property
    def _reserve_size(self) -> int:
        return min(self._reserve_bytes, self._size // RESERVE_SHARE)

    @property
    def is_using_reserve(self) -> bool:
        """True while part of the reserve is in use."""
        return self._waits_for_space and self._reserve_left < self._reserve_size

    @property
    def can_restore_reserve(self) -> bool:
        """True if there is space to restore the reserve, and the same amount in addition."""
        gap = self._reserve_size - self._reserve_left
        return self._waits_for_space and gap > 0 and self._free >= gap + self._reserve_size

    def poll(self) -> None:
        """Apply the last measurement, and report the level if it has changed."""
        self._update()
        self.report()

    def _update(self) -> None:
        with self._lock:
            if not self.low:
                self.low = self._free < self._threshold
            elif not self.is_using_reserve and self._free >= self._resume_threshold:
                self.low = self.exhausted = False
            if self.exhausted and not self._waiting:
                floor = self._reserve_size // ESSENTIAL_SHARE
                self.exhausted = max(self._free, self._reserve_left - floor) < RELEASE_BYTES

    def state(self) -> SpaceReport:
        """Return the state at the last measurement."""
        level = SpaceLevel.LOW if self.low else SpaceLevel.ENOUGH
        return SpaceReport(
            SpaceLevel.EXHAUSTED if self.exhausted else level,
            self._free,
            self._size,
            self._threshold,
            self._resume_threshold,
            self._reserve_left,
            self._reserve_size,
        )

    def report(self) -> None:
        """Call the observer if the level is not the one reported last."""
        state = self.state()
        if state.level != self._reported:
            self._reported = state.level
            self._on_change(state)

    # --- writing -----------------------------------------------------------------------------

    def retry_with_reserve(
        self,
        action: Callable[[], ResultT],
        size: int,
        *,
        essential: bool = False,
        wait: bool = True,
    ) -> ResultT:
        """Run `action`; while it finds no space, release at least `size` bytes of the reserve and
        repeat it. `action` must be repeatable.

        With `essential`, the last quarter of the reserve is used, too. If nothing is left, it waits
        for space with `wait` and fails without. Raises OSError.
        """
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                if not self._release(size, essential) and not (wait and self._wait()):
                    raise

    def report_no_space(self) -> None:
        """Handle a refused reservation: there is no space, even if the last poll found some."""
        if not self.low:
            self.low = True
            self._notify(self.report)

    def _release(self, size: int, essential: bool) -> bool:
        """Shorten the reserve. Return False if nothing is left."""
        self.report_no_space()
        with self._lock:
            floor = 0 if essential else self._reserve_size // ESSENTIAL_SHARE
            released_bytes = min(max(size, RELEASE_BYTES), self._reserve_left - floor)
            if released_bytes <= 0:
                return False
            os.ftruncate(self._fd, self._reserve_left - released_bytes)
            self._reserve_left -= released_bytes
        return True

    def reserve_covers(self, size: int) -> bool:
        """Return whether a write of `size` bytes needs not wait: the reserve has enough for it, or
        no write waits."""
        floor = self._reserve_size // ESSENTIAL_SHARE
        return not self._waits_for_space or self._reserve_left - floor >= max(size, RELEASE_BYTES)

    def _wait(self) -> bool:
        """Wait RETRY_SECONDS for space. Return False if this thread must not wait."""
        is_owner = threading.get_ident() == self._owner
        if not self._waits_for_space or is_owner or self._closing.is_set():
            return False
        with self._lock:
            self._waiting += 1
            self.exhausted = True
        with suppress(RuntimeError):  # the owner's event loop is closed
            self._notify(self.report)
        self._closing.wait(RETRY_SECONDS)
        with self._lock:
            self._waiting -= 1
        return True

    def restore_reserve(self) -> None:
        """Make the reserve whole, if there is space for it."""
        with self._lock:
            if self._fd < 0:
                self._open_reserve()
            size = self._reserve_size
            if self._fd < 0 or not size:
                return
            try:
                os.posix_fallocate(self._fd, 0, size)
            except OSError as error:
                if error.errno in NO_SPACE:
                    return
                size = 0  # this file system cannot preallocate
                self._reserve_bytes = 0
            self._reserve_left = size
        self.measure()

    def close(self) -> None:
        """End all waiting: from now on, a write that finds no space fails."""
        self._closing.set()

    def close_reserve(self) -> None:
        """Close the reserve after the last write."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def ignore(*arguments: object) -> None:
    """Do nothing; the default of callbacks."""


@contextmanager
def convert_disk_errors(directory: Path) -> Iterator[None]:
    """Convert an OSError of an open file to an error with the directory and the remedy:
    JournalError if the disk is full, else JournalFailed. Errors that name a path stay."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise JournalError(
                f"the journal in {directory} cannot be opened: {error}, and there is no reserve, "
                "or it is used up. Free space on this file system, then start again; nothing is "
                "lost."
            ) from error
        if error.filename is not None:
            raise
        raise JournalFailed(
            f"the journal in {directory} cannot be opened: {error}. Check the disk before the next "
            "start; what was acknowledged is safe."
        ) from error
