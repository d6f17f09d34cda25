"""The two file formats of Open MQ's store. All numbers are big-endian.

A file of records (`vrfile`, `destination`, `interest`, `txn`, …):

    0 magic:u32 5555AAAA  4 version:i16  6 -:i16  8 cookie:i64  [version 2: 16 -:i64]   then records

    0 magic:u32 AAAA5555  4 size:i32, all of the record  8 state:i16  10 cookie:i16  12 data

    states of version 2: 1 free, 2 in use, 3 the last one, of size 0; of version 1: 1, 2, 0

A record whose cookie is not 0 was being written when the broker ended.

A file of its own for what is large (`0`, `1`, …):

    0 tag: 0004 and GOOD, FREE or "...."  6 size:i64  data  size:i64  attachment
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from sluicemq.migrate.openmq.serial import read_objects
from sluicemq.migrate.source_files import Damage, SourceFile

FILE_MAGIC: Final = 0x5555AAAA
RECORD_MAGIC: Final = 0xAAAA5555
LARGEST: Final = 0x7FFF_FFFF

_FREE: Final = 1
_IN_USE: Final = 2
_LAST: Final = {1: 0, 2: 3}
_HEADER_SIZE: Final = {1: 16, 2: 24}

_file: Final = Struct(">Ihhq")
_record: Final = Struct(">Iihh")
_tag: Final = Struct(">H4sq")
_i64: Final = Struct(">q")
_NUMERIC: Final = re.compile(r"[0-9]{1,10}\Z")
_RECORD_SIGN: Final = RECORD_MAGIC.to_bytes(4, "big")
_SEARCHED: Final = 1 << 20

Faults = Callable[[Damage], None]
"""Policy for damage: raise it, or record it and continue after it."""


@contextmanager
def tolerating(faults: Faults) -> Iterator[None]:
    """Leave damage in the context to the policy."""
    try:
        yield
    except Damage as fault:
        faults(fault)


class DataRange(NamedTuple):
    """Position of data in a file. `complete`: it was written to its end."""

    position: int
    size: int
    complete: bool = True


def records(data: SourceFile, faults: Faults) -> Iterator[DataRange]:
    """Read the records in use of a file of records."""
    if not data.size:
        return
    magic, version, _, _ = data.unpack(_file, 0)
    if magic != FILE_MAGIC or version not in _HEADER_SIZE:
        raise data.damage(0, "this is no file of records of Open MQ, or one of another version")
    position = _HEADER_SIZE[version]
    last = _LAST[version]
    while position < data.size:
        try:
            sign, size, state, cookie = data.unpack(_record, position)
            if sign != RECORD_MAGIC:
                raise data.damage(position, "a record should begin here")
            if state == last and not size:
                return
            if state not in (_FREE, _IN_USE):
                raise data.damage(position, f"a record has the state {state}, which there is not")
            if not _record.size < size <= data.size - position:
                raise data.damage(position, f"a record of {size} bytes has no place here")
        except Damage as fault:
            faults(fault)
            position = _next_sign(data, position + 1)
            continue
        if state == _IN_USE:
            yield DataRange(position + _record.size, size - _record.size, cookie == 0)
        position += size


def _next_sign(data: SourceFile, position: int) -> int:
    """Return the position of the next possible record; the end if there is none."""
    while position < data.size:
        part = data.read(position, min(_SEARCHED, data.size - position))
        found = part.find(_RECORD_SIGN)
        if found >= 0:
            return position + found
        if position + len(part) >= data.size:
            break
        position += len(part) - len(_RECORD_SIGN) + 1
    return data.size


class MapEntry(NamedTuple):
    """A key and its value, serialised objects; `behind` is the data after them."""

    key: object
    value: object
    behind: bytes
    where: str


def entries(path: Path, faults: Faults) -> list[MapEntry]:
    """Read a map from a file of records; a missing file is an empty map."""
    found: list[MapEntry] = []
    if not path.exists():
        return found
    with SourceFile.open(path) as data:
        for span in records(data, faults):
            where = f"{path}, record at byte {span.position}"
            with tolerating(faults):
                raw = data.read(span.position, span.size)
                (key, value), end = read_objects(raw, 2, where)
                found.append(MapEntry(key, value, raw[end:], where))
    return found


class LargeFile(NamedTuple):
    """Contents of a file with a single record. `complete` as in DataRange; otherwise the rest is
    undefined."""

    data: DataRange
    attachment: DataRange


def large_files(directory: Path) -> list[Path]:
    """Return the files with a single record in the directory."""
    found = [path for path in directory.iterdir() if _NUMERIC.match(path.name)]
    return sorted(found, key=lambda path: int(path.name))


def read_large(data: SourceFile) -> LargeFile | None:
    """Read such a file; None if it is empty. Raises Damage."""
    if data.size < _tag.size:
        return None
    length, tag, size = data.unpack(_tag, 0)
    if length != 4 or tag not in (b"GOOD", b"FREE", b"...."):
        raise data.damage(0, "the file has no tag of Open MQ's")
    if tag == b"FREE":
        return None
    start = _tag.size
    if tag == b"....":
        return LargeFile(DataRange(start, 0, False), DataRange(start, 0, False))
    if not 0 <= size <= min(LARGEST, data.size - start):
        raise data.damage(6, f"{size} bytes of data are announced, and the file ends before")
    behind = start + size
    attached = data.unpack(_i64, behind)[0] if data.size - behind >= _i64.size else 0
    behind += _i64.size
    if attached and not 0 <= attached <= data.size - behind:
        raise data.damage(behind, f"{attached} bytes of attachment are announced")
    return LargeFile(DataRange(start, size), DataRange(behind, attached))
