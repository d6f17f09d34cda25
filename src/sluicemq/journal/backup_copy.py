"""Rate-limited copying of a backup's files, with checksums and hard links to existing files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from sluicemq.journal.index import TRAILER_BYTES, decode_trailer
from sluicemq.journal.manifest import CHUNK_BYTES, JOURNAL_NAME, File
from sluicemq.journal.segment import damaged, segment_path
from sluicemq.journal.slots import Slots
from sluicemq.journal.writer import write_at
from sluicemq.model.errors import JournalError

LEASE_MS: Final = 60_000
RENEW_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.1
"""Interval at which a rate-limited copy checks for cancellation."""


class CopyProgress(NamedTuple):
    """Progress of a backup: bytes processed and total bytes, both including shared files."""

    done: int
    total: int


class BackupCancelled(JournalError):
    """The caller cancelled the backup."""


class CopyThrottle:
    """Progress reporter of a copy that also renews the slot's lease and limits the rate."""

    def __init__(
        self,
        total: int,
        rate: int,
        slots: Slots,
        slot: str,
        on_progress: Callable[[CopyProgress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._total = total
        self._done = self._read = 0
        self._rate = rate
        self._slots = slots
        self._slot = slot
        self._on_progress = on_progress
        self._cancelled = cancelled
        self._renewed = self._started = time.monotonic()

    def advance(self, count: int, *, read: bool = True) -> None:
        """Report `count` more bytes and sleep as long as the rate limit requires.

        `read` is False for shared files, which do not count towards the rate. Raises
        BackupCancelled, or RecordNotFound if the slot is gone.
        """
        self._done += count
        self._read += count if read else 0
        self._on_progress(CopyProgress(self._done, self._total))
        while True:
            if self._cancelled():
                raise BackupCancelled("the backup was given up")
            now = time.monotonic()
            if now - self._renewed > RENEW_SECONDS:
                self._slots.renew(self._slot, LEASE_MS)
                self._renewed = now
            ahead = self._started + self._read / self._rate - now if self._rate else 0.0
            if ahead <= 0:
                return
            time.sleep(min(ahead, LOOK_SECONDS))


class BackupCopy:
    """Creator of a backup's files; each method syncs its file before it returns."""

    def __init__(
        self,
        journal: Path,
        target: Path,
        previous: Path | None,
        earlier: Mapping[str, File],
        link: bool,
        throttle: CopyThrottle,
    ) -> None:
        self._journal = journal
        self._target = target
        self._previous = previous
        self._earlier = earlier
        self._link = link
        self._throttle = throttle
        self.copied = 0

    def store(self, path: str, data: bytes) -> File:
        """Create a file with that content and return its manifest entry."""
        fd = _new_file(self._target / path)
        try:
            write_at(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.copied += len(data)
        return File(path=path, bytes=len(data), sha256=sha256(data).hexdigest())

    def segment(self, first: int, size: int, sealed: bool) -> File:
        """Copy or link the first `size` bytes of a segment and return its manifest entry.

        `sealed` means that the segment is complete and no longer changes.
        """
        source = segment_path(self._journal, first)
        path = f"{JOURNAL_NAME}/{source.name}"
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if sealed:
                shared = self._share_earlier(fd, path, size)
                if shared is not None:
                    self._throttle.advance(size, read=False)
                    return shared
                if self._link and _linked(source, self._target / path):
                    digest = self._read(fd, -1, size, source, sealed)
                    return File(path=path, bytes=size, sha256=digest, sealed=sealed)
            out = _new_file(self._target / path)
            try:
                digest = self._read(fd, out, size, source, sealed)
                os.fsync(out)
            finally:
                os.close(out)
            self.copied += size
            return File(path=path, bytes=size, sha256=digest, sealed=sealed)
        finally:
            os.close(fd)

    def _share_earlier(self, fd: int, path: str, size: int) -> File | None:
        """Link the segment from the earlier backup and return its entry, or None if it differs.

        Number, size and trailer are compared; the trailer has a checksum of all bytes before it.
        """
        file = self._earlier.get(path)
        if self._previous is None or file is None or file.bytes != size:
            return None
        old = self._previous / path
        try:
            with old.open("rb") as opened:
                if os.fstat(opened.fileno()).st_size != size:
                    return None
                opened.seek(size - TRAILER_BYTES)
                if opened.read() != os.pread(fd, TRAILER_BYTES, size - TRAILER_BYTES):
                    return None
        except FileNotFoundError:
            return None
        return file if _linked(old, self._target / path) else None

    def _read(self, fd: int, out: int, size: int, source: Path, sealed: bool) -> str:
        """Read `size` bytes, write them to `out` unless it is -1, and return their SHA-256.

        Raises JournalDamaged if the checksum in a sealed segment's trailer does not match.
        """
        digest = sha256()
        crc = done = 0
        last = b""
        while done < size:
            data = os.pread(fd, min(CHUNK_BYTES, size - done), done)
            if not data:
                raise damaged(source, done, f"the segment ends before byte {size} of it")
            if out >= 0:
                write_at(out, data, done)
            digest.update(data)
            if sealed:
                crc, last = _crc_but_trailer(crc, last, data)
            done += len(data)
            self._throttle.advance(len(data))
        if sealed:
            trailer = decode_trailer(last)
            if trailer is None or trailer[2] != crc:
                raise damaged(source, 0, "the bytes do not match their CRC")
        return digest.hexdigest()


def _crc_but_trailer(crc: int, kept: bytes, data: bytes) -> tuple[int, bytes]:
    """Return the CRC without the last bytes, which may be the trailer, and these bytes."""
    data = kept + data
    return crc32(data[:-TRAILER_BYTES], crc), data[-TRAILER_BYTES:]


def _linked(source: Path, target: Path) -> bool:
    """Create a hard link. Return False if the file system does not permit it."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
