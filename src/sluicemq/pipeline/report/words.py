"""Formatting of numbers, times and untrusted text in a report."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "–"
"""Text for a missing figure."""

_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SIZES: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_CONTROL_PICTURES: Final = 0x2400
_LAID_OUT: Final = "\n\t"
"""Control characters that text may contain and a page can display."""


def count(value: float | None) -> str:
    """Format all digits: 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Format three digits: 1.23M. Below 10, up to two decimals."""
    if value is None:
        return UNKNOWN
    for step, suffix in _STEPS:
        # 999.5 would become 1000 below
        if abs(value) >= step * 0.9995:
            return f"{_three(value / step)}{suffix}"
    return _three(value)


def _three(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    digits = 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def size(value: float | None) -> str:
    """Format a number of bytes: 1.5 MiB."""
    if value is None:
        return UNKNOWN
    for step, unit in _SIZES:
        if value >= step:
            return f"{_three(value / step)} {unit}"
    return f"{value:.0f} B"


def rate(value: float | None) -> str:
    """Format messages per second: 12.5k/s; below one, 3/min."""
    if value is None:
        return UNKNOWN
    return f"{short(value)}/s" if value >= 1 or not value else f"{short(value * 60)}/min"


def things(number: int, what: str) -> str:
    """Format a count with its noun: 1 message, 2,000 messages."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def duration(milliseconds: float | None) -> str:
    """Format three digits with a suitable unit: 0.25 ms, 12 ms, 1.5 s, 3 min, 2 h, 4 d."""
    if milliseconds is None or math.isnan(milliseconds):
        return UNKNOWN
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= length:
            return f"{_three(milliseconds / length)} {unit}"
    return f"{_three(milliseconds)} ms"


def moment(seconds: float) -> str:
    """Format seconds since 1970 (UTC): 21 Nov 2026, 14:05."""
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{day(seconds)} {time.year}, {time:%H:%M}"


def brief(seconds: float) -> str:
    """Format a time without the year: 21 Nov, 14:05."""
    return f"{day(seconds)}, {clock(seconds)}"


def day(seconds: float) -> str:
    """Format a day: 21 Nov."""
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{time.day} {time:%b}"


def clock(seconds: float) -> str:
    """Format a time of day: 14:05."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M}"


def span(start: float, end: float) -> str:
    """Format a period, with the day once if it is the same: 21 Nov, 14:05 to 14:10."""
    if day(start) == day(end) and end - start < 86_400:
        return f"{brief(start)} to {clock(end)}"
    return f"{brief(start)} to {brief(end)}"


def period(start: float, end: float) -> str:
    """Format a period with the year: 21 Nov 2026, 14:05 to 14:10."""
    if day(start) == day(end) and end - start < 86_400:
        return f"{moment(start)} to {clock(end)}"
    return f"{moment(start)} to {moment(end)}"


def printable(text: str, at_most: int | None = None) -> str:
    """Return untrusted text in printable form, of at most `at_most` characters.

    Control characters become their pictures, and invisible characters and those that change the
    writing direction become their codes. Truncated text ends with an ellipsis."""
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
