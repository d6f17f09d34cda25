"""Deliveries that came back to a line, in order.

They come in any order and leave at the front, mostly; but any page of them is to be found without
sorting, however many there are. So they stand in pieces, each small enough that to insert somewhere
costs next to nothing. For few it costs about what a heap does, for many less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from sluicemq.broker.pieces import Piece, Run, ready_of, run_of

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery

PIECE: Final = 512
"""Deliveries to a piece; one of twice as many is split."""


class Returned:
    """See the module. No two of them have the same order."""

    __slots__ = ("_lasts", "_length", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._lasts: list[int] = []
        """The last order of each piece."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Delivery]:
        for piece in self._pieces:
            yield from piece.deliveries

    def add(self, delivery: Delivery) -> None:
        """Where its order places it. There must be none of that order."""
        order = delivery.order
        lasts = self._lasts
        self._length += 1
        if not lasts:
            self._pieces.append(Piece([delivery]))
            lasts.append(order)
            return
        if order > lasts[-1]:
            place = len(lasts) - 1
            piece = self._pieces[place]
            piece.append(delivery)
            lasts[place] = order
        else:
            place = bisect_left(lasts, order)
            piece = self._pieces[place]
            piece.add(delivery)
        if len(piece.deliveries) > 2 * PIECE:
            self._pieces.insert(place + 1, piece.split(PIECE))
            lasts.insert(place, piece.last)

    def first(self) -> Delivery:
        """The one with the lowest order. There must be one."""
        return self._pieces[0].deliveries[0]

    def pop(self) -> Delivery:
        """Remove and return it."""
        piece = self._pieces[0]
        delivery = piece.pop()
        self._length -= 1
        if not piece.deliveries:
            del self._pieces[0], self._lasts[0]
        return delivery

    def discard(self, order: int) -> bool:
        """Take the one with that order out; False if it is not there."""
        place = bisect_left(self._lasts, order)
        if place == len(self._lasts):
            return False
        piece = self._pieces[place]
        if not piece.remove(order):
            return False
        self._length -= 1
        if piece.deliveries:
            self._lasts[place] = piece.last
        else:
            del self._pieces[place], self._lasts[place]
        return True

    def find(self, order: int) -> Delivery | None:
        """The one with that order, whatever its state."""
        place = bisect_left(self._lasts, order)
        return self._pieces[place].find(order) if place < len(self._lasts) else None

    def after(self, order: int, count: int) -> list[Delivery]:
        """The first `count` behind that order, whatever their state."""
        found: list[Delivery] = []
        for piece in islice(self._pieces, bisect_right(self._lasts, order), None):
            found += piece.after(order, count - len(found))
            if len(found) >= count:
                break
        return found

    def runs(self, order: int, clean: bool) -> Iterator[Run]:
        """All behind that order, and perhaps some before; `clean`: all of them are READY."""
        for piece in islice(self._pieces, bisect_right(self._lasts, order), None):
            yield run_of(piece, clean)

    def compact(self) -> None:
        """Forget those that are no longer READY."""
        ready = ready_of(self)
        parts = [ready[start : start + PIECE] for start in range(0, len(ready), PIECE)]
        self._pieces = [Piece(part) for part in parts]
        self._lasts = [piece.last for piece in self._pieces]
        self._length = len(ready)
