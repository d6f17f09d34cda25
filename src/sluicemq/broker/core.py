"""What all rooms of the engine share: time, journal, memory accounting, and what is to be done
before the turn ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluicemq.broker.timers import ExpiryWheel, Timers

if TYPE_CHECKING:
    from sluicemq.broker.clock import Clock
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.subscription import Subscription
    from sluicemq.journal.port import Journal
    from sluicemq.model.message import Message

TURN_DELIVERIES: Final = 1000
TURN_BYTES: Final = 1 << 20
"""What one consumer may be given per turn, so that no backlog holds up the other connections."""


class Core:
    """Shared state of one broker.

    memory          body bytes held in memory
    memory_budget   above it, journaled bodies are dropped and read back when their turn comes
    dirty           subscriptions that may be able to dispatch
    again           those that used up their share of this turn
    settling        those with acknowledgements not yet given to the journal
    requeued        deliveries whose place is not the one their sequence gives them, by
                    (subscription, sequence)
    unblocking      destinations with parked messages and perhaps room for them
    bury            moves a delivery to its dead-letter queue; False when there is none
    """

    __slots__ = (
        "again",
        "bury",
        "clock",
        "dirty",
        "journal",
        "memory",
        "memory_budget",
        "requeued",
        "settling",
        "timers",
        "unblocking",
        "wheel",
    )

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        memory_budget: int,
        bury: Callable[[Delivery, str, bool], bool],
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.memory = 0
        self.memory_budget = memory_budget
        self.bury = bury
        self.timers = Timers()
        self.wheel = ExpiryWheel()
        self.dirty: dict[Subscription, None] = {}
        self.again: dict[Subscription, None] = {}
        self.settling: dict[Subscription, None] = {}
        self.requeued: dict[tuple[int, int], Delivery] = {}
        self.unblocking: dict[Destination, None] = {}

    def load(self, delivery: Delivery) -> Message:
        """Bring a paged-out message back. Raises JournalDamaged or RecordNotFound."""
        message = self.journal.fetch(delivery.sequence)
        message.sequence = delivery.sequence
        message.references = 1
        delivery.message = message
        self.memory += delivery.size
        return message

    def page_out(self, delivery: Delivery) -> None:
        """Drop the body of a delivery that the journal can give back."""
        message = delivery.message
        assert message is not None
        message.references -= 1
        if message.references == 0:
            self.memory -= delivery.size
        delivery.message = None
