"""Snapshot of the recovery state as of one sequence number, which shortens the replay.

The file NNNNNNNNNNNNNNNNNNNN.snapshot is named after that number:

    offset  size
       0     8   "SLUICESN"
       8     4   format version
      12     4   CRC-32 of the payload
      16     8   bytes of the payload
      24     …   payload: a `Snapshot` as a msgpack array

Only the newest snapshot is kept. It gets its name after it has been synced, so a snapshot that is
not intact was damaged later.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import compress, crc32, decompressobj
from zlib import error as ZlibError  # noqa: N812

import msgspec

from sluicemq.journal.files import write_atomically
from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.liveness import SPAN_LIMIT, Liveness, LiveSegment
from sluicemq.journal.segment import DamagedFile, check_version, list_numbered_files, segment_path
from sluicemq.journal.space import NO_SPACE, DiskSpace
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.errors import JournalDamaged

SNAPSHOT_MAGIC: Final = b"SLUICESN"
SNAPSHOT_HEAD: Final = Struct("<8sIIQ")
SUFFIX: Final = ".snapshot"
MAX_SPAN: Final = 32 * SPAN_LIMIT
"""Maximum sequence numbers of a segment. It ends with the group that exceeds SPAN_LIMIT, and a
group has all numbers that are assigned during the write of the one before it, which may take long.
"""


class SegmentState(msgspec.Struct, array_like=True):
    """Liveness of one segment.

    base          the sequence number of the first byte of `live`
    live          zlib; one byte per sequence number, see liveness.py
    large_counts  (sequence, count) where that byte is 255
    """

    first: int
    base: int
    live: bytes
    large_counts: list[tuple[int, int]]


class Snapshot(msgspec.Struct, array_like=True):
    """The payload.

    position        liveness, relocated and addresses are as of this sequence number
    state_position  the broker's own state is as of this one, which is not larger
    state           opaque
    next_number     the next destination number
    addresses       (number, kind, name) of destinations
    relocated       u64 original and u64 new number of each relocated record
    segments        all that exist; when this is on disk, all but the last have index and trailer
    """

    position: int
    state_position: int
    state: bytes
    next_number: int
    addresses: list[tuple[int, Kind, bytes]]
    relocated: bytes
    segments: list[SegmentState]

    def destinations(self) -> dict[int, Address]:
        """Return the destinations by number."""
        return {
            number: Address(Kind(kind), decode_name(name)) for number, kind, name in self.addresses
        }


@dataclass(slots=True)
class Capture:
    """Copy of the owner's state that the background thread packs and writes.

    changed_segments  segments whose `live` changed since the last snapshot, each with a copy of it
    finished          segments without live records, removable once the snapshot is on disk
    is_waiting        True until its position is durable
    written           True if the snapshot is on disk, False if the disk was full
    """

    snapshot: Snapshot
    changed_segments: list[tuple[LiveSegment, SegmentState]]
    finished: list[LiveSegment]
    is_waiting: bool = True
    written: bool = False


def capture_segments(liveness: Liveness, snapshot: Snapshot) -> Capture:
    """Add the segments to a snapshot, copying what changed since the last one."""
    changed_segments = []
    finished = []
    for segment in liveness.segments:
        state = SegmentState(
            segment.first, segment.base, segment.packed_live, list(segment.large_live.items())
        )
        segment.live_at_previous_snapshot = segment.live_at_snapshot
        if segment.changed:
            state.live = bytes(segment.live)
            segment.live_at_snapshot = segment.count_live()
            segment.changed = not segment.sealed  # appends do not set `changed`
            changed_segments.append((segment, state))
        if not segment.live_at_snapshot:
            finished.append(segment)
        snapshot.segments.append(state)
    return Capture(snapshot, changed_segments, finished)


def write_snapshot(directory: Path, capture: Capture, space: DiskSpace) -> None:
    """Pack, write and sync a snapshot, then remove older ones. Runs on the background thread.

    If the disk is full, no file changes and `written` stays False.
    """
    for _, state in capture.changed_segments:
        state.live = compress(state.live, 1)
    snapshot = capture.snapshot
    data = encode_snapshot(snapshot)
    write = partial(write_atomically, snapshot_path(directory, snapshot.position), data)
    try:
        space.retry_with_reserve(write, len(data), essential=True, wait=False)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        return
    capture.written = True
    for position, path in list_snapshots(directory):
        if position < snapshot.position:
            path.unlink()


def snapshot_path(directory: Path, position: int) -> Path:
    return directory / f"{position:020d}{SUFFIX}"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the content of the snapshot file."""
    payload = msgspec.msgpack.encode(snapshot)
    return (
        SNAPSHOT_HEAD.pack(SNAPSHOT_MAGIC, FORMAT_VERSION, crc32(payload), len(payload)) + payload
    )


def list_snapshots(directory: Path) -> list[tuple[int, Path]]:
    """Return position and path of all snapshots, newest first."""
    positions = reversed(list_numbered_files(directory, SUFFIX))
    return [(position, snapshot_path(directory, position)) for position in positions]


def decode_snapshot(data: bytes, path: Path) -> Snapshot:
    """Decode the content of the file `path`.

    Raises JournalDamaged, or JournalError for another format version.
    """
    if len(data) < SNAPSHOT_HEAD.size:
        raise DamagedFile(path, len(data), "the snapshot is incomplete")
    magic, version, crc, length = SNAPSHOT_HEAD.unpack_from(data)
    if magic == SNAPSHOT_MAGIC:
        check_version(path, version)
    payload = memoryview(data)[SNAPSHOT_HEAD.size :]
    if magic != SNAPSHOT_MAGIC or length != len(payload) or crc != crc32(payload):
        raise DamagedFile(path, 0, "the snapshot does not match its CRC")
    try:
        snapshot = _decode(payload)
    except msgspec.MsgspecError as error:
        raise DamagedFile(
            path, SNAPSHOT_HEAD.size, f"the snapshot cannot be read: {error}"
        ) from error
    if len(snapshot.relocated) % 16:
        raise DamagedFile(path, SNAPSHOT_HEAD.size, "the snapshot ends within a pair of numbers")
    return snapshot


def newest_snapshot(directory: Path) -> Snapshot:
    """Return the newest intact snapshot; if there is none, an empty one with position 0.

    Raises JournalDamaged if there are snapshots but none is intact, JournalError.

    A broker may run meanwhile and replace the snapshot. Without one, an older snapshot exists only
    if a crash occurred between the rename of the newest one and the removal of the others. At that
    time, no segment that the older one needs has been removed.
    """
    while True:
        vanished = False
        failure: JournalDamaged | None = None
        for _, path in list_snapshots(directory):
            try:
                return decode_snapshot(path.read_bytes(), path)
            except FileNotFoundError:
                vanished = True  # there is a newer one
            except JournalDamaged as error:
                failure = failure or error
        if failure is not None:
            raise failure
        if not vanished:
            return Snapshot(0, 0, b"", 1, [], b"", [])


def unpack_live(state: SegmentState, directory: Path) -> bytes:
    """Return the liveness bytes of a segment in a snapshot. Raises JournalDamaged."""
    unpacker = decompressobj()
    try:
        live = unpacker.decompress(state.live, MAX_SPAN)
    except ZlibError as error:
        raise missing_liveness(state.first, directory) from error
    if not unpacker.eof:
        raise missing_liveness(state.first, directory)
    return live


def check_segments(
    snapshot: Snapshot, directory: Path, present: Container[int], last: int | None = None
) -> None:
    """Raise JournalDamaged if a segment with live records is not among those `present`.

    With `last`, segments after that one do not matter.
    """
    for state in snapshot.segments:
        matters = last is None or state.first <= last
        if matters and state.first not in present and unpack_live(state, directory).strip(b"\0"):
            path = segment_path(directory, state.first)
            raise DamagedFile(path, 0, "the segment is missing, and messages in it are live")


def missing_liveness(first: int, directory: Path) -> JournalDamaged:
    """Return the error for a segment whose liveness in the snapshot cannot be read."""
    return JournalDamaged(
        f"the snapshot in {directory} does not list the live records of segment {first:020d}"
    )


_decode: Final[Callable[[memoryview], Snapshot]] = msgspec.msgpack.Decoder(Snapshot).decode
