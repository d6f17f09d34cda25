"""Mutations of a valid conversation: pure functions of a random generator and a list of frames.

Frames are the meaningful parts of a conversation: frames, lines, a head and a body. A mutation
changes a frame or the order of frames. With a seeded `random.Random` it can be repeated; with the
`st.randoms()` of hypothesis a failure is reduced to its smallest form.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from random import Random
from typing import Final

Frames = list[bytes]
Mutator = Callable[[Random, Frames], Frames]

_DIGITS: Final = re.compile(rb"[0-9]+")
_NUMBERS: Final = (
    *(0, 1, 2, 9, 10, 99, 100, 127, 128, 255, 256, 4095, 4096, 4097, 65535, 65536),
    *(64 << 20, (64 << 20) + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63),
    *(2**64 - 1, 2**64, 10**18, 10**19, 10**20 - 1, 10**20, 10**28, 10**29 - 1, 10**40),
)
"""Limits of lengths, counts and times, and values just beyond them."""
_FORMS: Final = (struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q"))
_SPELLINGS: Final = (b"%d", b"-%d", b"+%d", b" %d", b"0%d", b"%d.5", b"%d_0", b"0x%d", b"%d" * 9)
_SPECIAL: Final = (
    *(b"\0", b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x0b", b"\x1b", b"\x7f", b"\x85", b"\xff"),
    *(b"H", b"P", b">", b"<", b"?", b".", b"*", b"-", b":", b"%", b'"', b"\\", b"\xc3\xa9"),
)


def flip_bits(chance: Random, frames: Frames) -> Frames:
    """Flip one to eight bits of a frame."""

    def flip(frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range(chance.randint(1, 8)):
            bit = chance.randrange(8 * len(data))
            data[bit >> 3] ^= 1 << (bit & 7)
        return bytes(data)

    return _in_one(chance, frames, flip)


def cut_out(chance: Random, frames: Frames) -> Frames:
    """Remove a part of a frame: its beginning, middle or end."""

    def cut(frame: bytes) -> bytes:
        start = chance.randrange(len(frame))
        return frame[:start] + frame[chance.randint(start + 1, len(frame)) :]

    return _in_one(chance, frames, cut)


def end_early(chance: Random, frames: Frames) -> Frames:
    """Truncate the conversation within a frame."""
    if not frames:
        return frames
    last = chance.randrange(len(frames))
    return [*frames[:last], frames[last][: chance.randint(0, len(frames[last]))]]


def insert_noise(chance: Random, frames: Frames) -> Frames:
    """Insert random bytes."""

    def insert(frame: bytes) -> bytes:
        position = chance.randint(0, len(frame))
        return frame[:position] + chance.randbytes(chance.randint(1, 40)) + frame[position:]

    return _in_one(chance, frames, insert)


def put_special(chance: Random, frames: Frames) -> Frames:
    """Replace a byte by one that is special in some format."""

    def put(frame: bytes) -> bytes:
        position = chance.randrange(len(frame))
        return frame[:position] + chance.choice(_SPECIAL) + frame[position + 1 :]

    return _in_one(chance, frames, put)


def change_number(chance: Random, frames: Frames) -> Frames:
    """Replace a run of digits by another number or text of any length."""

    def change(frame: bytes) -> bytes:
        numbers = list(_DIGITS.finditer(frame))
        if not numbers:
            return frame
        run = chance.choice(numbers)
        number, spelling = chance.choice(_NUMBERS), chance.choice(_SPELLINGS)
        new = spelling % ((number,) * spelling.count(b"%d"))
        return frame[: run.start()] + new + frame[run.end() :]

    return _in_one(chance, frames, change)


def change_digits(chance: Random, frames: Frames) -> Frames:
    """Replace a run of digits by a number of the same width; the frame stays complete."""

    def change(frame: bytes) -> bytes:
        numbers = list(_DIGITS.finditer(frame))
        if not numbers:
            return frame
        run = chance.choice(numbers)
        width = len(run.group())
        number = int(run.group()[-18:]) + chance.choice((-9, -1, 1, 2, 9, 10, 1000))
        if chance.random() < 0.3:
            number = chance.choice(_NUMBERS)
        new = (b"%d" % abs(number)).zfill(width)[-width:]
        return frame[: run.start()] + new + frame[run.end() :]

    return _in_one(chance, frames, change)


def change_one_digit(chance: Random, frames: Frames) -> Frames:
    """Replace a single digit: of a type, a version, a count or a length."""

    def change(frame: bytes) -> bytes:
        positions = [position for position, byte in enumerate(frame) if byte in b"0123456789"]
        if not positions:
            return frame
        position = chance.choice(positions)
        return frame[:position] + b"%d" % chance.randrange(10) + frame[position + 1 :]

    return _in_one(chance, frames, change)


def put_integer(chance: Random, frames: Frames) -> Frames:
    """Replace two, four or eight bytes by another binary number."""

    def put(frame: bytes) -> bytes:
        form = chance.choice(_FORMS)
        position = chance.randint(0, max(0, len(frame) - form.size))
        old_number = int.from_bytes(frame[position : position + form.size], "big")
        number = chance.choice(
            (*_NUMBERS, old_number - 1, old_number + 1, old_number + 4, 2 * old_number, -old_number)
        )
        new = form.pack(number & ((1 << 8 * form.size) - 1))
        return frame[:position] + new + frame[position + form.size :]

    return _in_one(chance, frames, put)


def repeat(chance: Random, frames: Frames) -> Frames:
    """Repeat a frame."""
    if not frames:
        return frames
    index = chance.randrange(len(frames))
    return frames[:index] + frames[index : index + 1] * chance.randint(2, 9) + frames[index + 1 :]


def reorder(chance: Random, frames: Frames) -> Frames:
    """Change the order of the frames."""
    frames = list(frames)
    chance.shuffle(frames)
    return frames


def leave_out(chance: Random, frames: Frames) -> Frames:
    """Remove a frame."""
    if not frames:
        return frames
    index = chance.randrange(len(frames))
    return frames[:index] + frames[index + 1 :]


def splice(chance: Random, frames: Frames) -> Frames:
    """Join the beginning of one frame and the end of another."""
    if not frames:
        return frames
    head, tail = chance.choice(frames), chance.choice(frames)
    joined_frame = head[: chance.randint(0, len(head))] + tail[chance.randint(0, len(tail)) :]
    index = chance.randint(0, len(frames))
    return [*frames[:index], joined_frame, *frames[index:]]


MUTATORS: Final[tuple[Mutator, ...]] = (
    *(flip_bits, cut_out, end_early, insert_noise, put_special, change_number, change_digits),
    change_one_digit,
    put_integer,
    *(repeat, reorder, leave_out, splice),
)


def mutate(chance: Random, frames: Frames) -> Frames:
    """Apply up to three mutations, and sometimes none, so that the input includes valid frames."""
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        frames = chance.choice(MUTATORS)(chance, frames)
    return frames


def _in_one(chance: Random, frames: Frames, change: Callable[[bytes], bytes]) -> Frames:
    """Change one frame that is not empty."""
    indexes = [index for index, frame in enumerate(frames) if frame]
    if not indexes:
        return frames
    index = chance.choice(indexes)
    return [*frames[:index], change(frames[index]), *frames[index + 1 :]]
