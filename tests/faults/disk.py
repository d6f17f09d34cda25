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
    """Return the durable size of the newest segment when the broker was killed.

    It includes the header at least, which is written before the segment gets its name.
    """
    durable = read_durable(directory / "journal")
    newest_sequence = int(newest_segment(directory).stem)
    return (
        durable.offset if durable and durable.segment == newest_sequence else SEGMENT_HEADER_BYTES
    )


def truncate(path: Path, size: int) -> None:
    """Shorten a file."""
    with path.open("r+b") as file:
        file.truncate(size)


def flip_bit(path: Path, offset: int, bit: int) -> None:
    """Flip one bit; a second call restores it."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def garbage(path: Path, rng: random.Random) -> bytes:
    """Return possible file contents after a crash: noise, zeros, old data or a partial record."""
    length = rng.randrange(1, 20_000)
    variant = rng.choice(("noise", "zeros", "old", "patched"))
    if variant == "zeros":
        return bytes(length)
    noise = rng.randbytes(length)
    if variant == "noise":
        return noise
    content = path.read_bytes()
    start = SEGMENT_HEADER_BYTES
    if variant == "patched":
        start = rng.randrange(len(content)) & ~7
    old_bytes = content[start : start + length]
    return old_bytes if variant == "old" else bytes(rng.randrange(64)) + old_bytes + noise[:4096]
