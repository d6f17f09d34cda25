"""Endpoints that list the journal's segments, serve their bytes to readers on other machines, and
manage the retention slots of readers.

Only durable bytes are served: all of a sealed segment including its index, and the synced records
of the others. Bytes that have been served never change. Changes of slots are serialized, because
advancing a slot reads and rewrites its file.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import structlog
from starlette.responses import Response, StreamingResponse

from sluicemq.admin.endpoints import ApiContext, Call, Service, handles
from sluicemq.admin.errors import ApiError, problem
from sluicemq.journal import FileJournal, Slot, Slots
from sluicemq.journal.backup import BackupCancelled, CopyProgress
from sluicemq.journal.backup import create as make_backup
from sluicemq.journal.files import DurableEnd, read_durable
from sluicemq.journal.format import FORMAT_VERSION
from sluicemq.journal.interface import Journal
from sluicemq.journal.reader import records_after
from sluicemq.journal.segment import read_segment_header, segment_path
from sluicemq.journal.slots import is_slot_name
from sluicemq.journal.stored_backup import Manifest, find_backups, read_manifest
from sluicemq.management.journal import (
    CREATE_BACKUP,
    DELETE_SLOT,
    GET_JOURNAL,
    GET_SLOT,
    LINES,
    LIST_BACKUPS,
    LIST_JOURNAL_DESTINATIONS,
    LIST_SLOTS,
    PUT_SLOT,
    READ_SEGMENT,
    BackupList,
    BackupRequest,
    BackupView,
    DestinationNames,
    DestinationNamesQuery,
    DurablePosition,
    JournalView,
    SegmentPath,
    SegmentView,
    SlotRequest,
    SlotView,
)
from sluicemq.management.operation import (
    OCTETS,
    Body,
    NamedBody,
    NamePath,
    NoParameters,
    Page,
    PageQuery,
    to_base64,
)
from sluicemq.model.errors import JournalDamaged, JournalError, RecordNotFound

MAX_NUMBERS: Final = 500
"""Maximum number of destinations per request."""
CHUNK_BYTES: Final = 256 * 1024
"""Bytes read from the disk and written to the connection at a time."""

MAX_SLOTS: Final = 1000

_Answer = TypeVar("_Answer")
_RANGE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))\Z", re.ASCII)


def require_file_journal(journal: Journal) -> FileJournal:
    """Return the journal. Raises ApiError if the broker is ephemeral."""
    if not isinstance(journal, FileJournal):
        raise ApiError(
            409,
            "no-journal",
            "this broker keeps everything in memory (--ephemeral) and has no journal to read",
        )
    return journal


class JournalService(Service):
    """Handlers of `/journal`, shared by all connections."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._lock = asyncio.Lock()

    @property
    def _journal(self) -> FileJournal:
        return require_file_journal(self._broker.journal)

    @handles(GET_JOURNAL)
    async def show(self, call: Call, parameters: NoParameters) -> JournalView:
        """Return the segments of the journal and its durable end."""
        durable, readable = await self._readable_segments()
        segments = await asyncio.to_thread(_with_creation_times, self._journal.directory, readable)
        return JournalView(
            broker_id=self._journal.identity.hex(),
            format_version=FORMAT_VERSION,
            durable=DurablePosition(*durable),
            segments=segments,
            earliest_sequence=segments[0].first_sequence if segments else durable.sequence + 1,
        )

    @handles(LIST_JOURNAL_DESTINATIONS)
    async def destinations(self, call: Call, query: DestinationNamesQuery) -> DestinationNames:
        """Return the existing destinations of the requested numbers, with kind (model.Kind) and
        name (base64 of its bytes). Readers need it if the segment with a destination's record has
        been deleted."""
        addresses = self._journal.addresses
        texts = query.ids.split(",")
        if len(texts) > MAX_NUMBERS:
            raise ApiError(400, "too-many-ids", f"a request can have at most {MAX_NUMBERS} ids")
        pairs = [(number, addresses.get(number)) for number in map(_number, texts)]
        return DestinationNames(
            [
                [number, int(address.kind), to_base64(address.name)]
                for number, address in pairs
                if address is not None
            ]
        )

    @handles(READ_SEGMENT)
    async def segment(self, call: Call, parameters: SegmentPath) -> Response:
        """Return a segment, or the byte range of it that `Range` requests."""
        first = _number(parameters.first_sequence)
        durable, segments = await self._readable_segments()
        segment = next((item for item in segments if item.first_sequence == first), None)
        if segment is None:
            raise _missing(first, durable)
        start, end, partial = read_range(call.request.headers.get("range", ""), segment)
        try:
            file = await asyncio.to_thread(io.FileIO, segment_path(self._journal.directory, first))
        except FileNotFoundError:
            raise _missing(first, durable) from None
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - start)}
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{segment.size}"
        status = 206 if partial else 200
        if call.request.method == "HEAD":
            start = end
        return StreamingResponse(_chunks(file, start, end), status, headers, OCTETS)

    @handles(LIST_SLOTS)
    async def list_slots(self, call: Call, query: PageQuery) -> Page[SlotView]:
        """Return a page of the slots."""
        slots = list((await self._run_in_thread(self._journal.slots.list)).items())
        items = [await self._slot_view(name, slot) for name, slot in slots[query.part]]
        return query.page_with(items, len(slots))

    @handles(GET_SLOT)
    async def show_slot(self, call: Call, parameters: NamePath) -> SlotView:
        """Return a slot."""
        name = _name(call)
        return await self._slot_view(name, await self._run_in_thread(self._journal.slots.get, name))

    @handles(PUT_SLOT)
    async def put_slot(self, call: Call, parameters: NamedBody[SlotRequest]) -> SlotView:
        """Create, advance or claim a slot. Only a new slot is written to the audit log, because
        readers advance theirs continuously."""
        name = _name(call)
        slot, created = await self._run_in_thread(
            _create_or_advance, self._journal.slots, name, parameters.body
        )
        call.audited = created
        return await self._slot_view(name, slot)

    @handles(DELETE_SLOT)
    async def delete_slot(self, call: Call, parameters: NamePath) -> None:
        """Delete a slot."""
        await self._run_in_thread(self._journal.slots.delete, _name(call))

    async def _slot_view(self, name: str, slot: Slot) -> SlotView:
        journal = self._journal
        lag = await asyncio.to_thread(
            records_after, journal.directory, list(journal.segments), slot.position
        )
        return SlotView(
            name,
            slot.position,
            lag,
            slot.limit_bytes,
            slot.created,
            slot.lost,
            slot.moved,
            slot.abandoned,
            slot.holder,
            slot.until,
        )

    async def _run_in_thread(self, function: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """Run `function` on another thread, because it reads and syncs files."""
        async with self._lock:
            try:
                return await asyncio.to_thread(function, *arguments)
            except RecordNotFound as error:
                raise ApiError(404, "slot-not-found", str(error)) from None
            except JournalDamaged as error:
                raise ApiError(500, "slot-damaged", str(error)) from None

    async def _readable_segments(self) -> tuple[DurableEnd, list[SegmentView]]:
        """Return the durable end, and the segments in ascending order with their readable sizes,
        without creation times."""
        durable = await asyncio.to_thread(read_durable, self._journal.directory)
        if durable is None:
            raise ApiError(
                503, "journal-not-ready", "the durable end of the journal is not known yet"
            )
        segments = []
        # the cached position is never behind the one that the file has reported
        for segment in self._journal.segments:
            if segment.sealed or segment.first <= durable.segment:
                end = segment.end if segment.first < durable.segment else durable.offset
                size = segment.size if segment.sealed else end
                segments.append(SegmentView(segment.first, size, segment.sealed, 0))
        return durable, segments


async def _chunks(file: io.FileIO, start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a segment from `start` to `end`, read in chunks on another thread. Closes
    the file."""
    with file:
        while start < end:
            size = min(CHUNK_BYTES, end - start)
            chunk = await asyncio.to_thread(os.pread, file.fileno(), size, start)
            if not chunk:
                raise JournalDamaged(
                    f"a segment ends at offset {start}, {end - start} bytes before the end that "
                    "it was known to have"
                )
            start += len(chunk)
            yield chunk


def _with_creation_times(directory: Path, segments: list[SegmentView]) -> list[SegmentView]:
    """Return the segments that still exist, with the creation times in their headers."""
    existing = []
    for segment in segments:
        with suppress(FileNotFoundError):
            header = read_segment_header(directory, segment.first_sequence)
            existing.append(msgspec.structs.replace(segment, created=header.created))
    return existing


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
    return ApiError(404, "not-found", f"segment {first} does not exist yet")


def read_range(header: str, segment: SegmentView) -> tuple[int, int, bool]:
    """Return the start, the end (exclusive), and True if the client sent a range (RFC 9110,
    14.1.2)."""
    if not header:
        return 0, segment.size, False
    match = _RANGE.match(header.strip())
    if match is None:
        raise ApiError(
            400,
            "bad-range",
            "a Range is one of bytes=FIRST-LAST, bytes=FIRST- and bytes=-COUNT; only one at a time",
        )
    first, last, count = (None if group is None else int(group) for group in match.groups())
    if first is None:
        start, end = max(0, segment.size - (count or 0)), segment.size
    else:
        start, end = first, segment.size if last is None else min(last + 1, segment.size)
        if last is not None and last < first:
            raise ApiError(400, "bad-range", "the Range ends before it begins")
    if start >= end:
        raise ApiError(
            416,
            "range-not-satisfiable",
            f"{segment.size} bytes of the segment may be read now",
            {"Content-Range": f"bytes */{segment.size}"},
            {"size": segment.size, "sealed": segment.sealed},
        )
    return start, end, True


def _create_or_advance(slots: Slots, name: str, requested: SlotRequest) -> tuple[Slot, bool]:
    """Create, advance or claim a slot. Return it, and True if it is new."""
    position = requested.position
    slot = None
    try:
        slot = slots.get(name)
    except RecordNotFound:
        if len(slots.readable()[0]) >= MAX_SLOTS:
            raise ApiError(
                409,
                "too-many-slots",
                f"there are {MAX_SLOTS} slots already; delete unused ones",
            ) from None
    if requested.holder:
        try:
            return slots.claim(name, requested.holder, position, requested.lease_ms), slot is None
        except JournalError as error:
            raise ApiError(409, "slot-held", str(error)) from None
    try:
        if slot is None:
            return slots.create(name, position, requested.limit_bytes), True
        if slot.lost:
            raise ApiError(409, "slot-lost", slot.describe_loss(name))
        if position < slot.position:
            raise ApiError(
                409,
                "slot-ahead",
                f"the slot {name} is at {slot.position} and cannot go back",
                more={"position": slot.position},
            )
        return slots.advance(name, position), False
    except JournalError:  # the slot has changed meanwhile
        return _create_or_advance(slots, name, requested)


def _name(call: Call) -> str:
    name = call.names["name"]
    if not is_slot_name(name):
        raise ApiError(
            400,
            "bad-name",
            "the name of a slot can have up to 63 characters of a-z 0-9 _ . - and "
            "must begin with a letter or digit",
        )
    return name


# --- Backups --------------------------------------------------------------------------------------
#
# Endpoints that list and create backups in the configured directory (`sluicemq.journal.backup`).
#
# A backup takes minutes. The response is therefore a stream of lines, each a JSON object with a
# `state`:
#
#     {"state": "copying", "processed": bytes, "total": bytes}        now and then
#     {"state": "done", "backup": …}                             the last one, or
#     {"state": "failed", "error": {"type": …, "code": …, "detail": …, …}}
#
# Closing the connection cancels the backup. Only one backup runs at a time.

REPORT_SECONDS: Final = 0.5
"""Interval between two progress lines."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z", re.ASCII)

log = structlog.get_logger("sluicemq.backup")


class BackupService(Service):
    """Handlers of `/backups`, shared by all connections of a listener."""

    @handles(LIST_BACKUPS)
    async def show(self, call: Call, query: PageQuery) -> BackupList:
        """Return a page of the backups, and the files that the next one will include."""
        configuration = self._context.configuration
        directory = configuration.directory
        backups: list[BackupView] = []
        if directory is not None and directory.is_dir():
            backups = await asyncio.to_thread(find_backups, directory)
        page = query.page(backups)
        return BackupList(
            directory=None if directory is None else str(directory),
            running=_running.locked(),
            users_file=str(configuration.users_file.absolute()),
            configuration=configuration.configuration,
            items=page.items,
            total=page.total,
            next_cursor=page.next_cursor,
        )

    @handles(CREATE_BACKUP)
    async def create(self, call: Call, parameters: Body[BackupRequest]) -> StreamingResponse:
        """Create a backup; the response reports its progress."""
        requested = parameters.body
        call.note = requested.directory
        configuration = self._context.configuration
        journal = require_file_journal(self._context.broker.journal)
        directory = configuration.directory
        if directory is None:
            raise ApiError(
                409,
                "no-backup-directory",
                "this broker has no directory for backups: broker.backup_dir in its configuration "
                "names one",
            )
        target = directory / _backup_name(requested.directory)
        previous = None
        if requested.incremental_from is not None:
            previous = directory / _backup_name(requested.incremental_from)
            try:
                await asyncio.to_thread(read_manifest, previous)
            except JournalError:
                raise ApiError(
                    404,
                    "backup-not-found",
                    f"there is no backup named {previous.name} to begin with",
                ) from None
        if not _running.acquire(blocking=False):
            raise ApiError(
                409, "backup-running", "another backup is in progress; wait until it is complete"
            )
        cancelled = threading.Event()
        latest: deque[CopyProgress] = deque(maxlen=1)

        def copy() -> Manifest:
            return make_backup(
                journal.directory,
                target,
                read_extras=configuration.sources,
                previous=previous,
                link=requested.hard_links,
                rate=requested.max_rate,
                on_progress=latest.append,
                # a response that has not begun does not notice the end of its connection
                cancelled=lambda: cancelled.is_set() or call.caller.is_closed,
            )

        try:
            await asyncio.to_thread(_create_directory, target)
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(None, _make, copy, target, call.caller.peer)
        except BaseException:
            _running.release()
            raise
        call.audited = False  # until the result is known, also to a client that has gone
        future.add_done_callback(
            lambda future: call.audit(
                self._context.audit, 200 if future.result()["state"] == "done" else 500
            )
        )
        return StreamingResponse(_lines(future, latest, cancelled), media_type=LINES)


_running: Final = threading.Lock()
"""Lock that limits the process, which has one journal, to one backup at a time."""


def _create_directory(target: Path) -> None:
    try:
        target.mkdir(mode=0o700)
    except FileExistsError:
        raise ApiError(
            409, "backup-exists", f"there is a backup named {target.name} already"
        ) from None
    except OSError as error:
        raise ApiError(
            409, "no-backup-directory", f"the broker cannot create {target}: {error.strerror}"
        ) from None


def _make(copy: Callable[[], Manifest], target: Path, peer: str) -> dict[str, Any]:
    """Create the backup, on another thread. Return the last line of the response."""
    name = target.name
    try:
        manifest = copy()
        log.info("backup made", name=name, bytes=manifest.bytes, peer=peer)
        # the client knows the earlier backup by its name, as in the request and in the list
        previous_name = Path(manifest.incremental_from).name
        manifest = msgspec.structs.replace(manifest, incremental_from=previous_name)
        return {"state": "done", "backup": msgspec.to_builtins(manifest)}
    except Exception as error:
        shutil.rmtree(target, ignore_errors=True)
        code = "cancelled" if isinstance(error, BackupCancelled) else "backup-failed"
        if not isinstance(error, JournalError | OSError):
            log.error("internal error", exc_info=error)
        log.warning("backup failed", name=name, error=str(error), peer=peer)
        return {"state": "failed", "error": problem(500, code, str(error))}
    finally:
        _running.release()


async def _lines(
    future: asyncio.Future[dict[str, Any]],
    latest: deque[CopyProgress],
    cancelled: threading.Event,
) -> AsyncIterator[bytes]:
    """Yield the lines of the response: progress, at least once, then the result. Cancels the backup
    if the response ends before it."""
    try:
        ended = False
        while not ended:
            await asyncio.wait((future,), timeout=REPORT_SECONDS)
            ended = future.done()
            if latest:
                # repeated without progress: only a write shows that the client has gone
                processed, total = latest[0]
                line = {"state": "copying", "processed": processed, "total": total}
                yield msgspec.json.encode(line) + b"\n"
        yield msgspec.json.encode(future.result()) + b"\n"
    finally:
        cancelled.set()


def _backup_name(text: str) -> str:
    if not _NAME.match(text):
        raise ApiError(
            400,
            "bad-name",
            "a backup's name has up to 100 characters (A-Z a-z 0-9 . _ -) and begins with one of "
            "A-Z a-z 0-9",
        )
    return text
