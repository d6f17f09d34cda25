"""Journal behind a broker's HTTP address.

For a sealed segment, the reader fetches its end, which locates the index, and then the bytes of
the selected records. Adjacent ranges are fetched with one request.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluicemq.clients import http
from sluicemq.journal.files import DurableEnd
from sluicemq.journal.format import HEADER_BYTES, TYPE_AT, RecordType, record_size
from sluicemq.journal.segment import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    SegmentHeader,
    SegmentIndex,
    decode_segment_header,
    decode_trailer,
)
from sluicemq.journal.slots import MAX_POSITION, Slot
from sluicemq.management import journal as management
from sluicemq.management.operation import (
    AnswerT,
    ApiOperation,
    NamedBody,
    NamePath,
    NoParameters,
    ParametersT,
)
from sluicemq.model.destination import Address, Kind, decode_name
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound, RequestRefused
from sluicemq.pipeline.source.journal_storage import (
    IDENTITY_DIGITS,
    DirectoryStorage,
    Integers,
    JournalState,
    JournalStorage,
    RecentlyUsed,
    StoredSegment,
)
from sluicemq.pipeline.source.options import SourceOptions

API: Final = "/api/v1/journal"
RANGE_BYTES: Final = 8 << 20
"""Maximum size of one request."""
GAP_BYTES: Final = 64 << 10
"""Maximum gap of two ranges that one request fetches."""
END_BYTES: Final = 64 << 10
"""Size of the first request, from the end of a sealed segment; it includes a small index."""
MAX_NUMBERS: Final = 400
"""Maximum number of destinations of one request."""
MAX_INDEXES: Final = 4

_SLOT_AHEAD: Final = "slot-ahead"
_SPAN: Final = re.compile(r"bytes (\d+)-\d+/(\d+)\Z")

_indexes: RecentlyUsed[tuple[object, ...], tuple[bytes, int, bytes]] = RecentlyUsed(MAX_INDEXES)
"""Trailer, index offset and index of sealed segments."""


class HttpStorage(JournalStorage):
    """Journal storage over HTTP. Keeps one connection open while it is in use."""

    _remote: http.HttpClient | None = None

    def __init__(self, to: http.HttpTarget) -> None:
        self._target = to
        self.name = str(to)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_remote": None}

    def __del__(self) -> None:
        # a task does not announce its end
        if self._remote is not None:
            self._remote.close()

    # --- requests ---------------------------------------------------------

    @contextmanager
    def _errors(self) -> Iterator[http.HttpClient]:
        """Return the client; its errors for missing resources become RecordNotFound, and those for
        conflicts (409) JournalError."""
        if self._remote is None:
            self._remote = http.HttpClient(self._target, retry_timeout=http.RETRY_TIMEOUT)
        try:
            yield self._remote
        except http.HttpRefusal as refusal:
            if refusal.status == 404:
                raise RecordNotFound(str(refusal)) from refusal
            if refusal.status == 409:
                raise JournalError(str(refusal)) from refusal
            raise

    def _call(
        self, operation: ApiOperation[ParametersT, AnswerT], parameters: ParametersT
    ) -> AnswerT:
        with self._errors() as remote:
            return remote.call(operation, parameters)

    def _get_range(self, first: int, span: str) -> http.HttpResponse:
        """Return the response to a request for a range of a segment."""
        with self._errors() as remote:
            return remote.request("GET", f"{API}/segments/{first}", (), {"Range": f"bytes={span}"})

    def read_range(self, first: int, start: int, stop: int) -> bytes:
        """Return bytes of a segment, none if `stop` is not behind `start`.

        Raises RecordNotFound if it has been removed."""
        data = b"".join(
            self._get_range(first, f"{offset}-{min(offset + RANGE_BYTES, stop) - 1}").body
            for offset in range(start, stop, RANGE_BYTES)
        )
        if len(data) != max(0, stop - start):
            raise RequestRefused(
                f"{self.name}: received {len(data)} of {stop - start} bytes from offset {start} "
                f"of the segment {first}"
            )
        return data

    def read_end(self, first: int, count: int) -> tuple[int, bytes]:
        """Return the offset of the last `count` bytes of a segment, and the bytes.

        Raises as `read_range`."""
        answer = self._get_range(first, f"-{count}")
        data = answer.body
        span = answer.headers.get("Content-Range", "")
        match = _SPAN.match(span)
        if match is None or int(match[2]) - int(match[1]) != len(data):
            raise RequestRefused(
                f"{self.name}: the broker answered a request for the end of the segment {first} "
                f"with {len(data)} bytes as {span!r}"
            )
        return int(match[1]), data

    # --- the journal ---------------------------------------------------------

    def state(self) -> JournalState:
        state = self._call(management.GET_JOURNAL, NoParameters())
        durable = state.durable
        segments = [
            segment for segment in state.segments if segment.first_sequence <= durable.segment
        ]
        return JournalState(
            state.broker_id[:IDENTITY_DIGITS],
            DurableEnd(durable.segment, durable.offset, durable.sequence),
            tuple(segment.first_sequence for segment in segments),
            tuple(
                0
                if segment.sealed
                else durable.offset
                if segment.first_sequence == durable.segment
                else segment.size
                for segment in segments
            ),
        )

    def header(self, first: int) -> SegmentHeader:
        path = Path(f"{self.name}{API}/segments/{first}")  # for error messages
        return decode_segment_header(self.read_range(first, 0, SEGMENT_HEADER_BYTES), path)

    def open(self, first: int, end: int = 0) -> StoredSegment:
        return RemoteSegment(self, first, end)

    def trailer(self, first: int) -> tuple[int, int, int] | None:
        return decode_trailer(self.read_end(first, TRAILER_BYTES)[1])

    def addresses(self, numbers: Iterable[int]) -> dict[int, Address]:
        requested = sorted(numbers)
        addresses: dict[int, Address] = {}
        for start in range(0, len(requested), MAX_NUMBERS):
            batch = ",".join(map(str, requested[start : start + MAX_NUMBERS]))
            names = self._call(
                management.LIST_JOURNAL_DESTINATIONS, management.DestinationNamesQuery(batch)
            )
            addresses |= {
                int(number): Address(Kind(int(kind)), decode_name(base64.b64decode(str(name))))
                for number, kind, name in names.destinations
            }
        return addresses

    # --- slots ---------------------------------------------------------

    def ensure_slot(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        try:
            return _slot(self._call(management.GET_SLOT, NamePath(name=slot)))
        except RecordNotFound:
            return self._put(slot, position, limit_bytes)

    def advance_slot(self, slot: str, position: int) -> int:
        state = self._call(management.GET_SLOT, NamePath(name=slot))
        if not state.lost and position <= state.position:
            return state.position
        try:
            return self._put(slot, position, None).position
        except JournalError as error:
            # another reader with the same slot has moved it already
            refusal = error.__cause__
            if isinstance(refusal, http.HttpRefusal) and refusal.code == _SLOT_AHEAD:
                return self._call(management.GET_SLOT, NamePath(name=slot)).position
            raise

    def claim_slot(self, slot: str, holder: str, lease: int) -> None:
        body = management.SlotRequest(MAX_POSITION, holder=holder, lease_ms=lease)
        self._call(management.PUT_SLOT, NamedBody(name=slot, body=body))

    def _put(self, slot: str, position: int, limit_bytes: int | None) -> Slot:
        body = management.SlotRequest(position, limit_bytes)
        return _slot(self._call(management.PUT_SLOT, NamedBody(name=slot, body=body)))


def _slot(view: management.SlotView) -> Slot:
    return Slot(
        position=view.position,
        limit_bytes=view.limit_bytes,
        created=view.created,
        lost=view.lost,
        moved=view.last_advanced,
        abandoned=view.idle_expired,
    )


class RemoteSegment(StoredSegment):
    """Segment of a journal behind HTTP."""

    def __init__(self, storage: HttpStorage, first: int, end: int) -> None:
        """Open a segment; `end` is the end of its records, 0 = read the index."""
        self._storage = storage
        self.first = first
        self._key = (storage.name, first, end)
        self.index = None
        self.end = end
        if not end:
            self.end, payload = self._read_index()
            self.index = SegmentIndex(memoryview(payload))

    def _read_index(self) -> tuple[int, bytes]:
        entry = _indexes.find(self._key)
        # the same address may serve another journal now
        if entry is not None and self._storage.read_end(self.first, TRAILER_BYTES)[1] == entry[0]:
            return entry[1:]
        start, data = self._storage.read_end(self.first, END_BYTES)
        size = start + len(data)
        end = data[-TRAILER_BYTES:]
        trailer = decode_trailer(end)
        if trailer is None:
            raise self.damage(size, "the segment is sealed and has no intact end")
        offset = trailer[0]
        if not SEGMENT_HEADER_BYTES <= offset < size:
            raise self.damage(size, "the segment's end refers to no index")
        data = self._storage.read_range(self.first, offset, start) + data
        record = memoryview(data)[max(0, offset - start) : -TRAILER_BYTES]
        length = record_size(record, 0)
        if not length or record[TYPE_AT] != RecordType.INDEX:
            raise self.damage(offset, "the index is not intact")
        index = offset, bytes(record[HEADER_BYTES:length])
        _indexes[self._key] = end, *index
        return index

    def gather(self, offsets: Integers, sizes: Integers) -> tuple[pa.Buffer, Integers]:
        if not len(offsets):
            return pa.py_buffer(b""), offsets
        # records are padded to multiples of 8 bytes, so their starts are aligned in the result
        stops = offsets + (sizes + 7 & -8)
        breaks = np.flatnonzero(offsets[1:] - stops[:-1] > GAP_BYTES) + 1
        starts = [0, *breaks.tolist(), len(offsets)]
        parts = []
        positions = np.empty(len(offsets), np.int64)
        size = 0
        for low, high in pairwise(starts):
            start, stop = int(offsets[low]), int(stops[high - 1])
            positions[low:high] = offsets[low:high] - start + size
            parts.append(self._storage.read_range(self.first, start, stop))
            size += stop - start
        return pa.py_buffer(b"".join(parts)), positions

    def read_bytes(self, start: int, end: int, minimum: int) -> pa.Buffer:
        return pa.py_buffer(self._storage.read_range(self.first, start, min(end, start + minimum)))

    def is_intact(self, strict: bool) -> bool:
        return False  # each record is checked after it is received

    def damage(self, offset: int, text: str) -> JournalDamaged:
        return JournalDamaged(
            f"{self._storage.name}, segment {self.first}, offset {offset}: {text}. Either the "
            "transferred bytes or the file is damaged: run sluicemq journal check on the broker's "
            "machine"
        )


def connect(options: SourceOptions) -> JournalStorage:
    """Return the storage without connecting to it. Raises ConfigurationError."""
    if options.target is not None:
        return HttpStorage(options.target)
    assert options.path is not None
    return DirectoryStorage(options.path)
