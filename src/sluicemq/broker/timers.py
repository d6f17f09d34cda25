"""What happens later: a heap of calls, and a wheel for the expiry of waiting messages."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from sluicemq.broker.delivery import DELAYED, READY, Delivery

NEVER: Final = 1 << 62


class Timers:
    """Calls to be made at a steady time. A call whose reason has gone must notice so itself."""

    __slots__ = ("_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._number = count()

    def add(self, when: int, call: Callable[[Any], None], argument: object) -> None:
        """Call `call(argument)` once the steady clock shows `when` ms."""
        heappush(self._heap, (when, next(self._number), call, argument))

    def deadline(self) -> int:
        """Steady ms of the next call, or NEVER."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, now: int) -> None:
        """Make every call that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, call, argument = heappop(heap)
            call(argument)


class ExpiryWheel:
    """Waiting deliveries by the tenth of a second in which they expire.

    Dispatch checks expiry exactly; the wheel only clears what nobody asks for, so it may be up
    to one slot late. A slot is cleaned when most of it has been consumed: a long time to live on
    a fast queue would otherwise keep every delivery until its hour comes.
    """

    SLOT_MS: Final = 100

    __slots__ = ("_dead", "_heap", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, list[Delivery]] = {}
        self._dead: dict[int, int] = {}
        self._heap: list[int] = []

    def add(self, delivery: Delivery) -> None:
        """Watch a delivery whose `expires` is set."""
        key = delivery.expires // self.SLOT_MS + 1
        slot = self._slots.get(key)
        if slot is None:
            self._slots[key] = [delivery]
            self._dead[key] = 0
            heappush(self._heap, key)
        else:
            slot.append(delivery)

    def discard(self, delivery: Delivery) -> None:
        """The delivery is GONE before its time."""
        key = delivery.expires // self.SLOT_MS + 1
        slot = self._slots.get(key)
        if slot is None:
            return
        dead = self._dead[key] + 1
        if dead > 64 and dead * 2 > len(slot):
            # GONE is the only state a delivery never leaves
            self._slots[key] = [d for d in slot if d.state <= DELAYED and d is not delivery]
            dead = 0
        self._dead[key] = dead

    def deadline(self) -> int:
        """Steady ms at which the next slot is due, or NEVER."""
        return self._heap[0] * self.SLOT_MS if self._heap else NEVER

    def due(self, now: int) -> list[Delivery]:
        """Remove and return deliveries that have expired while READY or DELAYED."""
        expired: list[Delivery] = []
        while self._heap and self._heap[0] * self.SLOT_MS <= now:
            key = heappop(self._heap)
            del self._dead[key]
            for delivery in self._slots.pop(key):
                if delivery.state == READY or delivery.state == DELAYED:
                    expired.append(delivery)
        return expired
