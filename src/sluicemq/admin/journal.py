"""Endpoints that list the journal's segments and serve their bytes to readers on other machines.

Only durable bytes are served: all of a sealed segment including its index, and the synced records
of the others. Bytes that have been served never change.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.caller import Caller
from sluicemq.admin.errors import ApiError
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.journal import FileJournal
from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.port import Journal
from sluicemq.journal.segment import read_segment_header, segment_path
from sluicemq.journal.writer import DurableEnd, read_durable
from sluicemq.model.destination import encode_name
from sluicemq.model.errors import JournalDamaged

MOST_NUMBERS: Final = 500
"""Maximum number of destinations per request."""
CHUNK_BYTES: Final = 256 * 1024
"""Bytes read from the disk and written to the connection at a time."""

_RANGE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))\Z", re.ASCII)
_OCTETS: Final = "application/octet-stream"


class Extent(NamedTuple):
    """A segment: `size` bytes of it may be read."""

    first: int
    size: int
    sealed: bool


class DurablePosition(msgspec.Struct, frozen=True):
    """End of the durable part of the journal: offset in a segment, and last sequence number."""

    segment: int
    offset: int
    sequence: int


class SegmentView(msgspec.Struct, frozen=True):
    """A segment. `created` in µs since the epoch."""

    first_sequence: int
    size: int
    sealed: bool
    created: int


class JournalView(msgspec.Struct, frozen=True, kw_only=True):
    """The journal. `earliest_sequence` is the first sequence number that may be in it."""

    broker_id: str
    format_version: int
    durable: DurablePosition
    segments: list[SegmentView]
    earliest_sequence: int


class DestinationNamesQuery(msgspec.Struct, frozen=True):
    """Numbers of the requested destinations, separated by commas."""

    ids: str = ""


class DestinationNames(msgspec.Struct, frozen=True):
    """Destinations by number: `[number, kind, name in base64]`; kind 1 is a queue, 2 a topic."""

    destinations: list[list[int | str]]


def kept(journal: Journal) -> FileJournal:
    """Return the journal. Raises ApiError if the broker is ephemeral."""
    if not isinstance(journal, FileJournal):
        raise ApiError(
            409,
            "no-journal",
            "this broker keeps everything in memory (--ephemeral) and has no journal to read",
        )
    return journal


class JournalEndpoints:
    """Handlers of `/journal`, shared by all connections."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._created: dict[int, int] = {}
        """Creation times of segments in µs since the epoch."""

    async def show(self, call: Call) -> JournalView:
        """GET /journal"""
        journal = kept(self._journal)
        durable, extents = await self._extents(journal)
        new = [each.first for each in extents if each.first not in self._created]
        if new:
            self._created.update(await asyncio.to_thread(_creation_times, journal, new))
        there = [each for each in extents if each.first in self._created]
        self._created = {each.first: self._created[each.first] for each in there}
        return JournalView(
            broker_id=journal.identity.hex(),
            format_version=FORMAT_VERSION,
            durable=DurablePosition(*durable),
            segments=[SegmentView(*each, created=self._created[each.first]) for each in there],
            earliest_sequence=there[0].first if there else durable.sequence + 1,
        )

    async def destinations(self, call: Call) -> DestinationNames:
        """GET /journal/destinations?ids=3,17: return the requested destinations that exist, with
        kind (model.Kind) and name (base64 of its bytes). Readers need it if the segment with a
        destination's record has been deleted."""
        known = kept(self._journal).addresses
        texts = call.query.ids.split(",")
        if len(texts) > MOST_NUMBERS:
            raise ApiError(400, "too-many-ids", f"at most {MOST_NUMBERS} ids at a time")
        found: list[list[int | str]] = []
        for number in map(_number, texts):
            address = known.get(number)
            if address is not None:
                name = base64.b64encode(encode_name(address.name)).decode()
                found.append([number, int(address.kind), name])
        return DestinationNames(found)

    async def segment(self, call: Call) -> Response:
        """GET /journal/segments/{first_sequence}, with `Range` or without."""
        journal = kept(self._journal)
        first = _number(call.names["first_sequence"])
        durable, extents = await self._extents(journal)
        extent = next((each for each in extents if each.first == first), None)
        if extent is None:
            raise _missing(first, durable)
        start, end, partial = read_range(call.request.headers.get("range", ""), extent)
        try:
            fd = await asyncio.to_thread(
                os.open, segment_path(journal.directory, first), os.O_RDONLY | os.O_CLOEXEC
            )
        except FileNotFoundError:
            raise _missing(first, durable) from None
        headers = {"Accept-Ranges": "bytes"}
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{extent.size}"
        status = 206 if partial else 200
        return FileResponse(fd, start, end, status, headers, call.caller)

    async def _extents(self, journal: FileJournal) -> tuple[DurableEnd, list[Extent]]:
        """Return the readable parts of the segments, in ascending order."""
        durable = await asyncio.to_thread(read_durable, journal.directory)
        if durable is None:
            raise ApiError(
                503, "journal-not-ready", "the durable end of the journal is not known yet"
            )
        found = []
        # the cached position is never behind the one that the file has reported
        for segment in journal.segments:
            if segment.sealed:
                found.append(Extent(segment.first, segment.size, True))
            elif segment.first < durable.segment:
                found.append(Extent(segment.first, segment.end, False))
            elif segment.first == durable.segment:
                found.append(Extent(segment.first, durable.offset, False))
        return durable, found


class FileResponse(Response):
    """Response with bytes of an open file, read in chunks on another thread. Closes the file."""

    def __init__(
        self,
        fd: int,
        start: int,
        end: int,
        status: int,
        headers: dict[str, str],
        caller: Caller,
    ) -> None:
        headers = {**headers, "Content-Length": str(end - start)}
        super().__init__(None, status, headers, _OCTETS)
        self._fd = fd
        self._start = start
        self._end = end
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            position = self._start if scope["method"] != "HEAD" else self._end
            while position < self._end and not self._caller.gone:
                size = min(CHUNK_BYTES, self._end - position)
                piece = await asyncio.to_thread(os.pread, self._fd, size, position)
                if not piece:
                    raise JournalDamaged(
                        f"a segment ends at offset {position}, {self._end - position} bytes "
                        "before the end that it was known to have"
                    )
                position += len(piece)
                await send(
                    {
                        "type": "http.response.body",
                        "body": piece,
                        "more_body": position < self._end,
                    }
                )
            if position == self._start or scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            os.close(self._fd)


def _creation_times(journal: FileJournal, firsts: list[int]) -> dict[int, int]:
    """Return the creation times of the segments that still exist, from their headers."""
    times = {}
    for first in firsts:
        try:
            times[first] = read_segment_header(journal.directory, first).created
        except FileNotFoundError:
            continue
    return times


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise ApiError(
            400,
            "bad-number",
            "a destination is named by its number here, and a segment by the first sequence number "
            "that it may contain",
        )
    return int(text)


def _missing(first: int, durable: DurableEnd) -> ApiError:
    if first <= durable.segment:
        return ApiError(
            404,
            "segment-not-found",
            f"segment {first} does not exist or was deleted because it was no longer needed. "
            "Create a slot to retain unread segments",
        )
    return ApiError(404, "not-found", f"there is no segment {first} yet")


def read_range(header: str, extent: Extent) -> tuple[int, int, bool]:
    """Return the start, the end (exclusive), and True if the client sent a range (RFC 9110,
    14.1.2)."""
    if not header:
        return 0, extent.size, False
    found = _RANGE.match(header.strip())
    if found is None:
        raise ApiError(
            400,
            "bad-range",
            "a Range is one of bytes=FIRST-LAST, bytes=FIRST- and bytes=-COUNT; only one at a time",
        )
    first, last, count = (None if part is None else int(part) for part in found.groups())
    if first is None:
        start, end = max(0, extent.size - (count or 0)), extent.size
    else:
        start, end = first, extent.size if last is None else min(last + 1, extent.size)
        if last is not None and last < first:
            raise ApiError(400, "bad-range", "the Range ends before it begins")
    if start >= end:
        raise ApiError(
            416,
            "range-not-satisfiable",
            f"{extent.size} bytes of the segment may be read now",
            {"Content-Range": f"bytes */{extent.size}"},
            {"size": extent.size, "sealed": extent.sealed},
        )
    return start, end, True


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /journal, without slots."""
    handlers = JournalEndpoints(context.broker.journal)
    need = Need.SUPERUSER
    return [
        Endpoint(
            "GET",
            "/journal",
            "getJournal",
            handlers.show,
            "List the segments of the journal",
            need,
            answer=JournalView,
        ),
        Endpoint(
            "GET",
            "/journal/segments/{first_sequence}",
            "readSegment",
            handlers.segment,
            "Read a segment or a byte range of it",
            need,
            media=_OCTETS,
            besides=(206,),
        ),
        Endpoint(
            "GET",
            "/journal/destinations",
            "listJournalDestinations",
            handlers.destinations,
            "List names of destinations by number",
            need,
            query=DestinationNamesQuery,
            answer=DestinationNames,
        ),
    ]
