"""Conversion of Arrow columns to row values; invalid values are recorded as faults.

Faults map the index of a row in the batch to a text; only the first fault of a row is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

T = TypeVar("T")
Faults = dict[int, str]

_MICROSECONDS: Final = 1000
"""Microseconds of a millisecond."""
_MOST_CHARACTERS: Final = 60
"""Maximum number of characters of a value in a fault."""


class InvalidValue(ValueError):
    """Raised for a value that a message cannot have; the text has the reason."""


def abbreviated(value: object) -> str:
    """Return a value for fault messages, truncated to `_MOST_CHARACTERS` characters."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def by_value(column: pa.Array, read: Callable[[Any], T], missing: T, faults: Faults) -> Iterable[T]:
    """Convert each value with `read`, which may raise Fault; null becomes `missing`.

    Each distinct value is converted once, so this suits columns with few of them.
    """
    encoded = column.dictionary_encode()
    found: list[T] = []
    wrong: dict[int, str] = {}
    for value in encoded.dictionary.to_pylist():
        try:
            found.append(read(value))
        except InvalidValue as fault:
            wrong[len(found)] = str(fault)
            found.append(missing)
    if len(found) == 1 and not wrong and not encoded.null_count:
        return repeat(found[0], len(column))
    places = encoded.indices.fill_null(len(found)).to_pylist()
    found.append(missing)
    if wrong:
        for row, place in enumerate(places):
            if place in wrong:
                faults.setdefault(row, wrong[place])
    return [found[place] for place in places]


def texts(column: pa.Array) -> list[str]:
    """Return texts, "" for null."""
    return [text or "" for text in column.to_pylist()]


def times(column: pa.Array, name: str, faults: Faults) -> list[int]:
    """Return timestamps in ms since 1970, 0 for null."""
    moments = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(0).to_numpy()
    return _not_negative(moments // _MICROSECONDS, f"{name} is before 1970", faults)


def spans(column: pa.Array, name: str, faults: Faults) -> list[int]:
    """Return durations in ms, 0 for null."""
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    return _not_negative(numbers, f"{name} is negative", faults)


def _not_negative(numbers: np.ndarray[Any, Any], fault: str, faults: Faults) -> list[int]:
    for row in np.flatnonzero(numbers < 0).tolist():
        faults.setdefault(row, fault)
    found: list[int] = numbers.tolist()
    return found
