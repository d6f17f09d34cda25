"""Backup of a journal from which a broker can start, taken while another process writes it.

A journal consists of its newest snapshot and the segments since then. A copy is valid if

- the snapshot is no later than the end of the copied segments;
- the segments contain every record that is live in the snapshot, and all records after it.

The order of steps ensures this. First, the backup creates a slot, with a lease in case this process
is killed: from then on the broker removes no segment. Second, it reads the snapshot: segments
removed earlier were removed by a snapshot that is not newer. Third, it reads the durable end, which
is never behind a named snapshot. Bytes before that end never change, so they are copied while the
broker continues to append.

The result is a prefix of the records that the broker has confirmed, and contains only whole units.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from sluicemq import __version__
from sluicemq.journal.files import (
    DURABLE_NAME,
    JOURNAL_NAME,
    DurableEnd,
    create_file,
    encode_durable,
    lock_if_stopped,
    read_durable,
    sync_directory,
    write_at,
    write_atomically,
)
from sluicemq.journal.format import HEADER_BYTES, sequence_at
from sluicemq.journal.segment import (
    IDENTITY_NAME,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    DamagedFile,
    crc_before_trailer,
    decode_trailer,
    find_tail,
    list_segments,
    open_segment,
    read_identity,
    segment_path,
)
from sluicemq.journal.slots import Slots, now_ms
from sluicemq.journal.snapshot import (
    Snapshot,
    check_segments,
    encode_snapshot,
    newest_snapshot,
    snapshot_path,
)
from sluicemq.journal.stored_backup import (
    CHUNK_BYTES,
    File,
    Manifest,
    read_manifest,
    write_manifest,
)
from sluicemq.model.errors import JournalError, RecordNotFound

LEASE_MS: Final = 60_000
RENEW_SECONDS: Final = 10.0
CHECK_SECONDS: Final = 0.1
"""Interval at which a rate-limited copy checks for cancellation."""


class CopyProgress(NamedTuple):
    """Progress of a backup: bytes processed and total bytes, both including shared files."""

    done: int
    total: int


class BackupCancelled(JournalError):
    """The caller cancelled the backup."""


class SegmentExtent(NamedTuple):
    """A segment to copy, named by its first sequence number: its first `size` bytes. `sealed`: with
    index and trailer, so that it no longer changes; `previous`: the segment before it, or 0."""

    first: int
    size: int
    sealed: bool
    previous: int


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
                raise BackupCancelled("the backup was cancelled")
            now = time.monotonic()
            if now - self._renewed > RENEW_SECONDS:
                self._slots.renew(self._slot, LEASE_MS)
                self._renewed = now
            delay = self._started + self._read / self._rate - now if self._rate else 0.0
            if delay <= 0:
                return
            time.sleep(min(delay, CHECK_SECONDS))


class BackupCopy:
    """Creator of a backup's files; each method syncs its file before it returns."""

    def __init__(
        self,
        journal: Path,
        target: Path,
        earlier_files: Mapping[str, tuple[Path, File]],
        link: bool,
        throttle: CopyThrottle,
    ) -> None:
        self._journal = journal
        self._target = target
        self._earlier_files = earlier_files
        self._link = link
        self._throttle = throttle
        self.copied = 0

    def write_file(self, path: str, data: bytes) -> File:
        """Create a file with that content and return its manifest entry."""
        write_atomically(self._target / path, data, mode=0o600)
        self.copied += len(data)
        return File(path=path, bytes=len(data), sha256=sha256(data).hexdigest())

    def copy_segment(self, segment: SegmentExtent) -> File:
        """Copy or link a segment and return its manifest entry."""
        first, size, sealed, _ = segment
        source = segment_path(self._journal, first)
        path = f"{JOURNAL_NAME}/{source.name}"
        with source.open("rb", buffering=0) as file:
            fd = file.fileno()
            if sealed:
                entry = self._link_from_earlier(fd, path, size)
                if entry is not None:
                    self._throttle.advance(size, read=False)
                    return entry
            if sealed and self._link and _try_link(source, self._target / path):
                digest = self._read(fd, -1, size, source, sealed)
            else:
                with create_file(self._target / path, 0o600) as output:
                    digest = self._read(fd, output.fileno(), size, source, sealed)
                    os.fsync(output.fileno())
                self.copied += size
            return File(path=path, bytes=size, sha256=digest, sealed=sealed)

    def _link_from_earlier(self, fd: int, path: str, size: int) -> File | None:
        """Link the segment from the earlier backup and return its entry, or None if it differs.

        Number, size and trailer are compared; the trailer has a checksum of all bytes before it.
        """
        if path not in self._earlier_files:
            return None
        earlier_path, entry = self._earlier_files[path]
        with suppress(FileNotFoundError), earlier_path.open("rb") as file:
            is_whole = os.fstat(file.fileno()).st_size == size == entry.bytes
            file.seek(size - TRAILER_BYTES)
            is_same = file.read() == os.pread(fd, TRAILER_BYTES, size - TRAILER_BYTES)
            if is_whole and is_same and _try_link(earlier_path, self._target / path):
                return entry
        return None

    def _read(self, fd: int, output: int, size: int, source: Path, sealed: bool) -> str:
        """Read `size` bytes, write them to `output` unless it is -1, and return their SHA-256.

        Raises JournalDamaged if the checksum in a sealed segment's trailer does not match.
        """
        digest = sha256()
        crc = offset = 0
        last = b""
        while offset < size:
            data = os.pread(fd, min(CHUNK_BYTES, size - offset), offset)
            if not data:
                raise DamagedFile(source, offset, f"the segment ends before byte {size} of it")
            if output >= 0:
                write_at(output, data, offset)
            digest.update(data)
            if sealed:
                crc, last = crc_before_trailer(crc, last, data)
            offset += len(data)
            self._throttle.advance(len(data))
        if sealed:
            trailer = decode_trailer(last)
            if trailer is None or trailer[2] != crc:
                raise DamagedFile(source, 0, "the bytes do not match their CRC")
        return digest.hexdigest()


def _try_link(source: Path, target: Path) -> bool:
    """Create a hard link. Return False if the file system does not permit it."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


SLOT_PREFIX: Final = "backup-"
NO_LIMIT: Final = 1 << 62
"""Limit of the backup's slot in bytes: large enough never to be exceeded."""
START_SECONDS: Final = 30.0
"""Maximum wait for a starting broker to publish the durable end of its journal."""


def create(
    journal: Path,
    target: Path,
    *,
    read_extras: Callable[[], Mapping[str, bytes]] = dict,
    previous: Path | None = None,
    link: bool = False,
    rate: int = 0,
    on_progress: Callable[[CopyProgress], None] = lambda progress: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Back up the journal in that directory, whether or not a broker has it open.

    target    directory of the backup; must be empty or not exist
    read_extras returns additional files, by name; called once the journal has been copied, because
              the list of imported messages (migrate/transfer.py) may only be newer than the journal
    previous  earlier backup of the same journal; its segments are shared by hard links, and either
              backup can be removed without the other
    link      share sealed segments with the data directory if it is on the same file system
    rate      maximum bytes per second, 0 = unlimited
    on_progress called with the progress after each chunk
    cancelled called at least after each chunk; True ends the backup with BackupCancelled

    After an error, the target has no manifest. Raises JournalError, JournalDamaged if the source
    is damaged, OSError.
    """
    identity = read_identity(journal) if journal.is_dir() else None
    if identity is None:
        raise JournalError(f"there is no journal in {journal}")
    earlier_files = _files_of_backup(identity, previous) if previous is not None else {}
    slots = Slots(journal)
    name = f"{SLOT_PREFIX}{os.getpid()}-{token_hex(4)}"
    _delete_expired(slots)
    _create_target(target)
    slots.create(name, 0, NO_LIMIT, LEASE_MS)
    try:
        snapshot, end, segments = _plan(journal, identity)
        total = sum(segment.size for segment in segments)
        throttle = CopyThrottle(total, rate, slots, name, on_progress, cancelled)
        target_journal = target / JOURNAL_NAME
        target_journal.mkdir(mode=0o700)
        copy = BackupCopy(journal, target, earlier_files, link, throttle)
        files = [
            copy.write_file(f"{JOURNAL_NAME}/{IDENTITY_NAME}", identity.hex().encode() + b"\n"),
            copy.write_file(f"{JOURNAL_NAME}/{DURABLE_NAME}", encode_durable(end)),
        ]
        if snapshot.position:
            path = snapshot_path(target_journal, snapshot.position)
            files.append(copy.write_file(str(path.relative_to(target)), encode_snapshot(snapshot)))
        copied = []
        for segment in segments:
            try:
                files.append(copy.copy_segment(segment))
                copied.append(segment)
            except FileNotFoundError:
                if segment_path(journal, segment.first).exists():
                    raise  # the target has been removed
        _check_complete(journal, snapshot, end, copied)
        for extra_name, data in read_extras().items():
            files.append(copy.write_file(extra_name, data))
        slots.renew(name, LEASE_MS)  # success proves that the slot kept all segments until now
    except RecordNotFound:
        raise JournalError(
            f"the slot {name} that retained the segments is gone: a client has deleted it, or the "
            "clock was set. Only this backup is affected; repeat it"
        ) from None
    finally:
        with suppress(RecordNotFound):
            slots.delete(name)
    manifest = Manifest(
        release=__version__,
        created=now_ms(),
        identity=identity.hex(),
        first_sequence=copied[0].first,
        last_sequence=end.sequence,
        segment=end.segment,
        offset=end.offset,
        copied_bytes=copy.copied,
        incremental_from=str(previous) if previous is not None else "",
        files=files,
    )
    for directory in (target_journal, target, target.parent):
        sync_directory(directory)
    write_manifest(target, manifest)
    return manifest


def _files_of_backup(identity: bytes, previous: Path) -> dict[str, tuple[Path, File]]:
    """Return the files of an earlier backup by path, each with its location.

    Raises JournalError if it is a backup of another journal.
    """
    manifest = read_manifest(previous)
    if manifest.identity != identity.hex():
        raise JournalError(
            f"{previous} is a backup of another journal ({manifest.identity[:16]}): make a full "
            "one first"
        )
    return {file.path: (previous / file.path, file) for file in manifest.files}


def _delete_expired(slots: Slots) -> None:
    """Delete expired slots of killed backups; without a running broker they would remain."""
    for name in slots.readable()[0]:
        if name.startswith(SLOT_PREFIX):
            slots.delete_expired(name)


def _create_target(target: Path) -> None:
    """Create the target directory. Raises JournalError if it is not empty."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise JournalError(
            f"{target} is not empty: a backup needs an empty directory. Files of an interrupted "
            "backup can be removed"
        )


# --- files to copy -------------------------------------------------------------------------------


def _plan(journal: Path, identity: bytes) -> tuple[Snapshot, DurableEnd, list[SegmentExtent]]:
    """Return the snapshot, the end, and the segments to copy."""
    snapshot = newest_snapshot(journal)
    end = _wait_for_end(journal, snapshot.position)
    first_sequences = [first for first in list_segments(journal) if first <= end.segment]
    segments: list[SegmentExtent] = []
    for first, following in zip_longest(first_sequences, first_sequences[1:]):
        with suppress(FileNotFoundError):  # its removal was due before the slot existed
            segments.append(_extent(journal, identity, first, following, end))
    _check_complete(journal, snapshot, end, segments)
    return snapshot, end, segments


def _check_complete(
    journal: Path, snapshot: Snapshot, end: DurableEnd, segments: list[SegmentExtent]
) -> None:
    """Raise JournalDamaged if the segments lack one that the snapshot needs, or that has records
    after its broker state."""
    previous = 0
    for segment in segments:
        if segment.previous not in (0, previous) and segment.first > snapshot.state_position:
            text = f"the segment before it, {segment.previous:020d}, is missing"
            raise DamagedFile(segment_path(journal, segment.first), 16, text)
        previous = segment.first
    if previous != end.segment:
        raise DamagedFile(segment_path(journal, end.segment), 0, "the newest segment is missing")
    check_segments(snapshot, journal, {segment.first for segment in segments}, end.segment)


def _wait_for_end(journal: Path, position: int) -> DurableEnd:
    """Return the end up to which to copy, which is at or after the snapshot's position."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with lock_if_stopped(journal) as stopped:
            end = _last_unit(journal) if stopped else read_durable(journal)
        if end is not None and end.sequence >= position:
            return end
        if stopped:
            raise DamagedFile(journal, 0, "the journal ends before its snapshot")
        if time.monotonic() > deadline:
            raise JournalError(
                f"the broker that has {journal} open has not recorded its durable end yet: it may "
                "still be starting; try again later"
            )
        time.sleep(0.05)


def _last_unit(journal: Path) -> DurableEnd | None:
    """Return the end that recovery would find; `durable` may be behind after a power loss.

    Raises JournalDamaged if it is ahead, which means that durable records are lost.
    """
    durable = read_durable(journal)
    end = _find_end(journal, durable)
    if durable is not None and (end is None or end[:2] < durable[:2]):
        offset = end.offset if end is not None and end.segment == durable.segment else 0
        text = f"the segment ends here, but {durable.offset} bytes of it were on disk"
        raise DamagedFile(segment_path(journal, durable.segment), offset, text)
    return end


def _find_end(journal: Path, durable: DurableEnd | None) -> DurableEnd | None:
    """Return the end of the last whole unit, None if there is none."""
    following: int | None = None
    for first in reversed(list_segments(journal)):
        if segment_path(journal, first).stat().st_size < SEGMENT_HEADER_BYTES:
            continue
        with closing(open_segment(journal, first, following)) as view:
            if view.index is not None:
                last = int(view.index.sequences[-1]) if view.index.count else first
                return DurableEnd(first, view.size, last)
            tail = find_tail(view, durable, view.end or None)
            following = first
        if tail.heads:
            return DurableEnd(
                first, tail.end, sequence_at(tail.heads, len(tail.heads) - HEADER_BYTES)
            )
    return None


def _extent(
    journal: Path, identity: bytes, first: int, following: int | None, end: DurableEnd
) -> SegmentExtent:
    """Return the part of a segment to copy. Raises FileNotFoundError, JournalDamaged."""
    with closing(open_segment(journal, first, following, identity)) as view:
        previous, index = view.header.previous, view.index_offset
        if index and (first < end.segment or end.offset > index):
            return SegmentExtent(first, view.size, True, previous)
        if first == end.segment:
            return SegmentExtent(first, end.offset, False, previous)
        if not view.end:
            raise DamagedFile(
                view.path, view.size, "the segment is not the last and has no intact end"
            )
        return SegmentExtent(first, view.end, False, previous)
