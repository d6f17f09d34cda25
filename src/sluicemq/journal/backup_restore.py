"""From a backup to a data directory that a broker can start in.

What happened after the backup is lost, but somebody may remember it: readers of the journal have
positions behind its end, clients have seen message ids. So no number that may have been given is
given again: the restored journal goes on LEAP numbers later. And it gets an identity of its own
unless told otherwise: a reader's checkpoint then says that it belongs to another journal, instead
of passing over what the restored broker writes.

The journal is put together under another name and renamed at the end: a restore that is interrupted
leaves no journal, and can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from sluicemq.journal.append import now
from sluicemq.journal.directory import IDENTITY_NAME
from sluicemq.journal.format import GROUP_START, UNIT_END, RecordType, encode_record
from sluicemq.journal.index import TRAILER_BYTES, decode_trailer
from sluicemq.journal.manifest import (
    JOURNAL_NAME,
    Advance,
    File,
    Manifest,
    read_chunks,
    read_manifest,
)
from sluicemq.journal.rewrite import recast
from sluicemq.journal.segment import (
    IDENTITY_BYTES,
    SUFFIX,
    SegmentHeader,
    encode_segment_header,
    segment_path,
)
from sluicemq.journal.writer import DURABLE_NAME, sync_directory, write_whole
from sluicemq.model.errors import JournalDamaged, JournalError

LEAP: Final = 1 << 40
"""Sequence numbers: what 100,000 messages a second need in four months."""
PARTIAL: Final = "journal.restoring"
ALLOWED: Final = frozenset({PARTIAL, "lost+found"})
"""In a directory that counts as empty."""


class Restored(NamedTuple):
    """What has been restored; `identity` is the journal's, 32 hex digits."""

    manifest: Manifest
    identity: str
    next_sequence: int


def _nothing(count: int) -> None:
    """Ignore the progress."""


def restore(
    backup: Path, data_dir: Path, *, keep_identity: bool = False, advance: Advance = _nothing
) -> Restored:
    """Make a data directory of a backup; every file is compared with its checksum on the way.

    `data_dir` does not exist, or is empty. What root restores belongs to the owner of that
    directory. Raises JournalError, JournalDamaged if the backup is, OSError.
    """
    manifest = read_manifest(backup)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if others := sorted(path.name for path in data_dir.iterdir() if path.name not in ALLOWED):
        raise JournalError(
            f"{data_dir} is not empty ({others[0]}): a backup is restored into a directory of its "
            "own. Move what is there out of the way first"
        )
    partial = data_dir / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o750)
    identity = bytes.fromhex(manifest.identity) if keep_identity else os.urandom(IDENTITY_BYTES)

    def adopt(header: SegmentHeader) -> SegmentHeader:
        return header._replace(identity=identity)

    others_too: list[Path] = []
    for file in manifest.files:
        content = _checked(backup, file, advance)
        source = backup / file.path
        directory, _, name = file.path.rpartition("/")
        if directory == JOURNAL_NAME and name.endswith(SUFFIX):
            recast(source, partial / name, adopt, content=content, sealed=file.sealed)
        elif directory == JOURNAL_NAME:
            data = b"".join(content)
            if name == IDENTITY_NAME:
                data = identity.hex().encode() + b"\n"
            if name != DURABLE_NAME:  # it is not true of what is rewritten
                write_whole(partial / name, data)
        elif not directory:
            data = adopted(b"".join(content), manifest.identity, identity.hex())
            write_whole(data_dir / name, data, mode=0o600)
            others_too.append(data_dir / name)
    next_sequence = manifest.last_sequence + LEAP
    _leap(partial, manifest, identity, next_sequence)
    _hand_over(data_dir, [*others_too, partial, *partial.iterdir()])
    sync_directory(partial)
    os.rename(partial, data_dir / JOURNAL_NAME)
    sync_directory(data_dir)
    return Restored(manifest, identity.hex(), next_sequence)


def adopted(data: bytes, old: str, new: str) -> bytes:
    """What a file says of a journal, said of the restored one: its identity, or the first half of
    it, by which it is known elsewhere."""
    for digits in (len(old), len(old) // 2):
        data = data.replace(old[:digits].encode(), new[:digits].encode())
    return data


def _checked(backup: Path, file: File, advance: Advance) -> Iterator[bytes]:
    """The content of a file; JournalDamaged at its end if it is not what was backed up."""
    digest = sha256()
    try:
        for data in read_chunks(backup / file.path):
            digest.update(data)
            advance(len(data))
            yield data
    except FileNotFoundError:
        raise JournalDamaged(f"{backup}: {file.path} is missing") from None
    if digest.hexdigest() != file.sha256:
        raise JournalDamaged(
            f"{backup}: {file.path} is not what was backed up: its checksum differs. To see what "
            f"else is affected: sluicemq backup verify {backup}"
        )


def _leap(journal: Path, manifest: Manifest, identity: bytes, sequence: int) -> None:
    """A segment behind all others, with a record of that number in it."""
    last = segment_path(journal, manifest.segment)
    end = manifest.offset
    if any(file.sealed and file.path.endswith(last.name) for file in manifest.files):
        trailer = decode_trailer(last.read_bytes()[-TRAILER_BYTES:])
        end = trailer[0] if trailer is not None else 0
    header = SegmentHeader(sequence, manifest.segment, now(), identity, end)
    record = encode_record(RecordType.NUMBERED, sequence, now(), b"", flags=UNIT_END | GROUP_START)
    write_whole(segment_path(journal, sequence), encode_segment_header(header) + b"".join(record))


def _hand_over(data_dir: Path, paths: list[Path]) -> None:
    """To the broker's own user, if it is root who restores."""
    if os.geteuid() == 0:
        status = data_dir.stat()
        for path in paths:
            os.chown(path, status.st_uid, status.st_gid)
