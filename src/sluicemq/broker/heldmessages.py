"""Transfer of messages held by a topic without subscriptions to the first matching subscription.

Members of the topic's group need no scan: see fan_out.py.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sluicemq.broker.fan_out import give_held
from sluicemq.broker.pending.cursor import Cursor
from sluicemq.broker.pending.entry import DELAYED, UNJOURNALED
from sluicemq.broker.subscription import forget, tidy, withdraw
from sluicemq.journal.format import Cause
from sluicemq.model.errors import JournalDamaged, RecordNotFound
from sluicemq.model.message import Durability

if TYPE_CHECKING:
    from sluicemq.broker.state import Delivery, Subscription


class HeldMessages:
    """Scan for one new subscription, in slices of the time for scans.

    Messages published meanwhile go to the subscription immediately, and may be delivered before
    held ones that are still to be transferred.
    """

    __slots__ = ("_cursor", "_delayed", "_held", "_subscription")

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        held = self._held = subscription.destination.queue
        self._cursor = Cursor(held.everything, held.core.journal.next_sequence())
        self._delayed: deque[Delivery] = deque(held.delayed.values())

    def begin(self) -> None:
        """Start the scan, immediately if there is time."""
        self._held.core.scans.begin(self._run)

    def _run(self) -> None:
        held = self._held
        scans = held.core.scans
        topic = held.destination
        while not self._subscription.closed and not held.closed and topic.queue is held:
            if self._cursor.priority >= 0:
                for delivery in self._cursor.look(1):
                    self._offer(delivery, ready=True)
            elif self._delayed:
                delivery = self._delayed.popleft()
                if delivery.state == DELAYED:
                    self._offer(delivery, ready=False)
            else:
                break
            if scans.over():
                scans.schedule(self._run)
                break
        if not self._subscription.closed:
            held.core.dirty[self._subscription] = None

    def _offer(self, delivery: Delivery, *, ready: bool) -> None:
        subscription = self._subscription
        held = self._held
        try:
            message = held.core.read(delivery)
        except (JournalDamaged, RecordNotFound):
            return  # it stays in the queue and is reported there
        if not message.epoch:  # it has been read back from the journal
            expires = delivery.expires
            epoch = held.core.clock.epoch
            message.epoch = delivery.expiration - expires if expires else epoch
        if not subscription.accepts(message):
            return
        if ready:
            held.everything.pull(delivery)
        withdraw(delivery)
        journaled, delivery.journaled = delivery.journaled, UNJOURNALED
        forget(delivery, Cause.MOVED)
        if journaled:
            message.durability = message.durability or Durability.SYNC
        give_held(message, subscription)
        tidy(held)
