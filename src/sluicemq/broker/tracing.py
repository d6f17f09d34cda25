"""Broker classes that also notify an observer of the stages of each message, for tracing.

The traced classes derive from the ordinary ones and are used only if tracing is enabled, so that
tracing costs nothing when it is disabled. The engine knows neither spans nor trace clocks;
observers interpret the notifications.

    accepted ──> visible ────────────────> delivered ──> over ("acknowledged", "released", …)
             └─> durable (SYNC: then visible)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from sluicemq.broker.clock import Clock
from sluicemq.broker.engine import Broker
from sluicemq.broker.event_recorder import EventRecorder
from sluicemq.broker.pending_queue import Selector
from sluicemq.broker.scans import StartDeadline, unlimited
from sluicemq.broker.selectors import compile_selector
from sluicemq.broker.settings import EngineSettings
from sluicemq.broker.subscription import Subscription
from sluicemq.journal.format import Cause
from sluicemq.model.message import Durability

if TYPE_CHECKING:
    from sluicemq.broker.consumer import Consumer
    from sluicemq.broker.core import Core
    from sluicemq.broker.delivery import Delivery
    from sluicemq.broker.destination import Destination
    from sluicemq.journal.port import Journal
    from sluicemq.model.message import Message

ACKNOWLEDGED = "acknowledged"
RELEASED = "released"
REDELIVERED = "redelivered"
REPLACED = "dead-lettered or moved"

_CAUSES = {
    Cause.ACKNOWLEDGED: ACKNOWLEDGED,
    Cause.EXPIRED: "expired",
    Cause.DROPPED: "dropped",
    Cause.PURGED: "purged",
    Cause.DISCARDED: "discarded",
}


class Observer(Protocol):
    """Receiver of the notifications. Its methods run for every message and must not raise."""

    def accepted(self, destination: Destination, message: Message) -> bool:
        """Handle a message before it is accepted; properties may be added until this returns.

        Return False to skip the message: `visible` and `durable` are then not called for it.
        """

    def visible(self, message: Message) -> None:
        """Handle a message that has its sequence and may be delivered, or already has been.

        For a message that must first be durable (SYNC) the broker calls `staged` instead.
        """

    def staged(self, message: Message) -> None:
        """Handle a message that has its sequence and becomes visible once it is durable."""

    def durable(self, sequence: int) -> None:
        """Handle a sync: every record up to `sequence` is on disk."""

    def delivered(self, subscription: Subscription, delivery: Delivery) -> object:
        """Handle a dispatch to a consumer. Return a handle for `over`, or None to skip `over`."""

    def over(self, handling: object, how: str) -> None:
        """Handle the end of a delivery attempt. `handling` is the value that `delivered`
        returned.
        """


class TracedEventRecorder(EventRecorder):
    """Event recorder that also notifies the observer of deliveries."""

    __slots__ = ("observer",)

    def __init__(self, journal: Journal, clock: Clock, observer: Observer) -> None:
        super().__init__(journal, clock)
        self.observer = observer

    def deliver(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """Record the deliveries and notify the observer of each one."""
        super().deliver(subscription, deliveries)
        assert isinstance(subscription, TracedSubscription)
        for delivery in deliveries:
            subscription.over(delivery.sequence, REDELIVERED)
            handling = self.observer.delivered(subscription, delivery)
            if handling is not None:
                subscription.handled[delivery.sequence] = handling


class TracedSubscription(Subscription):
    """Subscription that also notifies the observer of the end of each delivery.

    handled  handles returned by the observer for unacked deliveries, by sequence
    """

    __slots__ = ("_how", "handled", "observer")

    def __init__(
        self,
        core: Core,
        destination: Destination,
        name: str = "",
        number: int = 0,
        selector: Selector | None = None,
        exclude: object = None,
        shared: bool = True,
        owner: str = "",
    ) -> None:
        super().__init__(core, destination, name, number, selector, exclude, shared, owner)
        event_recorder = core.event_recorder
        assert isinstance(event_recorder, TracedEventRecorder)
        self.observer = event_recorder.observer
        self.handled: dict[int, object] = {}
        self._how = ""
        """Cause of the end of the deliveries being forgotten, "" for acknowledgement."""

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge a delivery and notify the observer."""
        done = super().settle(consumer, sequence)
        if done:
            self.over(sequence, ACKNOWLEDGED)
        return done

    def put_back(self, delivery: Delivery) -> None:
        """Return a delivery to its original position and notify the observer."""
        super().put_back(delivery)
        self.over(delivery.sequence, RELEASED)

    def delay(self, delivery: Delivery, milliseconds: int) -> None:
        """Delay a delivery and notify the observer."""
        super().delay(delivery, milliseconds)
        self.over(delivery.sequence, RELEASED)

    def keep_refused(self, delivery: Delivery, reason: str, force: bool) -> None:
        """Keep a delivery that the dead-letter queue refused and notify the observer."""
        super().keep_refused(delivery, reason, force)
        self.over(delivery.sequence, RELEASED)

    def end(self, delivery: Delivery, cause: Cause) -> None:
        """End a delivery and notify the observer of the cause."""
        self._how = _CAUSES.get(cause, REPLACED)
        super().end(delivery, cause)
        self._how = ""

    def purge(self, unacked: bool, cause: Cause = Cause.PURGED) -> int:
        """Purge the subscription and notify the observer of the cause for each delivery."""
        self._how = _CAUSES.get(cause, REPLACED)
        count = super().purge(unacked, cause)
        self._how = ""
        return count

    def forget(self, delivery: Delivery) -> None:
        """End a delivery that is journaled elsewhere and notify the observer."""
        super().forget(delivery)
        self.over(delivery.sequence, self._how or ACKNOWLEDGED)

    def over(self, sequence: int, how: str) -> None:
        """Notify the observer that an unacked delivery, if there is one, has ended."""
        if self.handled:
            handling = self.handled.pop(sequence, None)
            if handling is not None:
                self.observer.over(handling, how)


class TracedBroker(Broker):
    """Broker that notifies an observer of accepted, visible, durable and delivered messages."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        observer: Observer,
        settings: EngineSettings | None = None,
        compile_selector: Callable[[str], Selector] = compile_selector,
        start_deadline: StartDeadline = unlimited,
    ) -> None:
        super().__init__(journal, clock, settings, compile_selector, start_deadline)
        self.observer = observer
        self.core.event_recorder = TracedEventRecorder(journal, clock, observer)
        self.core.subscriptions = TracedSubscription

    def accept(
        self,
        destination: Destination,
        message: Message,
        last: bool = True,
        chosen: Subscription | None = None,
    ) -> None:
        """Accept a message and notify the observer before and after."""
        observer = self.observer
        if not observer.accepted(destination, message):
            super().accept(destination, message, last, chosen)
            return
        super().accept(destination, message, last, chosen)
        if message.durability == Durability.SYNC:
            observer.staged(message)
        else:
            observer.visible(message)

    def replace(
        self,
        delivery: Delivery,
        target: Destination,
        message: Message,
        cause: Cause,
        chosen: Subscription | None = None,
    ) -> int:
        """Replace a delivery by its successor and notify the observer that it has ended."""
        subscription = delivery.subscription
        assert isinstance(subscription, TracedSubscription)
        subscription.over(delivery.sequence, REPLACED)
        return super().replace(delivery, target, message, cause, chosen)

    def _on_durable(self, sequence: int) -> None:
        self.observer.durable(sequence)
        super()._on_durable(sequence)
