"""Conversion of the columns `properties` and `property_types` to typed properties.

    type      text form
    boolean   true, false
    integer   decimal digits; 64 bits, signed or unsigned
    real      as in Python and Java, including nan and inf
    text      unchanged
    bytes     base64
    null      any

Properties without a type in property_types are text.
"""

from __future__ import annotations

import base64
import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa

from sluicemq.model.message import Property
from sluicemq.pipeline.sink.values import Faults, InvalidValue, abbreviated

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}\Z", re.ASCII)
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 64) - 1
_TRUTH: Final = {"true": True, "false": False}


def _boolean(text: str) -> bool:
    value = _TRUTH.get(text.lower())
    if value is None:
        raise InvalidValue
    return value


def _integer(text: str) -> int:
    if not _INTEGER.match(text) or not _LOWEST <= (value := int(text)) <= _HIGHEST:
        raise InvalidValue
    return value


_READERS: Final[dict[str, Callable[[str], Property]]] = {
    "boolean": _boolean,
    "integer": _integer,
    "real": float,
    "bytes": lambda text: base64.b64decode(text, validate=True),
}


class _Entries(NamedTuple):
    """Entries of all maps of a column; row n has the entries from ends[n] to ends[n + 1]."""

    names: pa.Array
    texts: pa.Array
    ends: list[int]


def read_properties(
    column: pa.Array, types: pa.Array | None, faults: Faults
) -> list[dict[str, Property] | None]:
    """Return the properties of each row; None if it has none."""
    names, texts, ends = _entries(column)
    keys: list[str] = names.to_pylist()
    values: list[Property] = texts.to_pylist()
    if types is not None:
        for place, kind in enumerate(_aligned(keys, names, ends, _entries(types))):
            if kind is not None and kind != "text":
                try:
                    values[place] = _value(keys[place], values[place], kind)
                except InvalidValue as fault:
                    faults.setdefault(bisect_right(ends, place) - 1, str(fault))
    return [
        dict(zip(keys[start:end], values[start:end], strict=True)) if start < end else None
        for start, end in pairwise(ends)
    ]


def _entries(column: pa.Array) -> _Entries:
    """Return the entries of a map column, which may be a slice of another."""
    ends = column.offsets.to_pylist()
    first, count = ends[0], ends[-1] - ends[0]
    if first:
        ends = [end - first for end in ends]
    return _Entries(column.keys.slice(first, count), column.items.slice(first, count), ends)


def _aligned(
    keys: list[str], names: pa.Array, ends: list[int], types: _Entries
) -> list[str | None]:
    """Return the type of each property, None if it has none."""
    kinds: list[str | None] = types.texts.to_pylist()
    if ends == types.ends and names.equals(types.names):
        return kinds
    named: list[str] = types.names.to_pylist()
    found: list[str | None] = []
    for (start, end), (first, last) in zip(pairwise(ends), pairwise(types.ends), strict=True):
        by_name = dict(zip(named[first:last], kinds[first:last], strict=True))
        found += map(by_name.get, keys[start:end])
    return found


def _value(name: str, text: Property, kind: str) -> Property:
    if kind == "null" or text is None:
        return None
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidValue(
            f"the property {abbreviated(name)} is of no known type: {abbreviated(kind)}"
        )
    try:
        return reader(str(text))
    except ValueError:
        raise InvalidValue(
            f"the property {abbreviated(name)} is no {kind}: {abbreviated(text)}"
        ) from None
