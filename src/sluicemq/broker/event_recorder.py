"""Recorder of deliveries and queue depths, which never cause a write to the journal by themselves.

An iteration with other records to write includes them; without such an iteration they wait for the
journal's `flush_interval`. So they add no write and no fdatasync to an iteration, and a crash may
lose the latest ones. The delivery of a message is always recorded before its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import SHARED
from sluicemq.journal.format import (
    DEPTH,
    MAX_COMPLETED,
    RecordType,
    encode_completed,
    encode_redelivered,
)

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.events import Observer
    from sluicemq.broker.subscription import Subscription
    from sluicemq.journal.port import Journal


class EventRecorder:
    """Buffer of delivery and depth records.

    recording   True if deliveries are recorded
    delivering  subscriptions with deliveries of this iteration that are not yet records
    kept        buffered records: type, body, wall ms, number of the destination
    suspended   True while disk space is low: nothing is recorded
    """

    __slots__ = ("_clock", "_journal", "_observer", "delivering", "kept", "recording", "suspended")

    def __init__(self, journal: Journal, clock: Clock, observer: Observer | None) -> None:
        self._observer = observer
        self._journal = journal
        self._clock = clock
        self.recording = journal.record_deliveries
        self.suspended = False
        self.delivering: dict[Subscription, None] = {}
        self.kept: list[tuple[int, bytes, int, int]] = []

    def suspend(self) -> None:
        """Stop recording until `resume`, and drop the records that have not been written."""
        self.suspended = True
        self.recording = False
        self.kept.clear()
        for subscription in self.delivering:
            subscription.delivered = []
            subscription.redelivered = []
        self.delivering.clear()

    def resume(self) -> None:
        """Record deliveries and depths from now on."""
        self.suspended = False
        self.recording = self._journal.record_deliveries

    def deliver(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Record deliveries just dispatched to a consumer, unless their end is not journaled.

        The observer is notified of all of them.
        """
        if self._observer is not None:
            self._observer.delivered(subscription, deliveries)
        if not self.recording or not subscription.number:
            return
        self.delivering[subscription] = None
        delivered = subscription.delivered
        for delivery in deliveries:
            if delivery.journaled >= SHARED:
                if delivery.attempts == 1:
                    delivered.append(delivery.sequence)
                else:
                    subscription.redelivered.append((delivery.sequence, delivery.attempts))

    def record_depth(
        self, destination: Destination, ready: int, unacked: int, consumers: int
    ) -> None:
        """Record the depth of a journaled destination."""
        body = DEPTH.pack(ready, unacked, consumers, 0)
        self.kept.append((RecordType.DEPTH, body, self._clock.wall, destination.number))

    def end_iteration(self) -> bool:
        """Turn the iteration's deliveries into records; return True if records wait to be
        written.
        """
        delivering = self.delivering
        if delivering:
            wall = self._clock.wall
            for subscription in delivering:
                delivered = subscription.delivered
                if delivered:
                    subscription.delivered = []
                    number = subscription.destination.number
                    for part in _parts(delivered):
                        body = encode_completed(subscription.number, part)
                        self.kept.append((RecordType.DELIVERED, body, wall, number))
                if subscription.redelivered:
                    self._keep_redelivered(subscription, wall)
            delivering.clear()
        return bool(self.kept)

    def _keep_redelivered(self, subscription: Subscription, wall: int) -> None:
        again, subscription.redelivered = subscription.redelivered, []
        for start in range(0, len(again), MAX_COMPLETED):
            part = again[start : start + MAX_COMPLETED]
            sequences = [sequence for sequence, _ in part]
            attempts = [count for _, count in part]
            body = encode_redelivered(subscription.number, sequences, attempts)
            self.kept.append((RecordType.REDELIVERED, body, wall, subscription.destination.number))

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


def _parts(sequences: list[int]) -> list[list[int]]:
    """Split sequences into lists that fit in one record each."""
    if len(sequences) <= MAX_COMPLETED:
        return [sequences]
    return [sequences[i : i + MAX_COMPLETED] for i in range(0, len(sequences), MAX_COMPLETED)]
