"""Interface of journal storage and its implementation for a local directory.

Storage and segment keep nothing but open files. A reader pickles its storage, never an open
segment.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from sluicemq.journal import segment
from sluicemq.journal.files import DurableEnd, journal_directory, read_durable
from sluicemq.journal.slots import MAX_POSITION, Slot, Slots
from sluicemq.journal.snapshot import newest_snapshot
from sluicemq.model.destination import Address
from sluicemq.model.errors import ConfigurationError, JournalDamaged, RecordNotFound

IDENTITY_DIGITS: Final = 16
"""Digits of the journal's identity; messages carry the same ones."""
Integers = np.ndarray[Any, np.dtype[np.int64]]

Key = TypeVar("Key")
Entry = TypeVar("Entry")


class RecentlyUsed(OrderedDict[Key, Entry]):
    """Cache of up to `capacity` entries; the one that was not used for longest goes first."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def find(self, key: Key) -> Entry | None:
        """Return an entry, which is then the last to go; None if it is not cached."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def __setitem__(self, key: Key, entry: Entry) -> None:
        super().__setitem__(key, entry)
        if len(self) > self._capacity:
            self.popitem(last=False)


_verified: RecentlyUsed[tuple[object, ...], bool] = RecentlyUsed(4096)
"""Result of the CRC check of whole sealed segments, by the identity of the file."""


class JournalState(NamedTuple):
    """Readable contents of a journal at one moment.

    identity  16 hex digits; "" if there is no journal yet
    durable   end of the readable part; by default, there is no record yet
    segments  number of each segment up to there, ascending: its lowest sequence number
    ends      end of the records of each; 0 = see JournalStorage.records_end
    """

    identity: str
    durable: DurableEnd = DurableEnd(0, 0, -1)
    segments: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def next(self) -> int:
        """First sequence number that cannot be read yet."""
        return self.durable.sequence + 1

    @property
    def earliest(self) -> int:
        """Lower bound of the sequence numbers that are still in the journal."""
        return self.segments[0] if self.segments else self.next


class StoredSegment(ABC):
    """Open segment. It has no `close`, because columns and bodies may still refer to its memory.

    first  lowest sequence number it may contain
    index  index of a sealed segment, else None
    end    offset at which its records end
    """

    first: int
    index: segment.SegmentIndex | None
    end: int

    @abstractmethod
    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        """Return the bytes of the records at ascending `offsets`, and the start of each.

        Starts are multiples of 8."""

    @abstractmethod
    def read_bytes(self, start: int, end: int, minimum: int) -> pa.Buffer:
        """Return bytes from `start` on: at least `minimum`, or all before `end` if fewer."""

    @abstractmethod
    def is_intact(self, strict: bool) -> bool:
        """Return True if the sealed segment is known to match its CRC.

        It is not if that check costs more than checks of single records. With `strict`, raise
        JournalDamaged for a segment that does not match."""

    @abstractmethod
    def damage(self, offset: int, text: str) -> JournalDamaged:
        """Return the error for damage at `offset`."""


class JournalStorage(ABC):
    """Readable journal."""

    @abstractmethod
    def state(self) -> JournalState:
        """Return the current state. Raises JournalError, ClientError."""

    @abstractmethod
    def open(self, first: int, end: int = 0) -> StoredSegment:
        """Open a segment that has an index, or whose records end at `end`.

        Raises RecordNotFound if it has been removed, JournalDamaged, JournalError.
        """

    def records_end(self, state: JournalState, index: int) -> int:
        """Return the `end` for `open` of the segment at that index of `state.segments`."""
        return state.ends[index]

    @abstractmethod
    def header(self, first: int) -> segment.SegmentHeader:
        """Return the header of a segment. Raises as `open`."""

    @abstractmethod
    def trailer(self, first: int) -> tuple[int, int, int] | None:
        """Return the trailer of a sealed segment as `decode_trailer`, None if it is not sealed.

        Raises as `open`.
        """

    @abstractmethod
    def addresses(self, numbers: Iterable[int]) -> dict[int, Address]:
        """Return the destinations with these numbers that the journal's snapshots contain."""

    @abstractmethod
    def ensure_slot(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        """Return the slot of that name; create it at `position` if it does not exist."""

    @abstractmethod
    def advance_slot(self, slot: str, position: int) -> int:
        """Acknowledge every record up to `position`, and return the slot's position.

        A slot never moves back: an earlier position has no effect. Raises JournalError if the slot
        is lost, RecordNotFound if it does not exist."""

    @abstractmethod
    def claim_slot(self, slot: str, holder: str, lease: int) -> None:
        """Take a slot that holds no segments for `lease` ms, or extend its lease; 0 ends it.

        Raises JournalError with the name of the holder if another process has it."""


class MappedFile(StoredSegment):
    """Memory-mapped segment file."""

    def __init__(self, view: segment.MappedSegment, end: int) -> None:
        # SegmentView.close fails while columns refer to the mapping; the mapping is freed with the
        # last reference instead.
        self._view = view
        self._buffer = pa.py_buffer(view.view)
        self.first = view.header.first
        self.index = view.index
        self.end = end
        status = os.stat(view.path)
        self._key = (str(view.path), status.st_ino, status.st_mtime_ns, view.size)

    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        if not len(offsets):
            return self._buffer.slice(0, 0), offsets
        start = int(offsets[0])
        return self._buffer.slice(start, int(offsets[-1] + sizes[-1]) - start), offsets - start

    def read_bytes(self, start: int, end: int, minimum: int) -> pa.Buffer:
        return self._buffer.slice(start, max(0, min(end, self._view.size) - start))

    def damage(self, offset: int, text: str) -> JournalDamaged:
        return segment.DamagedFile(self._view.path, offset, text)

    def is_intact(self, strict: bool) -> bool:
        result = _verified.find(self._key)
        if result is None:
            covered = self._view.view[: self._view.size - segment.TRAILER_BYTES]
            # zlib's own crc32 takes four times as long
            result = _verified[self._key] = zlib_ng.crc32(covered) == self._view.crc
        if strict and not result:
            self._view.verify()
        return result


class DirectoryStorage(JournalStorage):
    """Journal in a local directory, possibly written by a running broker."""

    def __init__(self, path: Path) -> None:
        """Open the data directory of a broker, or its journal. Raises ConfigurationError."""
        self._data_dir = path
        if not path.is_dir():
            raise ConfigurationError(
                f"option path: {path} is not a directory. Set it to a broker's data directory "
                "(serve --data-dir) that is readable on every machine where Spark runs tasks."
            )

    @property
    def path(self) -> Path:
        """Directory of the journal, which a broker creates shortly after its start."""
        return journal_directory(self._data_dir)

    def state(self) -> JournalState:
        # read the end first: segments listed later cover it, unless they were removed
        durable = read_durable(self.path)
        identity = segment.read_identity(self.path)
        text = identity.hex()[:IDENTITY_DIGITS] if identity is not None else ""
        if durable is None or not text:
            return JournalState(text)
        segments = tuple(
            first for first in segment.list_segments(self.path) if first <= durable.segment
        )
        ends = tuple(durable.offset if first == durable.segment else 0 for first in segments)
        return JournalState(text, durable, segments, ends)

    def open(self, first: int, end: int = 0) -> StoredSegment:
        path = segment.segment_path(self.path, first)
        try:
            view = segment.MappedSegment(path, end, zlib_ng.crc32)
            if view.index is not None:
                return MappedFile(view, view.index_offset)
            if not end:
                raise segment.DamagedFile(
                    path, view.size, "the segment is not the last and has no intact end"
                )
            if end > view.size:
                raise segment.DamagedFile(path, view.size, f"the segment ends here, not at {end}")
            return MappedFile(view, end)
        except FileNotFoundError:
            raise RecordNotFound(f"the segment {path} has been removed") from None

    def records_end(self, state: JournalState, index: int) -> int:
        end = state.ends[index]
        if not end and index + 1 < len(state.segments):
            end = segment.records_end(self.path, state.segments[index], state.segments[index + 1])
        return end

    def header(self, first: int) -> segment.SegmentHeader:
        try:
            return segment.read_segment_header(self.path, first)
        except FileNotFoundError:
            raise RecordNotFound(f"the segment {first} has been removed") from None

    def trailer(self, first: int) -> tuple[int, int, int] | None:
        try:
            with segment.segment_path(self.path, first).open("rb") as file:
                file.seek(-min(segment.TRAILER_BYTES, os.fstat(file.fileno()).st_size), os.SEEK_END)
                return segment.decode_trailer(file.read())
        except FileNotFoundError:
            raise RecordNotFound(f"the segment {first} has been removed") from None

    def addresses(self, numbers: Iterable[int]) -> dict[int, Address]:
        known = newest_snapshot(self.path).destinations()
        return {number: known[number] for number in numbers if number in known}

    @property
    def _slots(self) -> Slots:
        return Slots(self.path, limit_bytes=0)  # only the broker knows its setting

    def ensure_slot(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        slots = self._slots
        try:
            return slots.get(slot)
        except RecordNotFound:
            return slots.create(slot, position, limit_bytes)

    def advance_slot(self, slot: str, position: int) -> int:
        return self._slots.advance(slot, position, shared=True).position

    def claim_slot(self, slot: str, holder: str, lease: int) -> None:
        self._slots.claim(slot, holder, MAX_POSITION, lease)
