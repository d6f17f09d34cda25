"""Records that no client waits for: deliveries and depths, and steps of the wall clock.

Records of deliveries and depths never cause a write by themselves. An iteration with other records
to write includes them; without such an iteration they wait for the journal's `flush_interval`. So
they add no write and no fdatasync to an iteration, and a crash may lose the latest ones. The
delivery of a message is always recorded before its acknowledgement.

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

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from sluicemq.broker.codec import CLOCK_STEP
from sluicemq.broker.pending.entry import SHARED, Entry
from sluicemq.broker.scheduler import Clock
from sluicemq.journal.format import (
    DEPTH,
    MAX_COMPLETED,
    RecordType,
    encode_completed,
    encode_redelivered,
)
from sluicemq.journal.interface import Journal

STEP_MS: Final = 1000
"""Smaller differences accumulate: the wall clock is slewed continuously."""
NOTE_MS: Final = 1000
"""Least time between two records without a step."""
MAX_STEPS: Final = 1000
"""Number of steps kept; beyond it the oldest is dropped."""

_Item = TypeVar("_Item")


class EventRecorder:
    """Buffer of delivery and depth records.

    recording   True if deliveries are recorded
    unrecorded  deliveries of this iteration that are not yet records, by number of subscription:
                the destination's number, sequences delivered for the first time, and (sequence,
                attempts) of redeliveries
    buffered    records not yet written: type, body, wall ms, number of the destination
    suspended   True while disk space is low: nothing is recorded
    """

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._clock = clock
        self._journal = journal
        self.recording = journal.options.record_deliveries
        self.suspended = False
        self.unrecorded: dict[int, tuple[int, list[int], list[tuple[int, int]]]] = {}
        self.buffered: list[tuple[int, bytes, int, int]] = []

    def suspend(self, suspended: bool) -> None:
        """Stop recording and drop the records that have not been written, or record again."""
        self.suspended = suspended
        self.recording = self._journal.options.record_deliveries and not suspended
        if suspended:
            self.buffered.clear()
            self.unrecorded.clear()

    def deliver(self, subscription: int, destination: int, deliveries: Sequence[Entry]) -> None:
        """Record deliveries just dispatched to a consumer, unless their end is not journaled.

        `subscription` and `destination` are numbers in the journal.
        """
        batch = self.unrecorded.get(subscription)
        if batch is None:
            batch = self.unrecorded[subscription] = (destination, [], [])
        _, first_deliveries, redeliveries = batch
        for delivery in deliveries:
            if delivery.journaled >= SHARED:
                if delivery.attempts == 1:
                    first_deliveries.append(delivery.sequence)
                else:
                    redeliveries.append((delivery.sequence, delivery.attempts))

    def record_depth(self, destination: int, ready: int, unacked: int, consumers: int) -> None:
        """Record the depth of the journaled destination with that number."""
        body = DEPTH.pack(ready, unacked, consumers, 0)
        self.buffered.append((RecordType.DEPTH, body, self._clock.wall, destination))

    def end_iteration(self) -> bool:
        """Turn the iteration's deliveries into records; return True if records wait to be
        written.
        """
        if self.unrecorded:
            unrecorded, self.unrecorded = self.unrecorded, {}
            wall = self._clock.wall
            for number, (destination, first_deliveries, redeliveries) in unrecorded.items():
                for part in _parts(first_deliveries):
                    body = encode_completed(number, part)
                    self.buffered.append((RecordType.DELIVERED, body, wall, destination))
                for pairs in _parts(redeliveries):
                    body = encode_redelivered(
                        number, [pair[0] for pair in pairs], [pair[1] for pair in pairs]
                    )
                    self.buffered.append((RecordType.REDELIVERED, body, wall, destination))
        return bool(self.buffered)

    def write(self) -> None:
        """Append the buffered records, before an acknowledgement or another write; never inside a
        unit.
        """
        if self.end_iteration():
            records, self.buffered = self.buffered, []
            for type, body, wall, destination in records:
                self._journal.append_entry(type, body, wall, destination=destination)


def _parts(items: list[_Item]) -> Iterator[list[_Item]]:
    """Split a list into lists that fit in one record each."""
    for start in range(0, len(items), MAX_COMPLETED):
        yield items[start : start + MAX_COMPLETED]


class ClockLog:
    """Records steps of the wall clock, and converts wall times of journaled messages.

    steps  (sequence number of the CLOCK record, ms), ascending
    """

    def __init__(self, journal: Journal, clock: Clock, event_recorder: EventRecorder) -> None:
        self.steps: list[tuple[int, int]] = []
        self._journal = journal
        self._event_recorder = event_recorder
        self._clock = clock
        self._epoch = clock.epoch
        self._noted = 0

    def detect_step(self) -> None:
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
        for position, step in reversed(self.steps):
            if position <= sequence:
                break
            epoch -= step
        return epoch

    def drop_before(self, sequence: int) -> None:
        """Drop the steps that records from `sequence` on do not need."""
        self.steps = [step for step in self.steps if step[0] > sequence]

    def _record(self, step: int) -> None:
        clock = self._clock
        self._event_recorder.write()  # the buffered records have times from before the step
        payload = CLOCK_STEP.pack(step)
        sequence = self._journal.append_entry(RecordType.CLOCK_STEP, payload, clock.wall)
        self._noted = clock.steady
        if step:
            self.steps.append((sequence, step))
            del self.steps[:-MAX_STEPS]
