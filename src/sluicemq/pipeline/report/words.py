"""How numbers, times and foreign text are spelled in a report."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"
"""Where there is no figure."""

_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SIZES: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_CONTROL_PICTURES: Final = 0x2400
_LAID_OUT: Final = "\n\t"
"""Control characters that text may hold and a page can show."""


def count(value: float | None) -> str:
    """In full: 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """To three digits: 1.23M. Below 10, up to two decimals."""
    if value is None:
        return UNKNOWN
    for step, letter in _STEPS:
        # 999.5 would be spelled 1000 below
        if abs(value) >= step * 0.9995:
            return f"{_three(value / step)}{letter}"
    return _three(value)


def _three(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    digits = 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def size(value: float | None) -> str:
    """Of bytes: 1.5 MiB."""
    if value is None:
        return UNKNOWN
    for step, unit in _SIZES:
        if value >= step:
            return f"{_three(value / step)} {unit}"
    return f"{value:.0f} B"


def rate(value: float | None) -> str:
    """Of messages a second: 12.5k/s; below one, 3/min."""
    if value is None:
        return UNKNOWN
    return f"{short(value)}/s" if value >= 1 or not value else f"{short(value * 60)}/min"


def things(number: int, what: str) -> str:
    """1 message, 2,000 messages."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def duration(milliseconds: float | None) -> str:
    """To three digits, in the unit that suits: 0.25 ms, 12 ms, 1.5 s, 3 min, 2 h, 4 d."""
    if milliseconds is None or math.isnan(milliseconds):
        return UNKNOWN
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= length:
            return f"{_three(milliseconds / length)} {unit}"
    return f"{_three(milliseconds)} ms"


def moment(seconds: float) -> str:
    """Of seconds since 1970 (UTC): 21 Nov 2026, 14:05."""
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{day(seconds)} {time.year}, {time:%H:%M}"


def brief(seconds: float) -> str:
    """Without the year: 21 Nov, 14:05."""
    return f"{day(seconds)}, {clock(seconds)}"


def day(seconds: float) -> str:
    """21 Nov."""
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{time.day} {time:%b}"


def clock(seconds: float) -> str:
    """14:05."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M}"


def span(start: float, end: float) -> str:
    """A stretch of time, its day said once if it is one: 21 Nov, 14:05 to 14:10."""
    if day(start) == day(end) and end - start < 86_400:
        return f"{brief(start)} to {clock(end)}"
    return f"{brief(start)} to {brief(end)}"


def period(start: float, end: float) -> str:
    """As `span`, with the year: 21 Nov 2026, 14:05 to 14:10."""
    if day(start) == day(end) and end - start < 86_400:
        return f"{moment(start)} to {clock(end)}"
    return f"{moment(start)} to {moment(end)}"


def shown(text: str, at_most: int | None = None) -> str:
    """Text that somebody else chose, fit to be shown: control characters as their pictures, what
    is invisible or turns the direction of writing as its code, and no longer than `at_most`
    characters (an ellipsis included)."""
    if at_most is not None and len(text) > at_most:
        text = text[: at_most - 1] + "…"
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20 and character not in _LAID_OUT:
        return chr(_CONTROL_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    if code >= 0x80 and unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn"):
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character
