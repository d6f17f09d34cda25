"""Backups that have been made: their manifest, verification, restore, and the list of a directory.

DIR/
  manifest.json        a `Manifest`; written last, so that without it there is no backup
  journal/             a journal as a data directory has it, which ends at the manifest's
    identity           `last_sequence`
    durable
    NNN.snapshot
    NNN.segment …
  users.json           other files, as the caller requested
  configuration.toml

A backup is restored into a data directory in which a broker can start. Records written after the
backup are lost, but journal readers may have positions beyond its end and clients may have received
message ids from that time. So that no sequence number is reused, the restored journal skips
RESTORE_GAP of them. It also gets a new identity unless the caller keeps the old one: a reader's
checkpoint is then rejected as belonging to another journal, and the reader does not skip records
that the restored broker writes.

The journal is assembled under a temporary name and renamed at the end: an interrupted restore
leaves no journal and can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sluicemq.journal.append import now
from sluicemq.journal.files import (
    DURABLE_NAME,
    JOURNAL_NAME,
    LOCK_NAME,
    DurableEnd,
    create_file,
    encode_durable,
    inherit_owner,
    sync_directory,
    write_at,
    write_atomically,
)
from sluicemq.journal.format import GROUP_START, UNIT_END, RecordType, encode_record
from sluicemq.journal.inspect import check
from sluicemq.journal.segment import (
    IDENTITY_BYTES,
    IDENTITY_NAME,
    SEGMENT_HEADER_BYTES,
    SUFFIX,
    TRAILER_BYTES,
    SegmentHeader,
    crc_before_trailer,
    decode_segment_header,
    decode_trailer,
    encode_segment_header,
    encode_trailer,
    segment_path,
)
from sluicemq.journal.space import ignore
from sluicemq.management.journal import BackupView
from sluicemq.model.errors import JournalDamaged, JournalError

MANIFEST_NAME: Final = "manifest.json"
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
        description = "an unfinished backup" if (backup / JOURNAL_NAME).is_dir() else "no backup"
        raise JournalError(f"{backup} is {description}: it has no {MANIFEST_NAME}") from None
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
    write_atomically(backup / MANIFEST_NAME, data, mode=0o600)


class VerificationResult(msgspec.Struct, kw_only=True):
    """Result of `verify`. `records` and `live` are None if the records were not checked."""

    problems: list[str]
    files: int
    bytes: int
    last_sequence: int
    records: int | None = None
    live: int | None = None


def verify(backup: Path, *, records: bool = True, advance: Advance = ignore) -> VerificationResult:
    """Compare every file with its checksum; with `records`, also check every record, index and
    snapshot in the state that a broker would recover.

    Raises JournalError if there is no backup. The result reports problems of a backup.
    """
    manifest = read_manifest(backup)
    problems = list(_compare(backup, manifest, advance))
    verdict = VerificationResult(
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
    known_names = {MANIFEST_NAME, *(file.path for file in manifest.files)}
    for file in manifest.files:
        try:
            for _ in read_file(backup, file, advance):
                pass
        except JournalDamaged as error:
            yield str(error)
        except OSError as error:
            yield f"{file.path}: {error.strerror}"
    for path in sorted(backup.rglob("*")):
        name = str(path.relative_to(backup))
        if name not in known_names and not path.is_dir():
            yield f"{name}: the file is not part of the backup"


def read_file(backup: Path, file: File, advance: Advance) -> Iterator[bytes]:
    """Iterate over the content of a file in chunks, and pass the size of each to `advance`.

    Raises OSError; JournalDamaged if the file is missing, and at its end if its size or its
    checksum differs.
    """
    digest = sha256()
    size = 0
    try:
        with (backup / file.path).open("rb", buffering=0) as stream:
            while data := stream.read(CHUNK_BYTES):
                digest.update(data)
                size += len(data)
                advance(len(data))
                yield data
    except FileNotFoundError:
        raise JournalDamaged(f"{file.path}: the file is missing") from None
    if size != file.bytes:
        raise JournalDamaged(f"{file.path}: the file has {size} bytes, not {file.bytes}")
    if digest.hexdigest() != file.sha256:
        raise JournalDamaged(
            f"{file.path}: the file is not what was backed up: its checksum differs"
        )


_decoder: Final = msgspec.json.Decoder(Manifest)


def find_backups(directory: Path) -> list[BackupView]:
    """Return the backups in a directory, sorted by name. Raises OSError."""
    backups = []
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            continue
        # JSON cannot represent a name that is not UTF-8
        name = os.fsencode(path.name).decode("utf-8", "backslashreplace")
        try:
            manifest = read_manifest(path)
        except PermissionError:
            continue  # as of lost+found, at the root of a file system
        except JournalError:
            journal = path / JOURNAL_NAME
            # a directory that a broker has opened is a data directory, not a backup
            if journal.is_dir() and not (journal / LOCK_NAME).exists():
                backups.append(BackupView(name=name, complete=False))
            continue
        backups.append(
            BackupView(
                name=name,
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
    return backups


# --- restore -------------------------------------------------------------------------------------

RESTORE_GAP: Final = 1 << 40
"""Sequence numbers to skip: four months at 100,000 messages per second."""
PARTIAL_JOURNAL: Final = "journal.restoring"
IGNORED_NAMES: Final = frozenset({PARTIAL_JOURNAL, "lost+found"})
"""Names that a directory may contain and still count as empty."""


class RestoreResult(NamedTuple):
    """Result of a restore; `identity` is the journal's identity in 32 hex digits."""

    manifest: Manifest
    identity: str
    next_sequence: int


def restore(
    backup: Path, data_dir: Path, *, keep_broker_id: bool = False, advance: Advance = ignore
) -> RestoreResult:
    """Restore a backup into `data_dir` and verify the checksum of every file.

    `data_dir` must be empty or not exist. If root restores, the files are assigned to the owner of
    that directory. Raises JournalError, JournalDamaged if the backup is damaged, OSError.
    """
    manifest = read_manifest(backup)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {path.name for path in data_dir.iterdir()} - IGNORED_NAMES
    if (data_dir / PARTIAL_JOURNAL).exists():
        names -= {file.path for file in manifest.files}  # written by the interrupted restore
    if other_names := sorted(names):
        raise JournalError(
            f"{data_dir} is not empty ({other_names[0]}): a backup is restored into a directory of "
            "its own. Move its contents elsewhere first"
        )
    partial_journal = data_dir / PARTIAL_JOURNAL
    shutil.rmtree(partial_journal, ignore_errors=True)
    partial_journal.mkdir(mode=0o750)
    identity = bytes.fromhex(manifest.identity) if keep_broker_id else os.urandom(IDENTITY_BYTES)
    extra_paths: list[Path] = []
    for file in manifest.files:
        content = _read_checked(backup, file, advance)
        source = backup / file.path
        directory, _, name = file.path.rpartition("/")
        if directory == JOURNAL_NAME and name.endswith(SUFFIX):
            _write_segment(source, partial_journal / name, content, identity, sealed=file.sealed)
        elif directory == JOURNAL_NAME:
            data = b"".join(content)
            if name == IDENTITY_NAME:
                data = identity.hex().encode() + b"\n"
            if name != DURABLE_NAME:  # the restored journal ends with another segment
                write_atomically(partial_journal / name, data)
        elif not directory:
            data = replace_identity(b"".join(content), manifest.identity, identity.hex())
            write_atomically(data_dir / name, data, mode=0o600)
            extra_paths.append(data_dir / name)
    next_sequence = manifest.last_sequence + RESTORE_GAP
    _write_gap_segment(partial_journal, manifest, identity, next_sequence)
    for path in (*extra_paths, partial_journal, *partial_journal.iterdir()):
        inherit_owner(path, data_dir)
    sync_directory(partial_journal)
    os.rename(partial_journal, data_dir / JOURNAL_NAME)
    sync_directory(data_dir)
    return RestoreResult(manifest, identity.hex(), next_sequence)


def replace_identity(data: bytes, old: str, new: str) -> bytes:
    """Return `data` with the identity `old` replaced by `new`, in full and in its short form, which
    is the first half of the digits."""
    for digits in (len(old), len(old) // 2):
        data = data.replace(old[:digits].encode(), new[:digits].encode())
    return data


def _read_checked(backup: Path, file: File, advance: Advance) -> Iterator[bytes]:
    """Yield the content of a file as `read_file` does, with the remedy in its errors."""
    try:
        yield from read_file(backup, file, advance)
    except JournalDamaged as error:
        raise JournalDamaged(
            f"{backup}: {error}. To see what else is affected: sluicemq backup verify {backup}"
        ) from None


def _write_segment(
    source: Path, target: Path, content: Iterator[bytes], identity: bytes, *, sealed: bool
) -> None:
    """Write `content` of the segment `source` to the new file `target`, with that identity.

    The trailer of a sealed segment gets the new CRC of the file; an unsealed one may end with a
    message that looks like a trailer. Raises JournalDamaged, OSError.
    """
    with create_file(target, 0o640) as file:
        fd = file.fileno()
        last = b""
        position = crc = 0
        for data in content:
            if position == 0:
                header = decode_segment_header(data, source)._replace(identity=identity)
                data = encode_segment_header(header) + data[SEGMENT_HEADER_BYTES:]
            crc, last = crc_before_trailer(crc, last, data)
            position = write_at(fd, data, position)
        trailer = decode_trailer(last) if sealed else None
        if trailer is not None:
            offset, records, _ = trailer
            write_at(fd, encode_trailer(offset, records, crc), position - TRAILER_BYTES)
        os.fsync(fd)


def _write_gap_segment(journal: Path, manifest: Manifest, identity: bytes, sequence: int) -> None:
    """Write a final segment that contains one SEQUENCE_RESERVED record with that sequence number,
    and the durable end after it."""
    last = segment_path(journal, manifest.segment)
    end = manifest.offset
    if any(file.sealed and file.path.endswith(last.name) for file in manifest.files):
        with last.open("rb") as segment_file:
            segment_file.seek(-TRAILER_BYTES, os.SEEK_END)
            trailer = decode_trailer(segment_file.read())
        end = trailer[0] if trailer is not None else 0
    header = SegmentHeader(sequence, manifest.segment, now(), identity, end)
    record = encode_record(
        RecordType.SEQUENCE_RESERVED, sequence, now(), b"", flags=UNIT_END | GROUP_START
    )
    data = encode_segment_header(header) + b"".join(record)
    write_atomically(segment_path(journal, sequence), data)
    durable = DurableEnd(sequence, len(data), sequence)
    write_atomically(journal / DURABLE_NAME, encode_durable(durable))
