"""The older part of a long line, packed.

A delivery that waits costs some 200 bytes as an object. In a backlog of millions nothing is known
of most of them but what the journal says too: such ones are packed, a page of them in arrays of 12
bytes each, and become objects again when the page's turn comes, or one by one when somebody else
wants to hold them too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import Delivery
from sluicemq.broker.pieces import Piece, Run, ready_of, run_of

if TYPE_CHECKING:
    from sluicemq.broker.subscription import Subscription


class Page:
    """Deliveries that differ in sequence and size only. They are READY, have never been tried,
    never expire, stand at their original place and in this line only, and their messages are in
    the journal.

    orders  of each, which are also their sequences
    last    the order of the last one, also when that has been taken out
    """

    __slots__ = ("_journaled", "_priority", "_sizes", "_subscription", "last", "orders")

    def __init__(self, deliveries: list[Delivery]) -> None:
        """`deliveries` have been found to be `alike`."""
        first = deliveries[0]
        self._subscription: Subscription = first.subscription
        self._priority = first.priority
        self._journaled = first.journaled
        self.orders = array("Q", [delivery.sequence for delivery in deliveries])
        self._sizes = array("I", [delivery.size for delivery in deliveries])
        self.last = deliveries[-1].order

    @staticmethod
    def alike(deliveries: list[Delivery]) -> bool:
        """Whether they can make a page. Must not be empty; all are READY, of one priority."""
        journaled = deliveries[0].journaled
        return bool(journaled) and all(
            delivery.message is None
            and not delivery.attempts
            and not delivery.expiration
            and delivery.order == delivery.sequence
            and delivery.journaled == journaled
            for delivery in deliveries
        )

    def __len__(self) -> int:
        return len(self.orders)

    def __iter__(self) -> Iterator[Delivery]:
        """Each as an object, made anew."""
        return self.after(0, len(self.orders))

    def after(self, order: int, count: int) -> Iterator[Delivery]:
        """The first `count` behind that order."""
        subscription, priority, journaled = self._subscription, self._priority, self._journaled
        start = bisect_right(self.orders, order)
        sequences = self.orders[start : start + count]
        sizes = self._sizes[start : start + count]
        for sequence, size in zip(sequences, sizes, strict=True):
            yield Delivery(subscription, sequence, None, priority, size, journaled, 0, 0)

    def find(self, order: int) -> Delivery | None:
        """The one with that order, if it is there."""
        found = list(self.after(order - 1, 1))
        return found[0] if found and found[0].order == order else None

    def remove(self, sequence: int) -> bool:
        """Take one out; False if it is not there."""
        place = bisect_left(self.orders, sequence)
        if place == len(self.orders) or self.orders[place] != sequence:
            return False
        del self.orders[place]
        del self._sizes[place]
        return True


class Pages:
    """What stands in a line before its youngest part: objects, then pages, in order.

    packed  how many are in pages, and so no objects
    """

    __slots__ = ("_front", "_pages", "packed")

    def __init__(self) -> None:
        self._front: deque[Delivery] = deque()
        self._pages: deque[Page | Piece] = deque()
        self.packed = 0

    def add(self, deliveries: list[Delivery], pack: bool) -> None:
        """Behind all others; packed if that is allowed and possible. Must not be empty."""
        if pack and Page.alike(deliveries):
            self._pages.append(Page(deliveries))
            self.packed += len(deliveries)
        else:
            self._pages.append(Piece(deliveries))

    def front(self) -> deque[Delivery]:
        """The deliveries next in line, to take from its left end; empty when none are left."""
        while not self._front and self._pages:
            page = self._pages.popleft()
            if isinstance(page, Page):
                self.packed -= len(page)
            self._front.extend(page)
        return self._front

    def __iter__(self) -> Iterator[Delivery]:
        """All, in order; those in a page as objects of the moment, good for reading only."""
        yield from self._front
        for page in self._pages:
            yield from page

    def after(self, order: int, count: int) -> list[Delivery]:
        """The first `count` behind that order; those in a page as objects of the moment."""
        found = behind(self._front, order, count)
        if len(found) < count:
            start = bisect_right(self._pages, order, key=_last)
            for page in islice(self._pages, start, None):
                found.extend(page.after(order, count - len(found)))
                if len(found) >= count:
                    break
        return found

    def runs(self, order: int, clean: bool) -> Iterator[Run]:
        """All behind that order, and perhaps some before; `clean`: all of them are READY."""
        if self._front and self._front[-1].order > order:
            yield run_of(Piece(list(self._front)), clean)
        start = bisect_right(self._pages, order, key=_last)
        for page in islice(self._pages, start, None):
            if isinstance(page, Page):
                yield Run(page.orders, page.last, 0)
            else:
                yield run_of(page, clean)

    def find(self, order: int) -> Delivery | None:
        """The one with that order, whatever its state."""
        if self._front and self._front[-1].order >= order:
            return at(self._front, order)
        place = bisect_left(self._pages, order, key=_last)
        if place == len(self._pages):
            return None
        return self._pages[place].find(order)

    def last(self) -> int:
        """The order of the last one, 0 if there is none."""
        if self._pages:
            return _last(self._pages[-1])
        return self._front[-1].order if self._front else 0

    def remove(self, sequence: int) -> bool:
        """Take one out of its page; False if it is in none."""
        place = bisect_left(self._pages, sequence, key=_last)
        if place < len(self._pages):
            page = self._pages[place]
            if isinstance(page, Page) and page.remove(sequence):
                self.packed -= 1
                if not page:
                    del self._pages[place]
                return True
        return False

    def discard(self, order: int) -> bool:
        """Take one out, wherever it is but in the front; False if it is not there."""
        place = bisect_left(self._pages, order, key=_last)
        if place == len(self._pages):
            return False
        page = self._pages[place]
        if not page.remove(order):
            return False
        if isinstance(page, Page):
            self.packed -= 1
        if not page:
            del self._pages[place]
        return True

    @property
    def empty(self) -> bool:
        """Nothing is there."""
        return not self._front and not self._pages

    def compact(self) -> int:
        """Forget the objects that are no longer READY. Returns how many deliveries are left."""
        self._front = deque(ready_of(self._front))
        left = len(self._front) + self.packed
        pages: deque[Page | Piece] = deque()
        for page in self._pages:
            if isinstance(page, Page):
                if page:
                    pages.append(page)
            else:
                ready = ready_of(page)
                left += len(ready)
                if ready:
                    pages.append(Piece(ready))
        self._pages = pages
        return left


def behind(line: deque[Delivery], order: int, count: int) -> list[Delivery]:
    """The first `count` of a line in order that stand behind that order."""
    start = bisect_right(line, order, key=_order) if line else 0
    return list(islice(line, start, start + count))


def at(line: deque[Delivery], order: int) -> Delivery | None:
    """The one of a line in order that has that order."""
    place = bisect_left(line, order, key=_order)
    if place < len(line) and line[place].order == order:
        return line[place]
    return None


def _order(delivery: Delivery) -> int:
    return delivery.order


def _last(page: Page | Piece) -> int:
    return page.last


def oldest(line: deque[Delivery], count: int) -> tuple[list[Delivery], int]:
    """Take the first `count` out of a line. Returns those that are READY, and how many are not."""
    taken = [line.popleft() for _ in range(count)]
    ready = ready_of(taken)
    return ready, count - len(ready)


def chained(older: Pages | None, line: Iterable[Delivery] | None) -> Iterator[Delivery]:
    """A whole line: its older part, if it has one, and the rest."""
    if older is not None:
        yield from older
    if line is not None:
        yield from line
