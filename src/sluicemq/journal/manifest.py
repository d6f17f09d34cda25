"""Manifest of a backup, verification of its files, and the list of backups in a directory.

DIR/
  manifest.json        a `Manifest`; written last, so that without it there is no backup
  journal/             a journal as a data directory has it, which ends at the manifest's
    identity           `last_sequence`
    durable
    NNN.snapshot
    NNN.segment …
  users.json           whatever else was asked for
  configuration.toml
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from sluicemq.journal.files import LOCK_NAME, write_whole
from sluicemq.journal.inspect import check
from sluicemq.journal.space import ignore
from sluicemq.management.journal import BackupView
from sluicemq.model.errors import JournalError

MANIFEST_NAME: Final = "manifest.json"
JOURNAL_NAME: Final = "journal"
VERSION: Final = 1
CHUNK_BYTES: Final = 1 << 20

Advance = Callable[[int], None]
"""Callback with the number of bytes processed since the previous call."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a backup; `path` is relative to it, `sha256` in hex digits. `sealed`: a segment
    with index and trailer."""

    path: str
    bytes: int
    sha256: str
    sealed: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a backup, as described in the module.

    version         of this format
    release         of SluiceMQ
    created         ms since the epoch
    identity        of the data directory, 32 hex digits
    first_sequence  the first segment may begin with that number
    last_sequence   the journal ends with that record
    segment, offset where that record ends
    copied_bytes    written for this backup; the others are shared with an earlier one, or with
                    the data directory
    incremental_from  directory of that earlier one, or ""
    """

    version: int = VERSION
    release: str
    created: int
    identity: str
    first_sequence: int
    last_sequence: int
    segment: int
    offset: int
    copied_bytes: int
    incremental_from: str = ""
    files: list[File]

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(file.bytes for file in self.files)


def read_manifest(backup: Path) -> Manifest:
    """Return the manifest. Raises JournalError if there is no backup or it is unfinished."""
    path = backup / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "an unfinished backup" if (backup / JOURNAL_NAME).is_dir() else "no backup"
        raise JournalError(f"{backup} is {what}: it has no {MANIFEST_NAME}") from None
    try:
        manifest = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise JournalError(f"{path} cannot be read: {error}") from None
    if manifest.version != VERSION:
        raise JournalError(
            f"{path} has version {manifest.version}; this release reads only {VERSION}. Use the "
            "release that wrote it."
        )
    for file in manifest.files:
        parts = Path(file.path).parts
        if file.path.startswith("/") or ".." in parts or not parts:
            raise JournalError(f"{path} names a file that is not in the backup: {file.path!r}")
    return manifest


def write_manifest(backup: Path, manifest: Manifest) -> None:
    """Write the manifest durably, which completes the backup."""
    data = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
    write_whole(backup / MANIFEST_NAME, data, mode=0o600)


class Verdict(msgspec.Struct, kw_only=True):
    """Result of `verify`. `records` and `live` are None if the records were not checked."""

    problems: list[str]
    files: int
    bytes: int
    last_sequence: int
    records: int | None = None
    live: int | None = None


def verify(backup: Path, *, records: bool = True, advance: Advance = ignore) -> Verdict:
    """Compare every file with its checksum; with `records`, also check every record, index and
    snapshot in the state that a broker would recover.

    Raises JournalError if there is no backup. The result reports problems of a backup.
    """
    manifest = read_manifest(backup)
    problems = list(_compare(backup, manifest, advance))
    verdict = Verdict(
        problems=problems,
        files=len(manifest.files),
        bytes=manifest.bytes,
        last_sequence=manifest.last_sequence,
    )
    if records and not problems:
        report = check(backup / JOURNAL_NAME)
        problems += map(str, report.problems)
        verdict.records = report.records
        verdict.live = report.live
    return verdict


def _compare(backup: Path, manifest: Manifest, advance: Advance) -> Iterator[str]:
    known = {MANIFEST_NAME}
    for file in manifest.files:
        known.add(file.path)
        digest = sha256()
        try:
            size = sum(map(len, read_file(backup / file.path, digest.update, advance)))
        except FileNotFoundError:
            yield f"{file.path}: the file is missing"
            continue
        except OSError as error:
            yield f"{file.path}: {error.strerror}"
            continue
        if size != file.bytes:
            yield f"{file.path}: the file has {size} bytes, not {file.bytes}"
        elif digest.hexdigest() != file.sha256:
            yield f"{file.path}: the file is not what was backed up: its checksum differs"
    for path in sorted(backup.rglob("*")):
        name = str(path.relative_to(backup))
        if name not in known and not path.is_dir():
            yield f"{name}: the file is not part of the backup"


def read_file(path: Path, update: Callable[[bytes], None], advance: Advance) -> Iterator[bytes]:
    """Iterate over the content of a file in chunks.

    Pass each chunk to `update`, the `update` of a checksum, and its size to `advance`. Raises
    OSError.
    """
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK_BYTES):
            update(data)
            advance(len(data))
            yield data


_decoder: Final = msgspec.json.Decoder(Manifest)


def catalogue(directory: Path) -> list[BackupView]:
    """Return the backups in a directory, sorted by name. Raises OSError."""
    found = []
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            continue
        try:
            manifest = read_manifest(path)
        except JournalError:
            journal = path / JOURNAL_NAME
            # a directory that a broker has opened is a data directory, not a backup
            if journal.is_dir() and not (journal / LOCK_NAME).exists():
                found.append(BackupView(name=path.name, complete=False))
            continue
        found.append(
            BackupView(
                name=path.name,
                complete=True,
                created=manifest.created,
                version=manifest.release,
                broker_id=manifest.identity,
                bytes=manifest.bytes,
                copied_bytes=manifest.copied_bytes,
                last_sequence=manifest.last_sequence,
                incremental_from=Path(manifest.incremental_from).name,
            )
        )
    return found
