"""Names of destinations by number. The journal never reuses a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluicemq.model.destination import Address, Kind
from sluicemq.pipeline.source.heads import Column
from sluicemq.pipeline.source.journal_storage import Integers

KINDS: Final = pa.array([None, "queue", "topic"], pa.string())

TABLE_NUMBERS: Final = 1 << 20
"""Numbers below this are looked up in a table, larger ones in a sorted list."""


def spelled(text: str) -> str:
    """Return text that every table format can store: a byte that is not UTF-8 becomes `\\xNN`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        except UnicodeEncodeError:
            return text.encode("utf-8", "backslashreplace").decode()
    return text


def _unique(numbers: Column) -> Integers:
    """Return the different numbers. Sorting or hashing them takes ten times as long."""
    if len(numbers) and int(numbers.max()) < TABLE_NUMBERS:
        flags = np.zeros(int(numbers.max()) + 1, np.bool_)
        flags[numbers] = True
        return np.flatnonzero(flags)
    return np.unique(numbers).astype(np.int64)


class Names:
    """Destinations by number, with lookups for whole columns."""

    __slots__ = ("_allowed", "_asked", "_kinds", "_numbers", "_table", "_texts", "addresses")

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self.addresses = dict(addresses)
        self._arrange()

    def _arrange(self) -> None:
        ordered = sorted(self.addresses)
        known = [self.addresses[number] for number in ordered]
        self._numbers: Integers = np.array(ordered, np.int64)
        # one more entry, for unknown numbers
        self._texts = pa.array([*(spelled(address.name) for address in known), None], pa.string())
        self._kinds = np.array([*(address.kind for address in known), 0], np.int32)
        # the place of each number, if they are small; the last entry is for larger numbers
        self._table: Integers | None = None
        if ordered and ordered[-1] < TABLE_NUMBERS:
            self._table = np.full(ordered[-1] + 2, len(ordered), np.int64)
            self._table[ordered] = np.arange(len(ordered))
        self._asked: object = None
        self._allowed = np.zeros(0, np.bool_)

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> Names:
        """Return the destinations that a sealed segment's index names."""
        return cls(
            {number: Address(Kind(kind), name) for number, kind, name in summary["destinations"]}
        )

    def add(self, addresses: Mapping[int, Address]) -> None:
        """Add destinations."""
        if addresses:
            self.addresses.update(addresses)
            self._arrange()

    def missing(self, numbers: Column) -> set[int]:
        """Return the numbers that have no name here."""
        unique = _unique(numbers)
        return set(unique[~np.isin(unique, self._numbers)].tolist()) - {0}

    def _places(self, numbers: Column) -> Integers:
        """Return the index of each number's name; the last entry is for unknown numbers."""
        count = len(self._numbers)
        if not count:
            return np.zeros(len(numbers), np.int64)
        if self._table is not None:
            return self._table.take(numbers, mode="clip")
        places = np.searchsorted(self._numbers, numbers)
        places[places == count] = 0
        return np.where(self._numbers[places] == numbers, places, count)

    def texts(self, numbers: Column) -> pa.Array:
        """Return the names; null for unknown numbers."""
        return self._texts.take(pa.array(self._places(numbers)))

    def addressed(self, numbers: Column) -> pa.Array:
        """Return the names, with `topic:` before those of topics; null for unknown numbers."""
        known = (self.addresses[number] for number in self._numbers.tolist())
        texts = pa.array([*(spelled(str(address)) for address in known), None], pa.string())
        return texts.take(pa.array(self._places(numbers)))

    def kinds(self, numbers: Column) -> pa.Array:
        """Return the kinds: "queue" or "topic"."""
        return KINDS.take(pa.array(self._kinds[self._places(numbers)]))

    def among(
        self, numbers: Column, allows: Callable[[Iterable[Address]], list[bool]]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the mask of the numbers whose destinations `allows` accepts."""
        if self._asked != allows:
            ordered = (self.addresses[number] for number in self._numbers.tolist())
            self._allowed = np.array([*allows(ordered), False], np.bool_)
            self._asked = allows
        return self._allowed[self._places(numbers)]

    def bounds(self, numbers: Column, bound_by_name: Mapping[str, int], others: int) -> Integers:
        """Return the bound of each number's destination, `others` for those without one."""
        known = (self.addresses[number] for number in self._numbers.tolist())
        bounds = [bound_by_name.get(spelled(str(address)), others) for address in known]
        return np.array([*bounds, others], np.int64)[self._places(numbers)]
