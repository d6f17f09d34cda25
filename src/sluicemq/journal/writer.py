"""Writer threads of the journal, and the segment files that they write.

The owner's thread submits jobs; it writes only small groups itself, on a fast disk. The group
thread writes the other groups, which clients wait for. The background thread does the work that is
not urgent: it writes the index and trailer of full segments, writes snapshots and removes segments.
Each thread runs its jobs in order and reports the completion of each job. After the first failure
of either thread, no further job runs and jobs that are not yet reported count as failed: after a
failed fsync, the operating system may report success for the next one although data is lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final
from zlib import crc32

from sluicemq.journal.files import open_and_inherit_owner, sync_directory, write_at
from sluicemq.journal.format import (
    GROUP_START,
    HEADER_BYTES,
    UNIT_END,
    RecordType,
    encode_record,
)
from sluicemq.journal.segment import (
    INDEX_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    build_index,
    encode_segment_header,
    encode_trailer,
    segment_path,
)
from sluicemq.journal.space import ENTRY_BYTES, NO_SPACE, DiskSpace, ignore
from sluicemq.model.destination import Address

Work = Callable[[], None]
Done = Callable[[], None]
Jobs = SimpleQueue[tuple[Work, Done] | None]

JOIN_PARTS: Final = 3000
"""Buffers joined per write. One write of joined buffers takes 0.6 of the time of a writev."""

INDEX_SLACK: Final = 4096
"""Bytes reserved for the names in a segment's index, and its trailer."""

PAUSE: Final = 0.0005
"""Seconds to sleep so that another thread can acquire the interpreter lock.

At 50,000 messages/s the 99th percentile of the latency is 7 ms with this, 9 ms with 0: both of the
other threads may be waiting for the interpreter lock.
"""


class JournalWriter:
    """Runner of jobs on two dedicated threads.

    notify      schedules a call on the owner's thread; may be called from any thread
    on_failure  called on the owner's thread with the first error, once for every failed job
    """

    def __init__(
        self,
        notify: Callable[[Callable[[], None]], object],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.outstanding = 0
        self._notify = notify
        self._on_failure = on_failure
        self._failure: BaseException | None = None
        self._group_jobs: Jobs = SimpleQueue()
        self._background_jobs: Jobs = SimpleQueue()
        self._results: SimpleQueue[Done] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(jobs,), name=name, daemon=True)
            for jobs, name in (
                (self._group_jobs, "journal"),
                (self._background_jobs, "journal-background"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def run(self, work: Work, on_done: Done) -> None:
        """Run the group job `work` on the calling thread, then `on_done`.

        The caller ensures that no group is outstanding.
        """
        self.outstanding += 1
        self._attempt(work)
        self._finish(on_done)

    def submit(self, work: Work, on_done: Done) -> None:
        """Run `work` on the group thread, then `on_done` on the owner's thread."""
        self.outstanding += 1
        self._group_jobs.put((work, on_done))

    def defer(self, work: Work, on_done: Done) -> None:
        """Run `work` on the background thread after earlier deferred jobs, then `on_done`."""
        self.outstanding += 1
        self._background_jobs.put((work, on_done))

    def collect(self) -> None:
        """Run the `on_done` of all finished jobs."""
        with suppress(Empty):
            while True:
                self._finish(self._results.get_nowait())

    def wait(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for one job to finish and run its `on_done`."""
        with suppress(Empty):
            self._finish(self._results.get(timeout=timeout))

    def stop(self) -> None:
        """Stop both threads after their queued jobs and join them."""
        self._group_jobs.put(None)
        self._background_jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _attempt(self, work: Work) -> None:
        if self._failure is None:
            try:
                work()
            except BaseException as error:
                self._failure = error

    def _finish(self, on_done: Done) -> None:
        self.outstanding -= 1
        if self._failure is None:
            on_done()
        else:
            self._on_failure(self._failure)

    def _run(self, jobs: Jobs) -> None:
        while (job := jobs.get()) is not None:
            work, on_done = job
            self._attempt(work)
            self._results.put(on_done)
            with suppress(RuntimeError):  # owner's event loop is closed: `wait` collects
                self._notify(self.collect)


class SegmentFile:
    """Segment that is not sealed. The writer threads call its methods: `write` for each group,
    then `seal` once; `close` when neither is running.

    end      bytes written
    crc      CRC-32 of these bytes, for the trailer
    heads    headers of all records, for the index
    records  number of records, set by `seal`
    """

    __slots__ = (
        "_directory",
        "_header",
        "_on_sync",
        "_reserve_step",
        "_reserved",
        "_space",
        "crc",
        "end",
        "fd",
        "heads",
        "records",
    )

    def __init__(
        self,
        directory: Path,
        header: SegmentHeader,
        space: DiskSpace,
        preallocate: int = 0,
        on_sync: Callable[[float], None] = ignore,
    ) -> None:
        """Describe a segment; the first `write` creates its file.

        space        provides disk space when a write fails for lack of it
        preallocate  bytes to reserve at a time; reservation stops if the file system does not
                     support it
        on_sync      called with the duration of each fdatasync in seconds, on the thread that
                     called it
        """
        self._directory = directory
        self._header = header
        self._reserve_step = preallocate
        self._on_sync = on_sync
        self._space = space
        self._reserved = 0
        self.end = 0
        self.crc = 0
        self.heads = bytearray()
        self.records = 0
        self.fd = -1

    @classmethod
    def reopen(
        cls,
        directory: Path,
        header: SegmentHeader,
        end: int,
        crc: int,
        heads: bytes,
        space: DiskSpace,
    ) -> SegmentFile:
        """Open a segment left by a crash, truncate it to `end` bytes and prepare it for `seal`.

        `crc` is the CRC-32 of these bytes, `heads` are the headers of its records.
        """
        file = cls(directory, header, space)
        file.fd = os.open(segment_path(directory, header.first), os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(file.fd, end)
        os.fsync(file.fd)
        file.end = end
        file.crc = crc
        file.heads += heads
        return file

    def write(self, parts: list[bytes], sync: bool) -> None:
        """Append records, each as three parts: header, meta with body, padding.

        With `sync`, these and all earlier records are on disk when the method returns. The first
        group is synced before the file gets its final name, so a named segment always has a
        header, and the method then syncs the directory. If the disk is full, `space` decides
        whether the method waits or raises OSError. A failed fdatasync is never repeated.
        """
        if self.fd >= 0:
            self._append(parts, sync)
            return
        temporary = self._directory / f"{self._header.first:020d}.tmp"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        create = partial(open_and_inherit_owner, temporary, flags, 0o640)
        self.fd = self._space.retry_with_reserve(create, ENTRY_BYTES)
        self._append_data(encode_segment_header(self._header))
        self._append(parts, True)
        path = segment_path(self._directory, self._header.first)
        self._space.retry_with_reserve(partial(os.rename, temporary, path), ENTRY_BYTES)
        sync_directory(self._directory)

    def _append(self, parts: list[bytes], sync: bool) -> None:
        self.heads += b"".join(parts[::3])
        for start in range(0, len(parts), JOIN_PARTS):
            self._append_data(b"".join(parts[start : start + JOIN_PARTS]))
        if sync:
            started = time.perf_counter()
            os.fdatasync(self.fd)
            self._on_sync(time.perf_counter() - started)

    def _append_data(self, data: bytes) -> None:
        """Append `data`, after reserving space for it and for the segment's index."""
        needed_bytes = self.end + len(data) + self._index_bytes
        if self._reserve_step and needed_bytes > self._reserved:
            self._reserve(needed_bytes)
        self._write(data)

    def _write(self, data: bytes, *, essential: bool = False) -> None:
        """Write `data` at the end; `essential` as of `DiskSpace.retry_with_reserve`."""
        write = partial(write_at, self.fd, data, self.end)
        self.end = self._space.retry_with_reserve(write, len(data), essential=essential)
        self.crc = crc32(data, self.crc)

    @property
    def _index_bytes(self) -> int:
        """Maximum size of index and trailer for the current records, in bytes."""
        return len(self.heads) // HEADER_BYTES * INDEX_BYTES + INDEX_SLACK

    def fits(self, end: int, records: int) -> bool:
        """Return whether the next group, of `records` records up to `end`, needs no other space
        than this file, with its index, or the reserve has."""
        if not self._reserve_step:
            return self._space.reserve_covers(end - self.end)
        return end + self._index_bytes + records * INDEX_BYTES <= self._reserved

    def _reserve(self, needed_bytes: int) -> None:
        """Reserve `needed_bytes` from the start of the file, plus one step if space permits."""
        start = self._reserved
        step = self._reserve_step
        try:
            os.posix_fallocate(self.fd, start, needed_bytes - start + step)
        except OSError as error:
            if error.errno not in NO_SPACE:
                self._reserve_step = 0  # not supported: the write itself reports a full disk
                return
            self._space.report_no_space()
            step = 0
            size = needed_bytes - start
            action = partial(os.posix_fallocate, self.fd, start, size)
            self._space.retry_with_reserve(action, size)
        self._reserved = needed_bytes + step

    def seal(self, sequence: int, names: Mapping[int, Address]) -> None:
        """Append index and trailer. `sequence` is the number of the INDEX record."""
        heads = self.heads
        record = encode_record(
            RecordType.INDEX,
            sequence,
            time.time_ns() // 1000,
            build_index(heads, SEGMENT_HEADER_BYTES, names, partial(time.sleep, PAUSE)),
            flags=UNIT_END | GROUP_START,
        )
        offset = self.end
        self.records = len(heads) // HEADER_BYTES
        self.heads = bytearray()
        for part in record:
            self._write(part, essential=True)
        self._write(encode_trailer(offset, self.records, self.crc), essential=True)
        os.ftruncate(self.fd, self.end)
        os.fsync(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
