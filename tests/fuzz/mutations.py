"""Damage to a valid conversation: pure functions of a random generator and a list of frames.

A conversation is a list of parts with a meaning each: frames, lines, a head and a body. The damage
is done to a part or to their order. With a seeded `random.Random` the same damage is done
again; with hypothesis's `st.randoms()` it is made smaller until the smallest that fails is found.
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
    """One to eight bits of a piece are the other way round."""

    def flip(piece: bytes) -> bytes:
        data = bytearray(piece)
        for _ in range(chance.randint(1, 8)):
            bit = chance.randrange(8 * len(data))
            data[bit >> 3] ^= 1 << (bit & 7)
        return bytes(data)

    return _in_one(chance, frames, flip)


def cut_out(chance: Random, frames: Frames) -> Frames:
    """A part of a piece is missing: its beginning, middle or end."""

    def cut(piece: bytes) -> bytes:
        start = chance.randrange(len(piece))
        return piece[:start] + piece[chance.randint(start + 1, len(piece)) :]

    return _in_one(chance, frames, cut)


def end_early(chance: Random, frames: Frames) -> Frames:
    """Nothing comes after some place within a piece."""
    if not frames:
        return frames
    last = chance.randrange(len(frames))
    return [*frames[:last], frames[last][: chance.randint(0, len(frames[last]))]]


def insert_noise(chance: Random, frames: Frames) -> Frames:
    """Random bytes stand where nothing was."""

    def insert(piece: bytes) -> bytes:
        position = chance.randint(0, len(piece))
        return piece[:position] + chance.randbytes(chance.randint(1, 40)) + piece[position:]

    return _in_one(chance, frames, insert)


def put_special(chance: Random, frames: Frames) -> Frames:
    """A byte is replaced by one that means something somewhere."""

    def put(piece: bytes) -> bytes:
        position = chance.randrange(len(piece))
        return piece[:position] + chance.choice(_SPECIAL) + piece[position + 1 :]

    return _in_one(chance, frames, put)


def change_number(chance: Random, frames: Frames) -> Frames:
    """A run of digits is another number, which need not be as long, nor a number."""

    def change(piece: bytes) -> bytes:
        numbers = list(_DIGITS.finditer(piece))
        if not numbers:
            return piece
        run = chance.choice(numbers)
        number, spelling = chance.choice(_NUMBERS), chance.choice(_SPELLINGS)
        new = spelling % ((number,) * spelling.count(b"%d"))
        return piece[: run.start()] + new + piece[run.end() :]

    return _in_one(chance, frames, change)


def change_digits(chance: Random, frames: Frames) -> Frames:
    """A run of digits is another number of the same width: the frame around it stays whole."""

    def change(piece: bytes) -> bytes:
        numbers = list(_DIGITS.finditer(piece))
        if not numbers:
            return piece
        run = chance.choice(numbers)
        width = len(run.group())
        number = int(run.group()[-18:]) + chance.choice((-9, -1, 1, 2, 9, 10, 1000))
        if chance.random() < 0.3:
            number = chance.choice(_NUMBERS)
        new = (b"%d" % abs(number)).zfill(width)[-width:]
        return piece[: run.start()] + new + piece[run.end() :]

    return _in_one(chance, frames, change)


def change_one_digit(chance: Random, frames: Frames) -> Frames:
    """A single digit is another one: of a type, a version, a count, a length."""

    def change(piece: bytes) -> bytes:
        positions = [position for position, byte in enumerate(piece) if byte in b"0123456789"]
        if not positions:
            return piece
        position = chance.choice(positions)
        return piece[:position] + b"%d" % chance.randrange(10) + piece[position + 1 :]

    return _in_one(chance, frames, change)


def put_integer(chance: Random, frames: Frames) -> Frames:
    """Two, four or eight bytes are another number of binary form: a length, an offset, a count."""

    def put(piece: bytes) -> bytes:
        form = chance.choice(_FORMS)
        position = chance.randint(0, max(0, len(piece) - form.size))
        old_number = int.from_bytes(piece[position : position + form.size], "big")
        number = chance.choice(
            (*_NUMBERS, old_number - 1, old_number + 1, old_number + 4, 2 * old_number, -old_number)
        )
        new = form.pack(number & ((1 << 8 * form.size) - 1))
        return piece[:position] + new + piece[position + form.size :]

    return _in_one(chance, frames, put)


def repeat(chance: Random, frames: Frames) -> Frames:
    """A piece comes several times."""
    if not frames:
        return frames
    index = chance.randrange(len(frames))
    return frames[:index] + frames[index : index + 1] * chance.randint(2, 9) + frames[index + 1 :]


def reorder(chance: Random, frames: Frames) -> Frames:
    """Change the order of the parts."""
    frames = list(frames)
    chance.shuffle(frames)
    return frames


def leave_out(chance: Random, frames: Frames) -> Frames:
    """A piece does not come."""
    if not frames:
        return frames
    index = chance.randrange(len(frames))
    return frames[:index] + frames[index + 1 :]


def splice(chance: Random, frames: Frames) -> Frames:
    """The beginning of one piece goes on as the end of another."""
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
    """Up to three kinds of damage; now and then none, so that what is valid is among it."""
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        frames = chance.choice(MUTATORS)(chance, frames)
    return frames


def _in_one(chance: Random, frames: Frames, change: Callable[[bytes], bytes]) -> Frames:
    """Change one piece that is not empty."""
    indexes = [index for index, piece in enumerate(frames) if piece]
    if not indexes:
        return frames
    index = chance.choice(indexes)
    return [*frames[:index], change(frames[index]), *frames[index + 1 :]]
