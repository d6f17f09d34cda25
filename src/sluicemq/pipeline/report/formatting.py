"""Formatting of numbers, times and untrusted text in a report."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final

_LAID_OUT: Final = "\n\t"
"""Control characters that text may contain and a page can display."""
UNKNOWN: Final = "–"
"""Text for a missing figure."""

Steps = tuple[tuple[float, str], ...]
_COUNTS: Final[Steps] = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_SIZES: Final[Steps] = (
    *((2.0**power, f" {unit}") for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"))),
    (2**10, " KiB"),
    (1, " B"),
)
_TIMES: Final[Steps] = (
    (86_400_000, " d"),
    (3_600_000, " h"),
    (60_000, " min"),
    (1000, " s"),
    (1, " ms"),
)


def count(value: float | None) -> str:
    """Format all digits: 1,234,567."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def _scaled(value: float | None, steps: Steps) -> str:
    """Format three digits with the unit of the largest step that the value reaches."""
    if value is None or math.isnan(value):
        return UNKNOWN
    # 999.5 of one unit would become 1000
    step, unit = next((pair for pair in steps if abs(value) >= pair[0] * 0.9995), steps[-1])
    scaled = value / step
    digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{round(scaled, digits):g}{unit}"


short: Final = partial(_scaled, steps=_COUNTS)
"""Format three digits: 1.23M. Below 10, up to two decimals."""
size: Final = partial(_scaled, steps=_SIZES)
"""Format a number of bytes: 1.5 MiB."""
duration: Final = partial(_scaled, steps=_TIMES)
"""Format milliseconds with a suitable unit: 0.25 ms, 12 ms, 1.5 s, 3 min, 2 h, 4 d."""


def rate(value: float | None) -> str:
    """Format messages per second: 12.5k/s; below one, 3/min."""
    if value is None:
        return UNKNOWN
    return f"{short(value)}/s" if value >= 1 or not value else f"{short(value * 60)}/min"


def moment(seconds: float) -> str:
    """Format seconds since 1970 (UTC): 21 Nov 2026, 14:05."""
    return f"{datetime.fromtimestamp(seconds, UTC):%-d %b %Y, %H:%M}"


def brief(seconds: float) -> str:
    """Format a time without the year: 21 Nov, 14:05."""
    return f"{datetime.fromtimestamp(seconds, UTC):%-d %b, %H:%M}"


def span(start: float, end: float, format_time: Callable[[float], str] = brief) -> str:
    """Format a period, with the day once if it is the same: 21 Nov, 14:05 to 14:10.

    `format_time` formats its ends."""
    day, _, clock = format_time(end).rpartition(", ")
    is_same_day = end - start < 86_400 and format_time(start).startswith(f"{day},")
    return f"{format_time(start)} to {clock if is_same_day else format_time(end)}"


def printable(text: str, max_length: int | None = None) -> str:
    """Return untrusted text in printable form, of at most `max_length` characters.

    Control characters, invisible characters and those that change the writing direction become
    their codes. Truncated text ends with an ellipsis."""
    if max_length is not None and len(text) > max_length:
        text = text[: max_length - 1] + "…"
    return "".join(
        character
        if character in _LAID_OUT or unicodedata.category(character)[0] != "C"
        else character.encode("unicode_escape").decode()
        for character in text
    )
