"""Columns of Arrow as the values that rows have; what a row should not have is a fault of it.

A fault is a text by the row's place in the batch; the first one of a row stays.
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
"""In a millisecond."""
_SHOWN: Final = 60
"""Characters of a value, in a fault."""


class Fault(ValueError):
    """A value that a message cannot have; the text says why."""


def shown(value: object) -> str:
    """A value as faults show it: not whole if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def by_value(column: pa.Array, read: Callable[[Any], T], missing: T, faults: Faults) -> Iterable[T]:
    """What `read` makes of each value, which raises Fault; `missing` for null.

    Each value is read once, however often it comes: for columns of few values.
    """
    encoded = column.dictionary_encode()
    found: list[T] = []
    wrong: dict[int, str] = {}
    for value in encoded.dictionary.to_pylist():
        try:
            found.append(read(value))
        except Fault as fault:
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
    """Texts, "" for null."""
    return [text or "" for text in column.to_pylist()]


def times(column: pa.Array, name: str, faults: Faults) -> list[int]:
    """Timestamps in ms since 1970, 0 for null."""
    moments = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(0).to_numpy()
    return _not_negative(moments // _MICROSECONDS, f"{name} is before 1970", faults)


def spans(column: pa.Array, name: str, faults: Faults) -> list[int]:
    """Milliseconds, 0 for null."""
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
    return _not_negative(numbers, f"{name} is negative", faults)


def _not_negative(numbers: np.ndarray[Any, Any], said: str, faults: Faults) -> list[int]:
    for row in np.flatnonzero(numbers < 0).tolist():
        faults.setdefault(row, said)
    found: list[int] = numbers.tolist()
    return found
