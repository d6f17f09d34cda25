"""What the journal is told but never made to write for: deliveries, and how destinations stand.

A turn that has anything else to write takes it along; without such a turn it waits for the
journal's `sync_delay`. So neither costs a write or an fdatasync in a turn that had none before, and
a crash may take the last of it. A delivery is always told before the message is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluicemq.broker.delivery import SHARED
from sluicemq.journal.format import (
    GAUGE,
    MAX_SETTLED,
    RecordType,
    encode_redelivered,
    encode_settled,
)

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.subscription import Subscription
    from sluicemq.journal.port import Journal


class EventRecorder:
    """See the module.

    recording   deliveries are worth a record
    delivering  subscriptions with deliveries of this turn that are no records yet
    kept        records to be: type, body, wall ms, number of the destination
    suspended   disk space is low: nothing of this is recorded
    """

    __slots__ = ("_clock", "_journal", "delivering", "kept", "recording", "suspended")

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self.recording = journal.deliveries
        self.suspended = False
        self.delivering: dict[Subscription, None] = {}
        self.kept: list[tuple[int, bytes, int, int]] = []

    def suspend(self) -> None:
        """Record nothing until `resume`, and drop what has not been written."""
        self.suspended = True
        self.recording = False
        self.kept.clear()
        for subscription in self.delivering:
            subscription.delivered = []
            subscription.redelivered = []
        self.delivering.clear()

    def resume(self) -> None:
        """Record what happens from now on."""
        self.suspended = False
        self.recording = self._journal.deliveries

    def deliver(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """These have just been given to a consumer. What the journal will not see the end of is
        passed over."""
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
        self, destination: Destination, waiting: int, in_flight: int, consumers: int
    ) -> None:
        """How a destination that the journal knows stands now."""
        body = GAUGE.pack(waiting, in_flight, consumers, 0)
        self.kept.append((RecordType.GAUGE, body, self._clock.wall, destination.number))

    def end_iteration(self) -> bool:
        """Close the turn's deliveries. True when something waits to be written."""
        delivering = self.delivering
        if delivering:
            wall = self._clock.wall
            for subscription in delivering:
                delivered = subscription.delivered
                if delivered:
                    subscription.delivered = []
                    number = subscription.destination.number
                    for part in _parts(delivered):
                        body = encode_settled(subscription.number, part)
                        self.kept.append((RecordType.DELIVERED, body, wall, number))
                if subscription.redelivered:
                    self._keep_redelivered(subscription, wall)
            delivering.clear()
        return bool(self.kept)

    def _keep_redelivered(self, subscription: Subscription, wall: int) -> None:
        again, subscription.redelivered = subscription.redelivered, []
        for start in range(0, len(again), MAX_SETTLED):
            part = again[start : start + MAX_SETTLED]
            sequences = [sequence for sequence, _ in part]
            attempts = [count for _, count in part]
            body = encode_redelivered(subscription.number, sequences, attempts)
            self.kept.append((RecordType.REDELIVERED, body, wall, subscription.destination.number))

    def write(self) -> None:
        """Append all of it: something is about to be settled, or written anyway. Never inside a
        unit."""
        if self.delivering or self.kept:
            self.end_iteration()
            kept, self.kept = self.kept, []
            append = self._journal.append_entry
            for type, body, wall, destination in kept:
                append(type, body, wall, destination=destination)


def _parts(sequences: list[int]) -> list[list[int]]:
    """As many as go into one record each."""
    if len(sequences) <= MAX_SETTLED:
        return [sequences]
    return [sequences[i : i + MAX_SETTLED] for i in range(0, len(sequences), MAX_SETTLED)]
