"""Timers: a heap of scheduled calls, and a wheel for the expiry of waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, Generic

from sluicemq.broker.pending.entry import DELAYED, READY, AnyEntry

NEVER: Final = 1 << 62


class Timers:
    """Calls scheduled by steady time. The callee checks that the reason for the call still
    exists.
    """

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._number = count()

    def add(self, when: int, call: Callable[[Any], None], argument: object) -> None:
        """Call `call(argument)` once the steady clock shows `when` ms."""
        heappush(self._heap, (when, next(self._number), call, argument))

    def deadline(self) -> int:
        """Return the steady time in ms of the next call, or NEVER."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, now: int) -> None:
        """Make every call that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, call, argument = heappop(heap)
            call(argument)


class ExpiryWheel(Generic[AnyEntry]):
    """Waiting deliveries by the tenth of a second in which they expire.

    Dispatch checks expiry exactly; the wheel only removes messages that no consumer requests, so it
    may be up to one slot late. A delivery that ends before its expiry is removed, so a long
    lifetime in a fast queue costs nothing. A delivery that expires in more than a minute or two
    waits in a coarse slot of 1024 fine ones, which is distributed when it is due: otherwise the
    slots themselves would accumulate, an empty one for each tenth of a second of the longest
    lifetime.
    """

    SLOT_MS: Final = 100
    COARSE_BITS: Final = 10

    __slots__ = ("_coarse", "_coarse_heap", "_fine", "_fine_heap")

    def __init__(self) -> None:
        self._fine: dict[int, dict[AnyEntry, None]] = {}
        self._fine_heap: list[int] = []
        self._coarse: dict[int, dict[AnyEntry, None]] = {}
        self._coarse_heap: list[int] = []

    def add(self, delivery: AnyEntry, now: int) -> None:
        """Add a delivery whose `expires` is set."""
        key = delivery.expires // self.SLOT_MS + 1
        coarse = key >> self.COARSE_BITS
        if coarse <= now // self.SLOT_MS >> self.COARSE_BITS:
            self._add_fine(delivery, key)
            return
        slot = self._coarse.get(coarse)
        if slot is None:
            self._coarse[coarse] = {delivery: None}
            heappush(self._coarse_heap, coarse)
        else:
            slot[delivery] = None

    def _add_fine(self, delivery: AnyEntry, key: int) -> None:
        slot = self._fine.get(key)
        if slot is None:
            self._fine[key] = {delivery: None}
            heappush(self._fine_heap, key)
        else:
            slot[delivery] = None

    def discard(self, delivery: AnyEntry) -> None:
        """Remove a delivery that has ended before its expiry."""
        key = delivery.expires // self.SLOT_MS + 1
        slot = self._fine.get(key)
        if slot is None or delivery not in slot:
            slot = self._coarse.get(key >> self.COARSE_BITS)
        if slot is not None:
            slot.pop(delivery, None)

    def deadline(self) -> int:
        """Return the steady time in ms at which the next slot is due, or NEVER."""
        fine = self._fine_heap[0] if self._fine_heap else NEVER
        coarse = self._coarse_heap[0] << self.COARSE_BITS if self._coarse_heap else NEVER
        key = min(fine, coarse)
        return key * self.SLOT_MS if key < NEVER else NEVER

    def due(self, now: int) -> list[AnyEntry]:
        """Remove and return deliveries that have expired while READY or DELAYED."""
        key = now // self.SLOT_MS
        coarse = self._coarse_heap
        while coarse and coarse[0] <= key >> self.COARSE_BITS:
            for delivery in self._coarse.pop(heappop(coarse)):
                self._add_fine(delivery, delivery.expires // self.SLOT_MS + 1)
        expired: list[AnyEntry] = []
        while self._fine_heap and self._fine_heap[0] <= key:
            for delivery in self._fine.pop(heappop(self._fine_heap)):
                if delivery.state == READY or delivery.state == DELAYED:
                    expired.append(delivery)
        return expired
