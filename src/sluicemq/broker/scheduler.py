"""Time of the engine: the clock, timers, the expiry wheel, and the time limit of scans.

The owner of the event loop reads the clock once per iteration. Expiry, delays and timeouts use
steady time, so that setting the wall clock neither expires nor revives a message; stored and
displayed times are wall time. The engine converts a message's absolute expiration once when the
message arrives, and again when it is read back after a restart: records.ClockLog determines the
setting of the wall clock to use.

A scan is work whose length depends on the number of messages: a browse, the matching of ready
messages against a new selector, a purge, the deletion of a destination, the commit of a large
transaction, a list, the return of many unacked messages, the end of many messages with the same
expiration. All scans of a broker share one deadline per iteration, so that a thousand of them delay
other connections no more than one does. The rest continues in later iterations, first come, first
served. The caller provides a function that starts a deadline; `flush` ends the iteration. A scan
examines one message before it calls `is_time_up`, so each slice makes progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Generic

from sluicemq.broker.pending.entry import AnyEntry


class Clock:
    """Times in whole milliseconds, constant until `refresh`."""

    __slots__ = ("steady", "wall")

    def __init__(self, wall: int = 0, steady: int = 0) -> None:
        self.wall = wall
        self.steady = steady

    @property
    def epoch(self) -> int:
        """Difference of wall and steady time in ms; it changes when the wall clock is set."""
        return self.wall - self.steady

    def refresh(self) -> None:
        """Read the time sources again."""


class ManualClock(Clock):
    """Clock that advances only by calls, for tests and replays."""

    __slots__ = ()

    def __init__(self, wall: int = 1_700_000_000_000, steady: int = 1_000_000) -> None:
        super().__init__(wall, steady)

    def advance(self, milliseconds: int) -> None:
        """Advance both times by `milliseconds`."""
        self.wall += milliseconds
        self.steady += milliseconds


NEVER: Final = 1 << 62
FEW_ENDED: Final = 1024
"""Number of unneeded calls that stay until they are due."""


class Timers:
    """Calls scheduled by steady time. The callee checks that the reason for the call still
    exists.
    """

    def __init__(self, is_needed: Callable[[object], bool]) -> None:
        """Create an empty schedule; `is_needed` tells whether a call with that argument has a
        reason.
        """
        self._heap: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._number = count()
        self._is_needed = is_needed
        self._ended = 0
        """Number of calls whose reason has ended early."""

    def add(self, when: int, call: Callable[[Any], None], argument: object) -> None:
        """Call `call(argument)` once the steady clock shows `when` ms."""
        heappush(self._heap, (when, next(self._number), call, argument))

    def note_ended(self) -> None:
        """Note that the reason for a call has ended, and remove such calls if they prevail."""
        self._ended += 1
        heap = self._heap
        if self._ended > len(heap) // 2 + FEW_ENDED:
            self._ended = 0
            heap[:] = [timer for timer in heap if self._is_needed(timer[3])]
            heapify(heap)

    def deadline(self) -> int:
        """Return the steady time in ms of the next call, or NEVER."""
        return self._heap[0][0] if self._heap else NEVER

    def run(self, now: int, is_time_up: Deadline) -> None:
        """Make the calls that are due, until the time is used up."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, _, call, argument = heappop(heap)
            call(argument)
            if is_time_up():
                break


class ExpiryWheel(Generic[AnyEntry]):
    """Waiting deliveries by the slot, a tenth of a second, in which they are examined next.

    Dispatch checks expiry exactly; the wheel only removes messages that no consumer requests, so it
    may be up to one slot late. A delivery that ends before its expiry is removed, so a long
    lifetime in a fast queue costs nothing. A delivery that expires in a later block of 1024 slots
    waits in the first slot of that block, and moves to its own when that is due: otherwise the
    slots themselves would accumulate, an empty one for each tenth of a second of the longest
    lifetime.
    """

    SLOT_MS: Final = 100
    BLOCK_BITS: Final = 10

    def __init__(self) -> None:
        self._slots: dict[int, dict[AnyEntry, None]] = {}
        self._heap: list[int] = []
        """Numbers of the slots."""

    def add(self, delivery: AnyEntry, now: int) -> None:
        """Add a delivery whose `expires` is set."""
        number = delivery.expires // self.SLOT_MS + 1
        block = number >> self.BLOCK_BITS
        if block > now // self.SLOT_MS >> self.BLOCK_BITS:
            number = block << self.BLOCK_BITS
        self._put(number, delivery)

    def _put(self, number: int, delivery: AnyEntry) -> None:
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = {delivery: None}
            heappush(self._heap, number)
        else:
            slot[delivery] = None

    def discard(self, delivery: AnyEntry) -> None:
        """Remove a delivery that has ended before its expiry."""
        number = delivery.expires // self.SLOT_MS + 1
        slot = self._slots.get(number)
        if slot is None or delivery not in slot:
            slot = self._slots.get(number >> self.BLOCK_BITS << self.BLOCK_BITS)
        if slot is not None:
            slot.pop(delivery, None)

    def deadline(self) -> int:
        """Return the steady time in ms at which the next slot is due, or NEVER."""
        return self._heap[0] * self.SLOT_MS if self._heap else NEVER

    def due(self, now: int) -> list[AnyEntry]:
        """Remove and return the deliveries that have expired; some may be UNACKED."""
        expired: list[AnyEntry] = []
        while self._heap and self._heap[0] <= now // self.SLOT_MS:
            due_number = heappop(self._heap)
            for delivery in self._slots.pop(due_number):
                number = delivery.expires // self.SLOT_MS + 1
                if number != due_number:
                    self._put(number, delivery)
                else:
                    expired.append(delivery)
        return expired


Deadline = Callable[[], bool]
"""Return True once the time is used up."""
StartDeadline = Callable[[], Deadline]
"""Start the deadline of an event-loop iteration."""


def unlimited() -> Deadline:
    """Start a deadline that never expires, for programs that serve no other clients meanwhile."""
    return lambda: False


class Scans:
    """Queue of scans that wait for their next slice, and their common deadline."""

    def __init__(self, start: StartDeadline, schedule_flush: Callable[[], None]) -> None:
        """Create an empty queue; `schedule_flush` requests a flush."""
        self._start: Final = start
        self._schedule_flush: Final = schedule_flush
        self._deadline: Deadline | None = None
        """Deadline of this iteration, once a scan has asked for it."""
        self._waiting: deque[tuple[Callable[[], object], bool]] = deque()
        self._is_held_up = False
        """True if scans waited in the last iteration and none of them was called."""

    @property
    def waiting(self) -> int:
        """Number of scans that wait for their next slice."""
        return len(self._waiting)

    def is_time_up(self) -> bool:
        """Return whether the scans of this iteration have used up their time."""
        if self._deadline is None:
            self._deadline = self._start()
            self._schedule_flush()  # the flush ends the iteration
        return self._deadline()

    def begin(self, step: Callable[[], object]) -> None:
        """Run the first slice of a scan at once, or in its turn if there are others or no time.

        A step that has not finished schedules itself again.
        """
        if self._waiting or self.is_time_up():
            self.schedule(step)
        else:
            step()

    def begin_steps(self, steps: Iterator[object]) -> None:
        """Run a scan that yields after each of its steps, in slices; it begins as `begin`."""
        self.begin(partial(self._run_slice, steps))

    def _run_slice(self, steps: Iterator[object]) -> None:
        for _ in steps:
            if self.is_time_up():
                self.schedule(partial(self._run_slice, steps))
                break

    def schedule(self, step: Callable[[], object], *, outside: bool = False) -> None:
        """Call `step` in a later flush, in order of scheduling.

        With `outside` it only resumes work outside the flush, such as a coroutine. That work uses
        the time of its iteration, so no other scan is called after it.
        """
        if not self._waiting:
            self._schedule_flush()
        self._waiting.append((step, outside))

    def run(self) -> None:
        """Call the waiting scans, each at most once, until the time is used up.

        Other work of the iteration may have used up the time before. It may do so in each
        iteration, so the first scan is called nevertheless if none was in the last one.
        """
        queue = self._waiting
        is_held_up, self._is_held_up = self._is_held_up, bool(queue)
        for _ in range(len(queue)):
            if self.is_time_up() and not is_held_up:
                break
            is_held_up = self._is_held_up = False
            step, outside = queue.popleft()
            step()
            if outside:
                break

    def end_iteration(self) -> None:
        """End the iteration: the next call of `is_time_up` starts a new deadline."""
        self._deadline = None
        if self._waiting:
            self._schedule_flush()
