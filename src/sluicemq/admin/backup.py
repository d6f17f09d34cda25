"""Endpoints that list and create backups in the configured directory (`sluicemq.journal.backup`).

A backup takes minutes. The response is therefore a stream of lines, each a JSON object with a
`state`:

    {"state": "copying", "processed": bytes, "total": bytes}        now and then
    {"state": "done", "backup": …}                             the last one, or
    {"state": "failed", "error": {"type": …, "code": …, "detail": …, …}}

Closing the connection cancels the backup. Only one backup runs at a time.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import structlog
from msgspec import Meta
from starlette.responses import StreamingResponse

from sluicemq.admin.api_context import ApiContext
from sluicemq.admin.errors import ApiError, problem
from sluicemq.admin.journal import kept
from sluicemq.admin.pagination import Page, PageQuery, page_of
from sluicemq.admin.routing import Call, Endpoint, Need
from sluicemq.admin.server_interface import Backups
from sluicemq.journal.backup import create
from sluicemq.journal.backup_copy import BackupCancelled, CopyProgress
from sluicemq.journal.manifest import BackupView, Manifest, catalogue, read_manifest
from sluicemq.model.errors import JournalError

LINES: Final = "application/x-ndjson"
REPORT_SECONDS: Final = 0.5
"""Minimum interval between two progress lines."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z", re.ASCII)

log = structlog.get_logger("sluicemq.backup")


class BackupRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a new backup."""

    directory: Annotated[str, Meta(description="Name of the backup in the configured directory.")]
    incremental_from: Annotated[
        str | None, Meta(description="Earlier backup whose unchanged files are shared.")
    ] = None
    hard_links: Annotated[
        bool, Meta(description="Share sealed segments with the data directory, if possible.")
    ] = False
    max_rate: Annotated[
        int, Meta(ge=0, le=1 << 50, description="Maximum bytes copied per second; 0 = no limit.")
    ] = 0


class BackupList(Page[BackupView], frozen=True, kw_only=True):
    """Backups in the configured directory, and the files that the next backup will include."""

    directory: str | None
    running: bool
    users_file: str
    configuration: Annotated[str, Meta(description="The settings in force, as TOML.")]


class BackupEndpoints:
    """Handlers of `/backups`, shared by all connections of a listener."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    async def show(self, call: Call) -> BackupList:
        """GET /backups"""
        backups = self._backups()
        directory = backups.directory
        found: list[BackupView] = []
        if directory is not None and directory.is_dir():
            found = await asyncio.to_thread(catalogue, directory)
        page = page_of(found, call.query)
        return BackupList(
            directory=None if directory is None else str(directory),
            running=_running.locked(),
            users_file=str(backups.users_file),
            configuration=backups.configuration,
            items=page.items,
            total=page.total,
            next_cursor=page.next_cursor,
        )

    async def create(self, call: Call) -> StreamingResponse:
        """POST /backups"""
        requested: BackupRequest = call.body
        call.note = requested.directory
        backups = self._backups()
        journal = kept(self._context.broker.journal)
        home = backups.directory
        if home is None or not home.is_dir():
            raise ApiError(
                409,
                "no-backup-directory",
                "this broker has no directory for backups: broker.backup_dir in its configuration "
                "names one",
            )
        target = home / _name(requested.directory)
        previous = None
        if requested.incremental_from is not None:
            previous = home / _name(requested.incremental_from)
            await asyncio.to_thread(_check_previous, previous)
        if not _running.acquire(blocking=False):
            raise ApiError(409, "backup-running", "another backup is being made; wait for its end")
        work = _Work(journal.directory, target, previous, requested, backups)
        try:
            await asyncio.to_thread(work.take_name)
        except BaseException:
            _running.release()
            raise
        work.start(call.caller.peer)
        return StreamingResponse(work.lines(), media_type=LINES)

    def _backups(self) -> Backups:
        backups = self._context.backups
        if backups is None:
            raise ApiError(409, "no-backup-directory", "this broker makes no backups")
        return backups


_running: Final = threading.Lock()
"""Lock that limits the process, which has one journal, to one backup at a time."""


class _Work:
    """One backup: a thread creates it, the event loop sends its progress."""

    def __init__(
        self,
        journal: Path,
        target: Path,
        previous: Path | None,
        requested: BackupRequest,
        backups: Backups,
    ) -> None:
        self._journal = journal
        self._target = target
        self._previous = previous
        self._requested = requested
        self._backups = backups
        self._given_up = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._last_report = 0.0

    def take_name(self) -> None:
        """Create the target directory. Raises ApiError if it exists."""
        try:
            self._target.mkdir(mode=0o700)
        except FileExistsError:
            raise ApiError(
                409, "backup-exists", f"there is a backup named {self._target.name} already"
            ) from None

    def start(self, peer: str) -> None:
        """Start the backup thread. It runs until the backup is complete or `lines` is closed."""
        threading.Thread(target=self._make, args=(peer,), name="backup", daemon=True).start()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of the response: progress, then the result."""
        try:
            while True:
                line = await self._reports.get()
                yield msgspec.json.encode(line) + b"\n"
                if line["state"] != "copying":
                    return
        finally:
            self._given_up.set()

    def _report(self, line: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._reports.put_nowait, line)

    def _copying(self, progress: CopyProgress) -> None:
        now = time.monotonic()
        if now - self._last_report >= REPORT_SECONDS:
            self._last_report = now
            self._report({"state": "copying", "processed": progress.done, "total": progress.total})

    def _make(self, peer: str) -> None:
        name = self._target.name
        try:
            manifest = create(
                self._journal,
                self._target,
                extras=self._backups.sources(),
                previous=self._previous,
                link=self._requested.hard_links,
                rate=self._requested.max_rate,
                on_progress=self._copying,
                cancelled=self._given_up.is_set,
            )
            line = {"state": "done", "backup": _described(manifest)}
            log.info("backup made", name=name, bytes=manifest.bytes, peer=peer)
        except Exception as error:
            shutil.rmtree(self._target, ignore_errors=True)
            code = "cancelled" if isinstance(error, BackupCancelled) else "backup-failed"
            if not isinstance(error, JournalError | OSError):
                log.error("internal error", exc_info=error)
            log.warning("backup failed", name=name, error=str(error), peer=peer)
            line = {"state": "failed", "error": problem(500, code, str(error))}
        finally:
            _running.release()
        self._report(line)


def _described(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(manifest)
    return found


def _check_previous(previous: Path) -> None:
    try:
        read_manifest(previous)
    except JournalError:
        raise ApiError(
            404, "backup-not-found", f"there is no backup named {previous.name} to begin with"
        ) from None


def _name(text: str) -> str:
    if not _NAME.match(text):
        raise ApiError(
            400,
            "bad-name",
            "a backup's name has up to 100 characters (A-Z a-z 0-9 . _ -) and begins with one of "
            "A-Z a-z 0-9",
        )
    return text


def endpoints(context: ApiContext) -> list[Endpoint]:
    """Return the endpoints of /backups."""
    handlers = BackupEndpoints(context)
    return [
        Endpoint(
            "GET",
            "/backups",
            "listBackups",
            handlers.show,
            "List the backups",
            Need.SUPERUSER,
            query=PageQuery,
            answer=BackupList,
        ),
        Endpoint(
            "POST",
            "/backups",
            "createBackup",
            handlers.create,
            "Create a backup; the response reports its progress, one line at a time",
            Need.SUPERUSER,
            body=BackupRequest,
            media=LINES,
        ),
    ]
