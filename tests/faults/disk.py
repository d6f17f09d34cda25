"""Damage to the files of a stopped broker."""

from __future__ import annotations

import random
from pathlib import Path

from sluicemq.journal.files import read_durable
from sluicemq.journal.segment import SEGMENT_HEADER_BYTES, list_segments, segment_path


def newest_segment(directory: Path) -> Path:
    """Return the path of the newest segment."""
    journal = directory / "journal"
    return segment_path(journal, list_segments(journal)[-1])


def durable_end(directory: Path) -> int:
    """Return the durable size of the newest segment when the broker was killed; at least its
    header, which is written before the segment has its name."""
    durable = read_durable(directory / "journal")
    newest_sequence = int(newest_segment(directory).stem)
    return (
        durable.offset if durable and durable.segment == newest_sequence else SEGMENT_HEADER_BYTES
    )


def cut(path: Path, size: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, offset: int, bit: int) -> None:
    """Flip one bit; a second call restores it."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def garbage(path: Path, chance: random.Random) -> bytes:
    """Return possible file contents after a crash: noise, blank pages, old data, half a record."""
    length = chance.randrange(1, 20_000)
    kind = chance.choice(("noise", "zeros", "old", "patched"))
    if kind == "zeros":
        return bytes(length)
    noise = chance.randbytes(length)
    if kind == "noise":
        return noise
    content = path.read_bytes()
    start = SEGMENT_HEADER_BYTES
    if kind == "patched":
        start = chance.randrange(len(content)) & ~7
    old_bytes = content[start : start + length]
    return old_bytes if kind == "old" else bytes(chance.randrange(64)) + old_bytes + noise[:4096]
