"""Recorder of deliveries and queue depths, which never cause a write to the journal by themselves.

An iteration with other records to write includes them; without such an iteration they wait for the
journal's `flush_interval`. So they add no write and no fdatasync to an iteration, and a crash may
lose the latest ones. The delivery of a message is always recorded before its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluicemq.broker.codec import (
    BufferedRecord,
    delivered_records,
    depth_record,
    redelivered_records,
)
from sluicemq.broker.pending.entry import SHARED

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock
    from sluicemq.broker.pending.entry import Entry
    from sluicemq.journal.port import Journal


class _Deliveries:
    """Deliveries of one subscription in this iteration that are not yet records.

    destination  number of the destination
    first        sequences delivered for the first time
    again        (sequence, attempts) of redeliveries
    """

    __slots__ = ("again", "destination", "first")

    def __init__(self, destination: int) -> None:
        self.destination = destination
        self.first: list[int] = []
        self.again: list[tuple[int, int]] = []


class EventRecorder:
    """Buffer of delivery and depth records.

    recording   True if deliveries are recorded
    delivering  deliveries of this iteration that are not yet records, by number of subscription
    kept        buffered records
    suspended   True while disk space is low: nothing is recorded
    """

    __slots__ = ("_clock", "_journal", "delivering", "kept", "recording", "suspended")

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.recording = journal.record_deliveries
        self.suspended = False
        self.delivering: dict[int, _Deliveries] = {}
        self.kept: list[BufferedRecord] = []

    def suspend(self) -> None:
        """Stop recording until `resume`, and drop the records that have not been written."""
        self.suspended = True
        self.recording = False
        self.kept.clear()
        self.delivering.clear()

    def resume(self) -> None:
        """Record deliveries and depths from now on."""
        self.suspended = False
        self.recording = self._journal.record_deliveries

    def deliver(self, subscription: int, destination: int, deliveries: Sequence[Entry]) -> None:
        """Record deliveries just dispatched to a consumer, unless their end is not journaled.

        `subscription` and `destination` are numbers in the journal.
        """
        batch = self.delivering.get(subscription)
        if batch is None:
            batch = self.delivering[subscription] = _Deliveries(destination)
        for delivery in deliveries:
            if delivery.journaled >= SHARED:
                if delivery.attempts == 1:
                    batch.first.append(delivery.sequence)
                else:
                    batch.again.append((delivery.sequence, delivery.attempts))

    def record_depth(self, destination: int, ready: int, unacked: int, consumers: int) -> None:
        """Record the depth of the journaled destination with that number."""
        self.kept.append(depth_record(destination, ready, unacked, consumers, self._clock.wall))

    def end_iteration(self) -> bool:
        """Turn the iteration's deliveries into records; return True if records wait to be
        written.
        """
        if self.delivering:
            delivering, self.delivering = self.delivering, {}
            wall = self._clock.wall
            for number, batch in delivering.items():
                if batch.first:
                    self.kept += delivered_records(number, batch.destination, batch.first, wall)
                if batch.again:
                    self.kept += redelivered_records(number, batch.destination, batch.again, wall)
        return bool(self.kept)

    def write(self) -> None:
        """Append the buffered records, before an acknowledgement or another write; never inside a
        unit.
        """
        if self.delivering or self.kept:
            self.end_iteration()
            kept, self.kept = self.kept, []
            append = self._journal.append_entry
            for type, body, wall, destination in kept:
                append(type, body, wall, destination=destination)
