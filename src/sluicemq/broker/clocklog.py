"""Log of wall clock steps in the journal.

A journaled message has its expiration and delivery time in the wall time of its arrival. Within a
process both are converted to steady time. After a restart only wall time is available, so every
step of the wall clock is recorded (CLOCK), and a message is judged by the wall clock that it was
journaled under. Otherwise a clock set back would hide messages whose delivery time had passed, and
would prolong the life of others.

    record CLOCK    i64 ms by which the wall clock was set forward (+) or back (-); 0 = no step
                    the header's time is the wall clock after the step

A step while the broker runs is detected by comparing both clocks. A step back between two runs is
detected if the wall clock is before the last time in the journal; the time between that last record
and the step is not counted. A step forward between two runs cannot be distinguished from time that
has passed.
"""

from __future__ import annotations

from typing import Final

from sluicemq.broker.clock import Clock
from sluicemq.broker.codec import RecordWriter

STEP_MS: Final = 1000
"""Smaller differences accumulate: the wall clock is slewed continuously."""
NOTE_MS: Final = 1000
"""Least time between two records without a step."""
MAX_STEPS: Final = 1000
"""Number of steps kept; beyond it the oldest is dropped."""


class ClockLog:
    """Records steps of the wall clock, and converts wall times of journaled messages.

    steps  (sequence number of the CLOCK record, ms), ascending
    """

    __slots__ = ("_clock", "_epoch", "_noted", "_records", "steps")

    def __init__(self, records: RecordWriter, clock: Clock) -> None:
        self.steps: list[tuple[int, int]] = []
        self._records = records
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
        """Record the time, at most once per `NOTE_MS`. Raises JournalFailed.

        Deliveries due by now stay due after a restart.
        """
        if self._clock.steady - self._noted >= NOTE_MS:
            self._record(0)

    def resume(self, last: int) -> None:
        """Record a step back since `last` (ms), the last time in the journal."""
        if self._clock.wall <= last - STEP_MS:
            self._record(self._clock.wall - last)

    def epoch_of(self, sequence: int) -> int:
        """Return the difference of wall and present steady time, in ms, at the record `sequence`.

        Wall times in that record minus this difference are steady times.
        """
        epoch = self._clock.epoch
        for place, step in reversed(self.steps):
            if place <= sequence:
                break
            epoch -= step
        return epoch

    def forget_before(self, sequence: int) -> None:
        """Drop the steps that records from `sequence` on do not need."""
        self.steps = [step for step in self.steps if step[0] > sequence]

    def _record(self, step: int) -> None:
        clock = self._clock
        sequence = self._records.clock_step(step)
        self._noted = clock.steady
        if step:
            self.steps.append((sequence, step))
            del self.steps[:-MAX_STEPS]
