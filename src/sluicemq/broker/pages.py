"""The older part of a long line, packed.

A delivery that waits costs some 200 bytes as an object. In a backlog of millions nothing is known
of most of them but what the journal says too: such ones are packed, a page of them in arrays of 13
bytes each, and become objects again when the page's turn comes.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import READY, Delivery

if TYPE_CHECKING:
    from sluicemq.broker.subscription import Subscription


class Page:
    """Deliveries that differ in sequence and size only. They are READY, have never been tried,
    never expire, stand at their original place, and their messages are in the journal."""

    __slots__ = ("_journaled", "_priority", "_sequences", "_sizes", "_subscription")

    def __init__(self, deliveries: list[Delivery]) -> None:
        """`deliveries` have been found to be `alike`."""
        first = deliveries[0]
        self._subscription: Subscription = first.subscription
        self._priority = first.priority
        self._journaled = first.journaled
        self._sequences = array("Q", [delivery.sequence for delivery in deliveries])
        self._sizes = array("I", [delivery.size for delivery in deliveries])

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
        return len(self._sequences)

    def __iter__(self) -> Iterator[Delivery]:
        """Each as an object, made anew."""
        subscription, priority, journaled = self._subscription, self._priority, self._journaled
        for sequence, size in zip(self._sequences, self._sizes, strict=True):
            yield Delivery(subscription, sequence, None, priority, size, journaled, 0, 0)


class Pages:
    """What stands in a line before its youngest part: objects, then pages, in order."""

    __slots__ = ("_front", "_pages")

    def __init__(self) -> None:
        self._front: deque[Delivery] = deque()
        self._pages: deque[Page | list[Delivery]] = deque()

    def add(self, deliveries: list[Delivery], pack: bool) -> None:
        """Behind all others; packed if that is allowed and possible."""
        if pack and Page.alike(deliveries):
            self._pages.append(Page(deliveries))
        else:
            self._pages.append(deliveries)

    def front(self) -> deque[Delivery]:
        """The deliveries next in line, to take from its left end; empty when none are left."""
        if not self._front and self._pages:
            self._front.extend(self._pages.popleft())
        return self._front

    def unpack(self) -> None:
        """Turn all into objects that stay the same, so that something may be done to them."""
        self._pages = deque(list(page) if isinstance(page, Page) else page for page in self._pages)

    def __iter__(self) -> Iterator[Delivery]:
        """All, in order; those in a page as objects of the moment, good for reading only."""
        yield from self._front
        for page in self._pages:
            yield from page


def oldest(line: deque[Delivery], count: int) -> tuple[list[Delivery], int]:
    """Take the first `count` out of a line. Returns those that are READY, and how many are not."""
    taken = [line.popleft() for _ in range(count)]
    ready = [delivery for delivery in taken if delivery.state == READY]
    return ready, count - len(ready)


def chained(older: Pages | None, line: Iterable[Delivery] | None) -> Iterator[Delivery]:
    """A whole line: its older part, if it has one, and the rest."""
    if older is not None:
        yield from older
    if line is not None:
        yield from line
