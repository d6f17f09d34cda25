"""The broker: destinations and what may be done with them.

Everything here is synchronous and belongs to one thread. A turn is: calls of any number of
sessions, then `flush`, which dispatches, journals acknowledgements and starts a group commit.
What a broker does comes in three layers, each a class: its destinations (registry.py), messages
that come in (publishing.py), and here those who want them, and the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from sluicemq.broker import attachment, declined, redelivery
from sluicemq.broker.batches import BatchAnswer, Batches
from sluicemq.broker.browse import BrowseSnapshot, scan
from sluicemq.broker.clock import Clock
from sluicemq.broker.codec import BatchPart, SubscriptionEntry, encode
from sluicemq.broker.consumer import Consumer, Sink, Window
from sluicemq.broker.delivery import GONE, Delivery
from sluicemq.broker.depth_sampler import DepthSampler
from sluicemq.broker.destination import Destination
from sluicemq.broker.dispatch import dispatch, serve_one
from sluicemq.broker.heldmessages import HeldMessages
from sluicemq.broker.pending_queue import Selector
from sluicemq.broker.publishing import PublishOperations
from sluicemq.broker.registry import shown_creator
from sluicemq.broker.scans import StartDeadline, unlimited
from sluicemq.broker.selectors import CompiledSelector, compile_selector
from sluicemq.broker.settings import BrokerSettings
from sluicemq.broker.stats import Traffic
from sluicemq.broker.stats_sampler import StatsSampler
from sluicemq.broker.subscription import DURABLE_SUBSCRIPTION, Subscription
from sluicemq.broker.transaction import Transactions
from sluicemq.journal.format import Cause, RecordType
from sluicemq.journal.port import Journal
from sluicemq.model.destination import Address
from sluicemq.model.errors import (
    BrokerError,
    DestinationInUse,
    JournalFailed,
    LimitExceeded,
    QuotaExceeded,
    SubscriptionInUse,
)
from sluicemq.model.message import Message

_NO_OWNER: Final = object()
"""Stands for the owner of a temporary destination that has been removed."""


class Broker(PublishOperations):
    """See the module.

    `compile_selector` understands the selectors of durable subscriptions that the journal brings
    back; `start_deadline` limits the time of scans (scans.py).
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: BrokerSettings | None = None,
        compile_selector: Callable[[str], Selector] = compile_selector,
        start_deadline: StartDeadline = unlimited,
    ) -> None:
        super().__init__(journal, clock, settings or BrokerSettings(), start_deadline)
        self.restored_selector = compile_selector
        self.transactions = Transactions(self)
        self.batches = Batches(self)
        self.depth_sampler = DepthSampler(self.core, self.destinations)
        self.traffic: dict[str, Traffic] = {}
        """By protocol, of those that have had clients."""
        self.stats_sampler = StatsSampler(self)

    # --- destinations ------------------------------------------------------------------------

    def remove(self, destination: Destination, *, force: bool = False) -> None:
        """Delete a destination and its messages. Raises DestinationInUse unless forced."""
        if destination.consumers and not force:
            raise DestinationInUse(
                f"{destination.address} has {destination.consumers} consumers; close them first"
            )
        orphans: list[Consumer] = []
        for subscription in (destination.queue, *destination.subscriptions.values()):
            orphans += self._close(subscription)
            self.durable_subscriptions.pop(subscription.number, None)
        self.depth_sampler.gone(destination)
        self.core.event_recorder.write()  # as long as the journal knows the destination
        destination.removed = True
        if self.destinations.get(destination.address) is destination:
            self.forget(destination)
            # the journal may know it from before a restart
            self.journal.forget_destination(destination.address)
            for callback in self.removals:
                callback(destination)
        parked = list(destination.parked)
        destination.parked.clear()
        for message, unblocked in parked:
            # the producer was promised nothing yet, but it will not send again either
            over = True
            with suppress(BrokerError):
                over = self.publish(destination, message, unblocked)
            if over:
                unblocked()
        if destination.owner is not None:
            # still temporary, but what refers to it must not keep the session in memory
            destination.owner = _NO_OWNER
        for consumer in orphans:
            consumer.sink.detached(consumer)

    def _close(self, subscription: Subscription) -> list[Consumer]:
        """Drop what a subscription holds, and its consumers, which are returned."""
        subscription.closed = True
        subscription.purge(True, Cause.DISCARDED)
        return self._take_consumers(subscription)

    def _take_consumers(self, subscription: Subscription) -> list[Consumer]:
        """Detach the consumers of a subscription, which are returned."""
        consumers = list(subscription.consumers)
        for consumer in consumers:
            attachment.detach(consumer)
        return consumers

    def delete_temporary(self, owner: object) -> None:
        """Remove the temporary destinations of a connection that has gone."""
        for destination in [d for d in self.destinations.values() if d.owner is owner]:
            self.remove(destination, force=True)

    def purge(self, destination: Destination, *, unacked: bool = False) -> int:
        """Drop the messages that wait, and with `unacked` those in flight. Returns how many."""
        count = destination.queue.purge(unacked)
        for subscription in destination.subscriptions.values():
            count += subscription.purge(unacked)
        return count

    def move(
        self,
        source: Subscription,
        target: Destination,
        predicate: Callable[[Message], bool] | None = None,
        limit: int = 0,
    ) -> int:
        """Move waiting messages, in order, as one unit each. Returns how many (0 limit = all)."""
        moved = 0
        for delivery in source.matching(predicate):
            if limit and moved >= limit:
                break
            message = delivery.message or self.journal.fetch(delivery.sequence)
            # its end in wall time may be another by now than when it was sent
            expiration = delivery.expires + self.clock.epoch if delivery.expires else 0
            copy = message.copy(target.address, expiration)
            source.withdraw(delivery)
            self.replace(delivery, target, copy, Cause.MOVED)
            moved += 1
        return moved

    def reap(self, destination: Destination) -> None:
        """Remove an automatic destination if it has been idle for its time, unless it is the
        dead-letter queue of one that exists. Call now and then."""
        if not destination.busy() and not destination.for_dead_letters:
            timeout = destination.settings.idle_timeout
            if timeout is None:
                timeout = self.settings.idle_timeout
            if timeout and self.clock.steady - destination.idle_since >= timeout:
                self.remove(destination)

    # --- subscriptions of topics -------------------------------------------------------------

    def subscribe(
        self,
        topic: Destination,
        name: str,
        *,
        durable: bool = False,
        shared: bool = False,
        selector: Selector | None = None,
        exclude: object = None,
        owner: str = "",
        creator: str | None = None,
        member: bool = False,
    ) -> Subscription:
        """Find or create the subscription `name` of a topic; messages sent from now on are its.

        A `member` of the group of a topic that holds messages (see destination.py) is neither
        durable nor shared and has no selector; the first one also has what is held.

        `owner` is the user that a new one belongs to, "" = nobody yet; one that exists keeps its
        own. Whether the caller may use or replace that one is for the caller to check. A new
        durable one counts against the quota of `creator` (Identity.creator), None = nobody's.
        Raises SubscriptionInUse if it exists with other terms and has consumers (JMS 1.1
        section 6.11.1: with other terms and no consumers it is replaced), LimitExceeded.
        """
        if selector is not None and selector.text not in topic.routes.routes:
            attachment.expect_load(topic, topic.routes.load_with(selector))
        existing = topic.subscriptions.get(name)
        if existing is not None:
            text = selector.text if selector else None
            same = (
                (existing.selector.text if existing.selector else None) == text
                and existing.exclude == exclude
                and existing.durable == durable
                and existing.member == member
                and existing.shared == shared
            )
            if same:
                return existing
            if existing.consumers:
                raise SubscriptionInUse(f"{name} of {topic.address} is in use on other terms")
            self.unsubscribe(existing)
        limit = topic.settings.max_subscriptions
        if limit and len(topic.subscriptions) >= limit:
            raise LimitExceeded(f"{topic.address} has {limit} subscriptions, the limit")
        if member:
            self.form_group(topic)
            return topic.join(name)
        number = 0
        if durable:
            self._check_subscriptions(name, creator)
            number = DURABLE_SUBSCRIPTION | self.next_subscription
            self.next_subscription += 1
        subscription = self.core.subscriptions(
            self.core, topic, name, number, selector, exclude, shared, owner
        )
        if durable:
            self.durable_subscriptions[number] = subscription
            self._note_subscription(subscription)
        topic.subscribe(subscription)
        if topic.settings.hold and topic.queue.waiting and not topic.keeps_group:
            HeldMessages(subscription).begin()
        return subscription

    def _check_subscriptions(self, name: str, creator: str | None) -> None:
        """Raise QuotaExceeded unless the user may have one more durable subscription.

        Those of the same name are one: a wildcard has one for each topic.
        """
        limit = self.settings.max_user_subscriptions
        if creator is None or not limit or len(self.durable_subscriptions) < limit:
            return
        existing = self.durable_subscriptions.values()
        names = {each.name for each in existing if each.owner == creator}
        if name not in names and len(names) >= limit:
            raise QuotaExceeded(
                f"{shown_creator(creator)} has {limit} durable subscriptions, the limit of a user "
                "(broker.max_user_subscriptions); unsubscribe from some first"
            )

    def claim(self, subscription: Subscription, owner: str) -> None:
        """Give a subscription to a user; of a durable one this survives a restart."""
        if subscription.owner == owner or subscription.closed:
            return
        subscription.owner = owner
        if subscription.durable:
            self._note_subscription(subscription)

    def _note_subscription(self, subscription: Subscription) -> None:
        self.core.settled = self.journal.append_entry(
            RecordType.SUBSCRIPTION,
            encode(SubscriptionEntry.of(subscription)),
            self.clock.wall,
            destination=self.number(subscription.destination),
        )

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription of a topic and all it holds.

        Of the last member of a group the topic keeps all that was not acknowledged. While the
        broker stops, the others' is kept, too: the next one to come gets it after the start.
        """
        topic = subscription.destination
        if topic.subscriptions.get(subscription.name) is not subscription:
            return
        if self.keeps(subscription):
            orphans = self._take_consumers(subscription)
            if not self.stopping:
                topic.leave(subscription)
        else:
            orphans = self._close(subscription)
            topic.unsubscribe(subscription)
        if subscription.durable:
            del self.durable_subscriptions[subscription.number]
            self.core.settled = self.journal.append_entry(
                RecordType.SUBSCRIPTION_GONE,
                encode(SubscriptionEntry.of(subscription)),
                self.clock.wall,
                destination=topic.number,
            )
        topic.touch()
        for consumer in orphans:
            consumer.sink.detached(consumer)

    def form_group(self, topic: Destination) -> None:
        """Keep what is held by a topic for members of its group, also after a restart."""
        if not topic.grouped:
            topic.grouped = True
            self.note_settings(topic)

    def keeps(self, subscription: Subscription) -> bool:
        """Whether the topic keeps what a subscription has when that is removed now."""
        topic = subscription.destination
        return (
            subscription.member and topic.keeps_group and (len(topic.members) == 1 or self.stopping)
        )

    def compile_selector(self, text: str) -> CompiledSelector:
        """Return the selector of that text. Raises SelectorError, also for what exceeds the
        limits. Thread-safe."""
        return compile_selector(text, self.settings.selectors)

    # --- consuming ---------------------------------------------------------------------------

    def attach(
        self,
        subscription: Subscription,
        sink: Sink,
        window: Window,
        *,
        selector: Selector | None = None,
        rank: int = 0,
        ack_timeout: int | None = None,
        owner: object = None,
    ) -> Consumer:
        """Add a consumer; what waits is dispatched before this returns.

        `owner` is who asks: a temporary destination serves only the owner it was declared with.
        Raises DestinationPrivate, SubscriptionInUse.
        """
        return attachment.attach(subscription, sink, window, selector, rank, ack_timeout, owner)

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer; what it holds goes back to its original position."""
        attachment.detach(consumer)

    def retire(
        self, consumer: Consumer, kept: Iterable[int] = (), *, attempted: bool = False
    ) -> None:
        """Remove a consumer that has not finished with all it was given.

        It is none any more for limits, figures and turns. It goes on holding those deliveries of
        `kept` that it holds: they may be settled, released and given into transactions through it
        as before; `detach` gives back what is left. All others go back to their original
        position, uncounted unless `attempted`. No credit comes back for what it goes on holding.
        """
        attachment.retire(consumer, kept, attempted)

    def again(
        self, consumer: Consumer, sequences: Iterable[int], *, attempted: bool
    ) -> list[Delivery]:
        """Begin the next delivery of messages that the consumer holds, to the same consumer.

        Returns those that the caller now has to send, in queue order; their `attempts` are what
        they count now: with `attempted` one more than before, without it the same (they were
        never shown). Those that have expired meanwhile, or may not be attempted again, are gone
        or dead letters and not among them; numbers it does not hold are passed over. No credit is
        asked for, but one comes back for each that is gone if the window refills.
        """
        return redelivery.again(consumer, sequences, attempted)

    def browse(self, subscription: Subscription, *, unacked: bool = True) -> BrowseSnapshot:
        """What could be delivered now or, with `unacked`, is in flight, in queue order."""
        return BrowseSnapshot(subscription.browse(unacked), self.clock.steady)

    def scan(self, subscription: Subscription) -> Iterator[tuple[int, Message | None] | None]:
        """As `browse`, found step by step while the subscription changes; see browse.scan."""
        return scan(subscription)

    def fetch(self, sequence: int) -> Message:
        """A journaled message that is still there. Raises RecordNotFound, JournalDamaged."""
        return self.journal.fetch(sequence)

    def grant(self, window: Window, credit: int) -> None:
        """Add credit; its consumers go to the end of their lines and are served in turn."""
        window.credit += credit
        for consumer in list(window.consumers):
            if window.credit == 1:
                if serve_one(consumer):
                    return
            elif window.credit <= 0:
                return
            subscription = consumer.subscription
            subscription.enter_line(consumer)
            if consumer.pending_queue.mask:
                dispatch(subscription)

    def dispatch(self, subscription: Subscription) -> None:
        """Serve the consumers in line now, without waiting for the end of the turn."""
        dispatch(subscription)

    def revoke(self, window: Window) -> None:
        """Take all credit back; deliveries in flight stay with their consumers."""
        window.credit = 0
        for consumer in window.consumers:
            consumer.pending_queue.line.pop(consumer, None)

    def suspend(self, consumer: Consumer) -> None:
        """Deliver nothing more to a consumer whose connection cannot take it."""
        consumer.suspended = True
        consumer.pending_queue.line.pop(consumer, None)

    def resume(self, consumer: Consumer) -> None:
        """The connection of a suspended consumer takes bytes again."""
        if consumer.suspended:
            consumer.suspended = False
            consumer.subscription.enter_line(consumer)

    def settle(self, consumer: Consumer, sequence: int) -> bool:
        """Acknowledge; False if the consumer does not hold that message."""
        return consumer.subscription.settle(consumer, sequence)

    def settle_any(self, subscription: Subscription, sequence: int) -> bool:
        """Acknowledge a message that has been delivered, whoever holds it."""
        return subscription.settle_any(sequence)

    def release(
        self,
        consumer: Consumer,
        sequences: Iterable[int] | None = None,
        *,
        attempted: bool = True,
        spared: bool = False,
    ) -> None:
        """Give back to the original position (None = all held); see redelivery.release."""
        redelivery.release(consumer, sequences, attempted, spared)

    def decline(self, consumer: Consumer, sequences: Iterable[int], kind: str, reason: str) -> None:
        """Give deliveries back that the consumer, attached without a selector, cannot take.

        They count no attempt, keep their place, and wait for a consumer that is not of this `kind`.
        If no other that is attached can take one, it becomes a dead letter with this `reason`,
        whatever its destination's settings say; a dead letter stays where it is. See declined.py.
        """
        declined.decline(consumer, sequences, kind, reason)

    def time_out(self, consumer: Consumer, sequences: Iterable[int]) -> None:
        """Take back what was not acknowledged in time, for a consumer whose time the engine does
        not watch; see redelivery.time_out."""
        redelivery.time_out(consumer, sequences)

    def requeue(self, subscription: Subscription, sequence: int, expiration: int) -> bool:
        """Move a delivered message to the tail, with a new expiration in wall ms (0 = never)."""
        return redelivery.requeue(subscription, sequence, expiration)

    def dead_letter(
        self, subscription: Subscription, sequence: int, reason: str, *, force: bool = False
    ) -> bool:
        """Take a delivered message out; `force` keeps it even if dead_letter is not set."""
        return subscription.dead_letter(sequence, reason, force)

    # --- batches -----------------------------------------------------------------------------

    def write_batch(self, part: BatchPart, messages: list[tuple[Address, Message]]) -> BatchAnswer:
        """Publish a part of a batch, unless that has been done before; see Batches.write."""
        return self.batches.write(part, messages)

    # --- turns -------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Begin the turn: read the clocks. What follows is journaled under the wall clock's new
        setting."""
        self.clock.refresh()
        with suppress(JournalFailed):  # the journal has told its owner
            self.core.clock_log.look()

    def flush(self) -> None:
        """End the turn: run scans, dispatch, journal acknowledgements, start a group commit."""
        core = self.core
        core.scans.run()
        core.iterations += 1
        self.transactions.commits.advance()
        while True:
            while core.dirty or core.unblocking:
                dirty, core.dirty = core.dirty, {}
                for subscription in dirty:
                    dispatch(subscription)
                if core.unblocking:
                    self.unpark()
            if core.settling:
                core.event_recorder.write()
                settling, core.settling = core.settling, {}
                for subscription in settling:
                    subscription.flush_acks()
            self._flushing = True
            try:
                self.commit()
            finally:
                self._flushing = False
            if not (core.dirty or core.unblocking or core.settling):
                break
        if core.again:
            core.dirty, core.again = core.again, {}
            self.wake()
        core.scans.end_iteration()

    def tick(self) -> None:
        """Do what time demands: expiry, delays, acknowledgement timeouts. Then `flush`."""
        now = self.clock.steady
        for delivery in self.core.wheel.due(now):
            if delivery.state != GONE:  # the end of one may be the end of another
                delivery.subscription.expire(delivery)
        self.core.timers.run(now)

    def deadline(self) -> int:
        """Steady ms at which `tick` has something to do, or NEVER."""
        return min(self.core.timers.deadline(), self.core.wheel.deadline())

    def traffic_of(self, protocol: str) -> Traffic:
        """What that protocol's clients send and are given: whoever serves them counts it there."""
        traffic = self.traffic.get(protocol)
        if traffic is None:
            traffic = self.traffic[protocol] = Traffic()
        return traffic
