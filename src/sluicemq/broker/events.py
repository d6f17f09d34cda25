"""Observer of the stages of each message, for tracing.

The engine notifies its observer, if it has one (Core.observer). It knows neither spans nor trace
clocks; observers interpret the notifications.

    accepted ──> visible ────────────────> delivered ──> ended ("acknowledged", "requeued", …)
             └─> durable (SYNC: then visible)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from sluicemq.journal.format import Cause

if TYPE_CHECKING:
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.broker.subscription import Subscription
    from sluicemq.model.message import Message

ACKNOWLEDGED: Final = "acknowledged"
RELEASED: Final = "released"
REDELIVERED: Final = "redelivered"
REPLACED: Final = "dead-lettered or moved"

_OUTCOMES: Final = {
    Cause.ACKNOWLEDGED: ACKNOWLEDGED,
    Cause.EXPIRED: "expired",
    Cause.DROPPED: "dropped",
    Cause.PURGED: "purged",
    Cause.DISCARDED: "discarded",
}


def outcome_of(cause: Cause) -> str:
    """Return the outcome of a delivery that the journal ends for this cause."""
    return _OUTCOMES.get(cause, REPLACED)


class Observer(Protocol):
    """Receiver of the notifications. Its methods must not raise."""

    def accepted(self, destination: Destination, message: Message) -> bool:
        """Handle a message before it is accepted; properties may be added until this returns.

        Return False to skip the message: `visible` and `staged` are then not called for it.
        """

    def visible(self, message: Message) -> None:
        """Handle a message that has its sequence and may be delivered, or already has been.

        For a message that must first be durable (SYNC) the broker calls `staged` instead.
        """

    def staged(self, message: Message) -> None:
        """Handle a message that has its sequence and becomes visible once it is durable."""

    def durable(self, sequence: int) -> None:
        """Handle a sync: every record up to `sequence` is on disk."""

    def delivered(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Handle deliveries just dispatched to a consumer of the subscription."""

    def ended(self, subscription: Subscription, sequence: int, outcome: str) -> None:
        """Handle the end of a delivery attempt. Also called for messages that are not unacked."""
