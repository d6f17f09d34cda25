"""Where segments are, and what a reader asks of them: one interface, whatever is behind it.

A place and a segment hold no more than what is being read. Both are opened where they are used:
a place is pickled with the reader, an open segment never is.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from zlib_ng import zlib_ng

from sluicemq.journal.directory import read_identity
from sluicemq.journal.index import TRAILER_BYTES, Index
from sluicemq.journal.segment import (
    SegmentHeader,
    SegmentView,
    damaged,
    list_segments,
    read_segment_header,
    records_end,
    segment_path,
)
from sluicemq.journal.slots import Slot, Slots
from sluicemq.journal.snapshot import newest_snapshot
from sluicemq.journal.writer import DurableEnd, read_durable
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.errors import ConfigurationError, JournalDamaged, RecordNotFound

JOURNAL_DIRECTORY: Final = "journal"
IDENTITY_DIGITS: Final = 16
"""Of the journal's identity: those that its messages carry, too."""
Integers = np.ndarray[Any, np.dtype[np.int64]]

_MOST_VERIFIED: Final = 4096
_verified: OrderedDict[tuple[object, ...], bool] = OrderedDict()
"""What the CRC of a whole sealed segment said, by the identity of its file."""


class JournalState(NamedTuple):
    """What there is to read at one moment.

    identity  16 hex digits; "" as long as there is no journal
    durable   how far it may be read; None = nothing yet
    firsts    the segments up to there, ascending, by their first sequence number
    ends      of each, where its records end; 0 = see JournalStorage.records_end
    """

    identity: str
    durable: DurableEnd | None
    firsts: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def next(self) -> int:
        """The first sequence number that cannot be read yet."""
        return self.durable.sequence + 1 if self.durable is not None else 0

    @property
    def earliest(self) -> int:
        """No record before this one is left."""
        return self.firsts[0] if self.firsts else self.next


class Segment(ABC):
    """One segment, open. It is closed by forgetting it: columns and bodies may still refer to it.

    key    identity of its content, for caches
    first  lowest sequence number it may contain
    index  None if it is not sealed
    end    where its records end
    """

    key: tuple[object, ...]
    first: int
    index: Index | None
    end: int

    @abstractmethod
    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        """The bytes of the records at these ascending offsets, and where in them each starts.
        Starts are multiples of 8."""

    @abstractmethod
    def stretch(self, start: int, end: int, least: int) -> pa.Buffer:
        """Bytes from `start` on: at least `least` if there are that many before `end`."""

    @abstractmethod
    def is_intact(self) -> bool | None:
        """Whether every byte of the sealed segment is as it was written; None if finding that out
        costs more than checking single records."""

    @abstractmethod
    def damage(self, offset: int, what: str) -> JournalDamaged:
        """The error to raise."""


class JournalStorage(ABC):
    """A journal that can be read."""

    @abstractmethod
    def state(self) -> JournalState:
        """Raises JournalError, ClientError."""

    @abstractmethod
    def durable(self) -> DurableEnd | None:
        """The end alone, which costs less."""

    @abstractmethod
    def open(self, first: int, end: int = 0) -> Segment:
        """A segment with an index, or whose records end at `end`.

        Raises RecordNotFound if it has been removed, JournalDamaged, JournalError.
        """

    def records_end(self, state: JournalState, place: int) -> int:
        """What to give to `open` for the segment at that place of `state.firsts`."""
        return state.ends[place]

    @abstractmethod
    def header(self, first: int) -> SegmentHeader:
        """Of a segment. Raises as `open`."""

    @abstractmethod
    def addresses(self, numbers: Iterable[int]) -> dict[int, Address]:
        """Those destinations of these numbers that the journal knows outside of its segments."""

    @abstractmethod
    def hold(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        """The slot of that name, made at `position` if there is none."""

    @abstractmethod
    def advance(self, slot: str, position: int) -> None:
        """Everything up to `position` has been dealt with. A slot never goes back: what is behind
        it is left as it is. Raises JournalError if it is lost, RecordNotFound."""


class Mapped(Segment):
    """A segment file of this machine, mapped."""

    __slots__ = ("_buffer", "_view", "end", "first", "index", "key")

    def __init__(self, view: SegmentView, end: int) -> None:
        # SegmentView.close would refuse while columns refer to the mapping: it goes with the last
        # reference instead.
        self._view = view
        self._buffer = pa.py_buffer(view.view)
        self.first = view.header.first
        self.index = view.index
        self.end = end
        status = os.stat(view.path)
        self.key = (str(view.path), status.st_ino, status.st_mtime_ns, view.size)

    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        if not len(offsets):
            return self._buffer.slice(0, 0), offsets
        start = int(offsets[0])
        return self._buffer.slice(start, int(offsets[-1] + sizes[-1]) - start), offsets - start

    def stretch(self, start: int, end: int, least: int) -> pa.Buffer:
        return self._buffer.slice(start, max(0, min(end, self._view.size) - start))

    def damage(self, offset: int, what: str) -> JournalDamaged:
        return damaged(self._view.path, offset, what)

    def is_intact(self) -> bool | None:
        known = _verified.get(self.key)
        if known is None:
            covered = self._view.view[: self._view.size - TRAILER_BYTES]
            # zlib's own takes four times as long
            known = zlib_ng.crc32(covered) == self._view.crc
            _verified[self.key] = known
            if len(_verified) > _MOST_VERIFIED:
                _verified.popitem(last=False)
        return known


class DirectoryStorage(JournalStorage):
    """A journal on this machine's disks. A broker may be writing it."""

    def __init__(self, path: Path) -> None:
        """`path` is a broker's data directory or the journal in it. Raises ConfigurationError."""
        self._given = path
        if not path.is_dir():
            raise ConfigurationError(
                f"option path: {path} is no directory. It is to be a broker's data directory "
                "(serve --data-dir), readable on every machine where Spark runs tasks."
            )

    @property
    def path(self) -> Path:
        """The journal's own directory; a broker that has just been started makes it later."""
        inner = self._given / JOURNAL_DIRECTORY
        return inner if inner.is_dir() else self._given

    def state(self) -> JournalState:
        # the end first: what is listed after it is all that it speaks of, unless it was removed
        durable = self.durable()
        identity = read_identity(self.path)
        text = identity.hex()[:IDENTITY_DIGITS] if identity is not None else ""
        if durable is None or not text:
            return JournalState(text, None, (), ())
        firsts = tuple(first for first in list_segments(self.path) if first <= durable.segment)
        ends = tuple(durable.offset if first == durable.segment else 0 for first in firsts)
        return JournalState(text, durable, firsts, ends)

    def durable(self) -> DurableEnd | None:
        return read_durable(self.path)

    def open(self, first: int, end: int = 0) -> Segment:
        path = segment_path(self.path, first)
        try:
            view = SegmentView(path)
            if view.index is not None:
                return Mapped(view, view.index_offset)
            if not end:
                raise damaged(path, view.size, "the segment is not the last and has no intact end")
            if end > view.size:
                raise damaged(path, view.size, f"the segment ends here, not at {end}")
            return Mapped(view, end)
        except FileNotFoundError:
            raise RecordNotFound(f"the segment {path} has been removed") from None

    def records_end(self, state: JournalState, place: int) -> int:
        end = state.ends[place]
        if not end and place + 1 < len(state.firsts):
            end = records_end(self.path, state.firsts[place], state.firsts[place + 1])
        return end

    def header(self, first: int) -> SegmentHeader:
        try:
            return read_segment_header(self.path, first)
        except FileNotFoundError:
            raise RecordNotFound(f"the segment {first} has been removed") from None

    def addresses(self, numbers: Iterable[int]) -> dict[int, Address]:
        snapshot = newest_snapshot(self.path)
        wanted = set(numbers)
        return {
            number: Address(Kind(kind), decode_name(name))
            for number, kind, name in (snapshot.addresses if snapshot else ())
            if number in wanted
        }

    def hold(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        slots = Slots(self.path)
        try:
            return slots.get(slot)
        except RecordNotFound:
            return slots.create(slot, position, limit_bytes)

    def advance(self, slot: str, position: int) -> None:
        Slots(self.path).reach(slot, position)


def local_path(text: str) -> Path:
    """Of what Spark hands over, which may be a file: URL. Raises ConfigurationError."""
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if "://" in text:
        raise ConfigurationError(
            f"option path: {text} is not on this machine's disks; give a broker's address as url"
        )
    return Path(text)
