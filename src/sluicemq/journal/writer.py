"""The thread that writes, and what it writes: segment files and the `durable` file.

The owner's thread submits jobs and never touches a disk; this thread runs them one after the
other and reports each back. After the first failure no job is run any more: an operating system
that failed an fsync once may report the next one as a success, with the data lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from sluicemq.journal.format import (
    GROUP_START,
    HEADER_BYTES,
    UNIT_END,
    RecordType,
    encode_record,
)
from sluicemq.journal.index import build_index, encode_trailer
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from sluicemq.model.destination import Address

Work = Callable[[], None]
Done = Callable[[], None]

JOIN_PARTS: Final = 3000
"""Buffers joined per write. One write of joined buffers takes 0.6 of the time of a writev."""

DURABLE_NAME: Final = "durable"
DURABLE: Final = Struct("<QQQI")


def nothing() -> None:
    """Nothing waits for this job."""


class Writer:
    """Runs jobs on a thread of its own.

    notify   schedules a call on the owner's thread; it may be called from any
    failed   called there, once, with what went wrong
    """

    def __init__(
        self,
        notify: Callable[[Callable[[], None]], object],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.outstanding = 0
        self._notify = notify
        self._failed = failed
        self._jobs: SimpleQueue[tuple[Work, Done] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[Done, BaseException | None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def submit(self, work: Work, done: Done) -> None:
        """Run `work` on the writer's thread, then `done` on the owner's."""
        self.outstanding += 1
        self._jobs.put((work, done))

    def collect(self) -> None:
        """Run the `done` of all finished jobs."""
        with suppress(Empty):
            while True:
                self._finish(*self._results.get_nowait())

    def wait(self) -> None:
        """Wait for one job and run its `done`."""
        self._finish(*self._results.get())

    def stop(self) -> None:
        """Let the thread end after the jobs it has."""
        self._jobs.put(None)
        self._thread.join()

    def _finish(self, done: Done, error: BaseException | None) -> None:
        self.outstanding -= 1
        if error is None:
            done()
        else:
            self._failed(error)

    def _run(self) -> None:
        failure: BaseException | None = None
        while (job := self._jobs.get()) is not None:
            work, done = job
            if failure is None:
                try:
                    work()
                except BaseException as error:
                    failure = error
            self._results.put((done, failure))
            with suppress(RuntimeError):  # the owner's event loop is closed: `wait` gets it
                self._notify(self.collect)


class DurableEnd(NamedTuple):
    """How far the journal is on disk."""

    segment: int
    offset: int
    sequence: int


class DurableFile:
    """Tells other processes how far they may read. 28 bytes, little-endian:

        u64 first sequence number of the segment, u64 offset in it, u64 sequence, u32 CRC-32

    It is written after each fdatasync of the segment and never synced itself: after a crash of
    the machine it may be behind, but never ahead.
    """

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / DURABLE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, end: DurableEnd) -> None:
        packed = DURABLE.pack(*end, 0)[:-4]
        os.pwrite(self._fd, packed + crc32(packed).to_bytes(4, "little"), 0)

    def close(self) -> None:
        os.close(self._fd)


def read_durable(directory: Path) -> DurableEnd | None:
    """The published end, or None when there is none that is intact."""
    for _ in range(100):  # a write may be seen half done
        try:
            data = (directory / DURABLE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        if len(data) == DURABLE.size and crc32(data[:-4]) == DURABLE.unpack(data)[3]:
            return DurableEnd(*DURABLE.unpack(data)[:3])
    return None


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file so that after a crash it is the old one or the new one, whole."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        write_at(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(path.parent)


def write_at(fd: int, data: bytes, offset: int) -> int:
    """Write everything, however often the system writes less. Returns the end."""
    written = os.pwrite(fd, data, offset)
    if written == len(data):
        return offset + written
    view = memoryview(data)
    while written < len(data):
        count = os.pwrite(fd, view[written:], offset + written)
        if count <= 0:
            raise OSError("the system wrote nothing and gave no reason")
        written += count
    return offset + written


class SegmentFile:
    """The segment that is written. Only the writer's thread calls its methods, except `close`.

    end      bytes written
    crc      CRC-32 of them, which the trailer will need
    heads    headers of all records, which the index will need
    records  how many there are, once it is sealed
    """

    __slots__ = (
        "_directory",
        "_header",
        "_preallocate",
        "crc",
        "end",
        "fd",
        "first",
        "heads",
        "records",
    )

    def __init__(self, directory: Path, header: SegmentHeader, preallocate: int) -> None:
        """`preallocate` bytes are reserved on disk when it is created."""
        self._directory = directory
        self._header = header
        self._preallocate = preallocate
        self.first = header.first
        self.end = 0
        self.crc = 0
        self.heads = bytearray()
        self.records = 0
        self.fd = -1

    @classmethod
    def reopen(cls, directory: Path, header: SegmentHeader, end: int, heads: bytes) -> SegmentFile:
        """One that a crash left behind: cut to `end` bytes, ready to be sealed."""
        file = cls(directory, header, 0)
        file.fd = os.open(segment_path(directory, header.first), os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(file.fd, end)
        os.fsync(file.fd)
        while file.end < end:
            data = os.pread(file.fd, 1 << 20, file.end)
            file.crc = crc32(data, file.crc)
            file.end += len(data)
        file.heads += heads
        return file

    def create(self) -> None:
        """Under a temporary name first, so that the real one never lacks a header."""
        path = segment_path(self._directory, self.first)
        temporary = path.with_name(path.name + ".tmp")
        self.fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        header = encode_segment_header(self._header)
        self.end = write_at(self.fd, header, 0)
        self.crc = crc32(header)
        if self._preallocate:
            os.posix_fallocate(self.fd, 0, self._preallocate)
        os.fsync(self.fd)
        os.rename(temporary, path)
        sync_directory(self._directory)

    def write(self, parts: list[bytes]) -> None:
        """Append records, each as header, meta with body, padding; on disk when it returns."""
        self.heads += b"".join(parts[::3])
        for start in range(0, len(parts), JOIN_PARTS):
            data = b"".join(parts[start : start + JOIN_PARTS])
            self.crc = crc32(data, self.crc)
            self.end = write_at(self.fd, data, self.end)
        os.fdatasync(self.fd)

    def seal(self, sequence: int, names: Mapping[int, Address]) -> None:
        """Add index and trailer. `sequence` is the INDEX record's own."""
        heads = bytes(self.heads)
        record = encode_record(
            RecordType.INDEX,
            sequence,
            time.time_ns() // 1000,
            build_index(heads, SEGMENT_HEADER_BYTES, names),
            flags=UNIT_END | GROUP_START,
        )
        data = b"".join(record)
        crc = crc32(data, self.crc)
        self.records = len(heads) // HEADER_BYTES
        trailer = encode_trailer(self.end, self.records, crc)
        self.end = write_at(self.fd, data + trailer, self.end)
        os.ftruncate(self.fd, self.end)
        os.fsync(self.fd)
        self.heads = bytearray()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
