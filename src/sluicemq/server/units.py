"""Sizes, durations and file modes as people write them: `64MiB`, `1.5s`, `0660`.

A bare number is in the unit of its setting. Suffixes are case-sensitive where it matters to no
one but the reader: `kB` is 1000 bytes and `KiB` 1024, as the IEC has it; `K`, `M` and `G` are
refused, because half of the world reads them either way.
"""

from __future__ import annotations

import re
from enum import StrEnum
from fractions import Fraction
from typing import Final

_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})\Z")
_MODE: Final = re.compile(r"(?:0o)?([0-7]{3,4})\Z")


class Unit(StrEnum):
    """Unit of a number in the configuration."""

    BYTES = "bytes"
    MILLISECONDS = "ms"
    SECONDS = "s"
    MODE = "octal mode"


_SIZES: Final[dict[str, Fraction]] = {
    "B": Fraction(1),
    "kB": Fraction(1000),
    "MB": Fraction(1000**2),
    "GB": Fraction(1000**3),
    "KiB": Fraction(1024),
    "MiB": Fraction(1024**2),
    "GiB": Fraction(1024**3),
}
_SECONDS: Final[dict[str, Fraction]] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_SUFFIXES: Final[dict[Unit, dict[str, Fraction]]] = {
    Unit.BYTES: _SIZES,
    Unit.MILLISECONDS: {name: factor * 1000 for name, factor in _SECONDS.items()},
    Unit.SECONDS: _SECONDS,
}


def parse_quantity(text: str, unit: Unit) -> int | float:
    """Parse a quantity and return it in `unit`. Raises ValueError with a text for the user.

    Whole results are ints, so that a setting that counts whole units refuses `1.5ms`.
    """
    if unit is Unit.MODE:
        found = _MODE.match(text)
        if not found:
            raise ValueError(f"{text!r} is not a file mode; write three octal digits, as 0660")
        return int(found.group(1), 8)
    suffixes = _SUFFIXES[unit]
    found = _QUANTITY.match(text)
    if not found or (found.group(2) and found.group(2) not in suffixes):
        raise ValueError(f"{text!r} is not a number of {unit}; it may end in {', '.join(suffixes)}")
    value = Fraction(found.group(1)) * suffixes.get(found.group(2), Fraction(1))
    return int(value) if value.denominator == 1 else float(value)


def format_quantity(value: int | float, unit: Unit | None) -> str:
    """Return the shortest text from which `parse_quantity` returns the same number."""
    if unit is Unit.MODE:
        return f"0{int(value):03o}"
    if unit is None or value == 0:
        return _plain(value)
    exact = Fraction(str(value))
    best = ""
    for name, factor in _SUFFIXES[unit].items():
        if exact % factor == 0:
            text = f"{exact // factor}{name}"
            if not best or len(text) <= len(best):
                best = text
    return best or f"{_plain(value)}{unit}"


def _plain(value: int | float) -> str:
    return str(int(value)) if value == int(value) else str(value)
