"""How the wall clock was set, as the journal knows it.

A journaled message has its expiration and its delivery time in wall time, as it was when the
message came. Within a process both run on the steady clock. A restart has only wall time to go by,
so every step of the wall clock is recorded (CLOCK): a message is judged by the wall clock that it
was journaled under. Without that, a clock that is set back would hide messages again whose
delivery time had come, and would prolong the life of others.

    record CLOCK    i64 ms by which the wall clock was set forward (+) or back (-); 0 = not at all
                    the header's time is the wall clock after that

A step while the broker runs is seen by comparing both clocks. A step back between two runs is seen
when the wall clock is before the last time in the journal, which is the latest that is known: the
time between that and the step is not counted. A step forward between two runs cannot be told from
time that has passed.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from sluicemq.broker.clock import Clock
from sluicemq.journal.format import RecordType
from sluicemq.journal.port import Journal

STEP_MS: Final = 1000
"""A smaller difference is left to add up: the wall clock is slewed all the time."""
NOTE_MS: Final = 1000
"""Between two records that only tell the time."""
MAX_STEPS: Final = 1000
"""Steps remembered. The oldest is dropped beyond that."""

_BODY: Final = Struct("<q")


def decode_clock(body: bytes) -> int:
    """Return the step of a CLOCK record in ms."""
    return int(_BODY.unpack(body)[0])


class ClockLog:
    """Records steps of the wall clock, and converts wall times of journaled messages.

    steps  (sequence number of the CLOCK record, ms), ascending
    """

    __slots__ = ("_clock", "_epoch", "_journal", "_noted", "steps")

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self.steps: list[tuple[int, int]] = []
        self._journal = journal
        self._clock = clock
        self._epoch = clock.epoch
        self._noted = 0

    def look(self) -> None:
        """Record a step of the wall clock, if there was one since the last call.

        Call it after the clock was refreshed and before anything is journaled by it.
        Raises JournalFailed.
        """
        step = self._clock.epoch - self._epoch
        if not -STEP_MS < step < STEP_MS:
            self._epoch += step
            self._record(step)

    def note_time(self) -> None:
        """Record the time, at most once per `NOTE_MS`: what was due by now stays due after a
        restart. Raises JournalFailed."""
        if self._clock.steady - self._noted >= NOTE_MS:
            self._record(0)

    def resume(self, last: int) -> None:
        """Record a step back since `last`, ms, the last time in the journal."""
        if self._clock.wall <= last - STEP_MS:
            self._record(self._clock.wall - last)

    def epoch_of(self, sequence: int) -> int:
        """Return what the wall clock was ahead of the present steady clock, in ms, when the record
        `sequence` was journaled: wall times in that record less this are steady times."""
        epoch = self._clock.epoch
        for place, step in reversed(self.steps):
            if place <= sequence:
                break
            epoch -= step
        return epoch

    def forget_before(self, sequence: int) -> None:
        """Drop the steps that no record from `sequence` on needs."""
        self.steps = [step for step in self.steps if step[0] > sequence]

    def _record(self, step: int) -> None:
        clock = self._clock
        sequence = self._journal.append_entry(RecordType.CLOCK, _BODY.pack(step), clock.wall)
        self._noted = clock.steady
        if step:
            self.steps.append((sequence, step))
            del self.steps[:-MAX_STEPS]
