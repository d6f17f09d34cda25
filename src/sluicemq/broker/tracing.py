"""The broker as it is when the ways of messages are traced: the same, and it tells an observer.

Tracing costs nothing where it is off, because what it needs is not in the way: these classes take
the places of those they derive from, and only in a broker that is made with them. Of what they are
told, observers make what they like; the engine knows neither spans nor clocks.

    accepted ──> shown ──────────────────> delivered ──> over ("acknowledged", "released", …)
             └─> durable (SYNC: then shown)
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
from sluicemq.broker.settings import BrokerSettings
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
    """Who is told. Nothing of it may raise, and all of it is on the way of every message."""

    def accepted(self, destination: Destination, message: Message) -> bool:
        """The message is about to be taken in; until this returns, its properties may be added to.
        False: it is not followed, and `shown` and `durable` are not called for it."""

    def shown(self, message: Message) -> None:
        """It has its number, and consumers may get it, or have got it already. One that is to be
        durable first (SYNC) comes by `staged` instead."""

    def staged(self, message: Message) -> None:
        """It has its number, and is shown when it is durable."""

    def durable(self, sequence: int) -> None:
        """Everything up to there is on disk."""

    def delivered(self, subscription: Subscription, delivery: Delivery) -> object:
        """It has been given to a consumer. None: nobody needs to hear how that ends."""

    def over(self, handling: object, how: str) -> None:
        """The consumer has it no more. `handling` is what `delivered` has given back."""


class TracedEventRecorder(EventRecorder):
    """Also tells the observer of deliveries."""

    __slots__ = ("observer",)

    def __init__(self, journal: Journal, clock: Clock, observer: Observer) -> None:
        super().__init__(journal, clock)
        self.observer = observer

    def deliver(self, subscription: Subscription, deliveries: Sequence[Delivery]) -> None:
        """See EventRecorder."""
        super().deliver(subscription, deliveries)
        assert isinstance(subscription, TracedSubscription)
        for delivery in deliveries:
            subscription.over(delivery.sequence, REDELIVERED)
            handling = self.observer.delivered(subscription, delivery)
            if handling is not None:
                subscription.handled[delivery.sequence] = handling


class TracedSubscription(Subscription):
    """Also tells the observer how deliveries end.

    handled  what the observer has given for deliveries that consumers hold, by sequence
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
        """How deliveries are over that are being forgotten, if it is not by acknowledgement."""

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """See Subscription."""
        done = super().settle(consumer, sequence)
        if done:
            self.over(sequence, ACKNOWLEDGED)
        return done

    def put_back(self, delivery: Delivery) -> None:
        """See Subscription."""
        super().put_back(delivery)
        self.over(delivery.sequence, RELEASED)

    def delay(self, delivery: Delivery, milliseconds: int) -> None:
        """See Subscription."""
        super().delay(delivery, milliseconds)
        self.over(delivery.sequence, RELEASED)

    def keep_refused(self, delivery: Delivery, reason: str, force: bool) -> None:
        """See Subscription."""
        super().keep_refused(delivery, reason, force)
        self.over(delivery.sequence, RELEASED)

    def end(self, delivery: Delivery, cause: Cause) -> None:
        """See Subscription."""
        self._how = _CAUSES.get(cause, REPLACED)
        super().end(delivery, cause)
        self._how = ""

    def purge(self, unacked: bool, cause: Cause = Cause.PURGED) -> int:
        """See Subscription."""
        self._how = _CAUSES.get(cause, REPLACED)
        count = super().purge(unacked, cause)
        self._how = ""
        return count

    def forget(self, delivery: Delivery) -> None:
        """See Subscription."""
        super().forget(delivery)
        self.over(delivery.sequence, self._how or ACKNOWLEDGED)

    def over(self, sequence: int, how: str) -> None:
        """The consumer that has it, if there is one, has it no more."""
        if self.handled:
            handling = self.handled.pop(sequence, None)
            if handling is not None:
                self.observer.over(handling, how)


class TracedBroker(Broker):
    """See the module."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        observer: Observer,
        settings: BrokerSettings | None = None,
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
        """See PublishOperations."""
        observer = self.observer
        if not observer.accepted(destination, message):
            super().accept(destination, message, last, chosen)
            return
        super().accept(destination, message, last, chosen)
        if message.durability == Durability.SYNC:
            observer.staged(message)
        else:
            observer.shown(message)

    def replace(
        self,
        delivery: Delivery,
        target: Destination,
        message: Message,
        cause: Cause,
        chosen: Subscription | None = None,
    ) -> int:
        """See PublishOperations."""
        subscription = delivery.subscription
        assert isinstance(subscription, TracedSubscription)
        subscription.over(delivery.sequence, REPLACED)
        return super().replace(delivery, target, message, cause, chosen)

    def _on_durable(self, sequence: int) -> None:
        self.observer.durable(sequence)
        super()._on_durable(sequence)
