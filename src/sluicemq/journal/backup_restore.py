"""Restore of a backup into a data directory in which a broker can start.

Records written after the backup are lost, but journal readers may have positions beyond its end
and clients may have received message ids from that time. To avoid reusing a sequence number, the
restored journal continues LEAP numbers later. It also gets a new identity unless the caller keeps
the old one: a reader's checkpoint is then rejected as belonging to another journal, and the reader
does not skip records that the restored broker writes.

The journal is assembled under a temporary name and renamed at the end: an interrupted restore
leaves no journal and can be repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from sluicemq.journal.append import now
from sluicemq.journal.files import (
    DURABLE_NAME,
    create_file,
    hand_over,
    sync_directory,
    write_at,
    write_whole,
)
from sluicemq.journal.format import GROUP_START, UNIT_END, RecordType, encode_record
from sluicemq.journal.manifest import (
    JOURNAL_NAME,
    Advance,
    File,
    Manifest,
    read_file,
    read_manifest,
)
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
from sluicemq.model.errors import JournalDamaged, JournalError

LEAP: Final = 1 << 40
"""Sequence numbers to skip: four months at 100,000 messages per second."""
PARTIAL: Final = "journal.restoring"
ALLOWED: Final = frozenset({PARTIAL, "lost+found"})
"""Names that a directory may contain and still count as empty."""


class Restored(NamedTuple):
    """Result of a restore; `identity` is the journal's identity in 32 hex digits."""

    manifest: Manifest
    identity: str
    next_sequence: int


def restore(
    backup: Path, data_dir: Path, *, keep_broker_id: bool = False, advance: Advance = ignore
) -> Restored:
    """Restore a backup into `data_dir` and verify the checksum of every file.

    `data_dir` must be empty or not exist. If root restores, the files are assigned to the owner of
    that directory. Raises JournalError, JournalDamaged if the backup is damaged, OSError.
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
    identity = bytes.fromhex(manifest.identity) if keep_broker_id else os.urandom(IDENTITY_BYTES)
    others_too: list[Path] = []
    for file in manifest.files:
        content = _checked(backup, file, advance)
        source = backup / file.path
        directory, _, name = file.path.rpartition("/")
        if directory == JOURNAL_NAME and name.endswith(SUFFIX):
            _write_segment(source, partial / name, content, identity, sealed=file.sealed)
        elif directory == JOURNAL_NAME:
            data = b"".join(content)
            if name == IDENTITY_NAME:
                data = identity.hex().encode() + b"\n"
            if name != DURABLE_NAME:  # it does not apply to the rewritten segments
                write_whole(partial / name, data)
        elif not directory:
            data = adopted(b"".join(content), manifest.identity, identity.hex())
            write_whole(data_dir / name, data, mode=0o600)
            others_too.append(data_dir / name)
    next_sequence = manifest.last_sequence + LEAP
    _leap(partial, manifest, identity, next_sequence)
    for path in (*others_too, partial, *partial.iterdir()):
        hand_over(path, data_dir)
    sync_directory(partial)
    os.rename(partial, data_dir / JOURNAL_NAME)
    sync_directory(data_dir)
    return Restored(manifest, identity.hex(), next_sequence)


def adopted(data: bytes, old: str, new: str) -> bytes:
    """Return `data` with the identity `old` replaced by `new`, in full and in its short form, which
    is the first half of the digits."""
    for digits in (len(old), len(old) // 2):
        data = data.replace(old[:digits].encode(), new[:digits].encode())
    return data


def _checked(backup: Path, file: File, advance: Advance) -> Iterator[bytes]:
    """Yield the content of a file. Raises JournalDamaged at its end if the checksum differs."""
    digest = sha256()
    try:
        yield from read_file(backup / file.path, digest.update, advance)
    except FileNotFoundError:
        raise JournalDamaged(f"{backup}: {file.path} is missing") from None
    if digest.hexdigest() != file.sha256:
        raise JournalDamaged(
            f"{backup}: {file.path} is not what was backed up: its checksum differs. To see what "
            f"else is affected: sluicemq backup verify {backup}"
        )


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
        place = crc = 0
        for data in content:
            if place == 0:
                header = decode_segment_header(data, source)._replace(identity=identity)
                data = encode_segment_header(header) + data[SEGMENT_HEADER_BYTES:]
            crc, last = crc_before_trailer(crc, last, data)
            place = write_at(fd, data, place)
        trailer = decode_trailer(last) if sealed else None
        if trailer is not None:
            offset, records, _ = trailer
            write_at(fd, encode_trailer(offset, records, crc), place - TRAILER_BYTES)
        os.fsync(fd)


def _leap(journal: Path, manifest: Manifest, identity: bytes, sequence: int) -> None:
    """Write a final segment that contains one SEQUENCE_RESERVED record with that sequence
    number."""
    last = segment_path(journal, manifest.segment)
    end = manifest.offset
    if any(file.sealed and file.path.endswith(last.name) for file in manifest.files):
        trailer = decode_trailer(last.read_bytes()[-TRAILER_BYTES:])
        end = trailer[0] if trailer is not None else 0
    header = SegmentHeader(sequence, manifest.segment, now(), identity, end)
    record = encode_record(
        RecordType.SEQUENCE_RESERVED, sequence, now(), b"", flags=UNIT_END | GROUP_START
    )
    write_whole(segment_path(journal, sequence), encode_segment_header(header) + b"".join(record))
